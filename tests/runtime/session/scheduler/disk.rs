//! Texts on disk: what is restored is as if it had been read, only its own requests get it, and no file does harm.

use std::path::Path;
use std::sync::{Arc, Mutex};

use ropewalk::math::Math;
use ropewalk::scheduler::{DiskParams, Event, Scheduler, SchedulerParams};
use ropewalk::session::SessionParams;
use ropewalk::{DType, Token};
use sha2::{Digest, Sha256};

use super::super::model;
use super::{alone, request, run_one, session, settles, start, Log, Sink, Ticket, Told, PLANS};
use crate::common::{says, some_tokens};

/// A scheduler of one plan that keeps texts of 16 tokens or more.
fn kept(dir: &Path, plan: &SessionParams) -> SchedulerParams {
    let disk = DiskParams::new(dir, 1 << 30).n_tokens(16);
    SchedulerParams::new(vec![plan.clone()]).step_tokens(Some(40)).disk(Some(disk))
}

/// Asks once in a scheduler that is then stopped. Also returns the warnings.
fn ask(m: &ropewalk::Model, how: SchedulerParams, prompt: &[Token], n: usize) -> (Told, Vec<String>) {
    let scheduler = start(m, how);
    let told = run_one(&scheduler, request(prompt, n));
    scheduler.stop(std::time::Duration::ZERO);
    (told, scheduler.warnings())
}

/// The files of texts, sorted.
fn files(dir: &Path) -> Vec<std::path::PathBuf> {
    let entries = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    let is_text = |path: &std::path::PathBuf| {
        path.is_file() && path.file_name().unwrap().to_str().unwrap().starts_with("prefix-")
    };
    let mut all: Vec<_> = entries.filter(is_text).collect();
    all.sort();
    all
}

#[track_caller]
fn restored(told: &Told, n: usize) {
    let done = told.done();
    assert_eq!((done.n_restored, done.n_cached >= n), (n, true), "{done:?}");
}

/// Each question comes to a new scheduler, whose cache is empty.
#[test]
fn what_is_restored_is_as_if_it_had_been_read() {
    // The last ones have keys of first positions only, as there are few of them in so many cells.
    let kinds = PLANS.into_iter().map(|(shape, rope)| (shape, rope, DType::F32));
    let types = [DType::F32, DType::Q8_0].map(|kv| ("llama-tiny", "lm-infinite:window=64", kv));
    for (shape, rope, kv) in kinds.chain(types) {
        let dir = tempfile::tempdir().unwrap();
        let (m, plan) = (model(shape, DType::F32), session(2048, 2, rope).kv_type(kv));
        let text = some_tokens(300, m.hparams().n_vocab);
        let ask = |prompt: &[Token], n: usize| {
            let (told, warnings) = ask(m, kept(dir.path(), &plan), prompt, 8);
            assert!(warnings.is_empty(), "{shape}, {rope}: {warnings:?}");
            restored(&told, n);
            // Rounded keys differ with the sizes of batches.
            if kv == DType::F32 {
                assert_eq!(told.tokens, alone(m, &plan, prompt, 8).0, "{shape}, {rope}");
            }
            told
        };
        let first = ask(&text[..120], 0);
        // The next turn of a chat: the last token made is not in the cache.
        let turn = [&text[..120], &first.tokens[..7], &text[200..205]].concat();
        ask(&turn, 127);
        // Other texts from 100 on and from the end on. Where there are states, one is kept before the end of a prompt.
        let from = |shared: usize| match (shape, rope.contains("evict")) {
            (_, true) => 0,
            ("qwen35-tiny", _) => 88,
            _ => shared,
        };
        ask(&[&text[..100], &text[200..240]].concat(), from(100));
        ask(&turn[..127], from(126));
        // Too few to be worth it.
        ask(&[&text[..15], &text[250..270]].concat(), 0);
    }
}

/// In the same process: a text that has left the cache for another comes back.
#[test]
fn texts_that_leave_the_cache_come_back() {
    for (shape, rope) in PLANS {
        let dir = tempfile::tempdir().unwrap();
        let (m, plan) = (model(shape, DType::F32), session(256, 1, rope));
        let text = some_tokens(400, m.hparams().n_vocab);
        let scheduler = start(m, kept(dir.path(), &plan));
        let turn = [&text[..200], &alone(m, &plan, &text[..200], 4).0[..3], &text[100..110]].concat();
        for prompt in [&text[..200], &text[200..400]] {
            assert_eq!(run_one(&scheduler, request(prompt, 4)).tokens, alone(m, &plan, prompt, 4).0);
        }
        settles(&scheduler, |status| status.n_written == 1);
        let told = run_one(&scheduler, request(&turn, 20));
        restored(&told, 203);
        assert_eq!(told.tokens, alone(m, &plan, &turn, 20).0, "{shape}, {rope}");
        // Now from memory.
        let told = run_one(&scheduler, request(&[&turn[..], &told.tokens[..19], &text[..1]].concat(), 2));
        assert_eq!((told.done().n_cached, told.done().n_restored), (232, 0), "{shape}, {rope}");
        let status = settles(&scheduler, |status| status.n_ended == 4);
        assert_eq!((status.n_restored, status.n_read, status.n_failed), (203, 1, 0));
        assert!(scheduler.warnings().is_empty());
    }
}

