//! Checkpoints: all that a run needs to go on as if it had never stopped. One file each, written beside and renamed.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};

use safetensors::tensor::{Dtype, SafeTensors, TensorView};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::optim::Optimizer;
use super::params::Params;
use crate::model::{Error, Result};

/// Of the file's layout.
const VERSION: u32 = 1;
/// How files begin that are being written.
const BESIDE: &str = ".checkpoint-";
/// More bytes are no checkpoint of ours.
const MAX_BYTES: u64 = 1 << 40;

/// What a checkpoint says of its run; `settings` must be the same when the run goes on.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct State {
    /// Steps done.
    pub step: u64,
    /// Sequences trained on.
    pub n_seen: u64,
    /// What the run was started with, by name.
    pub settings: BTreeMap<String, String>,
}

/// Writes a checkpoint.
///
/// # Errors
/// The disk: the file names it, and whatever was there before still is.
pub fn save(path: &Path, state: &State, params: &Params, optimizer: &Optimizer) -> Result<()> {
    let failed = |e: &dyn std::fmt::Display| Error::Invalid(format!("{}: {e}", path.display()));
    let mut rows: Vec<(String, &[f32])> = Vec::new();
    for (i, (t, m)) in params.list().iter().zip(&optimizer.moments).enumerate() {
        rows.push((format!("value.{}", t.id), &t.value));
        rows.push((format!("m.{}", t.id), &m.m));
        rows.push((format!("v.{}", t.id), &m.v));
        if let Some(average) = &optimizer.average {
            rows.push((format!("average.{}", t.id), &average[i]));
        }
    }
    rows.sort_by(|a, b| a.0.cmp(&b.0));
    let bytes: Vec<(String, Vec<u8>)> =
        rows.into_iter().map(|(name, v)| (name, v.iter().flat_map(|x| x.to_le_bytes()).collect())).collect();
    let views = bytes
        .iter()
        .map(|(name, b)| Ok((name.clone(), TensorView::new(Dtype::F32, vec![b.len() / 4], b)?)))
        .collect::<std::result::Result<Vec<_>, safetensors::SafeTensorError>>()
        .map_err(|e| failed(&e))?;
    let json = serde_json::to_string(state).map_err(|e| failed(&e))?;
    let meta = [
        ("format", VERSION.to_string()),
        ("program", env!("CARGO_PKG_VERSION").to_string()),
        ("sha256", digest(&json, bytes.iter().map(|(n, b)| (n.as_str(), b.as_slice())))),
        ("state", json),
    ];
    let meta = meta.into_iter().map(|(k, v)| (k.to_string(), v)).collect();
    let all = safetensors::serialize(views, Some(meta)).map_err(|e| failed(&e))?;
    let folder = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let written = || -> std::io::Result<()> {
        std::fs::create_dir_all(folder)?;
        let mut file = tempfile::Builder::new().prefix(BESIDE).tempfile_in(folder)?;
        file.write_all(&all)?;
        file.as_file().sync_all()?;
        file.persist(path).map_err(|e| e.error)?;
        std::fs::File::open(folder)?.sync_all()
    };
    written().map_err(|e| failed(&e))
}

fn digest<'a>(state: &str, tensors: impl Iterator<Item = (&'a str, &'a [u8])>) -> String {
    let mut hash = Sha256::new();
    hash.update(state);
    for (name, bytes) in tensors {
        hash.update(name);
        hash.update((bytes.len() as u64).to_le_bytes());
        hash.update(bytes);
    }
    hash.finalize().iter().map(|b| format!("{b:02x}")).collect()
}

