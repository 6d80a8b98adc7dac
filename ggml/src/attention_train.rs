//! Attention for training, ops of our own for the CPU: forward with the log-sum-exp of each row, and backward
//! from it.
//!
//! Both go over tiles of queries by keys and multiply them by the kernel that [`TrainScoring::kernel`] names, so nothing as large
//! as the scores is ever held. Query heads that share a KV head are the rows of one tile. Each query sees one contiguous range of
//! keys, given as a pair of numbers: enough for causal attention, sliding windows, and documents that do not see each other. Two
//! tables of them, for the halves of the query heads, are LongLoRA's shifted sparse attention.
//!
//! Backward (Dao et al., FlashAttention, algorithm 4): with P = exp(S - lse) and D = rowsum(dO * O), dV = P^T
//! dO, dS = P * (dO V^T - D), dK = scale dS^T Q, dQ = scale dS K. Work is divided by keys, whose gradients
//! are added up in place; queries get sums from all keys, so each of a few lanes of keys has its own sums,
//! added by a second node. A softcap multiplies dS by 1 - tanh^2; sinks are in lse, and so in P and D. Lanes are given by the shapes, so no bit depends on the number of threads.

use std::cell::RefCell;

use kernels::attention_train::{backward, forward, Factors, Heads, HeadsMut, KeyRanges, Plain, Row};

use crate::attention::Scoring;
use crate::graph::Builder;
use crate::matmul::Kernel;
use crate::node::{Part, Source};
use crate::ops::{check, contiguous, f32_rows, share_memory};
use crate::ops_back::target;
use crate::tensor::Tensor;
use crate::units::Units;
use crate::{sys, DType, Error, Result};

/// Rows of a tile of queries (tokens times query heads of one KV head), rounded down to whole tokens.
const TILE_ROWS: usize = 192;
/// The backward pass is cut into about this many units of work: a lane (every n-th tile of keys) of one KV
/// head each.
const UNITS: usize = 24;
/// Most query heads that may share a KV head, since a tile holds at least those of one token.
pub(crate) const MAX_REP: usize = 1024;

/// Operands of [`Builder::attention_back`].
#[derive(Debug, Clone, Copy)]
pub struct AttentionBack<'c> {
    /// Queries, F32 `[d, n_head, T]`.
    pub q: Tensor<'c>,
    /// Keys, F32 `[d, n_head_kv, N]`.
    pub k: Tensor<'c>,
    /// Values, F32 `[d_v, n_head_kv, N]`.
    pub v: Tensor<'c>,
    /// The range of keys each query sees, as first and one past the last, I32 `[2, T]`; or `[2, T, 2]`, those
    /// of the first `n_head / 2` heads and those of the others.
    pub key_ranges: Tensor<'c>,
    /// The result of [`Builder::attention_lse`] with the same operands, `[d_v + 1, n_head, T]`.
    pub o_lse: Tensor<'c>,
    /// The gradient of its output, F32 `[d_v, n_head, T]`.
    pub d_out: Tensor<'c>,
    /// The keys' gradient is added to it: of a writable store, F32 `[d, n_head_kv, N]`.
    pub d_k: Tensor<'c>,
    /// The values' gradient is added to it: of a writable store, F32 `[d_v, n_head_kv, N]`.
    pub d_v: Tensor<'c>,
}

/// How scores are made in training, and the kernel of all products: [`Kernel::F32`], or one that rounds their factors, on
/// processors that have it. [`Kernel::HalfFloats`] rounds to bfloat16.
#[derive(Debug, Clone, Copy)]
pub struct TrainScoring<'c> {
    pub scoring: Scoring<'c>,
    pub kernel: Kernel,
}

impl<'c, S: Into<Scoring<'c>>> From<S> for TrainScoring<'c> {
    fn from(scoring: S) -> TrainScoring<'c> {
        TrainScoring { scoring: scoring.into(), kernel: Kernel::F32 }
    }
}

