//! Checkpoints of training: the trained values, the state of the optimizer, and the settings of a run in one
//! safetensors file. A stopped run resumes from it with bit-identical results.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::convert::Infallible;
use std::path::{Path, PathBuf};

use files::{Bytes, Kind, Lock, Map};
use ropewalk_core::terminal::one_line;
use ropewalk_core::text::hex;
use safetensors::tensor::{Dtype, Metadata, TensorInfo};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest, Sha256};

use super::optim::{Moments, Optimizer};
use super::params::ParamSet;
use super::saved::Checkpointing;
use crate::model::{Error, Result};

/// Version of the file's layout, in the metadata under `format`.
const VERSION: u32 = 1;

/// Name of the optimizer's settings in checkpoints.
pub(super) const OPTIMIZER: &str = "optimiser";

/// The kind of file that a checkpoint is: safetensors with this metadata.
const CHECKPOINT: Kind = Kind::new("a checkpoint of training", |head| {
    let start = head.get(8..).and_then(|rest| rest.strip_prefix(b"{\"__metadata__\":{\""));
    let names = |start: &[u8]| {
        ["format", "program", "sha256", "state"].iter().any(|key| start.starts_with(key.as_bytes()))
    };
    // Its metadata is in no order; the state is the longest of it.
    let has = |rest: &[u8], key: &[u8]| rest.windows(key.len()).any(|bytes| bytes == key);
    start.is_some_and(|rest| names(rest) && (has(rest, b"sha256\":\"") || has(rest, b"state\":\"")))
});

/// The part of a checkpoint that is not tensors. A run resumes only under the same `settings`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct State {
    /// Optimizer steps taken.
    pub step: u64,
    /// Sequences trained on.
    pub n_seen: u64,
    /// Settings of the run, by name.
    pub settings: BTreeMap<String, String>,
}

/// The bytes of numbers in a file, borrowed where memory holds them so.
fn bytes(values: &[f32]) -> Cow<'_, [u8]> {
    if cfg!(target_endian = "little") {
        return Cow::Borrowed(bytemuck::cast_slice(values));
    }
    Cow::Owned(values.iter().flat_map(|x| x.to_le_bytes()).collect())
}

/// Writes a checkpoint, replacing the file at `path` atomically. The numbers are written from where they lie,
/// not copied.
///
/// # Errors
/// An error with the path when it cannot be written; the file that was there before is still there.
pub fn save(path: &Path, state: &State, params: &ParamSet, optimizer: &Optimizer) -> Result<()> {
    let failed = |e: &dyn std::fmt::Display| Error::Invalid(format!("{}: {e}", path.display()));
    let values = params.list().iter().map(|t| t.value.as_slice()).collect();
    let (m, v) = optimizer.moments.iter().map(|Moments { m, v }| (m.as_slice(), v.as_slice())).unzip();
    let average = optimizer.average.iter().flatten().map(Vec::as_slice).collect();
    let mut rows: Vec<(String, &[f32])> = named(&names(params), [values, m, v, average]);
    rows.sort_by(|a, b| a.0.cmp(&b.0));
    let json = serde_json::to_string(state).map_err(|e| failed(&e))?;
    let mut sha256 = Sum::of(&json);
    rows.iter().for_each(|(name, row)| sha256.tensor(name, Bytes::from(&*bytes(row))));
    let meta = [
        ("format", VERSION.to_string()),
        ("program", env!("CARGO_PKG_VERSION").to_string()),
        ("sha256", sha256.hex()),
        ("state", json),
    ];
    let meta = meta.into_iter().map(|(k, v)| (k.to_string(), v)).collect();
    let folder = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    std::fs::create_dir_all(folder).map_err(|e| failed(&e))?;
    let header = header(&rows, meta).map_err(|e| failed(&e))?;
    files::replace(path, &CHECKPOINT, |out| {
        let io = |e| Error::io(path, e);
        out.write_all(&(header.len() as u64).to_le_bytes()).map_err(io)?;
        out.write_all(&header).map_err(io)?;
        rows.iter().try_for_each(|(_, values)| out.write_all(&bytes(values))).map_err(io)
    })
}

