//! The rope scaling that a file declares.

use gguf::{File, Result};

use super::read::{checked_factors, clip, factors, KeyReader};
use super::{LayerAttention, MAX_CTX};

const FREQS: &str = "rope_freqs.weight";
const LONG: &str = "rope_factors_long.weight";
const SHORT: &str = "rope_factors_short.weight";

/// The rope scaling a file declares for itself (`{arch}.rope.scaling.*`), with its factor tensors.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct RopeScaling {
    /// `none`, `linear`, `yarn`, `longrope`; absent when the file says nothing. A factor without a type is
    /// `linear`, as in llama.cpp.
    pub kind: Option<String>,
    /// `scaling.factor`, or `rope.scale_linear` of old files; above 0 (a stored 0 means unset).
    pub factor: Option<f64>,
    /// The trained window where `context_length` is an extended one: `scaling.original_context_length`, else
    /// what `convert` kept of `context_length`; tokens.
    pub n_ctx_orig: Option<u32>,
    /// Whether `n_ctx_orig` is what `convert` kept of `context_length`: then the scaling itself names no window.
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
}

impl RopeScaling {
    pub(super) fn from_gguf(keys: &KeyReader<'_>, n_rot: Option<usize>) -> Result<RopeScaling> {
        let file = keys.file;
        let scaling = |name: &str| -> Result<Option<f64>> { keys.positive(&format!("rope.scaling.{name}")) };
        let mut kind: Option<String> = file.get_opt(&keys.key("rope.scaling.type"))?;
        if let Some(kind) = &kind {
            if !["none", "linear", "yarn", "longrope"].contains(&kind.as_str()) {
                let what = format!("expected none, linear, yarn or longrope, found {:?}", clip(kind));
                return Err(keys.error("rope.scaling.type", what));
            }
        }
        let mut factor = keys.non_negative("rope.scaling.factor")?;
        if factor.is_none() {
            factor = keys.non_negative("rope.scale_linear")?;
        }
        let factor = factor.filter(|&f| f != 0.0);
        if kind.is_none() && factor.is_some() {
            kind = Some("linear".into());
        }
        let n_ctx_orig = keys.count_opt("rope.scaling.original_context_length", 0, MAX_CTX)?;
        let ext_factor = keys.finite("rope.scaling.yarn_ext_factor")?.filter(|&x| x >= 0.0);
        let tensor = |name| n_rot.map_or(Ok(None), |n_rot| factors(file, name, n_rot));
        Ok(RopeScaling {
            kind,
            factor,
            n_ctx_orig: n_ctx_orig.filter(|&n| n > 0).and_then(|n| u32::try_from(n).ok()),
            n_ctx_orig_kept: false,
            attn_factor: scaling("attn_factor")?,
            yarn_ext_factor: ext_factor,
            yarn_attn_factor: scaling("yarn_attn_factor")?,
            yarn_beta_fast: scaling("yarn_beta_fast")?,
            yarn_beta_slow: scaling("yarn_beta_slow")?,
            yarn_log_mul: keys.non_negative("rope.scaling.yarn_log_multiplier")?.filter(|&m| m != 0.0),
            freq_factors: tensor(FREQS)?,
            long_factors: tensor(LONG)?,
            short_factors: tensor(SHORT)?,
            spec: None,
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
