//! Adapter files, read: llama.cpp's LoRA files, and what ours say beyond them. Nothing of a file is believed unchecked.

use std::collections::BTreeMap;
use std::path::Path;

use gguf::{Error, File, Result, TensorInfo};

use super::{fingerprint, refuse, AdapterSpec};
use crate::hparams::keys;
use crate::ids::TOKEN_EMBD;
use crate::rope::Spec;

const OUTPUT: &str = "output.weight";
const LORA_A: &str = ".lora_a";
const LORA_B: &str = ".lora_b";
/// Names in errors are cut to so many characters.
const SHOWN: usize = 64;

/// What an adapter says of its making. Files of other programs say nothing.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Keys {
    /// The spec it was trained under, every default filled in.
    pub rope: Option<Spec>,
    /// Context it was trained at, tokens.
    pub n_ctx: Option<usize>,
    /// [`fingerprint`] of the model it was trained on.
    pub base: Option<String>,
    /// Optimiser steps.
    pub steps: Option<u64>,
    /// What it was trained on, in words.
    pub data: Option<String>,
    /// Whether alpha was meant over the square root of the rank (rsLoRA).
    pub rslora: bool,
}

/// A pair of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PairInfo {
    /// The weight it stands beside, as the file names it: `output.weight` for the head of a model with tied embeddings too.
    pub weight: String,
    /// Width of what goes in.
    pub n_in: usize,
    /// Rank.
    pub rank: usize,
    /// Width of what comes out.
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

/// A tensor of a file that takes the place of the model's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WholeInfo {
    /// The model's tensor.
    pub name: String,
    /// Shape, `ne[0]` first.
    pub shape: Vec<usize>,
}

/// An adapter file, its structure checked.
#[derive(Debug)]
pub struct Opened {
    file: File,
    arch: String,
    alpha: f32,
    keys: Keys,
    pairs: Vec<PairInfo>,
    whole: Vec<WholeInfo>,
}

impl Opened {
    /// Opens a file and checks what can be checked without a model.
    ///
    /// # Errors
    /// Not an adapter, not a LoRA, a half of a pair missing, ranks that differ or exceed the weight's dimensions, an alpha
    /// that is not finite, a tensor that cannot be converted to F32, keys of another type.
    pub fn open(path: &Path) -> Result<Opened> {
        let file = File::open(path)?;
        for (key, expected) in [("general.type", "adapter"), ("adapter.type", "lora")] {
            let found: String = file.get(key)?;
            if found != expected {
                return Err(refuse(&file, key, quoted(expected), quoted(&found)));
            }
        }
        let activated = "adapter.alora.invocation_tokens";
        if file.value(activated).is_some() {
            return Err(refuse(
                &file,
                activated,
                "an adapter that is always on",
                "one that tokens switch on",
            ));
        }
        let arch: String = file.get("general.architecture")?;
        // None is 0 to llama.cpp, and 0 leaves the strength alone to be the scale.
        let alpha = file.get_opt::<f32>(keys::LORA_ALPHA)?.unwrap_or(0.0);
        if !alpha.is_finite() {
            return Err(refuse(&file, keys::LORA_ALPHA, "a finite number", alpha));
        }
        let keys = read_keys(&file)?;
        let (pairs, whole) = tensors(&file)?;
        if pairs.is_empty() && whole.is_empty() {
            return Err(refuse(&file, "tensors", "at least one", "none"));
        }
        Ok(Opened { arch, alpha, keys, pairs, whole, file })
    }

