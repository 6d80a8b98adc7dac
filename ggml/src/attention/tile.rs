//! Attention of one tile: the queries of a few tokens that share a KV head, over a range of columns.
//!
//! Keys and values are converted to floats once for the whole tile. Queries are vector lanes, so they are transposed once,
//! keys and values never, and maxima and sums of the softmax need no sums across lanes.

use std::ops::Range;

use half::slice::{HalfBitsSliceExt, HalfFloatSliceExt};

use super::kernel::{scores, soften, weigh, BLOCK, LANES, PANEL};
use super::view::{pieces, pieces_mut, Rows};

/// Keys converted at a time.
pub(super) const KEYS: usize = 64;
/// Half-precision -infinity.
const NEVER: u16 = 0xfc00;

/// One branch: queries `[d, n_head, T]`, keys and values `[.., n, n_head_kv]`, and its first column of the mask.
pub(super) struct Part<'a> {
    pub(super) q: Rows<'a>,
    pub(super) k: Rows<'a>,
    pub(super) v: Rows<'a>,
    pub(super) first: usize,
}

/// What is attended: up to three branches side by side.
pub(super) struct Inputs<'a> {
    pub(super) parts: [Option<Part<'a>>; 3],
    /// Half-precision bits, `[T][n_columns]`.
    pub(super) mask: &'a [u16],
    pub(super) n_columns: usize,
    pub(super) scale: f32,
    /// Query heads of a KV head.
    pub(super) n_rep: usize,
    pub(super) d_v: usize,
}

/// Which queries, and which columns of the mask.
#[derive(Clone)]
pub(super) struct Tile {
    pub(super) head_kv: usize,
    pub(super) tokens: Range<usize>,
    pub(super) columns: Range<usize>,
}

/// What a thread keeps between calls: the largest tile it has had.
#[derive(Default)]
pub(super) struct Scratch {
    /// Queries times scale, `[group][d][W]`.
    q: Vec<f32>,
    /// `[KEYS][d]`
    k: Vec<f32>,
    /// `[d_v / BLOCK][KEYS]`
    v: Vec<[f32; BLOCK]>,
    row: Vec<f32>,
    /// `[KEYS][W]`
    scores: Vec<f32>,
    seen: Vec<Seen>,
    max: Vec<f32>,
    sum: Vec<f32>,
    /// `[row][d_v / BLOCK]`
    out: Vec<[f32; BLOCK]>,
}

/// How a token sees the keys at hand.
#[derive(Clone, Copy, Default)]
struct Seen {
    any: bool,
    /// All of them, and none with a bias.
    plain: bool,
}

impl Scratch {
    /// Calls `f` with token, head, maximum (of scores in units of log 2), sum of weights and weighted sum of values of each
    /// row of the tile. No key seen: -inf, 0 and zeros.
    pub(super) fn attend(
        &mut self,
        x: &Inputs<'_>,
        tile: &Tile,
        f: impl FnMut(usize, usize, f32, f32, &[f32]),
    ) {
        match tile.tokens.len() * x.n_rep {
            ..=8 => self.run::<8, 8>(x, tile, f),
            9..=16 => self.run::<16, 4>(x, tile, f),
            _ => self.run::<LANES, 4>(x, tile, f),
        }
    }

    fn run<const W: usize, const K: usize>(
        &mut self,
        x: &Inputs<'_>,
        tile: &Tile,
        mut f: impl FnMut(usize, usize, f32, f32, &[f32]),
    ) {
        const { assert!(KEYS % K == 0) };
        let n_rows = tile.tokens.len() * x.n_rep;
        let padded = n_rows.next_multiple_of(W);
        let n_blocks = x.d_v.div_ceil(BLOCK);
        refill(&mut self.max, padded, f32::NEG_INFINITY);
        refill(&mut self.sum, padded, 0.0);
        refill(&mut self.out, n_rows * n_blocks, [0.0; BLOCK]);
        self.scores.resize(KEYS * W, 0.0);
        for part in x.parts.iter().flatten() {
            self.part::<W, K>(x, tile, part);
        }
        for row in 0..n_rows {
            let (t, h) = (tile.tokens.start + row / x.n_rep, tile.head_kv * x.n_rep + row % x.n_rep);
            let out = self.out[row * n_blocks..][..n_blocks].as_flattened();
            f(t, h, self.max[row], self.sum[row], &out[..x.d_v]);
        }
    }

