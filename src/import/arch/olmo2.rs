//! OLMo 2 and 3 (`conversion/olmo.py`).

use gguf::Value;

use crate::config::{Class, Config};
use crate::keys::Keys;
use crate::meaning::{Meaning::Used, Meanings, NO_BIASES, RMS, SILU};
use crate::vocab::Kinds;
use crate::Result;

use super::{standard, windows, Family, PLAIN};

pub(super) static FAMILY: Family = Family {
    classes: &["Olmo2ForCausalLM"],
    arch: "olmo2",
    class: Class {
        defaults: r#"{"hidden_size": 4096, "intermediate_size": 11008, "max_position_embeddings": 2048,
            "num_attention_heads": 32, "num_hidden_layers": 32, "rms_norm_eps": 1e-05,
            "tie_word_embeddings": false, "vocab_size": 50304, "rope_theta": 10000.0}"#,
        config: &[CONFIG],
        ..Class::PLAIN
    },
    names: NAMES,
    vocab: |_| Ok(Kinds::Bpe),
    ..PLAIN
};

pub(super) static OLMO3: Family = Family {
    classes: &["Olmo3ForCausalLM"],
    keys,
    arch: "olmo2",
    class: Class {
        defaults: r#"{"hidden_size": 4096, "intermediate_size": 11008, "max_position_embeddings": 2048,
            "num_attention_heads": 32, "num_hidden_layers": 32, "rms_norm_eps": 1e-05, "sliding_window": 4096,
            "tie_word_embeddings": false, "vocab_size": 50304, "rope_theta": 500000.0}"#,
        config: &[CONFIG, OLMO3_CONFIG],
        rope_apart: true,
        ..Class::PLAIN
    },
    names: NAMES,
    vocab: |_| Ok(Kinds::Bpe),
    ..PLAIN
};

const CONFIG: Meanings = &[NO_BIASES, RMS, SILU];

const OLMO3_CONFIG: Meanings = &[("layer_types", Used), ("sliding_window", Used)];

const NAMES: &[(&str, &str)] = &[
    ("model.layers.{}.post_attention_layernorm", "blk.{}.post_attention_norm"),
    ("model.layers.{}.post_feedforward_layernorm", "blk.{}.post_ffw_norm"),
];

/// Windows in three of four layers, which are rotated without the scaling of the others.
fn keys(c: &Config, k: &mut Keys) -> Result<()> {
    standard::keys(c, k)?;
    let slides = windows::sliding(c, 4)?;
    if let (None, Some(theta)) = (c.sliding_theta, c.rope.f64("rope_theta")?) {
        k.float("rope.freq_base_swa", theta);
    }
    k.set("attention.sliding_window", windows::window(c)?);
    k.set("attention.sliding_window_pattern", Value::from(slides));
    Ok(())
}
