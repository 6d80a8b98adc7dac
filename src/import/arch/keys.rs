//! Keys of single families: those of [`standard`] and what differs.

use ropewalk_core::hparams::keys::{EXPERT_WEIGHTS_NORM, GELU};

use crate::config::Config;
use crate::error::shown;
use crate::json::kind;
use crate::keys::Keys;
use crate::tensor::Tensor;
use crate::Result;

use super::standard::{self, numbers};
use super::windows;

/// A number that must be above 0.
fn positive(c: &Config, key: &str) -> Result<f64> {
    let x = c.f64(key)?;
    if x <= 0.0 {
        return Err(c.object.error(key, format!("found {x}, expected a number above 0")));
    }
    Ok(x)
}

pub(super) fn cohere2(c: &Config, k: &mut Keys) -> Result<()> {
    standard::keys(c, k)?;
    k.float("logit_scale", c.f64("logit_scale")?);
    windows::pattern(c, k, 4, true)?;
    k.set("vocab_size", c.u32("vocab_size")?);
    k.set("rope.dimension_count", c.head_dim()?);
    k.set("rope.scaling.type", "none");
    Ok(())
}

pub(super) fn gemma2(c: &Config, k: &mut Keys) -> Result<()> {
    numbers(c, k, &["context_length", "embedding_length", "block_count", "feed_forward_length"])?;
    numbers(c, k, &["attention.head_count", "attention.head_count_kv"])?;
    k.float("attention.layer_norm_rms_epsilon", c.f64("rms_norm_eps")?);
    k.set("attention.key_length", c.u32("head_dim")?);
    k.set("attention.value_length", c.u32("head_dim")?);
    // Without the keys llama.cpp caps at 50 and 30.
    for key in ["attn_logit_softcapping", "final_logit_softcapping"] {
        k.float(key, positive(c, key)?);
    }
    standard::rotation(c, k)?;
    scale_of_gemma(c, 46)?;
    windows::pattern(c, k, 2, true)
}

pub(super) fn gemma3(c: &Config, k: &mut Keys) -> Result<()> {
    standard::keys(c, k)?;
    if c.object.get("attn_logit_softcapping").is_some() {
        return Err(c.object.error("attn_logit_softcapping", "found a number, expected none in Gemma 3"));
    }
    if let Some(cap) = c.object.f64("final_logit_softcapping")?.filter(|&x| x != 0.0) {
        k.float("final_logit_softcapping", cap);
    }
    scale_of_gemma(c, 62)?;
    windows::pattern(c, k, 6, false)
}

/// Checks the divisor of scores: llama.cpp has the width of a head, in models of so many layers that which follows from the
/// number of heads, and no key.
fn scale_of_gemma(c: &Config, layers_of_27b: u32) -> Result<()> {
    let wanted = match c.u32("num_hidden_layers")? == layers_of_27b {
        true => c.u32("hidden_size")? / c.u32("num_attention_heads")?,
        false => c.u32("head_dim")?,
    };
    only(c, "query_pre_attn_scalar", f64::from(wanted))
}

/// Checks a number for which llama.cpp has no key.
fn only(c: &Config, key: &str, wanted: f64) -> Result<()> {
    let found = c.f64(key)?;
    if found != wanted {
        let what = format!("found {found}, expected {wanted}: llama.cpp has no key for another");
        return Err(c.object.error(key, what));
    }
    Ok(())
}

pub(super) fn gpt_oss(c: &Config, k: &mut Keys) -> Result<()> {
    standard::keys(c, k)?;
    only(c, "swiglu_alpha", 1.702)?;
    only(c, "swiglu_limit", 7.0)?;
    windows::pattern(c, k, 2, true)?;
    k.set("expert_feed_forward_length", c.u32("intermediate_size")?);
    Ok(())
}