/// Reads a checkpoint into what is trained and its optimiser, which must have been set up as they were then.
///
/// # Errors
/// A file that is damaged, of another version, of other settings or tensors; nothing has changed then.
pub fn load(
    path: &Path,
    settings: &BTreeMap<String, String>,
    params: &mut Params,
    optimizer: &mut Optimizer,
) -> Result<State> {
    let failed = |what: String| Error::Invalid(format!("{}: {what}", path.display()));
    let size = std::fs::metadata(path).map_err(|e| failed(e.to_string()))?.len();
    if size > MAX_BYTES {
        return Err(failed(format!("expected a checkpoint, found {size} bytes")));
    }
    let bytes = std::fs::read(path).map_err(|e| failed(e.to_string()))?;
    let (_, header) =
        SafeTensors::read_metadata(&bytes).map_err(|e| failed(format!("not a checkpoint: {e}")))?;
    let meta = header.metadata().clone().unwrap_or_default();
    let version = meta.get("format").map_or("none", String::as_str);
    if version != VERSION.to_string() {
        return Err(failed(format!("format: expected {VERSION}, found {version}")));
    }
    let file = SafeTensors::deserialize(&bytes).map_err(|e| failed(format!("not a checkpoint: {e}")))?;
    let json = meta.get("state").ok_or_else(|| failed("state: expected a description, found none".into()))?;
    let mut tensors = file.tensors();
    tensors.sort_by(|a, b| a.0.cmp(&b.0));
    let sum = digest(json, tensors.iter().map(|(n, t)| (n.as_str(), t.data())));
    if meta.get("sha256") != Some(&sum) {
        return Err(failed("sha256: the file is damaged".into()));
    }
    let state: State = serde_json::from_str(json).map_err(|e| failed(format!("state: {e}")))?;
    for (key, now) in settings {
        let then = state.settings.get(key);
        if then != Some(now) {
            let then = then.map_or("nothing", String::as_str);
            return Err(failed(format!("{key}: the run was started with {then}, this is {now}")));
        }
    }
    let read = |kind: &str, name: &str, n: usize| -> Result<Vec<f32>> {
        let key = format!("{kind}.{name}");
        let t = file.tensor(&key).map_err(|_| failed(format!("{key}: expected a tensor, found none")))?;
        if t.dtype() != Dtype::F32 || t.data().len() != n * 4 {
            return Err(failed(format!("{key}: expected {n} numbers, found {:?}", t.shape())));
        }
        Ok(t.data().chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect())
    };
    let expected = params.list().len() * if optimizer.average.is_some() { 4 } else { 3 };
    if tensors.len() > expected {
        return Err(failed(format!(
            "tensors: expected {expected}, found {}: more was trained",
            tensors.len()
        )));
    }
    let (mut values, mut fresh) = (Vec::new(), optimizer.clone());
    for (i, t) in params.list().iter().enumerate() {
        let n = t.value.len();
        values.push(read("value", &t.id.to_string(), n)?);
        fresh.moments[i].m = read("m", &t.id.to_string(), n)?;
        fresh.moments[i].v = read("v", &t.id.to_string(), n)?;
        if let Some(average) = &mut fresh.average {
            average[i] = read("average", &t.id.to_string(), n)?;
        }
    }
    fresh.step = state.step;
    *optimizer = fresh;
    params.list_mut().iter_mut().zip(values).for_each(|(t, v)| t.value = v);
    params.upload()?;
    Ok(state)
}

/// Where the checkpoint of a step is in a folder.
pub fn path(folder: &Path, step: u64) -> PathBuf {
    folder.join(format!("step-{step:08}.safetensors"))
}

/// The checkpoints of a folder, oldest first.
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

/// Removes all but the `keep` newest (the last one always stays), and what a process that was killed while it wrote one has left.
pub fn prune(folder: &Path, keep: usize) {
    let all = list(folder);
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let half_written = entries.filter(|e| e.file_name().to_string_lossy().starts_with(BESIDE));
    let old = all[..all.len().saturating_sub(keep.max(1))].iter().cloned();
    for path in half_written.map(|e| e.path()).chain(old) {
        // What cannot be removed does no harm.
        let _ = std::fs::remove_file(path);
    }
}
