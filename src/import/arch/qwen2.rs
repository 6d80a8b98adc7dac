//! Qwen 2 and 2.5 (`conversion/qwen.py`).

use crate::config::{Class, Config};
use crate::keys::Keys;
use crate::meaning::{Meaning::Irrelevant, Meaning::Used, Meanings, RMS, SILU};
use crate::Result;

use super::{standard, windows, Family, PLAIN};

pub(super) static FAMILY: Family = Family {
    classes: &["Qwen2ForCausalLM"],
    arch: "qwen2",
    class: Class {
        defaults: r#"{"hidden_size": 4096, "intermediate_size": 22016, "max_position_embeddings": 32768,
            "max_window_layers": 28, "num_attention_heads": 32, "num_hidden_layers": 32,
            "num_key_value_heads": 32, "rms_norm_eps": 1e-06, "sliding_window": 4096,
            "tie_word_embeddings": false, "use_sliding_window": false, "vocab_size": 151936,
            "rope_theta": 10000.0}"#,
        config: &[WINDOWS, CONFIG],
        ..Class::PLAIN
    },
    keys,
    ..PLAIN
};

/// Keys of Qwen 2 and 3.
pub(super) const WINDOWS: Meanings = &[
    ("layer_types", Used),
    ("max_window_layers", Used),
    ("sliding_window", Used),
    ("use_sliding_window", Used),
    RMS,
    SILU,
];

const CONFIG: Meanings =
    &[("attention_bias", Irrelevant("queries, keys and values have biases whatever it says"))];

pub(super) fn keys(c: &Config, k: &mut Keys) -> Result<()> {
    standard::keys(c, k)?;
    let first = c.u32("max_window_layers")? as usize;
    windows::if_used(c, k, |i| i >= first)
}
