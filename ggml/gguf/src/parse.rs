//! Parsing of a GGUF file's header: a pure function of its bytes, and the only code that interprets them.
//!
//! Layout as in the GGUF specification and llama.cpp's `ggml/src/gguf.cpp`. More is accepted than there where
//! the specification allows it (nested arrays, gaps between tensors), less where it forbids it (bools other
//! than 0 and 1) or where nothing sensible could follow (empty tensors).
#![forbid(unsafe_code)]

use std::fmt;

use files::memory::room;
use files::Bytes;

use super::error::{shown, Defect};
use super::{Array, TensorInfo, Value};
use crate::DType;

/// Most metadata pairs of one file; real ones have under a hundred.
pub const MAX_KEYS: u64 = 1 << 16;
/// Most tensors of one file; the largest known (unmerged experts) has about 47,000.
pub const MAX_TENSORS: u64 = 1 << 20;
/// Longest key, from the specification.
pub const MAX_KEY_BYTES: u64 = u16::MAX as u64;
/// Longest tensor name: ggml stores 64 bytes with the terminator.
pub const MAX_NAME_BYTES: u64 = 63;
/// Longest string, as in `gguf.cpp`.
pub const MAX_STRING_BYTES: u64 = 1 << 30;
/// Longest array, as in `gguf.cpp`.
pub const MAX_ARRAY_LEN: u64 = 1 << 30;
/// Most memory of all metadata of one file. The largest vocabularies take under 100 MB.
pub const MAX_METADATA_BYTES: u64 = 512 << 20;
/// Deepest nesting of arrays.
pub const MAX_DEPTH: usize = 8;
/// Largest `general.alignment`.
pub const MAX_ALIGNMENT: usize = 1 << 20;
/// Alignment of a file without `general.alignment`.
pub const DEFAULT_ALIGNMENT: usize = 32;

/// Fewest bytes of a metadata pair: key length, one byte of key, type, one byte of value.
const MIN_PAIR: u64 = 8 + 1 + 4 + 1;
/// Fewest bytes of a tensor entry: name length, one byte of name, dimension count, one dimension, type,
/// offset.
const MIN_TENSOR: u64 = 8 + 1 + 4 + 8 + 4 + 8;

/// Everything before the tensor data, validated against the length of the file.
#[derive(Debug)]
pub struct Header {
    /// Format version, 2 or 3.
    pub version: u32,
    /// Alignment of tensor data, a power of two.
    pub alignment: usize,
    /// Pairs in file order; keys are unique.
    pub metadata: Vec<(String, Value)>,
    /// Tensors in file order (`shard` is 0); names are unique, data lies in the file and does not overlap.
    pub tensors: Vec<TensorInfo>,
    /// Indices of `metadata` in order of key.
    pub(super) keys: Vec<u32>,
}

/// Parses a whole GGUF file (tensor data included, of which only the extent is looked at).
///
/// # Errors
/// The first [`Defect`] found. Memory taken stays below a small multiple of `bytes.len()`, and of
/// [`MAX_METADATA_BYTES`], whatever they hold.
pub fn parse<'a>(bytes: impl Into<Bytes<'a>>) -> Result<Header, Defect> {
    let bytes = bytes.into();
    let mut c = Cursor { bytes, at: 0, left: MAX_METADATA_BYTES };
    let magic = c.array::<4>(&At::Header)?;
    if magic != *b"GGUF" {
        return Err(Defect::Magic { found: magic });
    }
    let version = c.u32(&At::Header)?;
    match version {
        2 | 3 => {}
        v if matches!(v.swap_bytes(), 1..=3) => return Err(Defect::BigEndian),
        found => return Err(Defect::Version { found }),
    }
    let n_tensors = c.u64(&At::Header)?;
    let n_keys = c.u64(&At::Header)?;
    limit(n_keys, MAX_KEYS, &At::KeyCount)?;
    limit(n_tensors, MAX_TENSORS, &At::TensorCount)?;
    c.follow(n_keys, MIN_PAIR, &At::KeyCount)?;
    c.follow(n_tensors, MIN_TENSOR, &At::TensorCount)?;

    let mut metadata = c.room(n_keys, &At::KeyCount)?;
    for index in 0..n_keys as usize {
        metadata.push(pair(&mut c, index)?);
    }
    let keys = order(&metadata, |(key, _)| key).map_err(|key| Defect::DuplicateKey { key })?;
    let mut header = Header { version, alignment: DEFAULT_ALIGNMENT, metadata, tensors: Vec::new(), keys };
    if let Some(value) = header.value("general.alignment") {
        header.alignment = alignment(value)?;
    }

    c.follow(n_tensors, MIN_TENSOR, &At::TensorCount)?;
    let mut tensors = c.room(n_tensors, &At::TensorCount)?;
    for index in 0..n_tensors as usize {
        tensors.push(tensor(&mut c, index, header.alignment)?);
    }
    order(&tensors, |t| &t.name).map_err(|tensor| Defect::DuplicateTensor { tensor })?;
    place(&mut tensors, c.at, header.alignment, bytes.len())?;
    Ok(Header { tensors, ..header })
}

