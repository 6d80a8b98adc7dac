//! One test per way a GGUF file can be broken: each is refused with one line that names what is wrong.

use crate::bytes::*;
use gguf::{parse, File, MAX_DEPTH};

/// Both the pure parser and an opened file refuse the bytes, in one line with `needle` in it.
fn assert_rejects(bytes: Bytes, needle: &str) {
    let defect = parse(&bytes.0).expect_err("parsed").to_string();
    assert!(defect.contains(needle), "\"{defect}\" does not say \"{needle}\"");
    assert!(!defect.contains('\n') && defect.len() < 500, "{defect}");
    let folder = tempfile::tempdir().unwrap();
    let path = bytes.save(folder.path(), "broken.gguf");
    let error = File::open(&path).expect_err("opened").to_string();
    assert_eq!(error, format!("{}: {defect}", path.display()));
}

/// A file with one pair, whose value is `value`.
fn pair(value_type: u32, value: impl Fn(Bytes) -> Bytes) -> Bytes {
    value(Bytes::header(3, 0, 1).key("k", value_type))
}

/// A file with one tensor and `n` bytes of data.
fn one_tensor(shape: &[u64], dtype: u32, offset: u64, n: usize) -> Bytes {
    Bytes::header(3, 1, 0).tensor("t", shape, dtype, offset).pad(32).zeros(n)
}

#[test]
fn what_is_valid_is_accepted() {
    for version in [2, 3] {
        let mut bytes = valid();
        bytes.0[4] = version;
        let header = parse(&bytes.0).unwrap();
        assert_eq!((header.version, header.metadata.len()), (version.into(), 5));
        assert_eq!(header.tensors[2].shape, [1, 2, 3, 4]);
        assert_eq!(header.tensors[1].n_bytes, 4 * 34);
    }
    // The padding after the last tensor may be missing, and gaps and any order of the data are allowed.
    parse(&one_tensor(&[9], 0, 0, 36).0).unwrap();
    let b = Bytes::header(3, 2, 0).tensor("t", &[1], 0, 128).tensor("u", &[1], 0, 0).pad(32).zeros(132);
    parse(&b.0).unwrap();
    parse(&Bytes::header(3, 0, 0).0).unwrap();
    let aligned = |n: u32| {
        let b = Bytes::header(3, 1, 1).key("general.alignment", U32).u32(n);
        b.tensor("t", &[1], 0, 0).pad(n as usize).zeros(4)
    };
    for n in [1, 2, 32, 4096, 1 << 20] {
        assert_eq!(parse(&aligned(n).0).unwrap().alignment, n as usize);
    }
}

#[test]
fn every_truncation() {
    let bytes = valid().0;
    for n in 0..bytes.len() {
        // valid() ends with the last byte of its last tensor, so nothing shorter is valid.
        let defect = parse(&bytes[..n]).expect_err("parsed").to_string();
        assert!(!defect.contains('\n'), "{defect}");
    }
    assert_rejects(Bytes(vec![]), "header: needs 4 bytes at offset 0, expected at most the 0 that are left");
    assert_rejects(Bytes(bytes[..20].to_vec()), "header: needs 8 bytes at offset 16");
    assert_rejects(Bytes(bytes[..bytes.len() - 1].to_vec()), "tensor c: data ends at byte");
}

#[test]
fn magic_and_version() {
    assert_rejects(Bytes(b"PK\x03\x04 and so on".to_vec()), "starts with the bytes [50, 4b, 03, 04]");
    assert_rejects(Bytes::header(1, 0, 0), "version 1, expected 2 or 3");
    assert_rejects(Bytes::header(4, 0, 0), "version 4, expected 2 or 3");
    assert_rejects(Bytes::header(0, 0, 0), "version 0, expected 2 or 3");
    assert_rejects(Bytes::header(3u32.swap_bytes(), 0, 0), "big-endian");
}

