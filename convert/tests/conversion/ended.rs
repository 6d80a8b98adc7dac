//! Conversions that end early, by a signal, by SIGKILL, by a write that fails: the output is the old file or the new one, and
//! nothing else is left for long.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::cli::{convert, marked, stderr, tiny};
use crate::lab::{names, soaks};

/// Starts a conversion that takes long, and waits until it is writing.
fn busy(dir: &Path, out: &Path, wrapper: &[&str]) -> Child {
    let line = [wrapper, &[env!("CARGO_BIN_EXE_convert")]].concat();
    let before = names(dir).len();
    let mut child = Command::new(line[0])
        .args(&line[1..])
        .args(["--random", "llama-1b", "--type", "f32", "-o", out.to_str().unwrap()])
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let start = Instant::now();
    while names(dir).len() == before {
        assert_eq!(child.try_wait().unwrap(), None, "it ended before it wrote anything");
        assert!(start.elapsed() < Duration::from_secs(300), "nothing is written in five minutes");
        std::thread::sleep(Duration::from_millis(2));
    }
    child
}

#[cfg(unix)]
fn signal(child: &Child, name: &str) {
    assert!(Command::new("kill").args([name, &child.id().to_string()]).status().unwrap().success());
}

#[cfg(unix)]
#[test]
fn a_signal_leaves_nothing() {
    // Under `nohup` SIGHUP is ignored, and a process passes that on to those that it starts; not so a signal that it handles.
    const SIGHUP: i32 = 1;
    signal_hook::flag::register(SIGHUP, Default::default()).expect("a handler");
    for (name, code) in [("-INT", 130), ("-TERM", 143), ("-HUP", 129)] {
        let dir = tempfile::tempdir().unwrap();
        let out = dir.path().join("big.gguf");
        let child = busy(dir.path(), &out, &["env"]);
        assert!(names(dir.path())[0].starts_with(".big.gguf.writing-"), "{:?}", names(dir.path()));
        signal(&child, name);
        // `timeout` sends its signal twice.
        signal(&child, name);
        let done = child.wait_with_output().unwrap();
        assert_eq!((done.status.code(), names(dir.path()).len()), (Some(code), 0), "{}", stderr(&done));
        assert!(stderr(&done).contains("interrupted"), "{}", stderr(&done));
    }
}

/// `nohup` starts programs with SIGHUP ignored, and so it stays.
#[cfg(target_os = "linux")]
#[test]
fn a_hangup_that_is_ignored_stays_ignored() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("big.gguf");
    let mut child = busy(dir.path(), &out, &["sh", "-c", "trap '' HUP; exec \"$0\" \"$@\""]);
    signal(&child, "-HUP");
    std::thread::sleep(Duration::from_millis(300));
    assert!(child.try_wait().unwrap().is_none(), "it ended");
    signal(&child, "-TERM");
    let done = child.wait_with_output().unwrap();
    assert_eq!((done.status.code(), names(dir.path()).len()), (Some(143), 0), "{}", stderr(&done));
}

/// Killed at many moments from start to end: afterwards the output is the old file or the new one, and a run that ends well
/// leaves nothing else.
#[test]
fn killed_at_any_moment_it_leaves_the_old_file_or_the_new_one() {
    let n_kills = if soaks() { 100 } else { 4 };
    let dir = tempfile::tempdir().unwrap();
    let (tiny, out) = (tiny(dir.path()), dir.path().join("out.gguf"));
    let args = ["--type", "f32", tiny.to_str().unwrap(), "-o", out.to_str().unwrap(), "-q"];
    let start = Instant::now();
    assert!(convert(&args).status.success());
    let whole = start.elapsed();
    let new = std::fs::read(&out).unwrap();
    // An earlier output: another file is not replaced.
    marked().write(&out).unwrap();
    let before = std::fs::read(&out).unwrap();
    let (mut n_new, mut n_littered) = (0, 0);
    for i in 0..n_kills {
        std::fs::write(&out, &before).unwrap();
        let mut child = Command::new(env!("CARGO_BIN_EXE_convert")).args(args).spawn().unwrap();
        std::thread::sleep(whole * i / n_kills);
        child.kill().unwrap();
        child.wait().unwrap();
        let found = std::fs::read(&out).unwrap();
        assert!(found == before || found == new, "kill {i}: a part of {} bytes", found.len());
        n_new += u32::from(found == new);
        n_littered += u32::from(names(dir.path()).len() > 2);
    }
    println!("{n_kills} kills: {n_littered} left a temporary file, {n_new} came after the end");
    let cleared = || {
        assert!(convert(&args).status.success());
        assert_eq!(names(dir.path()), ["out.gguf", "tiny.gguf"]);
        assert!(std::fs::read(&out).unwrap() == new);
    };
    cleared();
    // While it is writing, to be sure that there is litter.
    let mut child = busy(dir.path(), &out, &["env"]);
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(names(dir.path()).len(), 3, "{:?}", names(dir.path()));
    cleared();
}

/// Two conversions into one folder leave each other's temporary files alone.
#[test]
fn a_file_that_is_being_written_is_not_cleared_away() {
    let dir = tempfile::tempdir().unwrap();
    let mut child = busy(dir.path(), &dir.path().join("big.gguf"), &["env"]);
    let temporary = names(dir.path());
    tiny(dir.path());
    let both = names(dir.path());
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(both, [&temporary[0][..], "tiny.gguf"]);
}

#[test]
fn a_write_that_fails_at_any_step_leaves_the_old_file_or_the_new_one() {
    use convert::random::{write, Shape};
    use files::faults::{walk, Step};
    let dir = tempfile::tempdir().unwrap();
    let (tiny, out) = (tiny(dir.path()), dir.path().join("out.gguf"));
    let shape = Shape::named("llama-tiny").unwrap();
    let writers: [&dyn Fn() -> Result<(), String>; 2] =
        [&|| write(&shape, gguf::DType::Q4_0, 1, &out).map(|_| ()).map_err(|e| e.to_string()), &|| {
            let options = convert::Options::default().dtype(Some(gguf::DType::Q4_0));
            let done = convert::convert(&tiny, &out, &options, &Default::default());
            done.map(|_| ()).map_err(|e| e.to_string())
        }];
    for writer in writers {
        writer().unwrap();
        let new = std::fs::read(&out).unwrap();
        let before = [&new[..], &[0; 32]].concat();
        let steps = walk(&out, &before, |found| found == new, writer);
        assert!(
            steps.len() > 6 && steps.contains(&Step::Write) && steps.ends_with(&[Step::SyncFolder]),
            "{steps:?}"
        );
    }
}