impl Header {
    /// The index of the pair with this key.
    pub(super) fn find(&self, key: &str) -> Option<usize> {
        let at = self.keys.binary_search_by(|&i| self.metadata[i as usize].0.as_str().cmp(key)).ok()?;
        Some(self.keys[at] as usize)
    }
    pub(super) fn value(&self, key: &str) -> Option<&Value> {
        self.find(key).map(|i| &self.metadata[i].1)
    }
}

/// Indices of `items` sorted by name, for look-ups by binary search; the error is a name that two items have.
pub(super) fn order<T>(items: &[T], name: impl Fn(&T) -> &str) -> Result<Vec<u32>, String> {
    let mut indices: Vec<u32> = (0..items.len() as u32).collect();
    let name = |i: u32| name(&items[i as usize]);
    indices.sort_by(|&a, &b| name(a).cmp(name(b)));
    match indices.windows(2).find(|w| name(w[0]) == name(w[1])) {
        Some(twice) => Err(shown(name(twice[0]))),
        None => Ok(indices),
    }
}

/// Where in the file something was being read; made into text only when an error needs it.
pub(super) enum At<'a> {
    Header,
    KeyCount,
    TensorCount,
    KeyName(usize),
    Key(&'a str),
    TensorName(usize),
    Tensor(&'a str),
}

impl fmt::Display for At<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            At::Header => write!(f, "header"),
            At::KeyCount => write!(f, "number of keys"),
            At::TensorCount => write!(f, "number of tensors"),
            At::KeyName(i) => write!(f, "name of key {i}"),
            At::Key(key) => write!(f, "key {}", shown(key)),
            At::TensorName(i) => write!(f, "name of tensor {i}"),
            At::Tensor(name) => write!(f, "tensor {}", shown(name)),
        }
    }
}

pub(super) fn limit(found: u64, limit: u64, at: &At<'_>) -> Result<(), Defect> {
    if found > limit {
        return Err(Defect::Limit { at: at.to_string(), found, limit });
    }
    Ok(())
}

/// A position in the bytes, and what may still be kept of them. `at <= bytes.len()` always.
struct Cursor<'a> {
    bytes: Bytes<'a>,
    at: usize,
    left: u64,
}

