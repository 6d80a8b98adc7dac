//! safetensors files, and the tensors of a folder: those of one file, or of several that an index lists.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use files::memory::filled;
use files::{Bytes, Map};
use gguf::{float, DType};
use serde_json::Value;

use crate::error::shown;
use crate::json::{kind, Object, SMALL};
use crate::{Error, Result};

/// Files of one model; the largest known have fewer than 200.
const MAX_PARTS: usize = 1024;
/// Largest dimension: whole rows are read. The largest known are vocabularies, of fewer than 2^20 tokens.
const MAX_DIM: u64 = 1 << 24;
/// Bytes of a header, a few hundred for each tensor.
const MAX_HEADER: u64 = 32 << 20;
pub(crate) const INDEX: &str = "model.safetensors.index.json";

/// A tensor as it is stored. Exists only checked: the data lies in its file, and sizes agree.
#[derive(Debug, Clone)]
pub struct Stored {
    /// Name of the tensor; unique in its file.
    pub name: String,
    /// F32, F16 or BF16; I8 for the bytes (`U8`) that packed weights consist of.
    pub dtype: DType,
    /// Shape as in the file, outermost dimension first: 1 to 4 dimensions of at least 1.
    pub shape: Vec<u64>,
    part: usize,
    start: usize,
    end: usize,
}

impl Stored {
    /// Values in one row of the last dimension; of a vector, 1.
    pub(crate) fn width(&self) -> usize {
        match self.shape.len() {
            0 | 1 => 1,
            n => self.shape[n - 1] as usize,
        }
    }
    /// Rows of [`Stored::width`].
    pub(crate) fn n_rows(&self) -> usize {
        let n: usize = self.shape.iter().map(|&n| n as usize).product();
        n / self.width().max(1)
    }
}

/// One file, mapped, whose header was checked.
#[derive(Debug)]
pub struct Safetensors {
    path: PathBuf,
    map: Map,
    tensors: Vec<Stored>,
    notes: Object,
}

impl Safetensors {
    /// Maps a file and checks its header.
    ///
    /// # Errors
    /// A file that cannot be read; a header that is none, or that says of a tensor what cannot be: one line with file
    /// and tensor.
    pub fn open(path: &Path) -> Result<Safetensors> {
        Ok(Safetensors::read(path, 0, |_| true)?.0)
    }
    /// The file as part `part` of a folder, without the tensors that are not kept; and the names of all.
    fn read(path: &Path, part: usize, keep: fn(&str) -> bool) -> Result<(Safetensors, Vec<String>)> {
        let map = Map::open(path)?;
        let (tensors, names, notes) = header(path, map.bytes(), part, keep)?;
        Ok((Safetensors { path: path.to_owned(), map, tensors, notes }, names))
    }
    /// Path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }
    /// Tensors of the file, sorted by name.
    pub fn tensors(&self) -> &[Stored] {
        &self.tensors
    }
    /// An entry of `__metadata__`.
    pub fn note(&self, key: &str) -> Option<&str> {
        self.notes.get(key).and_then(Value::as_str)
    }
    /// The values of one of its tensors, all of them finite.
    ///
    /// # Errors
    /// A value that is infinite or no number, with its place; memory for the values cannot be had. Whoever knows which
    /// shape is needed compares it before.
    pub fn values(&self, t: &Stored) -> Result<Vec<f32>> {
        let values = filled(t.n_rows().saturating_mul(t.width()), 0f32);
        let mut values = values.map_err(|e| Error::at(&self.path, &t.name, e))?;
        if !float::decode(t.dtype, self.map.bytes().slice(t.start..t.end), &mut values) {
            return Err(Error::at(&self.path, &t.name, no_float("U8")));
        }
        match values.iter().position(|x| !x.is_finite()) {
            Some(i) => {
                let what = format!("expected finite values, found {} at {i}", values[i]);
                Err(Error::at(&self.path, &t.name, what))
            }
            None => Ok(values),
        }
    }
}

/// All tensors of a folder, those of each file sorted by name, as llama.cpp's converter goes through them.
#[derive(Debug)]
pub(crate) struct Tensors {
    files: Vec<Safetensors>,
    pub(crate) all: Vec<Stored>,
}

