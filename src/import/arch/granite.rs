//! IBM Granite 3: Llama with factors on embedding, attention, residual and logits (`conversion/granite.py`).

use crate::config::{Class, Config};
use crate::keys::Keys;
use crate::meaning::{Meaning::Used, Meanings, RMS, SILU};
use crate::Result;

use super::{llama, Family};

pub(super) static FAMILY: Family = Family {
    classes: &["GraniteForCausalLM"],
    arch: "granite",
    class: Class {
        defaults: r#"{"attention_multiplier": 1.0, "embedding_multiplier": 1.0, "hidden_size": 4096,
            "intermediate_size": 11008, "logits_scaling": 1.0, "max_position_embeddings": 2048,
            "num_attention_heads": 32, "num_hidden_layers": 32, "residual_multiplier": 1.0,
            "rms_norm_eps": 1e-06, "tie_word_embeddings": false, "vocab_size": 32000, "rope_theta": 10000.0}"#,
        config: &[CONFIG],
        ..llama::LIKE.class
    },
    keys,
    ..llama::LIKE
};

const CONFIG: Meanings = &[
    ("attention_bias", Used),
    ("attention_multiplier", Used),
    ("embedding_multiplier", Used),
    ("logits_scaling", Used),
    ("mlp_bias", Used),
    ("residual_multiplier", Used),
    RMS,
    SILU,
];

fn keys(c: &Config, k: &mut Keys) -> Result<()> {
    llama::keys(c, k)?;
    let factors = [
        ("attention.scale", "attention_multiplier"),
        ("embedding_scale", "embedding_multiplier"),
        ("residual_scale", "residual_multiplier"),
        ("logit_scale", "logits_scaling"),
    ];
    for (to, from) in factors {
        let x = c.f64(from)?;
        if x <= 0.0 {
            return Err(c.object.error(from, format!("found {x}, expected a number above 0")));
        }
        k.float(to, x);
    }
    Ok(())
}