impl<'a> Cursor<'a> {
    /// Checks that `n` things of at least `each` bytes can still follow.
    fn follow(&self, n: u64, each: u64, at: &At<'_>) -> Result<(), Defect> {
        let needed = u128::from(n) * u128::from(each);
        let left = (self.bytes.len() - self.at) as u64;
        if needed > u128::from(left) {
            return Err(Defect::Truncated { at: at.to_string(), offset: self.at as u64, needed, left });
        }
        Ok(())
    }
    /// Counts `n` values that are going to be kept.
    fn keep<T>(&mut self, n: u64, at: &At<'_>) -> Result<(), Defect> {
        let bytes = n.saturating_mul(size_of::<T>() as u64);
        let Some(left) = self.left.checked_sub(bytes) else {
            let found = (MAX_METADATA_BYTES - self.left).saturating_add(bytes);
            return Err(Defect::Metadata { at: at.to_string(), found, limit: MAX_METADATA_BYTES });
        };
        self.left = left;
        Ok(())
    }
    /// Memory for `n` values, none of which is there yet.
    fn room<T>(&mut self, n: u64, at: &At<'_>) -> Result<Vec<T>, Defect> {
        self.keep::<T>(n, at)?;
        room(n as usize).map_err(|e| Defect::Memory { at: at.to_string(), bytes: e.bytes })
    }
    /// The next `n * each` bytes.
    fn take(&mut self, n: u64, each: u64, at: &At<'_>) -> Result<Bytes<'a>, Defect> {
        self.follow(n, each, at)?;
        // No overflow: follow() compared the exact product with what is left, which is a usize.
        let taken = self.bytes.slice(self.at..self.at + (n * each) as usize);
        self.at += taken.len();
        Ok(taken)
    }
    fn array<const N: usize>(&mut self, at: &At<'_>) -> Result<[u8; N], Defect> {
        let mut out = [0; N];
        self.take(1, N as u64, at)?.copy_to(&mut out);
        Ok(out)
    }
    fn u32(&mut self, at: &At<'_>) -> Result<u32, Defect> {
        self.array(at).map(u32::from_le_bytes)
    }
    fn u64(&mut self, at: &At<'_>) -> Result<u64, Defect> {
        self.array(at).map(u64::from_le_bytes)
    }
    /// A copy of the next `n` bytes: text is checked there, where nobody else can change it.
    fn copied(&mut self, n: u64, at: &At<'_>) -> Result<Vec<u8>, Defect> {
        let raw = self.take(n, 1, at)?;
        let mut out = self.room(n, at)?;
        out.resize(raw.len(), 0);
        raw.copy_to(&mut out);
        Ok(out)
    }
    fn string(&mut self, most: u64, at: &At<'_>) -> Result<Vec<u8>, Defect> {
        let n = self.u64(at)?;
        limit(n, most, at)?;
        self.copied(n, at)
    }
    fn numbers<T, const N: usize>(
        &mut self,
        n: u64,
        from: impl Fn([u8; N]) -> Result<T, Defect>,
        at: &At<'_>,
    ) -> Result<Vec<T>, Defect> {
        let raw = self.take(n, N as u64, at)?;
        let mut out = self.room(n, at)?;
        let mut buffer = [0; 512];
        for chunk in raw.chunks(buffer.len()) {
            let buffer = &mut buffer[..chunk.len()];
            chunk.copy_to(buffer);
            for &value in buffer.as_chunks::<N>().0 {
                out.push(from(value)?);
            }
        }
        Ok(out)
    }
}

/// Checks that a name is not empty, is UTF-8 and has no NUL byte, as C strings need.
pub(super) fn name(raw: &[u8]) -> Result<&str, &'static str> {
    match std::str::from_utf8(raw) {
        Ok("") => Err("an empty name"),
        Ok(s) if s.contains('\0') => Err("a name with a NUL byte"),
        Ok(s) => Ok(s),
        Err(_) => Err("a name that is not UTF-8"),
    }
}