#[test]
fn counts() {
    assert_rejects(
        Bytes::header(3, 0, u64::MAX),
        "number of keys: found 18446744073709551615, expected at most",
    );
    assert_rejects(Bytes::header(3, u64::MAX, 0), "number of tensors: found 18446744073709551615");
    assert_rejects(Bytes::header(3, 0, 65536), "number of keys: needs 917504 bytes");
    assert_rejects(Bytes::header(3, 1 << 20, 0), "number of tensors: needs 34603008 bytes");
    assert_rejects(
        Bytes::header(3, 0, 65537).zeros(1 << 20),
        "number of keys: found 65537, expected at most 65536",
    );
    // Enough bytes before the keys are read, not after.
    let b = Bytes::header(3, 30, 1).key("k", STRING).string([b'x'; 1000]);
    assert_rejects(b, "number of tensors: needs 990 bytes at offset");
}

#[test]
fn keys() {
    let one = |key: &[u8]| Bytes::header(3, 0, 1).string(key).u32(U8).u8(0).zeros(9);
    assert_rejects(one(b""), "key 0: found an empty name, expected a name");
    assert_rejects(one(b"\xff\xfe"), "key 0: found a name that is not UTF-8");
    assert_rejects(one(b"a\0b"), "key 0: found a name with a NUL byte");
    assert_rejects(one(&[b'k'; 65536]), "name of key 0: found 65536, expected at most 65535");
    assert_rejects(
        Bytes::header(3, 0, 1).u64(u64::MAX).zeros(99),
        "name of key 0: found 18446744073709551615",
    );
    assert_rejects(Bytes::header(3, 0, 1).u64(60000).zeros(99), "name of key 0: needs 60000 bytes");
    let twice = Bytes::header(3, 0, 3).key("k", U8).u8(1).key("l", U8).u8(1).key("k", U32).u32(1);
    assert_rejects(twice, "key k: found twice");
    let nasty = format!("evil\n\x1b[31m{}", "x".repeat(5000));
    assert_rejects(Bytes::header(3, 0, 1).key(&nasty, 99).zeros(9), "key evil\\n\\u{1b}[31mxxx");
}

#[test]
fn values() {
    assert_rejects(pair(13, |b| b.zeros(9)), "key k: found value type 13, expected 0 to 12");
    assert_rejects(pair(u32::MAX, |b| b.zeros(9)), "key k: found value type 4294967295");
    assert_rejects(pair(BOOL, |b| b.u8(2)), "key k: found bool 2, expected 0 or 1");
    assert_rejects(pair(U64, |b| b.u32(1)), "key k: needs 8 bytes at offset 37");
    assert_rejects(pair(STRING, |b| b.u64(u64::MAX)), "key k: found 18446744073709551615");
    assert_rejects(pair(STRING, |b| b.u64(1 << 30)), "key k: needs 1073741824 bytes");
    assert_rejects(pair(STRING, |b| b.u64(5).raw(b"four")), "key k: needs 5 bytes");
}

#[test]
fn arrays() {
    let array = |t, n| pair(ARRAY, move |b| b.array(t, n).zeros(100));
    assert_rejects(array(13, 1), "key k: found value type 13");
    for t in [U8, U16, U32, F32, BOOL, STRING, ARRAY, U64] {
        assert_rejects(array(t, u64::MAX), "key k: found 18446744073709551615, expected at most 1073741824");
        assert_rejects(array(t, 1 << 30), "key k: needs ");
        assert_rejects(array(t, 101), "key k: needs ");
    }
    assert_rejects(
        array(U64, 13),
        "key k: needs 104 bytes at offset 49, expected at most the 100 that are left",
    );
    assert_rejects(array(STRING, 13), "key k: needs 104 bytes");
    assert_rejects(array(ARRAY, 9), "key k: needs 108 bytes");
    assert_rejects(pair(ARRAY, |b| b.array(BOOL, 3).raw(&[0, 1, 7])), "key k: found bool 7");
    assert_rejects(pair(ARRAY, |b| b.array(ARRAY, 1).array(BOOL, 1).u8(3)), "key k: found bool 3");
    assert_rejects(pair(ARRAY, |b| b.array(STRING, 2).string("a").u64(99)), "key k: needs 99 bytes");
    let nested = |depth: usize| {
        pair(ARRAY, move |mut b| {
            for _ in 1..depth {
                b = b.array(ARRAY, 1);
            }
            b.array(U8, 1).u8(7)
        })
    };
    parse(&nested(MAX_DEPTH).0).unwrap();
    assert_rejects(nested(MAX_DEPTH + 1), "key k: found arrays nested more than 8 deep");
    assert_rejects(nested(100_000), "key k: found arrays nested more than 8 deep");
}

