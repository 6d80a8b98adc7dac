//! What a session is going to need, before any of it is asked for, and what to say when it does not fit.

use super::{Attention, SessionParams};
use crate::hparams::Hparams;
use crate::kv::{Cell, CELL_BLOCK};
use crate::DType;

/// Contexts an error proposes are multiples of this, tokens.
const STEP: usize = CELL_BLOCK;

/// Bytes that grow with the context, per cell; a lower bound of what is allocated but for its constant part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PerCell {
    /// Keys and values.
    pub(super) kv: usize,
    /// The cell itself, and its part of mask and scores.
    pub(super) rest: usize,
}

/// What one cell costs under these settings; `None` when a head is not whole blocks of the cache's type.
pub(super) fn per_cell(hp: &Hparams, p: &SessionParams) -> Option<PerCell> {
    let row = hp.n_embd_head.checked_mul(hp.n_head_kv)?;
    p.kv_type.row_bytes(hp.n_embd_head)?;
    let kv = p.kv_type.row_bytes(row)?.checked_mul(2)?.checked_mul(hp.n_layer)?;
    let mask = p.n_ubatch.saturating_mul(size_of::<u16>());
    let scores = match p.attention {
        Attention::Auto => 0,
        Attention::Explicit => p.n_ubatch.saturating_mul(hp.n_head).saturating_mul(size_of::<f32>()),
    };
    // The cell, and its position once more for the mask.
    let cell = size_of::<Cell>() + size_of::<i32>();
    Some(PerCell { kv, rest: cell.saturating_add(mask).saturating_add(scores) })
}

/// Cells of a context, whole blocks of them.
pub(super) fn n_cells(n_ctx: usize) -> usize {
    n_ctx.div_ceil(CELL_BLOCK).saturating_mul(CELL_BLOCK)
}

/// One line: what is needed (`kv` bytes of cache and `rest`), what is free, and settings that fit.
pub(super) fn does_not_fit(hp: &Hparams, p: &SessionParams, kv: usize, rest: usize, free: usize) -> String {
    let need = kv.saturating_add(rest);
    let mut line = format!(
        "ctx {} needs {need} bytes ({kv} for the {} KV cache), {free} are free",
        p.n_ctx,
        p.kv_type.name()
    );
    // What does not grow with the context counts here too: that leaves room for it at shorter ones.
    let rest = rest / n_cells(p.n_ctx).max(1);
    let mut best = 0;
    for kv_type in [p.kv_type, DType::Q8_0, DType::Q4_0] {
        let n = longest(hp, &SessionParams { kv_type, ..p.clone() }, rest, free);
        if n > best {
            best = n;
            line += &format!("; --ctx {} fits with --kv {}", n.min(p.n_ctx), kv_type.name());
        }
        if n >= p.n_ctx {
            return line;
        }
    }
    if best == 0 {
        line += &format!("; not even --ctx {STEP} fits");
    }
    line
}

/// The longest context that fits into four fifths of `free`, in steps; 0 when none does.
fn longest(hp: &Hparams, p: &SessionParams, rest: usize, free: usize) -> usize {
    per_cell(hp, p).map_or(0, |cost| {
        let bytes = cost.kv.saturating_add(cost.rest.max(rest)).max(1);
        free / 5 * 4 / bytes / STEP * STEP
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hparams::RopeScaling;

    /// Llama 3 8B.
    fn hp() -> Hparams {
        Hparams {
            arch: "llama".into(),
            n_layer: 32,
            n_embd: 4096,
            n_ff: 14336,
            n_head: 32,
            n_head_kv: 8,
            n_embd_head: 128,
            n_rot: 128,
            n_vocab: 128_256,
            n_ctx_train: 8192,
            n_swa: None,
            rms_eps: 1e-5,
            freq_base: 5e5,
            rope_scaling: RopeScaling::default(),
        }
    }

    fn advised(line: &str) -> Vec<(usize, DType)> {
        line.split("--ctx ")
            .skip(1)
            .filter_map(|s| s.split_once(" fits with --kv "))
            .map(|(n, t)| (n.parse().unwrap(), DType::parse(t.split(';').next().unwrap()).unwrap()))
            .collect()
    }

    #[test]
    fn what_is_advised_fits() {
        let hp = hp();
        for attention in [Attention::Auto, Attention::Explicit] {
            for gib in [1usize, 4, 16, 64] {
                let free = gib << 30;
                let p = SessionParams { attention, ..SessionParams::new(1 << 20) };
                let cost = per_cell(&hp, &p).unwrap();
                let line =
                    does_not_fit(&hp, &p, cost.kv * n_cells(p.n_ctx), cost.rest * n_cells(p.n_ctx), free);
                let advice = advised(&line);
                assert!(!advice.is_empty(), "{line}");
                for (n_ctx, kv_type) in advice {
                    let q = SessionParams { n_ctx, kv_type, ..p.clone() };
                    let cost = per_cell(&hp, &q).unwrap();
                    let need = (cost.kv + cost.rest) * n_cells(n_ctx);
                    assert!(need < free, "{line}: {n_ctx} needs {need}");
                    assert!(need > free / 2 || n_ctx == p.n_ctx, "{line}: {n_ctx} is far from what fits");
                }
            }
        }
    }

    #[test]
    fn a_cell_of_llama_8b_is_what_its_rows_are() {
        let cost = per_cell(&hp(), &SessionParams::new(8192)).unwrap();
        assert_eq!(cost.kv, 32 * 2 * 8 * 128 * 2);
        let q8 = SessionParams { kv_type: DType::Q8_0, ..SessionParams::new(8192) };
        assert_eq!(per_cell(&hp(), &q8).unwrap().kv, 32 * 2 * 8 * 4 * 34);
        let odd = Hparams { n_embd_head: 20, ..hp() };
        assert_eq!(per_cell(&odd, &q8), None);
    }

    #[test]
    fn without_room_nothing_is_advised() {
        let line = does_not_fit(&hp(), &SessionParams::new(8192), 1 << 30, 0, 1000);
        assert!(line.ends_with("not even --ctx 256 fits") && line.contains("1073741824 bytes"), "{line}");
    }
}
