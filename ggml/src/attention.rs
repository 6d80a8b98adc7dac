//! Branched attention, an op of our own for the CPU: one softmax over keys that are reached through up to
//! three branches.
//!
//! A branch is the queries rotated for one map of positions, and the keys seen under it (Self-Extend,
//! LM-Infinite and Dual Chunk Attention have two or three). ggml's flash attention has one branch and does
//! not return the maximum and sum of each row, from which the results of several calls could be merged.
//!
//! Work is cut into tiles of queries that share a KV head. When there are few such tiles, the columns (keys
//! of all branches, side by side) are cut into ranges as well; tiles over a range write maximum, sum and
//! weighted values, which a second node merges. Sums depend on how keys are divided among blocks and ranges. So ranges are
//! cut from the blocks that a tile's tokens see, and with [`Builder::placed_attention`] the caller says which row of the
//! keys a column has: a sequence whose keys are at the same columns of its blocks has the same sums, wherever its rows are
//! and whatever is between them.

use std::cell::RefCell;

pub use kernels::attention::KEYS;
use kernels::attention::{
    exp2, index_bytes, index_mask as index, BranchOperands, Format, Inputs, Rows, Scratch, Stats, Tile,
    FEWEST,
};

use crate::graph::Builder;
use crate::node::{Part, Source};
use crate::ops::{check, contiguous, f32_rows, matrix};
use crate::tensor::Tensor;
use crate::{sys, DType, Error, Result};

/// Rows of a tile (tokens times query heads of one KV head): enough that the time to convert a key to floats
/// is small compared with the products with it.
const TILE_ROWS: usize = 192;
/// With fewer tiles than this, columns are cut too; also where there is one token, for its heads to be taken together.
const FEW_TILES: usize = 16;
/// The number of ranges aimed at when columns are cut, each of all heads: several for each thread, which take them in
/// turn.
const CUT_UNITS: usize = 32;
/// Rows after those of a mask that say of its columns which keys they are: lower and upper halves of their rows, and places.
const CELL_ROWS: usize = 3;
/// Floats stored after the weighted values of a row of a partial result: maximum and sum.
const STATS: usize = 2;

/// Shape of the mask of [`Builder::attention`], F16: a row of `n_columns` for each token, and after them, in as many
/// rows as it takes, an index of them.
///
/// # Errors
/// No columns, or more than can be counted.
pub fn mask_shape(n_columns: usize, n_tokens: usize) -> Result<[usize; 2]> {
    let too_many = || Error::Op { op: "attention", what: format!("a mask of {n_columns} by {n_tokens}") };
    let bytes = index_bytes(n_columns, n_tokens).filter(|_| n_columns > 0).ok_or_else(too_many)?;
    Ok([n_columns, n_tokens + bytes.div_ceil(2).div_ceil(n_columns)])
}

/// Writes the index after the rows of a mask, whose half-precision bits are there. Without it the result of
/// [`Builder::attention`] has no meaning.
///
/// # Errors
/// A mask of another size than [`mask_shape`] says.
pub fn index_mask(mask: &mut [u16], n_columns: usize, n_tokens: usize) -> Result<()> {
    let [_, n_rows] = mask_shape(n_columns, n_tokens)?;
    if n_rows.checked_mul(n_columns) != Some(mask.len()) {
        let what = format!("mask: expected {n_columns} x {n_rows} values, found {}", mask.len());
        return Err(Error::Op { op: "attention", what });
    }
    let (mask, behind) = mask.split_at_mut(n_columns * n_tokens);
    index(mask, n_columns, bytemuck::cast_slice_mut(behind));
    Ok(())
}

/// Shape of the mask of [`Builder::placed_attention`]: that of [`mask_shape`] with row and place of each column.
///
/// # Errors
/// No columns, or more than can be counted.
pub fn placed_shape(n_columns: usize, n_tokens: usize) -> Result<[usize; 2]> {
    let [n_columns, n_rows] = mask_shape(n_columns, n_tokens)?;
    Ok([n_columns, n_rows + CELL_ROWS])
}

