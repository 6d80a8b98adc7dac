//! Attention with landmarks, ops of our own for the CPU: forward, in training and through a cache alike, and backward.
//! `kernels::attention_landmark` has the definition.
//!
//! Work is divided as in `attention_train`, forward by tiles of queries, which are given by the shapes, so no bit depends
//! on the number of threads. The backward pass is the one there, with another rule for the rows of scores.

use std::cell::RefCell;

use kernels::attention_landmark::top::{self, Top};
use kernels::attention_landmark::{forward, Blocks};

use crate::attention::rows;
use crate::attention_train::{
    fits_back, heads, heads_mut, heads_of, key_ranges_of, AttentionBack, Schedule, MAX_REP,
};
use crate::graph::Builder;
use crate::node::Part;
use crate::ops::{check, contiguous, f32_rows, matrix, plain};
use crate::tensor::Tensor;
use crate::{DType, Error, Result};

pub use kernels::attention_landmark::MAX_BLOCK;

/// Operands of [`Builder::landmark_attention`].
#[derive(Debug, Clone, Copy)]
pub struct LandmarkAttention<'c> {
    /// Queries, F32 `[d, n_head, T]`, rows contiguous.
    pub q: Tensor<'c>,
    /// Keys, `[d, n_head_kv, N]`, rows contiguous, of any type that converts to floats.
    pub k: Tensor<'c>,
    /// Values, `[d_v, n_head_kv, N]`, like the keys.
    pub v: Tensor<'c>,
    /// The row of keys and values that holds each position of a sequence, I32 `[n_positions, n_tables]`: an input of
    /// the graph. Positions that no query sees may name any row.
    pub cells: Tensor<'c>,
    /// The table of each query, I32 `[T]`: an input of the graph.
    pub tables: Tensor<'c>,
    /// The range of positions each query sees, as first and one past the last, its own; I32 `[2, T]`, clamped to
    /// `0..n_positions`.
    pub key_ranges: Tensor<'c>,
}

/// How query heads take some of the earlier blocks: see `kernels::attention_landmark::top`.
#[derive(Debug, Clone, Copy)]
pub struct TopBlocks<'c> {
    /// Earlier blocks that a query head sees, at least 1.
    pub top: usize,
    /// Positions of a piece: a multiple of the block.
    pub piece: usize,
    /// Cosines and then sines of what `0, 1, ...` blocks turn each pair of dimensions by, F32 `[n_rot, n_tables,
    /// blocks]` with as many blocks as positions make; `None` where nothing is rotated.
    pub turns: Option<Tensor<'c>>,
    /// True if pairs are `(j, j + n_rot / 2)`, false if they are `(2j, 2j + 1)`.
    pub neox: bool,
}

/// The scalars of [`TopBlocks`].
#[derive(Debug, Clone, Copy)]
struct Take {
    top: usize,
    piece: usize,
    neox: bool,
}

fn schedule(op: &'static str, block: usize, scale: f32, n_rep: usize) -> Result<Schedule<Blocks>> {
    match Blocks::new(block) {
        Some(blocks) if scale.is_finite() => Ok(Schedule::new(blocks, scale, n_rep)),
        _ => {
            let what = "expected blocks of 2 to";
            let what = format!("{what} {MAX_BLOCK} and a finite scale, found {block} and {scale}");
            Err(Error::Op { op, what })
        }
    }
}

impl TopBlocks<'_> {
    fn check(&self, op: &'static str, a: &LandmarkAttention<'_>, block: usize) -> Result<()> {
        let &TopBlocks { top, piece, turns, .. } = self;
        let fits = |turns: Tensor<'_>| {
            let ([d, n_head_kv, ..], [n_rot, n_tables, blocks, rest]) = (a.k.ne(), turns.ne());
            let rotates = n_rot.is_multiple_of(2) && n_rot <= d && n_head_kv.is_multiple_of(n_tables);
            let enough = blocks.saturating_mul(block) >= a.cells.ne()[0];
            turns.dtype() == DType::F32 && contiguous(turns) && rotates && enough && rest == 1
        };
        let sized = top > 0 && piece > 0 && block > 0 && piece.is_multiple_of(block);
        if sized && turns.is_none_or(fits) {
            return Ok(());
        }
        let turns = turns.map_or("none".into(), |turns| turns.describe());
        let what = format!(
            "expected a block at least, pieces of whole blocks and turns f32 [n_rot,n_tables,blocks], found {top}, pieces of \
             {piece} in blocks of {block}, {turns}"
        );
        Err(Error::Op { op, what })
    }
}

