//! Ending libllama's quantizer, which knows no cancellation, and watching how far it is.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Time between two looks.
const INTERVAL: Duration = Duration::from_millis(100);

/// Runs `work`, which writes the file at `output`, and tells `watch` meanwhile how many bytes of `expected` are there.
/// Returns what `work` did, and whether `watch` said no.
pub(super) fn watched<T>(
    output: &Path,
    expected: u64,
    watch: &(dyn Fn(u64, u64) -> bool + Sync),
    work: impl FnOnce() -> T,
) -> (T, bool) {
    let before = open_files(output);
    let ended = AtomicBool::new(false);
    let (done, finished) = std::sync::mpsc::channel::<()>();
    let result = std::thread::scope(|s| {
        let ended = &ended;
        s.spawn(move || {
            while finished.recv_timeout(INTERVAL) == Err(std::sync::mpsc::RecvTimeoutError::Timeout) {
                let written = std::fs::metadata(output).map_or(0, |m| m.len());
                if !watch(written.min(expected), expected) {
                    ended.store(true, Ordering::Relaxed);
                    fail_writes(output, &before);
                }
            }
        });
        let result = work();
        drop(done);
        result
    });
    (result, ended.into_inner())
}

/// Descriptors of this process that are open on `path`.
#[cfg(target_os = "linux")]
fn open_files(path: &Path) -> Vec<i32> {
    let Ok(path) = path.canonicalize() else { return Vec::new() };
    let entries = std::fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
    let same = entries.filter(|e| std::fs::read_link(e.path()).is_ok_and(|to| to == path));
    same.filter_map(|e| e.file_name().to_str()?.parse().ok()).collect()
}

/// Makes writes through descriptors that were opened since fail, as if the disk were full. That libllama handles: it
/// closes its files and returns.
#[cfg(target_os = "linux")]
fn fail_writes(path: &Path, before: &[i32]) {
    use std::os::fd::AsRawFd;
    let Ok(full) = std::fs::OpenOptions::new().write(true).open("/dev/full") else { return };
    for fd in open_files(path).into_iter().filter(|fd| !before.contains(fd)) {
        // SAFETY: `fd` is libllama's, which writes to it and closes it and holds nothing else of it; should it have
        // closed it just now, a descriptor more stays open, and the work is at its end anyway.
        unsafe { libc::dup2(full.as_raw_fd(), fd) };
    }
}

#[cfg(not(target_os = "linux"))]
fn open_files(_: &Path) -> Vec<i32> {
    Vec::new()
}

#[cfg(not(target_os = "linux"))]
fn fail_writes(_: &Path, _: &[i32]) {}
