//! Cohere's Command R7B: no rotation in layers without a window (`conversion/command_r.py`).

use crate::config::{Class, Config};
use crate::keys::Keys;
use crate::meaning::{Meaning::MustEqual, Meaning::Used, Meanings, NO_BIASES, SILU, TIED};
use crate::vocab::Kinds;
use crate::Result;

use super::{standard, windows, Family, Place, Target, PLAIN};

pub(super) static FAMILY: Family = Family {
    classes: &["Cohere2ForCausalLM"],
    arch: "cohere2",
    class: Class {
        defaults: r#"{"hidden_size": 8192, "intermediate_size": 22528, "layer_norm_eps": 1e-05, "logit_scale": 0.0625,
            "max_position_embeddings": 8192, "num_attention_heads": 64, "num_hidden_layers": 40,
            "sliding_window": 4096, "sliding_window_pattern": 4, "tie_word_embeddings": true,
            "vocab_size": 256000, "rope_theta": 10000.0, "head_dim": 0}"#,
        config: &[CONFIG],
        rope: &["default"],
        ..Class::PLAIN
    },
    keys,
    place,
    vocab: |_| Ok(Kinds::Bpe),
    ..PLAIN
};

const CONFIG: Meanings = &[
    ("layer_norm_eps", Used),
    ("layer_types", Used),
    ("logit_scale", Used),
    ("rotary_pct", MustEqual("[1.0]", "the class rotates every dimension of a head")),
    ("sliding_window", Used),
    ("sliding_window_pattern", Used),
    NO_BIASES,
    SILU,
    TIED,
];

fn keys(c: &Config, k: &mut Keys) -> Result<()> {
    standard::keys(c, k)?;
    k.float("logit_scale", c.f64("logit_scale")?);
    windows::pattern(c, k, 4, true)?;
    k.set("vocab_size", c.u32("vocab_size")?);
    k.set("rope.dimension_count", c.head_dim()?);
    k.set("rope.scaling.type", "none");
    Ok(())
}

/// llama.cpp has no biases here; files have them, all zero.
fn place(_: &Config, place: &Place<'_>) -> Result<Vec<Target>> {
    if place.name.ends_with(".bias") {
        let data = place.file.data(place.stored);
        let zero = data.each(|part| if part.iter().all(|&b| b == 0) { Ok(()) } else { Err(()) }).is_ok();
        return if zero {
            Ok(Vec::new())
        } else {
            Err(place.error("found a bias that is not zero, expected none"))
        };
    }
    Ok(vec![place.mapped()?])
}
