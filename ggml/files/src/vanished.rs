//! Message of a program when a file that it has mapped is cut short: by itself the system ends it with SIGBUS,
//! without a word.

use std::ffi::CString;
use std::ops::Range;
use std::path::Path;
use std::ptr::null_mut;
use std::sync::atomic::{fence, AtomicBool, AtomicPtr, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use libc::{c_char, c_int, c_void};

const AFTER_PATH: &[u8] =
    b": cannot be read any more: the file was cut short, or its disk failed, while it was in use\n";

/// A mapped range of memory and its file, or a place for one: as many as were mapped at once, none of which is freed. Read by
/// a signal handler, so without locks.
struct Entry {
    /// Odd while what follows changes.
    version: AtomicUsize,
    start: AtomicUsize,
    end: AtomicUsize,
    path: AtomicPtr<c_char>,
    /// The entry that was made before.
    next: Option<&'static Entry>,
}

/// The entry that was made last: from it the handler finds all.
static LAST: AtomicPtr<Entry> = AtomicPtr::new(null_mut());
/// Entries of no map. Whoever holds it is the only one to write entries.
static FREE: Mutex<Vec<&'static Entry>> = Mutex::new(Vec::new());

impl Entry {
    /// All entries, of maps or not.
    fn all() -> impl Iterator<Item = &'static Entry> {
        // SAFETY: null, or an entry that is never freed.
        let last = unsafe { LAST.load(Ordering::Acquire).as_ref() };
        std::iter::successors(last, |entry| entry.next)
    }

    /// Puts another range and file in the place of those that it has, whose path it returns. For one thread at a time.
    fn set(&self, memory: Range<usize>, path: *mut c_char) -> *mut c_char {
        self.version.fetch_add(1, Ordering::Relaxed);
        // What follows is not seen before the version is odd.
        fence(Ordering::Release);
        self.start.store(memory.start, Ordering::Relaxed);
        self.end.store(memory.end, Ordering::Relaxed);
        let before = self.path.swap(path, Ordering::Relaxed);
        self.version.fetch_add(1, Ordering::Release);
        before
    }

    /// The path of its file, if the address is in its range. An entry that changes meanwhile has none: that of a map that
    /// is read does not change.
    fn path_at(&self, address: usize) -> Option<*const c_char> {
        let version = self.version.load(Ordering::Acquire);
        let range = self.start.load(Ordering::Relaxed)..self.end.load(Ordering::Relaxed);
        let path = self.path.load(Ordering::Relaxed);
        // What was read is not younger than the version that is read now.
        fence(Ordering::Acquire);
        let whole = version.is_multiple_of(2) && self.version.load(Ordering::Relaxed) == version;
        (whole && range.contains(&address)).then_some(path.cast_const())
    }
}

/// Threads fail together; one speaks.
static SAID: AtomicBool = AtomicBool::new(false);
static INSTALLED: AtomicBool = AtomicBool::new(false);
/// The action that was set before, for faults elsewhere. Written once, before the handler can run.
static BEFORE: AtomicPtr<libc::sigaction> = AtomicPtr::new(null_mut());

/// The entry of a map, given back when it is dropped.
pub(crate) struct Registered(&'static Entry);

impl std::fmt::Debug for Registered {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Registered").finish_non_exhaustive()
    }
}

/// Remembers that memory is that of a file, if the handler is installed.
pub(crate) fn register(memory: Range<usize>, path: &Path) -> Option<Registered> {
    if !INSTALLED.load(Ordering::Acquire) {
        return None;
    }
    // No line breaks, and no control characters for a terminal.
    let shown: String =
        path.display().to_string().chars().map(|c| if c.is_control() { '?' } else { c }).collect();
    Some(Registered::new(memory, CString::new(shown).ok()?))
}

impl Registered {
    fn new(memory: Range<usize>, path: CString) -> Registered {
        let mut free = FREE.lock().unwrap_or_else(PoisonError::into_inner);
        let entry = free.pop().unwrap_or_else(|| {
            // SAFETY: null, or an entry that is never freed.
            let next = unsafe { LAST.load(Ordering::Relaxed).as_ref() };
            let entry: &'static Entry = Box::leak(Box::new(Entry {
                version: AtomicUsize::new(0),
                start: AtomicUsize::new(0),
                end: AtomicUsize::new(0),
                path: AtomicPtr::new(null_mut()),
                next,
            }));
            LAST.store(std::ptr::from_ref(entry).cast_mut(), Ordering::Release);
            entry
        });
        entry.set(memory, path.into_raw());
        Registered(entry)
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        let mut free = FREE.lock().unwrap_or_else(PoisonError::into_inner);
        let path = self.0.set(0..0, null_mut());
        // SAFETY: from `into_raw` in `Registered::new`, and taken out once. The handler reads the path of an entry only
        // when a thread fails inside its range, and who reads a map has not dropped it.
        drop(unsafe { CString::from_raw(path) });
        free.push(self.0);
    }
}