fn pair(c: &mut Cursor<'_>, index: usize) -> Result<(String, Value), Defect> {
    let raw = c.string(MAX_KEY_BYTES, &At::KeyName(index))?;
    let key = name(&raw).map_err(|found| Defect::KeyName { index, found })?;
    let at = At::Key(key);
    let value = match c.u32(&at)? {
        0 => Value::U8(u8::from_le_bytes(c.array(&at)?)),
        1 => Value::I8(i8::from_le_bytes(c.array(&at)?)),
        2 => Value::U16(u16::from_le_bytes(c.array(&at)?)),
        3 => Value::I16(i16::from_le_bytes(c.array(&at)?)),
        4 => Value::U32(u32::from_le_bytes(c.array(&at)?)),
        5 => Value::I32(i32::from_le_bytes(c.array(&at)?)),
        6 => Value::F32(f32::from_le_bytes(c.array(&at)?)),
        7 => Value::Bool(boolean(c.array::<1>(&at)?[0], key)?),
        8 => Value::String(c.string(MAX_STRING_BYTES, &at)?),
        9 => Value::Array(array(c, key, 1)?),
        10 => Value::U64(u64::from_le_bytes(c.array(&at)?)),
        11 => Value::I64(i64::from_le_bytes(c.array(&at)?)),
        12 => Value::F64(f64::from_le_bytes(c.array(&at)?)),
        found => return Err(Defect::ValueType { key: shown(key), found }),
    };
    Ok((key.to_owned(), value))
}

fn boolean(byte: u8, key: &str) -> Result<bool, Defect> {
    match byte {
        0 => Ok(false),
        1 => Ok(true),
        found => Err(Defect::Bool { key: shown(key), found }),
    }
}

fn array(c: &mut Cursor<'_>, key: &str, depth: usize) -> Result<Array, Defect> {
    if depth > MAX_DEPTH {
        return Err(Defect::Depth { key: shown(key), limit: MAX_DEPTH });
    }
    let at = At::Key(key);
    let kind = c.u32(&at)?;
    let n = c.u64(&at)?;
    limit(n, MAX_ARRAY_LEN, &at)?;
    Ok(match kind {
        0 => Array::U8(c.copied(n, &at)?),
        1 => Array::I8(c.numbers(n, |b| Ok(i8::from_le_bytes(b)), &at)?),
        2 => Array::U16(c.numbers(n, |b| Ok(u16::from_le_bytes(b)), &at)?),
        3 => Array::I16(c.numbers(n, |b| Ok(i16::from_le_bytes(b)), &at)?),
        4 => Array::U32(c.numbers(n, |b| Ok(u32::from_le_bytes(b)), &at)?),
        5 => Array::I32(c.numbers(n, |b| Ok(i32::from_le_bytes(b)), &at)?),
        6 => Array::F32(c.numbers(n, |b| Ok(f32::from_le_bytes(b)), &at)?),
        7 => Array::Bool(c.numbers(n, |[b]| boolean(b, key), &at)?),
        8 => {
            // A string takes at least its length's 8 bytes, so this allocates at most 3 times what is left.
            c.follow(n, 8, &at)?;
            let mut strings = c.room(n, &at)?;
            for _ in 0..n {
                strings.push(c.string(MAX_STRING_BYTES, &at)?);
            }
            Array::String(strings)
        }
        9 => {
            // An array takes at least 12 bytes. Grown, not reserved: nested counts would multiply.
            c.follow(n, 12, &at)?;
            let mut arrays = Vec::new();
            for _ in 0..n {
                c.keep::<Array>(1, &at)?;
                arrays.try_reserve(1).map_err(|_| {
                    let bytes = (2 * arrays.len() * size_of::<Array>()) as u64;
                    Defect::Memory { at: at.to_string(), bytes }
                })?;
                arrays.push(array(c, key, depth + 1)?);
            }
            Array::Array(arrays)
        }
        10 => Array::U64(c.numbers(n, |b| Ok(u64::from_le_bytes(b)), &at)?),
        11 => Array::I64(c.numbers(n, |b| Ok(i64::from_le_bytes(b)), &at)?),
        12 => Array::F64(c.numbers(n, |b| Ok(f64::from_le_bytes(b)), &at)?),
        found => return Err(Defect::ValueType { key: shown(key), found }),
    })
}

/// The alignment that a value of `general.alignment` gives: a u32 power of two within bounds.
pub(super) fn alignment(value: &Value) -> Result<usize, Defect> {
    match *value {
        Value::U32(v) if v.is_power_of_two() && v as usize <= MAX_ALIGNMENT => Ok(v as usize),
        _ => Err(Defect::Alignment { found: value.describe(), limit: MAX_ALIGNMENT }),
    }
}

