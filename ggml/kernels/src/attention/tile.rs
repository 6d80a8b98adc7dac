//! Attention of one tile: the queries of a few tokens that share a KV head, over a range of columns.
//!
//! Keys and values are read as floats once for the whole tile. Queries are vector lanes, so maxima and sums of the
//! softmax need no sums across lanes. [`Products`] defines how products are computed.

use std::f32::consts::LOG2_E;
use std::ops::Range;

use half::slice::{HalfBitsSliceExt, HalfFloatSliceExt};

use super::few::{Few, FEW_ROWS};
use super::halved::{Halved, InHalves};
use super::kernel::soften;
use super::products::{refill, Block, Buffers, Floats, Products};
use super::score::{soft_cap, Stats};
use super::seen::Seen;
use super::vector::N;
use super::view::Rows;
use crate::aligned::Aligned;
use crate::amx::Tiles;

/// Keys converted at a time.
pub const KEYS: usize = 64;
/// Tokens of a tile that may be taken one by one, where they see different keys. More are a prompt, whose
/// tokens see the same ones.
const FEW: usize = 32;

/// One branch: queries `[d, n_head, T]`, keys and values `[.., n, n_head_kv]`, and its first column of the
/// mask.
pub struct BranchOperands<'a> {
    /// Queries, `[d, n_head, T]`.
    pub q: Rows<'a>,
    /// Keys, `[d, n, n_head_kv]`.
    pub k: Rows<'a>,
    /// Values, `[d_v, n, n_head_kv]`.
    pub v: Rows<'a>,
    /// The branch's first column of the mask.
    pub first: usize,
}

/// Operands of attention: up to three branches side by side.
pub struct Inputs<'a> {
    /// The branches, the ones there are first.
    pub branches: [Option<BranchOperands<'a>>; 3],
    /// Half-precision bits, `[T][n_columns]`.
    pub mask: &'a [u16],
    /// Index of the mask, from [`index_mask`](super::index_mask).
    pub index: &'a [u8],
    /// Keys of all branches together.
    pub n_columns: usize,
    /// Factor on the products of queries and keys.
    pub scale: f32,
    /// Scores `s` become `softcap * tanh(s / softcap)` before the mask is added.
    pub softcap: Option<f32>,
    /// Query heads of a KV head.
    pub n_rep: usize,
    pub d_v: usize,
}

/// The queries and the columns of the mask that a tile covers.
#[derive(Clone)]
pub struct Tile {
    pub heads: Range<usize>,
    /// The tokens whose queries are taken, of all heads that share these KV heads.
    pub tokens: Range<usize>,
    pub columns: Range<usize>,
    /// The column at which the thread's next tile begins, if there is one; its keys are asked for early.
    pub then: Option<usize>,
}

/// Buffers a thread keeps between calls, as large as its largest tile.
#[derive(Default)]
pub struct Scratch {
    few: Few,
    floats: Floats,
    halved: Halved,
    softmax: Softmax,
}

/// State that is the same however products are computed.
#[derive(Default)]
struct Softmax {
    buffers: Buffers,
    /// `[KEYS][W]`
    scores: Aligned<f32>,
    /// Keys at hand that each token sees.
    seen: Vec<Seen>,
    max: Vec<f32>,
    sum: Vec<f32>,
}

impl Scratch {
    /// Calls `f` with token, head, maximum and sum of weights, and weighted sum of values of each row of the tile. No
    /// key seen: -inf, 0 and zeros.
    pub fn attend(&mut self, x: &Inputs<'_>, tile: &Tile, mut f: impl FnMut(usize, usize, Stats, &[f32])) {
        if tile.tokens.len() > 1 && tile.tokens.len() <= FEW && apart(x, tile) {
            for t in tile.tokens.clone() {
                self.together(x, &Tile { tokens: t..t + 1, ..tile.clone() }, &mut f);
            }
        } else {
            self.together(x, tile, &mut f);
        }
    }

    fn together(&mut self, x: &Inputs<'_>, tile: &Tile, f: &mut impl FnMut(usize, usize, Stats, &[f32])) {
        if tile.tokens.len() * x.n_rep <= FEW_ROWS {
            return self.few.attend(x, tile, f);
        }
        for head in tile.heads.clone() {
            self.head(x, &Tile { heads: head..head + 1, ..tile.clone() }, f);
        }
    }

    /// A tile of one KV head.
    fn head(&mut self, x: &Inputs<'_>, tile: &Tile, f: &mut impl FnMut(usize, usize, Stats, &[f32])) {
        let n_rows = tile.tokens.len() * x.n_rep;
        // Halves are right to 16 bits, so keys and values of fewer lose nothing, and floats keep theirs.
        let floats = |b: &BranchOperands<'_>| b.k.are_floats() || b.v.are_floats();
        let tiles = !x.branches.iter().flatten().any(floats);
        if let Some(tiles) = if tiles { Tiles::new() } else { None } {
            return self.softmax.run(&mut InHalves(&mut self.halved, tiles), x, tile, f);
        }
        let (floats, softmax) = (&mut self.floats, &mut self.softmax);
        match n_rows.div_ceil(N) {
            // More than FEW_ROWS, so never one register.
            ..=2 => softmax.run::<{ 2 * N }>(floats, x, tile, f),
            _ => softmax.run::<{ 3 * N }>(floats, x, tile, f),
        }
    }
}