/// The head of a safetensors file of these tensors, which follow it in this order: names and places in JSON,
/// filled up to a multiple of 8 bytes.
fn header(
    rows: &[(String, &[f32])],
    meta: HashMap<String, String>,
) -> Result<Vec<u8>, Box<dyn std::error::Error>> {
    let mut end = 0;
    let tensors = rows.iter().map(|(name, values)| {
        let start = end;
        end += size_of_val(*values);
        let info = TensorInfo { dtype: Dtype::F32, shape: vec![values.len()], data_offsets: (start, end) };
        (name.clone(), info)
    });
    let mut json = serde_json::to_vec(&Metadata::new(Some(meta), tensors.collect())?)?;
    json.resize(json.len().next_multiple_of(8), b' ');
    Ok(json)
}

/// SHA-256 over the state and, for each tensor in order, its name, its length in bytes and its bytes; in
/// hexadecimal.
struct Sum(Sha256);

impl Sum {
    fn of(state: &str) -> Sum {
        Sum(Sha256::new().chain_update(state))
    }
    fn tensor(&mut self, name: &str, bytes: Bytes<'_>) {
        self.0.update(name);
        self.0.update((bytes.len() as u64).to_le_bytes());
        let Ok(()) = bytes.each(|part| {
            self.0.update(part);
            Ok::<_, Infallible>(())
        });
    }
    fn hex(self) -> String {
        hex(&self.0.finalize())
    }
}

/// Most bytes of a header, some hundred for each trained tensor.
const MAX_HEADER: u64 = 32 << 20;

/// The header of a safetensors file and its data. The header is copied before it is read, and holds for this file.
fn parts(map: &Map) -> Result<(Metadata, Bytes<'_>), String> {
    let all = map.bytes();
    let n = all.array(0).map(u64::from_le_bytes).ok_or("found no header")?;
    let left = all.len() as u64 - 8;
    if n > left.min(MAX_HEADER) {
        return Err(format!("found a header of {n} bytes, expected at most {}", left.min(MAX_HEADER)));
    }
    let start = 8 + n as usize;
    let header = all.slice(8..start).to_vec().map_err(|e| format!("header: {e}"))?;
    let header: Metadata = serde_json::from_slice(&header).map_err(one_line)?;
    let data = all.slice(start..all.len());
    if header.data_len() != data.len() {
        return Err(format!("found {} bytes of tensors, expected {}", data.len(), header.data_len()));
    }
    Ok((header, data))
}

fn names(params: &ParamSet) -> Vec<String> {
    params.list().iter().map(|t| t.id.to_string()).collect()
}

/// The vectors of a checkpoint by the name of their tensor in the file: values, both moments, and averages where they are
/// kept, each in the order of what is trained.
fn named<V>(names: &[String], vectors: [Vec<V>; 4]) -> Vec<(String, V)> {
    let of_kind = |(kind, vectors): (&'static str, Vec<V>)| {
        names.iter().zip(vectors).map(move |(name, vector)| (format!("{kind}.{name}"), vector))
    };
    ["value", "m", "v", "average"].into_iter().zip(vectors).flat_map(of_kind).collect()
}

#[derive(Debug)]
pub(super) struct Folder {
    path: PathBuf,
    made: bool,
    lock: Option<Lock>,
}

impl Folder {
    /// Makes it if there is none.
    pub(super) fn open(path: &Path) -> Result<Folder> {
        let made = !path.exists();
        std::fs::create_dir_all(path).map_err(|e| Error::io(path, e))?;
        files::remove_orphans(path);
        Ok(Folder { path: path.to_owned(), made, lock: Some(Lock::folder(path)?) })
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        self.lock = None;
        if self.made {
            // Only an empty one can be removed.
            let _ = std::fs::remove_dir(&self.path);
        }
    }
}

/// Reads a checkpoint into `params` and `optimizer`, which must have been set up as those were that it was
/// saved from.
///
/// # Errors
/// [`Error::Invalid`] with the path: a file that is damaged, of another version, of other `settings` or of
/// other tensors. Nothing has changed then.
pub fn load(
    path: &Path,
    settings: &BTreeMap<String, String>,
    params: &mut ParamSet,
    optimizer: &mut Optimizer,
) -> Result<State> {
    try_load(path, settings, params, optimizer)?
        .map_err(|what| Error::Invalid(format!("{}: {what}", path.display())))
}

