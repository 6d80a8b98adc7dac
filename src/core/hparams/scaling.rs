//! The rope scaling that a file declares.

use std::cell::RefCell;

use gguf::{File, Result};

use super::read::{checked_factors, factors, KeyReader};
use super::{LayerAttention, MAX_CTX};

const FREQS: &str = "rope_freqs.weight";
const LONG: &str = "rope_factors_long.weight";
const SHORT: &str = "rope_factors_short.weight";

/// The rope scaling a file declares for itself (`{arch}.rope.scaling.*`), with its factor tensors.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct RopeScaling {
    /// `none`, `linear`, `yarn`, `longrope`, or a type that nothing here computes; absent when the file says nothing. A
    /// factor without a type is `linear`, as in llama.cpp.
    pub kind: Option<String>,
    /// `scaling.factor`, or `rope.scale_linear` of old files; above 0 (a stored 0 means unset).
    pub factor: Option<f64>,
    /// The trained window where `context_length` is an extended one: `scaling.original_context_length`, else
    /// what `convert` kept of `context_length`; tokens.
    pub n_ctx_orig: Option<u32>,
    /// True if `n_ctx_orig` is the `context_length` that `convert` kept: then the scaling itself names no original
    /// context.
    pub n_ctx_orig_kept: bool,
    /// `scaling.attn_factor`.
    pub attn_factor: Option<f64>,
    /// `scaling.yarn_ext_factor`; absent when negative, which is how files say unset.
    pub yarn_ext_factor: Option<f64>,
    /// `scaling.yarn_attn_factor`.
    pub yarn_attn_factor: Option<f64>,
    /// `scaling.yarn_beta_fast`.
    pub yarn_beta_fast: Option<f64>,
    /// `scaling.yarn_beta_slow`.
    pub yarn_beta_slow: Option<f64>,
    /// `scaling.yarn_log_multiplier`: m, where YaRN's magnitude is divided by `0.1 m ln(factor) + 1`.
    pub yarn_log_mul: Option<f64>,
    /// `rope_freqs.weight`: what the angle of each pair is divided by, `[n_rot/2]`.
    pub freq_factors: Option<Vec<f32>>,
    /// `rope_factors_long.weight`, `[n_rot/2]`.
    pub long_factors: Option<Vec<f32>>,
    /// `rope_factors_short.weight`, `[n_rot/2]`.
    pub short_factors: Option<Vec<f32>>,
    /// `ropewalk.rope.spec`: the whole spec as ropewalk's `convert` wrote it.
    pub spec: Option<String>,
    /// Why the keys cannot be used, where they cannot: the first that is damaged.
    pub fault: Option<String>,
}

/// A value, or the first fault kept.
fn read_or<T>(fault: &RefCell<Option<String>>, read: Result<Option<T>>) -> Option<T> {
    read.unwrap_or_else(|e| {
        let what = match e {
            gguf::Error::Gguf(e) => e.defect.to_string(),
            other => other.to_string(),
        };
        fault.borrow_mut().get_or_insert(what);
        None
    })
}

/// The factor of `rope.scaling.mscale` (m) on a magnitude that is computed as for m = 1: `(0.1 m ln(factor) + 1) /
/// (0.1 ln(factor) + 1)`. As in transformers it counts only along with `mscale_all_dim`; llama.cpp's key for that goes
/// first, and has no m.
fn magnitude_over_usual(keys: &KeyReader<'_>, factor: Option<f64>, mscale: Option<f64>) -> Option<f64> {
    let beside = keys.source("rope.scaling.yarn_log_multiplier")?;
    let log = factor.filter(|&f| f > 1.0)?.ln();
    let m = mscale.filter(|_| beside.ends_with("mscale_all_dim"))?;
    Some((0.1 * m * log + 1.0) / (0.1 * log + 1.0)).filter(|&x| x != 1.0)
}

