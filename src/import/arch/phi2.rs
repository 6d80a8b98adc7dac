//! Phi 1.5 and 2 (`conversion/phi.py`).

use crate::config::Config;
use crate::keys::Keys;
use crate::vocab::Kinds;
use crate::Result;

use super::{Family, PLAIN};

pub(super) static FAMILY: Family = Family {
    classes: &["PhiForCausalLM"],
    arch: "phi2",
    defaults: r#"{"max_position_embeddings": 2048, "layer_norm_eps": 1e-5, "partial_rotary_factor": 0.5}"#,
    names: &[
        ("model.final_layernorm", "output_norm"),
        ("model.layers.{}.self_attn.dense", "blk.{}.attn_output"),
        ("model.layers.{}.mlp.fc1", "blk.{}.ffn_up"),
        ("model.layers.{}.mlp.fc2", "blk.{}.ffn_down"),
    ],
    keys,
    vocab: |_| Ok(Kinds::Bpe),
    ..PLAIN
};

fn keys(c: &Config, k: &mut Keys) -> Result<()> {
    let (n, heads) = (c.u32("hidden_size")?, c.u32("num_attention_heads")?);
    let rotated = c.rope.f64("partial_rotary_factor")?.unwrap_or(0.5);
    if heads != c.u32("num_key_value_heads")? {
        let what =
            format!("expected as many as num_attention_heads, {heads}: llama.cpp's phi2 has no others");
        return Err(c.object.error("num_key_value_heads", what));
    }
    k.set("context_length", c.u32("max_position_embeddings")?);
    k.set("embedding_length", n);
    k.set("feed_forward_length", n.saturating_mul(4));
    k.set("block_count", c.u32("num_hidden_layers")?);
    k.set("attention.head_count", heads);
    k.set("attention.head_count_kv", heads);
    k.float("attention.layer_norm_epsilon", c.f64("layer_norm_eps")?);
    k.set("rope.dimension_count", (rotated * f64::from(n)) as u32 / heads);
    k.plain("tokenizer.ggml.add_bos_token", false);
    Ok(())
}
