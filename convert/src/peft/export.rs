//! A LoRA file to a PEFT folder.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use files::{Kind, Scratch};
use gguf::{float, DType, File, Output};
use ropewalk_core::adapter::{AdapterReader, ModuleInfo, PairInfo};
use ropewalk_core::control::Control;
use ropewalk_core::hparams::{keys, Hparams};
use ropewalk_core::ids::TOKEN_EMBD;
use ropewalk_core::rope::{Plan, Spec};
use ropewalk_import::{Modules, Rows};
use safetensors::tensor::TensorInfo;
use safetensors::Dtype;
use serde_json::{json, Map, Value};

use super::config::MAX_CONFIG;
use super::positions::rope_scaling;
use super::{is_repository, refuse, shown, AdapterReport, CONFIG, MODEL, PREFIX, ROPE};
use crate::merge::OUTPUT;
use crate::rope::default_ctx;
use crate::rows::dequantize_tensor;
use crate::{check_none_is, Error, Result};

/// Converts the LoRA file `adapter`, for the model whose GGUF file is `base` (of any types), to a PEFT adapter in `folder`,
/// which is made. Tensors become F32; rsLoRA is written as the alpha that it comes to. `repository` is the model's, `ORG/REPO`,
/// which the adapter may name as well.
///
/// # Errors
/// Faults of the files; tensors that the model has not, or that have no name in transformers; a pair on a weight that
/// is replaced; a repository of another form; [`Error::Interrupted`] when `control` asked for it.
pub fn to_peft(
    adapter: impl AsRef<Path>,
    base: impl AsRef<Path>,
    folder: impl Into<Output>,
    repository: Option<&str>,
    control: &Control<'_>,
) -> Result<AdapterReport> {
    let (adapter, base, to) = (adapter.as_ref(), base.as_ref(), folder.into());
    let folder = to.path();
    if let Some(name) = repository.filter(|name| !is_repository(name)) {
        return Err(Error::Argument(format!("base: expected ORG/REPO, found {}", shown(name))));
    }
    let base = File::open(base)?;
    let names = super::modules(&base)?;
    let reader = AdapterReader::open(adapter)?;
    reader.check(&base, "", true)?;
    if reader.clex().is_some() {
        return Err(refuse(
            adapter,
            "clex.up.weight",
            "is part of a CLEX network, which PEFT does not support",
        ));
    }
    let module = |tensor: &str| {
        names.module(tensor).ok_or_else(|| refuse(adapter, tensor, "has no matching module in transformers"))
    };
    let mut out: Vec<(String, Vec<usize>, Vec<u8>)> = Vec::new();
    let mut add = |name: String, shape: Vec<usize>, values: &[f32]| -> Result<()> {
        if control.stopped() {
            return Err(Error::Interrupted);
        }
        out.push((name, shape, float::encode(DType::F32, values)?));
        Ok(())
    };
    let (mut targets, mut ranks) = (Vec::new(), BTreeMap::new());
    for pair in reader.pairs() {
        let module = module(&pair.weight)?;
        let change = names.change(&pair.weight);
        let bad = |what: String| refuse(adapter, &pair.weight, what);
        let a = reader.values(&pair.name_a(), dequantize_tensor)?;
        let a = in_their_order(a, [Rows::All, change.columns], pair.n_in).map_err(bad)?;
        let b = reader.values(&pair.name_b(), dequantize_tensor)?;
        let b = in_their_order(b, [change.rows, Rows::All], pair.rank).map_err(bad)?;
        add(format!("{PREFIX}{module}.lora_A.weight"), vec![pair.rank, pair.n_in], &a)?;
        add(format!("{PREFIX}{module}.lora_B.weight"), vec![pair.n_out, pair.rank], &b)?;
        ranks.insert(module.clone(), pair);
        targets.push(module);
    }
    let mut modules = Vec::new();
    // PEFT replaces an embedding at the input alone, and the output has to be named as well.
    let is_saved = |name: &str| reader.modules_to_save().iter().any(|info| info.name == name);
    let follows = base.tensor(OUTPUT).is_none() && !reader.keeps_output() && !is_saved(OUTPUT);
    let of_output = |info: &&ModuleInfo| follows && info.name == TOKEN_EMBD;
    let saved = reader.modules_to_save().iter().map(|info| (info, info.name.as_str()));
    let output = reader.modules_to_save().iter().find(of_output).map(|info| (info, OUTPUT));
    for (info, name) in saved.chain(output) {
        let module = module(name)?;
        if ranks.contains_key(&module) {
            let what = format!(
                "{module} has a pair and is replaced as well, and PEFT supports only one of \
                 the two: merge the adapter instead"
            );
            return Err(refuse(adapter, name, what));
        }
        let mut shape: Vec<usize> = info.shape.iter().rev().copied().collect();
        let mut all = reader.values(&info.name, dequantize_tensor)?;
        let change = names.change(name);
        if change.one_more {
            all.iter_mut().for_each(|x| *x -= 1.0);
        }
        if shape.len() == 2 {
            all = in_their_order(all, [change.rows, change.columns], shape[1])
                .map_err(|what| refuse(adapter, &info.name, what))?;
        } else if shape.len() != 1 {
            shape = vec![all.len()];
        }
        add(format!("{PREFIX}{module}.weight"), shape, &all)?;
        modules.push(module);
    }

    let given = repository.is_some();
    let repository = repository.map(str::to_owned).or_else(|| noted(&reader, &base));
    let targets = by_suffix(targets, &base, &names);
    let config = config(&reader, repository.as_deref(), &targets, &modules, &ranks);
    // In the order of safetensors' own writer, which would copy all tensors into one buffer and writes its notes in any order.
    out.sort_by(|(a, ..), (b, ..)| a.cmp(b));
    let mut header = Map::from_iter([("__metadata__".to_owned(), Value::Object(header(&reader)))]);
    let mut end = 0;
    for (name, shape, bytes) in &out {
        let start = end;
        end += bytes.len();
        let info = TensorInfo { dtype: Dtype::F32, shape: shape.clone(), data_offsets: (start, end) };
        header.insert(name.clone(), json!(info));
    }
    let mut header = Value::Object(header).to_string().into_bytes();
    header.resize(header.len().next_multiple_of(8), b' ');
    let length = (header.len() as u64).to_le_bytes();
    let parts = || [&length[..], &header].into_iter().chain(out.iter().map(|(.., bytes)| &bytes[..]));
    let rope = positions(&reader, &base)?;
    // All, before the first is written.
    let lora = adapter.to_owned();
    for (name, kind) in [(MODEL, TENSORS), (ROPE, POSITIONS), (CONFIG, SETTINGS)] {
        check_none_is(&folder.join(name), base.paths().iter().chain([&lora]), "the input")?;
        kind.claim(to.join(name))?;
    }
    std::fs::create_dir_all(folder).map_err(|e| files::Error::new(folder, e))?;
    let write = |name: &str, kind: &Kind, parts: &mut dyn Iterator<Item = &[u8]>| {
        let path = folder.join(name);
        let mut file = Scratch::beside(to.join(name), kind)?;
        let done = file.write(|out| {
            let mut parts = &mut *parts;
            Iterator::try_for_each(&mut parts, |part| control.check().and_then(|()| out.write_all(part)))
                .map_err(|e| files::Error::new(&path, e))
        });
        match done {
            Err(_) if control.stopped() => Err(Error::Interrupted),
            done => Ok(done.map(|()| file)?),
        }
    };
    let weights = write(MODEL, &TENSORS, &mut parts())?;
    let scaling = match &rope {
        Positions::Scaling(value) => {
            Some(write(ROPE, &POSITIONS, &mut [format!("{value:#}\n").as_bytes()].into_iter())?)
        }
        _ => None,
    };
    let settings = write(CONFIG, &SETTINGS, &mut [format!("{config:#}\n").as_bytes()].into_iter())?;
    // Where the settings are, the folder is whole. Those of an earlier export go first, for they say nothing of these weights.
    remove(&folder.join(CONFIG))?;
    weights.place()?;
    match scaling {
        Some(scaling) => scaling.place()?,
        None => remove(&folder.join(ROPE))?,
    }
    settings.place()?;
    let n_bytes: usize = parts().map(<[u8]>::len).sum();
    let mut report = AdapterReport::of(&reader, n_bytes as u64);
    if let Some(name) = repository.as_ref().filter(|_| !given) {
        report.notes.push(format!("{CONFIG}: base_model_name_or_path is {name}, as recorded by an import."));
    }
    if repository.is_none() {
        report.notes.push(format!(
            "{CONFIG}: base_model_name_or_path is empty: the model's repository is not known. Give \
             PeftModel.from_pretrained the model."
        ));
    }
    if let Some(trained) = &report.rope {
        report.notes.push(match &rope {
            Positions::Models => format!("It was trained under {trained}: the model's own positions."),
            Positions::Scaling(value) => format!(
                "It was trained under {trained}: config.json of the model needs \"rope_scaling\": {value} (also in {ROPE})."
            ),
            Positions::None(why) => {
                format!("It was trained under {trained}, which transformers cannot express: {why}.")
            }
        });
    }
    Ok(report)
}

