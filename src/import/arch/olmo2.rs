//! OLMo 2 and 3 (`conversion/olmo.py`).

use gguf::Value;

use crate::config::Config;
use crate::keys::Keys;
use crate::vocab::Kinds;
use crate::Result;

use super::{standard, Family, PLAIN};

pub(super) static FAMILY: Family = Family {
    classes: &["Olmo2ForCausalLM"],
    arch: "olmo2",
    defaults: r#"{"max_position_embeddings": 2048, "rms_norm_eps": 1e-5, "rope_theta": 10000.0}"#,
    names: NAMES,
    vocab: |_| Ok(Kinds::Bpe),
    ..PLAIN
};

pub(super) static OLMO3: Family = Family {
    classes: &["Olmo3ForCausalLM"],
    defaults: r#"{"max_position_embeddings": 2048, "rms_norm_eps": 1e-5, "rope_theta": 500000.0,
        "sliding_window": 4096}"#,
    keys: windows,
    arch: "olmo2",
    names: NAMES,
    vocab: |_| Ok(Kinds::Bpe),
    ..PLAIN
};

const NAMES: &[(&str, &str)] = &[
    ("model.layers.{}.post_attention_layernorm", "blk.{}.post_attention_norm"),
    ("model.layers.{}.post_feedforward_layernorm", "blk.{}.post_ffw_norm"),
];

/// Windows in three of four layers, which are rotated without the scaling of the others.
fn windows(c: &Config, k: &mut Keys) -> Result<()> {
    standard::keys(c, k)?;
    let window = c.u32("sliding_window")?;
    if let (None, Some(theta)) = (c.sliding_theta, c.rope.f64("rope_theta")?) {
        k.float("rope.freq_base_swa", theta);
    }
    k.set("attention.sliding_window", window);
    let n = c.u32("num_hidden_layers")? as usize;
    let pattern: Vec<bool> = match c.object.array("layer_types")? {
        Some(kinds) => kinds.iter().map(|t| t.as_str() == Some("sliding_attention")).collect(),
        None => (1..=n).map(|i| i % 4 != 0).collect(),
    };
    if pattern.len() != n {
        return Err(c.object.error("layer_types", format!("found {}, expected {n}", pattern.len())));
    }
    k.set("attention.sliding_window_pattern", Value::from(pattern));
    Ok(())
}
