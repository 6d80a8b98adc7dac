//! Reads adapter files: llama.cpp's LoRA files, with the metadata keys and replaced tensors that ropewalk
//! adds to them. Structure, types and shapes are checked before any value is used.

use std::collections::BTreeMap;
use std::path::Path;

use gguf::{Error, File, Result, TensorInfo};

use super::{clex, fingerprint, refuse, AdapterMeta, AdapterSpec, ClexInfo};
use crate::hparams::keys;
use crate::ids::{LinearId, ParamId, LANDMARK_EMBD, LANDMARK_OUTPUT, TOKEN_EMBD};
use crate::landmark::Landmarks;

const OUTPUT: &str = "output.weight";
const LORA_A: &str = ".lora_a";
const LORA_B: &str = ".lora_b";
/// Characters of a text from a file that an error shows.
const SHOWN: usize = 64;

/// A low-rank pair of an adapter file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PairInfo {
    /// Name of the weight it is added to, as the file has it: `output.weight` also for a model with tied
    /// embeddings.
    pub weight: String,
    /// Width of the input.
    pub n_in: usize,
    /// Rank.
    pub rank: usize,
    /// Width of the output.
    pub n_out: usize,
}

impl PairInfo {
    /// Tensor `[n_in, rank]`.
    pub fn name_a(&self) -> String {
        format!("{}{LORA_A}", self.weight)
    }
    /// Tensor `[rank, n_out]`.
    pub fn name_b(&self) -> String {
        format!("{}{LORA_B}", self.weight)
    }
}

/// A tensor of an adapter file that replaces one of the model as a whole (`modules_to_save` in PEFT).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModuleInfo {
    /// Name of the model's tensor.
    pub name: String,
    /// Shape, `ne[0]` first.
    pub shape: Vec<usize>,
}

/// An open adapter file whose structure was checked.
#[derive(Debug)]
pub struct AdapterReader {
    file: File,
    arch: String,
    alpha: f32,
    meta: AdapterMeta,
    pairs: Vec<PairInfo>,
    modules: Vec<ModuleInfo>,
    landmarks: Option<Landmarks>,
    clex: Option<ClexInfo>,
    keeps_output: bool,
}

impl AdapterReader {
    /// Opens a file and checks all that can be checked without a model.
    ///
    /// # Errors
    /// The file is no adapter or no LoRA; half of a pair is missing; ranks differ; alpha is not finite; a tensor cannot be converted to F32; a metadata key has another type; half
    /// of the network of CLEX is missing, or it does not suit the spec the adapter was trained under.
    pub fn open(path: impl AsRef<Path>) -> Result<AdapterReader> {
        let file = File::open(path.as_ref())?;
        for (key, expected) in [("general.type", "adapter"), ("adapter.type", "lora")] {
            let found: String = file.get(key)?;
            if found != expected {
                return Err(refuse(&file, key, quoted(expected), quoted(&found)));
            }
        }
        let activated = "adapter.alora.invocation_tokens";
        if file.value(activated).is_some() {
            let expected = "an adapter that is always on";
            return Err(refuse(&file, activated, expected, "one that tokens switch on"));
        }
        let arch: String = file.get("general.architecture")?;
        // llama.cpp reads a missing alpha as 0, and 0 as no factor: the user's scale alone counts.
        let alpha = file.get_opt::<f32>(keys::LORA_ALPHA)?.unwrap_or(0.0);
        if !alpha.is_finite() {
            return Err(refuse(&file, keys::LORA_ALPHA, "a finite number", alpha));
        }
        let meta = AdapterMeta::read(&file)?;
        let (pairs, modules) = tensors(&file)?;
        let clex = clex::info(&file, &meta)?;
        if pairs.is_empty() && modules.is_empty() && clex.is_none() {
            return Err(refuse(&file, "tensors", "at least one", "none"));
        }
        let landmarks = landmarks(&file, &meta)?;
        let keeps_output = file.get_opt(keys::LORA_KEEPS_OUTPUT)?.unwrap_or(false);
        Ok(AdapterReader { arch, alpha, meta, pairs, modules, landmarks, clex, keeps_output, file })
    }