/// Writes what is after the rows of such a mask: for each block of [`KEYS`] columns the rows of its keys in those of its branch, and
/// its place; and the index. A block must not be of two branches. Its place is its number in its sequence, of which the last 16
/// bits count. Places ascend in a branch; blocks of several sequences may have the same. Columns that are not given have row 0.
///
/// # Errors
/// A mask of another size than [`placed_shape`] says.
pub fn place_mask(
    mask: &mut [u16],
    n_columns: usize,
    n_tokens: usize,
    blocks: impl IntoIterator<Item = ([u32; KEYS], u16)>,
) -> Result<()> {
    let [_, n_rows] = placed_shape(n_columns, n_tokens)?;
    if n_rows.checked_mul(n_columns) != Some(mask.len()) {
        let what = format!("mask: expected {n_columns} x {n_rows} values, found {}", mask.len());
        return Err(Error::Op { op: "attention", what });
    }
    let (mask, behind) = mask.split_at_mut(n_columns * n_tokens);
    let (cells, behind) = behind.split_at_mut(CELL_ROWS * n_columns);
    cells.fill(0);
    let (low, cells) = cells.split_at_mut(n_columns);
    let (high, places) = cells.split_at_mut(n_columns);
    let of_blocks = low.chunks_mut(KEYS).zip(high.chunks_mut(KEYS)).zip(places.chunks_mut(KEYS));
    for (((low, high), places), (rows, place)) in of_blocks.zip(blocks) {
        for ((low, high), row) in low.iter_mut().zip(high).zip(rows) {
            (*low, *high) = (row as u16, (row >> 16) as u16);
        }
        places[0] = place;
    }
    index(mask, n_columns, bytemuck::cast_slice_mut(behind));
    Ok(())
}

/// How products of queries and keys become scores, and what takes part in the softmax besides them. A number is a
/// scale alone.
#[derive(Debug, Clone, Copy)]
pub struct Scoring<'c> {
    /// Factor on the products.
    pub scale: f32,
    /// Scaled products `s` become `softcap * tanh(s / softcap)`, before the mask is added.
    pub softcap: Option<f32>,
    /// Attention sinks, F32 `[n_head]`: for each query head a score that takes part in the softmax, and that no value
    /// belongs to.
    pub sinks: Option<Tensor<'c>>,
}

impl From<f32> for Scoring<'_> {
    fn from(scale: f32) -> Self {
        Scoring { scale, softcap: None, sinks: None }
    }
}

impl Scoring<'_> {
    /// Checks the numbers, and the sinks against the number of query heads.
    pub(crate) fn check(&self, op: &'static str, n_head: usize) -> Result<()> {
        let Scoring { scale, softcap, sinks } = *self;
        let cap = softcap.is_none_or(|cap| cap.is_finite() && cap > 0.0);
        if !(scale.is_finite() && cap) {
            let what =
                format!("expected a finite scale and a softcap above 0, found {scale} and {softcap:?}");
            return Err(Error::Op { op, what });
        }
        let Some(sinks) = sinks else { return Ok(()) };
        let ok = sinks.dtype() == DType::F32 && contiguous(sinks) && sinks.ne() == [n_head, 1, 1, 1];
        check(ok, op, &format!("sinks f32 [{n_head}]"), &[sinks])
    }
}

#[derive(Debug, Clone, Copy)]
pub struct AttentionBranch<'c> {
    /// F32 `[d, n_head, T]`, rows contiguous.
    pub q: Tensor<'c>,
    /// `[d, n, n_head_kv]`, rows contiguous, of any type that converts to floats.
    pub k: Tensor<'c>,
    /// `[d_v, n, n_head_kv]`, like the keys.
    pub v: Tensor<'c>,
}

/// The shapes of an attention node and how its work is cut into tiles.
#[derive(Debug, Clone, Copy)]
struct Tiling {
    n_branches: usize,
    scale: f32,
    softcap: Option<f32>,
    n_head: usize,
    n_head_kv: usize,
    n_tokens: usize,
    /// Columns of each branch.
    columns: [usize; 3],
    n_columns: usize,
    /// The mask says which row of the keys a column has.
    placed: bool,
    d_v: usize,
    tokens: usize,
    /// Ranges that what a tile sees is to be cut into.
    aim: usize,
    /// Tiles write partial results: they are over a range of the columns, or sinks are to be added.
    partial: bool,
}