/// Removes a file of an earlier export, if it is there.
fn remove(path: &Path) -> Result<()> {
    match std::fs::remove_file(path) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(files::Error::new(path, e).into()),
        _ => Ok(()),
    }
}

/// The kinds of file in the folder. Only tensors can have a mark. The others are ours if the folder has such tensors.
const TENSORS: Kind = Kind::new("an adapter for PEFT that ropewalk wrote", |head| {
    let (rest, key) = (head.get(8..).unwrap_or_default(), format!("\"{}\":", keys::VERSION));
    rest.starts_with(b"{\"__metadata__\":{") && rest.windows(key.len()).any(|bytes| bytes == key.as_bytes())
});
const SETTINGS: Kind =
    Kind::parsed("the settings of an adapter that ropewalk wrote", |path| has(path, "peft_type"));
const POSITIONS: Kind =
    Kind::parsed("the positions of an adapter that ropewalk wrote", |path| has(path, "rope_type"));

/// Returns true if the file is JSON with this key, in a folder whose tensors have our mark.
fn has(path: &Path, key: &str) -> bool {
    let json = || serde_json::from_slice::<Value>(&files::foreign::read_file(path, MAX_CONFIG).ok()?).ok();
    TENSORS.marks(&path.with_file_name(MODEL)).unwrap_or(false)
        && json().is_some_and(|v| v.get(key).is_some())
}