/// Several requests wait for texts and for each other, while others run.
#[test]
fn many_texts_are_restored_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let (m, plan) = (model("llama-tiny", DType::F32), session(256, 3, "plain"));
    let text = some_tokens(700, m.hparams().n_vocab);
    let prompt = |i: usize| &text[i * 100..][..60 + i];
    for _ in 0..2 {
        let scheduler = start(m, kept(dir.path(), &plan));
        let requests = (0..7).map(|i| request(prompt(i), 12)).chain([request(&text[650..700], 30)]).collect();
        for (i, told) in super::run(&scheduler, requests).iter().enumerate().take(7) {
            assert_eq!(told.tokens, alone(m, &plan, prompt(i), 12).0, "{i}");
        }
        let cancelled = super::Log::new();
        drop(scheduler.submit(request(&text[..60], 5), cancelled.sink(0)).unwrap());
        assert_eq!(cancelled.told(1).len(), 1);
    }
    let told = ask(m, kept(dir.path(), &plan), prompt(6), 12).0;
    restored(&told, 65);
}

/// An owner's text that is erased in memory also leaves the directory, and no other one does.
#[test]
fn what_is_erased_leaves_the_directory() {
    let dir = tempfile::tempdir().unwrap();
    let (m, plan) = (model("llama-tiny", DType::F32), session(256, 4, "plain"));
    let text = some_tokens(120, m.hparams().n_vocab);
    let salted = |prompt: &[Token], salt: &str| request(prompt, 3).salt(salt.as_bytes().to_vec());
    let scheduler = start(m, kept(dir.path(), &plan));
    for (prompt, salt) in [(&text[..60], "a"), (&text[..60], "b"), (&text[60..], "a")] {
        restored(&run_one(&scheduler, salted(prompt, salt)), 0);
    }
    drop(scheduler);
    assert_eq!(files(dir.path()).len(), 3);
    let scheduler = start(m, kept(dir.path(), &plan));
    restored(&run_one(&scheduler, salted(&text[..60], "a")), 59);
    let slots = scheduler.slots(b"a");
    assert_eq!(slots.len(), 1);
    assert_eq!(scheduler.erase(b"a", slots[0].id).unwrap(), 62);
    assert_eq!((files(dir.path()).len(), scheduler.status().n_on_disk), (2, 2));
    assert_eq!(run_one(&scheduler, salted(&text[..60], "a")).done().n_cached, 0);
    restored(&run_one(&scheduler, salted(&text[..60], "b")), 59);
    restored(&run_one(&scheduler, salted(&text[60..], "a")), 59);
    assert!(scheduler.warnings().is_empty());
}

#[test]
fn only_its_own_requests_get_a_text() {
    let dir = tempfile::tempdir().unwrap();
    let (m, plan) = (model("llama-tiny", DType::F32), session(128, 1, "plain"));
    let text = some_tokens(60, m.hparams().n_vocab);
    let cold = |m: &ropewalk::Model, plan: &SessionParams, what: &str| {
        let (told, warnings) = ask(m, kept(dir.path(), plan), &text, 3);
        assert_eq!((told.done().n_cached, warnings.len()), (0, 0), "{what}: {warnings:?}");
    };
    cold(m, &plan, "nothing is there");
    cold(model("llama-tiny", DType::Q4_0), &plan, "weights");
    cold(model("qwen2-tiny", DType::F32), &plan, "model");
    cold(m, &session(128, 1, "yarn:factor=2"), "method");
    cold(m, &plan.clone().kv_type(DType::F16), "cache type");
    cold(m, &plan.clone().math(Math::F32), "math");
    for (request, n) in [
        (request(&text, 3).salt(b"salt".to_vec()), 0),
        (request(&text, 3).reuse(false), 0),
        (request(&text, 3).echo(Some(0)), 0),
        (request(&text, 3), 59),
    ] {
        let scheduler = start(m, kept(dir.path(), &plan));
        restored(&run_one(&scheduler, request), n);
    }
    // Contexts and numbers of sequences do not matter, and several plans share a directory.
    let how = kept(dir.path(), &plan).plans(vec![session(64, 1, "pi:factor=2"), session(200, 3, "plain")]);
    let scheduler = start(m, how);
    restored(&run_one(&scheduler, request(&text, 3).plan(Some(1))), 59);
    restored(&run_one(&scheduler, request(&text, 3).plan(Some(0))), 0);
    says(Scheduler::new(m, kept(dir.path(), &plan)), &["in use by process"]);
    drop(scheduler);
    assert_eq!(files(dir.path()).len(), 8, "one for each key");
}

