//! An allocator for tests that counts what is held and refuses large requests: those of readers must become errors.
//!
//! A test program takes it with `#[global_allocator] static ALLOCATOR: Scarce = Scarce;`. The counts are of the whole
//! process, so such a program has one test. A request that may not fail (`Vec::with_capacity`, `vec![]`, `collect`) and is
//! refused ends the process, and with it the test.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// The system's allocator, watched.
#[derive(Debug)]
pub struct Scarce;

static HELD: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);
/// Requests above this many bytes are large.
static LARGE: AtomicUsize = AtomicUsize::new(usize::MAX);
/// Large requests that are granted before one is refused.
static GRANTED: AtomicUsize = AtomicUsize::new(usize::MAX);

fn refused(bytes: usize) -> bool {
    bytes > LARGE.load(Relaxed) && GRANTED.fetch_sub(1, Relaxed) == 0
}

fn held(bytes: usize) {
    PEAK.fetch_max(HELD.fetch_add(bytes, Relaxed) + bytes, Relaxed);
}

// SAFETY: every call is passed on to the system's allocator as it came, or answered with null, which says that it
// failed; otherwise only numbers are kept.
unsafe impl GlobalAlloc for Scarce {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if refused(layout.size()) {
            return std::ptr::null_mut();
        }
        held(layout.size());
        // SAFETY: the caller's promise about the layout is the one System asks for.
        unsafe { System.alloc(layout) }
    }
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if refused(layout.size()) {
            return std::ptr::null_mut();
        }
        held(layout.size());
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }
    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        if refused(size) {
            return std::ptr::null_mut();
        }
        // Both are held while one is copied to the other.
        held(size);
        HELD.fetch_sub(layout.size(), Relaxed);
        // SAFETY: `at` came from System with this layout, and the caller promises that `size` is a size.
        unsafe { System.realloc(at, layout, size) }
    }
    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        HELD.fetch_sub(layout.size(), Relaxed);
        // SAFETY: `at` came from System, with this layout.
        unsafe { System.dealloc(at, layout) }
    }
}

/// The most bytes that `work` held beyond those held before, and what it returned.
pub fn peak<T>(work: impl FnOnce() -> T) -> (usize, T) {
    let before = HELD.load(Relaxed);
    PEAK.store(before, Relaxed);
    let done = work();
    (PEAK.load(Relaxed).saturating_sub(before), done)
}

/// Calls `work` again and again, and refuses its first request above `large` bytes, then its second, and so on until none
/// was refused. Returns the errors, one for each refusal.
///
/// # Panics
/// `work` succeeds although a request was refused, or fails although none was.
pub fn starve<T, E: std::fmt::Display>(large: usize, work: impl Fn() -> Result<T, E>) -> Vec<String> {
    let mut errors = Vec::new();
    loop {
        GRANTED.store(errors.len(), Relaxed);
        LARGE.store(large, Relaxed);
        let done = work();
        LARGE.store(usize::MAX, Relaxed);
        // Below zero it wraps around.
        let hit = GRANTED.load(Relaxed) > errors.len();
        match done {
            Err(e) if hit => errors.push(e.to_string()),
            Ok(_) if !hit => return errors,
            Ok(_) => panic!("request {} was refused, and nothing came of it", errors.len()),
            Err(e) => panic!("no request was refused: {e}"),
        }
    }
}
