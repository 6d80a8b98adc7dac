//! Gemma 2 (`conversion/gemma.py`).

use crate::config::{Class, Config};
use crate::keys::Keys;
use crate::meaning::{
    Meaning::Irrelevant, Meaning::MustEqual, Meaning::Used, Meanings, CAUSAL, NO_BIASES, RMS, TIED,
};
use crate::tensor::{Change, Values};
use crate::vocab::Kinds;
use crate::Result;

use super::{standard, windows, Family, Place, Target, PLAIN};

/// Four norms in a layer.
pub(super) const NORMS: &[(&str, &str)] = &[
    ("model.layers.{}.post_attention_layernorm", "blk.{}.post_attention_norm"),
    ("model.layers.{}.pre_feedforward_layernorm", "blk.{}.ffn_norm"),
    ("model.layers.{}.post_feedforward_layernorm", "blk.{}.post_ffw_norm"),
];

pub(super) static FAMILY: Family = Family {
    classes: &["Gemma2ForCausalLM"],
    arch: "gemma2",
    class: Class {
        defaults: r#"{"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0, "head_dim": 256,
            "hidden_size": 2304, "intermediate_size": 9216, "max_position_embeddings": 8192,
            "num_attention_heads": 8, "num_hidden_layers": 26, "num_key_value_heads": 4,
            "query_pre_attn_scalar": 256, "rms_norm_eps": 1e-06, "sliding_window": 4096,
            "tie_word_embeddings": true, "vocab_size": 256000, "rope_theta": 10000.0}"#,
        config: &[GEMMA, CONFIG],
        ..Class::PLAIN
    },
    names: NORMS,
    keys,
    place,
    change: |_, _, name| Change::one_more(name.ends_with("norm")),
    vocab: |_| Ok(Kinds::Sentencepiece),
    no_space_prefix: true,
    ..PLAIN
};

/// Keys of Gemma 2 and 3.
pub(super) const GEMMA: Meanings = &[
    (
        "hidden_activation",
        MustEqual(r#"["gelu_pytorch_tanh", "gelu_new"]"#, "the gate of this architecture has no other"),
    ),
    ("hidden_act", Irrelevant("the class reads hidden_activation")),
    ("final_logit_softcapping", Used),
    ("layer_types", Used),
    ("query_pre_attn_scalar", Used),
    ("sliding_window", Used),
    CAUSAL,
    NO_BIASES,
    RMS,
    TIED,
];

const CONFIG: Meanings = &[("attn_logit_softcapping", Used)];

/// Checks the divisor of scores: llama.cpp has the width of a head, in models of so many layers that which follows from the
/// number of heads, and no key.
pub(super) fn scale(c: &Config, layers_of_27b: u32) -> Result<()> {
    let wanted = match c.u32("num_hidden_layers")? == layers_of_27b {
        true => c.u32("hidden_size")? / c.u32("num_attention_heads")?,
        false => c.u32("head_dim")?,
    };
    let found = c.f64("query_pre_attn_scalar")?;
    if found != f64::from(wanted) {
        let what = format!("found {found}, expected {wanted}: llama.cpp has no key for another");
        return Err(c.object.error("query_pre_attn_scalar", what));
    }
    Ok(())
}

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
    // Without the keys llama.cpp caps at 50 and 30.
    for key in ["attn_logit_softcapping", "final_logit_softcapping"] {
        let cap = c.f64(key)?;
        if cap <= 0.0 {
            return Err(c.object.error(key, format!("found {cap}, expected a number above 0")));
        }
        k.float(key, cap);
    }
    standard::rotation(c, k)?;
    scale(c, 46)?;
    windows::pattern(c, k, 2, true)?;
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
