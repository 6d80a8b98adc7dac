//! Models most of whose layers are gated delta-nets instead of attention (Qwen3.5).
//!
//! Source: `load_arch_hparams` and the graphs of llama.cpp's `src/models/qwen35.cpp`.

use gguf::Result;

use super::{DeltaNetHparams, Hparams, KeyReader, MAX_DIM};

/// Layers without attention, and the numbers of those.
pub(super) fn qwen35(keys: &KeyReader<'_>, hp: &mut Hparams) -> Result<()> {
    hp.delta_net = Some(numbers(keys)?);
    let every = keys.count_opt("full_attention_interval", 1, MAX_DIM)?.unwrap_or(4);
    let listed = "attention.recurrent_layers";
    for (il, layer) in hp.layers.iter_mut().enumerate() {
        if keys.listed(listed, il)?.unwrap_or(!(il + 1).is_multiple_of(every)) {
            layer.kind = None;
        }
    }
    if hp.layers.iter().all(|layer| layer.kind.is_none()) {
        let what = format!("expected at least one layer with attention, found none of {}", hp.n_layer);
        return Err(keys.error("full_attention_interval", what));
    }
    // What the file says of attention in other layers is of no use.
    let used = |kind: &usize| hp.layers.iter().any(|layer| layer.kind == Some(*kind));
    let used: Vec<usize> = (0..hp.attention.len()).filter(used).collect();
    hp.layers.iter_mut().for_each(|l| l.kind = used.iter().position(|&kind| l.kind == Some(kind)));
    hp.attention = used.iter().map(|&kind| hp.attention[kind].clone()).collect();
    sections(keys, hp.attention.first().map_or(0, |layer| layer.n_rot() / 2))
}

fn numbers(keys: &KeyReader<'_>) -> Result<DeltaNetHparams> {
    let n_embd_head = keys.count("ssm.state_size", 1, 1 << 12)?;
    let n_head_v = keys.count("ssm.time_step_rank", 1, MAX_DIM / n_embd_head)?;
    let n_head_k = keys.count("ssm.group_count", 1, n_head_v)?;
    let net =
        DeltaNetHparams { n_head_k, n_head_v, n_embd_head, n_conv: keys.count("ssm.conv_kernel", 2, 256)? };
    if !n_head_v.is_multiple_of(n_head_k) {
        let what = format!("expected a divisor of ssm.time_step_rank = {n_head_v}, found {n_head_k}");
        return Err(keys.error("ssm.group_count", what));
    }
    let (inner, n) = (keys.count("ssm.inner_size", 1, MAX_DIM)?, net.n_embd_v());
    if inner != n {
        let what = format!("expected {n}, {n_head_v} heads of {n_embd_head}, found {inner}");
        return Err(keys.error("ssm.inner_size", what));
    }
    // ggml counts the numbers of a state in 31 bits.
    let most = i32::MAX as usize;
    if net.n_state() > most || net.n_conv_state() > most {
        let what = format!("{n_head_v} heads of {n_embd_head}: their states are more than {most} numbers");
        return Err(keys.error("ssm.state_size", what));
    }
    Ok(net)
}

/// `rope.dimension_sections` says which of a token's three positions (time, height, width) turns which of the `n`
/// pairs: interleaved, the others by a fourth position that is 0 in text. In text the three are one, so that nothing is
/// left of the sections unless a pair is of the fourth.
fn sections(keys: &KeyReader<'_>, n: usize) -> Result<()> {
    let name = "rope.dimension_sections";
    let mut found =
        keys.counts(name)?.ok_or_else(|| keys.error(name, "expected 4 integers, found no such key"))?;
    // Other writers leave out the fourth, which is 0.
    if found.len() == 3 {
        found.push(0);
    }
    let fits = |&n: &u64| n <= MAX_DIM as u64;
    let (&[t, h, w, other], true) = (found.as_slice(), found.iter().all(fits)) else {
        let most = MAX_DIM;
        return Err(keys.error(name, format!("expected 4 integers, each at most {most}, found {found:?}")));
    };
    let all = t + h + w + other;
    let in_text = |pair: u64| {
        let at = pair % all;
        [t, h, w].get((at % 3) as usize).is_some_and(|section| at < 3 * section)
    };
    if all == 0 || all > 2 * n as u64 || !(0..n as u64).all(in_text) {
        let what =
            format!("expected sections of which the first three cover all of {n} pairs, found {found:?}");
        return Err(keys.error(name, what));
    }
    Ok(())
}
