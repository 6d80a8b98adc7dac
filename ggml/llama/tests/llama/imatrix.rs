//! Importance matrices in the format before GGUF (`.dat`).

use std::path::PathBuf;

use gguf::{DType, File};
use llama::quantize::{Imatrix, Mixture, QuantizeParams};

use crate::quantize::{go, model, Lab};

/// An entry as the file has it.
fn entry(name: &[u8], n_calls: i32, values: &[f32]) -> Vec<u8> {
    let mut out = (name.len() as i32).to_le_bytes().to_vec();
    out.extend(name);
    out.extend(n_calls.to_le_bytes());
    out.extend((values.len() as i32).to_le_bytes());
    out.extend(values.iter().flat_map(|v| v.to_le_bytes()));
    out
}

fn file(entries: &[Vec<u8>], tail: &[u8]) -> Vec<u8> {
    [&(entries.len() as i32).to_le_bytes()[..], &entries.concat(), tail].concat()
}

fn saved(lab: &Lab, bytes: &[u8]) -> PathBuf {
    let path = lab.path("old.dat");
    std::fs::write(&path, bytes).unwrap();
    path
}

#[test]
fn values_are_divided_by_the_calls_as_llama_quantize_does() {
    let entries = [
        entry(b"a", 4, &[8.0, 2.0]),
        entry(b"b", 0, &[8.0, 2.0]),
        entry(b"c", -3, &[8.0, 2.0]),
        entry(b"a", 2, &[8.0, 2.0, 0.0]),
        entry(b"d\0x", 1, &[1.0]),
    ];
    let found = Imatrix::open(&saved(&Lab::new(), &file(&entries, &[]))).unwrap();
    let expected: [(&str, &[f32]); 4] =
        [("a", &[4.0, 1.0, 0.0]), ("b", &[8.0, 2.0]), ("c", &[8.0, 2.0]), ("d", &[1.0])];
    let pairs: Vec<(&str, &[f32])> =
        found.entries().iter().map(|(n, v)| (n.as_str(), v.as_slice())).collect();
    assert_eq!(pairs, expected);
}

/// Chunks and the text's name are in the file that is quantized with it.
#[test]
fn the_end_of_the_file_may_be_missing() {
    let lab = Lab::new();
    let input = lab.written("in.gguf", model(1, DType::F16));
    let (n, length) = (4i32.to_le_bytes(), 8i32.to_le_bytes());
    let huge = i32::MAX.to_le_bytes();
    for (tail, n_chunks, text) in [
        ([&n[..], &length, b"text.txt"].concat(), Some(4), Some("text.txt")),
        (vec![], None, None),
        (vec![1, 2], None, None),
        (n.to_vec(), Some(4), None),
        ([&n[..], &length[..2]].concat(), Some(4), None),
        ([&n[..], &length, b"text"].concat(), Some(4), None),
        ([&n[..], &huge, b"text"].concat(), Some(4), None),
        ([&n[..], &0i32.to_le_bytes()].concat(), Some(4), None),
        ((-4i32).to_le_bytes().to_vec(), None, None),
    ] {
        let entries = [entry(b"blk.0.attn_q.weight", 1, &[1.0; 256])];
        let imatrix = Imatrix::open(&saved(&lab, &file(&entries, &tail))).unwrap();
        assert_eq!(imatrix.entries().len(), 1, "{tail:?}");
        let q4 = QuantizeParams::new(Mixture::named("q4_0").unwrap());
        go(&input, &lab.path("out"), &QuantizeParams { imatrix: Some(imatrix), ..q4 }).unwrap();
        let out = File::open(&lab.path("out")).unwrap();
        assert_eq!(out.get_opt::<u32>("quantize.imatrix.chunks_count").unwrap(), n_chunks, "{tail:?}");
        let found = out.get_opt::<String>("quantize.imatrix.dataset").unwrap();
        assert_eq!(found.as_deref(), text, "{tail:?}");
    }
}

#[test]
fn damaged_files_are_refused_by_what_is_wrong() {
    let lab = Lab::new();
    let refused = |bytes: &[u8], what: &str| {
        let e = Imatrix::open(&saved(&lab, bytes)).unwrap_err().to_string();
        assert!(e.contains("old.dat: ") && e.contains(what) && !e.contains('\n'), "{what}: {e}");
    };
    let number = |n: i32| n.to_le_bytes().to_vec();
    let good = file(&[entry(b"a", 1, &[1.0, 2.0])], &[]);
    for n in 0..good.len() {
        refused(&good[..n], "old.dat: neither GGUF nor");
    }
    for (bytes, what) in [
        (file(&[entry(b"a", 1, &[f32::NAN])], &[]), "a: expected numbers from 0 to 1e12, found NaN"),
        (file(&[entry(b"a", 1, &[-1.0])], &[]), "a: expected numbers from 0 to 1e12, found -1"),
        (file(&[entry(b"a", 0, &[f32::INFINITY])], &[]), "found inf"),
        (file(&[entry(b"a\n", 1, &[-1.0])], &[]), r"a\n: expected numbers"),
        (file(&[entry(b"\xff", 1, &[1.0])], &[]), "name of entry 1: expected a text"),
        (file(&[entry(b"\0", 1, &[1.0])], &[]), "name of entry 1: expected a text"),
        (file(&[entry(b"", 1, &[1.0])], &[0; 8]), "length of name of entry 1: expected 1 to"),
        (file(&[entry(b"abcde", 1, &[])], &[]), "abcde: values: expected 1 to 0, found 0"),
        ([number(-1), vec![0; 40]].concat(), "number of entries: expected 1 to 2, found -1"),
        ([number(i32::MAX), vec![0; 40]].concat(), "found 2147483647"),
        ([number(1), number(i32::MIN), vec![0; 40]].concat(), "length of name of entry 1"),
        ([number(1), number(i32::MAX), vec![0; 40]].concat(), "found 2147483647"),
        ([number(1), number(1), vec![b'a'], number(1), number(i32::MAX), vec![0; 8]].concat(), "1 to 2"),
        ([number(1), number(1), vec![b'a'], number(1), number(-2), vec![0; 8]].concat(), "found -2"),
        (b"A text about something else, long enough.".to_vec(), "number of entries"),
    ] {
        refused(&bytes, what);
    }
}