impl Tensors {
    /// Finds and checks the files of a folder.
    pub(crate) fn open(folder: &Path) -> Result<Tensors> {
        let index = folder.join(INDEX);
        let listed = listed(folder)?;
        let names = parts(folder, listed.as_ref(), &entries(folder)?)?;
        let mut out = Tensors { files: Vec::new(), all: Vec::new() };
        let mut found = BTreeMap::new();
        for name in &names {
            let path = folder.join(name);
            let (file, names) = Safetensors::read(&path, out.files.len(), |name| !is_left_out(name))?;
            for tensor in names {
                if let Some(other) = found.insert(tensor.clone(), name) {
                    let what = format!("found in {} and in {}, expected once", shown(other), shown(name));
                    return Err(Error::at(&path, &tensor, what));
                }
            }
            out.all.extend_from_slice(&file.tensors);
            out.files.push(file);
        }
        if let Some(listed) = &listed {
            if let Some((tensor, file)) =
                listed.iter().find(|(tensor, file)| found.get(*tensor) != Some(file))
            {
                return Err(Error::at(&index, tensor, format!("listed for {}, which lacks it", shown(file))));
            }
            if let Some(tensor) = found.keys().find(|tensor| !listed.contains_key(*tensor)) {
                return Err(Error::at(&index, tensor, "found in a file, but not listed"));
            }
        }
        Ok(out)
    }
    /// The files.
    pub(crate) fn paths(&self) -> impl Iterator<Item = &Path> {
        self.files.iter().map(Safetensors::path)
    }
    /// The bytes of a tensor.
    pub(crate) fn data(&self, t: &Stored) -> Bytes<'_> {
        self.files[t.part].map.bytes().slice(t.start..t.end)
    }
    /// Returns true if two tensors are the same, byte for byte.
    pub(crate) fn same(&self, a: &Stored, b: &Stored) -> bool {
        a.dtype == b.dtype && a.shape == b.shape && self.data(a) == self.data(b)
    }
    /// The tensor of this name.
    pub(crate) fn find(&self, name: &str) -> Option<&Stored> {
        self.all.iter().find(|t| t.name == name)
    }
    /// The file a tensor is in.
    pub(crate) fn path(&self, t: &Stored) -> &Path {
        self.files[t.part].path()
    }
}

/// Which tensor is in which file, from an index. Files are named, not reached by a path.
fn weight_map(index: &Object) -> Result<BTreeMap<String, String>> {
    let map = index
        .object("weight_map")?
        .ok_or_else(|| index.error("weight_map", "found none, expected an object"))?;
    let mut out = BTreeMap::new();
    let mut parts = BTreeSet::new();
    for (tensor, file) in map {
        let name = file.as_str().filter(|f| is_plain_name(f));
        let name = name.ok_or_else(|| {
            let what =
                format!("found {}, expected the name of a .safetensors file in this folder", kind(file));
            index.error(tensor, what)
        })?;
        parts.insert(name);
        out.insert(tensor.clone(), name.to_owned());
    }
    if parts.is_empty() || parts.len() > MAX_PARTS {
        let what = format!("found {} files, expected 1 to {MAX_PARTS}", parts.len());
        return Err(index.error("weight_map", what));
    }
    Ok(out)
}

fn is_plain_name(name: &str) -> bool {
    name.ends_with(".safetensors") && !name.starts_with('.') && !name.contains(['/', '\\', ':', '\0'])
}

/// Which tensor is in which file, where there is an index.
pub(crate) fn listed(folder: &Path) -> Result<Option<BTreeMap<String, String>>> {
    Object::read(&folder.join(INDEX), SMALL)?.map(|o| weight_map(&o)).transpose()
}

/// The files of the weights among those that there are, sorted: listed by an index, or called as weights are.
pub(crate) fn parts(
    folder: &Path,
    listed: Option<&BTreeMap<String, String>>,
    there: &BTreeSet<String>,
) -> Result<Vec<String>> {
    if let Some(listed) = listed {
        let names: BTreeSet<String> = listed.values().cloned().collect();
        return match names.difference(there).next() {
            None => Ok(names.into_iter().collect()),
            Some(name) => {
                Err(Error::of(&folder.join(INDEX), format!("lists {}, which is missing", shown(name))))
            }
        };
    }
    let called = there.iter().filter(|name| name.starts_with("model") && is_plain_name(name));
    let names: Vec<String> = called.cloned().collect();
    match names.len() {
        0 => Err(Error::of(folder, "found no model.safetensors, expected the weights in this format")),
        n if n > MAX_PARTS => {
            Err(Error::of(folder, format!("found {n} files of weights, expected at most {MAX_PARTS}")))
        }
        n => match names.iter().filter_map(|name| n_parts(name)).find(|&all| all != n) {
            Some(all) => Err(Error::of(folder, format!("found {n} files of weights, expected {all}"))),
            None => Ok(names),
        },
    }
}

/// The number of files of weights that the name of one of them has: 3 for `model-00001-of-00003.safetensors`.
fn n_parts(name: &str) -> Option<usize> {
    let (_, all) = name.strip_suffix(".safetensors")?.rsplit_once("-of-")?;
    all.parse().ok()
}

fn entries(folder: &Path) -> Result<BTreeSet<String>> {
    let io = |e| Error::from(files::Error::new(folder, e));
    let names = std::fs::read_dir(folder).map_err(io)?.map(|entry| Ok(entry.map_err(io)?.file_name()));
    let names: Result<Vec<std::ffi::OsString>> = names.collect();
    // Others are not called as weights are.
    Ok(names?.into_iter().filter_map(|name| name.into_string().ok()).collect())
}