impl TrainScoring<'_> {
    /// How a node for `n_head` heads, of which `n_rep` share a KV head, is computed.
    fn schedule(&self, op: &'static str, n_head: usize, n_rep: usize) -> Result<Schedule<Plain>> {
        self.scoring.check(op, n_head)?;
        let (factors, dtype) = match self.kernel {
            Kernel::F32 => (Factors::Floats, DType::F32),
            Kernel::F32Tiles => (Factors::Bf16x3, DType::F32),
            Kernel::HalfFloats => (Factors::Bf16, DType::BF16),
            other => return Err(Error::Op { op, what: format!("attention has no products by {other}") }),
        };
        self.kernel.check(op, dtype, false)?;
        let Scoring { scale, softcap, .. } = self.scoring;
        Ok(Schedule { factors, ..Schedule::new(Plain { softcap }, scale, n_rep) })
    }
}

/// The scalars of a node, and how its threads share the work.
#[derive(Debug)]
pub(crate) struct Schedule<R> {
    pub(crate) row: R,
    pub(crate) scale: f32,
    pub(crate) n_rep: usize,
    factors: Factors,
    pub(crate) tokens: usize,
    pub(crate) units: Units,
}

impl<R> Schedule<R> {
    pub(crate) fn new(row: R, scale: f32, n_rep: usize) -> Schedule<R> {
        let tokens = (TILE_ROWS / n_rep).max(1);
        Schedule { row, scale, n_rep, factors: Factors::Floats, tokens, units: Units::default() }
    }
}

/// Returns true if a tensor is F32 `[d, heads, tokens]` with contiguous rows and strides of whole floats.
pub(crate) fn heads(t: Tensor<'_>) -> bool {
    f32_rows(t) && t.ne()[3] == 1 && t.nb()[1].is_multiple_of(4) && t.nb()[2].is_multiple_of(4)
}

/// Number of query heads that share a KV head, if `ok` and shapes and types of queries, keys, values, and ranges of keys, the
/// first of `args`, agree.
fn n_rep(ok: bool, op: &'static str, expected: &str, args: &[Tensor<'_>]) -> Result<usize> {
    let [q, k, v, key_ranges] = [0, 1, 2, 3].map(|i| args[i]);
    let (a, b, c) = (q.ne(), k.ne(), v.ne());
    let shapes = a[0] == b[0] && b[1..] == c[1..] && a[1].is_multiple_of(b[1]) && a[1] / b[1] <= MAX_REP;
    let tables = [1, 2].map(|n| [2, a[2], n, 1]);
    let seen =
        key_ranges.dtype() == DType::I32 && tables.contains(&key_ranges.ne()) && contiguous(key_ranges);
    check(ok && shapes && seen && [q, k, v].into_iter().all(heads), op, expected, args)?;
    Ok(a[1] / b[1])
}

/// Checks the operands of a backward pass; gives the number of query heads that share a KV head.
pub(crate) fn fits_back(op: &'static str, a: &AttentionBack<'_>) -> Result<usize> {
    let args = [a.q, a.k, a.v, a.key_ranges, a.o_lse, a.d_out, a.d_k, a.d_v];
    let expected = "q [d,n_head,T], k [d,n_head_kv,N], v [d_v,n_head_kv,N], key_ranges i32 [2,T] or \
        [2,T,2], o_lse [d_v+1,n_head,T], \
        d_out [d_v,n_head,T] and, of a writable store, d_k and d_v like k and v, f32";
    let (q, k, v) = (a.q.ne(), a.k.ne(), a.v.ne());
    let shapes = a.d_out.ne() == [v[0], q[1], q[2], 1]
        && a.o_lse.ne() == [v[0] + 1, q[1], q[2], 1]
        && a.d_k.ne() == k
        && a.d_v.ne() == v
        && [a.o_lse, a.d_out, a.d_k, a.d_v].into_iter().all(heads);
    let apart = args[..7].iter().all(|&t| !share_memory(t, a.d_v))
        && args[..6].iter().all(|&t| !share_memory(t, a.d_k));
    let ok = shapes && target(a.d_k) && target(a.d_v) && apart;
    n_rep(ok, op, expected, &args)
}

