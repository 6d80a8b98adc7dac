//! Llama 1 to 3, Mistral 7B and what is built like them (`conversion/llama.py`).

use ropewalk_core::hparams::Hparams;

use crate::config::{Class, Config};
use crate::keys::Keys;
use crate::meaning::{Meaning::Irrelevant, Meaning::Used, Meanings, RMS, SILU};
use crate::tensor::{Change, Rows};
use crate::vocab::Kinds;
use crate::Result;

use super::{standard, windows, Family, Place, Target, PLAIN};

pub(super) static FAMILY: Family = Family {
    classes: &["LlamaForCausalLM", "LLaMAForCausalLM"],
    arch: "llama",
    class: Class {
        defaults: r#"{"hidden_size": 4096, "intermediate_size": 11008, "max_position_embeddings": 2048,
            "num_attention_heads": 32, "num_hidden_layers": 32, "rms_norm_eps": 1e-06,
            "tie_word_embeddings": false, "vocab_size": 32000, "rope_theta": 10000.0, "head_dim": 0}"#,
        config: &[CONFIG],
        ..LIKE.class
    },
    ..LIKE
};

/// Mistral 7B, whose windows llama.cpp leaves out.
pub(super) static MISTRAL: Family = Family {
    classes: &["MistralForCausalLM"],
    arch: "llama",
    class: Class { defaults: MISTRAL_DEFAULTS, config: &[MISTRAL_CONFIG], ..LIKE.class },
    keys: windowed,
    ..LIKE
};

/// The settings of families that are built like Llama, for these to say how they differ.
pub(super) const LIKE: Family = Family {
    class: Class { rope: ROPE, ..Class::PLAIN },
    biases: &[("attention_bias", ".self_attn.q_proj.bias"), ("mlp_bias", ".mlp.up_proj.bias")],
    keys,
    place,
    change,
    extra: standard::llama3,
    vocab: |_| Ok(Kinds::Llama),
    ..PLAIN
};

pub(super) const MISTRAL_DEFAULTS: &str = r#"{"hidden_size": 4096, "intermediate_size": 14336,
    "max_position_embeddings": 131072, "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8,
    "rms_norm_eps": 1e-06, "sliding_window": 4096, "tie_word_embeddings": false, "vocab_size": 32000,
    "rope_theta": 10000.0, "head_dim": 0}"#;

/// Kinds of rope scaling of those that have [`standard::llama3`].
const ROPE: &[&str] = &["default", "linear", "yarn", "llama3"];

const CONFIG: Meanings = &[
    ("attention_bias", Used),
    ("mlp_bias", Used),
    ("pretraining_tp", Irrelevant("the same products in pieces")),
    RMS,
    SILU,
];

pub(super) const MISTRAL_CONFIG: Meanings = &[("sliding_window", Used), RMS, SILU];

/// Writes the keys of [`keys`], and a window in all layers.
pub(super) fn windowed(c: &Config, k: &mut Keys) -> Result<()> {
    keys(c, k)?;
    windows::in_all(c, k)
}

/// The standard keys and those of llama.cpp's `llama`.
pub(super) fn keys(c: &Config, k: &mut Keys) -> Result<()> {
    standard::keys(c, k)?;
    k.set("vocab_size", c.u32("vocab_size")?);
    k.set("rope.dimension_count", c.head_dim()?);
    Ok(())
}

/// Queries and keys are rotated in pairs of neighbors, so their rows change places.
fn place(c: &Config, place: &Place<'_>) -> Result<Vec<Target>> {
    let heads = match () {
        () if place.is(&[".self_attn.q_proj"]) => c.u32("num_attention_heads")?,
        () if place.is(&[".self_attn.k_proj"]) => c.u32("num_key_value_heads")?,
        () => return Ok(vec![place.mapped()?]),
    };
    Ok(vec![place.rows(Rows::Interleaved(heads as usize))?])
}

/// The same of an adapter.
fn change(hp: &Hparams, il: usize, name: &str) -> Change {
    let heads = hp.attention_of(il).and_then(|attention| match name {
        "attn_q" => Some(attention.n_head),
        "attn_k" => Some(attention.n_head_kv),
        _ => None,
    });
    heads.map_or(Change::NONE, |heads| Change::rows(Rows::Interleaved(heads)))
}
