//! Writing GGUF files: the header is built in memory, tensor data streams through.
#![forbid(unsafe_code)]

use std::collections::HashSet;
use std::io::{self, Write};
use std::path::Path;

use super::error::{shown, Defect, GgufError};
use super::parse::{self, limit, At};
use super::{Array, File, Output, TensorInfo, Value, MAX_ARRAY_LEN, MAX_STRING_BYTES, MAX_TENSORS};
use super::{DEFAULT_ALIGNMENT, MAX_DEPTH, MAX_KEYS, MAX_KEY_BYTES, MAX_NAME_BYTES};
use crate::{kinds, DType, Error, Result};

/// Produces one tensor's bytes into the sink; exactly as many as its type and shape say.
pub type DataFn<'a> = Box<dyn FnMut(&mut dyn Write) -> io::Result<()> + 'a>;

/// Writes a GGUF v3 file: metadata in order, tensors in order, data streamed, the file replaced atomically.
pub struct Writer<'a> {
    metadata: Vec<(String, Value)>,
    tensors: Vec<Pending<'a>>,
    names: HashSet<String>,
    watch: Option<Watch<'a>>,
}

/// Takes the bytes of tensors that are written, and those that there are.
type Watch<'a> = Box<dyn Fn(u64, u64) -> io::Result<()> + 'a>;

struct Pending<'a> {
    name: String,
    dtype: DType,
    shape: Vec<u64>,
    n_bytes: u64,
    data: DataFn<'a>,
}

impl std::fmt::Debug for Writer<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Writer")
            .field("metadata", &self.metadata)
            .field("tensors", &self.tensors.iter().map(|t| &t.name).collect::<Vec<_>>())
            .finish()
    }
}

