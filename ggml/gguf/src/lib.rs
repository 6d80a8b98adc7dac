//! Reading and writing GGUF files. Files that are read are not trusted: every length and offset is checked.
//!
//! [`parse`] turns bytes into a validated [`Header`] and is pure; [`File`] maps a file, or all parts of a
//! split one, and hands out metadata and tensor bytes; [`Writer`] streams a new file and puts it in place at
//! once.

mod dtype;
mod error;
pub mod float;
pub mod kinds;
mod parse;
mod split;
mod value;
mod write;

use std::path::{Path, PathBuf};
use std::sync::Arc;

pub use dtype::DType;
pub use error::{shown, Defect, Error, GgufError, Result};
pub use files::{Bytes, Map, Output};
pub use parse::{
    parse, Header, DEFAULT_ALIGNMENT, MAX_ALIGNMENT, MAX_ARRAY_LEN, MAX_DEPTH, MAX_KEYS, MAX_KEY_BYTES,
    MAX_METADATA_BYTES, MAX_NAME_BYTES, MAX_STRING_BYTES, MAX_TENSORS,
};
pub use split::{parts, MAX_PARTS};
pub use value::{Array, FromValue, Value};
pub use write::{encoded, DataFn, Writer};

/// One tensor's entry. Exists only validated: the data lies inside its shard, and sizes agree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorInfo {
    /// Name, unique in the file.
    pub name: String,
    /// Element type.
    pub dtype: DType,
    /// Shape in ggml order (`ne[0]` first), 1 to 4 entries.
    pub shape: Vec<u64>,
    /// Which file of a split model holds it.
    pub shard: usize,
    /// Byte offset of the data from the start of that file.
    pub offset: usize,
    /// Bytes of data.
    pub n_bytes: usize,
}

impl TensorInfo {
    /// Product of the shape.
    pub fn n_elements(&self) -> usize {
        // Validated on opening: the product fits an i64.
        self.shape.iter().map(|&d| d as usize).product()
    }
}

/// An opened, validated GGUF model: memory-mapped, one file or all parts of a split one.
#[derive(Debug)]
pub struct File {
    paths: Vec<PathBuf>,
    shards: Vec<Arc<Map>>,
    /// That of the first part, with the tensors of all.
    header: Header,
    /// Indices of the tensors in order of name.
    names: Vec<u32>,
}

