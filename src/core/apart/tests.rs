//! Processes that never end, and what they inherit.

use std::path::Path;
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::apart::{Apart, Fault, LOADER};
use crate::control::{Control, Stop};

/// Set for the process that has one test to run.
const ALONE: &str = "ROPEWALK_TEST_APART";

/// Waits until it is so. Panics when that takes five minutes.
#[track_caller]
fn wait_until(mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < Duration::from_secs(300), "five minutes, and not so");
        sleep(Duration::from_millis(5));
    }
}

/// Ends a process that is silent, and one that has closed its output, and leaves nothing of them.
#[test]
fn a_process_that_never_ends_is_stopped() {
    let dir = tempfile::tempdir().unwrap();
    for (name, end) in [("silent", "exec sleep 1000"), ("closed", "exec >&-; exec sleep 1000")] {
        let pid = dir.path().join(name);
        let script = format!("echo $$ > '{0}.new'; mv '{0}.new' '{0}'; {end}", pid.display());
        let stop = Stop::default();
        let control = Control::default().with_stop(&stop);
        let apart = Apart::new("/bin/sh", ["-c", &script]).stopped_by(&control);
        let (asked, answer) = std::thread::scope(|scope| {
            // More than a pipe holds: the other side does not read it.
            let request = vec![0; 1 << 20];
            let answer = scope.spawn(move || apart.ask(&[&request], 10, |_| None::<()>));
            wait_until(|| pid.exists());
            sleep(Duration::from_millis(100));
            assert!(!answer.is_finished());
            stop.request();
            (Instant::now(), answer.join().unwrap())
        });
        assert_eq!(answer, Err(Fault::Stopped), "{name}");
        assert!(asked.elapsed() < Duration::from_secs(500), "{name}: {:?}", asked.elapsed());
        let id = std::fs::read_to_string(&pid).unwrap();
        assert!(!Path::new("/proc").join(id.trim()).exists(), "{name}: the process is still there");
    }
}

#[test]
fn nothing_is_started_after_a_stop() {
    let stop = Stop::default();
    stop.request();
    let apart = Apart::new("/no/such/program", [""; 0]);
    let apart = apart.stopped_by(&Control::default().with_stop(&stop));
    assert_eq!(apart.ask(&[], 10, |_| Some(())), Err(Fault::Stopped));
    stop.clear();
    assert!(matches!(apart.ask(&[], 10, |_| Some(())), Err(Fault::Unstarted { .. })));
}

/// Each request has a process that was started before it, and that no other request had.
#[test]
fn a_process_waits_for_the_next_request() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("log");
    let script =
        format!("echo $$ >> '{}'; dd bs=1 count=16 of=/dev/null 2>/dev/null; exec cat", log.display());
    let apart = Apart::new("/bin/sh", ["-c", &script]).ready();
    let ask = |text: &str| apart.ask(&[text.as_bytes()], 100, |bytes| Some(bytes.to_vec()));
    let started = |n: usize| {
        let mut text = String::new();
        wait_until(|| {
            text = std::fs::read_to_string(&log).unwrap_or_default();
            text.matches('\n').count() >= n
        });
        assert_eq!(text.lines().count(), n);
        text.lines().last().unwrap().to_owned()
    };
    let mut waiting = String::new();
    for n in 2..5 {
        assert_eq!(ask("hemp"), Ok(b"hemp".to_vec()));
        // The one that waited was asked, and is gone.
        assert!(waiting.is_empty() || !Path::new("/proc").join(&waiting).exists());
        waiting = started(n);
    }
    // One that has ended meanwhile is not asked.
    assert!(Command::new("kill").args(["-9", &waiting]).status().unwrap().success());
    let stat = Path::new("/proc").join(&waiting).join("stat");
    wait_until(|| std::fs::read_to_string(&stat).unwrap().contains(") Z"));
    assert_eq!(ask("rope"), Ok(b"rope".to_vec()));
    let last = started(6);
    drop(apart);
    wait_until(|| !Path::new("/proc").join(&last).exists());
}

#[test]
fn a_process_inherits_where_libraries_lie_and_nothing_else() {
    let Some(found) = std::env::var_os(ALONE) else {
        let dir = tempfile::tempdir().unwrap();
        for set in [false, true] {
            let found = dir.path().join("environ");
            let mut test = Command::new(std::env::current_exe().unwrap());
            let name = "apart::tests::a_process_inherits_where_libraries_lie_and_nothing_else";
            test.args(["--exact", name]).env(ALONE, &found).env("HF_TOKEN", "hf_secret");
            test.env("LD_PRELOAD", "").env_remove("LD_LIBRARY_PATH");
            if set {
                test.env("LD_LIBRARY_PATH", "/some/folder");
            }
            assert!(test.output().unwrap().status.success());
            let environ = String::from_utf8(std::fs::read(&found).unwrap()).unwrap();
            assert_eq!(environ, if set { "LD_LIBRARY_PATH=/some/folder\0" } else { "" });
        }
        assert_eq!(LOADER, ["LD_LIBRARY_PATH"]);
        return;
    };
    let script = format!("cat /proc/$$/environ > '{}'", Path::new(&found).display());
    let answer = Apart::new("/bin/sh", ["-c", &script]).ask(&[], 10, |_| None::<()>);
    assert!(matches!(answer, Err(Fault::Ended(_))));
}
