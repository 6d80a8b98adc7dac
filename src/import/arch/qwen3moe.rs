//! Qwen 3 with experts, in a tensor each or stacked (`conversion/qwen.py`).

use ropewalk_core::hparams::keys::EXPERT_WEIGHTS_NORM;

use crate::config::{Class, Config};
use crate::keys::Keys;
use crate::meaning::{Meaning::MustEqual, Meaning::Used, Meanings, NO_BIASES, RMS, SILU};
use crate::tensor::{Rows, Values};
use crate::vocab::Kinds;
use crate::Result;

use super::{standard, windows, Family, Place, Target, PLAIN};

pub(super) static FAMILY: Family = Family {
    classes: &["Qwen3MoeForCausalLM"],
    arch: "qwen3moe",
    class: Class {
        defaults: r#"{"hidden_size": 2048, "intermediate_size": 6144, "max_position_embeddings": 32768,
            "moe_intermediate_size": 768, "norm_topk_prob": false, "num_attention_heads": 32,
            "num_experts": 128, "num_experts_per_tok": 8, "num_hidden_layers": 24, "num_key_value_heads": 4,
            "rms_norm_eps": 1e-06, "sliding_window": 4096, "tie_word_embeddings": false,
            "use_sliding_window": false, "vocab_size": 151936, "rope_theta": 10000.0}"#,
        config: &[CONFIG],
        ..Class::PLAIN
    },
    names: &[("model.layers.{}.mlp.gate", "blk.{}.ffn_gate_inp")],
    keys,
    place,
    vocab: |_| Ok(Kinds::Bpe),
    ..PLAIN
};

const CONFIG: Meanings = &[
    ("decoder_sparse_step", MustEqual("[1]", "every layer has experts in this architecture")),
    ("mlp_only_layers", MustEqual("[[]]", "every layer has experts in this architecture")),
    ("moe_intermediate_size", Used),
    ("norm_topk_prob", Used),
    ("num_experts", Used),
    ("num_experts_per_tok", Used),
    ("num_local_experts", Used),
    ("sliding_window", Used),
    ("use_sliding_window", Used),
    NO_BIASES,
    RMS,
    SILU,
];

fn keys(c: &Config, k: &mut Keys) -> Result<()> {
    standard::keys(c, k)?;
    if c.object.bool("norm_topk_prob")? != Some(true) {
        k.plain(EXPERT_WEIGHTS_NORM, false);
        k.notes.push(format!(
            "norm_topk_prob is false: llama.cpp cannot run this model. It scales the chosen experts' weights to a sum of 1, \
             and knows no key against that; ropewalk reads {EXPERT_WEIGHTS_NORM}."
        ));
    }
    if c.object.bool("use_sliding_window")?.unwrap_or(false) {
        windows::in_all(c, k)?;
    }
    k.set("expert_feed_forward_length", c.u32("moe_intermediate_size")?);
    Ok(())
}

fn place(_: &Config, place: &Place<'_>) -> Result<Vec<Target>> {
    match place.name.contains(".mlp.experts.") {
        true => experts(place),
        false => Ok(vec![place.mapped()?]),
    }
}

/// Where a tensor of experts goes.
pub(super) fn experts(place: &Place<'_>) -> Result<Vec<Target>> {
    let unknown = || place.error("is not a known tensor of an expert");
    let (before, inside) = place.name.split_once(".mlp.experts.").ok_or_else(unknown)?;
    let n = before.strip_prefix("model.layers.").ok_or_else(unknown)?;
    let target = |what: &str, rows, expert| Target {
        name: format!("blk.{n}.ffn_{what}_exps.weight"),
        rows,
        values: Values::Same,
        expert,
    };
    match inside.strip_suffix(".weight").unwrap_or(inside) {
        "down_proj" => Ok(vec![target("down", Rows::All, None)]),
        // Of every expert, first the rows of the gate.
        "gate_up_proj" => {
            let rows = place.stored.shape.get(1).map_or(0, |&n| n as usize);
            if place.stored.shape.len() != 3 || rows < 2 || !rows.is_multiple_of(2) {
                let what =
                    format!("found shape {:?}, expected 3 dimensions, the second even", place.stored.shape);
                return Err(place.error(what));
            }
            let half = |from| Rows::Of { of: rows, from, n: rows / 2 };
            Ok(vec![target("gate", half(0), None), target("up", half(rows / 2), None)])
        }
        one => {
            let (expert, what) = one.split_once('.').ok_or_else(unknown)?;
            let expert = expert.parse().map_err(|_| unknown())?;
            let what = match what {
                "gate_proj" => "gate",
                "up_proj" => "up",
                "down_proj" => "down",
                _ => return Err(unknown()),
            };
            Ok(vec![target(what, Rows::All, Some(expert))])
        }
    }
}
