//! Where tensors go whose rows or values do not stay, and the same change for adapters.

use ropewalk_core::hparams::Hparams;

use crate::config::Config;
use crate::tensor::{Change, Rows, Values};
use crate::Result;

use super::{Place, Target};

/// llama.cpp has no biases here; files have them, all zero.
pub(super) fn cohere2(_: &Config, place: &Place<'_>) -> Result<Vec<Target>> {
    if place.name.ends_with(".bias") {
        let data = place.file.data(place.stored);
        let zero = data.each(|part| if part.iter().all(|&b| b == 0) { Ok(()) } else { Err(()) }).is_ok();
        let found = || place.error("found a bias that is not zero, expected none");
        return zero.then(Vec::new).ok_or_else(found);
    }
    Ok(vec![place.mapped()?])
}

/// Norms multiply by one more than their weights. The output is the embedding, whatever the file has.
pub(super) fn gemma(_: &Config, place: &Place<'_>) -> Result<Vec<Target>> {
    if place.name == "lm_head.weight" {
        return Ok(Vec::new());
    }
    let mut target = place.mapped()?;
    if place.name.ends_with("norm.weight") {
        target.values = Values::OneMore;
    }
    Ok(vec![target])
}

/// The same, without rows of the embedding beyond the vocabulary.
pub(super) fn gemma3(c: &Config, place: &Place<'_>) -> Result<Vec<Target>> {
    let mut targets = gemma(c, place)?;
    if place.name.contains("embed_tokens.weight") {
        let n = c.u32("vocab_size")? as usize;
        targets.iter_mut().for_each(|t| t.rows = Rows::First(n));
    }
    Ok(targets)
}

pub(super) fn gpt_oss(_: &Config, place: &Place<'_>) -> Result<Vec<Target>> {
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

pub(super) fn gptneox(c: &Config, place: &Place<'_>) -> Result<Vec<Target>> {
    let rows = match place.is(&[".attention.query_key_value"]) {
        true => Rows::Apart(c.u32("num_attention_heads")? as usize),
        false => Rows::All,
    };
    Ok(vec![place.rows(rows)?])
}

pub(super) fn change_gptneox(hp: &Hparams, il: usize, name: &str) -> Change {
    match (name, hp.attention_of(il)) {
        ("attn_qkv", Some(attention)) => Change::rows(Rows::Apart(attention.n_head)),
        _ => Change::NONE,
    }
}

/// Queries and keys are rotated in pairs of neighbors, so their rows change places.
pub(super) fn llama(c: &Config, place: &Place<'_>) -> Result<Vec<Target>> {
    let heads = match () {
        () if place.is(&[".self_attn.q_proj"]) => c.u32("num_attention_heads")?,
        () if place.is(&[".self_attn.k_proj"]) => c.u32("num_key_value_heads")?,
        () => return Ok(vec![place.mapped()?]),
    };
    Ok(vec![place.rows(Rows::Interleaved(heads as usize))?])
}

pub(super) fn change_llama(hp: &Hparams, il: usize, name: &str) -> Change {
    let heads = hp.attention_of(il).and_then(|attention| match name {
        "attn_q" => Some(attention.n_head),
        "attn_k" => Some(attention.n_head_kv),
        _ => None,
    });
    heads.map_or(Change::NONE, |heads| Change::rows(Rows::Interleaved(heads)))
}

pub(super) fn qwen3moe(_: &Config, place: &Place<'_>) -> Result<Vec<Target>> {
    let Some((before, inside)) = place.name.split_once(".mlp.experts.") else {
        return Ok(vec![place.mapped()?]);
    };
    let unknown = || place.error("is not a known tensor of an expert");
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
            let what = what.strip_suffix("_proj").filter(|what| ["gate", "up", "down"].contains(what));
            Ok(vec![target(what.ok_or_else(unknown)?, Rows::All, Some(expert))])
        }
    }
}

/// Tensors of the vision tower, and of layers that draft tokens.
fn is_left_out(name: &str) -> bool {
    ["model.visual.", "visual.", "mtp."].iter().any(|start| name.starts_with(start))
}

pub(super) fn qwen35(c: &Config, place: &Place<'_>) -> Result<Vec<Target>> {
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
    let heads_of = |size, from| ungrouped(groups, heads, size, from);
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

/// Rows of heads of values, after the first `from`.
fn ungrouped(groups: usize, heads: usize, size: usize, from: usize) -> Rows {
    match groups == heads {
        true => Rows::All,
        false => Rows::Ungrouped { from, groups, size },
    }
}

pub(super) fn change_qwen35(hp: &Hparams, _: usize, name: &str) -> Change {
    let Some(net) = hp.delta_net.as_ref() else { return Change::NONE };
    let heads_of = |size, from| ungrouped(net.n_head_k, net.n_head_v, size, from);
    match name {
        "attn_qkv" => Change::rows(heads_of(net.n_embd_head, 2 * net.n_head_k * net.n_embd_head)),
        "attn_gate" => Change::rows(heads_of(net.n_embd_head, 0)),
        "ssm_alpha" | "ssm_beta" => Change::rows(heads_of(1, 0)),
        "ssm_out" => Change { columns: heads_of(net.n_embd_head, 0), ..Change::NONE },
        _ => Change::one_more(name.ends_with("norm") && name != "ssm_norm"),
    }
}

pub(super) fn qwen35moe(c: &Config, place: &Place<'_>) -> Result<Vec<Target>> {
    if is_left_out(place.name) {
        return Ok(Vec::new());
    }
    if place.name.contains(".mlp.experts.") {
        return qwen3moe(c, place);
    }
    // A number for each token comes of one row, which llama.cpp has as a vector.
    if place.is(&["mlp.shared_expert_gate"]) {
        return Ok(vec![place.rows(Rows::First(1))?]);
    }
    qwen35(c, place)
}