/// Reads the newest checkpoint of a folder that is whole, and gives damaged ones after it another name. Also
/// returns sentences on those.
pub(super) fn load_newest(
    folder: &Path,
    settings: &BTreeMap<String, String>,
    params: &mut ParamSet,
    optimizer: &mut Optimizer,
) -> Result<(State, Vec<String>)> {
    let mut damaged: Vec<(PathBuf, String)> = Vec::new();
    // A run that is to end earlier than the newest ends at the one before.
    let (mut all, last) = (list(folder), path(folder, optimizer.params.schedule.steps));
    if all.iter().any(|path| *path <= last) {
        all.retain(|path| *path <= last);
    }
    for path in all.into_iter().rev() {
        match try_load(&path, settings, params, optimizer)? {
            Ok(state) => {
                let moved = damaged.iter().map(|(path, why)| {
                    let (aside, step) = (set_aside(path)?, state.step);
                    let (path, aside) = (path.display(), aside.display());
                    Ok(format!(
                        "{path}: {why}; resuming from step {step}, and the damaged file is now {aside}"
                    ))
                });
                let notes = moved.collect::<Result<_>>()?;
                return Ok((state, notes));
            }
            Err(why) => damaged.push((path, why)),
        }
    }
    Err(Error::Invalid(match damaged.first() {
        Some((path, why)) => format!("{}: {why}; no earlier checkpoint is intact", path.display()),
        None => format!("{}: no checkpoint found", folder.display()),
    }))
}

/// The first setting of a run that is not that of its checkpoint: its name, then, and now.
fn difference(state: &State, settings: &BTreeMap<String, String>) -> Option<(String, String, String)> {
    let keys: BTreeSet<&String> = state.settings.keys().chain(settings.keys()).collect();
    let differ = |key: &&String| state.settings.get(*key) != settings.get(*key);
    let text = |value: Option<&String>| value.map_or("nothing", String::as_str).to_owned();
    // Other settings follow from the context.
    let (first, others): (Vec<_>, Vec<_>) = keys.into_iter().filter(differ).partition(|key| *key == "ctx");
    first.into_iter().chain(others).find_map(|key| {
        let (then, now) = (text(state.settings.get(key)), text(settings.get(key)));
        match key.as_str() {
            "keep" => Some(("checkpointing".into(), then.to_lowercase(), now.to_lowercase())),
            "keep-type" => Some(("saved-type".into(), then.to_lowercase(), now.to_lowercase())),
            "block" => Some(("ubatch".into(), then, now)),
            OPTIMIZER => {
                let read = |text: &str| serde_json::from_str::<Value>(text).ok();
                let (Some(then), Some(now)) = (read(&then), read(&now)) else {
                    return Some((key.clone(), then, now));
                };
                // A run that goes no further than the checkpoint does not use them.
                if now["schedule"]["steps"].as_u64().is_some_and(|n| n <= state.step) {
                    return None;
                }
                leaf(&then, &now)
            }
            _ => Some((key.clone(), then, now)),
        }
    })
}

/// The first value in which two objects differ: its own name, and both.
fn leaf(a: &Value, b: &Value) -> Option<(String, String, String)> {
    let (Value::Object(of_a), Value::Object(of_b)) = (a, b) else { return None };
    let keys: BTreeSet<&String> = of_a.keys().chain(of_b.keys()).collect();
    keys.into_iter().find_map(|key| {
        let (a, b) = (&a[key.as_str()], &b[key.as_str()]);
        let both = || Some((key.clone(), a.to_string(), b.to_string()));
        if a == b {
            None
        } else {
            leaf(a, b).or_else(both)
        }
    })
}

/// Which activations the newest checkpoint of a folder says that its run saves, where results depend on it.
pub(crate) fn checkpointing(folder: &Path) -> Option<Checkpointing> {
    let map = Map::open(&list(folder).pop()?).ok()?;
    let (header, _) = parts(&map).ok()?;
    let state: State = serde_json::from_str(header.metadata().as_ref()?.get("state")?).ok()?;
    let kept = state.settings.get("keep")?;
    let all = [Checkpointing::Inputs, Checkpointing::Attention, Checkpointing::Products];
    all.into_iter().find(|one| format!("{one:?}") == *kept)
}

