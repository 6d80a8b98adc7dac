//! Runs the built program. It neither reads nor writes the user's own folders: its caches and history go elsewhere.
//! Nor does the user's environment change what it prints or asks.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

/// Exit code and output of a run.
#[derive(Debug)]
pub(crate) struct Output {
    pub(crate) code: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Output {
    /// The one JSON object on stdout.
    #[track_caller]
    pub(crate) fn json(&self) -> serde_json::Value {
        assert_eq!(self.code, 0, "{self:?}");
        serde_json::from_str(&self.stdout).unwrap_or_else(|e| panic!("{e}: {self:?}"))
    }
}

/// A call that is not run yet.
pub(crate) fn command(args: &[&str]) -> Command {
    let nowhere = std::env::temp_dir().join("ropewalk-tests-no-such-folder");
    let mut command = Command::new(env!("CARGO_BIN_EXE_ropewalk"));
    command.args(args).stdin(Stdio::null());
    let ours = ["HF_ENDPOINT", "HF_HUB_DOWNLOAD_TIMEOUT", "HF_TOKEN", "ROPEWALK_DATA", "ROPEWALK_MODELS"];
    for name in ours.iter().chain(&["ALL_PROXY", "all_proxy", "HTTPS_PROXY", "https_proxy", "COLUMNS"]) {
        command.env_remove(name);
    }
    command.env("XDG_CACHE_HOME", &nowhere).env("XDG_DATA_HOME", &nowhere);
    command
}

/// Runs it.
pub(crate) fn finish(mut command: Command) -> Output {
    ended(command.output().unwrap())
}

fn ended(output: std::process::Output) -> Output {
    Output {
        code: output.status.code().unwrap_or(-1),
        stdout: String::from_utf8(output.stdout).unwrap(),
        stderr: String::from_utf8(output.stderr).unwrap(),
    }
}

/// The words of a line.
pub(crate) fn split(line: &str) -> Vec<&str> {
    line.split(' ').collect()
}

pub(crate) fn run(args: &[&str]) -> Output {
    finish(command(args))
}

/// Runs in a folder.
pub(crate) fn run_in(dir: &Path, args: &[&str]) -> Output {
    let mut command = command(args);
    command.current_dir(dir);
    finish(command)
}

/// Runs with this text on stdin.
pub(crate) fn run_with(args: &[&str], stdin: impl AsRef<[u8]>) -> Output {
    let mut command = command(args);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    // A program that refuses its arguments may have ended without reading it.
    let _ = child.stdin.take().unwrap().write_all(stdin.as_ref());
    ended(child.wait_with_output().unwrap())
}

/// Writes a program in the language of a shell. Another process does it: what another test starts at this moment could inherit
/// the open file, and a program that is open for writing cannot be run.
#[cfg(unix)]
pub(crate) fn write_script(at: &Path, text: &str) {
    let write = "printf %s \"$1\" > \"$0\" && chmod +x \"$0\"";
    assert!(Command::new("sh").args(["-c", write]).arg(at).arg(text).status().unwrap().success());
}
