//! Texts that a scheduler keeps on disk: whatever is in a file, a request that could begin with it is answered.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::mpsc;

use ropewalk::scheduler::{DiskParams, Event, Request, Scheduler, SchedulerParams};
use ropewalk::session::SessionParams;
use sha2::{Digest, Sha256};

use crate::{base, scratch, with_digest};

/// Answers a request in a scheduler with this directory. Returns the tokens that came from a file.
fn ask(dir: &Path) -> usize {
    let plan = SessionParams::new(32).n_threads(1).n_ubatch(8);
    let disk = DiskParams::new(dir, 1 << 30).n_tokens(1);
    let scheduler = Scheduler::new(base().0, SchedulerParams::new(vec![plan]).disk(Some(disk))).unwrap();
    let (sender, events) = mpsc::channel();
    let sink = move |event| match sender.send(event) {
        Ok(()) => ControlFlow::Continue(()),
        Err(_) => ControlFlow::Break(()),
    };
    let request = Request::new((65..73).collect()).n_predict(Some(2)).ignore_eos(true);
    let _ticket = scheduler.submit(request, Box::new(sink)).unwrap();
    let n_restored = events.iter().find_map(|event| match event {
        Event::Done(done) => {
            assert_eq!(done.n_made, 2);
            Some(done.n_restored)
        }
        // Numbers with a valid checksum are taken as they are.
        Event::Failed(e) if e.to_string().contains("NaN") => Some(0),
        Event::Failed(e) => panic!("{e}"),
        _ => None,
    });
    // Whatever it is: restored, or refused in one line.
    if let Err(e) = scheduler.restore(b"", b"", 0, "text") {
        let line = e.to_string();
        assert!(!line.is_empty() && !line.contains('\n'), "{line:?}");
    }
    scheduler.stop(std::time::Duration::ZERO);
    for warning in scheduler.warnings() {
        assert!(!warning.is_empty() && !warning.contains('\n'), "{warning:?}");
    }
    n_restored.unwrap()
}

/// An empty directory of this thread.
fn empty() -> PathBuf {
    let dir = scratch(&format!("{:?}-prefixes", std::thread::current().id()));
    let _ = std::fs::remove_dir_all(&dir);
    std::fs::create_dir(&dir).unwrap();
    dir
}

/// Reads the file as one of the directory.
pub fn run(bytes: &[u8]) -> bool {
    let dir = empty();
    let bytes = with_digest(bytes, |bytes| Sha256::digest(bytes).into());
    // Also as a text that a caller without a key has saved.
    std::fs::write(dir.join("saved-e3b0c44298fc1c14-text"), &bytes).unwrap();
    std::fs::write(dir.join("prefix-00000000000000000000000000000000"), bytes).unwrap();
    ask(&dir) > 0
}

/// The text of one request.
pub fn seeds() -> Vec<Vec<u8>> {
    let dir = empty();
    ask(&dir);
    let files = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    files.map(|path| std::fs::read(path).unwrap()).filter(|bytes| bytes.starts_with(b"ropewlk")).collect()
}