/// [`load`]. The inner error says why a file is not as it was written: an older one may be whole.
fn try_load(
    path: &Path,
    settings: &BTreeMap<String, String>,
    params: &mut ParamSet,
    optimizer: &mut Optimizer,
) -> Result<Result<State, String>> {
    let failed = |what: String| Error::Invalid(format!("{}: {what}", path.display()));
    let map = Map::open(path)?;
    let (header, data) = match parts(&map) {
        Ok(parts) => parts,
        Err(e) => return Ok(Err(format!("not a checkpoint: {e}"))),
    };
    let meta = header.metadata().clone().unwrap_or_default();
    let version = meta.get("format").map_or("none", String::as_str);
    if version != VERSION.to_string() {
        return Err(failed(format!("format: expected {VERSION}, found {version}")));
    }
    let json = meta.get("state").ok_or_else(|| failed("state: expected a description, found none".into()))?;
    let tensors: BTreeMap<String, &TensorInfo> = header.tensors().into_iter().collect();
    // The header was checked against the length of the data.
    let of = |t: &TensorInfo| data.slice(t.data_offsets.0..t.data_offsets.1);
    let mut sum = Sum::of(json);
    tensors.iter().for_each(|(name, t)| sum.tensor(name, of(t)));
    if meta.get("sha256") != Some(&sum.hex()) {
        return Ok(Err("sha256: the file is damaged".into()));
    }
    let state: State = serde_json::from_str(json).map_err(|e| failed(format!("state: {}", one_line(e))))?;
    if let Some((key, then, now)) = difference(&state, settings) {
        return Err(failed(format!("{key}: the run was started with {then}, this is {now}")));
    }
    let expected = params.list().len() * if optimizer.average.is_some() { 4 } else { 3 };
    if tensors.len() > expected {
        return Err(failed(format!(
            "tensors: expected {expected}, found {}: more was trained",
            tensors.len()
        )));
    }
    // Looked at whole before anything changes.
    let names = names(params);
    let values: Vec<&mut Vec<f32>> = params.list_mut().iter_mut().map(|t| &mut t.value).collect();
    let (m, v) = optimizer.moments.iter_mut().map(|Moments { m, v }| (m, v)).unzip();
    let average = optimizer.average.iter_mut().flatten().collect();
    let mut pairs = Vec::new();
    for (key, values) in named(&names, [values, m, v, average]) {
        let t = tensors.get(&key).ok_or_else(|| failed(format!("{key}: expected a tensor, found none")))?;
        if t.dtype != Dtype::F32 || of(t).len() != values.len() * 4 {
            return Err(failed(format!("{key}: expected {} numbers, found {:?}", values.len(), t.shape)));
        }
        pairs.push((of(t), values));
    }
    for (bytes, values) in pairs {
        // As many bytes as these values take, so it always can.
        gguf::float::decode(gguf::DType::F32, bytes, values);
    }
    optimizer.step = state.step;
    params.upload()?;
    Ok(Ok(state))
}

/// The path of a step's checkpoint in a folder: `step-00000100.safetensors`.
pub fn path(folder: &Path, step: u64) -> PathBuf {
    folder.join(format!("step-{step:08}.safetensors"))
}

/// The checkpoints in a folder by their names, oldest first; none when the folder cannot be read.
pub fn list(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
    let step = |p: PathBuf| -> Option<(u64, PathBuf)> {
        let name = p.file_name()?.to_str()?;
        let digits = name.strip_prefix("step-")?.strip_suffix(".safetensors")?;
        let is_ours = digits.bytes().all(|b| b.is_ascii_digit());
        Some((digits.parse().ok().filter(|_| is_ours)?, p))
    };
    let mut all: Vec<(u64, PathBuf)> = entries.flatten().filter_map(|e| step(e.path())).collect();
    all.sort();
    all.into_iter().map(|(_, p)| p).collect()
}

/// Removes all but the `keep` newest checkpoints of a folder; at least one stays. Only files whose head and
/// length are right are counted, and only those are removed. A file that cannot be removed stays.
pub fn prune(folder: &Path, keep: usize) {
    let is_whole = |p: &PathBuf| {
        let is_ours = p.symlink_metadata().is_ok_and(|m| m.is_file()) && CHECKPOINT.marks(p).unwrap_or(false);
        is_ours && Map::open(p).is_ok_and(|map| parts(&map).is_ok())
    };
    let whole: Vec<PathBuf> = list(folder).into_iter().filter(is_whole).collect();
    for path in &whole[..whole.len().saturating_sub(keep.max(1))] {
        // An old checkpoint that stays does no harm.
        let _ = std::fs::remove_file(path);
    }
}

/// Adds `.damaged` to the name of a damaged checkpoint, so that it is neither read, replaced, nor removed. Returns its
/// new path.
fn set_aside(path: &Path) -> Result<PathBuf> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let names = (1u32..).map(|n| match n {
        1 => format!("{name}.damaged"),
        n => format!("{name}.damaged-{n}"),
    });
    let free = names.map(|name| path.with_file_name(name)).find(|p| std::fs::symlink_metadata(p).is_err());
    let free = free.unwrap_or_default();
    std::fs::rename(path, &free).map_err(|e| Error::io(path, e))?;
    Ok(free)
}