impl<'a> Writer<'a> {
    /// An empty file with alignment 32; setting `general.alignment` changes that.
    #[allow(clippy::new_without_default)]
    pub fn new() -> Self {
        Writer { metadata: Vec::new(), tensors: Vec::new(), names: HashSet::new(), watch: None }
    }
    /// A file with all metadata of `file`, in its order, but no tensors. Keys of a split (`split.*`) are left
    /// out: what is written is whole.
    pub fn with_metadata_of(file: &File) -> Self {
        let kept = file.metadata().iter().filter(|(key, _)| !key.starts_with("split."));
        Writer { metadata: kept.cloned().collect(), ..Writer::new() }
    }
    /// Appends a key, or replaces the value of one already there (keeping its place).
    pub fn set(&mut self, key: &str, value: impl Into<Value>) -> &mut Self {
        let value = value.into();
        match self.metadata.iter_mut().find(|(k, _)| k == key) {
            Some(pair) => pair.1 = value,
            None => self.metadata.push((key.to_owned(), value)),
        }
        self
    }
    /// Removes a key.
    pub fn remove(&mut self, key: &str) -> &mut Self {
        self.metadata.retain(|(k, _)| k != key);
        self
    }
    /// The keys and values set so far, in order.
    pub fn metadata(&self) -> &[(String, Value)] {
        &self.metadata
    }
    /// The number of tensors appended so far.
    pub fn n_tensors(&self) -> usize {
        self.tensors.len()
    }
    /// Calls `watch` after each write of tensor data, with the bytes written so far and the bytes in all. Its error ends
    /// the file.
    pub fn watch(&mut self, watch: impl Fn(u64, u64) -> io::Result<()> + 'a) -> &mut Self {
        self.watch = Some(Box::new(watch));
        self
    }
    /// Appends a tensor. `data` is called once, when the file is written.
    ///
    /// # Errors
    /// [`Error::Argument`] when the name is empty, too long or taken, or the shape does not suit the type.
    pub fn tensor(&mut self, name: &str, dtype: DType, shape: &[u64], data: DataFn<'a>) -> Result<&mut Self> {
        let refuse = |d: Defect| Error::Argument(d.to_string());
        let index = self.tensors.len();
        parse::name(name.as_bytes()).map_err(|found| refuse(Defect::TensorName { index, found }))?;
        limit(name.len() as u64, MAX_NAME_BYTES, &At::TensorName(index)).map_err(refuse)?;
        if !(1..=4).contains(&shape.len()) {
            return Err(refuse(Defect::Dimensions { tensor: shown(name), found: shape.len() as u32 }));
        }
        let n_bytes = parse::byte_size(name, dtype, shape).map_err(refuse)? as u64;
        if !self.names.insert(name.to_owned()) {
            return Err(refuse(Defect::DuplicateTensor { tensor: shown(name) }));
        }
        self.tensors.push(Pending { name: name.to_owned(), dtype, shape: shape.to_vec(), n_bytes, data });
        Ok(self)
    }
    /// Appends a tensor whose bytes are at hand.
    ///
    /// # Errors
    /// Returns the errors of [`Writer::tensor`]; a wrong number of bytes shows when the file is written.
    pub fn tensor_bytes(
        &mut self,
        name: &str,
        dtype: DType,
        shape: &[u64],
        bytes: impl AsRef<[u8]> + 'a,
    ) -> Result<&mut Self> {
        self.tensor(name, dtype, shape, Box::new(move |out| out.write_all(bytes.as_ref())))
    }
    /// Appends a tensor of another file, byte for byte.
    ///
    /// # Errors
    /// Returns the errors of [`Writer::tensor`], and an error if `t` is not an entry of `file`.
    pub fn copy_tensor(&mut self, file: &'a File, t: &TensorInfo) -> Result<&mut Self> {
        if file.tensor(&t.name) != Some(t) {
            return Err(file.error(&t.name, "is not a tensor of this file"));
        }
        let data = file.data(t);
        self.tensor(&t.name, t.dtype, &t.shape, Box::new(move |out| data.write_to(out)))
    }
    /// Streams everything to a temporary file next to `path`, syncs, renames. On any error `path` is as it was
    /// (but for a failing sync of its folder, which comes after the new file is in place).
    ///
    /// Only a GGUF file with keys of this program and of the same kind is replaced: a model, an adapter or an importance
    /// matrix (see [`kinds`]); for a forced [`Output`], any regular file. A symbolic link at `path` is replaced, not
    /// followed; permissions of a file there are kept.
    /// Returns the size of the file in bytes.
    ///
    /// # Errors
    /// [`Error::Io`] with `path`; [`Error::Gguf`] when a value cannot be written or a tensor's data is not as
    /// long as its type and shape say.
    pub fn write(self, path: impl Into<Output>) -> Result<u64> {
        let (scratch, bytes) = self.write_scratch(path)?;
        scratch.place()?;
        Ok(bytes)
    }

    /// Like [`Writer::write`], to a temporary file, which is returned with its size: for work on it before anything is in place.
    ///
    /// # Errors
    /// Returns the errors of [`Writer::write`], with `path`, next to which the temporary file is.
    pub fn write_scratch(self, path: impl Into<Output>) -> Result<(files::Scratch, u64)> {
        let output = path.into();
        let path = output.path();
        // Before a temporary file is made.
        let (alignment, header) = self.begin(path)?;
        let mut scratch = files::Scratch::beside(output.clone(), kinds::of(&self.metadata))?;
        let bytes = scratch.write(|out| self.stream(path, alignment, &header, out))?;
        Ok((scratch, bytes))
    }

    fn begin(&self, path: &Path) -> Result<(u64, Vec<u8>)> {
        let refuse = |defect| Error::from(GgufError { path: path.to_owned(), defect });
        let alignment = self.check().map_err(refuse)? as u64;
        Ok((alignment, self.header(alignment).map_err(refuse)?))
    }

