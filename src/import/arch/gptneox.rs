//! GPT-NeoX and Pythia: queries, keys and values of each head in one tensor (`conversion/gptneox.py`).

use ropewalk_core::hparams::keys::GELU;

use crate::config::{Class, Config};
use crate::error::shown;
use crate::keys::Keys;
use crate::meaning::{Meaning::Irrelevant, Meaning::MustEqual, Meaning::Used, Meanings};
use crate::tensor::{Change, Rows};
use crate::vocab::Kinds;
use crate::Result;

use super::{standard, Family, Place, Target, PLAIN};

pub(super) static FAMILY: Family = Family {
    classes: &["GPTNeoXForCausalLM"],
    arch: "gptneox",
    class: Class {
        defaults: r#"{"hidden_size": 6144, "intermediate_size": 24576, "layer_norm_eps": 1e-05,
            "max_position_embeddings": 2048, "num_attention_heads": 64, "num_hidden_layers": 44,
            "rotary_pct": 0.25, "tie_word_embeddings": false, "use_parallel_residual": true,
            "vocab_size": 50432}"#,
        config: &[CONFIG],
        ..Class::PLAIN
    },
    names: &[
        ("gpt_neox.embed_in", "token_embd"),
        ("gpt_neox.final_layer_norm", "output_norm"),
        ("embed_out", "output"),
        ("gpt_neox.layers.{}.input_layernorm", "blk.{}.attn_norm"),
        ("gpt_neox.layers.{}.attention.query_key_value", "blk.{}.attn_qkv"),
        ("gpt_neox.layers.{}.attention.dense", "blk.{}.attn_output"),
        ("gpt_neox.layers.{}.post_attention_layernorm", "blk.{}.ffn_norm"),
        ("gpt_neox.layers.{}.mlp.dense_h_to_4h", "blk.{}.ffn_up"),
        ("gpt_neox.layers.{}.mlp.dense_4h_to_h", "blk.{}.ffn_down"),
    ],
    keys,
    place,
    change: |hp, il, name| match (name, hp.attention_of(il)) {
        ("attn_qkv", Some(attention)) => Change::rows(Rows::Apart(attention.n_head)),
        _ => Change::NONE,
    },
    vocab: |_| Ok(Kinds::Bpe),
    ..PLAIN
};

const CONFIG: Meanings = &[
    ("attention_bias", MustEqual("[true]", "attention always has biases in this architecture")),
    ("hidden_act", Used),
    ("is_decoder", Irrelevant("the class warns without it, and computes the same")),
    ("layer_norm_eps", Used),
    ("num_key_value_heads", Irrelevant("the class has one for each head")),
    ("partial_rotary_factor", Used),
    ("rotary_emb_base", Used),
    ("rotary_pct", Used),
    ("use_parallel_residual", Used),
];

fn keys(c: &Config, k: &mut Keys) -> Result<()> {
    let (n, heads) = (c.u32("hidden_size")?, c.u32("num_attention_heads")?);
    let rotated = match c.rope.f64("partial_rotary_factor")? {
        Some(part) => part,
        None => c.f64("rotary_pct")?,
    };
    no_other_width(c)?;
    k.set("context_length", c.u32("max_position_embeddings")?);
    k.set("embedding_length", n);
    k.set("block_count", c.u32("num_hidden_layers")?);
    k.set("feed_forward_length", c.u32("intermediate_size")?);
    k.set("rope.dimension_count", (rotated * f64::from(n / heads)) as u32);
    k.set("attention.head_count", heads);
    k.set("use_parallel_residual", c.object.bool("use_parallel_residual")?.unwrap_or(true));
    k.float("attention.layer_norm_epsilon", c.f64("layer_norm_eps")?);
    activation(c, k)?;
    // llama.cpp takes 10000 where there is no base, and its converter writes none.
    let theta = match (c.rope.f64("rope_theta")?, c.object.f64("rotary_emb_base")?) {
        (Some(theta), Some(base)) if theta != base => {
            let what =
                format!("found {base}, but {theta} in rope_theta or rope_parameters, expected one base");
            return Err(c.object.error("rotary_emb_base", what));
        }
        (theta, base) => theta.or(base).unwrap_or(10000.0),
    };
    if theta != 10000.0 {
        k.float("rope.freq_base", theta);
    }
    standard::scaling(c, k)
}

/// The form of GELU in a feed-forward without a gate: llama.cpp computes that of tanh whatever the file says, and its
/// converter says nothing.
pub(super) fn activation(c: &Config, k: &mut Keys) -> Result<()> {
    match c.object.string("hidden_act")?.unwrap_or("gelu") {
        "gelu" => k.plain(GELU, "erf"),
        "gelu_fast" | "gelu_new" | "gelu_pytorch_tanh" => {}
        other => {
            let what = format!("found {:?}, expected a form of GELU, gelu or gelu_fast", shown(other));
            return Err(c.object.error("hidden_act", what));
        }
    }
    Ok(())
}

/// Checks that a head is as wide as follows from the number of heads.
pub(super) fn no_other_width(c: &Config) -> Result<()> {
    let wanted = c.u32("hidden_size")? / c.u32("num_attention_heads")?;
    match c.object.u32("head_dim")? {
        Some(found) if found != wanted => {
            let what = format!("found {found}, expected hidden_size over num_attention_heads = {wanted}");
            Err(c.object.error("head_dim", what))
        }
        _ => Ok(()),
    }
}

fn place(c: &Config, place: &Place<'_>) -> Result<Vec<Target>> {
    let rows = match place.is(&[".attention.query_key_value"]) {
        true => Rows::Apart(c.u32("num_attention_heads")? as usize),
        false => Rows::All,
    };
    Ok(vec![place.rows(rows)?])
}
