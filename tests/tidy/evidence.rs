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
    passes(Command::new("python3").args(["examples/evidence/test_evidence.py", "Queue", "Parts"]));
}

#[test]
fn the_queue_measures_a_whole_plan() {
    passes(Command::new("python3").args(["examples/evidence/test_evidence.py", "Whole"]));
}

/// Its pictures too, of which the README shows one.
#[test]
fn the_page_is_that_of_the_records() {
    let dir = tempfile::tempdir().unwrap();
    let images = dir.path().join("images");
    std::fs::create_dir(&images).unwrap();
    passes(Command::new("examples/evidence/report.sh").arg("--docs").arg(dir.path()));
    let pictures = std::fs::read_dir(&images).unwrap().map(|entry| entry.unwrap().path());
    for path in pictures.chain([dir.path().join("evidence.md")]) {
        let ours = root().join("docs").join(path.strip_prefix(dir.path()).unwrap());
        let is_same = std::fs::read(&path).unwrap() == std::fs::read(&ours).unwrap_or_default();
        assert!(is_same, "{}: run examples/evidence/report.sh", ours.display());
    }
}

/// Hours into the run is no time to learn of an option that is gone.
#[test]
fn the_program_knows_every_command_line_of_the_plan() {
    let programs = Path::new(env!("CARGO_BIN_EXE_ropewalk")).parent().unwrap();
    let check = |more: &[&str]| {
        passes(
            Command::new("examples/evidence/run.sh").args(["--check", "--program"]).arg(programs).args(more),
        );
    };
    check(&[]);
    check(&["--plan", "examples/evidence/gpu.toml"]);
}