impl<'c> Builder<'c> {
    /// Attention of q (F32 `[d, n_head, T]`) over k and v (F32 `[d, n_head_kv, N]`, `[d_v, n_head_kv, N]`,
    /// rows contiguous): query `t` sees keys `key_ranges[0][t] .. key_ranges[1][t]` (I32 `[2, T]`, clamped to
    /// `0..N`). Where `key_ranges` is `[2, T, 2]`, the second table is that of query heads from `n_head / 2`
    /// (rounded down) on. Gives F32 `[d_v + 1, n_head, T]`: the output, then the natural logarithm of the sum of the
    /// exponentials of `scale * q . k`; zeros and -inf where nothing is seen. Softcap and sinks, which count in that
    /// sum, as [`Scoring`] says. Query head `h` has KV head `h *
    /// n_head_kv / n_head`. For the CPU; elsewhere the graph is refused.
    pub fn attention_lse(
        &self,
        q: Tensor<'c>,
        k: Tensor<'c>,
        v: Tensor<'c>,
        key_ranges: Tensor<'c>,
        scoring: impl Into<TrainScoring<'c>>,
    ) -> Result<Tensor<'c>> {
        let (op, scoring) = ("attention_lse", scoring.into());
        let args = [q, k, v, key_ranges];
        let expected = "q [d,n_head,T], k [d,n_head_kv,N], v [d_v,n_head_kv,N] f32, \
            key_ranges i32 [2,T] or [2,T,2]";
        let n_rep = n_rep(true, op, expected, &args)?;
        let ne = [v.ne()[0] + 1, q.ne()[1], q.ne()[2], 1];
        let args: Vec<Tensor<'c>> = args.into_iter().chain(scoring.scoring.sinks).collect();
        let schedule = scoring.schedule(op, q.ne()[1], n_rep)?;
        self.custom(op, DType::F32, ne, &args, move |part| run_forward(&part, &schedule))
    }

    /// The gradient of q, F32 `[d, n_head, T]`, from that of [`Builder::attention_lse`]'s output; those of k
    /// and v are added to `d_k` and `d_v`, once for each compute of a graph that has the result in it. `d_k`
    /// and `d_v` are stored tensors (or views) of their own, none of the other operands. The scoring is that of the
    /// forward pass. For the CPU; elsewhere the graph is refused.
    pub fn attention_back(
        &self,
        a: AttentionBack<'c>,
        scoring: impl Into<TrainScoring<'c>>,
    ) -> Result<Tensor<'c>> {
        let op = "attention_back";
        let n_rep = fits_back(op, &a)?;
        self.attention_gradients(op, a, scoring.into().schedule(op, a.q.ne()[1], n_rep)?)
    }

    /// The nodes of the backward pass of operands that fit ([`fits_back`]).
    pub(crate) fn attention_gradients<R: Row>(
        &self,
        op: &'static str,
        a: AttentionBack<'c>,
        schedule: Schedule<R>,
    ) -> Result<Tensor<'c>> {
        let (q, k) = (a.q.ne(), a.k.ne());
        let args = [a.q, a.k, a.v, a.key_ranges, a.o_lse, a.d_out, a.d_k, a.d_v];
        let lanes = UNITS.div_ceil(k[1]).min(k[2].div_ceil(schedule.row.tile()));
        let ne = [q[0], q[2].saturating_mul(schedule.n_rep), k[1], lanes];
        let partial = self.custom(op, DType::F32, ne, &args, move |part| run_backward(&part, &schedule))?;
        self.custom(op, DType::F32, [q[0], q[1], q[2], 1], &[partial], run_sum)
    }
}

thread_local! {
    static FORWARD: RefCell<forward::Scratch> = RefCell::default();
    static BACKWARD: RefCell<backward::Scratch> = RefCell::default();
}

/// Rows of floats as heads.
pub(crate) fn heads_of(t: Source<'_>) -> Heads<'_> {
    let ([d, n_head, n, _], nb) = (t.ne(), t.tensor().nb);
    // SAFETY: rows of a source, which has values and stays as it is.
    unsafe { Heads::new(t.float_rows(), [d, n_head, n], [nb[1] / 4, nb[2] / 4]) }
}

/// # Safety
/// A tensor of a running node, F32 with contiguous rows and strides of whole floats, whose memory this node alone uses, in
/// the elements that the view's methods are asked for.
pub(crate) unsafe fn heads_mut(t: &sys::ggml_tensor) -> HeadsMut<'_> {
    // SAFETY: the caller's promise.
    unsafe {
        HeadsMut::new(t.data as *mut f32, [0, 1, 2].map(|i| t.ne[i] as usize), [t.nb[1] / 4, t.nb[2] / 4])
    }
}