    fn stream(mut self, path: &Path, alignment: u64, header: &[u8], out: &mut dyn Write) -> Result<u64> {
        let refuse = |defect| Error::from(GgufError { path: path.to_owned(), defect });
        let io = |source| Error::io(path, source);
        out.write_all(header).map_err(io)?;
        let mut total = header.len() as u64;
        let (mut before, in_all) = (0, self.tensors.iter().map(|t| t.n_bytes).sum::<u64>());
        let watch = self.watch.as_deref();
        for t in &mut self.tensors {
            let mut sink =
                Exactly { out: &mut *out, n_bytes: t.n_bytes, done: 0, over: 0, watch, before, in_all };
            let result = (t.data)(&mut sink);
            let found = sink.done + sink.over;
            if sink.over > 0 || (result.is_ok() && found != t.n_bytes) {
                let (tensor, expected) = (shown(&t.name), t.n_bytes);
                return Err(refuse(Defect::DataLength { tensor, found, expected }));
            }
            result.map_err(|e| io(io::Error::new(e.kind(), format!("tensor {}: {e}", shown(&t.name)))))?;
            total += t.n_bytes;
            before += t.n_bytes;
            let padding = total.next_multiple_of(alignment) - total;
            io::copy(&mut io::Read::take(io::repeat(0), padding), out).map_err(io)?;
            total += padding;
        }
        Ok(total)
    }

    /// Checks that the reader would accept what is to be written; returns the alignment.
    fn check(&self) -> Result<usize, Defect> {
        limit(self.metadata.len() as u64, MAX_KEYS, &At::KeyCount)?;
        limit(self.tensors.len() as u64, MAX_TENSORS, &At::TensorCount)?;
        let mut alignment = DEFAULT_ALIGNMENT;
        for (index, (key, value)) in self.metadata.iter().enumerate() {
            parse::name(key.as_bytes()).map_err(|found| Defect::KeyName { index, found })?;
            limit(key.len() as u64, MAX_KEY_BYTES, &At::KeyName(index))?;
            match value {
                Value::String(s) => string_fits(key, s)?,
                Value::Array(a) if a.depth() > MAX_DEPTH => {
                    return Err(Defect::Depth { key: shown(key), limit: MAX_DEPTH })
                }
                Value::Array(a) => array_fits(key, a)?,
                _ => {}
            }
            if key == "general.alignment" {
                alignment = parse::alignment(value)?;
            }
        }
        Ok(alignment)
    }

    /// Everything before the tensor data, padded.
    fn header(&self, alignment: u64) -> Result<Vec<u8>, Defect> {
        let mut out = b"GGUF".to_vec();
        put(&mut out, 3u32.to_le_bytes());
        put(&mut out, (self.tensors.len() as u64).to_le_bytes());
        put(&mut out, (self.metadata.len() as u64).to_le_bytes());
        for (key, value) in &self.metadata {
            put_string(&mut out, key.as_bytes());
            put(&mut out, value.type_number().to_le_bytes());
            put_value(&mut out, value);
        }
        let mut offset = 0u64;
        for t in &self.tensors {
            put_string(&mut out, t.name.as_bytes());
            put(&mut out, (t.shape.len() as u32).to_le_bytes());
            t.shape.iter().for_each(|d| put(&mut out, d.to_le_bytes()));
            put(&mut out, t.dtype.raw().to_le_bytes());
            put(&mut out, offset.to_le_bytes());
            offset = offset
                .checked_add(t.n_bytes)
                .and_then(|end| end.checked_next_multiple_of(alignment))
                .filter(|&end| end <= i64::MAX as u64)
                .ok_or_else(|| Defect::TooLarge { tensor: shown(&t.name), shape: t.shape.clone() })?;
        }
        out.resize(out.len().next_multiple_of(alignment as usize), 0);
        Ok(out)
    }
}

/// The bytes a key and its value take in a file: what can be hashed to tell two of them apart.
pub fn encoded(key: &str, value: &Value) -> Vec<u8> {
    let mut out = Vec::new();
    put_string(&mut out, key.as_bytes());
    put(&mut out, value.type_number().to_le_bytes());
    put_value(&mut out, value);
    out
}

