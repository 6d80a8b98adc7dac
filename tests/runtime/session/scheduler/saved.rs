//! Texts that callers save by name: restored as they were, for their own requests, whatever is in the directory.

use std::path::{Path, PathBuf};

use ropewalk::math::Math;
use ropewalk::scheduler::{DiskParams, Event, Request, Scheduler, SchedulerParams, SlotFile};
use ropewalk::session::SessionParams;
use ropewalk::{DType, Model, Token};

use super::super::model;
use super::{alone, one_plan, request, run_one, session, settles, start, Log, PLANS};
use crate::common::{says, some_tokens};

/// A scheduler that puts no text into the directory on its own.
fn kept(dir: &Path, m: &Model, plan: &SessionParams) -> Scheduler {
    start(
        m,
        SchedulerParams::new(vec![plan.clone()]).disk(Some(DiskParams::new(dir, 1 << 30).n_tokens(1 << 20))),
    )
}

fn salted(prompt: &[Token], salt: &str) -> Request {
    request(prompt, 8).salt(salt.as_bytes().to_vec())
}

/// The only saved file.
fn file(dir: &Path) -> PathBuf {
    let paths = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    let mut saved: Vec<PathBuf> =
        paths.filter(|path| path.file_name().unwrap().to_str().unwrap().starts_with("saved-")).collect();
    assert_eq!(saved.len(), 1, "{saved:?}");
    saved.remove(0)
}

#[test]
fn a_saved_text_goes_on_after_a_restart() {
    for (shape, rope) in PLANS {
        let dir = tempfile::tempdir().unwrap();
        let (m, plan) = (model(shape, DType::F32), session(512, 2, rope));
        let text = some_tokens(150, m.hparams().n_vocab);
        let scheduler = kept(dir.path(), m, &plan);
        let first = run_one(&scheduler, salted(&text[..100], "a1"));
        let saved = scheduler.save(b"a", scheduler.slots(b"a")[0].id, "chat.bin").unwrap();
        let n_bytes = std::fs::metadata(file(dir.path())).unwrap().len();
        assert_eq!(saved, SlotFile { slot: 0, n_tokens: 107, n_bytes });
        drop(scheduler);
        let scheduler = kept(dir.path(), m, &plan);
        assert_eq!(scheduler.status().disk_bytes, Some(n_bytes));
        assert_eq!(scheduler.restore(b"a", b"a1", 0, "chat.bin").unwrap(), saved, "{shape}, {rope}");
        let turn = [&text[..100], &first.tokens[..7], &text[140..]].concat();
        let told = run_one(&scheduler, salted(&turn, "a1"));
        assert_eq!((told.n_cached(), &told.tokens), (107, &alone(m, &plan, &turn, 8).0), "{shape}, {rope}");
        assert!(scheduler.warnings().is_empty());
    }
}

#[test]
fn only_its_owner_restores_a_text_and_only_into_its_own_slots() {
    let dir = tempfile::tempdir().unwrap();
    let (m, plan) = (model("llama-tiny", DType::F32), session(256, 4, "plain"));
    let text = some_tokens(120, m.hparams().n_vocab);
    let scheduler = kept(dir.path(), m, &plan);
    run_one(&scheduler, salted(&text[..60], "a1"));
    run_one(&scheduler, salted(&text[60..], "b1"));
    let [own, other] = ["a", "b"].map(|owner| scheduler.slots(owner.as_bytes())[0].id);
    let long = "a".repeat(65);
    for name in [
        "",
        ".",
        "..",
        "../x",
        "/etc/passwd",
        "a/b",
        "a\\b",
        "NUL",
        "Chat",
        "a\0",
        "a\n",
        "a b",
        "-a",
        "\u{ff0e}",
        &long,
    ] {
        says(scheduler.save(b"a", own, name), &["filename: expected 1 to 64 of a-z"]);
        says(scheduler.restore(b"a", b"a1", own, name), &["filename: expected 1 to 64 of a-z"]);
    }
    let saved = scheduler.save(b"a", own, "x").unwrap();
    // In place of itself.
    assert_eq!(scheduler.save(b"a", own, "x").unwrap(), saved);
    assert_eq!(scheduler.status().disk_bytes, Some(saved.n_bytes));
    for slot in [other, 63, 64, usize::MAX] {
        says(scheduler.save(b"a", slot, "y"), &["slot: expected"]);
    }
    says(scheduler.restore(b"a", b"a1", other, "x"), &["slot: expected"]);
    says(scheduler.restore(b"a", b"a1", 64, "x"), &["slot: expected below 64"]);
    says(scheduler.restore(b"b", b"b1", other, "x"), &["x: no longer there"]);
    says(scheduler.restore(b"a", b"b1", own, "x"), &["salt: expected"]);
    says(scheduler.restore(b"a", b"a2", own, "x"), &["saved text: expected one of this key and salt"]);
    says(scheduler.restore(b"a", b"a1", own, "y"), &["y: no longer there"]);
    // Nothing changed.
    assert_eq!(run_one(&scheduler, salted(&text[..60], "a1")).n_cached(), 59);
    // Into a free slot, and over one's own text, which goes on after it.
    scheduler.erase(b"a", scheduler.slots(b"a")[0].id).unwrap();
    assert_eq!(scheduler.restore(b"a", b"a1", 7, "x").unwrap(), SlotFile { slot: 7, ..saved });
    assert_eq!(scheduler.restore(b"a", b"a1", 7, "x").unwrap().slot, 7);
    assert_eq!(
        scheduler.slots(b"a").iter().map(|slot| (slot.id, slot.n_held)).collect::<Vec<_>>(),
        [(7, 67)]
    );
    assert_eq!(run_one(&scheduler, salted(&text[..60], "a1")).n_cached(), 59);
    drop(scheduler);
    says(one_plan(m, plan).save(b"", 0, "x"), &["no texts are kept on disk"]);
}