/// A matrix of rows of `width` from llama.cpp's order of rows and columns into that of transformers.
fn in_their_order(
    values: Vec<f32>,
    [rows, columns]: [Rows; 2],
    width: usize,
) -> std::result::Result<Vec<f32>, String> {
    let (rows, columns) = (rows.order(values.len() / width.max(1))?, columns.order(width)?);
    let mut out = files::memory::filled(values.len(), 0f32).map_err(|e| e.to_string())?;
    for (i, value) in values.into_iter().enumerate() {
        let (row, column) = (i / width, i % width);
        let row = rows.as_ref().map_or(row, |rows| rows[row]);
        out[row * width + columns.as_ref().map_or(column, |columns| columns[column])] = value;
    }
    Ok(out)
}

enum Positions {
    /// The model's own positions, or unknown ones.
    Models,
    /// Settings that transformers needs.
    Scaling(Value),
    /// Why it cannot be told.
    None(String),
}

fn positions(reader: &AdapterReader, base: &File) -> Result<Positions> {
    let Some(spec) = &reader.meta().rope else { return Ok(Positions::Models) };
    let hp = Hparams::as_trained(base)?;
    let n_ctx = reader.meta().n_ctx.unwrap_or_else(|| default_ctx(spec, &hp).0);
    let plan = Plan::new(spec, &hp, n_ctx)?;
    let own = Spec::declared(&hp).and_then(|own| Plan::new(&own, &hp, n_ctx));
    if own.is_ok_and(|own| plan.same_positions(&own)) {
        return Ok(Positions::Models);
    }
    Ok(rope_scaling(&plan, &hp).map_or_else(Positions::None, Positions::Scaling))
}

/// The model's repository, as the adapter or the model's file notes it.
fn noted(reader: &AdapterReader, base: &File) -> Option<String> {
    let of_base = ["general.source.repo_url", "general.repo_url"].map(|key| (base, key));
    let text = |file: &File, key: &str| file.get_opt::<String>(key).ok().flatten();
    let [owner, name] = super::BASE.map(|key| text(reader.file(), key));
    let noted = owner.zip(name).map(|(owner, name)| format!("{owner}/{name}"));
    let urls = [(reader.file(), "general.base_model.0.repo_url")].into_iter().chain(of_base);
    // Behind the name of whatever host.
    let of_url = |(file, key)| {
        let url = text(file, key)?;
        Some(url.split_once("://")?.1.split_once('/')?.1.trim_end_matches('/').to_owned())
    };
    let of_import = text(base, keys::SOURCE);
    noted.into_iter().chain(urls.filter_map(of_url)).chain(of_import).find(|name| is_repository(name))
}

