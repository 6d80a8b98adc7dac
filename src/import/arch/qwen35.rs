//! Qwen 3.5 to 3.8, their text models: gated delta-nets in most layers (`conversion/qwen.py`, `Qwen3_5TextModel`).
//!
//! Several heads of values share one of queries and keys. transformers has those of each side by side; llama.cpp, which
//! repeats queries and keys as a whole, has the first of each, then the second of each. What draws on images, and the
//! layers that draft further tokens (multi-token prediction), are left out.

use gguf::{Array, Value};
use ropewalk_core::hparams::Hparams;

use crate::config::{Class, Config};
use crate::keys::Keys;
use crate::meaning::{Meaning::Irrelevant, Meaning::Used, Meanings, NO_BIASES, RMS, SILU};
use crate::tensor::{Change, Rows, Values};
use crate::vocab::Kinds;
use crate::Result;

use super::{standard, windows, Family, Place, Target, PLAIN};

pub(super) static FAMILY: Family = Family {
    classes: &["Qwen3_5ForCausalLM", "Qwen3_5ForConditionalGeneration"],
    arch: "qwen35",
    class: Class {
        defaults: r#"{"full_attention_interval": 4, "head_dim": 256, "hidden_size": 4096, "intermediate_size": 12288,
            "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128, "linear_num_key_heads": 16,
            "linear_num_value_heads": 32, "linear_value_head_dim": 128, "max_position_embeddings": 32768,
            "num_attention_heads": 16, "num_hidden_layers": 32, "num_key_value_heads": 4, "rms_norm_eps": 1e-06,
            "tie_word_embeddings": false, "vocab_size": 248320, "rope_theta": 10000.0,
            "partial_rotary_factor": 0.25}"#,
        config: &[CONFIG],
        ..Class::PLAIN
    },
    names: NAMES,
    keys,
    place,
    change,
    vocab: |_| Ok(Kinds::Bpe),
    ..PLAIN
};

pub(super) const NAMES: &[(&str, &str)] = &[
    ("model.layers.{}.post_attention_layernorm", "blk.{}.post_attention_norm"),
    ("model.layers.{}.linear_attn.in_proj_qkv", "blk.{}.attn_qkv"),
    ("model.layers.{}.linear_attn.in_proj_z", "blk.{}.attn_gate"),
    ("model.layers.{}.linear_attn.in_proj_a", "blk.{}.ssm_alpha"),
    ("model.layers.{}.linear_attn.in_proj_b", "blk.{}.ssm_beta"),
    ("model.layers.{}.linear_attn.conv1d", "blk.{}.ssm_conv1d"),
    ("model.layers.{}.linear_attn.A_log", "blk.{}.ssm_a"),
    ("model.layers.{}.linear_attn.dt_bias", "blk.{}.ssm_dt.bias"),
    ("model.layers.{}.linear_attn.norm", "blk.{}.ssm_norm"),
    ("model.layers.{}.linear_attn.out_proj", "blk.{}.ssm_out"),
];

/// Keys with experts and without.
pub(super) const CONFIG: Meanings = &[
    ("attn_output_gate", Used),
    ("full_attention_interval", Used),
    ("layer_types", Used),
    ("linear_conv_kernel_dim", Used),
    ("linear_key_head_dim", Used),
    ("linear_num_key_heads", Used),
    ("linear_num_value_heads", Used),
    ("linear_value_head_dim", Used),
    ("mtp_num_hidden_layers", Irrelevant("layers that draft tokens are left out")),
    ("partial_rotary_factor", Used),
    NO_BIASES,
    RMS,
    SILU,
];

/// Sections of the pairs by time, height and width where config.json says nothing (`_QWEN35_DEFAULT_MROPE_SECTION`).
const SECTIONS: [i32; 4] = [11, 11, 10, 0];

