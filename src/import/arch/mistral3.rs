//! Ministral 3: Llama with YaRN and an attention temperature (`conversion/mistral3.py`).

use crate::config::{Class, Config};
use crate::keys::Keys;
use crate::meaning::{Meaning::Used, Meanings};
use crate::Result;

use super::{llama, Family};

pub(super) static FAMILY: Family = Family {
    classes: &["Ministral3ForCausalLM"],
    arch: "mistral3",
    class: Class { defaults: DEFAULTS, config: &[CONFIG, llama::MISTRAL_CONFIG], ..llama::LIKE.class },
    keys,
    ..llama::LIKE
};

/// With images, which are left out; the text model is of either kind.
pub(super) static WITH_IMAGES: Family = Family {
    classes: &["Mistral3ForConditionalGeneration"],
    arch: "mistral3",
    class: Class {
        defaults: llama::MISTRAL_DEFAULTS,
        defaults_of: &[("ministral3", DEFAULTS)],
        config: &[CONFIG, llama::MISTRAL_CONFIG],
        ..llama::LIKE.class
    },
    keys,
    ..llama::LIKE
};

const DEFAULTS: &str = r#"{"head_dim": 128, "hidden_size": 4096, "intermediate_size": 14336,
        "max_position_embeddings": 262144, "num_attention_heads": 32, "num_hidden_layers": 34,
        "num_key_value_heads": 8, "rms_norm_eps": 1e-05, "tie_word_embeddings": false, "vocab_size": 131072,
        "rope_theta": 10000.0, "rope_parameters": {"rope_type": "yarn", "rope_theta": 1000000.0,
        "factor": 16.0, "original_max_position_embeddings": 16384, "beta_fast": 32.0, "beta_slow": 1.0,
        "mscale_all_dim": 1.0, "mscale": 1.0, "llama_4_scaling_beta": 0.1}}"#;

/// Ministral 3 and others differ by it.
const CONFIG: Meanings = &[("model_type", Used)];

fn keys(c: &Config, k: &mut Keys) -> Result<()> {
    llama::windowed(c, k)?;
    if c.is_ministral3()? {
        k.float("rope.scaling.yarn_log_multiplier", c.rope.needs_f64("mscale_all_dim")?);
        k.float("attention.temperature_scale", c.rope.needs_f64("llama_4_scaling_beta")?);
    }
    Ok(())
}
