//! Gemma 3, its text model (`conversion/gemma.py`).

use crate::config::{Class, Config};
use crate::keys::Keys;
use crate::meaning::{Meaning::Irrelevant, Meaning::Used, Meanings};
use crate::tensor::{Change, Rows};
use crate::vocab::Kinds;
use crate::Result;

use super::{gemma2, standard, windows, Family, Place, Target, PLAIN};

pub(super) static FAMILY: Family = Family {
    classes: &["Gemma3ForCausalLM", "Gemma3ForConditionalGeneration"],
    arch: "gemma3",
    class: Class {
        defaults: r#"{"head_dim": 256, "hidden_size": 2304, "intermediate_size": 9216, "max_position_embeddings": 131072,
            "num_attention_heads": 8, "num_hidden_layers": 26, "num_key_value_heads": 4,
            "query_pre_attn_scalar": 256, "rms_norm_eps": 1e-06, "sliding_window": 4096,
            "sliding_window_pattern": 6, "tie_word_embeddings": true, "vocab_size": 262208,
            "rope_theta": 1000000.0, "rope_local_base_freq": 10000.0}"#,
        config: &[gemma2::GEMMA, CONFIG],
        rope_apart: true,
        ..Class::PLAIN
    },
    names: gemma2::NORMS,
    keys,
    place,
    change: |_, _, name| Change::one_more(name.ends_with("norm")),
    vocab: |_| Ok(Kinds::SentencepieceOrBpe),
    no_space_prefix: true,
    ..PLAIN
};

const CONFIG: Meanings = &[
    ("attn_logit_softcapping", Used),
    ("rope_local_base_freq", Used),
    ("sliding_window_pattern", Used),
    ("_sliding_window_pattern", Irrelevant("transformers writes it, and never reads it")),
];

fn keys(c: &Config, k: &mut Keys) -> Result<()> {
    standard::keys(c, k)?;
    if c.object.get("attn_logit_softcapping").is_some() {
        return Err(c.object.error("attn_logit_softcapping", "found a number, expected none in Gemma 3"));
    }
    if let Some(cap) = c.object.f64("final_logit_softcapping")?.filter(|&x| x != 0.0) {
        k.float("final_logit_softcapping", cap);
    }
    gemma2::scale(c, 62)?;
    windows::pattern(c, k, 6, false)
}

/// Places tensors as in Gemma 2; rows of the embedding beyond the vocabulary are left out.
fn place(c: &Config, place: &Place<'_>) -> Result<Vec<Target>> {
    let mut targets = gemma2::place(c, place)?;
    if place.name.contains("embed_tokens.weight") {
        let n = c.u32("vocab_size")? as usize;
        targets.iter_mut().for_each(|t| t.rows = Rows::First(n));
    }
    Ok(targets)
}