#[test]
fn alignment() {
    let b = |t, v| Bytes::header(3, 0, 1).key("general.alignment", t).u32(v).zeros(8);
    let needle =
        |found| format!("key general.alignment: found {found}, expected a u32 power of two up to 1048576");
    for v in [0, 3, 33, 1 << 21, u32::MAX] {
        assert_rejects(b(U32, v), &needle(format!("u32 {v}")));
    }
    assert_rejects(b(I32, 32), &needle("i32 32".to_owned()));
    assert_rejects(b(U64, 32), &needle("u64 32".to_owned()));
}

#[test]
fn tensor_names() {
    let one = |name: &[u8]| Bytes::header(3, 1, 0).string(name).u32(1).u64(1).u32(0).u64(0).pad(32).zeros(4);
    assert_rejects(one(b""), "tensor 0: found an empty name, expected a name");
    assert_rejects(one(b"\xc0\x80"), "tensor 0: found a name that is not UTF-8");
    assert_rejects(one(b"a\0b"), "tensor 0: found a name with a NUL byte");
    assert_rejects(one(&[b't'; 64]), "name of tensor 0: found 64, expected at most 63");
    parse(&one(&[b't'; 63]).0).unwrap();
    let twice = Bytes::header(3, 2, 0).tensor("t", &[1], 0, 0).tensor("t", &[1], 0, 32).pad(32).zeros(64);
    assert_rejects(twice, "tensor t: found twice");
}

#[test]
fn shapes() {
    assert_rejects(one_tensor(&[], 0, 0, 64), "tensor t: found 0 dimensions, expected 1 to 4");
    assert_rejects(one_tensor(&[1; 5], 0, 0, 64), "tensor t: found 5 dimensions");
    let many = Bytes::header(3, 1, 0).string("t").u32(u32::MAX).zeros(99);
    assert_rejects(many, "tensor t: found 4294967295 dimensions");
    assert_rejects(one_tensor(&[0], 0, 0, 64), "tensor t: found shape [0], expected every dimension");
    assert_rejects(one_tensor(&[4, 0, 2], 0, 0, 64), "tensor t: found shape [4, 0, 2]");
    assert_rejects(one_tensor(&[u64::MAX], 0, 0, 64), "tensor t: shape [18446744073709551615] overflows");
    assert_rejects(one_tensor(&[1 << 32, 1 << 32], 0, 0, 64), "overflows");
    assert_rejects(one_tensor(&[1 << 32, 1 << 31], 24, 0, 64), "overflows");
    // A product that is small again once it has wrapped.
    assert_rejects(one_tensor(&[1 << 32, 1 << 32, 4, 1], 0, 0, 64), "overflows");
    assert_rejects(one_tensor(&[(1 << 62) + 2, 4], 0, 0, 64), "overflows");
    assert_rejects(one_tensor(&[1 << 61], 0, 0, 64), "overflows");
    assert_rejects(one_tensor(&[1 << 60], 0, 0, 64), "tensor t: data ends at byte 4611686018427387968");
    assert_rejects(
        one_tensor(&[48], 8, 0, 640),
        "tensor t: found rows of 48 values, expected whole q8_0 blocks of 32",
    );
    assert_rejects(one_tensor(&[32, 8], 12, 0, 640), "expected whole q4_k blocks of 256");
}

#[test]
fn tensor_types() {
    for t in [4, 5, 31, 32, 33, 36, 37, 38, 43, 1000, u32::MAX] {
        assert_rejects(
            one_tensor(&[32], t, 0, 640),
            &format!("tensor t: found type {t}, expected a ggml type"),
        );
    }
}

