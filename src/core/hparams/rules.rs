//! Properties of single architectures' layers beyond the keys that all of them share.
//!
//! Source of each: `load_arch_hparams` in llama.cpp's `src/models/NAME.cpp`.

use gguf::Result;

use super::{delta_net, AttentionTemperature, ExpertHparams, Hparams, KeyReader, LayerAttention};

/// Adjusts the attention of layer `il` to an architecture. It is given the file's keys and the record that
/// holds without any adjustment: the file's head counts, the file's rotation in every layer, and neither
/// window nor temperature.
///
/// The result is checked like everything else that comes out of a file.
pub(super) type LayerRule = fn(keys: &KeyReader<'_>, il: usize, layer: &mut LayerAttention) -> Result<()>;

/// Fills in the numbers of a model that only some architectures have. It is given the file's keys and numbers
/// that are read and checked already.
pub(super) type ModelRule = fn(keys: &KeyReader<'_>, hp: &mut Hparams) -> Result<()>;

#[derive(Clone, Copy)]
pub(super) struct Rules {
    arch: &'static str,
    pub(super) layer: LayerRule,
    pub(super) model: ModelRule,
}

/// Architectures whose numbers are not all read in the way of Llama's.
const RULES: &[Rules] = &[
    Rules {
        arch: "cohere2",
        layer: cohere2,
        model: |keys, hp| keys.set_positive("logit_scale", &mut hp.logit_scale),
    },
    Rules { arch: "gemma2", layer: gemma2, model: gemma2_model },
    Rules { arch: "gemma3", layer: gemma3, model: gemma_model },
    Rules { arch: "gpt-oss", layer: gpt_oss, model: mixture },
    Rules { arch: "gptneox", model: gptneox_model, ..USUAL },
    Rules { arch: "granite", layer: granite, model: granite_model },
    Rules { arch: "mistral3", layer: mistral3, ..USUAL },
    Rules { arch: "olmo2", layer: olmo2, ..USUAL },
    Rules { arch: "qwen35", model: delta_net::qwen35, ..USUAL },
    Rules { arch: "qwen35moe", model: qwen35moe_model, ..USUAL },
    Rules { arch: "qwen3moe", model: mixture, ..USUAL },
    Rules { arch: "phi3", model: phi3_model, ..USUAL },
    Rules { arch: "smollm3", layer: smollm3, ..USUAL },
];

/// Rules that change nothing.
const USUAL: Rules = Rules { arch: "", layer: |_, _, _| Ok(()), model: |_, _| Ok(()) };

impl Rules {
    /// The rules of this architecture; those of most change nothing.
    pub(super) fn of(arch: &str) -> Rules {
        RULES.iter().find(|r| r.arch == arch).copied().unwrap_or(USUAL)
    }
}

/// Architectures most of whose layers are gated delta-nets.
pub(super) fn has_delta_nets(arch: &str) -> bool {
    ["qwen35", "qwen35moe"].contains(&arch)
}

/// Architectures all of whose models have the base that llama.cpp takes where a file has none: its converter leaves the
/// key out.
pub(super) fn one_base(arch: &str) -> bool {
    ["gemma2", "gptneox", "phi2"].contains(&arch)
}

/// Architectures whose layers with a window have a base apart, where the file says so.
pub(super) fn has_sliding_base(arch: &str) -> bool {
    ["gemma2", "gemma3", "gpt-oss", "olmo2"].contains(&arch)
}

/// No rotation in every fourth layer.
fn smollm3(_: &KeyReader<'_>, il: usize, layer: &mut LayerAttention) -> Result<()> {
    if (il + 1).is_multiple_of(4) {
        layer.rotation = None;
    }
    Ok(())
}

/// A window in three of four layers, which alone are rotated.
fn cohere2(keys: &KeyReader<'_>, il: usize, layer: &mut LayerAttention) -> Result<()> {
    if keys.slides(il, 4)? {
        layer.window = Some(keys.window()?.ok_or_else(|| keys.missing("attention.sliding_window"))?);
    } else {
        layer.rotation = None;
    }
    Ok(())
}

/// A window in every second layer, of one base with the others, and a cap on scores.
fn gemma2(keys: &KeyReader<'_>, il: usize, layer: &mut LayerAttention) -> Result<()> {
    if keys.slides(il, 2)? {
        layer.window = Some(keys.window()?.unwrap_or(4096));
        sliding_base(keys, layer)?;
    }
    layer.softcap = Some(keys.positive("attn_logit_softcapping")?.unwrap_or(50.0) as f32);
    gemma_scale(keys, layer, 46)
}

/// Logits are capped whether the file says so or not.
fn gemma2_model(keys: &KeyReader<'_>, hp: &mut Hparams) -> Result<()> {
    gemma_model(keys, hp)?;
    hp.logit_softcap.get_or_insert(30.0);
    Ok(())
}

/// A window in five of six layers, which have a base of their own and none of the file's scaling.
fn gemma3(keys: &KeyReader<'_>, il: usize, layer: &mut LayerAttention) -> Result<()> {
    if let Some(window) = keys.window()? {
        if keys.slides(il, 6)? {
            layer.window = Some(window);
            if let Some(rotation) = &mut layer.rotation {
                rotation.freq_base = 10_000.0;
                rotation.scaled = false;
            }
            sliding_base(keys, layer)?;
        }
    }
    gemma_scale(keys, layer, 62)
}

/// The models of 27 billion parameters, known by their layers, scale scores by the width that follows from
/// the head count instead of the head's.
fn gemma_scale(keys: &KeyReader<'_>, layer: &mut LayerAttention, layers_of_27b: usize) -> Result<()> {
    if keys.count("block_count", 1, super::MAX_LAYERS)? == layers_of_27b {
        let n_embd = keys.count("embedding_length", 1, super::MAX_DIM)?;
        layer.scale = 1.0 / ((n_embd / layer.n_head).max(1) as f32).sqrt();
    }
    Ok(())
}

fn gemma_model(keys: &KeyReader<'_>, hp: &mut Hparams) -> Result<()> {
    hp.embedding_scale = (hp.n_embd as f32).sqrt();
    hp.logit_softcap = keys.positive("final_logit_softcapping")?.map(|c| c as f32);
    Ok(())
}

fn gptneox_model(keys: &KeyReader<'_>, hp: &mut Hparams) -> Result<()> {
    hp.parallel_residual =
        keys.flag("use_parallel_residual")?.ok_or_else(|| keys.missing("use_parallel_residual"))?;
    Ok(())
}

/// A window in every second layer, from the first one on.
fn gpt_oss(keys: &KeyReader<'_>, il: usize, layer: &mut LayerAttention) -> Result<()> {
    let window = keys.window()?.ok_or_else(|| keys.missing("attention.sliding_window"))?;
    if keys.slides(il, 2)? {
        layer.window = Some(window);
        sliding_base(keys, layer)?;
    }
    Ok(())
}

/// Every feed-forward is a mixture of experts.
fn mixture(keys: &KeyReader<'_>, hp: &mut Hparams) -> Result<()> {
    let n_expert = keys.count("expert_count", 2, super::MAX_EXPERTS)?;
    let n_used = keys.count("expert_used_count", 1, n_expert)?;
    // Experts chosen within groups.
    keys.count_opt("expert_group_count", 0, 1)?;
    match keys.per_layer("expert_feed_forward_length", hp.n_layer)? {
        Some(widths) => hp.layers.iter_mut().zip(widths).for_each(|(layer, n_ff)| layer.n_ff = n_ff),
        None => hp.layers.iter_mut().for_each(|layer| layer.n_ff = (layer.n_ff / n_used).max(1)),
    }
    let normalised = keys.file.get_opt(super::keys::EXPERT_WEIGHTS_NORM)?.unwrap_or(true);
    hp.experts = Some(ExpertHparams { n_expert, n_used, n_ff_shared: None, normalised });
    Ok(())
}

/// Gated delta-nets, and mixtures with a shared expert that every token uses.
fn qwen35moe_model(keys: &KeyReader<'_>, hp: &mut Hparams) -> Result<()> {
    delta_net::qwen35(keys, hp)?;
    // Its width is the feed-forward's where the file gives none, as in llama.cpp.
    let key = "expert_shared_feed_forward_length";
    let dense = hp.layers.first().map_or(0, |layer| layer.n_ff);
    let n_ff = keys.count_opt(key, 0, super::MAX_DIM)?.filter(|&n| n > 0).unwrap_or(dense);
    mixture(keys, hp)?;
    if let Some(experts) = &mut hp.experts {
        experts.n_ff_shared = Some(n_ff);
    }
    Ok(())
}

/// `rope.scaling.finetuned` turns rotation off where it is false.
fn granite(keys: &KeyReader<'_>, _: usize, layer: &mut LayerAttention) -> Result<()> {
    if keys.flag("rope.scaling.finetuned")? == Some(false) {
        layer.rotation = None;
    }
    keys.set_positive("attention.scale", &mut layer.scale)
}

fn granite_model(keys: &KeyReader<'_>, hp: &mut Hparams) -> Result<()> {
    keys.set_positive("embedding_scale", &mut hp.embedding_scale)?;
    keys.set_positive("residual_scale", &mut hp.residual_scale)?;
    // Here, and not in Cohere's models, logits are divided by it.
    let divisor = keys.positive("logit_scale")?.ok_or_else(|| keys.missing("logit_scale"))?;
    hp.logit_scale = (1.0 / divisor) as f32;
    Ok(())
}

/// Long and short factors are in use without a type of scaling that says so: llama.cpp's converter writes none.
fn phi3_model(_: &KeyReader<'_>, hp: &mut Hparams) -> Result<()> {
    let scaling = &mut hp.rope_scaling;
    if scaling.kind.is_none() && scaling.long_factors.is_some() {
        scaling.kind = Some("longrope".into());
    }
    Ok(())
}

/// A temperature that grows past the trained window.
fn mistral3(keys: &KeyReader<'_>, _: usize, layer: &mut LayerAttention) -> Result<()> {
    if let Some(scale) = keys.finite("attention.temperature_scale")?.filter(|&s| s != 0.0) {
        let trained = keys.as_trained();
        let declared = trained.count_opt("rope.scaling.original_context_length", 0, super::MAX_CTX)?;
        let length = declared
            .filter(|&n| n > 0)
            .map_or_else(|| trained.count("context_length", 1, super::MAX_CTX), Ok)?;
        layer.temperature = Some(AttentionTemperature { scale, length: length as f64, offset: 0.0 });
    }
    keys.set_positive("attention.scale", &mut layer.scale)
}

/// Olmo 3 has a window in three of four layers, which are rotated without the file's scaling.
fn olmo2(keys: &KeyReader<'_>, il: usize, layer: &mut LayerAttention) -> Result<()> {
    if let Some(window) = keys.window()? {
        if keys.slides(il, 4)? {
            layer.window = Some(window);
            if let Some(rotation) = &mut layer.rotation {
                rotation.scaled = false;
            }
            sliding_base(keys, layer)?;
        }
    }
    Ok(())
}

/// `rope.freq_base_swa`: the base of layers with a window, where the file has one.
fn sliding_base(keys: &KeyReader<'_>, layer: &mut LayerAttention) -> Result<()> {
    if let (Some(base), Some(rotation)) = (keys.positive("rope.freq_base_swa")?, &mut layer.rotation) {
        rotation.freq_base = base;
    }
    Ok(())
}