/// What was used last stays, also across restarts, and all files together stay within their bound.
#[test]
fn files_have_a_bound() {
    let dir = tempfile::tempdir().unwrap();
    let (m, plan) = (model("llama-tiny", DType::F32), session(128, 1, "plain"));
    let text = some_tokens(800, m.hparams().n_vocab);
    let prompt = |i: usize| &text[i * 100..][..100];
    let bound = {
        let own = tempfile::tempdir().unwrap();
        ask(m, kept(own.path(), &plan), prompt(0), 4);
        std::fs::metadata(&files(own.path())[0]).unwrap().len() * 7 / 2
    };
    let how = || kept(dir.path(), &plan).disk(Some(DiskParams::new(dir.path(), bound).n_tokens(16)));
    let within = || {
        let sizes = files(dir.path()).iter().map(|path| std::fs::metadata(path).unwrap().len()).sum::<u64>();
        assert!(sizes <= bound, "{sizes} of {bound}");
        files(dir.path()).len()
    };
    let scheduler = start(m, how());
    for i in 0..6 {
        run_one(&scheduler, request(prompt(i), 4));
        settles(&scheduler, |status| status.n_written == i);
        assert_eq!(within(), i.min(3));
        // Times of files are those of the kernel's last tick: which is the oldest is known if one lies between two.
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    drop(scheduler);
    assert_eq!(within(), 3);
    // The oldest of them is used, then another one comes.
    restored(&ask(m, how(), prompt(3), 4).0, 99);
    restored(&ask(m, how(), prompt(6), 4).0, 0);
    assert_eq!(within(), 3);
    let scheduler = start(m, how());
    for i in [3, 5, 6] {
        restored(&run_one(&scheduler, request(prompt(i), 4)), 99);
    }
    let status = settles(&scheduler, |status| status.n_ended == 3);
    assert_eq!((status.n_on_disk, status.n_written, scheduler.warnings().len()), (3, 0, 0));
    assert!(status.disk_bytes.is_some_and(|n| n <= bound));
    drop(scheduler);
    // A smaller bound than before.
    let one = DiskParams::new(dir.path(), bound / 3).n_tokens(16);
    drop(start(m, kept(dir.path(), &plan).disk(Some(one))));
    assert_eq!(within(), 1);
    // A longer text takes the place of its beginning.
    ask(m, how(), &text[..60], 4);
    let n = within();
    ask(m, how(), &[&text[..60], &alone(m, &plan, &text[..60], 4).0[..3], &text[300..310]].concat(), 4);
    assert_eq!(within(), n);
}

/// A saved text of 60 tokens.
fn written(dir: &Path, plan: &SessionParams, text: &[Token]) -> (std::path::PathBuf, Vec<u8>) {
    ask(model("llama-tiny", DType::F32), kept(dir, plan), text, 2);
    let path = files(dir).remove(0);
    let bytes = std::fs::read(&path).unwrap();
    (path, bytes)
}

/// Whatever byte is damaged, the request is answered as if there were no file.
#[test]
fn damaged_files_are_skipped() {
    let dir = tempfile::tempdir().unwrap();
    let (m, plan) = (model("llama-tiny", DType::F32), session(128, 1, "plain"));
    let text = some_tokens(60, m.hparams().n_vocab);
    let (path, good) = written(dir.path(), &plan, &text);
    let expected = alone(m, &plan, &text, 2).0;
    let n_header = u64::from_le_bytes(good[8..16].try_into().unwrap()) as usize;
    let places = (0..n_header + 400).step_by(61).chain((0..good.len()).step_by(good.len() / 20));
    let mut cases: Vec<(String, Vec<u8>)> = Vec::new();
    for at in places {
        let mut bytes = good.clone();
        bytes[at] ^= 1;
        cases.push((format!("byte {at}"), bytes));
        cases.push((format!("cut at {at}"), good[..at].to_vec()));
    }
    for (what, bytes) in cases {
        std::fs::remove_file(&path).ok();
        std::fs::write(&path, &bytes).unwrap();
        let (told, _) = ask(m, kept(dir.path(), &plan), &text, 2);
        restored(&told, 0);
        assert_eq!(told.tokens, expected, "{what}");
    }
    // The text is written again in its place, where that is a session's.
    let mut bytes = good.clone();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(&path, &bytes).unwrap();
    let (told, warnings) = ask(m, kept(dir.path(), &plan), &text, 2);
    restored(&told, 0);
    assert!(warnings[0].contains(path.to_str().unwrap()) && warnings[0].contains("damaged"), "{warnings:?}");
    assert_eq!(std::fs::read(&path).unwrap(), good);
    restored(&ask(m, kept(dir.path(), &plan), &text, 2).0, 59);
}

/// Files that agree with their checksum and cannot be: each is refused by name, once.
#[test]
fn forged_files_are_skipped() {
    let dir = tempfile::tempdir().unwrap();
    let (m, plan) = (model("llama-tiny", DType::F32), session(128, 1, "plain"));
    let text = some_tokens(60, m.hparams().n_vocab);
    let (path, good) = written(dir.path(), &plan, &text);
    let n_header = u64::from_le_bytes(good[8..16].try_into().unwrap()) as usize;
    let header = std::str::from_utf8(&good[16..16 + n_header]).unwrap();
    let number =
        |key: &str| serde_json::from_str::<serde_json::Value>(header).unwrap()[key].as_u64().unwrap();
    let first_cell = 16 + n_header + number("attachment_bytes") as usize + 4 * 61;
    let sealed = |mut bytes: Vec<u8>| {
        let end = bytes.len() - 32;
        let digest = Sha256::digest(&bytes[..end]);
        bytes[end..].copy_from_slice(&digest);
        bytes
    };
    for (at, by, why) in [
        (first_cell + 12, 0i32, "cells"),
        (first_cell + 12, -7, "cells"),
        (first_cell + 16, 0, "cells"),
        (first_cell - 4, m.hparams().n_vocab as i32, "tokens"),
    ] {
        let mut bytes = good.clone();
        bytes[at..at + 4].copy_from_slice(&by.to_le_bytes());
        std::fs::write(&path, sealed(bytes)).unwrap();
        let (told, warnings) = ask(m, kept(dir.path(), &plan), &text, 2);
        restored(&told, 0);
        let named = path.to_str().unwrap();
        assert!(warnings.len() == 1 && warnings[0].contains(named), "{warnings:?}");
        assert!(warnings[0].contains(why), "{warnings:?}");
    }
    // A size that the file has, but nothing else.
    let n = 1u64 << 40;
    let many = header.replace(
        &format!("\"n_cells\":{}", number("n_cells")),
        &format!("\"n_cells\":{}", n / number("cell_bytes")),
    );
    let n_cells = n / number("cell_bytes");
    let length =
        16 + many.len() as u64 + number("attachment_bytes") + 61 * 4 + n_cells * (12 + number("cell_bytes"));
    let mut bytes = good[..8].to_vec();
    bytes.extend((many.len() as u64).to_le_bytes());
    bytes.extend(many.as_bytes());
    bytes.extend(&good[16 + n_header..first_cell]);
    std::fs::write(&path, bytes).unwrap();
    std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(length + 32).unwrap();
    restored(&ask(m, kept(dir.path(), &plan), &text, 2).0, 0);
    restored(&ask(m, kept(dir.path(), &plan), &text, 2).0, 59);
}

/// What others put under such names, and what a killed process leaves.
#[cfg(unix)]
#[test]
fn only_our_files_are_opened_or_removed() {
    use std::os::unix::fs::symlink;
    let dir = tempfile::tempdir().unwrap();
    let (m, plan) = (model("llama-tiny", DType::F32), session(128, 1, "plain"));
    let text = some_tokens(60, m.hparams().n_vocab);
    let outside = tempfile::tempdir().unwrap();
    let (own, good) = written(outside.path(), &plan, &text);
    let name = own.file_name().unwrap().to_str().unwrap();
    let at = |name: &str| dir.path().join(name);
    let ours = |digit: char| format!("prefix-{}", String::from(digit).repeat(32));
    symlink(&own, at(&ours('1'))).unwrap();
    symlink("/dev/zero", at(&ours('2'))).unwrap();
    symlink("nowhere", at(&ours('3'))).unwrap();
    assert!(std::process::Command::new("mkfifo").arg(at(&ours('4'))).status().unwrap().success());
    std::fs::create_dir(at(&ours('5'))).unwrap();
    std::fs::write(at(&ours('6')), "My thesis").unwrap();
    std::fs::write(at(&ours('7')), b"ropewlk3").unwrap();
    symlink(&own, at(name)).unwrap();
    let others =
        ["thesis", "prefix-", "PREFIX-00000000000000000000000000000000", "prefix-a\n", "\u{ff0e}\u{ff0e}"];
    others.iter().for_each(|name| std::fs::write(at(name), &good).unwrap());
    std::fs::write(at(&format!(".{name}.writing-deadbeef")), &good[..good.len() / 2]).unwrap();
    let (told, warnings) = ask(m, kept(dir.path(), &plan), &text, 2);
    restored(&told, 0);
    assert_eq!(told.tokens, alone(m, &plan, &text, 2).0);
    for digit in '1'..='7' {
        let found = warnings.iter().filter(|warning| warning.contains(&ours(digit))).count();
        assert_eq!(found, 1, "{digit}: {warnings:?}");
    }
    // The text replaced the link in its place, which led to a session, and not the session.
    assert_eq!(std::fs::read(&own).unwrap(), good);
    assert!(std::fs::symlink_metadata(at(name)).unwrap().is_file());
    others.iter().for_each(|name| assert_eq!(std::fs::read(at(name)).unwrap(), good, "{name}"));
    let left = std::fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name());
    let left: Vec<String> = left.filter_map(|name| name.into_string().ok()).collect();
    assert_eq!(left.len(), 7 + 1 + others.len(), "{left:?}");
    // A directory that is a link, or none.
    symlink(dir.path(), outside.path().join("link")).unwrap();
    says(Scheduler::new(m, kept(&outside.path().join("link"), &plan)), &["link", "symbolic link"]);
    says(Scheduler::new(m, kept(&own, &plan)), &["prefix-", "not a folder"]);
    says(Scheduler::new(m, kept(&outside.path().join("none/below"), &plan)), &["below"]);
}