/// I32 `[2, T]` or `[2, T, 2]`.
pub(crate) fn key_ranges_of(t: Source<'_>, n_head: usize, n_keys: usize) -> KeyRanges<'_> {
    match t.ne()[2] {
        1 => KeyRanges::new(t.all(), n_keys),
        _ => KeyRanges::halves(t.all(), n_keys, n_head),
    }
}

fn run_forward(part: &Part<'_>, schedule: &Schedule<Plain>) {
    let [q, k, v] = [0, 1, 2].map(|i| heads_of(part.source(i)));
    let key_ranges = key_ranges_of(part.source(3), q.shape()[1], k.shape()[2]);
    let sinks = part.optional(4).map(|sinks| sinks.all::<f32>());
    let &Schedule { scale, row: Plain { softcap }, n_rep, factors, .. } = schedule;
    let inputs = forward::Inputs { q, k, v, key_ranges, scale, softcap, sinks, n_rep, factors };
    let (n_tokens, n_head_kv) = (inputs.q.shape()[2], inputs.k.shape()[1]);
    let n_tiles = n_tokens.div_ceil(schedule.tokens);
    // SAFETY: the result is contiguous F32 [d_v + 1, n_head, T], and no source's memory.
    let mut out = unsafe { heads_mut(part.node()) };
    FORWARD.with_borrow_mut(|scratch| {
        schedule.units.work(n_tiles * n_head_kv, part.nth(), |i| {
            // Last tokens first: causal, they see most.
            let tile = n_tiles - 1 - i / n_head_kv;
            let tokens = tile * schedule.tokens..((tile + 1) * schedule.tokens).min(n_tokens);
            scratch.attend(&inputs, i % n_head_kv, tokens, |h, t, row| {
                // SAFETY: units of work are different tiles, and each writes its own rows.
                row(unsafe { out.row(h, t) });
            });
        });
    });
}

fn run_backward<R: Row>(part: &Part<'_>, schedule: &Schedule<R>) {
    let [q, k, v] = [0, 1, 2].map(|i| heads_of(part.source(i)));
    let [o_lse, d_out] = [4, 5].map(|i| heads_of(part.source(i)));
    // SAFETY: of writable stores, which the executor has locked, and no other source is in their memory.
    let [d_k, d_v] = [6, 7].map(|i| unsafe { heads_mut(part.source(i).tensor()) });
    let key_ranges = key_ranges_of(part.source(3), q.shape()[1], k.shape()[2]);
    let &Schedule { scale, ref row, n_rep, tokens, factors, .. } = schedule;
    let inputs =
        backward::Inputs { q, k, v, key_ranges, o_lse, d_out, d_k, d_v, scale, row, n_rep, tokens, factors };
    let ([d, _, n_tokens], [_, n_head_kv, n_keys]) = (inputs.q.shape(), inputs.k.shape());
    let (len, lanes) = (d * schedule.n_rep * n_tokens, part.ne()[3]);
    let (tile_len, out) = (schedule.row.tile(), part.floats());
    BACKWARD.with_borrow_mut(|scratch| {
        schedule.units.work(lanes * n_head_kv, part.nth(), |i| {
            let (lane, head) = (i / n_head_kv, i % n_head_kv);
            // SAFETY: the result is F32 [d, n_rep * T, n_head_kv, lanes], and units of work are different pairs of the last
            // two.
            let d_q = unsafe { out.elements(i * len..(i + 1) * len) };
            d_q.fill(0.0);
            for tile in (lane..n_keys.div_ceil(tile_len)).step_by(lanes) {
                let keys = tile * tile_len..((tile + 1) * tile_len).min(n_keys);
                // SAFETY: each tile of keys of each head is in one unit of work, so its gradients are this
                // thread's.
                unsafe { scratch.differentiate(&inputs, head, keys, d_q) };
            }
        });
    });
}

fn run_sum(part: Part<'_>) {
    let ([d, n_head, n_tokens, _], partial) = (part.ne(), part.source(0));
    let n_rep = n_head / partial.ne()[2];
    let sums = partial.all::<f32>();
    for (row, out) in part.rows::<f32>() {
        let (t, h) = (row / n_head, row % n_head);
        let at = ((h / n_rep * n_tokens + t) * n_rep + h % n_rep) * d;
        out.copy_from_slice(&sums[at..at + d]);
        for lane in sums.chunks_exact(d * n_head * n_tokens).skip(1) {
            out.iter_mut().zip(&lane[at..]).for_each(|(o, s)| *o += s);
        }
    }
}
