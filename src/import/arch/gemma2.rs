//! Gemma 2 (`conversion/gemma.py`).

use crate::config::Config;
use crate::keys::Keys;
use crate::tensor::{Change, Values};
use crate::vocab::Kinds;
use crate::Result;

use super::{Family, Place, Target, PLAIN};

/// Four norms in a layer.
pub(super) const NORMS: &[(&str, &str)] = &[
    ("model.layers.{}.post_attention_layernorm", "blk.{}.post_attention_norm"),
    ("model.layers.{}.pre_feedforward_layernorm", "blk.{}.ffn_norm"),
    ("model.layers.{}.post_feedforward_layernorm", "blk.{}.post_ffw_norm"),
];

pub(super) static FAMILY: Family = Family {
    classes: &["Gemma2ForCausalLM"],
    arch: "gemma2",
    defaults: r#"{"max_position_embeddings": 8192, "rms_norm_eps": 1e-6, "num_key_value_heads": 4,
        "head_dim": 256, "sliding_window": 4096, "attn_logit_softcapping": 50.0,
        "final_logit_softcapping": 30.0}"#,
    names: NORMS,
    keys,
    place,
    change: |_, _, name| Change::one_more(name.ends_with("norm")),
    vocab: |_| Ok(Kinds::Sentencepiece),
    no_space_prefix: true,
    ..PLAIN
};

fn keys(c: &Config, k: &mut Keys) -> Result<()> {
    k.set("context_length", c.u32("max_position_embeddings")?);
    k.set("embedding_length", c.u32("hidden_size")?);
    k.set("block_count", c.u32("num_hidden_layers")?);
    k.set("feed_forward_length", c.u32("intermediate_size")?);
    k.set("attention.head_count", c.u32("num_attention_heads")?);
    k.set("attention.head_count_kv", c.u32("num_key_value_heads")?);
    k.float("attention.layer_norm_rms_epsilon", c.f64("rms_norm_eps")?);
    k.set("attention.key_length", c.u32("head_dim")?);
    k.set("attention.value_length", c.u32("head_dim")?);
    k.float("attn_logit_softcapping", c.f64("attn_logit_softcapping")?);
    k.float("final_logit_softcapping", c.f64("final_logit_softcapping")?);
    k.set("attention.sliding_window", c.u32("sliding_window")?);
    Ok(())
}

/// Norms multiply by one more than their weights. The output is the embedding, whatever the file has.
pub(super) fn place(_: &Config, place: &Place<'_>) -> Result<Vec<Target>> {
    if place.name == "lm_head.weight" {
        return Ok(Vec::new());
    }
    let mut target = place.mapped()?;
    if place.name.ends_with("norm.weight") {
        target.values = Values::OneMore;
    }
    Ok(vec![target])
}
