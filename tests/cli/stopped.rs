//! A process that is stopped and continued goes on as if nothing had been.
#![cfg(target_os = "linux")]

use std::io::Read;
use std::process::Stdio;

use crate::common::process::{signal, wait_until};
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
        signal(child.id(), "-STOP");
        // Stopped, or at its end already.
        let stat = || std::fs::read_to_string(format!("/proc/{}/stat", child.id())).unwrap();
        wait_until("it is stopped", || [") T", ") Z"].iter().any(|state| stat().contains(state)));
        signal(child.id(), "-CONT");
    }
    stdout.read_to_end(&mut text).unwrap();
    assert!(child.wait().unwrap().success());
    assert_eq!(String::from_utf8(text).unwrap(), whole);
}