    /// Checks that the adapter suits `base`: the same architecture, and tensors of the same names and shapes.
    /// Unless `force`, also that it was trained on this very model, whose [`fingerprint`] is `base_print`.
    ///
    /// # Errors
    /// Another architecture; a tensor that the model lacks or has in another shape; another model, where the
    /// adapter tells which one it was trained on.
    pub fn check(&self, base: &File, base_print: &str, force: bool) -> Result<()> {
        let arch: String = base.get("general.architecture")?;
        if arch != self.arch {
            let expected = format!("{} as the model has", quoted(&arch));
            return Err(refuse(&self.file, "general.architecture", expected, quoted(&self.arch)));
        }
        for p in &self.pairs {
            if p.weight == TOKEN_EMBD {
                let expected = format!("a pair for {OUTPUT}");
                return Err(refuse(&self.file, &p.weight, expected, "one for the embedding"));
            }
            self.check_shape(base, &p.weight, target(base, &p.weight), &[p.n_in, p.n_out])?;
        }
        for m in &self.modules {
            if ParamId::added(&m.name).is_none() {
                self.check_shape(base, &m.name, target(base, &m.name), &m.shape)?;
                continue;
            }
            // A row as wide as those of the embedding.
            let n_embd = base.tensor(TOKEN_EMBD).and_then(|t| t.shape.first()).map_or(0, |&n| n as usize);
            if m.shape != [n_embd] {
                return Err(refuse(&self.file, &m.name, format!("[{n_embd}]"), format!("{:?}", m.shape)));
            }
        }
        match &self.meta.base {
            Some(trained_on) if !force && trained_on != base_print => {
                let expected = format!("{base_print} of {}", base.path().display());
                let found = format!("{}: it was trained on another model (force it?)", quoted(trained_on));
                Err(refuse(&self.file, keys::LORA_BASE, expected, found))
            }
            _ => Ok(()),
        }
    }

    fn check_shape(&self, base: &File, name: &str, target: &str, found: &[usize]) -> Result<()> {
        let Some(info) = base.tensor(target).filter(|t| !t.name.starts_with("rope_")) else {
            return Err(refuse(&self.file, name, "a weight of the model", "one it has not"));
        };
        let expected = trimmed(info);
        if expected != trim(found) {
            let expected = format!("the model's {expected:?}");
            return Err(refuse(&self.file, name, expected, format!("{found:?}")));
        }
        Ok(())
    }

    /// The file.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// `general.architecture` of the model it is for.
    pub fn arch(&self) -> &str {
        &self.arch
    }

    /// `adapter.lora.alpha`, to be divided by the rank; 0 when the user's scale alone is the factor.
    pub fn alpha(&self) -> f32 {
        self.alpha
    }

    /// The metadata that tells how it was trained.
    pub fn meta(&self) -> &AdapterMeta {
        &self.meta
    }

    /// Pairs of the adapter, in the order of names.
    pub fn pairs(&self) -> &[PairInfo] {
        &self.pairs
    }

    /// The landmarks it was trained with, if any: then the embedding of the landmark token and its row of the output
    /// matrix are among the modules.
    pub fn landmarks(&self) -> Option<Landmarks> {
        self.landmarks
    }

    /// The tensors that replace those of the model or are added to them, in the order of the file.
    pub fn modules_to_save(&self) -> &[ModuleInfo] {
        &self.modules
    }

    /// Returns true if an embedding among its modules is for the input alone: a model whose output is its embedding
    /// keeps its own as the output, as under PEFT. Otherwise the output follows.
    pub fn keeps_output(&self) -> bool {
        self.keeps_output
    }

    /// The tensors that it replaces in `base`: an output that is the embedding follows it.
    fn replaced(&self, base: &File) -> Vec<&str> {
        let mut names: Vec<&str> = self.modules.iter().map(|m| m.name.as_str()).collect();
        let follows = names.contains(&TOKEN_EMBD) && !self.keeps_output && base.tensor(OUTPUT).is_none();
        if follows && !names.contains(&OUTPUT) {
            names.push(OUTPUT);
        }
        names
    }

    /// The shape of the network of CLEX that it brings.
    pub fn clex(&self) -> Option<ClexInfo> {
        self.clex
    }

