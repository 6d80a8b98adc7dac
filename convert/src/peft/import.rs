//! A PEFT folder to a LoRA file.

use std::collections::BTreeMap;
use std::path::Path;

use gguf::{DType, File, Output, Value, Writer};
use ropewalk_core::adapter::{target, AdapterReader};
use ropewalk_core::control::Control;
use ropewalk_core::hparams::keys;
use ropewalk_core::ids::TOKEN_EMBD;
use ropewalk_import::{Modules, Rows, Safetensors, Stored};

use super::config::Config;
use super::embedding::{self, Changed};
use super::{refuse, AdapterReport, CONFIG, MODEL, PREFIX};
use crate::import::renamed;
use crate::merge::OUTPUT;
use crate::{check_none_is, Error, Result};

/// Converts the PEFT adapter in `folder`, trained on the model whose GGUF file is `base` (of any types), to the LoRA file
/// `output`. Tensors become F32. An embedding with a pair or with trained rows is computed from the model's own.
///
/// # Errors
/// Faults of the files, by name; what a LoRA file cannot say (DoRA, other methods than LoRA, biases); tensors that the model has not, or in another shape;
/// [`Error::Interrupted`] when `control` asked for it.
pub fn from_peft(
    folder: impl AsRef<Path>,
    base: impl AsRef<Path>,
    output: impl Into<Output>,
    control: &Control<'_>,
) -> Result<AdapterReport> {
    let (folder, base, to) = (folder.as_ref(), base.as_ref(), output.into());
    let output = to.path();
    let (model_path, config_path) = (folder.join(MODEL), folder.join(CONFIG));
    check_none_is(output, &gguf::parts(base), "the model")?;
    check_none_is(output, [&model_path, &config_path], "the adapter")?;
    let config = Config::read(&config_path)?;
    if !model_path.exists() && folder.join(PICKLED).exists() {
        let what = format!("is a pickle, which can run code: save it as {MODEL} with PEFT's save_pretrained");
        return Err(Error::Invalid(format!("{}: {what}", folder.join(PICKLED).display())));
    }
    let tensors = Safetensors::open(&model_path)?;
    let base = File::open(base)?;
    let names = super::modules(&base)?;
    let changed = embedding::read(&tensors, &names, &config, &base)?;
    let (mut found, mut notes) = sort(&tensors, &names, &config, &base, changed.is_empty())?;
    notes.splice(..0, config.notes.iter().cloned());
    notes.extend(changed.iter().map(|c| c.note(&base)));
    let keeps_output = tie(&tensors, &config, &base, &mut found, &changed)?;

    let mut writer = Writer::new();
    writer.watch(|done, total| control.writing(done, total));
    writer
        .set("general.type", "adapter")
        .set("general.architecture", names.hparams().arch.as_str())
        .set("adapter.type", "lora");
    let alpha = config.common_alpha(found.iter().find_map(|item| item.pair.as_ref()))?;
    writer.set(keys::LORA_ALPHA, alpha).set(keys::LORA_RSLORA, config.rslora);
    if keeps_output {
        writer.set(keys::LORA_KEEPS_OUTPUT, true);
    }
    if let Some(base) = &config.base {
        writer.set("general.base_model.count", Value::U32(1));
        for (key, part) in super::BASE.into_iter().zip(base.split('/')) {
            writer.set(key, part);
        }
    }
    for key in [keys::LORA_ROPE, keys::LORA_BASE, keys::LORA_DATA].into_iter().chain(super::TEXTS) {
        if let Some(text) = tensors.note(key) {
            writer.set(key, text);
        }
    }
    if let Some(n) = tensors.note(keys::LORA_N_CTX).and_then(|n| n.parse::<u32>().ok()) {
        writer.set(keys::LORA_N_CTX, n);
    }
    for key in [keys::LORA_STEPS].into_iter().chain(super::NUMBERS) {
        if let Some(n) = tensors.note(key).and_then(|n| n.parse::<u64>().ok()) {
            writer.set(key, Value::U64(n));
        }
    }
    writer.set(keys::VERSION, env!("CARGO_PKG_VERSION"));
    for item in &found {
        // Slowest dimension last in GGUF.
        let shape: Vec<u64> = item.entry.shape.iter().rev().copied().collect();
        let (tensors, factor) = (&tensors, config.factor(item.pair.as_ref(), alpha)?);
        writer.tensor(
            &item.tensor,
            DType::F32,
            &shape,
            Box::new(move |out| {
                let values = tensors.values(item.entry).map_err(std::io::Error::other)?;
                let width = item.entry.shape.get(1).map_or(1, |&n| n as usize);
                let n_rows = values.len() / width.max(1);
                for i in 0..n_rows {
                    let row = item.rows.as_ref().map_or(i, |rows| rows[i]);
                    let value = |j: usize| {
                        let column = item.columns.as_ref().map_or(j, |columns| columns[j]);
                        values[row * width + column] * factor + item.added
                    };
                    for j in 0..width {
                        out.write_all(&value(j).to_le_bytes())?;
                    }
                }
                Ok(())
            }),
        )?;
    }
    for c in &changed {
        let (tensors, base) = (&tensors, &base);
        writer.tensor(c.tensor, DType::F32, &c.shape, Box::new(move |out| c.write(tensors, base, out)))?;
    }
    let (scratch, bytes) = match writer.write_scratch(to.clone()) {
        Err(_) if control.stopped() => return Err(Error::Interrupted),
        done => done?,
    };
    // As this program's own readers see it.
    let named = |e: gguf::Error| Error::Invalid(renamed(&e.to_string(), scratch.path(), &model_path));
    let reader = AdapterReader::open(scratch.path()).map_err(named)?;
    reader.check(&base, reader.meta().base.as_deref().unwrap_or(""), true).map_err(named)?;
    let mut report = AdapterReport::of(&reader, bytes);
    report.notes = notes;
    scratch.place()?;
    Ok(report)
}

