//! Message of a program when a file that it has mapped is cut short: by itself the system ends it with SIGBUS,
//! without a word.

use std::ffi::CString;
use std::ops::Range;
use std::path::Path;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};

use libc::{c_char, c_int, c_void};

/// Mapped files that are known at once; those beyond end the program without a word, as all would.
const MAX_MAPS: usize = 1024;

const AFTER_PATH: &[u8] =
    b": cannot be read any more: the file was cut short, or its disk failed, while it was in use\n";

/// A mapped range of memory and its file. Read by a signal handler, so without locks.
struct Entry {
    taken: AtomicBool,
    start: AtomicUsize,
    end: AtomicUsize,
    path: AtomicPtr<c_char>,
}

static MAPS: [Entry; MAX_MAPS] = [const {
    Entry {
        taken: AtomicBool::new(false),
        start: AtomicUsize::new(0),
        end: AtomicUsize::new(0),
        path: AtomicPtr::new(null_mut()),
    }
}; MAX_MAPS];

/// Threads fail together; one speaks.
static SAID: AtomicBool = AtomicBool::new(false);
static INSTALLED: AtomicBool = AtomicBool::new(false);
/// The action that was set before, for faults elsewhere. Written once, before the handler can run.
static BEFORE: AtomicPtr<libc::sigaction> = AtomicPtr::new(null_mut());

/// A place in the table, given back when it is dropped.
#[derive(Debug)]
pub(crate) struct Registered(usize);

/// Remembers that memory is that of a file, if the handler is installed.
pub(crate) fn register(memory: Range<usize>, path: &Path) -> Option<Registered> {
    if !INSTALLED.load(Ordering::Acquire) {
        return None;
    }
    // No line of its own, and nothing a terminal would obey.
    let shown: String =
        path.display().to_string().chars().map(|c| if c.is_control() { '?' } else { c }).collect();
    let path = CString::new(shown).ok()?;
    let free = |e: &Entry| e.taken.compare_exchange(false, true, Ordering::AcqRel, Ordering::Relaxed).is_ok();
    let at = MAPS.iter().position(free)?;
    MAPS[at].path.store(path.into_raw(), Ordering::Release);
    MAPS[at].end.store(memory.end, Ordering::Release);
    MAPS[at].start.store(memory.start, Ordering::Release);
    Some(Registered(at))
}

impl Drop for Registered {
    fn drop(&mut self) {
        let entry = &MAPS[self.0];
        entry.start.store(0, Ordering::Release);
        entry.end.store(0, Ordering::Release);
        let path = entry.path.swap(null_mut(), Ordering::AcqRel);
        // SAFETY: from `into_raw` in `register`, and taken out once. The handler reads the path of an entry only
        // when a thread fails inside its range, and who reads a map has not dropped it.
        drop(unsafe { CString::from_raw(path) });
        entry.taken.store(false, Ordering::Release);
    }
}

/// From now on, when a file that [`Map`](crate::Map) maps afterwards is cut short and read past its new end,
/// the program says so in one line on the standard error stream, `error: PATH: ...`, and ends with exit code
/// 1. It ends at once: nothing is cleaned up, so temporary files stay. Other faults end as they did before.
///
/// For programs to call once, when they start: the action of SIGBUS is the whole process's. Where there is no
/// such signal it does nothing.
pub fn explain_vanished_files() {
    if INSTALLED.swap(true, Ordering::AcqRel) {
        return;
    }
    // SAFETY: all zeros are a valid `sigaction`.
    let (mut action, mut before) = unsafe { (std::mem::zeroed::<libc::sigaction>(), std::mem::zeroed()) };
    let handler: extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) = on_bus_error;
    action.sa_sigaction = handler as libc::sighandler_t;
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
    // SAFETY: both pointers are valid; a null action only asks for the present one.
    unsafe {
        libc::sigemptyset(&mut action.sa_mask);
        libc::sigaction(libc::SIGBUS, std::ptr::null(), &mut before);
    }
    // Kept for ever: a handler may run at any time.
    BEFORE.store(Box::into_raw(Box::new(before)), Ordering::Release);
    // SAFETY: the handler has the signature that SA_SIGINFO asks for, and calls only what is allowed in one.
    unsafe { libc::sigaction(libc::SIGBUS, &action, null_mut()) };
}

/// Called by the system, in a thread that may be inside the allocator or hold any lock: reads atomics, and
/// calls `write`, `pause`, `_exit`, `sigaction` and `raise`, all of which POSIX allows here.
extern "C" fn on_bus_error(_: c_int, info: *mut libc::siginfo_t, _: *mut c_void) {
    // SAFETY: the system passes a valid description. One that a process sent with `kill` has no address.
    let address = unsafe {
        if (*info).si_code > 0 {
            (*info).si_addr() as usize
        } else {
            0
        }
    };
    for entry in &MAPS {
        let (start, end) = (entry.start.load(Ordering::Acquire), entry.end.load(Ordering::Acquire));
        if start != 0 && (start..end).contains(&address) {
            while SAID.swap(true, Ordering::AcqRel) {
                // SAFETY: waits for a signal, or the end of the process.
                unsafe { libc::pause() };
            }
            let path = entry.path.load(Ordering::Acquire);
            // SAFETY: the path of an entry is NUL-terminated, and not freed while its map is read.
            let path = unsafe { std::slice::from_raw_parts(path.cast::<u8>(), libc::strlen(path)) };
            for part in [b"error: ", path, AFTER_PATH] {
                // SAFETY: a valid slice. What cannot be written is lost.
                unsafe { libc::write(libc::STDERR_FILENO, part.as_ptr().cast(), part.len()) };
            }
            // SAFETY: ends the process.
            unsafe { libc::_exit(1) };
        }
    }
    // SAFETY: the action from before, never freed. The signal is blocked until this returns and is then
    // delivered to that action.
    unsafe {
        libc::sigaction(libc::SIGBUS, BEFORE.load(Ordering::Acquire), null_mut());
        libc::raise(libc::SIGBUS);
    }
}