#[test]
fn saved_texts_have_a_bound_and_a_running_request_keeps_its_slot() {
    let dir = tempfile::tempdir().unwrap();
    let (m, plan) = (model("llama-tiny", DType::F32), session(128, 2, "lm-infinite:window=64,evict=true"));
    let text = some_tokens(40, m.hparams().n_vocab);
    let scheduler = kept(dir.path(), m, &plan);
    run_one(&scheduler, salted(&text, "a"));
    let saved = scheduler.save(b"a", scheduler.slots(b"a")[0].id, "x").unwrap();
    let log = Log::new();
    let ticket =
        scheduler.submit(request(&text[..10], 1_000_000_000).salt(b"b".to_vec()), log.sink(0)).unwrap();
    while !matches!(log.next().1, Event::Token(_)) {}
    let runs = scheduler.slots(b"b")[0].id;
    says(scheduler.save(b"b", runs, "x"), &["slot: expected"]);
    says(scheduler.restore(b"a", b"a", runs, "x"), &["slot: expected"]);
    drop((ticket, scheduler));
    // Half of it is less than the text.
    let disk = DiskParams::new(dir.path(), saved.n_bytes * 3).n_tokens(1 << 20);
    let scheduler = start(m, SchedulerParams::new(vec![plan]).disk(Some(disk)));
    scheduler.restore(b"a", b"a", 0, "x").unwrap();
    assert_eq!(scheduler.save(b"a", 0, "x").unwrap().n_bytes, saved.n_bytes);
    says(scheduler.save(b"a", 0, "y"), &["y: not saved: expected at most", "of saved texts"]);
}

/// An error shows nothing of what others have saved.
#[test]
fn each_owner_has_its_part_of_the_bound() {
    let (dir, m, plan) =
        (tempfile::tempdir().unwrap(), model("llama-tiny", DType::F32), session(256, 4, "plain"));
    let text = some_tokens(120, m.hparams().n_vocab);
    let scheduler = |n_bytes: u64| {
        let disk = DiskParams::new(dir.path(), n_bytes).n_owners(2).n_tokens(1 << 20);
        let scheduler = start(m, SchedulerParams::new(vec![plan.clone()]).disk(Some(disk)));
        run_one(&scheduler, salted(&text[..60], "a1"));
        run_one(&scheduler, salted(&text[60..], "b1"));
        scheduler
    };
    let n_bytes = scheduler(1 << 30).save(b"a", 0, "x").unwrap().n_bytes;
    let scheduler = scheduler(n_bytes * 6);
    let refused = |owner: &[u8]| {
        let slot = scheduler.slots(owner)[0].id;
        scheduler.save(owner, slot, "y").unwrap_err().to_string()
    };
    let before = refused(b"a");
    assert!(before.starts_with("y: not saved: expected at most"), "{before}");
    scheduler.save(b"b", scheduler.slots(b"b")[0].id, "x").unwrap();
    assert_eq!((refused(b"a"), refused(b"b")), (before.clone(), before));
}

/// Also if a text is saved while the disk's thread writes another one.
#[test]
fn all_files_have_a_bound() {
    let dir = tempfile::tempdir().unwrap();
    let (m, plan) = (model("llama-tiny", DType::F32), session(420, 1, "plain"));
    let text = some_tokens(14 * 400, m.hparams().n_vocab);
    let ask = |i: usize, plan: usize| request(&text[i * 400..][..400], 8).plan(Some(plan));
    let bound = {
        let own = tempfile::tempdir().unwrap();
        let scheduler = kept(own.path(), m, &plan);
        run_one(&scheduler, ask(0, 0));
        scheduler.save(b"", 0, "x").unwrap().n_bytes * 17 / 2
    };
    let disk = DiskParams::new(dir.path(), bound).n_tokens(16);
    let scheduler = start(m, SchedulerParams::new(vec![plan; 2]).step_tokens(Some(40)).disk(Some(disk)));
    run_one(&scheduler, ask(0, 1));
    let slot = scheduler.slots(b"")[0].id;
    (1..10).for_each(|i| drop(run_one(&scheduler, ask(i, 0))));
    settles(&scheduler, |status| status.n_written == 8);
    for (i, name) in (10..).zip(["a", "b", "c", "d"]) {
        let log = Log::new();
        let ticket = scheduler.submit(ask(i, 0), log.sink(0)).unwrap();
        // The text that the cache held is written then.
        while !matches!(log.next().1, Event::Started { .. }) {}
        scheduler.save(b"", slot, name).unwrap();
        let status = settles(&scheduler, |status| status.n_written == i - 1);
        assert!(status.disk_bytes.is_some_and(|n| n <= bound), "{status:?}, {bound}");
        while !matches!(log.next().1, Event::Done(_)) {}
        drop(ticket);
    }
    assert!(scheduler.warnings().is_empty());
}

