//! Fills the inputs of a graph before it runs, and frees the KV slots that no later token sees.

use ggml::attention::{place_mask, KEYS};
use ggml::graph::Executor;

use super::batch::Item;
use super::{SeqId, Session};
use crate::graph::{
    is_single, middle_and_half, n_columns, turns, GraphInputs, Places, Positions, SeenInputs, Spans,
    MAX_PLACE, NOWHERE, UNSEEN as FINITE_UNSEEN,
};
use crate::kv::{Cell, Columns, KvCache, Span, Taken};
use crate::model::{Error, Result};
use crate::rope::LayerPlan;
use crate::Token;

/// Tokens that can be taken back under plans that evict keys: a chat template may end an answer with other
/// tokens than those it was generated as.
pub(super) const REWIND: usize = 32;

const F16_NEG_INF: u16 = 0xfc00;
/// Stands in for the position of a cell that a sequence does not see.
const UNSEEN: i32 = i32::MAX;

#[derive(Debug, Default)]
pub(super) struct Scratch {
    angles: Vec<f32>,
    visible: Vec<i32>,
    /// By kind of layer, what numbers of blocks turn keys by.
    turns: Vec<Vec<f32>>,
}

/// The cells that the tokens of a micro-batch attend to in layers of one kind.
#[derive(Debug, Default)]
pub(super) struct Seen {
    pub(super) spans: Spans,
    /// Of each branch, where attention is our own op; else columns are the cells of the spans.
    pub(super) columns: Vec<Columns>,
}

/// Fills the mask of one kind of layer, F16 `[n_columns, n_tokens]`: a token sees a cell of its sequence
/// whose position the column's branch reaches. Elsewhere the mask is `unseen`.
fn fill_mask(
    mask: &mut [u16],
    kv: &KvCache,
    plan: &LayerPlan,
    Seen { spans, columns: placed }: &Seen,
    places: &[(SeqId, i32)],
    unseen: u16,
    visible: &mut Vec<i32>,
) {
    let mut seen_by = None;
    for (mut row, &(seq, pos)) in mask.chunks_exact_mut(n_columns(spans).max(1)).zip(places) {
        if seen_by != Some(seq) {
            visible.clear();
            for (span, placed) in spans.iter().zip(placed) {
                let n = visible.len() + span.columns;
                placed.positions(seq, UNSEEN, visible);
                visible.resize(n, UNSEEN);
            }
            for cells in columns(kv, plan, spans).filter(|_| placed.is_empty()) {
                let n = visible.len() + cells.len;
                let used = cells.used.iter();
                visible.extend(used.map(|c| if c.seqs & (1 << seq) != 0 { c.pos } else { UNSEEN }));
                visible.resize(n, UNSEEN);
            }
            seen_by = Some(seq);
        }
        let mut visible = &visible[..];
        for (branch, span) in plan.branches.iter().zip(spans) {
            let keys = branch.reach.keys(pos);
            let (columns, others) = row.split_at_mut(span.columns);
            let (cells, of_others) = visible.split_at(span.columns);
            for (m, &p) in columns.iter_mut().zip(cells) {
                *m = if p >= keys.start && p < keys.end { 0 } else { unseen };
            }
            (row, visible) = (others, of_others);
        }
    }
}

struct Stretch<'a> {
    len: usize,
    /// The cells of the first of them; a last block may reach beyond the last cell.
    used: &'a [Cell],
}

/// The columns of a mask that are cells in order, branch by branch.
fn columns<'a>(kv: &'a KvCache, plan: &'a LayerPlan, spans: &'a Spans) -> impl Iterator<Item = Stretch<'a>> {
    plan.branches.iter().zip(spans).map(|(branch, span)| {
        let cells = kv.cells_under(plan, branch.k_pos).all();
        let end = (span.start + span.len).min(cells.len());
        Stretch { len: span.len, used: &cells[span.start.min(end)..end] }
    })
}