impl Tiling {
    /// Sets the size of the tiles from the shapes.
    fn cut(&mut self) {
        self.tokens = (TILE_ROWS / (self.n_head / self.n_head_kv)).clamp(1, self.n_tokens);
        let n_queries = self.n_tokens.div_ceil(self.tokens);
        let is_cut = self.n_head_kv * n_queries < FEW_TILES || self.n_tokens == 1;
        self.aim = if is_cut { CUT_UNITS.div_ceil(n_queries) } else { 1 };
    }

    fn n_ranges(&self) -> usize {
        let n_blocks: usize = self.columns.iter().map(|n| n.div_ceil(KEYS)).sum();
        match self.aim.min(n_blocks.div_ceil(FEWEST)) {
            ..=1 => 1,
            n => {
                // For ranges to end at places that do not depend on what else is seen.
                let more = n / 2 + self.n_branches;
                // What one token sees of a branch has no gaps. Ranges that stay empty take time, in every layer.
                let more = if self.n_tokens == 1 { more.min(2 * self.n_branches) } else { more };
                (n + more).min(n_blocks)
            }
        }
    }
}

impl<'c> Builder<'c> {
    /// Softmax over the columns of all branches (one to three), side by side, of `scale * q . k + mask`, times v:
    /// F32 `[d_v, n_head, T]`; with softcap and sinks as [`Scoring`] says. The mask is F16 `[columns, T]`, finite or -inf, with an index after it
    /// ([`mask_shape`], [`index_mask`]); a row that is all -inf gives zeros. Query heads `h * n_head_kv / n_head`
    /// share KV heads. For the CPU; elsewhere the graph is refused.
    pub fn attention(
        &self,
        branches: &[AttentionBranch<'c>],
        mask: Tensor<'c>,
        scoring: impl Into<Scoring<'c>>,
    ) -> Result<Tensor<'c>> {
        self.attend(branches, None, mask, scoring.into())
    }

    /// The same where columns are not the keys in order: each branch has so many, whole blocks of [`KEYS`], and the mask says
    /// which key each has ([`placed_shape`], [`place_mask`]).
    pub fn placed_attention(
        &self,
        branches: &[AttentionBranch<'c>],
        columns: &[usize],
        mask: Tensor<'c>,
        scoring: impl Into<Scoring<'c>>,
    ) -> Result<Tensor<'c>> {
        if columns.len() != branches.len() || columns.iter().any(|n| !n.is_multiple_of(KEYS)) {
            let what = format!(
                "expected columns of {} branches in blocks of {KEYS}, found {columns:?}",
                branches.len()
            );
            return Err(Error::Op { op: "attention", what });
        }
        self.attend(branches, Some(columns), mask, scoring.into())
    }

