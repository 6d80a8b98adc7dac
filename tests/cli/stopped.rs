//! A process that is stopped and continued goes on as if nothing had been.
#![cfg(target_os = "linux")]

use std::io::Read;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::common::program::{command, run};
use crate::models::{model, ok};

#[test]
fn a_stopped_run_goes_on() {
    let line =
        ["run", "-m", model(), "-p", "Rope is", "-n", "1500", "--temp", "0", "--ignore-eos", "--raw", "-q"];
    let line = [&line[..], &["--device", "cpu", "-t", "2"]].concat();
    let whole = ok(run(&line)).stdout;
    let mut child = command(&line).stdout(Stdio::piped()).spawn().unwrap();
    let mut stdout = child.stdout.take().unwrap();
    let mut text = vec![0];
    stdout.read_exact(&mut text).unwrap();
    for _ in 0..3 {
        let signal =
            |name: &str| Command::new("kill").args([name, &child.id().to_string()]).status().unwrap();
        assert!(signal("-STOP").success());
        // Stopped, or at its end already.
        let stat = || std::fs::read_to_string(format!("/proc/{}/stat", child.id())).unwrap();
        let began = Instant::now();
        while ![") T", ") Z"].iter().any(|state| stat().contains(state)) {
            assert!(began.elapsed() < Duration::from_secs(60), "it is not stopped");
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(signal("-CONT").success());
    }
    stdout.read_to_end(&mut text).unwrap();
    assert!(child.wait().unwrap().success());
    assert_eq!(String::from_utf8(text).unwrap(), whole);
}