pub(super) fn gptneox(c: &Config, k: &mut Keys) -> Result<()> {
    let rotated = match c.rope.f64("partial_rotary_factor")? {
        Some(part) => part,
        None => c.f64("rotary_pct")?,
    };
    let width = head_width(c)?;
    numbers(c, k, &["context_length", "embedding_length", "block_count", "feed_forward_length"])?;
    k.set("rope.dimension_count", (rotated * f64::from(width)) as u32);
    numbers(c, k, &["attention.head_count"])?;
    k.set("use_parallel_residual", c.object.bool("use_parallel_residual")?.unwrap_or(true));
    k.float("attention.layer_norm_epsilon", c.f64("layer_norm_eps")?);
    activation(c, k)?;
    // llama.cpp takes 10000 where there is no base, and its converter writes none.
    let theta = match (c.rope.f64("rope_theta")?, c.object.f64("rotary_emb_base")?) {
        (Some(theta), Some(base)) if theta != base => {
            let what =
                format!("found {base}, but {theta} in rope_theta or rope_parameters, expected one base");
            return Err(c.object.error("rotary_emb_base", what));
        }
        (theta, base) => theta.or(base).unwrap_or(10000.0),
    };
    if theta != 10000.0 {
        k.float("rope.freq_base", theta);
    }
    standard::scaling(c, k)
}

/// The form of GELU in a feed-forward without a gate: llama.cpp computes that of tanh whatever the file says, and its
/// converter says nothing.
fn activation(c: &Config, k: &mut Keys) -> Result<()> {
    match c.object.string("hidden_act")?.unwrap_or("gelu") {
        "gelu" => k.plain(GELU, "erf"),
        "gelu_fast" | "gelu_new" | "gelu_pytorch_tanh" => {}
        other => {
            let what = format!("found {:?}, expected a form of GELU, gelu or gelu_fast", shown(other));
            return Err(c.object.error("hidden_act", what));
        }
    }
    Ok(())
}

/// The width of a head, which must be that which follows from the number of heads.
fn head_width(c: &Config) -> Result<u32> {
    let wanted = c.u32("hidden_size")? / c.u32("num_attention_heads")?;
    match c.object.u32("head_dim")? {
        Some(found) if found != wanted => {
            let what = format!("found {found}, expected hidden_size over num_attention_heads = {wanted}");
            Err(c.object.error("head_dim", what))
        }
        _ => Ok(wanted),
    }
}

pub(super) fn granite(c: &Config, k: &mut Keys) -> Result<()> {
    llama(c, k)?;
    for (to, from) in [
        ("attention.scale", "attention_multiplier"),
        ("embedding_scale", "embedding_multiplier"),
        ("residual_scale", "residual_multiplier"),
        ("logit_scale", "logits_scaling"),
    ] {
        k.float(to, positive(c, from)?);
    }
    Ok(())
}

/// The standard keys and those of llama.cpp's `llama`.
pub(super) fn llama(c: &Config, k: &mut Keys) -> Result<()> {
    standard::keys(c, k)?;
    k.set("vocab_size", c.u32("vocab_size")?);
    k.set("rope.dimension_count", c.head_dim()?);
    Ok(())
}

/// The same, and a window in all layers.
pub(super) fn windowed_llama(c: &Config, k: &mut Keys) -> Result<()> {
    llama(c, k)?;
    windows::in_all(c, k)
}

pub(super) fn mistral3(c: &Config, k: &mut Keys) -> Result<()> {
    windowed_llama(c, k)?;
    if c.is_ministral3()? {
        k.float("rope.scaling.yarn_log_multiplier", c.rope.needs_f64("mscale_all_dim")?);
        k.float("attention.temperature_scale", c.rope.needs_f64("llama_4_scaling_beta")?);
    }
    Ok(())
}

/// Windows in three of four layers, which are rotated without the scaling of the others.
pub(super) fn olmo3(c: &Config, k: &mut Keys) -> Result<()> {
    standard::keys(c, k)?;
    let slides = windows::sliding(c, 4)?;
    if let (None, Some(theta)) = (c.sliding_theta, c.rope.f64("rope_theta")?) {
        k.float("rope.freq_base_swa", theta);
    }
    k.set("attention.sliding_window", windows::window(c)?);
    k.set("attention.sliding_window_pattern", slides);
    Ok(())
}