/// From now on, when a file that [`Map`](crate::Map) maps afterwards is cut short and read past its new end,
/// the program prints one line on the standard error stream, `error: PATH: ...`, and exits with code 1. On Linux
/// the same holds for files that other code maps, such as libllama. It exits at once: nothing is cleaned up, so
/// temporary files stay. Other faults end as they did before.
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
/// calls `open`, `read`, `close`, `write`, `pause`, `_exit`, `sigaction` and `raise`, all of which POSIX allows here.
extern "C" fn on_bus_error(_: c_int, info: *mut libc::siginfo_t, _: *mut c_void) {
    // SAFETY: the system passes a valid description. One that a process sent with `kill` has no address.
    let address = unsafe {
        if (*info).si_code > 0 {
            (*info).si_addr() as usize
        } else {
            0
        }
    };
    if let Some(path) = Entry::all().find_map(|entry| entry.path_at(address)) {
        // SAFETY: the path of an entry is NUL-terminated, and not freed while its map is read, as this thread does.
        let path = unsafe { std::slice::from_raw_parts(path.cast::<u8>(), libc::strlen(path)) };
        end(|| say(path));
    }
    #[cfg(target_os = "linux")]
    if address != 0 && mapped_at(address, |_| ()) {
        end(|| {
            mapped_at(address, |byte| say(&[byte]));
        });
    }
    // SAFETY: the action from before, never freed. The signal is blocked until this returns and is then
    // delivered to that action.
    unsafe {
        libc::sigaction(libc::SIGBUS, BEFORE.load(Ordering::Acquire), null_mut());
        libc::raise(libc::SIGBUS);
    }
}

/// Ends the process with the line that `path` writes the path of. Other threads wait for that.
fn end(path: impl FnOnce()) -> ! {
    while SAID.swap(true, Ordering::AcqRel) {
        // SAFETY: waits for a signal, or the end of the process.
        unsafe { libc::pause() };
    }
    say(b"error: ");
    path();
    say(AFTER_PATH);
    // SAFETY: ends the process.
    unsafe { libc::_exit(1) }
}

fn say(part: &[u8]) {
    // SAFETY: a valid slice. What cannot be written is lost.
    unsafe { libc::write(libc::STDERR_FILENO, part.as_ptr().cast(), part.len()) };
}

/// Returns true if a file is mapped at an address, by whatever code, and gives its path byte by byte, without control
/// characters. Allocates nothing, and takes little of what may be a small stack.
#[cfg(target_os = "linux")]
fn mapped_at(address: usize, mut path: impl FnMut(u8)) -> bool {
    /// Where in a line, `START-END PERMISSIONS OFFSET DEVICE INODE PATH`.
    #[derive(Clone, Copy)]
    enum Place {
        Start,
        End,
        Middle,
        Path,
    }
    // SAFETY: the path is NUL-terminated.
    let maps = unsafe { libc::open(c"/proc/self/maps".as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC) };
    let (mut place, mut start, mut number, mut inside, mut before) = (Place::Start, 0, 0usize, false, 0u8);
    let mut bytes = [0u8; 256];
    let found = 'found: loop {
        // SAFETY: a valid slice to write into. A bad descriptor is an error.
        let n = unsafe { libc::read(maps, bytes.as_mut_ptr().cast(), bytes.len()) };
        let n = usize::try_from(n).unwrap_or(0);
        if n == 0 {
            break false;
        }
        for &byte in bytes.iter().take(n) {
            match (place, byte) {
                (Place::Start, b'-') => (place, start, number) = (Place::End, number, 0),
                (Place::End, b' ') => (place, inside) = (Place::Middle, (start..number).contains(&address)),
                (Place::Start | Place::End, digit) => {
                    let digit = char::from(digit).to_digit(16).unwrap_or(0) as usize;
                    number = number.wrapping_mul(16).wrapping_add(digit);
                }
                (Place::Path, b'\n') => break 'found true,
                (Place::Middle, b'\n') if inside => break 'found false,
                (Place::Middle, b'\n') => (place, number) = (Place::Start, 0),
                (Place::Middle, b'/') if inside => {
                    place = Place::Path;
                    path(byte);
                }
                (Place::Middle, _) => {}
                (Place::Path, _) => {
                    // In UTF-8, some control characters have two bytes.
                    let control = byte.is_ascii_control() || (before == 0xc2 && byte < 0xa0);
                    path(if control { b'?' } else { byte });
                    before = byte;
                }
            }
        }
    };
    // SAFETY: opened here, and closed once; a bad descriptor is an error.
    unsafe { libc::close(maps) };
    found
}

#[cfg(test)]
mod tests;