    fn attend(
        &self,
        branches: &[AttentionBranch<'c>],
        columns: Option<&[usize]>,
        mask: Tensor<'c>,
        scoring: Scoring<'c>,
    ) -> Result<Tensor<'c>> {
        let op = "attention";
        let mut args: Vec<Tensor<'c>> = branches.iter().flat_map(|p| [p.q, p.k, p.v]).collect();
        args.push(mask);
        if !(1..=3).contains(&branches.len()) {
            let what = format!("expected 1 to 3 branches, found {}", branches.len());
            return Err(Error::Op { op, what });
        }
        let (q, k, v) = (branches[0].q.ne(), branches[0].k.ne(), branches[0].v.ne());
        scoring.check(op, q[1])?;
        let fits = branches.iter().all(|p| {
            let (n, types) = (p.k.ne()[1], f32_rows(p.q) && matrix(p.k) && matrix(p.v));
            let keys = p.k.ne() == [q[0], n, k[2], 1] && p.v.ne() == [v[0], n, k[2], 1];
            p.q.ne() == q && keys && types
        });
        let mut of_branches = [0; 3];
        for (i, (n, branch)) in of_branches.iter_mut().zip(branches).enumerate() {
            *n = columns.and_then(|columns| columns.get(i)).copied().unwrap_or(branch.k.ne()[1]);
        }
        let n_columns = of_branches.iter().sum();
        let shape = if columns.is_some() { placed_shape } else { mask_shape };
        let [_, n_rows] = shape(n_columns, q[2])?;
        let masked = mask.dtype() == DType::F16 && contiguous(mask) && mask.ne() == [n_columns, n_rows, 1, 1];
        check(
            fits && masked && q[3] == 1 && q[1].is_multiple_of(k[2]),
            op,
            "branches of q f32 [d,n_head,T], k [d,n,n_head_kv], v [d_v,n,n_head_kv], and a mask f16 \
             [sum of n,T] with its index",
            &args,
        )?;
        let mut tiling = Tiling {
            n_branches: branches.len(),
            scale: scoring.scale,
            softcap: scoring.softcap,
            n_head: q[1],
            n_head_kv: k[2],
            n_tokens: q[2],
            columns: of_branches,
            n_columns,
            placed: columns.is_some(),
            d_v: v[0],
            tokens: 0,
            aim: 1,
            partial: false,
        };
        tiling.cut();
        // Three branches and a mask are all the sources an op can have, so sinks are added after it.
        tiling.partial = tiling.n_ranges() > 1 || scoring.sinks.is_some();
        let ne = [v[0], q[1], q[2], 1];
        if !tiling.partial {
            return self.custom(op, DType::F32, ne, &args, move |part| run_tiles(&part, &tiling));
        }
        let partial = [v[0] + STATS, q[1], q[2], tiling.n_ranges()];
        let partial = self.custom(op, DType::F32, partial, &args, move |part| run_tiles(&part, &tiling))?;
        let args: Vec<Tensor<'c>> = [partial].into_iter().chain(scoring.sinks).collect();
        self.custom(op, DType::F32, ne, &args, move |part| run_merge(part, &tiling))
    }
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

/// A source as rows of floats.
///
/// # Panics
/// If its type does not convert to floats, or the elements of a row do not lie side by side.
pub(crate) fn rows(t: Source<'_>) -> Rows<'_> {
    let t = t.tensor();
    // SAFETY: a static table with an entry for every type.
    let traits = unsafe { &*sys::ggml_get_type_traits(t.type_) };
    let converts = t.type_ == sys::GGML_TYPE_F32 || traits.to_float.is_some();
    assert!(converts && t.nb[0] == traits.type_size, "rows to convert");
    let format = match (t.type_, traits.to_float) {
        (sys::GGML_TYPE_F16, _) => Format::F16,
        (sys::GGML_TYPE_Q8_0, _) => Format::Q8_0,
        (sys::GGML_TYPE_Q4_0, _) => Format::Q4_0,
        (_, Some(to_float)) => Format::Other(to_float),
        // Of the types that convert, only f32 needs no conversion.
        (_, None) => Format::F32,
    };
    let ne = [0, 1, 2].map(|i| t.ne[i] as usize);
    // SAFETY: the row is whole blocks of a type ggml knows.
    let row_bytes = unsafe { sys::ggml_row_size(t.type_, t.ne[0]) };
    // SAFETY: rows of a source, which has values and stays as it is; the type's conversion reads its own blocks.
    unsafe { Rows::new(t.data as *const u8, ne, [t.nb[1], t.nb[2]], row_bytes, format) }
}

fn run_tiles(part: &Part<'_>, tiling: &Tiling) {
    let mut branches = [None, None, None];
    let mut first = 0;
    for (i, branch) in branches[..tiling.n_branches].iter_mut().enumerate() {
        let [q, k, v] = [0, 1, 2].map(|j| rows(part.source(3 * i + j)));
        let columns = tiling.columns[i];
        *branch = Some(BranchOperands { q, k, v, first, columns });
        first += columns;
    }
    let (mask, out) = (part.source(3 * tiling.n_branches).all::<u16>(), part.floats());
    let Tiling { n_columns, scale, softcap, d_v, .. } = *tiling;
    let (mask, behind) = mask.split_at(n_columns * tiling.n_tokens);
    let (cells, index) = behind.split_at(if tiling.placed { CELL_ROWS * n_columns } else { 0 });
    let cells = tiling.placed.then(|| [0, 1, 2].map(|i| &cells[i * n_columns..][..n_columns]));
    let n_rep = tiling.n_head / tiling.n_head_kv;
    let index = bytemuck::cast_slice(index);
    let inputs = Inputs { branches, mask, index, cells, n_columns, scale, softcap, n_rep, d_v };
    let (n_ranges, n_queries) = (tiling.n_ranges(), tiling.n_tokens.div_ceil(tiling.tokens));
    let stats = if tiling.partial { STATS } else { 0 };
    let row_len = tiling.d_v + stats;
    SCRATCH.with_borrow_mut(|scratch| {
        scratch.begin();
        // Keys that are read once are taken by one thread for all heads, whose rows lie side by side. Keys that are
        // read for many queries stay in the cache for those of one head.
        let n_heads = if n_ranges > 1 { tiling.n_head_kv } else { 1 };
        let n_units = tiling.n_head_kv / n_heads * n_queries * n_ranges;
        let step = part.nth().max(1);
        for i in (part.ith()..n_units).step_by(step) {
            let (range, queries, head) = (i % n_ranges, i / n_ranges % n_queries, i / n_ranges / n_queries);
            let span = |i: usize, n: usize, of: usize| i * n..((i + 1) * n).min(of);
            let tile = Tile {
                heads: head..head + n_heads,
                tokens: span(queries, tiling.tokens, tiling.n_tokens),
                range,
                n_ranges,
                aim: tiling.aim,
                then: Some(i + step).filter(|&i| i < n_units).map(|i| i % n_ranges),
            };
            scratch.attend(&inputs, &tile, |t, h, Stats { max, sum }, values| {
                let row = (range * tiling.n_tokens + t) * tiling.n_head + h;
                // SAFETY: the result is rows of this length, and tiles are of disjoint rows.
                let out = unsafe { out.elements(row * row_len..(row + 1) * row_len) };
                let (out, stats) = out.split_at_mut(tiling.d_v);
                let factor = if !stats.is_empty() || sum == 0.0 { 1.0 } else { 1.0 / sum };
                out.iter_mut().zip(values).for_each(|(o, v)| *o = v * factor);
                stats.iter_mut().zip([max, sum]).for_each(|(s, v)| *s = v);
            });
        }
    });
}

fn run_merge(part: Part<'_>, tiling: &Tiling) {
    let (n_rows, row_len) = (tiling.n_head * tiling.n_tokens, tiling.d_v + STATS);
    let partial = part.source(0).all::<f32>();
    let sinks = part.optional(1).map(|sinks| sinks.all::<f32>());
    for (row, out) in part.rows::<f32>() {
        let ranges =
            || partial.chunks_exact(row_len).skip(row).step_by(n_rows).map(|r| r.split_at(tiling.d_v));
        let max = ranges().map(|(_, stats)| stats[0]).fold(f32::NEG_INFINITY, f32::max);
        let mut sum = 0.0;
        out.fill(0.0);
        // A sum of 0 is a range of which nothing was seen; NaN is not 0 and gets through.
        for (values, stats) in ranges().filter(|(_, stats)| stats[1] != 0.0) {
            let factor = exp2(stats[0] - max);
            sum += stats[1] * factor;
            out.iter_mut().zip(values).for_each(|(o, v)| *o += v * factor);
        }
        let (stats, before) = match sinks {
            Some(sinks) => Stats { max, sum }.with_sink(sinks[row % tiling.n_head]),
            None => (Stats { max, sum }, 1.0),
        };
        if stats.sum != 0.0 {
            out.iter_mut().for_each(|o| *o *= before / stats.sum);
        }
    }
}