pub(super) fn keys(c: &Config, k: &mut Keys) -> Result<()> {
    standard::keys(c, k)?;
    let (key, value) = (c.u32("linear_key_head_dim")?, c.u32("linear_value_head_dim")?);
    if key != value {
        let what = format!("found {value}, expected linear_key_head_dim = {key}, as in llama.cpp");
        return Err(c.object.error("linear_value_head_dim", what));
    }
    if c.object.bool("attn_output_gate")? == Some(false) {
        return Err(c.object.error("attn_output_gate", "expected true: llama.cpp always gates attention"));
    }
    let heads = c.u32("linear_num_value_heads")?;
    k.set("ssm.conv_kernel", c.u32("linear_conv_kernel_dim")?);
    k.set("ssm.state_size", key);
    k.set("ssm.group_count", c.u32("linear_num_key_heads")?);
    k.set("ssm.time_step_rank", heads);
    k.set("ssm.inner_size", value.saturating_mul(heads));
    if let Some(recurrent) = windows::layer_types(c, "linear_attention")? {
        k.set("attention.recurrent_layers", Value::Array(Array::Bool(recurrent)));
    }
    k.set("full_attention_interval", c.u32("full_attention_interval")?);
    let rotated = f64::from(c.head_dim()?) * c.rope.f64("partial_rotary_factor")?.unwrap_or(0.25);
    k.set("rope.dimension_count", rotated as u32);
    k.set("rope.dimension_sections", Value::Array(Array::I32(sections(c)?)));
    Ok(())
}

fn sections(c: &Config) -> Result<Vec<i32>> {
    let Some(given) = c.rope.array("mrope_section")? else { return Ok(SECTIONS.to_vec()) };
    let mut sections = Vec::new();
    for n in given.iter().take(4) {
        let n = n.as_u64().and_then(|n| i32::try_from(n).ok());
        let what = "expected whole numbers of 0 or more";
        sections.push(n.ok_or_else(|| c.rope.error("mrope_section", what))?);
    }
    sections.resize(4, 0);
    Ok(sections)
}

/// Tensors of the vision tower, and of layers that draft tokens.
pub(super) fn is_left_out(name: &str) -> bool {
    ["model.visual.", "visual.", "mtp."].iter().any(|start| name.starts_with(start))
}

pub(super) fn place(c: &Config, place: &Place<'_>) -> Result<Vec<Target>> {
    if is_left_out(place.name) {
        return Ok(Vec::new());
    }
    let mut target = place.mapped()?;
    let (groups, heads) =
        (c.u32("linear_num_key_heads")? as usize, c.u32("linear_num_value_heads")? as usize);
    let d = c.u32("linear_key_head_dim")? as usize;
    if groups == 0 || !heads.is_multiple_of(groups) {
        let what = format!("found {heads}, expected a multiple of linear_num_key_heads = {groups}");
        return Err(c.object.error("linear_num_value_heads", what));
    }
    let heads_of = |size: usize, from: usize| match groups == heads {
        true => Rows::All,
        false => Rows::Ungrouped { from, groups, size },
    };
    let keys = groups.saturating_mul(d).saturating_mul(2);
    let (n_rows, expected) = (place.stored.n_rows(), keys.saturating_add(heads.saturating_mul(d)));
    if place.is(&["linear_attn.in_proj_qkv"]) && n_rows != expected {
        return Err(place.error(format!("found {n_rows} rows, expected {expected}")));
    }
    if place.is(&["linear_attn.in_proj_qkv", "linear_attn.conv1d"]) {
        target.rows = heads_of(d, keys);
    } else if place.is(&["linear_attn.in_proj_z"]) {
        target.rows = heads_of(d, 0);
    } else if place.is(&["linear_attn.in_proj_a", "linear_attn.in_proj_b", "linear_attn.dt_bias"]) {
        target.rows = heads_of(1, 0);
    } else if place.is(&["linear_attn.A_log"]) {
        target.rows = heads_of(1, 0);
        target.values = Values::MinusExp;
    } else if place.is(&["linear_attn.out_proj"]) {
        target.values = match heads_of(d, 0) {
            Rows::All => Values::Same,
            columns => Values::Columns(columns),
        };
    } else if place.name.ends_with("norm.weight") && !place.name.ends_with("linear_attn.norm.weight") {
        target.values = Values::OneMore;
    }
    Ok(vec![target])
}

/// The same of an adapter.
pub(super) fn change(hp: &Hparams, _: usize, name: &str) -> Change {
    let Some(net) = hp.delta_net.as_ref() else { return Change::NONE };
    let heads_of = |size: usize, from: usize| match net.n_head_k == net.n_head_v {
        true => Rows::All,
        false => Rows::Ungrouped { from, groups: net.n_head_k, size },
    };
    match name {
        "attn_qkv" => Change::rows(heads_of(net.n_embd_head, 2 * net.n_head_k * net.n_embd_head)),
        "attn_gate" => Change::rows(heads_of(net.n_embd_head, 0)),
        "ssm_alpha" | "ssm_beta" => Change::rows(heads_of(1, 0)),
        "ssm_out" => Change { columns: heads_of(net.n_embd_head, 0), ..Change::NONE },
        _ => Change::one_more(name.ends_with("norm") && name != "ssm_norm"),
    }
}
