//! The queue of `examples/evidence`: its own tests, and whether the program knows every command line of its plan.

use std::path::Path;
use std::process::Command;

use super::root;

#[track_caller]
pub(super) fn passes(command: &mut Command) {
    let out = command.env("PYTHONDONTWRITEBYTECODE", "1").env("PYTHONUTF8", "1").current_dir(root()).output();
    let out = out.expect("Python 3.11 or later as python3");
    let (stdout, stderr) = (String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    assert!(out.status.success(), "{command:?}: {}\n{stdout}{stderr}", out.status);
}

#[test]
fn the_queue_takes_units_and_records_them() {
    passes(Command::new("python3").arg("examples/evidence/test_evidence.py"));
}

/// Hours into the run is no time to learn of an option that is gone.
#[test]
fn the_program_knows_every_command_line_of_the_plan() {
    let programs = Path::new(env!("CARGO_BIN_EXE_ropewalk")).parent().unwrap();
    passes(Command::new("examples/evidence/run.sh").args(["--check", "--program"]).arg(programs));
}
