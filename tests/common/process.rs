//! Tests that need a process of their own: the test program is started again with one test in it.

use std::path::PathBuf;
use std::process::Command;

/// Sees to it that processes started from now on are ended by SIGHUP unless they do something about it, as it is where
/// nobody ignores it. Under `nohup` it is ignored, and a process passes that on to those that it starts; a signal that it
/// handles is not passed on. Until it ends this test program takes no notice of SIGHUP either.
#[cfg(unix)]
pub fn hang_up_as_usual() {
    static HANDLED: std::sync::Once = std::sync::Once::new();
    const SIGHUP: i32 = 1;
    HANDLED.call_once(|| {
        signal_hook::flag::register(SIGHUP, Default::default()).expect("a handler");
    });
}

/// Set for a process that has one test to run.
const ALONE: &str = "ROPEWALK_TEST_ALONE";

/// The argument given to [`run_alone`], in a process that it started.
pub fn alone() -> Option<String> {
    std::env::var(ALONE).ok()
}

/// The test program itself.
pub fn test_program() -> PathBuf {
    std::env::current_exe().unwrap()
}

/// Runs one test of this program in a process of its own, where [`alone`] gives `argument`, and returns its standard output.
/// `command` starts the test program with the arguments added to it here. The test is named by the `module_path!()` it
/// stands in and its function. Panics with the output of that process unless the test ran there and passed.
#[track_caller]
pub fn run_alone(mut command: Command, module: &str, test: &str, argument: &str) -> String {
    // Names of tests lack the name of the program, which module paths begin with.
    let (_, module) = module.split_once("::").expect("a test in a module");
    command.args(["--exact", &format!("{module}::{test}"), "--nocapture", "--test-threads=1"]);
    let output = command.env(ALONE, argument).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let passed = output.status.success() && said.contains("1 passed");
    assert!(passed, "{test}, alone: {}: {said}{}", output.status, String::from_utf8_lossy(&output.stderr));
    said
}

/// Whether the calling test is alone in its process and shall go on; otherwise it has just passed in such a process.
#[track_caller]
pub fn is_alone(module: &str, test: &str) -> bool {
    if alone().is_some() {
        return true;
    }
    run_alone(Command::new(test_program()), module, test, "");
    false
}
