//! GPT-NeoX and Pythia: queries, keys and values of each head in one tensor (`conversion/gptneox.py`).

use ropewalk_core::hparams::keys::GELU;

use crate::config::Config;
use crate::error::shown;
use crate::keys::Keys;
use crate::tensor::{Change, Rows};
use crate::vocab::Kinds;
use crate::Result;

use super::{Family, Place, Target, PLAIN};

pub(super) static FAMILY: Family = Family {
    classes: &["GPTNeoXForCausalLM"],
    arch: "gptneox",
    defaults: r#"{"max_position_embeddings": 2048, "layer_norm_eps": 1e-5, "use_parallel_residual": true}"#,
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

fn keys(c: &Config, k: &mut Keys) -> Result<()> {
    let (n, heads) = (c.u32("hidden_size")?, c.u32("num_attention_heads")?);
    let rotated = match c.object.f64("rotary_pct")? {
        Some(part) => part,
        None => c.rope.f64("partial_rotary_factor")?.unwrap_or(0.25),
    };
    k.set("context_length", c.u32("max_position_embeddings")?);
    k.set("embedding_length", n);
    k.set("block_count", c.u32("num_hidden_layers")?);
    k.set("feed_forward_length", c.u32("intermediate_size")?);
    k.set("rope.dimension_count", (rotated * f64::from(n / heads)) as u32);
    k.set("attention.head_count", heads);
    k.set("use_parallel_residual", c.object.bool("use_parallel_residual")?.unwrap_or(true));
    k.float("attention.layer_norm_epsilon", c.f64("layer_norm_eps")?);
    // llama.cpp computes the tanh form whatever the file says, and its converter says nothing.
    match c.object.string("hidden_act")?.unwrap_or("gelu") {
        "gelu" => k.plain(GELU, "erf"),
        "gelu_fast" | "gelu_new" | "gelu_pytorch_tanh" => {}
        other => {
            let what = format!("found {:?}, expected a form of GELU, gelu or gelu_fast", shown(other));
            return Err(c.object.error("hidden_act", what));
        }
    }
    // llama.cpp takes 10000 where there is no base, and its converter writes none.
    let theta = match c.object.f64("rotary_emb_base")? {
        Some(theta) => theta,
        None => c.rope.f64("rope_theta")?.unwrap_or(10000.0),
    };
    if theta != 10000.0 {
        k.float("rope.freq_base", theta);
    }
    Ok(())
}

fn place(c: &Config, place: &Place<'_>) -> Result<Vec<Target>> {
    let rows = match place.is(&[".attention.query_key_value"]) {
        true => Rows::Apart(c.u32("num_attention_heads")? as usize),
        false => Rows::All,
    };
    Ok(vec![place.rows(rows)?])
}
