//! A PEFT folder to a LoRA file.

use std::collections::BTreeMap;
use std::path::Path;

use files::same_file;
use gguf::{DType, File, Value, Writer};
use ropewalk_core::adapter::{target, AdapterReader};
use ropewalk_core::hparams::keys;
use ropewalk_import::{Rows, Safetensors, Stored};
use serde_json::Value as Json;

use super::names::Names;
use super::patterns::{Patterns, MAX_PATTERNS};
use super::{refuse, AdapterReport, CONFIG, MODEL, PREFIX};
use crate::{Error, Result};

/// Largest `adapter_config.json` read, bytes.
const MAX_CONFIG: u64 = 4 << 20;
/// Most names of `modules_to_save`.
const MAX_MODULES: usize = 1024;

/// Converts the PEFT adapter in `folder`, trained on the model whose GGUF file is `base` (of any types), to the LoRA file
/// `output`. Tensors become F32.
///
/// # Errors
/// Faults of the files, by name; what a LoRA file cannot say (DoRA, other methods than LoRA, pairs beside
/// embeddings, biases); tensors that the model has not, or in another shape.
pub fn from_peft(folder: &Path, base: &Path, output: &Path) -> Result<AdapterReport> {
    let (model_path, config_path) = (folder.join(MODEL), folder.join(CONFIG));
    for (path, what) in [(base, "the model"), (&model_path, "the adapter"), (&config_path, "the adapter")] {
        if same_file(path, output)? {
            let what = format!("{}: the output is {what}; name another file", output.display());
            return Err(Error::Usage(what));
        }
    }
    let config = Config::read(&config_path)?;
    let tensors = Safetensors::open(&model_path)?;
    let base = File::open(base)?;
    let names = Names::of(&base)?;
    let (found, notes) = sort(&tensors, &names, &config, &base)?;

    let mut writer = Writer::new();
    writer
        .set("general.type", "adapter")
        .set("general.architecture", names.arch())
        .set("adapter.type", "lora");
    let alpha = config.common_alpha(&found)?;
    writer.set(keys::LORA_ALPHA, alpha).set(keys::LORA_RSLORA, config.rslora);
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
        let (tensors, factor) = (&tensors, config.factor(item, alpha)?);
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
    let scratch = writer.write_scratch(output)?;
    // As this program's own readers see it.
    let named = |e: gguf::Error| {
        Error::Invalid(
            e.to_string().replace(&*scratch.path().to_string_lossy(), &model_path.to_string_lossy()),
        )
    };
    let reader = AdapterReader::open(scratch.path()).map_err(named)?;
    reader.check(&base, reader.meta().base.as_deref().unwrap_or(""), true).map_err(named)?;
    let bytes = std::fs::metadata(scratch.path()).map_err(|e| files::Error::new(output, e))?.len();
    let mut report = AdapterReport::of(&reader, bytes);
    report.notes = notes;
    scratch.place()?;
    Ok(report)
}

/// A tensor to be written.
struct Item<'a> {
    entry: &'a Stored,
    /// Its name in the LoRA file.
    tensor: String,
    /// For each row the one to take; `None` in order.
    rows: Option<Vec<usize>>,
    /// For each column the one to take.
    columns: Option<Vec<usize>>,
    /// A number that is added to each value.
    added: f32,
    /// Of a B: the module and its rank.
    pair: Option<(String, usize)>,
}