/// One tensor entry; its `offset` is still relative to the data section.
fn tensor(c: &mut Cursor<'_>, index: usize, alignment: usize) -> Result<TensorInfo, Defect> {
    let raw = c.string(MAX_NAME_BYTES, &At::TensorName(index))?;
    let name = name(&raw).map_err(|found| Defect::TensorName { index, found })?;
    let at = At::Tensor(name);
    let n_dims = c.u32(&at)?;
    if !(1..=4).contains(&n_dims) {
        return Err(Defect::Dimensions { tensor: shown(name), found: n_dims });
    }
    let shape = c.numbers(n_dims.into(), |b| Ok(u64::from_le_bytes(b)), &at)?;
    let found = c.u32(&at)?;
    let dtype = DType::from_raw(found).ok_or_else(|| Defect::TensorType { tensor: shown(name), found })?;
    let n_bytes = byte_size(name, dtype, &shape)?;
    let offset = c.u64(&at)?;
    if offset % alignment as u64 != 0 {
        return Err(Defect::Misaligned { tensor: shown(name), found: offset, alignment });
    }
    let Ok(offset) = usize::try_from(offset) else {
        let end = u128::from(offset) + n_bytes as u128;
        return Err(Defect::OutOfFile { tensor: shown(name), end, size: c.bytes.len() as u64 });
    };
    Ok(TensorInfo { name: name.to_owned(), dtype, shape, shard: 0, offset, n_bytes })
}

/// Bytes of a tensor, every product checked; elements and bytes fit ggml's signed 64-bit numbers.
pub(super) fn byte_size(name: &str, dtype: DType, shape: &[u64]) -> Result<usize, Defect> {
    if shape.contains(&0) {
        return Err(Defect::ZeroDimension { tensor: shown(name), shape: shape.to_vec() });
    }
    let too_large = || Defect::TooLarge { tensor: shown(name), shape: shape.to_vec() };
    let row = usize::try_from(shape[0]).map_err(|_| too_large())?;
    if row % dtype.block_size() != 0 {
        return Err(Defect::PartialBlock {
            tensor: shown(name),
            dtype: dtype.name(),
            found: shape[0],
            block: dtype.block_size(),
        });
    }
    let fits = |n: usize| i64::try_from(n).is_ok().then_some(n);
    let row_bytes = dtype.row_bytes(row).ok_or_else(too_large)?;
    let rows = shape[1..].iter().try_fold(1usize, |n, &d| n.checked_mul(usize::try_from(d).ok()?));
    rows.and_then(|rows| {
        fits(rows.checked_mul(row)?)?;
        fits(rows.checked_mul(row_bytes)?)
    })
    .ok_or_else(too_large)
}

/// Makes offsets absolute and checks that every tensor's data is in the file and its own.
fn place(
    tensors: &mut [TensorInfo],
    end_of_header: usize,
    alignment: usize,
    size: usize,
) -> Result<(), Defect> {
    let start = end_of_header as u128;
    let start = start.next_multiple_of(alignment as u128);
    for t in tensors.iter_mut() {
        let end = start + t.offset as u128 + t.n_bytes as u128;
        if end > size as u128 {
            return Err(Defect::OutOfFile { tensor: shown(&t.name), end, size: size as u64 });
        }
        // Below size, which is a usize.
        t.offset += start as usize;
    }
    let mut by_offset: Vec<u32> = (0..tensors.len() as u32).collect();
    by_offset.sort_by_key(|&i| tensors[i as usize].offset);
    for pair in by_offset.windows(2) {
        let (a, b) = (&tensors[pair[0] as usize], &tensors[pair[1] as usize]);
        if a.offset + a.n_bytes > b.offset {
            return Err(Defect::Overlap { tensor: shown(&b.name), other: shown(&a.name) });
        }
    }
    Ok(())
}