/// Target modules as PEFT finds them, by the end of a name: `q_proj` where all of that name have a pair, else each by its
/// whole name.
fn by_suffix(targets: Vec<String>, base: &File, names: &Modules) -> Vec<String> {
    let end = |module: &str| {
        let mut parts: Vec<&str> = module.rsplit('.').collect();
        // Some versions of transformers have the maps of each expert under the same name.
        parts.truncate(if module.contains("expert") { 2 } else { 1 });
        parts.reverse();
        parts.join(".")
    };
    let output = names.module(OUTPUT);
    let all = base.tensors().iter().filter_map(|t| names.module(&t.name)).chain(output);
    let with: BTreeSet<&str> = targets.iter().map(String::as_str).collect();
    let without: BTreeSet<String> = all.filter(|m| !with.contains(m.as_str())).map(|m| end(&m)).collect();
    let short = |module: &String| {
        let end = end(module);
        if without.contains(&end) {
            module.clone()
        } else {
            end
        }
    };
    targets.iter().map(short).collect::<BTreeSet<_>>().into_iter().collect()
}

fn config(
    reader: &AdapterReader,
    repository: Option<&str>,
    targets: &[String],
    modules: &[String],
    pairs: &BTreeMap<String, &PairInfo>,
) -> Value {
    let rank = pairs.values().map(|p| p.rank).max().unwrap_or(1);
    // An alpha of 0 means a factor of 1.
    let alpha_of = |rank: usize| match reader.alpha() {
        0.0 => rank as f64,
        alpha => f64::from(alpha),
    };
    let number = |x: f64| if x.fract() == 0.0 && x.abs() < 1e15 { json!(x as i64) } else { json!(x) };
    let others = pairs.iter().filter(|(_, p)| p.rank != rank);
    let rank_pattern: serde_json::Map<_, _> =
        others.clone().map(|(m, p)| (exactly(m), json!(p.rank))).collect();
    let alpha_pattern: serde_json::Map<_, _> = others
        .filter(|(_, p)| alpha_of(p.rank) != alpha_of(rank))
        .map(|(m, p)| (exactly(m), number(alpha_of(p.rank))))
        .collect();
    json!({
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": repository.unwrap_or_default(),
        "inference_mode": true,
        "r": rank,
        "lora_alpha": number(alpha_of(rank)),
        "rank_pattern": rank_pattern,
        "alpha_pattern": alpha_pattern,
        "target_modules": targets,
        "modules_to_save": if modules.is_empty() { json!(null) } else { json!(modules) },
        "lora_dropout": 0.0,
        "bias": "none",
        "fan_in_fan_out": false,
        "use_rslora": false,
        "use_dora": false,
        "init_lora_weights": true,
    })
}

/// A regular expression that the module alone matches.
fn exactly(module: &str) -> String {
    module.replace('.', r"\.")
}

/// Settings that PEFT has no key for, in the header, where [`super::from_peft`] finds it.
fn header(reader: &AdapterReader) -> Map<String, Value> {
    let meta = reader.meta();
    let notes = [
        ("format", Some("pt".to_owned())),
        (keys::VERSION, Some(env!("CARGO_PKG_VERSION").to_owned())),
        (keys::LORA_ROPE, meta.rope.as_ref().map(ToString::to_string)),
        (keys::LORA_N_CTX, meta.n_ctx.map(|n| n.to_string())),
        (keys::LORA_BASE, meta.base.clone()),
        (keys::LORA_STEPS, meta.steps.map(|n| n.to_string())),
        (keys::LORA_DATA, meta.data.clone()),
    ];
    let text = |key: &'static str| (key, reader.file().get_opt::<String>(key).ok().flatten());
    let number =
        |key: &'static str| (key, reader.file().get_opt::<u64>(key).ok().flatten().map(|n| n.to_string()));
    let more = super::TEXTS.map(text).into_iter().chain(super::NUMBERS.map(number));
    notes.into_iter().chain(more).filter_map(|(key, value)| Some((key.to_owned(), value?.into()))).collect()
}