/// Tensors that are no weights of the text model: masks and angles that old files keep, and images' and
/// sounds' (`TextModel.filter_tensors` of llama.cpp's `conversion/base.py`).
fn is_left_out(name: &str) -> bool {
    let ends = [".attention.masked_bias", ".attention.bias", ".rotary_emb.inv_freq"];
    let starts = ["mlp", "vit.", "vpm.", "siglip2.", "conformer.", "merger.", "resampler."];
    let parts =
        ["visual.", "vision.", "audio.", "vision_", "audio_", "projector.", "image_newline", "patch_embed"];
    ends.iter().any(|e| name.ends_with(e))
        || starts.iter().any(|s| name.starts_with(s))
        || parts.iter().any(|p| name.contains(p))
}

/// Says of a tensor that its type is none of floats.
pub(crate) fn no_float(found: &str) -> String {
    format!("found type {}, expected F32, F16 or BF16", shown(found))
}

const NOTES: &str = "__metadata__";

/// Parses and checks the header of a file: eight bytes with its length, then JSON, then the data. Returns the tensors that
/// are kept, the names of all, and `__metadata__`.
fn header(
    path: &Path,
    file: Bytes<'_>,
    part: usize,
    keep: fn(&str) -> bool,
) -> Result<(Vec<Stored>, Vec<String>, Object)> {
    let short = || Error::of(path, format!("found {} bytes, expected a safetensors header", file.len()));
    let length = file.array(0).map(u64::from_le_bytes).ok_or_else(short)?;
    let rest = file.len() as u64 - 8;
    if length > MAX_HEADER || length > rest {
        let most = MAX_HEADER.min(rest);
        return Err(Error::of(path, format!("found a header of {length} bytes, expected at most {most}")));
    }
    // Copied before it is checked: the file may change.
    let json = file.slice(8..8 + length as usize).to_vec();
    let object = Object::parse(path, &json.map_err(|e| Error::at(path, "header", e))?)?;
    let n_data = (rest - length) as usize;
    let notes = object.inside(object.object(NOTES)?.cloned().unwrap_or_default());
    let names = object.map.keys().filter(|name| *name != NOTES);
    let mut tensors = Vec::with_capacity(object.map.len());
    for name in names.clone().filter(|name| keep(name)) {
        let entry = &object.map[name];
        let entry = entry.as_object().ok_or_else(|| object.error(name, "expected an object"))?;
        let entry = object.inside(entry.clone());
        tensors.push(stored(&object, name, &entry, n_data, part, 8 + length as usize)?);
    }
    let mut ends: Vec<&Stored> = tensors.iter().collect();
    ends.sort_by_key(|t| t.start);
    if let Some(w) = ends.windows(2).find(|w| w[1].start < w[0].end) {
        return Err(object.error(&w[1].name, format!("data overlaps that of {}", shown(&w[0].name))));
    }
    tensors.sort_by(|a, b| a.name.cmp(&b.name));
    let names = names.cloned().collect();
    Ok((tensors, names, notes))
}

fn stored(
    file: &Object,
    name: &str,
    entry: &Object,
    n_data: usize,
    part: usize,
    base: usize,
) -> Result<Stored> {
    let wrong = |what: String| file.error(name, what);
    let dtype = entry.string("dtype")?.unwrap_or("none");
    let dtype = match dtype {
        "F32" => DType::F32,
        "F16" => DType::F16,
        "BF16" => DType::BF16,
        "U8" => DType::I8,
        other => return Err(wrong(no_float(other))),
    };
    let numbers = |key: &str| -> Result<Vec<u64>> {
        let array = entry.get(key).and_then(Value::as_array).filter(|a| a.len() <= 8);
        let found = array.and_then(|a| a.iter().map(Value::as_u64).collect::<Option<Vec<u64>>>());
        found.ok_or_else(|| wrong(format!("{key}: expected an array of whole numbers")))
    };
    let (shape, offsets) = (numbers("shape")?, numbers("data_offsets")?);
    if !(1..=4).contains(&shape.len()) || shape.contains(&0) {
        return Err(wrong(format!("found shape {shape:?}, expected 1 to 4 dimensions of at least 1")));
    }
    let n = shape.iter().try_fold(dtype.block_bytes() as u64, |n, &d| n.checked_mul(d));
    let [start, end] = offsets[..] else {
        return Err(wrong(format!("found {} data offsets, expected 2", offsets.len())));
    };
    if end > n_data as u64 || start > end {
        return Err(wrong(format!(
            "found data from {start} to {end}, expected at most the file's {n_data} bytes"
        )));
    }
    if n != Some(end - start) {
        let what = format!("found {} bytes of data, expected those of {dtype} {shape:?}", end - start);
        return Err(wrong(what));
    }
    if let Some(n) = shape.iter().find(|&&n| n > MAX_DIM) {
        return Err(wrong(format!(
            "found a dimension of {n} in shape {shape:?}, expected at most {MAX_DIM}"
        )));
    }
    let (start, end) = (base + start as usize, base + end as usize);
    Ok(Stored { name: name.to_owned(), dtype, shape, part, start, end })
}