    /// The factor of `B A`: `scale * alpha / rank`, or `scale` where alpha is 0.
    ///
    /// # Errors
    /// When that is not finite.
    pub fn pair_scale(&self, pair: &PairInfo, scale: f32) -> Result<f32> {
        let of_pair = if self.alpha == 0.0 { scale } else { scale * self.alpha / pair.rank as f32 };
        let refused = || refuse(&self.file, keys::LORA_ALPHA, "a finite scale", of_pair);
        of_pair.is_finite().then_some(of_pair).ok_or_else(refused)
    }

    /// A tensor as F32, read by `dequantize` (such as `dequantize_tensor` of crate `ggml`).
    ///
    /// # Errors
    /// A value that is not finite; those of `dequantize`.
    pub fn values<E: From<Error>>(
        &self,
        name: &str,
        dequantize: impl Fn(&File, &TensorInfo) -> Result<Vec<f32>, E>,
    ) -> Result<Vec<f32>, E> {
        let info = self.file.tensor(name).ok_or_else(|| refuse(&self.file, name, "a tensor", "none"))?;
        let values = dequantize(&self.file, info)?;
        match values.iter().position(|x| !x.is_finite()) {
            Some(i) => {
                let found = format_args!("{} at {i}", values[i]);
                Err(refuse(&self.file, name, "finite values", found).into())
            }
            None => Ok(values),
        }
    }

    /// The values that replace the model's tensor at this scale, F32: `w + scale * (new - w)`, which at 1 is
    /// the new tensor itself. `base` is the file the old values `w` are read from.
    ///
    /// # Errors
    /// Returns the errors of [`AdapterReader::values`].
    pub fn module_values<E: From<Error>>(
        &self,
        module: &ModuleInfo,
        scale: f32,
        base: &File,
        dequantize: impl Fn(&File, &TensorInfo) -> Result<Vec<f32>, E>,
    ) -> Result<Vec<f32>, E> {
        let mut values = self.values(&module.name, &dequantize)?;
        if scale != 1.0 {
            let info = base.tensor(target(base, &module.name));
            let info = info.ok_or_else(|| refuse(base, &module.name, "a tensor to replace", "none"))?;
            let own = dequantize(base, info)?;
            values.iter_mut().zip(own).for_each(|(new, w)| *new = w + scale * (*new - w));
        }
        Ok(values)
    }
}

/// The tensor of `base` that a pair of `weight` changes or that replaces it: with tied embeddings the output is
/// the embedding's tensor.
pub fn target<'a>(base: &File, weight: &'a str) -> &'a str {
    if weight == OUTPUT && base.tensor(OUTPUT).is_none() {
        TOKEN_EMBD
    } else {
        weight
    }
}

/// Opens adapters that are to be used together on `base`, and checks each against it. With `force`, adapters
/// of another model with the same tensors are accepted. Returns each with the scale that was asked for.
///
/// # Errors
/// Returns the errors of [`AdapterReader::open`] and [`AdapterReader::check`], and an error if a scale is not finite,
/// or if two adapters replace the same tensor or both bring a network of CLEX.
pub fn open_all(specs: &[AdapterSpec], base: &File) -> Result<Vec<(AdapterReader, f32)>> {
    let base_print = if specs.is_empty() { String::new() } else { fingerprint(base) };
    let mut out: Vec<(AdapterReader, f32)> = Vec::with_capacity(specs.len());
    for spec in specs {
        let opened = AdapterReader::open(&spec.path)?;
        if !spec.scale.is_finite() {
            return Err(refuse(&opened.file, "scale", "a finite number", spec.scale));
        }
        if opened.landmarks.is_some() && spec.scale != 1.0 {
            let expected = "1: landmark attention needs the whole adapter";
            return Err(refuse(&opened.file, "scale", expected, spec.scale));
        }
        opened.check(base, &base_print, spec.force)?;
        if let Some((other, _)) = out.iter().find(|(o, _)| opened.clex.and(o.clex).is_some()) {
            let what = format!("{} brings a network of CLEX already", other.file.path().display());
            return Err(opened.file.error(&ParamId::ClexUp.to_string(), what));
        }
        for name in opened.replaced(base) {
            let taken = |o: &&(AdapterReader, f32)| o.0.replaced(base).contains(&name);
            if let Some((other, _)) = out.iter().find(taken) {
                let what = format!("{} replaces it already", other.file.path().display());
                return Err(opened.file.error(name, what));
            }
        }
        out.push((opened, spec.scale));
    }
    Ok(out)
}

