//! Cohere's Command R7B: no rotation in layers without a window (`conversion/command_r.py`).

use crate::config::Config;
use crate::keys::Keys;
use crate::vocab::Kinds;
use crate::Result;

use super::{standard, Family, Place, Target, PLAIN};

pub(super) static FAMILY: Family = Family {
    classes: &["Cohere2ForCausalLM"],
    arch: "cohere2",
    defaults: r#"{"max_position_embeddings": 8192, "layer_norm_eps": 1e-5, "rope_theta": 10000.0,
        "logit_scale": 0.0625, "sliding_window": 4096, "rotary_pct": 1.0, "head_dim": 0}"#,
    keys,
    place,
    vocab: |_| Ok(Kinds::Bpe),
    ..PLAIN
};

fn keys(c: &Config, k: &mut Keys) -> Result<()> {
    standard::keys(c, k)?;
    k.float("logit_scale", c.f64("logit_scale")?);
    k.set("attention.sliding_window", c.u32("sliding_window")?);
    k.set("vocab_size", c.u32("vocab_size")?);
    let size = f64::from(c.u32("hidden_size")? / c.u32("num_attention_heads")?);
    k.set("rope.dimension_count", (c.f64("rotary_pct")? * size) as u32);
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