fn string_fits(key: &str, s: &[u8]) -> Result<(), Defect> {
    limit(s.len() as u64, MAX_STRING_BYTES, &At::Key(key))
}

/// The caller has bounded the depth.
fn array_fits(key: &str, a: &Array) -> Result<(), Defect> {
    limit(a.len() as u64, MAX_ARRAY_LEN, &At::Key(key))?;
    match a {
        Array::String(v) => v.iter().try_for_each(|s| string_fits(key, s)),
        Array::Array(v) => v.iter().try_for_each(|inner| array_fits(key, inner)),
        _ => Ok(()),
    }
}

fn put<const N: usize>(out: &mut Vec<u8>, bytes: [u8; N]) {
    out.extend_from_slice(&bytes);
}

fn put_string(out: &mut Vec<u8>, s: &[u8]) {
    put(out, (s.len() as u64).to_le_bytes());
    out.extend_from_slice(s);
}

fn put_value(out: &mut Vec<u8>, value: &Value) {
    match value {
        Value::U8(v) => put(out, v.to_le_bytes()),
        Value::I8(v) => put(out, v.to_le_bytes()),
        Value::U16(v) => put(out, v.to_le_bytes()),
        Value::I16(v) => put(out, v.to_le_bytes()),
        Value::U32(v) => put(out, v.to_le_bytes()),
        Value::I32(v) => put(out, v.to_le_bytes()),
        Value::F32(v) => put(out, v.to_le_bytes()),
        Value::Bool(v) => put(out, [u8::from(*v)]),
        Value::String(v) => put_string(out, v),
        Value::Array(v) => put_array(out, v),
        Value::U64(v) => put(out, v.to_le_bytes()),
        Value::I64(v) => put(out, v.to_le_bytes()),
        Value::F64(v) => put(out, v.to_le_bytes()),
    }
}

fn put_array(out: &mut Vec<u8>, array: &Array) {
    put(out, array.element_type().to_le_bytes());
    put(out, (array.len() as u64).to_le_bytes());
    match array {
        Array::U8(v) => out.extend_from_slice(v),
        Array::I8(v) => v.iter().for_each(|x| put(out, x.to_le_bytes())),
        Array::U16(v) => v.iter().for_each(|x| put(out, x.to_le_bytes())),
        Array::I16(v) => v.iter().for_each(|x| put(out, x.to_le_bytes())),
        Array::U32(v) => v.iter().for_each(|x| put(out, x.to_le_bytes())),
        Array::I32(v) => v.iter().for_each(|x| put(out, x.to_le_bytes())),
        Array::F32(v) => v.iter().for_each(|x| put(out, x.to_le_bytes())),
        Array::Bool(v) => v.iter().for_each(|x| put(out, [u8::from(*x)])),
        Array::String(v) => v.iter().for_each(|x| put_string(out, x)),
        Array::U64(v) => v.iter().for_each(|x| put(out, x.to_le_bytes())),
        Array::I64(v) => v.iter().for_each(|x| put(out, x.to_le_bytes())),
        Array::F64(v) => v.iter().for_each(|x| put(out, x.to_le_bytes())),
        Array::Array(v) => v.iter().for_each(|x| put_array(out, x)),
    }
}

/// A sink that takes no more than the bytes a tensor has, and counts.
struct Exactly<'w> {
    out: &'w mut dyn Write,
    n_bytes: u64,
    done: u64,
    /// Bytes offered beyond the end.
    over: u64,
    watch: Option<&'w dyn Fn(u64, u64) -> io::Result<()>>,
    /// Bytes of the tensors before.
    before: u64,
    in_all: u64,
}

impl Write for Exactly<'_> {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        if buf.len() as u64 > self.n_bytes - self.done {
            self.over = self.over.saturating_add(buf.len() as u64);
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "more data than the tensor has"));
        }
        let n = self.out.write(buf)?;
        self.done += n as u64;
        self.watch.map_or(Ok(()), |watch| watch(self.before + self.done, self.in_all))?;
        Ok(n)
    }
    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}
