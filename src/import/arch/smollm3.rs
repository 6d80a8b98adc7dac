//! SmolLM3: Llama without rotation in every fourth layer, which llama.cpp knows by itself
//! (`conversion/llama.py`).

use crate::config::{Class, Config};
use crate::json::kind;
use crate::keys::Keys;
use crate::meaning::{Meaning::Used, Meanings, RMS, SILU};
use crate::Result;

use super::{llama, windows, Family};

pub(super) static FAMILY: Family = Family {
    classes: &["SmolLM3ForCausalLM"],
    arch: "smollm3",
    class: Class {
        defaults: r#"{"hidden_size": 2048, "intermediate_size": 11008, "max_position_embeddings": 32768,
            "no_rope_layer_interval": 4, "num_attention_heads": 16, "num_hidden_layers": 36,
            "num_key_value_heads": 4, "rms_norm_eps": 1e-06, "tie_word_embeddings": true,
            "use_sliding_window": false, "vocab_size": 128256, "rope_theta": 2000000.0}"#,
        config: &[CONFIG],
        ..llama::LIKE.class
    },
    keys,
    ..llama::LIKE
};

const CONFIG: Meanings = &[
    ("attention_bias", Used),
    ("layer_types", Used),
    ("mlp_bias", Used),
    ("no_rope_layer_interval", Used),
    ("no_rope_layers", Used),
    ("sliding_window", Used),
    ("use_sliding_window", Used),
    RMS,
    SILU,
];

/// Layers without rotation, for which llama.cpp has no key.
const UNROTATED: &str = "expected no rotation in every fourth layer alone: llama.cpp has no key for others";

fn keys(c: &Config, k: &mut Keys) -> Result<()> {
    llama::keys(c, k)?;
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