#[test]
fn places_of_data() {
    assert_rejects(
        one_tensor(&[9], 0, 0, 35),
        "tensor t: data ends at byte 100, expected at most the file's 99",
    );
    assert_rejects(one_tensor(&[8], 0, 32, 63), "tensor t: data ends at byte");
    assert_rejects(one_tensor(&[8], 0, 16, 64), "tensor t: found data offset 16, expected a multiple of 32");
    assert_rejects(
        one_tensor(&[8], 0, u64::MAX - 31, 64),
        "tensor t: data ends at byte 18446744073709551680",
    );
    let two =
        |a, b| Bytes::header(3, 2, 0).tensor("t", &[9], 0, a).tensor("u", &[9], 0, b).pad(32).zeros(200);
    assert_rejects(two(0, 0), "overlaps");
    assert_rejects(two(0, 32), "tensor u: data overlaps that of t");
    assert_rejects(two(64, 32), "tensor t: data overlaps that of u");
    parse(&two(64, 0).0).unwrap();
    // The header ends where the data of a file with a larger alignment has not begun.
    let b = Bytes::header(3, 1, 1).key("general.alignment", U32).u32(4096).tensor("t", &[1], 0, 0).zeros(64);
    assert_rejects(b, "tensor t: data ends at byte 4100");
}

#[test]
fn what_is_no_file() {
    let folder = tempfile::tempdir().unwrap();
    let missing = folder.path().join("missing.gguf");
    let e = File::open(&missing).unwrap_err().to_string();
    assert!(e.contains("missing.gguf"), "{e}");
    let e = File::open(folder.path()).unwrap_err().to_string();
    assert!(e.contains("is not a regular file"), "{e}");
    #[cfg(unix)]
    for device in ["/dev/zero", "/dev/null"] {
        let e = File::open(device.as_ref()).unwrap_err().to_string();
        assert!(e.contains("is not a regular file"), "{e}");
    }
}

#[test]
fn getters_name_file_key_wanted_and_found() {
    let folder = tempfile::tempdir().unwrap();
    let bytes = Bytes::header(3, 0, 4)
        .key("n", I32)
        .u32(-3i32 as u32)
        .key("s", STRING)
        .string(b"\xff")
        .key("many", ARRAY)
        .array(U64, 1)
        .u64(1 << 40)
        .key("pi", 12)
        .raw(&1e300f64.to_le_bytes());
    let path = bytes.save(folder.path(), "m.gguf");
    let file = File::open(&path).unwrap();
    let check = |e: gguf::Error, tail: &str| assert_eq!(e.to_string(), format!("{}: {tail}", path.display()));
    check(file.get::<u32>("absent").unwrap_err(), "key absent: found none, expected u32");
    check(file.get::<u32>("n").unwrap_err(), "key n: found i32 -3, expected u32");
    check(file.get::<f32>("n").unwrap_err(), "key n: found i32 -3, expected f32");
    check(
        file.get::<String>("s").unwrap_err(),
        "key s: found string of 1 bytes, not UTF-8, expected UTF-8 string",
    );
    check(file.get::<Vec<u32>>("many").unwrap_err(), "key many: found array of 1 u64, expected array of u32");
    check(
        file.get_opt::<Vec<f32>>("many").unwrap_err(),
        "key many: found array of 1 u64, expected array of f32",
    );
    check(file.get::<bool>("n").unwrap_err(), "key n: found i32 -3, expected bool");
    assert!(file.get::<f32>("pi").is_err(), "1e300 is no f32");
    assert_eq!(file.get::<f64>("pi").unwrap(), 1e300);
    assert_eq!(file.get::<i32>("n").unwrap(), -3);
    assert_eq!(file.get::<i64>("n").unwrap(), -3);
    assert_eq!(file.get::<Vec<u64>>("many").unwrap(), [1 << 40]);
    assert_eq!(file.get_opt::<u32>("absent").unwrap(), None);
    check(file.error("blk.0.q", "shape [1], expected [2]"), "blk.0.q: shape [1], expected [2]");
}