    /// Checks that it was made for a model like `base`, and unless `force`, for that very one, whose [`fingerprint`] is given.
    ///
    /// # Errors
    /// Another architecture, a tensor the model lacks or has in another shape; another model, where the adapter says which.
    pub fn check(&self, base: &File, base_print: &str, force: bool) -> Result<()> {
        let arch: String = base.get("general.architecture")?;
        if arch != self.arch {
            let expected = format!("{} as the model has", quoted(&arch));
            return Err(refuse(&self.file, "general.architecture", expected, quoted(&self.arch)));
        }
        for p in &self.pairs {
            if p.weight == TOKEN_EMBD {
                let expected = format!("a pair beside {OUTPUT} for the output");
                return Err(refuse(&self.file, &p.weight, expected, "one beside the embedding"));
            }
            self.check_shape(base, &p.weight, target(base, &p.weight), &[p.n_in, p.n_out])?;
        }
        for w in &self.whole {
            self.check_shape(base, &w.name, &w.name, &w.shape)?;
        }
        match &self.keys.base {
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

    /// `adapter.lora.alpha`, to be divided by the rank; 0 when the scale is the strength alone.
    pub fn alpha(&self) -> f32 {
        self.alpha
    }

    /// What it says of its making.
    pub fn keys(&self) -> &Keys {
        &self.keys
    }

    /// Its pairs, in the order of names.
    pub fn pairs(&self) -> &[PairInfo] {
        &self.pairs
    }

    /// Its other tensors.
    pub fn whole(&self) -> &[WholeInfo] {
        &self.whole
    }

    /// The factor of `B A`: `strength * alpha / rank`, or `strength` where alpha is 0.
    ///
    /// # Errors
    /// When that is not finite.
    pub fn scale(&self, pair: &PairInfo, strength: f32) -> Result<f32> {
        let scale = if self.alpha == 0.0 { strength } else { strength * self.alpha / pair.rank as f32 };
        match scale.is_finite() {
            true => Ok(scale),
            false => Err(refuse(&self.file, keys::LORA_ALPHA, "a finite scale", scale)),
        }
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

    /// What takes the place of the model's tensor at this strength, F32: `w + strength * (new - w)`, at 1 the new one itself.
    ///
    /// # Errors
    /// As [`Opened::values`].
    pub fn whole_values<E: From<Error>>(
        &self,
        whole: &WholeInfo,
        strength: f32,
        base: &File,
        dequantize: impl Fn(&File, &TensorInfo) -> Result<Vec<f32>, E>,
    ) -> Result<Vec<f32>, E> {
        let mut values = self.values(&whole.name, &dequantize)?;
        if strength != 1.0 {
            let info = base.tensor(&whole.name);
            let info = info.ok_or_else(|| refuse(base, &whole.name, "a tensor to replace", "none"))?;
            let own = dequantize(base, info)?;
            values.iter_mut().zip(own).for_each(|(new, w)| *new = w + strength * (*new - w));
        }
        Ok(values)
    }
}

/// The tensor of `base` that a pair beside `weight` changes: with tied embeddings the output is the embedding's tensor.
pub fn target<'a>(base: &File, weight: &'a str) -> &'a str {
    match weight == OUTPUT && base.tensor(OUTPUT).is_none() {
        true => TOKEN_EMBD,
        false => weight,
    }
}

/// Opens adapters that are to be used together on `base`, and checks them against it; `force` takes those of another model
/// with the same tensors too.
///
/// # Errors
/// As [`Opened::open`] and [`Opened::check`]; a strength that is not finite; two that replace the same tensor.
pub fn open_all(specs: &[AdapterSpec], base: &File, force: bool) -> Result<Vec<(Opened, f32)>> {
    let base_print = if specs.is_empty() { String::new() } else { fingerprint(base) };
    let mut out: Vec<(Opened, f32)> = Vec::with_capacity(specs.len());
    for spec in specs {
        let opened = Opened::open(&spec.path)?;
        if !spec.strength.is_finite() {
            return Err(refuse(&opened.file, "strength", "a finite number", spec.strength));
        }
        opened.check(base, &base_print, force)?;
        for whole in opened.whole() {
            let taken = |o: &&(Opened, f32)| o.0.whole.iter().any(|w| w.name == whole.name);
            if let Some((other, _)) = out.iter().find(taken) {
                let what = format!("{} replaces it already", other.file.path().display());
                return Err(opened.file.error(&whole.name, what));
            }
        }
        out.push((opened, spec.strength));
    }
    Ok(out)
}

fn quoted(text: &str) -> String {
    format!("{:?}", text.chars().take(SHOWN).collect::<String>())
}

fn read_keys(file: &File) -> Result<Keys> {
    let rope = match file.get_opt::<String>(keys::LORA_ROPE)? {
        Some(text) => Some(text.parse::<Spec>().map_err(|e| file.error(keys::LORA_ROPE, e.to_string()))?),
        None => None,
    };
    Ok(Keys {
        rope,
        n_ctx: file.get_opt::<u32>(keys::LORA_N_CTX)?.map(|n| n as usize),
        base: file.get_opt(keys::LORA_BASE)?,
        steps: file.get_opt(keys::LORA_STEPS)?,
        data: file.get_opt(keys::LORA_DATA)?,
        rslora: file.get_opt(keys::LORA_RSLORA)?.unwrap_or(false),
    })
}

/// Shape less trailing ones, at least one dimension.
fn trimmed(info: &TensorInfo) -> Vec<usize> {
    let shape: Vec<usize> = info.shape.iter().map(|&n| n as usize).collect();
    trim(&shape).to_vec()
}

fn trim(shape: &[usize]) -> &[usize] {
    &shape[..shape.iter().rposition(|&n| n != 1).map_or(1, |i| i + 1)]
}

fn tensors(file: &File) -> Result<(Vec<PairInfo>, Vec<WholeInfo>)> {
    let mut halves: BTreeMap<&str, [Option<[usize; 2]>; 2]> = BTreeMap::new();
    let mut whole = Vec::new();
    for t in file.tensors() {
        if !t.dtype.can_dequantize() {
            return Err(refuse(file, &t.name, "a float or quantised type", t.dtype.name()));
        }
        let (weight, side) = match (t.name.strip_suffix(LORA_A), t.name.strip_suffix(LORA_B)) {
            (Some(weight), _) => (weight, 0),
            (_, Some(weight)) => (weight, 1),
            _ => {
                whole.push(WholeInfo { name: t.name.clone(), shape: trimmed(t) });
                continue;
            }
        };
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
        let most = pair.n_in.min(pair.n_out);
        if pair.rank > most {
            let expected = format!("a rank of at most {most}, the smaller dimension");
            return Err(refuse(file, &pair.name_a(), expected, pair.rank));
        }
        pairs.push(pair);
    }
    Ok((pairs, whole))
}