/// The landmarks of an adapter's training; an error where it does not have what they need, or has it without them.
fn landmarks(file: &File, meta: &AdapterMeta) -> Result<Option<Landmarks>> {
    let named = meta.attention.as_deref().filter(|text| Landmarks::are_named(text));
    let landmarks = named.map(str::parse::<Landmarks>).transpose();
    let landmarks = landmarks.map_err(|e| file.error(keys::LORA_ATTENTION, e))?;
    for name in [LANDMARK_EMBD, LANDMARK_OUTPUT] {
        match (landmarks, file.tensor(name)) {
            (Some(_), None) => {
                return Err(refuse(file, name, "a tensor, as it was trained with landmarks", "none"))
            }
            (None, Some(_)) => {
                let found = meta.attention.as_deref().map_or_else(|| "none".into(), quoted);
                let expected = format!("landmark, for there is {name}");
                return Err(refuse(file, keys::LORA_ATTENTION, expected, found));
            }
            _ => {}
        }
    }
    Ok(landmarks)
}

fn quoted(text: &str) -> String {
    format!("{:?}", text.chars().take(SHOWN).collect::<String>())
}

/// The shape without trailing dimensions of 1; at least one dimension.
fn trimmed(info: &TensorInfo) -> Vec<usize> {
    let shape: Vec<usize> = info.shape.iter().map(|&n| n as usize).collect();
    trim(&shape).to_vec()
}

fn trim(shape: &[usize]) -> &[usize] {
    &shape[..shape.iter().rposition(|&n| n != 1).map_or(1, |i| i + 1)]
}

fn tensors(file: &File) -> Result<(Vec<PairInfo>, Vec<ModuleInfo>)> {
    let mut halves: BTreeMap<&str, [Option<[usize; 2]>; 2]> = BTreeMap::new();
    let mut modules = Vec::new();
    for t in file.tensors() {
        if !t.dtype.can_dequantize() {
            return Err(refuse(file, &t.name, "a float or quantized type", t.dtype.name()));
        }
        if clex::is_part(&t.name) {
            continue;
        }
        let (weight, side) = match (t.name.strip_suffix(LORA_A), t.name.strip_suffix(LORA_B)) {
            (Some(weight), _) => (weight, 0),
            (_, Some(weight)) => (weight, 1),
            _ => {
                modules.push(ModuleInfo { name: t.name.clone(), shape: trimmed(t) });
                continue;
            }
        };
        if LinearId::from_weight(weight).is_some_and(|id| id.role.is_stack()) {
            let expected = "a pair for a linear map of a whole layer";
            return Err(refuse(file, &t.name, expected, "one for the weights of experts"));
        }
        if t.shape.iter().skip(2).any(|&n| n != 1) {
            return Err(refuse(file, &t.name, "two dimensions", format_args!("{:?}", t.shape)));
        }
        let second = t.shape.get(1).map_or(1, |&n| n as usize);
        halves.entry(weight).or_default()[side] = Some([t.shape[0] as usize, second]);
    }
    let mut pairs = Vec::with_capacity(halves.len());
    for (weight, sides) in halves {
        let (a, b) = match sides {
            [Some(a), Some(b)] => (a, b),
            [a, _] => {
                let missing = format!("{weight}{}", if a.is_some() { LORA_B } else { LORA_A });
                return Err(refuse(file, &missing, "the other half of a pair", "none"));
            }
        };
        let pair = PairInfo { weight: weight.to_owned(), n_in: a[0], rank: a[1], n_out: b[1] };
        if b[0] != pair.rank {
            let expected = format!("rank {} as {} has", pair.rank, pair.name_a());
            return Err(refuse(file, &pair.name_b(), expected, b[0]));
        }
        pairs.push(pair);
    }
    Ok((pairs, modules))
}