/// For each token the number of its sequence among those that the tokens are of, and these sequences.
pub(super) fn table_of(places: &[(SeqId, i32)]) -> (Vec<i32>, Vec<SeqId>) {
    let mut seqs = Vec::new();
    let table = |&(seq, _): &(SeqId, i32)| {
        let known = seqs.iter().position(|&s| s == seq);
        known.unwrap_or_else(|| {
            seqs.push(seq);
            seqs.len() - 1
        }) as i32
    };
    (places.iter().map(table).collect(), seqs)
}

/// Fills the inputs of attention by tiles: the positions of cells in each sequence, and the first and last key of each
/// token and branch.
fn fill_places(
    exec: &mut Executor,
    ids: Places,
    kv: &KvCache,
    plan: &LayerPlan,
    spans: &Spans,
    places: &[(SeqId, i32)],
) -> Result<()> {
    if let Some((_, pos)) = places.iter().find(|(_, pos)| *pos as usize >= MAX_PLACE) {
        let what = format!("position {pos}: portable attention supports positions up to {}", MAX_PLACE - 1);
        return Err(Error::Unsupported(what));
    }
    let (tables, seqs) = table_of(places);
    exec.set(ids.tables, &tables)?;
    exec.fill(ids.keys, |keys: &mut [f32]| {
        keys.fill(NOWHERE);
        for (row, &seq) in keys.chunks_exact_mut(n_columns(spans).max(1)).zip(&seqs) {
            let mut row = row;
            for Stretch { len, used } in columns(kv, plan, spans) {
                let (keys, others) = row.split_at_mut(len);
                for (key, cell) in keys.iter_mut().zip(used) {
                    if cell.seqs & (1 << seq) != 0 {
                        *key = cell.pos as f32;
                    }
                }
                row = others;
            }
        }
    })?;
    let used = plan.branches.iter().zip(spans).filter(|(_, span)| span.len > 0);
    let mut ranges = Vec::new();
    for (branch, _) in used {
        let of_tokens = places.iter().map(|&(_, pos)| middle_and_half(branch.reach.keys(pos)));
        let (middles, halves): (Vec<f32>, Vec<f32>) = of_tokens.map(|[middle, half]| (middle, half)).unzip();
        ranges.extend(middles.into_iter().chain(halves));
    }
    Ok(exec.set(ids.ranges, &ranges)?)
}

impl Session {
    /// The number of position tables for `n_seqs` sequences; it varies less than they do, so that graphs are reused.
    pub(super) fn n_tables(&self, n_seqs: usize) -> usize {
        if self.capabilities.branched_attention() {
            return 1;
        }
        n_seqs.next_power_of_two()
    }

