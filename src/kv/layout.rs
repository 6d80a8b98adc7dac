//! The tensors of a cache and their sizes, known before anything is allocated.

use super::cells::{CELL_BLOCK, MAX_SEQS};
use crate::rope::{LayerPlan, Plan, PosMap};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    /// Cells of tokens, in whole blocks.
    pub n_cells: usize,
    /// Positions below this have cells of their own once more; 0 where none have.
    pub end: i32,
    /// These cells, in whole blocks.
    pub n_starts: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Held {
    /// Keys of all tokens under one map.
    Keys,
    /// Keys of first positions under one map.
    StartKeys,
    Values,
    StartValues,
}

impl Layout {
    /// For `n_cells` tokens. Sizes that overflow count as more than there can be.
    ///
    /// Each sequence that can be told apart has cells for its first positions, so that these never run out; where keys
    /// of all tokens take no more room than keys and values in those, there are none.
    pub fn new(plan: &Plan, n_cells: usize) -> Layout {
        let n_cells = whole_blocks(n_cells);
        let ends = plan.kinds().iter().flat_map(|kind| kind.key_maps().into_iter().map(|m| kind.keys_end(m)));
        let end = ends.flatten().max().unwrap_or(0);
        let n_starts = whole_blocks((end as usize).saturating_mul(MAX_SEQS as usize));
        if end > 0 && n_starts < n_cells / 2 {
            Layout { n_cells, end, n_starts }
        } else {
            Layout { n_cells, end: 0, n_starts: 0 }
        }
    }

    /// Whether keys of a layer under this map are cached of first positions only.
    pub fn of_starts(&self, plan: &LayerPlan, map: PosMap) -> bool {
        plan.keys_end(map).is_some_and(|end| end <= self.end)
    }

    /// The tensors of a layer: keys under each map in the order of [`LayerPlan::key_maps`], values, values of first
    /// positions.
    pub fn tensors(&self, plan: &LayerPlan) -> Vec<Held> {
        let of_map = |map| if self.of_starts(plan, map) { Held::StartKeys } else { Held::Keys };
        let mut tensors: Vec<Held> = plan.key_maps().into_iter().map(of_map).collect();
        let starts = tensors.contains(&Held::StartKeys);
        tensors.push(Held::Values);
        tensors.extend(starts.then_some(Held::StartValues));
        tensors
    }

    pub fn n_rows(&self, held: Held) -> usize {
        match held {
            Held::Keys | Held::Values => self.n_cells,
            Held::StartKeys | Held::StartValues => self.n_starts,
        }
    }
}

/// Cells for as many tokens, in whole blocks.
pub fn whole_blocks(n: usize) -> usize {
    n.div_ceil(CELL_BLOCK).saturating_mul(CELL_BLOCK)
}
