//! Processes in tests: a test that needs a separate one is started again alone; signals, and waiting for processes.

use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

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

/// Runs one test of this program in a separate process, where [`alone`] gives `argument`, and returns its stdout.
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

/// Processes whose parent is this one.
#[cfg(target_os = "linux")]
pub fn children(parent: u32) -> Vec<u32> {
    let ids =
        std::fs::read_dir("/proc").unwrap().filter_map(|e| e.unwrap().file_name().to_str()?.parse().ok());
    let is_child = |id: &u32| {
        let stat = std::fs::read_to_string(format!("/proc/{id}/stat")).unwrap_or_default();
        // The name stands in brackets and may hold anything: what follows it is state and parent.
        let after = stat.rsplit_once(')').map(|(_, rest)| rest.split_whitespace().nth(1).map(str::to_owned));
        after.flatten() == Some(parent.to_string())
    };
    ids.filter(is_child).collect()
}

/// Sends a signal to a process.
#[cfg(unix)]
#[track_caller]
pub fn signal(id: u32, name: &str) {
    assert!(Command::new("kill").args([name, &id.to_string()]).status().unwrap().success());
}

/// Waits until it is so. Panics when that takes five minutes.
#[track_caller]
pub fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < Duration::from_secs(300), "five minutes, and not: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Waits until a process has had so many milliseconds of processor time more, however busy the machine is. Panics when that
/// takes five minutes.
#[cfg(unix)]
pub fn works_for(id: u32, ms: u64) {
    if !cfg!(target_os = "linux") {
        return std::thread::sleep(Duration::from_millis(ms));
    }
    // Hundredths of a second in user mode, the twelfth field after the name.
    let spent = || {
        let stat = std::fs::read_to_string(format!("/proc/{id}/stat")).unwrap();
        let (_, fields) = stat.rsplit_once(')').unwrap();
        10 * fields.split_whitespace().nth(11).unwrap().parse::<u64>().unwrap()
    };
    let before = spent();
    wait_until("the process works", || spent() >= before + ms);
}