pub(super) fn phi2(c: &Config, k: &mut Keys) -> Result<()> {
    let heads = c.u32("num_attention_heads")?;
    if heads != c.u32("num_key_value_heads")? {
        let what =
            format!("expected as many as num_attention_heads, {heads}: llama.cpp's phi2 has no others");
        return Err(c.object.error("num_key_value_heads", what));
    }
    numbers(c, k, &["context_length", "embedding_length", "feed_forward_length", "block_count"])?;
    numbers(c, k, &["attention.head_count", "attention.head_count_kv"])?;
    k.float("attention.layer_norm_epsilon", c.f64("layer_norm_eps")?);
    k.set("rope.dimension_count", rotated_of_phi(c, 0.5)?);
    k.plain("tokenizer.ggml.add_bos_token", false);
    head_width(c)?;
    activation(c, k)?;
    standard::rotation(c, k)
}

/// Dimensions of a head that are rotated.
fn rotated_of_phi(c: &Config, usual: f64) -> Result<u32> {
    let part = c.rope.f64("partial_rotary_factor")?.unwrap_or(usual);
    Ok((part * f64::from(c.u32("hidden_size")?)) as u32 / c.u32("num_attention_heads")?)
}

pub(super) fn phi3(c: &Config, k: &mut Keys) -> Result<()> {
    numbers(c, k, &["context_length"])?;
    k.set("rope.scaling.original_context_length", c.u32("original_max_position_embeddings")?);
    numbers(c, k, &["embedding_length", "feed_forward_length", "block_count"])?;
    numbers(c, k, &["attention.head_count", "attention.head_count_kv"])?;
    k.float("attention.layer_norm_rms_epsilon", c.f64("rms_norm_eps")?);
    k.set("rope.dimension_count", rotated_of_phi(c, 1.0)?);
    k.float("rope.freq_base", c.rope.needs_f64("rope_theta")?);
    // 0 tells Phi-4 from the others, which have a window.
    k.set("attention.sliding_window", c.object.u32("sliding_window")?.unwrap_or(0));
    head_width(c)?;
    windows::in_all(c, k)
}

/// The tables of LongRoPE, and their factor on attention.
pub(super) fn longrope(c: &Config, k: &mut Keys) -> Result<Vec<Tensor>> {
    let n = rotated_of_phi(c, 1.0)? as usize / 2;
    let Some(long) = c.rope.f64s("long_factor", n)? else {
        return match c.rope_type()?.as_str() {
            "default" => Ok(Vec::new()),
            kind => {
                Err(c.rope.error("long_factor", format!("found none, expected {n} factors under {kind}")))
            }
        };
    };
    let short = c.rope.f64s("short_factor", n)?.unwrap_or_default();
    for (key, found) in [("long_factor", long.len()), ("short_factor", short.len())] {
        if found != n {
            return Err(c.rope.error(key, format!("found {found} factors, expected {n}")));
        }
    }
    let original = f64::from(c.u32("original_max_position_embeddings")?);
    let scale = match c.rope.f64("factor")? {
        Some(factor) => factor,
        None => f64::from(c.u32("max_position_embeddings")?) / original,
    };
    // transformers takes `su` and `yarn` in these files for LongRoPE as well.
    let factor = match c.rope_type()?.as_str() {
        "su" | "longrope" | "yarn" if scale > 1.0 => (1.0 + scale.ln() / original.ln()).sqrt(),
        "su" | "longrope" | "yarn" => 1.0,
        other => return Err(c.rope.error("rope_scaling", format!("found {other:?}, expected longrope"))),
    };
    k.float("rope.scaling.attn_factor", c.rope.f64("attention_factor")?.unwrap_or(factor));
    let tensor = |name: &str, x: Vec<f64>| Tensor::computed(name, x.iter().map(|&x| x as f32).collect());
    Ok(vec![tensor("rope_factors_long.weight", long), tensor("rope_factors_short.weight", short)])
}

pub(super) fn qwen2(c: &Config, k: &mut Keys) -> Result<()> {
    standard::keys(c, k)?;
    let first = c.u32("max_window_layers")? as usize;
    windows::if_used(c, k, |i| i >= first)
}

