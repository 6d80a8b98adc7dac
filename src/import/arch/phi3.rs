//! Phi 3, 3.5 and 4: fused tensors, and LongRoPE's two tables of factors (`conversion/phi.py`).

use crate::config::{Class, Config};
use crate::keys::Keys;
use crate::meaning::{Meaning::Used, Meanings, RMS, SILU};
use crate::tensor::Tensor;
use crate::vocab::Kinds;
use crate::Result;

use super::{gptneox, windows, Family, PLAIN};

pub(super) static FAMILY: Family = Family {
    classes: &["Phi3ForCausalLM"],
    arch: "phi3",
    class: Class {
        defaults: r#"{"hidden_size": 3072, "intermediate_size": 8192, "max_position_embeddings": 4096,
            "num_attention_heads": 32, "num_hidden_layers": 32, "original_max_position_embeddings": 4096,
            "rms_norm_eps": 1e-05, "tie_word_embeddings": false, "vocab_size": 32064, "rope_theta": 10000.0,
            "partial_rotary_factor": 1.0}"#,
        config: &[CONFIG],
        rope: &["default", "longrope", "su", "yarn"],
        ..Class::PLAIN
    },
    names: &[
        ("model.layers.{}.self_attn.qkv_proj", "blk.{}.attn_qkv"),
        ("model.layers.{}.mlp.gate_up_proj", "blk.{}.ffn_up"),
    ],
    keys,
    extra,
    vocab: |_| Ok(Kinds::Phi3),
    ..PLAIN
};

const CONFIG: Meanings = &[
    ("original_max_position_embeddings", Used),
    ("partial_rotary_factor", Used),
    ("sliding_window", Used),
    RMS,
    SILU,
];

fn rotated(c: &Config) -> Result<u32> {
    let part = c.rope.f64("partial_rotary_factor")?.unwrap_or(1.0);
    Ok((part * f64::from(c.u32("hidden_size")?)) as u32 / c.u32("num_attention_heads")?)
}

fn keys(c: &Config, k: &mut Keys) -> Result<()> {
    k.set("context_length", c.u32("max_position_embeddings")?);
    k.set("rope.scaling.original_context_length", c.u32("original_max_position_embeddings")?);
    k.set("embedding_length", c.u32("hidden_size")?);
    k.set("feed_forward_length", c.u32("intermediate_size")?);
    k.set("block_count", c.u32("num_hidden_layers")?);
    k.set("attention.head_count", c.u32("num_attention_heads")?);
    k.set("attention.head_count_kv", c.u32("num_key_value_heads")?);
    k.float("attention.layer_norm_rms_epsilon", c.f64("rms_norm_eps")?);
    k.set("rope.dimension_count", rotated(c)?);
    k.float("rope.freq_base", c.rope.needs_f64("rope_theta")?);
    // 0 tells Phi-4 from the others, which have a window.
    k.set("attention.sliding_window", c.object.u32("sliding_window")?.unwrap_or(0));
    gptneox::no_other_width(c)?;
    windows::in_all(c, k)
}

fn extra(c: &Config, k: &mut Keys) -> Result<Vec<Tensor>> {
    let n = rotated(c)? as usize / 2;
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
    // transformers takes `su` and `yarn` in these files for LongRoPE, too.
    let factor = match c.rope_type()?.as_str() {
        "su" | "longrope" | "yarn" if scale > 1.0 => (1.0 + scale.ln() / original.ln()).sqrt(),
        "su" | "longrope" | "yarn" => 1.0,
        other => return Err(c.rope.error("rope_scaling", format!("found {other:?}, expected longrope"))),
    };
    k.float("rope.scaling.attn_factor", c.rope.f64("attention_factor")?.unwrap_or(factor));
    let tensor = |name: &str, x: Vec<f64>| Tensor::computed(name, x.iter().map(|&x| x as f32).collect());
    Ok(vec![tensor("rope_factors_long.weight", long), tensor("rope_factors_short.weight", short)])
}