/// The tensors of folders that old versions of PEFT wrote.
const PICKLED: &str = "adapter_model.bin";

/// Parts of tensors' names, and why a LoRA file has no such tensors.
const REFUSED: [(&str, &str); 2] = [
    ("lora_magnitude_vector", "DoRA (use_dora): a LoRA file has no magnitudes; merge it with PEFT"),
    (".bias", "a bias (bias, lora_bias): ropewalk's LoRA files cannot replace biases; merge it with PEFT"),
];

/// A tensor to be written.
struct Item<'a> {
    entry: &'a Stored,
    /// Name of the tensor in the LoRA file.
    tensor: String,
    /// For each row the one to take; `None` in order.
    rows: Option<Vec<usize>>,
    /// For each column the one to take.
    columns: Option<Vec<usize>>,
    /// A number that is added to each value.
    added: f32,
    /// Module and rank, for a B.
    pair: Option<(String, usize)>,
}

/// Decides, for a model whose output is its embedding, if the output keeps the model's embedding when the adapter has
/// another. PEFT gives the input and the output a copy each, unless the config ties them.
fn tie(
    tensors: &Safetensors,
    config: &Config,
    base: &File,
    found: &mut Vec<Item<'_>>,
    changed: &[Changed<'_>],
) -> Result<bool> {
    let is_tied = base.tensor(OUTPUT).is_none();
    for c in changed {
        let twice = |item: &&Item<'_>| {
            let of = item.tensor.strip_suffix(".lora_b").unwrap_or(&item.tensor);
            of == c.tensor || c.is_rows() && is_tied && item.pair.is_some() && of == OUTPUT
        };
        if let Some(item) = found.iter().find(twice) {
            let what = format!("{} changes the same matrix: merge it with PEFT", item.entry.name);
            return Err(refuse(tensors.path(), c.from, what));
        }
    }
    if let Some(c) = changed.iter().find(|c| c.tensor == TOKEN_EMBD) {
        return Ok(is_tied && !c.ties(config));
    }
    let place = |name: &str| found.iter().position(|item| item.tensor == name);
    let (embedding, output) = (place(TOKEN_EMBD), place(OUTPUT));
    match (embedding, output) {
        (Some(_), None) => Ok(is_tied && !config.tied),
        (Some(embedding), Some(output)) if is_tied => {
            let [a, b] = [embedding, output].map(|i| found[i].entry);
            if tensors.values(a)? == tensors.values(b)? {
                // One tensor, as the model has it.
                found.remove(output);
            } else if config.tied {
                let what = format!("expected the values of {}, which ensure_weight_tying ties it to", a.name);
                return Err(refuse(tensors.path(), &b.name, format!("{what}, found others")));
            }
            Ok(false)
        }
        _ => Ok(false),
    }
}

