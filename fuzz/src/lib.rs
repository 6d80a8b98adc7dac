//! Readers of files that somebody else wrote, each as a function of bytes. Whatever the bytes, it returns:
//! what is wrong with them is an error of one line. A panic, an abort or a fault of memory is a finding.
//!
//! A module for each reader has `run`, which fuzzers call, and `seeds`, sound inputs to begin with.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use convert::random::{write, Shape};
use ropewalk::adapter::{AdapterFile, AdapterMeta, NewPair};
use ropewalk::model::{Model, ModelParams};
use ropewalk::DType;

pub mod adapter;
pub mod cache;
pub mod cell;
pub mod chat;
pub mod checkpoint;
pub mod conversations;
pub mod gguf;
pub mod ids;
pub mod imatrix;
pub mod import;
pub mod jsonl;
pub mod model;
pub mod peft;
pub mod plan;
pub mod prefix;
pub mod quantize;
pub mod records;
pub mod requests;
pub mod session;
pub mod spec;
pub mod stages;
pub mod tasks;

/// A reader under test.
pub struct Target {
    /// The name of its module.
    pub name: &'static str,
    /// Reads the bytes; whether they were accepted.
    pub run: fn(&[u8]) -> bool,
    /// Inputs that are accepted.
    pub seeds: fn() -> Vec<Vec<u8>>,
}

macro_rules! targets {
    ($($name:ident)*) => { &[$(Target { name: stringify!($name), run: $name::run, seeds: $name::seeds }),*] };
}

/// Every reader.
pub static TARGETS: &[Target] = targets!(
    adapter cache cell chat checkpoint conversations gguf ids imatrix import jsonl model peft plan prefix quantize records
    requests session spec stages tasks
);

/// Returns true if the result is `Ok`. Panics unless an error is one line.
fn accepted<T>(result: Result<T, impl std::fmt::Display>) -> bool {
    if let Err(e) = &result {
        let text = e.to_string();
        assert!(!text.is_empty() && !text.contains('\n'), "{text:?}");
    }
    result.is_ok()
}

/// A path in a folder of this process.
fn scratch(name: &str) -> PathBuf {
    static FOLDER: OnceLock<tempfile::TempDir> = OnceLock::new();
    FOLDER.get_or_init(|| tempfile::tempdir().unwrap()).path().join(name)
}

/// The path of a file with these bytes. Each thread and name has one, which the next call replaces.
fn file(name: &str, bytes: &[u8]) -> PathBuf {
    let path = scratch(&format!("{:?}-{name}", std::thread::current().id()));
    replace(&path, bytes);
    path
}

/// Writes a new file in the place of another, which may still be mapped.
fn replace(path: &Path, bytes: &[u8]) {
    let _ = std::fs::remove_file(path);
    std::fs::write(path, bytes).unwrap();
}

/// A shape whose files are small enough to be mutated: one layer of 32.
fn small(name: &str) -> Shape {
    let shape = Shape::named(name).unwrap();
    Shape {
        n_layer: 1,
        n_embd: 32,
        n_head: 2,
        n_head_kv: 1,
        n_embd_head: 16,
        n_ff: 32,
        n_ctx_train: 64,
        ..shape
    }
}

/// The bytes of a random model of a shape.
fn model_bytes(shape: &Shape, dtype: DType) -> Vec<u8> {
    let path = scratch(&format!("{:?}-model.gguf", std::thread::current().id()));
    write(shape, dtype, 7, &path).unwrap();
    std::fs::read(path).unwrap()
}

/// The model that other files belong to.
fn base() -> (&'static Model, &'static Path) {
    static BASE: OnceLock<(Model, PathBuf)> = OnceLock::new();
    let (model, path) = BASE.get_or_init(|| {
        let path = scratch("base.gguf");
        write(&small("llama-tiny"), DType::Q8_0, 7, &path).unwrap();
        (Model::load(&path, &ModelParams::cpu()).unwrap(), path)
    });
    (model, path)
}

/// An adapter of two pairs for the model of [`base`].
fn adapter(name: &str, meta: AdapterMeta) -> PathBuf {
    let path = scratch(name);
    let values = [0.25f32; 64];
    let pair = |name: &str| NewPair { weight: name.into(), n_in: 32, n_out: 32, a: &values, b: &values };
    let file = AdapterFile {
        arch: "llama",
        rank: 2,
        alpha: 4.0,
        pairs: vec![pair("blk.0.attn_q.weight"), pair("blk.0.attn_output.weight")],
        modules_to_save: Vec::new(),
        meta,
        dtype: DType::F32,
    };
    ropewalk::adapter::write(&path, &file).unwrap();
    path
}

/// Writes the SHA-256 of all bytes before the last 32 into those, as sound files end: random changes are then
/// not all refused for their checksum.
fn with_digest(bytes: &[u8], digest: impl Fn(&[u8]) -> [u8; 32]) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    if let Some(at) = bytes.len().checked_sub(32) {
        let sum = digest(&bytes[..at]);
        bytes[at..].copy_from_slice(&sum);
    }
    bytes
}
