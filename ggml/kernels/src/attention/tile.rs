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
use super::products::{refill, Block, Buffers, Floats, InFloats, Products};
use super::score::{soft_cap, Stats};
use super::seen::{Seen, Sight, Taken};
use super::view::Rows;
use crate::aligned::Aligned;
use crate::amx::Tiles;
use crate::simd::{with_registers, FloatLanes, Registers};

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
    /// Its columns: those of [`Inputs::cells`], or else as many as it has keys.
    pub columns: usize,
}

impl BranchOperands<'_> {
    /// Whether a block of columns is of this branch.
    pub(super) fn has(&self, columns: &Range<usize>) -> bool {
        (self.first..self.first + self.columns).contains(&columns.start)
    }
}

/// Operands of attention: up to three branches side by side.
pub struct Inputs<'a> {
    /// The branches, the ones there are first.
    pub branches: [Option<BranchOperands<'a>>; 3],
    /// Half-precision bits, `[T][n_columns]`.
    pub mask: &'a [u16],
    /// Index of the mask, from [`index_mask`](super::index_mask).
    pub index: &'a [u8],
    /// Lower and upper halves of the row of each column in the keys of its branch, and its place: the number, of 16 bits, of a
    /// block in its sequence. Without them, the columns of a branch are its keys in order. A column that no token sees can
    /// have any row of these.
    pub cells: Option<[&'a [u16]; 3]>,
    /// Columns of all branches together.
    pub n_columns: usize,
    /// Factor on the products of queries and keys.
    pub scale: f32,
    /// Scores `s` become `softcap * tanh(s / softcap)` before the mask is added.
    pub softcap: Option<f32>,
    /// Query heads of a KV head.
    pub n_rep: usize,
    pub d_v: usize,
}

/// The queries of a tile, and the part of what they see that it covers.
#[derive(Clone)]
pub struct Tile {
    pub heads: Range<usize>,
    /// The tokens whose queries are taken, of all heads that share these KV heads.
    pub tokens: Range<usize>,
    /// Which of the ranges of what the tokens see, by number. The last ones may be empty.
    pub range: usize,
    /// Ranges that there are.
    pub n_ranges: usize,
    /// Ranges aimed at, of at least [`FEWEST`](super::FEWEST) places: with about half as many more, they can mostly end at
    /// whole multiples of places.
    pub aim: usize,
    /// The range of the thread's next tile, if there is one; its keys are asked for early.
    pub then: Option<usize>,
}

/// Buffers a thread keeps between calls, as large as its largest tile.
#[derive(Default)]
pub struct Scratch {
    few: Few,
    floats: Floats,
    halved: Halved,
    softmax: Softmax,
    /// What the tokens of tiles see, of which the first ones are of the inputs at hand.
    sights: Vec<Sight>,
    n_sights: usize,
    /// Blocks that one token sees.
    own: Vec<Range<usize>>,
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
    /// Forgets what tokens saw: to be called before the first tile of other inputs.
    pub fn begin(&mut self) {
        self.n_sights = 0;
    }

    /// Calls `f` with token, head, maximum and sum of weights, and weighted sum of values of each row of the tile. No
    /// key seen: -inf, 0 and zeros.
    pub fn attend(&mut self, x: &Inputs<'_>, tile: &Tile, mut f: impl FnMut(usize, usize, Stats, &[f32])) {
        let at = self.sight(x, tile);
        let (sight, mut own) = (std::mem::take(&mut self.sights[at]), std::mem::take(&mut self.own));
        let blocks = &sight.blocks[sight.range(tile.range)];
        let next = tile.then.and_then(|range| sight.blocks.get(sight.range(range).start));
        let then = next.map(|columns| columns.start);
        if tile.tokens.len() > 1 && tile.tokens.len() <= FEW && apart(x, tile, blocks) {
            for t in tile.tokens.clone() {
                own.clear();
                own.extend(blocks.iter().filter(|columns| x.seen(t, columns).any).cloned());
                let tile = Tile { tokens: t..t + 1, ..tile.clone() };
                self.together(x, &tile, &Taken { blocks: &own, then }, &mut f);
            }
        } else {
            self.together(x, tile, &Taken { blocks, then }, &mut f);
        }
        (self.sights[at], self.own) = (sight, own);
    }

    /// What the tokens of a tile see, by its number.
    fn sight(&mut self, x: &Inputs<'_>, tile: &Tile) -> usize {
        let known = self.sights[..self.n_sights].iter().position(|sight| sight.tokens == tile.tokens);
        known.unwrap_or_else(|| {
            if self.n_sights == self.sights.len() {
                self.sights.push(Sight::default());
            }
            self.sights[self.n_sights].fill(x, tile.tokens.clone(), tile.aim, tile.n_ranges);
            self.n_sights += 1;
            self.n_sights - 1
        })
    }

    fn together(
        &mut self,
        x: &Inputs<'_>,
        tile: &Tile,
        taken: &Taken<'_>,
        f: &mut impl FnMut(usize, usize, Stats, &[f32]),
    ) {
        if tile.tokens.len() * x.n_rep <= FEW_ROWS {
            return with_registers!(Registers::best(), s => self.few.attend(s, x, tile, taken, f));
        }
        for head in tile.heads.clone() {
            self.head(x, &Tile { heads: head..head + 1, ..tile.clone() }, taken, f);
        }
    }

    /// A tile of one KV head.
    fn head(
        &mut self,
        x: &Inputs<'_>,
        tile: &Tile,
        taken: &Taken<'_>,
        f: &mut impl FnMut(usize, usize, Stats, &[f32]),
    ) {
        let n_rows = tile.tokens.len() * x.n_rep;
        // Halves are right to 16 bits, so keys and values of fewer lose nothing, and floats keep theirs.
        let floats = |b: &BranchOperands<'_>| b.k.are_floats() || b.v.are_floats();
        let tiles = !x.branches.iter().flatten().any(floats);
        if let Some(tiles) = if tiles { Tiles::new() } else { None } {
            let products = &mut InHalves(&mut self.halved, tiles);
            return with_registers!(Registers::best(), s => self.softmax.run(s, products, x, tile, taken, f));
        }
        // Two or three registers of queries: there are more than FEW_ROWS, so never one.
        let (floats, softmax) = (&mut self.floats, &mut self.softmax);
        macro_rules! run {
            ($s:ident, $two:literal, $three:literal) => {
                match n_rows {
                    ..=$two => softmax.run::<_, $two>($s, &mut InFloats(floats, $s), x, tile, taken, f),
                    _ => softmax.run::<_, $three>($s, &mut InFloats(floats, $s), x, tile, taken, f),
                }
            };
        }
        match Registers::best() {
            Registers::Plain(s) => run!(s, 16, 24),
            #[cfg(target_arch = "x86_64")]
            Registers::Narrow(s) => run!(s, 16, 24),
            #[cfg(target_arch = "x86_64")]
            Registers::Wide(s) => run!(s, 32, 48),
        }
    }
}

impl Softmax {
    /// [`Scratch::attend`] of one KV head, with queries in groups of W.
    fn run<S: FloatLanes, const W: usize>(
        &mut self,
        s: S,
        products: &mut impl Products<W>,
        x: &Inputs<'_>,
        tile: &Tile,
        taken: &Taken<'_>,
        mut f: impl FnMut(usize, usize, Stats, &[f32]),
    ) {
        let n_rows = tile.tokens.len() * x.n_rep;
        let padded = n_rows.next_multiple_of(W);
        refill(&mut self.max, padded, f32::NEG_INFINITY);
        refill(&mut self.sum, padded, 0.0);
        self.scores.refill(KEYS * W, 0.0);
        products.begin(n_rows, x.d_v);
        for branch in x.branches.iter().flatten() {
            self.branch(s, products, x, tile, taken, branch);
        }
        let value = &mut self.buffers.value;
        value.resize(x.d_v, 0.0);
        for row in 0..n_rows {
            let (t, h) = (tile.tokens.start + row / x.n_rep, tile.heads.start * x.n_rep + row % x.n_rep);
            products.sums(row, value);
            f(t, h, Stats { max: self.max[row], sum: self.sum[row] }, value);
        }
    }

    fn branch<S: FloatLanes, const W: usize>(
        &mut self,
        s: S,
        products: &mut impl Products<W>,
        x: &Inputs<'_>,
        tile: &Tile,
        taken: &Taken<'_>,
        branch: &BranchOperands<'_>,
    ) {
        let n_rows = tile.tokens.len() * x.n_rep;
        let mut queries_ready = false;
        let (mut used, mut cells) = ([0u16; KEYS], [0usize; KEYS]);
        for columns in taken.blocks.iter().filter(|columns| branch.has(columns)) {
            self.seen.clear();
            self.seen.extend(tile.tokens.clone().map(|t| x.seen(t, columns)));
            if !queries_ready {
                self.load_queries(products, x, tile, branch);
                queries_ready = true;
            }
            let (used, cells) = (&mut used[..columns.len()], &mut cells[..columns.len()]);
            x.used(tile, columns, self.seen.iter().any(|s| s.all), used);
            x.rows(branch, columns, cells);
            let block = Block { k: &branch.k, v: &branch.v, head: tile.heads.start, rows: cells, used };
            products.load(&block, &mut self.buffers);
            for group in 0..n_rows.div_ceil(W) {
                let rows = group * W..n_rows.min((group + 1) * W);
                let seen = &self.seen[rows.start / x.n_rep..rows.end.div_ceil(x.n_rep)];
                if !seen.iter().any(|s| s.any) {
                    continue;
                }
                let scores = self.scores.as_chunks_mut::<W>().0;
                products.scores(&block, group, scores);
                let scores = &mut scores[..columns.len()];
                if let Some(cap) = x.softcap {
                    s.run(|| soft_cap(scores, cap * LOG2_E));
                }
                if !seen.iter().all(|s| s.all) {
                    bias(x, tile, columns.start, &rows, scores);
                }
                let (max, sum) = (self.max.as_chunks_mut::<W>().0, self.sum.as_chunks_mut::<W>().0);
                let factor = soften(s, scores, &mut max[group], &mut sum[group]);
                products.add(&block, group, rows.len(), factor.as_ref(), scores);
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
fn apart(x: &Inputs<'_>, tile: &Tile, blocks: &[Range<usize>]) -> bool {
    let seen = |columns: &Range<usize>| tile.tokens.clone().filter(|&t| x.seen(t, columns).any).count();
    blocks.iter().map(seen).sum::<usize>() < 2 * blocks.len()
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