/// A disk that fails is a warning.
#[test]
fn without_a_directory_requests_are_answered() {
    let dir = tempfile::tempdir().unwrap();
    let (m, plan) = (model("llama-tiny", DType::F32), session(128, 1, "plain"));
    let text = some_tokens(60, m.hparams().n_vocab);
    written(&dir.path().join("prefixes"), &plan, &text);
    let scheduler = start(m, kept(&dir.path().join("prefixes"), &plan));
    std::fs::remove_dir_all(dir.path().join("prefixes")).unwrap();
    for _ in 0..2 {
        let told = run_one(&scheduler, request(&text, 2));
        assert_eq!((told.done().n_restored, &told.tokens), (0, &alone(m, &plan, &text, 2).0));
    }
    scheduler.stop(std::time::Duration::ZERO);
    let warnings = scheduler.warnings();
    assert_eq!(warnings.len(), 2, "{warnings:?}");
    assert!(warnings.iter().all(|warning| warning.contains("prefixes")), "{warnings:?}");
    assert!(!dir.path().join("prefixes").exists());
}

/// The next request does not wait for the one that runs.
#[test]
fn one_that_is_canceled_while_it_is_read_leaves_its_place() {
    let dir = tempfile::tempdir().unwrap();
    let (m, plan) = (model("llama-tiny", DType::F32), session(2048, 2, "plain"));
    let text = some_tokens(2020, m.hparams().n_vocab);
    let how = || kept(dir.path(), &plan).step_tokens(Some(500)).n_running(2);
    ask(m, how(), &text[..2000], 1);
    let scheduler = start(m, how());
    let log = Log::new();
    let (mut gated, gate) = log.gated(0, |event| matches!(event, Event::Token(_)));
    let read: Arc<Mutex<Option<Ticket>>> = Arc::default();
    let (own, mut n_made) = (Arc::clone(&read), 0);
    let sink: Sink = Box::new(move |event| {
        n_made += usize::from(matches!(event, Event::Token(_)));
        // In the step after which the file was asked for, which takes less time than the file.
        if n_made == 2 {
            drop(own.lock().unwrap().take());
        }
        gated(event)
    });
    let runs = scheduler.submit(request(&text[2000..2010], 300), sink).unwrap();
    gate.wait();
    *read.lock().unwrap() = Some(scheduler.submit(request(&text[..2000], 2), log.sink(1)).unwrap());
    let next = scheduler.submit(request(&text[2010..], 1), log.sink(2)).unwrap();
    gate.open();
    let first = std::iter::repeat_with(|| log.next())
        .find(|(id, event)| matches!((id, event), (0, Event::Done(_)) | (2, Event::Started { .. })));
    assert!(matches!(first, Some((2, _))), "{first:?}");
    drop((runs, next));
}
