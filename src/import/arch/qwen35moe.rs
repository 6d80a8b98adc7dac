//! Qwen 3.5 and 3.6 with experts, their text models: the delta-nets of [`qwen35`](super::qwen35), the experts of
//! [`qwen3moe`](super::qwen3moe), and one that is shared (`conversion/qwen.py`, `Qwen3_5MoeTextModel`).

use crate::config::{Class, Config};
use crate::keys::Keys;
use crate::meaning::{Meaning::MustEqual, Meaning::Used, Meanings};
use crate::tensor::Rows;
use crate::vocab::Kinds;
use crate::Result;

use super::{qwen35, qwen3moe, Family, Place, Target, PLAIN};

pub(super) static FAMILY: Family = Family {
    classes: &["Qwen3_5MoeForCausalLM", "Qwen3_5MoeForConditionalGeneration"],
    arch: "qwen35moe",
    class: Class {
        defaults: r#"{"full_attention_interval": 4, "head_dim": 256, "hidden_size": 2048, "linear_conv_kernel_dim": 4,
            "linear_key_head_dim": 128, "linear_num_key_heads": 16, "linear_num_value_heads": 32,
            "linear_value_head_dim": 128, "max_position_embeddings": 32768, "moe_intermediate_size": 512,
            "num_attention_heads": 16, "num_experts": 256, "num_experts_per_tok": 8, "num_hidden_layers": 40,
            "num_key_value_heads": 2, "rms_norm_eps": 1e-06, "shared_expert_intermediate_size": 512,
            "tie_word_embeddings": false, "vocab_size": 248320, "rope_theta": 10000.0,
            "partial_rotary_factor": 0.25}"#,
        config: &[qwen35::CONFIG, CONFIG],
        ..Class::PLAIN
    },
    names: NAMES,
    keys,
    place,
    change: qwen35::change,
    vocab: |_| Ok(Kinds::Bpe),
    ..PLAIN
};

/// Names of the delta-nets' tensors, and then of this family alone.
const NAMES: &[(&str, &str)] = &{
    let mut names = [("", ""); qwen35::NAMES.len() + 5];
    let mut i = 0;
    while i < qwen35::NAMES.len() {
        names[i] = qwen35::NAMES[i];
        i += 1;
    }
    names[i] = ("model.layers.{}.mlp.gate", "blk.{}.ffn_gate_inp");
    names[i + 1] = ("model.layers.{}.mlp.shared_expert_gate", "blk.{}.ffn_gate_inp_shexp");
    names[i + 2] = ("model.layers.{}.mlp.shared_expert.gate_proj", "blk.{}.ffn_gate_shexp");
    names[i + 3] = ("model.layers.{}.mlp.shared_expert.up_proj", "blk.{}.ffn_up_shexp");
    names[i + 4] = ("model.layers.{}.mlp.shared_expert.down_proj", "blk.{}.ffn_down_shexp");
    names
};

const CONFIG: Meanings = &[
    ("mlp_only_layers", MustEqual("[[]]", "every layer has experts in this architecture")),
    ("moe_intermediate_size", Used),
    ("num_experts", Used),
    ("num_experts_per_tok", Used),
    ("shared_expert_intermediate_size", Used),
];

fn keys(c: &Config, k: &mut Keys) -> Result<()> {
    qwen35::keys(c, k)?;
    k.set("expert_feed_forward_length", c.u32("moe_intermediate_size")?);
    k.set("expert_shared_feed_forward_length", c.u32("shared_expert_intermediate_size")?);
    Ok(())
}

fn place(c: &Config, place: &Place<'_>) -> Result<Vec<Target>> {
    if qwen35::is_left_out(place.name) {
        return Ok(Vec::new());
    }
    if place.name.contains(".mlp.experts.") {
        return qwen3moe::experts(place);
    }
    // A number for each token comes of one row, which llama.cpp has as a vector.
    if place.is(&["mlp.shared_expert_gate"]) {
        return Ok(vec![place.rows(Rows::First(1))?]);
    }
    qwen35::place(c, place)
}
