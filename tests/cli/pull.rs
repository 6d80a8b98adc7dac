//! `ropewalk pull` against a hub on this machine: files in place, connections that break, pulls that are cut off.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::hub::{at_once, content, names, sum, Hub, FILE, SOURCE};
#[cfg(unix)]
use crate::common::process::signal;
use crate::common::process::wait_until;
use crate::common::program::{command, finish, run_in};

/// The unfinished file that a pull left in this folder.
fn unfinished(dir: &Path) -> PathBuf {
    let names = names(&dir.join(".partial"));
    let name = names.iter().find(|n| n.ends_with(".part")).expect("an unfinished file");
    dir.join(".partial").join(name)
}

/// Waits until the file is a part of a pull under way, at least this long.
fn wait_for(dir: &Path, bytes: u64) {
    wait_until("a part of the file", || {
        let entries = std::fs::read_dir(dir.join(".partial")).into_iter().flatten().flatten();
        let mut parts = entries.filter(|e| e.path().extension().is_some_and(|x| x == "part"));
        parts.any(|e| e.metadata().is_ok_and(|m| m.len() >= bytes))
    });
}

/// A call under way, whose output can be asked for later.
fn start(mut command: Command) -> Child {
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

/// Waits for its end: the exit code, and stderr.
pub(crate) fn end(child: Child) -> (Option<i32>, String) {
    let output = child.wait_with_output().unwrap();
    (output.status.code(), String::from_utf8(output.stderr).unwrap())
}

#[test]
fn a_file_arrives_whole_and_a_second_pull_sends_nothing() {
    let (hub, dir) = (Hub::new(), tempfile::tempdir().unwrap());
    let (content, folder) = (hub.content(), dir.path().join("in"));
    let manifest = hub.manifest(dir.path(), &sum(&content), content.len());
    let output = hub.pull_whole(&folder, &["tiny", "--manifest", &manifest]);
    assert_eq!(output.stdout.trim(), folder.join("file.gguf").to_str().unwrap());
    assert!(output.stderr.contains("fetched") && output.stderr.contains("as expected"), "{output:?}");
    assert_eq!(hub.sent(), content.len());
    let asked = &hub.asked()[0];
    assert_eq!(
        (asked.path.as_str(), asked.header("range"), asked.header("authorization")),
        (FILE, None, None)
    );
    assert_eq!(asked.header("accept-encoding"), Some("identity"));

    for what in ["tiny", SOURCE] {
        let json = hub.pull_whole(&folder, &[what, "--manifest", &manifest, "--json"]).json();
        assert_eq!(json["files"][0]["fetched"], false);
        assert_eq!(json["files"][0]["verified"], true);
        assert_eq!(json["files"][0]["sha256"], sum(&content).as_str());
    }
    assert_eq!(hub.asked().len(), 1, "the hub was not asked again");
    let record = std::fs::read_to_string(folder.join("file.gguf.source.json")).unwrap();
    let record: serde_json::Value = serde_json::from_str(&record).unwrap();
    let expected = serde_json::json!({ "source": SOURCE, "revision": "abc123", "bytes": content.len(),
        "sha256": sum(&content) });
    assert_eq!(record, expected);
}

#[test]
fn a_broken_connection_is_resumed_in_the_same_call() {
    let dir = tempfile::tempdir().unwrap();
    at_once([true, false], |quiet| {
        let hub = Hub::twisted(|asked, reply| reply.cut = if asked.n < 2 { 300_000 } else { usize::MAX });
        let args: &[&str] = if quiet { &[SOURCE, "-q"] } else { &[SOURCE] };
        let output = hub.pull_whole(&dir.path().join(quiet.to_string()), args);
        assert_eq!(hub.sent(), content().len(), "every byte traveled once");
        // What was tried again is printed.
        assert_eq!(output.stderr.matches("retry ").count(), if quiet { 0 } else { 2 }, "{output:?}");
        assert!(!quiet || output.stderr.is_empty(), "{output:?}");
    });
}

#[test]
fn what_an_earlier_call_left_is_resumed_or_replaced() {
    let whole = content().len();
    for (extra, sends) in [(0, whole - 1_000_000), (200_001, whole)] {
        let dir = tempfile::tempdir().unwrap();
        let hub = Hub::cut_once();
        hub.pull_fails(dir.path(), &[SOURCE, "--retries", "0"], &["1000000 bytes are kept"]);
        let path = unfinished(dir.path());
        if extra > 0 {
            // Longer than the whole, which no pull leaves.
            let left = std::fs::read(&path).unwrap();
            std::fs::write(&path, [&left[..], &vec![0; extra]].concat()).unwrap();
        }
        let output = hub.pull_whole(dir.path(), &[SOURCE]);
        assert!(output.stderr.contains("as expected"), "the hub's own sum is compared: {output:?}");
        assert_eq!(hub.sent(), 1_000_000 + sends);
    }
}

#[test]
fn what_is_whole_is_only_checked() {
    // Who knows the checksum need not ask for it; otherwise the hub is asked for the rest, and for what the whole is.
    for (known, requests) in [(true, 1), (false, 3)] {
        let (outer, hub) = (tempfile::tempdir().unwrap(), Hub::cut_once());
        let dir = outer.path().join("in");
        let manifest = hub.manifest(outer.path(), &sum(&content()), content().len());
        let args = if known { vec!["tiny", "--manifest", manifest.as_str()] } else { vec![SOURCE] };
        hub.pull(&dir, &[&args[..], &["--retries", "0"]].concat());
        let left = unfinished(&dir);
        std::fs::write(&left, hub.content()).unwrap();
        let output = hub.pull_whole(&dir, &args);
        assert!(output.stderr.contains("as expected") && !output.stderr.contains("first byte"), "{output:?}");
        // Killed at its very end, a pull leaves what it does not need any more; the next one removes that.
        for file in [false, true] {
            std::fs::create_dir(dir.join(".partial")).unwrap();
            if file {
                std::fs::write(dir.join(".partial/.file.gguf.ropewalk-lock"), "").unwrap();
            }
            hub.pull_whole(&dir, &args);
        }
        assert_eq!(hub.asked().len(), requests);
    }
}

#[test]
fn what_lies_in_partial_counts_for_its_bytes_only() {
    let whole = content();
    let other: Vec<u8> = whole.iter().map(|byte| byte ^ 1).collect();
    let tail = [&whole[..1_000_000], &other[1_000_000..]].concat();
    let head = [&other[..1], &whole[1..1_000_000]].concat();
    // Another file of the same size, the right one with a wrong end, and a wrong beginning.
    for forged in [&other, &tail, &head] {
        for tagged in [true, false] {
            let dir = tempfile::tempdir().unwrap();
            let hub = Hub::twisted(move |_, reply| {
                if !tagged {
                    reply.set("ETag", "\"1-2\"");
                }
            });
            let left = dir.path().join(".partial");
            std::fs::create_dir(&left).unwrap();
            std::fs::write(left.join("file.gguf.part"), forged).unwrap();
            // Without the hub it is not taken for the file.
            let mut call = hub.call(dir.path(), &[SOURCE]);
            call.env("HF_ENDPOINT", "http://127.0.0.1:1");
            let output = finish(call);
            assert_eq!((output.code, output.stderr.lines().count()), (1, 1), "{output:?}");
            assert_eq!(names(dir.path()), [".partial"]);
            let output = hub.pull(dir.path(), &[SOURCE]);
            assert_eq!(output.code, 0, "{output:?}");
            assert!(std::fs::read(dir.path().join("file.gguf")).unwrap() == whole, "{output:?}");
            assert_eq!(output.stderr.contains("as expected"), tagged, "{output:?}");
            assert!(output.stderr.contains("first byte"), "{output:?}");
        }
    }
}

#[test]
fn a_file_without_a_checksum_is_fetched_from_the_first_byte_again() {
    let dir = tempfile::tempdir().unwrap();
    let hub = Hub::twisted(|asked, reply| {
        reply.set("ETag", "\"1-2\"");
        reply.cut = if asked.n < 2 { 300_000 } else { usize::MAX };
    });
    let output = hub.pull_fails(dir.path(), &[SOURCE, "--retries", "0"], &["the connection"]);
    assert!(!output.stderr.contains("kept") && names(dir.path()).is_empty(), "{output:?}");
    hub.pull_whole(dir.path(), &[SOURCE]);
    assert!(hub.asked().iter().all(|asked| asked.from.is_none()), "{:?}", hub.asked());
}

#[test]
fn another_version_on_the_hub_replaces_the_beginning_of_the_first() {
    let dir = tempfile::tempdir().unwrap();
    let hub = Hub::twisted(|asked, reply| reply.cut = if asked.n == 0 { 1_000_000 } else { usize::MAX });
    hub.pull_fails(dir.path(), &[SOURCE, "--retries", "0"], &["bytes are kept"]);
    hub.set_content(content().iter().rev().copied().collect());
    hub.pull_whole(dir.path(), &[SOURCE]);
}

#[test]
fn a_wrong_checksum_keeps_nothing() {
    let (hub, dir) = (Hub::new(), tempfile::tempdir().unwrap());
    let (folder, wrong) = (dir.path().join("in"), "0".repeat(64));
    let manifest = hub.manifest(dir.path(), &wrong, content().len());
    hub.pull_fails(&folder, &["tiny", "--manifest", &manifest], &[&wrong, &sum(&content())]);
    assert!(names(&folder).is_empty());
    // Neither is it used by the next pull.
    hub.pull_whole(&folder, &[SOURCE, "--sha256", &sum(&content())]);
    // A size is compared before anything is fetched.
    let folder = dir.path().join("size");
    let manifest = hub.manifest(dir.path(), &sum(&content()), 7);
    hub.pull_fails(&folder, &["tiny", "--manifest", &manifest], &["expected 7 bytes", "1200000"]);
    assert!(names(&folder).is_empty());
}

#[test]
fn refusals_are_one_clear_line_and_are_not_tried_again() {
    let dir = tempfile::tempdir().unwrap();
    let hub = Hub::twisted(|asked, reply| match asked.path.as_str() {
        "/org/closed/resolve/main/file.gguf" => reply.refuse(401),
        "/org/odd/resolve/main/file.gguf" => reply.refuse(418),
        _ => {}
    });
    for (source, words) in [
        ("hf:org/repo/other.gguf", "hf:org/repo/other.gguf: not found"),
        ("hf:org/closed/file.gguf", "HF_TOKEN"),
        ("hf:org/odd/file.gguf", "status 418"),
    ] {
        let asked = hub.asked().len();
        let output = hub.pull_fails(dir.path(), &[source], &[words]);
        assert_eq!((output.stderr.lines().count(), hub.asked().len()), (1, asked + 1), "{output:?}");
        assert!(names(dir.path()).is_empty());
    }
}

#[test]
fn a_file_of_another_source_is_not_taken_for_it() {
    let (hub, dir) = (Hub::new(), tempfile::tempdir().unwrap());
    let folder = dir.path().join("models");
    hub.pull_whole(&folder, &[SOURCE]);
    let other = "hf:other/thing/file.gguf";
    let output = hub.pull(&folder, &[other]);
    assert_eq!(
        (output.code, output.stdout.as_str(), output.stderr.lines().count()),
        (1, "", 1),
        "{output:?}"
    );
    assert!(output.stderr.contains(SOURCE) && output.stderr.contains(other), "{output:?}");
    assert_eq!(hub.pull(&folder, &[other, "--as", "theirs.gguf"]).code, 0);
    assert_eq!(names(&folder).len(), 4);
    // Nor is it opened under that name.
    let output = run_in(dir.path(), &["run", "-m", other, "-p", "a"]);
    assert_eq!(output.code, 1);
    assert!(output.stderr.contains("not downloaded") && output.stderr.contains(SOURCE), "{output:?}");
}

#[test]
fn a_file_without_a_record_is_of_unknown_origin() {
    let (hub, dir) = (Hub::new(), tempfile::tempdir().unwrap());
    let folder = dir.path().join("in");
    std::fs::create_dir(&folder).unwrap();
    std::fs::write(folder.join("file.gguf"), hub.content()).unwrap();
    let output = hub.pull(&folder, &[SOURCE]);
    assert_eq!((output.code, output.stdout.as_str()), (1, ""), "{output:?}");
    assert!(output.stderr.contains("unknown origin") && !output.stderr.contains("expected"), "{output:?}");
    // The manifest's checksum says what it is.
    let manifest = hub.manifest(dir.path(), &sum(&content()), content().len());
    let output = hub.pull_whole(&folder, &["tiny", "--manifest", &manifest]);
    assert!(output.stderr.contains("already here") && output.stderr.contains("as expected"), "{output:?}");
    // From then on there is a record of it.
    hub.pull_whole(&folder, &[SOURCE]);
    std::fs::write(folder.join("file.gguf"), "short").unwrap();
    let output = hub.pull(&folder, &["tiny", "--manifest", &manifest]);
    assert!(output.code == 1 && output.stderr.contains("expected 1200000 bytes, found 5"), "{output:?}");
    assert!(hub.asked().is_empty());
}

#[test]
fn two_pulls_at_once_do_not_collide() {
    let dir = tempfile::tempdir().unwrap();
    let let_go = Arc::new(AtomicBool::new(false));
    let held = Arc::clone(&let_go);
    let hub = Hub::twisted(move |_, reply| {
        reply.pause = Some((60_000, Duration::ZERO));
        reply.held = Some(Arc::clone(&held));
    });
    let first = start(hub.call(dir.path(), &[SOURCE]));
    wait_for(dir.path(), 1);
    // The same source, and another one of the same name: the one who writes there is named.
    for source in [SOURCE, "hf:other/thing/file.gguf"] {
        let holder = format!("in use by process {} on ", first.id());
        hub.pull_fails(dir.path(), &[source], &["file.gguf: is already being pulled", &holder]);
    }
    // Another name is none of its business, and the end of one is not the end of the other.
    let quick = Hub::new();
    let output = quick.pull(dir.path(), &["hf:other/thing/file.gguf", "--as", "second.gguf"]);
    assert_eq!(output.code, 0, "{output:?}");
    let_go.store(true, Ordering::Relaxed);
    let (code, stderr) = end(first);
    assert_eq!(code, Some(0), "{stderr}");
    assert_eq!(hub.sent(), content().len(), "{stderr}");
    assert!(std::fs::read(dir.path().join("file.gguf")).unwrap() == content());
    assert!(std::fs::read(dir.path().join("second.gguf")).unwrap() == content());
    assert_eq!(names(dir.path()).len(), 4, "{:?}", names(dir.path()));
}

#[test]
fn a_finished_pull_leaves_the_unfinished_file_of_another() {
    let dir = tempfile::tempdir().unwrap();
    let hub = Hub::cut_once();
    hub.pull_fails(dir.path(), &[SOURCE, "--retries", "0"], &["1000000 bytes are kept"]);
    assert_eq!(hub.pull(dir.path(), &["hf:org/repo/b/file.gguf", "--as", "b.gguf"]).code, 0);
    let sent = hub.sent();
    assert_eq!(hub.pull(dir.path(), &[SOURCE]).code, 0);
    assert_eq!(hub.sent() - sent, content().len() - 1_000_000);
    assert_eq!(names(dir.path()).len(), 4, "{:?}", names(dir.path()));
}

#[cfg(unix)]
#[test]
fn ctrl_c_keeps_what_arrived() {
    let dir = tempfile::tempdir().unwrap();
    // It stands still after the first part, so that the wait is what must be stopped.
    let hub = Hub::twisted(|asked, reply| {
        reply.pause = (asked.n == 0).then_some((500_000, Duration::from_secs(300)));
    });
    let mut call = command(&["pull", "--dir", dir.path().to_str().unwrap(), SOURCE]);
    call.env("HF_ENDPOINT", &hub.address);
    let child = start(call);
    wait_for(dir.path(), 500_000);
    let since = Instant::now();
    signal(child.id(), "-INT");
    let (code, stderr) = end(child);
    assert!(since.elapsed() < Duration::from_secs(60));
    assert_eq!(code, Some(130), "{stderr}");
    assert!(stderr.contains("500000 bytes are kept, and the same pull resumes from there"), "{stderr}");
    hub.pull_whole(dir.path(), &[SOURCE]);
    assert_eq!(hub.asked()[1].from, Some(500_000));
}

/// Each kill comes at another moment of a pull.
#[cfg(unix)]
#[test]
fn a_killed_pull_is_finished_by_a_later_one() {
    let kills: u64 = crate::common::size(12, 100);
    // The first time it stands still after a part, so that one pull at least is resumed, however slow the machine is.
    let hub = Hub::twisted(|asked, reply| {
        let stands = (500_000, Duration::from_secs(300));
        reply.pause = Some(if asked.n == 0 { stands } else { (20_000, Duration::from_millis(5)) });
    });
    let (mut killed, mut resumed, mut finished) = (0, 0, 0);
    // The moments are the same in each run.
    let mut next = crate::common::xorshift(0x9e37_79b9_7f4a_7c15);
    let mut dir = tempfile::tempdir().unwrap();
    while killed < kills {
        let mut child = start(hub.call(dir.path(), &[SOURCE]));
        match killed {
            0 => wait_for(dir.path(), 500_000),
            _ => std::thread::sleep(Duration::from_millis(next() % 350)),
        }
        if child.try_wait().unwrap().is_none() {
            child.kill().unwrap();
            killed += 1;
        }
        let (code, stderr) = end(child);
        assert!(code.is_none_or(|c| c == 0), "{stderr}");
        let file = dir.path().join("file.gguf");
        assert!(!file.exists() || std::fs::read(&file).unwrap() == content(), "in place before it is whole");
        // The first and every third one are finished; the others are killed once more.
        if file.exists() || killed == 1 || killed % 3 == 0 {
            let before = hub.asked().len();
            hub.pull_whole(dir.path(), &[SOURCE]);
            resumed += usize::from(hub.asked()[before..].iter().any(|a| a.from.is_some()));
            finished += 1;
            dir = tempfile::tempdir().unwrap();
        }
    }
    println!("{killed} killed, {finished} finished, {resumed} of them resumed, {} bytes sent", hub.sent());
    assert!(resumed > 0);
}
