//! Opening a hostile file takes no more memory than a small multiple of its size, nor long; and memory that cannot be had
//! is an error.

#[path = "gguf/bytes.rs"]
mod bytes;

use std::time::{Duration, Instant};

use bytes::*;
use files::scarce::{peak, starve, Scarce};

/// Most bytes the parser may hold at once for each byte of the file: an empty array in an array takes 12
/// bytes in the file and 32 in memory, twice while the list of them grows.
const MOST_PER_BYTE: usize = 10;

#[global_allocator]
static ALLOCATOR: Scarce = Scarce;

/// Parses, and returns whether the file was accepted.
fn measure(what: &str, bytes: &Bytes) -> bool {
    let start = Instant::now();
    let (peak, accepted) = peak(|| gguf::parse(&bytes.0).is_ok());
    let took = start.elapsed();
    println!("{what}: {} bytes, {peak} held, {took:?}", bytes.0.len());
    assert!(peak <= bytes.0.len() * MOST_PER_BYTE + 4096, "{what}: {peak} of {}", bytes.0.len());
    assert!(took < Duration::from_secs(20), "{what}: {took:?}");
    accepted
}

/// Each large request of the reader is refused once: every one is an error that says where and how much.
fn requests_may_fail() {
    const N: u64 = 100_000;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.gguf");
    for t in 0..13 {
        let each = [1, 1, 2, 2, 4, 4, 4, 1, 8, 12, 8, 8, 8][t as usize];
        let bytes = Bytes::header(3, 0, 1).key("some.key", ARRAY).array(t, N).zeros((N * each) as usize);
        let errors = starve(1 << 16, || gguf::parse(&bytes.0));
        assert!(!errors.is_empty(), "type {t}");
        for e in errors {
            assert!(e.starts_with("key some.key: cannot allocate ") && e.ends_with(" bytes"), "{e}");
        }
        std::fs::write(&path, &bytes.0).unwrap();
        for e in starve(1 << 16, || gguf::File::open(&path)) {
            assert!(e.contains("m.gguf: key some.key: cannot allocate "), "{e}");
        }
    }
    let string = Bytes::header(3, 0, 1).key("some.key", STRING).u64(N).zeros(N as usize);
    assert_eq!(starve(1 << 16, || gguf::parse(&string.0)), ["key some.key: cannot allocate 100000 bytes"]);
    let mut keys = Bytes::header(3, 0, 1 << 14);
    for i in 0..1u32 << 14 {
        keys = keys.key(&format!("{i:04x}"), U8).u8(0);
    }
    let errors = starve(1 << 18, || gguf::parse(&keys.0));
    assert!(errors.len() == 1 && errors[0].starts_with("number of keys: cannot allocate"), "{errors:?}");
    let tensor = Bytes::header(3, 1, 0).tensor("some.weight", &[N], 0, 0).zeros(4 * N as usize + 64);
    std::fs::write(&path, &tensor.0).unwrap();
    let file = gguf::File::open(&path).unwrap();
    let errors = starve(1 << 16, || file.floats(&file.tensors()[0]));
    assert!(
        errors.len() == 1 && errors[0].contains("400000 bytes for the values of some.weight"),
        "{errors:?}"
    );
    let errors = starve(1 << 16, || file.data(&file.tensors()[0]).to_vec());
    assert_eq!(errors, ["cannot allocate 400000 bytes"]);
    let values = vec![0.5; N as usize];
    let errors = starve(1 << 16, || gguf::float::encode(gguf::DType::F16, &values));
    assert_eq!(errors, ["CPU: cannot allocate 200000 bytes for 100000 values of f16"]);
}

/// One test, for the counters are of the whole process.
#[test]
fn hostile_files_take_little() {
    requests_may_fail();
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
