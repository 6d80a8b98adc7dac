//! Sparse files of many gigabytes, which take a few blocks of the disk, through the program with little memory: one line and
//! code 1, never an allocation that ends it.

use std::io::Write;
use std::path::PathBuf;

use crate::commands::{fails, ropewalk, str};
use crate::common::program::split;
use crate::{common, small_model};

/// A file that begins so and continues with zeros.
fn sparse(name: &str, start: &[u8], size: u64) -> PathBuf {
    let path = common::scratch(name);
    let mut file = std::fs::File::create(&path).unwrap();
    file.write_all(start).unwrap();
    file.set_len(size).unwrap();
    path
}

/// A GGUF file with one key of this array type and length.
fn array(kind: u32, n: u64) -> Vec<u8> {
    let head = [&b"GGUF"[..], &3u32.to_le_bytes(), &0u64.to_le_bytes(), &1u64.to_le_bytes()].concat();
    let key = [&8u64.to_le_bytes()[..], b"some.key", &9u32.to_le_bytes()].concat();
    [&head[..], &key, &kind.to_le_bytes(), &n.to_le_bytes()].concat()
}

#[test]
fn models_and_adapters() {
    let small = str(small_model());
    for (kind, n, size) in [(8, 1 << 27, 1u64 << 30), (0, 1 << 30, 1 << 31), (9, 1 << 28, 1 << 36)] {
        let name = format!("sparse-{kind}.gguf");
        let path = sparse(&name, &array(kind, n), size + 4096);
        fails(&["inspect", str(&path)], 1, &[&name]);
        fails(&["run", "-q", "-m", str(&path), "-p", "hi"], 1, &[&name]);
        fails(&["run", "-q", "-m", small, "-p", "hi", "--lora", str(&path)], 1, &[&name]);
    }
}

#[test]
fn texts_and_records() {
    let m = str(small_model());
    let text = sparse("sparse.txt", b"The rope walk", 64 << 30);
    fails(&["run", "-q", "-m", m, "-f", str(&text)], 1, &["sparse.txt"]);
    fails(&["perplexity", "-q", "-m", m, "-f", str(&text), "--ctx", "32"], 1, &["sparse.txt"]);
}

#[test]
fn checkpoints_and_caches() {
    let m = str(small_model());
    let words = common::scratch("sparse-words.txt");
    std::fs::write(&words, "the rope is long and the walk is longer than any other ".repeat(40)).unwrap();
    let folder = common::scratch("sparse.checkpoints");
    std::fs::create_dir_all(&folder).unwrap();
    let output = common::scratch("sparse-out.gguf");
    let tune = |more: &[&'static str], file: &str| {
        let head = split("finetune -q --ctx 32 --steps 1 --set held-out=0");
        let head = [&head[..], &["-m", m, "-d", str(&words), "-o", str(&output)]].concat();
        let args: Vec<&str> = head.iter().copied().chain(more.iter().copied()).chain([file]).collect();
        ropewalk(&args, b"")
    };
    for (n, size) in [(32u64 << 20, 64u64 << 30), (u64::MAX, 1 << 20), (1 << 40, 1 << 30)] {
        let step = folder.join("step-00000001.safetensors");
        let mut file = std::fs::File::create(&step).unwrap();
        file.write_all(&n.to_le_bytes()).unwrap();
        file.set_len(size).unwrap();
        let said = tune(&["--resume", "--set"], &format!("checkpoints={}", str(&folder)));
        assert!(said.code == 1 && said.stderr.contains("step-00000001.safetensors"), "{said:?}");
        assert!(said.stderr.lines().count() == 1, "{said:?}");
        let _ = std::fs::remove_file(&step);
    }
    let cache = sparse("sparse.tokens", b"ropedata\x02\0\0\0\0\0\0\0", 64 << 30);
    let said = tune(&["--set"], &format!("cache={}", str(&cache)));
    assert!(said.code == 1 && said.stderr.contains("sparse.tokens"), "{said:?}");
}