pub(super) fn qwen3moe(c: &Config, k: &mut Keys) -> Result<()> {
    standard::keys(c, k)?;
    if c.object.bool("norm_topk_prob")? != Some(true) {
        k.plain(EXPERT_WEIGHTS_NORM, false);
        k.notes.push(format!(
            "norm_topk_prob is false: llama.cpp cannot run this model. It scales the chosen experts' weights to a sum of 1, \
             and knows no key against that; ropewalk reads {EXPERT_WEIGHTS_NORM}."
        ));
    }
    if c.object.bool("use_sliding_window")?.unwrap_or(false) {
        windows::in_all(c, k)?;
    }
    k.set("expert_feed_forward_length", c.u32("moe_intermediate_size")?);
    Ok(())
}

pub(super) fn qwen35(c: &Config, k: &mut Keys) -> Result<()> {
    standard::keys(c, k)?;
    let (key, value) = (c.u32("linear_key_head_dim")?, c.u32("linear_value_head_dim")?);
    if key != value {
        let what = format!("found {value}, expected linear_key_head_dim = {key}, as in llama.cpp");
        return Err(c.object.error("linear_value_head_dim", what));
    }
    if c.object.bool("attn_output_gate")? == Some(false) {
        return Err(c.object.error("attn_output_gate", "expected true: llama.cpp always gates attention"));
    }
    let heads = c.u32("linear_num_value_heads")?;
    k.set("ssm.conv_kernel", c.u32("linear_conv_kernel_dim")?);
    k.set("ssm.state_size", key);
    k.set("ssm.group_count", c.u32("linear_num_key_heads")?);
    k.set("ssm.time_step_rank", heads);
    k.set("ssm.inner_size", value.saturating_mul(heads));
    if let Some(recurrent) = windows::layer_types(c, "linear_attention")? {
        k.set("attention.recurrent_layers", recurrent);
    }
    k.set("full_attention_interval", c.u32("full_attention_interval")?);
    let rotated = f64::from(c.head_dim()?) * c.rope.f64("partial_rotary_factor")?.unwrap_or(0.25);
    k.set("rope.dimension_count", rotated as u32);
    k.set("rope.dimension_sections", sections(c)?);
    Ok(())
}

/// Sections of the pairs by time, height and width; those of `_QWEN35_DEFAULT_MROPE_SECTION` where config.json says nothing.
fn sections(c: &Config) -> Result<Vec<i32>> {
    let Some(given) = c.rope.array("mrope_section")? else { return Ok(vec![11, 11, 10, 0]) };
    let mut sections = Vec::new();
    for n in given.iter().take(4) {
        let n = n.as_u64().and_then(|n| i32::try_from(n).ok());
        let what = "expected whole numbers of 0 or more";
        sections.push(n.ok_or_else(|| c.rope.error("mrope_section", what))?);
    }
    sections.resize(4, 0);
    Ok(sections)
}

pub(super) fn qwen35moe(c: &Config, k: &mut Keys) -> Result<()> {
    qwen35(c, k)?;
    k.set("expert_feed_forward_length", c.u32("moe_intermediate_size")?);
    k.set("expert_shared_feed_forward_length", c.u32("shared_expert_intermediate_size")?);
    Ok(())
}

pub(super) fn smollm3(c: &Config, k: &mut Keys) -> Result<()> {
    /// Layers without rotation, for which llama.cpp has no key.
    const UNROTATED: &str =
        "expected no rotation in every fourth layer alone: llama.cpp has no key for others";
    llama(c, k)?;
    let rotated = |i: usize| !(i + 1).is_multiple_of(4);
    if let Some(layers) = c.object.array("no_rope_layers")? {
        // More than there are layers may be listed.
        let n = c.u32("num_hidden_layers")? as usize;
        if layers.len() < n {
            let what = format!("found {} entries, expected num_hidden_layers = {n}", layers.len());
            return Err(c.object.error("no_rope_layers", what));
        }
        let other = layers.iter().take(n).enumerate().find(|(i, v)| v.as_u64() != Some(rotated(*i).into()));
        if let Some((i, value)) = other {
            let what = format!("found {} for layer {i}, {UNROTATED}", kind(value));
            return Err(c.object.error("no_rope_layers", what));
        }
    }
    let every = c.u32("no_rope_layer_interval")?;
    if every != 4 {
        return Err(c.object.error("no_rope_layer_interval", format!("found {every}, {UNROTATED}")));
    }
    windows::if_used(c, k, |i| !rotated(i))
}