impl File {
    /// Opens and validates; a first part `NAME-00001-of-0000N.gguf` opens the rest next to it.
    ///
    /// The file stays mapped while the `File` or a clone of one of its [`shards`](File::shards) lives. Metadata is
    /// copied before it is checked. As with every memory map, whoever changes the file meanwhile changes the tensor
    /// data under the reader, and whoever truncates it makes the process fail with SIGBUS. Replacing it by renaming,
    /// as [`Writer`] does, is harmless.
    ///
    /// # Errors
    /// [`Error::Io`] when a part cannot be opened, [`Error::Gguf`] with the [`Defect`] when it is not valid.
    pub fn open(path: &Path) -> Result<File> {
        let (map, header) = open_part(path)?;
        let (paths, shards) = (vec![path.to_owned()], vec![Arc::new(map)]);
        let mut file = File { paths, shards, header, names: Vec::new() };
        if let Some(split) = split::of(path, |key| file.value(key)).map_err(|d| refuse(path, d))? {
            for no in 1..split.count {
                let part = split.part(no);
                let (map, header) = open_part(&part)?;
                split::check_part(no, split.count, |key| header.value(key)).map_err(|d| refuse(&part, d))?;
                let shard = file.shards.len();
                let found = (file.tensors().len() + header.tensors.len()) as u64;
                if found > MAX_TENSORS {
                    let at = "number of tensors in all parts".to_owned();
                    return Err(refuse(&part, Defect::Limit { at, found, limit: MAX_TENSORS }));
                }
                file.header.tensors.extend(header.tensors.into_iter().map(|t| TensorInfo { shard, ..t }));
                file.shards.push(Arc::new(map));
                file.paths.push(part);
            }
            let found = file.tensors().len() as u64;
            if found != split.n_tensors {
                return Err(refuse(path, Defect::PartTensors { found, expected: split.n_tensors }));
            }
        }
        let names = parse::order(file.tensors(), |t| &t.name);
        let names = names.map_err(|tensor| refuse(path, Defect::DuplicateTensor { tensor }))?;
        Ok(File { names, ..file })
    }
    /// The path given to `open`.
    pub fn path(&self) -> &Path {
        &self.paths[0]
    }
    /// The paths of all parts, in the order of [`TensorInfo::shard`]; one for a file that is not split.
    pub fn paths(&self) -> &[PathBuf] {
        &self.paths
    }
    /// Format version, 2 or 3.
    pub fn version(&self) -> u32 {
        self.header.version
    }
    /// `general.alignment`, 32 when absent. Parts after the first may have another.
    pub fn alignment(&self) -> usize {
        self.header.alignment
    }
    /// Key-value pairs in file order (of the first part; the others only say which part they are).
    pub fn metadata(&self) -> &[(String, Value)] {
        &self.header.metadata
    }
    /// The raw value of a key.
    pub fn value(&self, key: &str) -> Option<&Value> {
        self.header.value(key)
    }
    /// Empties a long array that will not be read again, such as a vocabulary's tokens, to give back its
    /// memory.
    pub fn forget(&mut self, key: &str) {
        let Some(i) = self.header.find(key) else { return };
        let value = &mut self.header.metadata[i].1;
        if matches!(value, Value::Array(_)) {
            *value = Value::Array(Array::U8(Vec::new()));
        }
    }
    /// A value that must be there; errors name file, key, wanted and found.
    pub fn get<T: FromValue>(&self, key: &str) -> Result<T> {
        self.get_opt(key)?.ok_or_else(|| {
            refuse(self.path(), Defect::MissingKey { key: error::shown(key), wanted: T::WANTED })
        })
    }
    /// A value that may be absent, but not of another type.
    pub fn get_opt<T: FromValue>(&self, key: &str) -> Result<Option<T>> {
        let Some(value) = self.value(key) else { return Ok(None) };
        match T::from_value(value) {
            Some(v) => Ok(Some(v)),
            None => Err(refuse(
                self.path(),
                Defect::WrongType { key: error::shown(key), found: value.describe(), wanted: T::WANTED },
            )),
        }
    }
    /// Tensors in file order, all shards.
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.header.tensors
    }
    /// The tensor of this name.
    pub fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        let tensor = |i: u32| &self.header.tensors[i as usize];
        let at = self.names.binary_search_by(|&i| tensor(i).name.as_str().cmp(name)).ok()?;
        Some(tensor(self.names[at]))
    }
    /// The bytes of a tensor, in the mapping.
    ///
    /// # Panics
    /// When `t` is an entry of another file and does not fit this one.
    pub fn data(&self, t: &TensorInfo) -> Bytes<'_> {
        self.shards[t.shard].bytes().slice(t.offset..t.offset + t.n_bytes)
    }
    /// The values of a tensor of F32, F16 or BF16. Quantized types need ggml: see `dequantize_tensor` of
    /// crate `ggml`.
    ///
    /// # Errors
    /// Another type, or memory for the values cannot be had.
    pub fn floats(&self, t: &TensorInfo) -> Result<Vec<f32>> {
        let n = t.n_elements();
        let mut values = files::memory::filled(n, 0.0).map_err(|e| Error::OutOfMemory {
            bytes: e.bytes as usize,
            what: format!("the values of {} in {}", error::shown(&t.name), self.path().display()),
        })?;
        if !float::decode(t.dtype, self.data(t), &mut values) {
            return Err(self.error(&t.name, format!("expected f32, f16 or bf16, found {}", t.dtype)));
        }
        Ok(values)
    }
    /// The mapped files, for buffers that point into them.
    pub fn shards(&self) -> &[Arc<Map>] {
        &self.shards
    }
    /// An error about this file and key (or tensor): `FILE: KEY: WHAT`.
    pub fn error(&self, key: &str, what: impl Into<String>) -> Error {
        refuse(self.path(), Defect::Invalid { key: error::shown(key), what: what.into() })
    }
}

fn refuse(path: &Path, defect: Defect) -> Error {
    GgufError { path: path.to_owned(), defect }.into()
}

/// Maps and parses one file.
fn open_part(path: &Path) -> Result<(Map, Header)> {
    let map = Map::open(path)?;
    let header = parse(map.bytes()).map_err(|defect| refuse(path, defect))?;
    Ok((map, header))
}