impl RopeScaling {
    /// Reads what a file declares. What cannot be read is no error here, for another spec may be asked for: the first such
    /// key is kept in `fault`.
    pub(super) fn from_gguf(keys: &KeyReader<'_>, n_rot: Option<usize>) -> Result<RopeScaling> {
        let file = keys.file;
        let fault = RefCell::new(None);
        let key = |name: &str| format!("rope.scaling.{name}");
        // Some writers say 0 where they mean nothing.
        let unset_0 = |name: &str| read_or(&fault, keys.non_negative(&key(name))).filter(|&x| x != 0.0);
        let kind = read_or(&fault, file.get_opt::<String>(&keys.key("rope.scaling.type")));
        let factor = match keys.source("rope.scaling.factor") {
            Some(_) => unset_0("factor"),
            None => read_or(&fault, keys.non_negative("rope.scale_linear")).filter(|&x| x != 0.0),
        };
        let freq_factors = n_rot.map_or(Ok(None), |n_rot| factors(file, FREQS, n_rot))?;
        let kind = kind.and_then(|kind| match kind.as_str() {
            "" => None,
            // In text the three positions of `mrope` are one. What `llama3` says is in the tensor of factors.
            "default" | "mrope" => Some("none".into()),
            "llama3" if freq_factors.is_some() => Some("none".into()),
            "su" => Some("longrope".into()),
            _ => Some(kind),
        });
        let kind = kind.or_else(|| factor.map(|_| "linear".into()));
        let n_ctx_orig = read_or(&fault, keys.count_opt(&key("original_context_length"), 0, MAX_CTX));
        let ext_factor = read_or(&fault, keys.finite(&key("yarn_ext_factor"))).filter(|&x| x >= 0.0);
        let tensor = |name| read_or(&fault, n_rot.map_or(Ok(None), |n_rot| factors(file, name, n_rot)));
        let attn_factor = unset_0("attn_factor");
        let mscale = match kind.as_deref() {
            Some("yarn") => magnitude_over_usual(keys, factor, unset_0("mscale")),
            _ => None,
        };
        Ok(RopeScaling {
            kind,
            factor,
            n_ctx_orig: n_ctx_orig.filter(|&n| n > 0).and_then(|n| u32::try_from(n).ok()),
            n_ctx_orig_kept: false,
            attn_factor: mscale.map(|m| m * attn_factor.unwrap_or(1.0)).or(attn_factor),
            yarn_ext_factor: ext_factor,
            yarn_attn_factor: unset_0("yarn_attn_factor"),
            yarn_beta_fast: unset_0("yarn_beta_fast"),
            yarn_beta_slow: unset_0("yarn_beta_slow"),
            yarn_log_mul: unset_0("yarn_log_multiplier"),
            freq_factors,
            long_factors: tensor(LONG),
            short_factors: tensor(SHORT),
            spec: None,
            fault: fault.into_inner(),
        })
    }

    /// Puts back the factors as they were before `convert` baked a method into their tensors.
    pub(super) fn restore_factors(&mut self, file: &File, n_rot: usize) -> Result<()> {
        let key = super::keys::ORIG_ROPE_FREQS;
        if let Some(factors) = file.get_opt::<Vec<f32>>(key)? {
            let none = factors.is_empty();
            self.freq_factors = if none { None } else { Some(checked_factors(file, key, factors, n_rot)?) };
        }
        if file.value(super::keys::ORIG_ROPE_FACTORS).is_some() {
            (self.long_factors, self.short_factors) = (None, None);
        }
        Ok(())
    }
}

/// Rotary dimensions of the layers that the file's factor tensors are for; `None` when there are no such
/// layers.
pub(super) fn n_rot(file: &File, attention: &[LayerAttention]) -> Result<Option<usize>> {
    let mut sizes = attention.iter().filter_map(|a| a.rotation).filter(|r| r.scaled).map(|r| r.n_rot);
    let first = sizes.next();
    let other = sizes.find(|n| Some(*n) != first);
    match (other, [FREQS, LONG, SHORT].into_iter().find(|name| file.tensor(name).is_some())) {
        (Some(n), Some(name)) => {
            let what =
                format!("expected one rotary width in all layers it is for, found {:?} and {n}", first);
            Err(file.error(name, what))
        }
        _ => Ok(first),
    }
}
