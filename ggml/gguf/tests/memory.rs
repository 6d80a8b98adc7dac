//! Opening a hostile file takes no more memory than a small multiple of its size, nor long.

#[path = "gguf/bytes.rs"]
mod bytes;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use bytes::*;

/// Most bytes the parser may hold at once for each byte of the file: an empty array in an array takes 12
/// bytes in the file and 32 in memory, twice while the list of them grows.
const MOST_PER_BYTE: usize = 10;

struct Counting;
static HELD: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call is passed on to the system's allocator as it came; only numbers are kept.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        PEAK.fetch_max(HELD.fetch_add(layout.size(), Relaxed) + layout.size(), Relaxed);
        // SAFETY: the caller's promise about the layout is the one System asks for.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        HELD.fetch_sub(layout.size(), Relaxed);
        // SAFETY: `at` came from System.alloc above, with this layout.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Parses, and returns whether the file was accepted.
fn measure(what: &str, bytes: &Bytes) -> bool {
    let before = HELD.load(Relaxed);
    PEAK.store(before, Relaxed);
    let start = Instant::now();
    let accepted = gguf::parse(&bytes.0).is_ok();
    let took = start.elapsed();
    let peak = PEAK.load(Relaxed) - before;
    println!("{what}: {} bytes, {peak} held, {took:?}", bytes.0.len());
    assert!(peak <= bytes.0.len() * MOST_PER_BYTE + 4096, "{what}: {peak} of {}", bytes.0.len());
    assert!(took < Duration::from_secs(5), "{what}: {took:?}");
    accepted
}

/// One test, for the counters are of the whole process.
#[test]
fn hostile_files_take_little() {
    const MIB: usize = 1 << 20;
    for n in [1 << 16, 1 << 20, 1 << 30, 1 << 40, u64::MAX] {
        measure("keys", &Bytes::header(3, 0, n).zeros(MIB));
        measure("tensors", &Bytes::header(3, n, 0).zeros(MIB));
        for t in 0..13 {
            let array = Bytes::header(3, 0, 1).key("k", ARRAY).array(t, n).zeros(MIB);
            measure("array", &array);
        }
        measure("string", &Bytes::header(3, 0, 1).key("k", STRING).u64(n).zeros(MIB));
    }

    let n = (MIB / 8) as u64;
    let strings = Bytes::header(3, 0, 1).key("k", ARRAY).array(STRING, n).zeros(MIB);
    assert!(measure("empty strings", &strings));
    let mut one = Bytes::header(3, 0, 1).key("k", ARRAY).array(STRING, n);
    for _ in 0..n {
        one = one.string("x");
    }
    assert!(measure("strings of one byte", &one));

    let n = (MIB / 12) as u64;
    let arrays = Bytes::header(3, 0, 1).key("k", ARRAY).array(ARRAY, n).zeros(12 * n as usize);
    assert!(measure("empty arrays", &arrays));
    // At every level as many arrays as could still follow, and the first of them the next level.
    let mut nested = Bytes::header(3, 0, 1).key("k", ARRAY);
    for _ in 0..7 {
        nested = nested.array(ARRAY, (MIB / 12) as u64);
    }
    assert!(!measure("nested counts", &nested.array(STRING, (MIB / 8) as u64).zeros(MIB)));

    let mut keys = Bytes::header(3, 0, 1 << 16);
    for i in 0..1u32 << 16 {
        keys = keys.key(&format!("{i:04x}"), U8).u8(0);
    }
    assert!(measure("as many keys as there may be", &keys));

    let n = 50_000u64;
    let mut tensors = Bytes::header(3, n, 1).key("general.alignment", U32).u32(1);
    for i in 0..n {
        tensors = tensors.tensor(&format!("{i:x}"), &[1], 24, i);
    }
    assert!(measure("small tensors", &tensors.zeros(n as usize)));

    // Not hostile, but large: Gemma's vocabulary with a score and a type for each token.
    let n = 262_144u64;
    let mut vocab = Bytes::header(3, 0, 3).key("tokens", ARRAY).array(STRING, n);
    for i in 0..n {
        vocab = vocab.string(format!("token{i}"));
    }
    vocab = vocab.key("scores", ARRAY).array(F32, n).zeros(4 * n as usize);
    vocab = vocab.key("types", ARRAY).array(I32, n).zeros(4 * n as usize);
    assert!(measure("a large vocabulary", &vocab));
}
