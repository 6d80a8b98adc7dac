//! Gemma 3, its text model (`conversion/gemma.py`).

use crate::config::Config;
use crate::keys::Keys;
use crate::tensor::{Change, Rows};
use crate::vocab::{self, Kinds};
use crate::Result;

use super::{gemma2, standard, Family, Place, Target, PLAIN};

pub(super) static FAMILY: Family = Family {
    classes: &["Gemma3ForCausalLM", "Gemma3ForConditionalGeneration"],
    arch: "gemma3",
    defaults: r#"{"max_position_embeddings": 131072, "rms_norm_eps": 1e-6, "vocab_size": 262208,
        "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "sliding_window": 4096,
        "rope_theta": 1000000.0, "rope_local_base_freq": 10000.0}"#,
    names: gemma2::NORMS,
    keys,
    place,
    change: |_, _, name| Change::one_more(name.ends_with("norm")),
    vocab: |c| Ok(if vocab::has_sentencepiece(&c.folder) { Kinds::Sentencepiece } else { Kinds::Bpe }),
    no_space_prefix: true,
    ..PLAIN
};

fn keys(c: &Config, k: &mut Keys) -> Result<()> {
    standard::keys(c, k)?;
    if c.object.get("attn_logit_softcapping").is_some() {
        return Err(c.object.error("attn_logit_softcapping", "found a number, expected none in Gemma 3"));
    }
    if let Some(cap) = c.object.f64("final_logit_softcapping")?.filter(|&x| x != 0.0) {
        k.float("final_logit_softcapping", cap);
    }
    if c.object.u32("sliding_window_pattern")? != Some(1) {
        k.set("attention.sliding_window", c.u32("sliding_window")?);
    }
    Ok(())
}

/// As in Gemma 2; rows of the embedding beyond the vocabulary are left out.
fn place(c: &Config, place: &Place<'_>) -> Result<Vec<Target>> {
    let mut targets = gemma2::place(c, place)?;
    if place.name.contains("embed_tokens.weight") {
        let n = match vocab::has_sentencepiece(&c.folder) {
            true => c.u32("vocab_size")? as usize,
            false => vocab::n_in_tokenizer_json(&c.folder)?,
        };
        targets.iter_mut().for_each(|t| t.rows = Rows::First(n));
    }
    Ok(targets)
}