#[test]
fn a_text_of_another_session_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (m, plan) = (model("llama-tiny", DType::F32), session(128, 1, "plain"));
    let text = some_tokens(60, m.hparams().n_vocab);
    let scheduler = kept(dir.path(), m, &plan);
    run_one(&scheduler, request(&text, 8));
    scheduler.save(b"", 0, "x").unwrap();
    drop(scheduler);
    let refused = |m: &Model, plan: SessionParams, why: &str| {
        let scheduler = kept(dir.path(), m, &plan);
        says(scheduler.restore(b"", b"", 0, "x"), &[why]);
        assert!(scheduler.slots(b"").is_empty());
    };
    refused(model("llama-tiny", DType::Q4_0), plan.clone(), "this model and these settings");
    refused(m, plan.clone().math(Math::F32), "this model and these settings");
    refused(m, session(128, 1, "yarn:factor=2"), "rope: expected yarn");
    refused(m, plan.clone().kv_type(DType::F16), "kv type: expected");
    refused(m, session(64, 1, "plain"), "at most 64 tokens, found 67");
}

/// Damaged files, links, pipes, and files of others: one line that names no directory, and the slot is as it was.
#[cfg(unix)]
#[test]
fn whatever_has_the_name_is_not_believed() {
    use std::os::unix::fs::symlink;
    let (dir, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (m, plan) = (model("llama-tiny", DType::F32), session(128, 1, "plain"));
    let text = some_tokens(60, m.hparams().n_vocab);
    let scheduler = kept(dir.path(), m, &plan);
    run_one(&scheduler, request(&text, 8));
    scheduler.save(b"", 0, "x").unwrap();
    let (path, elsewhere) = (file(dir.path()), outside.path().join("good"));
    std::fs::rename(&path, &elsewhere).unwrap();
    let good = std::fs::read(&elsewhere).unwrap();
    let mut damaged = good.clone();
    damaged[good.len() - 100] ^= 1;
    let write = |bytes: &[u8]| std::fs::write(&path, bytes).unwrap();
    let long = || std::fs::File::create(&path).unwrap().set_len(1 << 40).unwrap();
    let fifo = || assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success());
    let link = |to: &Path| symlink(to, &path).unwrap();
    // What is there, what a restore says, and whether the next save takes its place.
    let cases: [(&dyn Fn(), &str, bool); 8] = [
        (&|| write(&damaged), "x: damaged", true),
        (&|| write(&good[..good.len() / 2]), "x: contents: expected", true),
        (&|| write(b"My thesis"), "x: not a saved session", false),
        (&long, "x: not a saved session", false),
        (&|| link(&elsewhere), "x: ", true),
        (&|| link(Path::new("/dev/zero")), "x: ", false),
        (&fifo, "x: is not a regular file", false),
        (&|| std::fs::create_dir(&path).unwrap(), "x: ", false),
    ];
    for (i, (put, why, replaced)) in cases.into_iter().enumerate() {
        put();
        let e = scheduler.restore(b"", b"", 0, "x").unwrap_err().to_string();
        assert!(e.contains(why) && !e.contains(dir.path().to_str().unwrap()), "{i}: {e}");
        let saved = scheduler.save(b"", 0, "x");
        assert_eq!(saved.is_ok(), replaced, "{i}: {saved:?}");
        if let Err(e) = saved {
            assert!(!e.to_string().contains(dir.path().to_str().unwrap()), "{i}: {e}");
        }
        let there = std::fs::symlink_metadata(&path).unwrap();
        let size = there.is_file() && there.len() == good.len() as u64;
        assert_eq!(size && std::fs::read(&path).unwrap() == good, replaced, "{i}");
        if there.is_dir() {
            std::fs::remove_dir(&path).unwrap()
        } else {
            std::fs::remove_file(&path).unwrap()
        }
        assert_eq!(std::fs::read(&elsewhere).unwrap(), good, "{i}");
    }
    assert_eq!(run_one(&scheduler, request(&text, 8)).n_cached(), 59);
}