impl Softmax {
    /// [`Scratch::attend`] of one KV head, with queries in groups of W.
    fn run<const W: usize>(
        &mut self,
        products: &mut impl Products<W>,
        x: &Inputs<'_>,
        tile: &Tile,
        mut f: impl FnMut(usize, usize, Stats, &[f32]),
    ) {
        let n_rows = tile.tokens.len() * x.n_rep;
        let padded = n_rows.next_multiple_of(W);
        refill(&mut self.max, padded, f32::NEG_INFINITY);
        refill(&mut self.sum, padded, 0.0);
        self.scores.refill(KEYS * W, 0.0);
        products.begin(n_rows, x.d_v);
        for branch in x.branches.iter().flatten() {
            self.branch(products, x, tile, branch);
        }
        let value = &mut self.buffers.value;
        value.resize(x.d_v, 0.0);
        for row in 0..n_rows {
            let (t, h) = (tile.tokens.start + row / x.n_rep, tile.heads.start * x.n_rep + row % x.n_rep);
            products.sums(row, value);
            f(t, h, Stats { max: self.max[row], sum: self.sum[row] }, value);
        }
    }

    fn branch<const W: usize>(
        &mut self,
        products: &mut impl Products<W>,
        x: &Inputs<'_>,
        tile: &Tile,
        branch: &BranchOperands<'_>,
    ) {
        let start = tile.columns.start.max(branch.first);
        let end = tile.columns.end.min(branch.first + branch.k.n1);
        let n_rows = tile.tokens.len() * x.n_rep;
        let mut queries_ready = false;
        let mut used = [0; KEYS];
        for first in (start..end).step_by(KEYS) {
            let columns = first..end.min(first + KEYS);
            self.seen.clear();
            self.seen.extend(tile.tokens.clone().map(|t| x.seen(t, &columns)));
            if !self.seen.iter().any(|s| s.any) {
                continue;
            }
            if !queries_ready {
                self.load_queries(products, x, tile, branch);
                queries_ready = true;
            }
            let used = &mut used[..columns.len()];
            x.used(tile, &columns, self.seen.iter().any(|s| s.all), used);
            let (k, v, head, first) = (&branch.k, &branch.v, tile.heads.start, first - branch.first);
            let block = Block { k, v, head, first, used };
            products.load(&block, &mut self.buffers);
            for group in 0..n_rows.div_ceil(W) {
                let rows = group * W..n_rows.min((group + 1) * W);
                let seen = &self.seen[rows.start / x.n_rep..rows.end.div_ceil(x.n_rep)];
                if !seen.iter().any(|s| s.any) {
                    continue;
                }
                let s = self.scores.as_chunks_mut::<W>().0;
                products.scores(&block, group, s);
                let s = &mut s[..columns.len()];
                if let Some(cap) = x.softcap {
                    soft_cap(s, cap * LOG2_E);
                }
                if !seen.iter().all(|s| s.all) {
                    bias(x, tile, columns.start, &rows, s);
                }
                let (max, sum) = (self.max.as_chunks_mut::<W>().0, self.sum.as_chunks_mut::<W>().0);
                let factor = soften(s, &mut max[group], &mut sum[group]);
                products.add(&block, group, rows.len(), factor.as_ref(), s);
            }
        }
    }

    /// Reads the tile's queries, multiplied by the scale and by log2(e), so that scores are exponents of two.
    fn load_queries<const W: usize>(
        &mut self,
        products: &mut impl Products<W>,
        x: &Inputs<'_>,
        tile: &Tile,
        branch: &BranchOperands<'_>,
    ) {
        let n_rows = tile.tokens.len() * x.n_rep;
        let scale = x.scale * LOG2_E;
        products.branch(n_rows, branch.q.d);
        let query = &mut self.buffers.key;
        query.resize(branch.q.d, 0.0);
        for row in 0..n_rows {
            let (t, h) = (tile.tokens.start + row / x.n_rep, tile.heads.start * x.n_rep + row % x.n_rep);
            branch.q.read(h, t, query);
            query.iter_mut().for_each(|q| *q *= scale);
            products.query(row, query);
        }
    }
}

/// Returns true if the tokens of a tile see mostly different keys, as tokens of several sequences do. It is then
/// cheaper to convert a key for the one token that sees it than to multiply it with all queries.
fn apart(x: &Inputs<'_>, tile: &Tile) -> bool {
    let (mut each, mut all) = (0, 0);
    for first in tile.columns.clone().step_by(KEYS) {
        let columns = first..tile.columns.end.min(first + KEYS);
        let n = tile.tokens.clone().filter(|&t| x.seen(t, &columns).any).count();
        each += n;
        all += usize::from(n > 0);
    }
    all > 0 && each < 2 * all
}

/// Adds the mask to scores `[n_keys][W]` of these rows. A score whose mask is -inf becomes -inf, even if it
/// was NaN.
fn bias<const W: usize>(x: &Inputs<'_>, tile: &Tile, first: usize, rows: &Range<usize>, s: &mut [[f32; W]]) {
    let mut values = [0.0f32; KEYS];
    let values = &mut values[..s.len()];
    for token in rows.start / x.n_rep..rows.end.div_ceil(x.n_rep) {
        let t = tile.tokens.start + token;
        let mask = &x.mask[t * x.n_columns + first..][..values.len()];
        mask.reinterpret_cast::<half::f16>().convert_to_f32_slice(values);
        let from = (token * x.n_rep).max(rows.start) - rows.start;
        let to = ((token + 1) * x.n_rep).min(rows.end) - rows.start;
        for (s, value) in s.iter_mut().zip(&*values) {
            for s in &mut s[from..to] {
                let sum = *s + value * LOG2_E;
                *s = if *value == f32::NEG_INFINITY { *value } else { sum };
            }
        }
    }
}
