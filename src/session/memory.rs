//! The memory that a session needs, computed before any of it is allocated, and the error that suggests settings that
//! fit.

use ropewalk_core::remedy::Remedy;
use ropewalk_core::text::bytes;

use super::inputs::REWIND;
use super::{Attention, SessionParams};
use crate::graph::Spans;
use crate::hparams::Hparams;
use crate::kv::{whole_blocks, Cell, Layout, CELL_BLOCK};
use crate::model::{Error, Result};
use crate::rope::{LayerPlan, Plan};
use crate::states::States;
use crate::DType;

/// Contexts an error proposes are multiples of this, tokens.
const STEP: usize = CELL_BLOCK;

/// Bytes that grow with the context: a lower bound of the session's memory without its constant part.
#[derive(Debug, Clone)]
pub struct Cost<'a> {
    hp: &'a Hparams,
    params: &'a SessionParams,
    plan: &'a Plan,
    /// Cells of the cache.
    pub n_cells: usize,
    /// Keys and values.
    pub kv: usize,
    /// The cells themselves, masks, and states of recurrent layers.
    pub other: usize,
}

impl<'a> Cost<'a> {
    /// Sizes that overflow count as more than there can be.
    pub fn new(hp: &'a Hparams, params: &'a SessionParams, plan: &'a Plan) -> Cost<'a> {
        // A micro-batch is stored before it is known what it makes superfluous.
        let held = plan.n_held().map(|n| {
            n.saturating_add(REWIND).saturating_mul(params.n_seq_max).saturating_add(params.n_ubatch)
        });
        let n_cells = held.unwrap_or(params.n_ctx.saturating_mul(params.n_seq_max));
        let layout = Layout::new(plan, n_cells);
        let of_layers = (0..hp.n_layer).map(|il| {
            let (Some(layer), Some(plan)) = (hp.attention_of(il), plan.of_layer(il)) else { return 0 };
            let row = params.kv_type.row_bytes(layer.n_embd_kv()).unwrap_or(0);
            let rows = layout.tensors(plan).into_iter().map(|held| layout.n_rows(held));
            row.saturating_mul(rows.fold(0, usize::saturating_add))
        });
        let kv = of_layers.fold(0, usize::saturating_add);
        let mut cost = Cost { hp, params, plan, n_cells, kv, other: 0 };
        // The cell, and its position once more for the mask.
        let cells = layout.n_cells.saturating_add(layout.n_starts);
        let cells = cells.saturating_mul(size_of::<Cell>() + size_of::<i32>());
        // Where attention goes by tiles, the place of each key stands for its column of the mask.
        let per_column = match params.attention {
            Attention::Auto | Attention::Landmark(_) => params.n_ubatch.saturating_mul(size_of::<u16>()),
            Attention::Explicit => size_of::<f32>(),
        };
        let of_kinds = cost.spans().into_iter().map(|spans| {
            spans.iter().fold(0, |n: usize, s| n.saturating_add(s.len)).saturating_mul(per_column)
        });
        let states = States::bytes_for(hp, params.n_seq_max);
        cost.other = of_kinds.fold(cells.saturating_add(states), usize::saturating_add);
        cost
    }

    /// For each kind of layer, the cells that branches attend to at most, where the cache is filled in the
    /// order of positions.
    pub(super) fn spans(&self) -> Vec<Spans> {
        let layout = Layout::new(self.plan, self.n_cells);
        let of_kind = |kind: &LayerPlan| {
            let mut spans = Spans::default();
            for (span, branch) in spans.iter_mut().zip(&kind.branches) {
                let keys = branch
                    .reach
                    .most_keys()
                    .map(|n| n.saturating_add(self.params.n_ubatch + REWIND + CELL_BLOCK));
                span.len = if layout.of_starts(kind, branch.k_pos) {
                    layout.n_starts
                } else {
                    keys.map_or(layout.n_cells, whole_blocks).min(layout.n_cells)
                };
                span.columns = span.len;
            }
            spans
        };
        self.plan.kinds().iter().map(of_kind).collect()
    }

    /// All of it.
    pub fn total(&self) -> usize {
        self.kv.saturating_add(self.other)
    }

    /// Returns an error if the session does not fit in `free` bytes.
    pub fn check(&self, free: usize) -> Result<()> {
        if self.total() > free {
            return Err(self.does_not_fit(self.kv, self.other, free));
        }
        Ok(())
    }

    /// Returns an error if graphs, measured to need `compute` bytes, do not fit together with the cache of `kv`
    /// bytes.
    pub(super) fn check_measured(&self, kv: usize, compute: usize, free: usize) -> Result<()> {
        if compute > free {
            return Err(self.does_not_fit(kv, compute, free.saturating_add(kv)));
        }
        Ok(())
    }

    /// One line with the bytes needed (`kv` for the cache, and `other`), the free bytes, and settings that fit.
    fn does_not_fit(&self, kv: usize, other: usize, free: usize) -> Error {
        let needed = kv.saturating_add(other);
        let what = self.what_fits(needed, kv, other, free);
        // Under a window, the context does not decide.
        let remedy = self.plan.n_held().is_none().then_some(Remedy::Cache);
        Error::OutOfMemory { needed, free: Some(free), what, remedy }
    }

    fn what_fits(&self, need: usize, kv: usize, other: usize, free: usize) -> String {
        let p = self.params;
        let kv_type = p.kv_type.name();
        let (need, kv, left) = (bytes(need as u64), bytes(kv as u64), bytes(free as u64));
        if let Some(held) = self.plan.n_held() {
            return format!(
                "rope {} holds {held} tokens and needs {need} ({kv} for the {kv_type} KV cache), {left} is free; \
                 a smaller window needs less",
                self.plan.spec
            );
        }
        let mut line =
            format!("ctx {} needs {need} ({kv} for the {kv_type} KV cache), {left} is free", p.n_ctx);
        // What does not grow with the context counts here too: that leaves room for it at shorter ones.
        let per_cell = other / whole_blocks(self.n_cells).max(1);
        let mut best = 0;
        for kv_type in [p.kv_type, DType::Q8_0, DType::Q4_0] {
            let n = self.longest(kv_type, per_cell, free);
            if n > best {
                best = n;
                line += &format!("; ctx {} fits with kv type {}", n.min(p.n_ctx), kv_type.name());
            }
            if n >= p.n_ctx {
                return line;
            }
        }
        if best == 0 {
            line += &format!("; not even ctx {STEP} fits");
        }
        line
    }

    /// The longest context that fits in four fifths of `free`, in steps; 0 if none fits.
    fn longest(&self, kv_type: DType, per_cell: usize, free: usize) -> usize {
        if self.hp.attention.iter().any(|layer| kv_type.row_bytes(layer.n_embd_head).is_none()) {
            return 0;
        }
        let fits = |steps: usize| {
            let params = SessionParams { n_ctx: steps * STEP, kv_type, ..self.params.clone() };
            let cost = Cost::new(self.hp, &params, self.plan);
            let other = cost.other.max(per_cell.saturating_mul(whole_blocks(cost.n_cells)));
            cost.kv.saturating_add(other) <= free / 5 * 4
        };
        let (mut low, mut high) = (0, self.params.n_ctx.div_ceil(STEP) + 1);
        while low + 1 < high {
            let middle = low + (high - low) / 2;
            if fits(middle) {
                low = middle;
            } else {
                high = middle;
            }
        }
        low * STEP
    }
}
