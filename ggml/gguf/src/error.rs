//! Errors of GGUF files: one variant for each way in which a file can be malformed, each shown as one line.
#![forbid(unsafe_code)]

use std::path::PathBuf;

/// Results of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of reading or writing a GGUF file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An operation of the file system failed.
    #[error(transparent)]
    Io(#[from] files::Error),
    /// A file is malformed, or lacks what was asked of it.
    #[error(transparent)]
    Gguf(Box<GgufError>),
    /// An allocation failed.
    #[error("CPU: cannot allocate {bytes} bytes for {what}")]
    OutOfMemory {
        /// Bytes asked for.
        bytes: usize,
        /// The purpose of the memory.
        what: String,
    },
    /// A value a caller passed is out of range.
    #[error("{0}")]
    Argument(String),
}

impl Error {
    /// Adds the path to an I/O error.
    pub fn io(path: impl Into<PathBuf>, source: std::io::Error) -> Self {
        Error::Io(files::Error::new(path, source))
    }
}

impl From<GgufError> for Error {
    fn from(e: GgufError) -> Self {
        Error::Gguf(Box::new(e))
    }
}

/// A refused file and what is wrong with it.
#[derive(Debug, thiserror::Error)]
#[error("{}: {defect}", path.display())]
pub struct GgufError {
    /// The file.
    pub path: PathBuf,
    /// The first defect found.
    pub defect: Defect,
}

/// A way in which a file is malformed. Names in it are escaped and cut, so that a hostile one stays on one
/// line.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum Defect {
    #[error("starts with the bytes {found:02x?}, expected \"GGUF\"")]
    Magic { found: [u8; 4] },
    #[error("is a big-endian GGUF file, expected a little-endian one")]
    BigEndian,
    #[error("is GGUF version {found}, expected 2 or 3")]
    Version { found: u32 },
    #[error(
        "{at}: needs {needed} bytes at offset {offset}, expected at most the {left} that are left of the \
         file"
    )]
    Truncated { at: String, offset: u64, needed: u128, left: u64 },
    #[error("{at}: found {found}, expected at most {limit}")]
    Limit { at: String, found: u64, limit: u64 },
    #[error("{at}: found {found} bytes of metadata up to here, expected at most {limit}")]
    Metadata { at: String, found: u64, limit: u64 },
    #[error("{at}: cannot allocate {bytes} bytes")]
    Memory { at: String, bytes: u64 },
    #[error("key {index}: found {found}, expected a name")]
    KeyName { index: usize, found: &'static str },
    #[error("key {key}: found twice, expected once")]
    DuplicateKey { key: String },
    #[error("key {key}: found value type {found}, expected 0 to 12")]
    ValueType { key: String, found: u32 },
    #[error("key {key}: found bool {found}, expected 0 or 1")]
    Bool { key: String, found: u8 },
    #[error("key {key}: found arrays nested more than {limit} deep")]
    Depth { key: String, limit: usize },
    #[error("key general.alignment: found {found}, expected a u32 power of two up to {limit}")]
    Alignment { found: String, limit: usize },
    #[error("tensor {index}: found {found}, expected a name")]
    TensorName { index: usize, found: &'static str },
    #[error("tensor {tensor}: found twice, expected once")]
    DuplicateTensor { tensor: String },
    #[error("tensor {tensor}: found {found} dimensions, expected 1 to 4")]
    Dimensions { tensor: String, found: u32 },
    #[error("tensor {tensor}: found shape {shape:?}, expected every dimension to be at least 1")]
    ZeroDimension { tensor: String, shape: Vec<u64> },
    #[error("tensor {tensor}: shape {shape:?} overflows, expected at most 2^63 - 1 bytes and elements")]
    TooLarge { tensor: String, shape: Vec<u64> },
    #[error("tensor {tensor}: found type {found}, expected a ggml type this build knows")]
    TensorType { tensor: String, found: u32 },
    #[error("tensor {tensor}: found rows of {found} values, expected whole {dtype} blocks of {block}")]
    PartialBlock { tensor: String, dtype: &'static str, found: u64, block: usize },
    #[error("tensor {tensor}: found data offset {found}, expected a multiple of {alignment}")]
    Misaligned { tensor: String, found: u64, alignment: usize },
    #[error("tensor {tensor}: data ends at byte {end}, expected at most the file's {size}")]
    OutOfFile { tensor: String, end: u128, size: u64 },
    #[error("tensor {tensor}: data overlaps that of {other}, expected each to have its own")]
    Overlap { tensor: String, other: String },
    #[error("is part {found} of {count}, expected the first part: open {} instead", first.display())]
    NotFirstPart { found: u64, count: u64, first: PathBuf },
    #[error("is the first of {count} parts, but its name does not end in {expected}")]
    PartName { count: u64, expected: String },
    #[error("key {key}: found {found}, expected {expected}")]
    PartKey { key: &'static str, found: String, expected: String },
    #[error("found {found} tensors in all parts, expected {expected} (split.tensors.count)")]
    PartTensors { found: u64, expected: u64 },
    #[error("key {key}: found none, expected {wanted}")]
    MissingKey { key: String, wanted: &'static str },
    #[error("key {key}: found {found}, expected {wanted}")]
    WrongType { key: String, found: String, wanted: &'static str },
    #[error("general.type: expected a model, found a LoRA adapter: open its model with this adapter")]
    Adapter,
    #[error("{key}: {what}")]
    Invalid { key: String, what: String },
    #[error("tensor {tensor}: {found} bytes of data were produced, expected {expected}")]
    DataLength { tensor: String, found: u64, expected: u64 },
}

/// A name from a file as it may stand in a one-line message: control characters escaped, long ones cut.
pub fn shown(name: &str) -> String {
    const MOST: usize = 96;
    let mut text: String = name.chars().take(MOST).flat_map(char::escape_debug).collect();
    if name.chars().nth(MOST).is_some() {
        text.push_str("...");
    }
    text
}
