//! Builds GGUF bytes by hand, right or wrong, so that the reader is not tested with its own writer only.
#![allow(dead_code, unreachable_pub)]

use std::path::{Path, PathBuf};

/// Numbers of the value types in a file.
pub const U8: u32 = 0;
pub const U16: u32 = 2;
pub const U32: u32 = 4;
pub const I32: u32 = 5;
pub const F32: u32 = 6;
pub const BOOL: u32 = 7;
pub const STRING: u32 = 8;
pub const ARRAY: u32 = 9;
pub const U64: u32 = 10;

/// A growing file.
#[derive(Clone, Default)]
pub struct Bytes(pub Vec<u8>);

impl Bytes {
    /// Magic, version and the two counts.
    pub fn header(version: u32, n_tensors: u64, n_keys: u64) -> Bytes {
        Bytes(b"GGUF".to_vec()).u32(version).u64(n_tensors).u64(n_keys)
    }
    pub fn raw(mut self, bytes: &[u8]) -> Self {
        self.0.extend_from_slice(bytes);
        self
    }
    pub fn u8(self, v: u8) -> Self {
        self.raw(&[v])
    }
    pub fn u32(self, v: u32) -> Self {
        self.raw(&v.to_le_bytes())
    }
    pub fn u64(self, v: u64) -> Self {
        self.raw(&v.to_le_bytes())
    }
    /// A length and that many bytes.
    pub fn string(self, s: impl AsRef<[u8]>) -> Self {
        self.u64(s.as_ref().len() as u64).raw(s.as_ref())
    }
    /// A key and the type of its value; the value follows.
    pub fn key(self, key: &str, value_type: u32) -> Self {
        self.string(key).u32(value_type)
    }
    /// Element type and count of an array; the elements follow.
    pub fn array(self, element_type: u32, n: u64) -> Self {
        self.u32(element_type).u64(n)
    }
    /// A tensor entry.
    pub fn tensor(self, name: &str, shape: &[u64], dtype: u32, offset: u64) -> Self {
        let mut b = self.string(name).u32(shape.len() as u32);
        for d in shape {
            b = b.u64(*d);
        }
        b.u32(dtype).u64(offset)
    }
    /// Zeros up to a multiple of `alignment`.
    pub fn pad(mut self, alignment: usize) -> Self {
        self.0.resize(self.0.len().next_multiple_of(alignment), 0);
        self
    }
    pub fn zeros(mut self, n: usize) -> Self {
        self.0.resize(self.0.len() + n, 0);
        self
    }
    /// Writes the bytes to a file.
    pub fn save(&self, folder: &Path, name: &str) -> PathBuf {
        let path = folder.join(name);
        std::fs::write(&path, &self.0).unwrap();
        path
    }
}

/// A small valid file: a few keys, a nested array, two F32 tensors and a Q8_0 one.
pub fn valid() -> Bytes {
    Bytes::header(3, 3, 5)
        .key("general.architecture", STRING)
        .string("llama")
        .key("llama.block_count", U32)
        .u32(2)
        .key("tokens", ARRAY)
        .array(STRING, 3)
        .string("a")
        .string(b"\xff\xfe")
        .string("")
        .key("nested", ARRAY)
        .array(ARRAY, 2)
        .array(U8, 2)
        .raw(&[1, 2])
        .array(BOOL, 1)
        .u8(1)
        .key("scale", F32)
        .raw(&0.5f32.to_le_bytes())
        .tensor("a", &[8], 0, 0)
        .tensor("b", &[64, 2], 8, 32)
        .tensor("c", &[1, 2, 3, 4], 0, 192)
        .pad(32)
        .zeros(192 + 96)
}