/// Finds out what every tensor of the folder is. Returns notes of those that are left out.
fn sort<'a>(
    tensors: &'a Safetensors,
    names: &Names,
    config: &Config,
    base: &File,
) -> Result<(Vec<Item<'a>>, Vec<String>)> {
    let mut notes = Vec::new();
    let mut found = Vec::new();
    let mut taken = BTreeMap::<String, &str>::new();
    for entry in tensors.tensors() {
        let bad = |what: String| refuse(tensors.path(), &entry.name, what);
        let name = entry
            .name
            .strip_prefix(PREFIX)
            .ok_or_else(|| bad(format!("expected a name that begins with {PREFIX}")))?;
        for (part, what) in [
            ("lora_magnitude_vector", "DoRA: a LoRA file has no magnitudes"),
            ("lora_embedding_", "a pair beside the embedding: a LoRA file has none; train lm_head, or the embedding as a module to save"),
            (".bias", "a bias: LoRA files of ours replace none; train with bias=\"none\""),
        ] {
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
        let weight = names
            .gguf(module)
            .ok_or_else(|| bad(format!("{module} is no module that is known of {}", names.arch())))?;
        let n_layer = names.n_layer();
        let layer =
            weight.strip_prefix("blk.").and_then(|rest| rest.split('.').next()?.parse::<usize>().ok());
        if layer.is_some_and(|layer| layer >= n_layer) {
            return Err(bad(format!("is of {weight}, and the model has {n_layer} layers")));
        }
        if side.is_none() && (stem.ends_with(".base_layer") || !config.saves(module)) {
            // PEFT saves embeddings along with adapters that touch them, trained or not.
            let shape: Vec<u64> = entry.shape.iter().rev().copied().collect();
            if base.tensor(target(base, &weight)).is_none_or(|t| t.shape != shape) {
                return Err(bad(format!(
                    "the model's own {weight}, but {} has it in another shape or not",
                    base.path().display()
                )));
            }
            notes.push(format!(
                "{:?} is left out: it is the model's own, and not a module to save.",
                entry.name
            ));
            continue;
        }
        if entry.shape.len() > 2 {
            return Err(bad(format!("expected one or two dimensions, found {:?}", entry.shape)));
        }
        if side.is_some() && entry.shape.len() != 2 {
            return Err(bad(format!("expected two dimensions, found {:?}", entry.shape)));
        }
        // Before anything is made of the size that the file names.
        let own = base
            .tensor(target(base, &weight))
            .ok_or_else(|| bad(format!("is of {weight}, which {} has not", base.path().display())))?;
        let fits = match (side, &own.shape[..], &entry.shape[..]) {
            (Some("lora_a"), [n_in, n_out], [rank, n]) => n == n_in && rank <= n_in.max(n_out),
            (Some(_), [n_in, n_out], [n, rank]) => n == n_out && rank <= n_in.max(n_out),
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
            return Err(bad(format!("is the same as {other}")));
        }
        found.push(Item { entry, tensor, rows, columns, added, pair });
    }
    if found.is_empty() {
        return Err(refuse(tensors.path(), "tensors", "expected at least one, found none"));
    }
    Ok((found, notes))
}

/// A shape without dimensions of 1.
fn trimmed(shape: impl Iterator<Item = u64>) -> Vec<u64> {
    shape.filter(|&n| n != 1).collect()
}

/// Ranks, alphas and targets of pairs, from `adapter_config.json`.
struct Config {
    path: std::path::PathBuf,
    alpha: f64,
    /// Of which modules each of `alphas` is.
    patterns: Patterns,
    alphas: Vec<f64>,
    rslora: bool,
    modules_to_save: Vec<String>,
}

impl Config {
    fn read(path: &Path) -> Result<Config> {
        let text = files::foreign::read_file(path, MAX_CONFIG)?;
        let json: Json =
            serde_json::from_slice(&text).map_err(|e| Error::Invalid(format!("{}: {e}", path.display())))?;
        let bad = |key: &str, expected: &str| {
            let found = json
                .get(key)
                .map_or("nothing".into(), |v| v.to_string().chars().take(64).collect::<String>());
            refuse(path, key, format!("expected {expected}, found {}", found.escape_debug()))
        };
        if json.get("peft_type").and_then(Json::as_str) != Some("LORA") {
            return Err(bad("peft_type", "LORA, the one method that LoRA files have"));
        }
        for (key, why) in [
            ("use_dora", "false: a LoRA file has no magnitudes"),
            ("fan_in_fan_out", "false"),
            ("lora_bias", "false: a LoRA file has no biases"),
            ("alora_invocation_tokens", "nothing: a LoRA file is always on"),
            ("trainable_token_indices", "nothing: a LoRA file has no single rows"),
            ("megatron_config", "nothing"),
        ] {
            if json.get(key).is_some_and(|v| !(v.is_null() || *v == Json::Bool(false))) {
                return Err(bad(key, why));
            }
        }
        if json.get("bias").is_some_and(|b| !matches!(b.as_str(), Some("none")) && !b.is_null()) {
            return Err(bad("bias", "none: LoRA files of ours replace no biases"));
        }
        let number = |v: &Json| v.as_f64().filter(|x| x.is_finite() && *x != 0.0 && x.abs() < 1e30);
        let alpha = json
            .get("lora_alpha")
            .and_then(number)
            .ok_or_else(|| bad("lora_alpha", "a number other than 0"))?;
        let object = |key: &str| match json.get(key).filter(|p| !p.is_null()) {
            None => Ok(None),
            Some(value) => value.as_object().map(Some).ok_or_else(|| bad(key, "an object")),
        };
        // Ranks are those of the tensors; their patterns only count.
        let of_ranks = object("rank_pattern")?.map_or(0, serde_json::Map::len);
        if of_ranks > MAX_PATTERNS {
            let what = format!("expected at most {MAX_PATTERNS} patterns, found {of_ranks}");
            return Err(refuse(path, "rank_pattern", what));
        }
        let (mut patterns, mut alphas) = (Patterns::default(), Vec::new());
        for (pattern, alpha) in object("alpha_pattern")?.into_iter().flatten() {
            patterns.add(pattern).map_err(|[expected, found]| {
                refuse(path, "alpha_pattern", format!("expected {expected}, found {found}"))
            })?;
            alphas.push(number(alpha).ok_or_else(|| bad("alpha_pattern", "numbers other than 0"))?);
        }
        let rslora = match json.get("use_rslora") {
            None | Some(Json::Null) => false,
            Some(v) => v.as_bool().ok_or_else(|| bad("use_rslora", "true or false"))?,
        };
        let list = json.get("modules_to_save").filter(|m| !m.is_null());
        let list = list.map_or(Ok(Vec::new()), |m| serde_json::from_value(m.clone()));
        let modules_to_save: Vec<String> = list.map_err(|_| bad("modules_to_save", "a list of names"))?;
        if modules_to_save.len() > MAX_MODULES {
            let what = format!("expected at most {MAX_MODULES} names, found {}", modules_to_save.len());
            return Err(refuse(path, "modules_to_save", what));
        }
        Ok(Config { path: path.to_owned(), alpha, patterns, alphas, rslora, modules_to_save })
    }

    /// Whether a module is one that was trained as a whole, which PEFT finds by the end of its name.
    fn saves(&self, module: &str) -> bool {
        self.modules_to_save.iter().any(|end| module.ends_with(end.as_str()))
    }

    /// The factor of a pair's product.
    fn scale(&self, module: &str, rank: usize) -> f64 {
        let alpha = self.patterns.find(module).map_or(self.alpha, |i| self.alphas[i]);
        let rank = rank.max(1) as f64;
        alpha / if self.rslora { rank.sqrt() } else { rank }
    }

    /// The one alpha of the LoRA file, whose readers divide it by each pair's rank: that of the first pair.
    fn common_alpha(&self, items: &[Item<'_>]) -> Result<f32> {
        let first = items.iter().find_map(|i| i.pair.as_ref());
        let alpha =
            first.map_or(self.alpha, |(module, rank)| self.scale(module, *rank) * *rank as f64) as f32;
        match alpha.is_finite() && alpha != 0.0 {
            true => Ok(alpha),
            false => Err(refuse(
                &self.path,
                "lora_alpha",
                format!("expected a factor that f32 holds, found {alpha}"),
            )),
        }
    }

    /// The factor for a B, so that the file's alpha is right for its pair.
    fn factor(&self, item: &Item<'_>, alpha: f32) -> Result<f32> {
        let Some((module, rank)) = &item.pair else { return Ok(1.0) };
        let (wanted, is) = (self.scale(module, *rank), f64::from(alpha) / (*rank).max(1) as f64);
        // Exactly 1 where it is the same but for rounding alpha.
        let factor = if (wanted / is - 1.0).abs() < 1e-6 { 1.0 } else { (wanted / is) as f32 };
        match factor.is_finite() {
            true => Ok(factor),
            false => Err(refuse(&self.path, "alpha_pattern", format!("{module}: a factor of {factor}"))),
        }
    }
}