impl<'c> Builder<'c> {
    /// Attention of queries over positions in blocks of `block`, the last of each a landmark: F32 `[d_v + 1, n_head,
    /// T]`, the output, then the log-sum-exp that [`Builder::landmark_attention_back`] wants; zeros and -inf where
    /// nothing is seen. Scores are `scale * q . k`. Query head `h` has KV head `h * n_head_kv / n_head`. For the CPU;
    /// elsewhere the graph is refused.
    ///
    /// With `top` it is over a few of the blocks before the piece that a query is in. Keys are then rotated by their
    /// positions, and each query sees all positions up to its own: ranges of keys begin at 0.
    pub fn landmark_attention(
        &self,
        a: LandmarkAttention<'c>,
        block: usize,
        scale: f32,
        top: Option<TopBlocks<'c>>,
    ) -> Result<Tensor<'c>> {
        let op = "landmark_attention";
        top.map_or(Ok(()), |top| top.check(op, &a, block))?;
        let args = [a.q, a.k, a.v, a.cells, a.tables, a.key_ranges];
        let (q, k, v, cells) = (a.q.ne(), a.k.ne(), a.v.ne(), a.cells.ne());
        let grouped = q[1].is_multiple_of(k[1]) && q[1] / k[1] <= MAX_REP;
        let shapes = q[0] == k[0] && k[1..] == v[1..] && grouped && [q[3], k[3], v[3]] == [1; 3];
        let types = f32_rows(a.q) && heads(a.q) && matrix(a.k) && matrix(a.v);
        let places = plain(a.cells, DType::I32, [cells[0], cells[1], 1, 1])
            && plain(a.tables, DType::I32, [q[2], 1, 1, 1])
            && plain(a.key_ranges, DType::I32, [2, q[2], 1, 1]);
        let expected =
            "q f32 [d,n_head,T], k [d,n_head_kv,N], v [d_v,n_head_kv,N], cells i32 [n_positions,n_tables], \
            tables i32 [T], key_ranges i32 [2,T]";
        check(shapes && types && places, op, expected, &args)?;
        self.index(op, a.cells, k[2])?;
        self.index(op, a.tables, cells[1])?;
        let ne = [v[0] + 1, q[1], q[2], 1];
        let take = top.map(|TopBlocks { top, piece, neox, .. }| Take { top, piece, neox });
        let schedule = schedule(op, block, scale, q[1] / k[1])?;
        let turns = top.and_then(|top| top.turns);
        let args: Vec<Tensor<'c>> = args.into_iter().chain(turns).collect();
        self.custom(op, DType::F32, ne, &args, move |part| run_forward(&part, &schedule, take))
    }

    /// The gradient of q from that of [`Builder::landmark_attention`]'s output where keys and values lie in the order of
    /// their positions; those of k and v are added to `d_k` and `d_v`. Shapes and conditions are those of
    /// [`Builder::attention_back`].
    pub fn landmark_attention_back(
        &self,
        a: AttentionBack<'c>,
        block: usize,
        scale: f32,
    ) -> Result<Tensor<'c>> {
        let op = "landmark_attention_back";
        let n_rep = fits_back(op, &a)?;
        self.attention_gradients(op, a, schedule(op, block, scale, n_rep)?)
    }
}

thread_local! {
    static FORWARD: RefCell<forward::Scratch> = RefCell::default();
    static TOP: RefCell<top::Scratch> = RefCell::default();
}

fn run_forward(part: &Part<'_>, schedule: &Schedule<Blocks>, take: Option<Take>) {
    let ([q, k, v, cells, tables, ranges], turns) =
        ([0, 1, 2, 3, 4, 5].map(|i| part.source(i)), part.optional(6));
    let n_positions = cells.ne()[0];
    let inputs = forward::Inputs {
        q: heads_of(q),
        k: rows(k),
        v: rows(v),
        cells: cells.all(),
        n_positions,
        tables: tables.all(),
        key_ranges: key_ranges_of(ranges, q.ne()[1], n_positions),
        blocks: schedule.row,
        scale: schedule.scale,
        n_rep: schedule.n_rep,
    };
    let ([_, n_head, n_tokens], d_v) = (inputs.q.shape(), part.ne()[0] - 1);
    let (n_head_kv, n_tiles) = (n_head / schedule.n_rep, n_tokens.div_ceil(schedule.tokens));
    // SAFETY: the result is contiguous F32 [d_v + 1, n_head, T], and no source's memory.
    let mut out = unsafe { heads_mut(part.node()) };
    let mut write = |h: usize, t: usize, values: &[f32], lse: f32| {
        // SAFETY: units of work are different tiles, and each writes its own rows.
        let row = unsafe { out.row(h, t) };
        row[..d_v].copy_from_slice(values);
        row[d_v] = lse;
    };
    schedule.units.work(n_tiles * n_head_kv, part.nth(), |i| {
        // Last tokens first: causal, they see most.
        let tile = n_tiles - 1 - i / n_head_kv;
        let tokens = tile * schedule.tokens..((tile + 1) * schedule.tokens).min(n_tokens);
        match take {
            None => {
                FORWARD.with_borrow_mut(|all| all.attend(&inputs, i % n_head_kv, tokens, &mut write));
            }
            Some(Take { top, piece, neox }) => {
                let (turns, [n_rot, n_tables, ..]) =
                    turns.map_or((&[][..], [0, 1, 1, 1]), |turns| (turns.all::<f32>(), turns.ne()));
                let top = Top { top, piece, turns, n_rot, n_tables, neox };
                TOP.with_borrow_mut(|some| some.attend(&inputs, &top, i % n_head_kv, tokens, &mut write));
            }
        }
    });
}
