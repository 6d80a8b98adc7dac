//! Llama 1 to 3, Mistral 7B and what is built like them (`conversion/llama.py`).

use ropewalk_core::hparams::Hparams;

use crate::config::Config;
use crate::keys::Keys;
use crate::tensor::{Change, Rows};
use crate::vocab::Kinds;
use crate::Result;

use super::{standard, Family, Place, Target, PLAIN};

pub(super) static FAMILY: Family = Family {
    classes: &["LlamaForCausalLM", "LLaMAForCausalLM", "MistralForCausalLM"],
    arch: "llama",
    defaults: r#"{"max_position_embeddings": 2048, "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "head_dim": 0}"#,
    keys,
    place,
    change,
    extra: standard::llama3,
    vocab: |_| Ok(Kinds::Llama),
    ..PLAIN
};

/// The standard keys and those of llama.cpp's `llama`.
pub(super) fn keys(c: &Config, k: &mut Keys) -> Result<()> {
    standard::keys(c, k)?;
    k.set("vocab_size", c.u32("vocab_size")?);
    k.set("rope.dimension_count", c.head_dim()?);
    Ok(())
}

/// Queries and keys are rotated in pairs of neighbours, so their rows change places.
pub(super) fn place(c: &Config, place: &Place<'_>) -> Result<Vec<Target>> {
    let heads = match () {
        () if place.is(&[".self_attn.q_proj"]) => c.u32("num_attention_heads")?,
        () if place.is(&[".self_attn.k_proj"]) => c.u32("num_key_value_heads")?,
        () => return Ok(vec![place.mapped()?]),
    };
    Ok(vec![place.rows(Rows::Interleaved(heads as usize))?])
}

/// The same of an adapter.
pub(super) fn change(hp: &Hparams, il: usize, name: &str) -> Change {
    let heads = hp.attention_of(il).and_then(|attention| match name {
        "attn_q" => Some(attention.n_head),
        "attn_k" => Some(attention.n_head_kv),
        _ => None,
    });
    heads.map_or(Change::NONE, |heads| Change::rows(Rows::Interleaved(heads)))
}
