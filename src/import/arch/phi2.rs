//! Phi 1.5 and 2 (`conversion/phi.py`).

use crate::config::{Class, Config};
use crate::keys::Keys;
use crate::meaning::{Meaning::MustEqual, Meaning::Used, Meanings};
use crate::vocab::Kinds;
use crate::Result;

use super::{gptneox, standard, Family, PLAIN};

pub(super) static FAMILY: Family = Family {
    classes: &["PhiForCausalLM"],
    arch: "phi2",
    class: Class {
        defaults: r#"{"hidden_size": 2048, "intermediate_size": 8192, "layer_norm_eps": 1e-05,
            "max_position_embeddings": 2048, "num_attention_heads": 32, "num_hidden_layers": 24,
            "tie_word_embeddings": false, "vocab_size": 51200, "rope_theta": 10000.0,
            "hidden_act": "gelu_new", "partial_rotary_factor": 0.5}"#,
        config: &[CONFIG],
        ..Class::PLAIN
    },
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

const CONFIG: Meanings = &[
    ("hidden_act", Used),
    ("layer_norm_eps", Used),
    ("partial_rotary_factor", Used),
    ("qk_layernorm", MustEqual("[false]", "queries and keys have no norms in this architecture")),
];

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
    k.set("feed_forward_length", c.u32("intermediate_size")?);
    k.set("block_count", c.u32("num_hidden_layers")?);
    k.set("attention.head_count", heads);
    k.set("attention.head_count_kv", heads);
    k.float("attention.layer_norm_epsilon", c.f64("layer_norm_eps")?);
    k.set("rope.dimension_count", (rotated * f64::from(n)) as u32 / heads);
    k.plain("tokenizer.ggml.add_bos_token", false);
    gptneox::no_other_width(c)?;
    gptneox::activation(c, k)?;
    standard::rotation(c, k)
}
