//! gpt-oss (`conversion/gpt_oss.py`): experts stacked, rows of gate and up in turn; their weights in MXFP4 as OpenAI
//! publishes them, or as floats with inputs and outputs exchanged, as transformers keeps them.

use crate::config::{Class, Config};
use crate::keys::Keys;
use crate::meaning::{Meaning::Irrelevant, Meaning::MustEqual, Meaning::Used, Meanings, RMS};
use crate::tensor::{Rows, Values};
use crate::vocab::Kinds;
use crate::Result;

use super::{standard, windows, Family, Place, Target, PLAIN};

pub(super) static FAMILY: Family = Family {
    classes: &["GptOssForCausalLM"],
    arch: "gpt-oss",
    class: Class {
        defaults: r#"{"head_dim": 64, "hidden_size": 2880, "intermediate_size": 2880, "max_position_embeddings": 131072,
            "num_attention_heads": 64, "num_experts_per_tok": 4, "num_hidden_layers": 36,
            "num_key_value_heads": 8, "num_local_experts": 128, "rms_norm_eps": 1e-05, "sliding_window": 128,
            "swiglu_alpha": 1.702, "swiglu_limit": 7.0, "tie_word_embeddings": false, "vocab_size": 201088,
            "rope_theta": 150000.0, "rope_parameters": {"rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0,
            "beta_slow": 1.0, "truncate": false, "original_max_position_embeddings": 4096}}"#,
        config: &[CONFIG],
        packed: &["mxfp4"],
        uncut_ramp: true,
        ..Class::PLAIN
    },
    names: &[
        ("model.layers.{}.post_attention_layernorm", "blk.{}.post_attention_norm"),
        ("model.layers.{}.mlp.router", "blk.{}.ffn_gate_inp"),
        ("model.layers.{}.self_attn.sinks", "blk.{}.attn_sinks.weight"),
    ],
    keys,
    place,
    vocab: |_| Ok(Kinds::Bpe),
    ..PLAIN
};

const CONFIG: Meanings = &[
    ("attention_bias", MustEqual("[true]", "attention always has biases in this architecture")),
    ("hidden_act", Irrelevant("the class has a fixed activation")),
    ("layer_types", Used),
    ("num_experts", Used),
    ("num_experts_per_tok", Used),
    ("num_local_experts", Used),
    ("sliding_window", Used),
    ("swiglu_alpha", Used),
    ("swiglu_limit", Used),
    RMS,
];

fn keys(c: &Config, k: &mut Keys) -> Result<()> {
    standard::keys(c, k)?;
    for (key, constant) in [("swiglu_alpha", 1.702), ("swiglu_limit", 7.0)] {
        let found = c.f64(key)?;
        if found != constant {
            let what = format!("found {found}, expected {constant}: llama.cpp has no key for another");
            return Err(c.object.error(key, what));
        }
    }
    windows::pattern(c, k, 2, true)?;
    k.set("expert_feed_forward_length", c.u32("intermediate_size")?);
    Ok(())
}

fn place(_: &Config, place: &Place<'_>) -> Result<Vec<Target>> {
    let Some((before, inside)) = place.name.split_once(".mlp.experts.") else {
        return Ok(vec![place.mapped()?]);
    };
    let unknown = || place.error("is not a known tensor of experts");
    let n = before.strip_prefix("model.layers.").ok_or_else(unknown)?;
    let (maps, kind) = match (inside.strip_prefix("gate_up_proj"), inside.strip_prefix("down_proj")) {
        (Some(kind), _) => (&["gate", "up"][..], kind),
        (_, Some(kind)) => (&["down"][..], kind),
        _ => return Err(unknown()),
    };
    let mut out = Vec::new();
    for (i, map) in maps.iter().enumerate() {
        let every = match maps {
            [_] => Rows::All,
            _ => Rows::Of { of: maps.len(), from: i, n: 1 },
        };
        let (ending, rows, values) = match (kind, every) {
            ("", rows) => ("weight", rows, Values::Transposed),
            ("_blocks", rows) => ("weight", rows, Values::Mxfp4),
            // They are taken along with their blocks.
            ("_scales", _) if place.file.find(&place.stored.name.replace("_scales", "_blocks")).is_some() => {
                continue;
            }
            ("_bias", Rows::All) => ("bias", Rows::All, Values::Same),
            ("_bias", columns) => ("bias", Rows::All, Values::Columns(columns)),
            _ => return Err(unknown()),
        };
        out.push(Target { name: format!("blk.{n}.ffn_{map}_exps.{ending}"), rows, values, expert: None });
    }
    Ok(out)
}