    pub(super) fn fill(
        &mut self,
        ids: &GraphInputs,
        items: &[Item],
        places: &[(SeqId, i32)],
        taken: &Taken,
        wanted: &[usize],
        seen: &[Seen],
    ) -> Result<()> {
        let hp = self.model.hparams();
        let tokens: Vec<Token> = items.iter().map(|i| i.token).collect();
        let mut embedded = Ok(());
        self.exec.fill(ids.embd, |rows| embedded = self.model.embed(&tokens, rows))?;
        embedded?;
        self.exec.set(ids.cells, &taken.cells.iter().map(|&c| c as i64).collect::<Vec<_>>())?;
        if let Some(ids) = ids.starts {
            let (tokens, cells): (Vec<i32>, Vec<i64>) =
                taken.starts.iter().map(|&(token, cell)| (token as i32, cell as i64)).unzip();
            self.exec.set(ids.tokens, &tokens)?;
            self.exec.set(ids.cells, &cells)?;
        }
        let pos: Vec<i32> = places.iter().map(|p| p.1).collect();
        if let Some(out_ids) = ids.out_ids {
            self.exec.set(out_ids, &wanted.iter().map(|&i| i as i32).collect::<Vec<_>>())?;
        }
        let tables = self.tables_for(places);
        let shape = self.tables_of(places);
        self.scratch.turns.resize(ids.kinds.len(), Vec::new());
        for ((((ids, layer), plan), seen), kept) in
            ids.kinds.iter().zip(&hp.attention).zip(self.plan.kinds()).zip(seen).zip(&mut self.scratch.turns)
        {
            let spans = &seen.spans;
            let at = Positions::Whole(&pos);
            ids.rotation.fill(&mut self.exec, layer, plan, at, &mut self.scratch.angles)?;
            if let Some((id, shape)) = ids.turns.zip(shape) {
                let n = shape.n_positions.div_ceil(shape.block);
                if kept.len() != n * plan.freqs.theta.len() * 2 {
                    *kept = turns(plan, shape.block, n);
                }
                self.exec.set(id, kept)?;
            }
            let mask = match ids.seen {
                SeenInputs::Mask(mask) => mask,
                SeenInputs::Places(ids) => {
                    fill_places(&mut self.exec, ids, &self.kv, plan, spans, places)?;
                    continue;
                }
                SeenInputs::Tables { .. } => {
                    tables.iter().try_for_each(|tables| tables.set(&mut self.exec, ids.seen))?;
                    continue;
                }
            };
            let (kv, visible) = (&self.kv, &mut self.scratch.visible);
            let mut indexed = Ok(());
            let finite = is_single(self.capabilities, spans, places.len());
            let unseen = if finite { FINITE_UNSEEN } else { F16_NEG_INF };
            self.exec.fill(mask, |mask| {
                fill_mask(mask, kv, plan, seen, places, unseen, visible);
                if !seen.columns.is_empty() {
                    let rows = |(span, columns): (&Span, &Columns)| {
                        let padded = columns.rows(span.start).chain(std::iter::repeat(([0; KEYS], 0)));
                        padded.take(span.columns / KEYS).collect::<Vec<_>>()
                    };
                    let rows = spans.iter().zip(&seen.columns).flat_map(rows);
                    indexed = place_mask(mask, n_columns(spans), places.len(), rows);
                }
            })?;
            indexed?;
        }
        Ok(())
    }

    /// Frees the cells that neither these tokens nor later ones of their sequences see.
    pub(super) fn evict(&mut self, places: &[(SeqId, i32)]) {
        if !self.plan.evict {
            return;
        }
        let mut seen = 0u64;
        for &(seq, pos) in places {
            // The first place of a sequence is its lowest.
            if seen & (1 << seq) == 0 {
                seen |= 1 << seq;
                let from = pos.saturating_sub(REWIND as i32);
                self.kv.evict(seq, from, |key| self.plan.needs(key, from));
            }
        }
        if self.kv.n_free() >= places.len() {
            return;
        }
        // The last micro-batch of other sequences is in the cache with all that it made superfluous.
        for seq in (0..self.tokens.len()).filter(|seq| seen & (1 << seq) == 0) {
            let next = self.model.n_positions(self.tokens[seq].len()) as i32;
            let from = next.saturating_sub(REWIND as i32);
            self.kv.evict(seq as SeqId, from, |key| self.plan.needs(key, from));
        }
    }

    /// Returns true if the cache has every key of a sequence that tokens from position `n` on can see.
    pub(super) fn holds(&self, seq: SeqId, n: usize) -> bool {
        if !self.plan.evict {
            return true;
        }
        let n = n as i32;
        let own = self.kv.cells().iter().filter(|c| c.seqs & (1 << seq) != 0 && c.pos < n);
        let held = own.filter(|c| self.plan.needs(c.pos, n)).count();
        (0..n).filter(|&j| self.plan.needs(j, n)).count() == held
    }

    /// Tokens that can be added at once.
    pub(super) fn n_room(&self) -> usize {
        if self.plan.evict {
            self.n_max() - self.tokens.iter().map(Vec::len).max().unwrap_or(0)
        } else {
            self.n_free_tokens()
        }
    }
}