/// Both halves of each pair are there, and of one rank: before values are read.
fn paired(tensors: &Safetensors, found: &[Item<'_>]) -> Result<()> {
    let ranks: BTreeMap<&str, u64> = found
        .iter()
        .filter_map(|item| match item.tensor.rsplit_once('.')?.1 {
            "lora_a" => Some((item.tensor.as_str(), item.entry.shape[0])),
            "lora_b" => Some((item.tensor.as_str(), item.entry.shape[1])),
            _ => None,
        })
        .collect();
    for item in found {
        let Some(rank) = ranks.get(item.tensor.as_str()) else { continue };
        let stem = &item.tensor[..item.tensor.len() - 1];
        let other = if item.tensor.ends_with('a') { "b" } else { "a" };
        let what = match ranks.get(format!("{stem}{other}").as_str()) {
            None => "expected the other half of a pair, found none".to_owned(),
            Some(n) if n != rank => format!("expected rank {n} as the other half of the pair, found {rank}"),
            Some(_) => continue,
        };
        return Err(refuse(tensors.path(), &item.entry.name, what));
    }
    Ok(())
}

/// Finds out what every tensor of the folder is but changes of embeddings. `needs_one` if there are none of these. Returns notes of those that are left out.
fn sort<'a>(
    tensors: &'a Safetensors,
    names: &Modules,
    config: &Config,
    base: &File,
    needs_one: bool,
) -> Result<(Vec<Item<'a>>, Vec<String>)> {
    let (mut notes, mut dropped) = (Vec::new(), Vec::new());
    let mut found = Vec::new();
    let mut taken = BTreeMap::<String, &str>::new();
    for entry in tensors.tensors() {
        let bad = |what: String| refuse(tensors.path(), &entry.name, what);
        let name = entry
            .name
            .strip_prefix(PREFIX)
            .ok_or_else(|| bad(format!("expected a name that begins with {PREFIX}")))?;
        // What VeLoRA's gradients need.
        if name.ends_with(".lora_velora_embed") {
            continue;
        }
        if let Some(part) = embedding::part(name) {
            if embedding::is_dropped(config, part) {
                dropped.push(&entry.name);
            }
            continue;
        }
        for (part, what) in REFUSED {
            if name.contains(part) {
                return Err(bad(what.into()));
            }
        }
        let stem = name.strip_suffix(".weight").ok_or_else(|| bad("expected a weight".into()))?;
        let half = |module: &'a str| match (module.strip_suffix(".lora_A"), module.strip_suffix(".lora_B")) {
            (Some(module), _) => Some((module, "lora_a")),
            (_, Some(module)) => Some((module, "lora_b")),
            _ => None,
        };
        // Files of older versions name the adapter.
        let (module, side) = match half(stem.strip_suffix(".default").unwrap_or(stem)) {
            Some((module, side)) => (module, Some(side)),
            None => {
                let saved = [".modules_to_save.default", ".modules_to_save", ".base_layer"];
                (saved.iter().find_map(|end| stem.strip_suffix(end)).unwrap_or(stem), None)
            }
        };
        if side.is_some() && !config.targets.has(module) {
            dropped.push(&entry.name);
            continue;
        }
        let weight = names
            .tensor(module)
            .ok_or_else(|| bad(format!("{module} is not a known module of {}", names.hparams().arch)))?;
        let n_layer = names.hparams().n_layer;
        let layer =
            weight.strip_prefix("blk.").and_then(|rest| rest.split('.').next()?.parse::<usize>().ok());
        if layer.is_some_and(|layer| layer >= n_layer) {
            return Err(bad(format!("belongs to {weight}, and the model has {n_layer} layers")));
        }
        let is_tied =
            config.tied && weight == OUTPUT && names.module(TOKEN_EMBD).is_some_and(|m| config.saves(&m));
        if side.is_none() && (stem.ends_with(".base_layer") || !(config.saves(module) || is_tied)) {
            // PEFT saves embeddings along with adapters that touch them, trained or not.
            let shape: Vec<u64> = entry.shape.iter().rev().copied().collect();
            if base.tensor(target(base, &weight)).is_none_or(|t| t.shape != shape) {
                return Err(bad(format!(
                    "the model's own {weight}, but {} does not have it in this shape",
                    base.path().display()
                )));
            }
            notes.push(format!("Omitted {:?}: it is the model's own, and not a module to save.", entry.name));
            continue;
        }
        if entry.shape.len() > 2 {
            return Err(bad(format!("expected one or two dimensions, found {:?}", entry.shape)));
        }
        if side.is_some() && entry.shape.len() != 2 {
            return Err(bad(format!("expected two dimensions, found {:?}", entry.shape)));
        }
        // Before anything is made of the size that the file names.
        let own = base.tensor(target(base, &weight)).ok_or_else(|| {
            bad(format!("belongs to {weight}, which {} does not have", base.path().display()))
        })?;
        let fits = match (side, &own.shape[..], &entry.shape[..]) {
            (Some("lora_a"), [n_in, _], [rank, n]) => n == n_in && *rank > 0,
            (Some(_), [_, n_out], [n, rank]) => n == n_out && *rank > 0,
            (Some(_), ..) => false,
            (None, own, found) => trimmed(own.iter().copied()).eq(&trimmed(found.iter().rev().copied())),
        };
        if !fits {
            return Err(bad(format!(
                "expected a shape that suits the model's {:?} (in GGUF's order) of {weight} in {}, found {:?}",
                own.shape,
                base.path().display(),
                entry.shape
            )));
        }
        let change = names.change(&weight);
        let order = |of: Rows, dim: usize| match entry.shape.get(dim) {
            Some(&n) if entry.shape.len() == 2 => of.order(n as usize).map_err(bad),
            _ => Ok(None),
        };
        let rows = if side == Some("lora_a") { None } else { order(change.rows, 0)? };
        let columns = if side == Some("lora_b") { None } else { order(change.columns, 1)? };
        let added = if side.is_none() && change.one_more { 1.0 } else { 0.0 };
        let pair = (side == Some("lora_b")).then(|| (module.to_owned(), entry.shape[1] as usize));
        let tensor = side.map_or(weight.clone(), |side| format!("{weight}.{side}"));
        if let Some(other) = taken.insert(tensor.clone(), &entry.name) {
            return Err(bad(format!("is a duplicate of {other}")));
        }
        found.push(Item { entry, tensor, rows, columns, added, pair });
    }
    if let Some(first) = dropped.first() {
        let keys = "target_modules, exclude_modules, layers_to_transform, modules_to_save";
        let n = dropped.len();
        notes.push(format!(
            "Omitted {n} tensors, {first:?} first: they belong to no target module ({keys}), and PEFT drops \
             them."
        ));
    }
    paired(tensors, &found)?;
    if found.is_empty() && needs_one {
        let what = match dropped.first() {
            Some(first) => format!("expected at least one of a target module, found {first}"),
            None => "expected at least one, found none".into(),
        };
        return Err(refuse(tensors.path(), "tensors", what));
    }
    Ok((found, notes))
}

/// A shape without dimensions of 1.
fn trimmed(shape: impl Iterator<Item = u64>) -> Vec<u64> {
    shape.filter(|&n| n != 1).collect()
}