    fn part<const W: usize, const K: usize>(&mut self, x: &Inputs<'_>, tile: &Tile, part: &Part<'_>) {
        let start = tile.columns.start.max(part.first);
        let end = tile.columns.end.min(part.first + part.k.n1);
        let d = part.k.d;
        let n_rows = tile.tokens.len() * x.n_rep;
        let n_blocks = x.d_v.div_ceil(BLOCK);
        let mut queries_ready = false;
        for first in (start..end).step_by(KEYS) {
            let n = KEYS.min(end - first);
            let mut used = [0u16; KEYS];
            if !self.look(x, tile, first, &mut used[..n]) {
                continue;
            }
            if !queries_ready {
                self.load_queries::<W>(x, tile, part);
                queries_ready = true;
            }
            self.load_keys(x, part, tile.head_kv, first - part.first, &used[..n]);
            for group in 0..n_rows.div_ceil(W) {
                let rows = group * W..n_rows.min((group + 1) * W);
                let seen = &self.seen[rows.start / x.n_rep..rows.end.div_ceil(x.n_rep)];
                if !seen.iter().any(|s| s.any) {
                    continue;
                }
                let plain = seen.iter().all(|s| s.plain);
                let q = &pieces::<W>(&self.q)[group * d..][..d];
                let s = pieces_mut::<W>(&mut self.scores);
                for (s, k) in s.chunks_exact_mut(K).zip(self.k.chunks_exact(K * d)).take(n.div_ceil(K)) {
                    s.copy_from_slice(&scores::<W, K>(q, std::array::from_fn(|i| &k[i * d..][..d])));
                }
                let s = &mut s[..n];
                if !plain {
                    bias(x, tile, first, &rows, s);
                }
                let (max, sum) = (pieces_mut::<W>(&mut self.max), pieces_mut::<W>(&mut self.sum));
                let factor = soften(s, &mut max[group], &mut sum[group]);
                let out = &mut self.out[rows.start * n_blocks..rows.end * n_blocks];
                if let Some(factor) = factor {
                    for (out, f) in out.chunks_exact_mut(n_blocks).zip(factor) {
                        if f != 1.0 {
                            out.as_flattened_mut().iter_mut().for_each(|o| *o *= f);
                        }
                    }
                }
                for lane in (0..rows.len()).step_by(PANEL) {
                    for (block, v) in self.v.chunks_exact(KEYS).enumerate() {
                        let (v, out) = (&v[..n], &mut out[lane * n_blocks + block..]);
                        match rows.len() - lane {
                            1 => weigh::<W, 1>(s, lane, v, out, n_blocks),
                            2 => weigh::<W, 2>(s, lane, v, out, n_blocks),
                            3 => weigh::<W, 3>(s, lane, v, out, n_blocks),
                            4 => weigh::<W, 4>(s, lane, v, out, n_blocks),
                            5 => weigh::<W, 5>(s, lane, v, out, n_blocks),
                            _ => weigh::<W, PANEL>(s, lane, v, out, n_blocks),
                        }
                    }
                }
            }
        }
    }

    /// Reads the mask at these columns: what each token sees, and in `used` (not 0) which columns are seen at all. False
    /// when nothing is.
    fn look(&mut self, x: &Inputs<'_>, tile: &Tile, first: usize, used: &mut [u16]) -> bool {
        self.seen.clear();
        let mut any = 0;
        for t in tile.tokens.clone() {
            let mask = &x.mask[t * x.n_columns + first..][..used.len()];
            let (mut sees, mut biased) = (0, 0);
            for (used, m) in used.iter_mut().zip(mask) {
                *used |= m ^ NEVER;
                sees |= m ^ NEVER;
                biased |= m << 1; // Either zero is none.
            }
            any |= sees;
            self.seen.push(Seen { any: sees != 0, plain: biased == 0 });
        }
        any != 0
    }

    /// Scale includes the factor that turns powers of e into powers of 2.
    fn load_queries<const W: usize>(&mut self, x: &Inputs<'_>, tile: &Tile, part: &Part<'_>) {
        let d = part.q.d;
        let n_rows = tile.tokens.len() * x.n_rep;
        let scale = x.scale * std::f32::consts::LOG2_E;
        refill(&mut self.q, n_rows.div_ceil(W) * d * W, 0.0);
        self.row.resize(d, 0.0);
        for row in 0..n_rows {
            let (t, h) = (tile.tokens.start + row / x.n_rep, tile.head_kv * x.n_rep + row % x.n_rep);
            part.q.read(h, t, &mut self.row);
            let q = &mut pieces_mut::<W>(&mut self.q)[row / W * d..][..d];
            for (q, value) in q.iter_mut().zip(&self.row) {
                q[row % W] = value * scale;
            }
        }
    }

    /// Rows nobody sees become zeros: what lies in an unused cell may not be a number, and 0 times that is not 0.
    fn load_keys(&mut self, x: &Inputs<'_>, part: &Part<'_>, head: usize, first: usize, used: &[u16]) {
        let (d, n_blocks) = (part.k.d, x.d_v.div_ceil(BLOCK));
        self.k.resize(KEYS * d, 0.0);
        self.v.resize(n_blocks * KEYS, [0.0; BLOCK]);
        // The end of the last block of columns stays zero.
        refill(&mut self.row, n_blocks * BLOCK, 0.0);
        for (i, (k, used)) in self.k.chunks_exact_mut(d).zip(used).enumerate() {
            if *used == 0 {
                k.fill(0.0);
                self.row.fill(0.0);
            } else {
                part.k.read(first + i, head, k);
                part.v.read(first + i, head, &mut self.row[..x.d_v]);
            }
            for (block, values) in pieces::<BLOCK>(&self.row).iter().enumerate() {
                self.v[block * KEYS + i] = *values;
            }
        }
    }
}

/// Adds the mask to scores `[n_keys][W]` of these rows; what is not seen is -inf whatever its score.
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
                let sum = *s + value * std::f32::consts::LOG2_E;
                *s = if *value == f32::NEG_INFINITY { *value } else { sum };
            }
        }
    }
}

fn refill<T: Clone>(v: &mut Vec<T>, n: usize, value: T) {
    v.clear();
    v.resize(n, value);
}
