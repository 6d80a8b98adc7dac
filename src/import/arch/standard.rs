//! Keys that most families share (`TextModel.set_gguf_parameters` of llama.cpp's `conversion/base.py`).

use crate::config::Config;
use crate::keys::Keys;
use crate::tensor::Tensor;
use crate::{Error, Result};

/// Whole numbers, and their names in config.json.
const NUMBERS: [(&str, &str); 6] = [
    ("block_count", "num_hidden_layers"),
    ("context_length", "max_position_embeddings"),
    ("embedding_length", "hidden_size"),
    ("feed_forward_length", "intermediate_size"),
    ("attention.head_count", "num_attention_heads"),
    ("attention.head_count_kv", "num_key_value_heads"),
];

/// Sets those of [`NUMBERS`] that config.json has to have.
pub(super) fn numbers(c: &Config, k: &mut Keys, keys: &[&str]) -> Result<()> {
    for key in keys {
        for (_, name) in NUMBERS.iter().filter(|(name, _)| name == key) {
            k.set(key, c.u32(name)?);
        }
    }
    Ok(())
}

/// Sets what config.json says, under the names of any family.
pub(super) fn keys(c: &Config, k: &mut Keys) -> Result<()> {
    for (key, name) in NUMBERS {
        if let Some(n) = c.object.u32(name)? {
            k.set(key, n);
        }
    }
    if let Some(n) = c.n_experts()? {
        k.set("expert_count", n);
    }
    if let Some(n) = c.object.u32("num_experts_per_tok")? {
        k.set("expert_used_count", n);
    }
    scaling(c, k)?;
    if let Some(theta) = c.rope.f64("rope_theta")? {
        k.float("rope.freq_base", theta);
    }
    if let Some(theta) = c.sliding_theta {
        k.float("rope.freq_base_swa", theta);
    }
    if let Some(eps) = c.object.f64("rms_norm_eps")? {
        k.float("attention.layer_norm_rms_epsilon", eps);
    }
    if let Some(eps) = c.object.f64("layer_norm_eps")? {
        k.float("attention.layer_norm_epsilon", eps);
    }
    if let Some(n) = c.object.u32("head_dim")? {
        k.set("attention.key_length", n);
        k.set("attention.value_length", n);
    }
    Ok(())
}

/// Sets the base, where it is not llama.cpp's own, and the scaling: for families whose converter writes neither.
pub(super) fn rotation(c: &Config, k: &mut Keys) -> Result<()> {
    if let Some(theta) = c.rope.f64("rope_theta")?.filter(|&theta| theta != 10000.0) {
        k.float("rope.freq_base", theta);
    }
    scaling(c, k)
}

/// Sets `rope.scaling.*`. Scalings without a key (`llama3`, LongRoPE's factors) are tensors.
pub(super) fn scaling(c: &Config, k: &mut Keys) -> Result<()> {
    let kind = c.rope_type()?;
    match kind.as_str() {
        "su" | "longrope" => k.set("rope.scaling.type", "longrope"),
        "linear" | "yarn" => {
            k.set("rope.scaling.type", kind.as_str());
            k.float("rope.scaling.factor", c.rope.needs_f64("factor")?);
            if kind == "linear" {
                return Ok(());
            }
            k.set(
                "rope.scaling.original_context_length",
                c.rope.needs_u32("original_max_position_embeddings")?,
            );
            let factors = [
                ("extrapolation_factor", "yarn_ext_factor"),
                ("attn_factor", "yarn_attn_factor"),
                ("beta_fast", "yarn_beta_fast"),
                ("beta_slow", "yarn_beta_slow"),
            ];
            for (from, to) in factors {
                if let Some(x) = c.rope.f64(from)? {
                    k.float(&format!("rope.scaling.{to}"), x);
                }
            }
            magnitude(c, k)?;
            if c.rope.bool("truncate")? == Some(false) {
                k.notes.push(
                    "truncate is false: YaRN's ramp begins and ends at whole pairs all the same, as in llama.cpp, so that \
                     logits differ from those of transformers."
                        .into(),
                );
            }
        }
        // None, or tensors; `Config` refuses the kinds that a family has not.
        _ => {}
    }
    Ok(())
}

/// Sets the factor by which YaRN's magnitude differs from the one that files say without it: `0.1 ln(factor) + 1`, over the
/// same with `mscale_all_dim` on the logarithm where Ministral 3 has that as a key.
fn magnitude(c: &Config, k: &mut Keys) -> Result<()> {
    let factor = c.rope.needs_f64("factor")?;
    let of = |m: f64| if factor <= 1.0 { 1.0 } else { 0.1 * m * factor.ln() + 1.0 };
    let (own, all) = (c.rope.f64("mscale")?, c.rope.f64("mscale_all_dim")?);
    let wanted = match (c.rope.f64("attention_factor")?, own, all) {
        (Some(given), ..) => given,
        (None, Some(own), Some(all)) if own != 0.0 && all != 0.0 => of(own) / of(all),
        _ => of(1.0),
    };
    let divisor = all.filter(|_| c.is_ministral3().unwrap_or(false)).map_or(1.0, of);
    let ratio = wanted / (of(1.0) / divisor);
    if wanted <= 0.0 || !ratio.is_finite() || ratio <= 0.0 {
        return Err(c.rope.error("attention_factor", format!("found {wanted}, expected a number above 0")));
    }
    if (ratio - 1.0).abs() > 1e-6 {
        k.float("rope.scaling.attn_factor", ratio);
    }
    Ok(())
}

/// Factors on the wavelengths of Llama 3.1's scaling, where the config has that
/// (`LlamaModel.generate_extra_tensors`). torch computes the frequencies in F32, and so does this.
pub(super) fn llama3(c: &Config, _: &mut Keys) -> Result<Vec<Tensor>> {
    if c.rope_type()? != "llama3" {
        return Ok(Vec::new());
    }
    let or = |key: &str, default: f64| Ok::<_, Error>(c.rope.f64(key)?.unwrap_or(default));
    let (base, factor) = (or("rope_theta", 10000.0)?, or("factor", 8.0)?);
    let (low, high) = (or("low_freq_factor", 1.0)?, or("high_freq_factor", 4.0)?);
    let original = or("original_max_position_embeddings", 8192.0)?;
    let n = c.head_dim()?;
    if n > 1 << 16 {
        return Err(c.object.error("head_dim", format!("found {n}, expected at most 65536")));
    }
    let factors = (0..n / 2).map(|i| {
        let exponent = (2 * i) as f32 / n as f32;
        let frequency = 1.0 / (base as f32).powf(exponent);
        // Python's float over a tensor of one F32: computed in F32.
        let wavelength = (2.0 * std::f64::consts::PI) as f32 / frequency;
        if wavelength < (original / high) as f32 {
            1.0
        } else if wavelength > (original / low) as f32 {
            factor as f32
        } else {
            let smooth = (original as f32 / wavelength - low as f32) / (high - low) as f32;
            1.0 / ((1.0 - smooth) / factor as f32 + smooth)
        }
    });
    Ok(vec![Tensor::computed("rope_freqs.weight", factors.collect())])
}
