//! Gated delta-nets in ops of our own for the CPU: the convolution over the last tokens with SiLU after it, and the
//! gated delta rule, forward over as many tokens of each of some sequences, and backward over those of one.
//!
//! A sequence may come in parts: the rows that the convolution read last, and the states after the last token, go
//! from one to the next, and their gradients back. Within it a document sees nothing of the one before. Work is
//! divided by channels, and by heads of keys, so no bit depends on the number of threads.

use std::cell::RefCell;

use kernels::attention_train::{Heads, HeadsMut};
use kernels::delta_net::{backward, conv, forward, Inputs};

use crate::attention_train::heads_of;
use crate::graph::Builder;
use crate::node::{Part, Source};
use crate::ops::{check, f32_rows, plain};
use crate::tensor::Tensor;
use crate::units::Units;
use crate::{DType, Result};

/// Most channels of a unit of work of the convolution.
const CHANNELS: usize = 256;

/// Operands of [`Builder::conv_silu`].
#[derive(Debug, Clone, Copy)]
pub struct ConvSilu<'c> {
    /// Rows before the first token, F32 `[channels, n_conv - 1, s]`.
    pub before: Tensor<'c>,
    /// A row for each token, F32 `[channels, n, s]`.
    pub x: Tensor<'c>,
    /// F32 `[n_conv, channels]`, the weight of the token itself last.
    pub weights: Tensor<'c>,
    /// For each token, how many of its document come before it, I32 `[n]`; `None` where all are of one document.
    pub past: Option<Tensor<'c>>,
}

/// Operands of [`Builder::delta_rule`].
#[derive(Debug, Clone, Copy)]
pub struct DeltaRule<'c> {
    /// Heads of queries and of keys, which are made as long as 1, then of values: F32
    /// `[d * (2 n_head_k + n_head_v), n, s]`.
    pub qkv: Tensor<'c>,
    /// Logarithm of what is left of the state, F32 `[n_head_v, n, s]`.
    pub g: Tensor<'c>,
    /// How much of the difference is learned, F32 `[n_head_v, n, s]`.
    pub beta: Tensor<'c>,
    /// For each token, how many of its document come before it, I32 `[n]`; the state begins at 0 where none do. `None`
    /// where all are of one document, and so are those before the first.
    pub past: Option<Tensor<'c>>,
    /// The states before the first token, F32 `[d, d, n_head_v, s]`.
    pub state: Tensor<'c>,
    /// Heads of queries, and of keys.
    pub n_head_k: usize,
    /// Added to the square of the length of queries and keys.
    pub eps: f32,
}

/// Gradients of the operands of [`Builder::delta_rule`], of their shapes.
#[derive(Debug, Clone, Copy)]
pub struct DeltaGrads<'c> {
    /// Gradients of queries, keys and values.
    pub qkv: Tensor<'c>,
    /// Gradient of g, the logarithm of the decay.
    pub g: Tensor<'c>,
    /// Gradient of beta, the learning rate of the state.
    pub beta: Tensor<'c>,
    /// Gradient of the states before the first token.
    pub state: Tensor<'c>,
}

/// The numbers of a node of the rule, and how its threads share the work.
#[derive(Debug)]
struct Rule {
    d: usize,
    n_head_k: usize,
    n_head_v: usize,
    eps: f32,
    units: Units,
}

/// F32 rows at a distance of whole floats.
fn rows(t: Tensor<'_>, ne: [usize; 3]) -> bool {
    f32_rows(t) && t.ne() == [ne[0], ne[1], ne[2], 1] && t.nb()[1..3].iter().all(|nb| nb.is_multiple_of(4))
}

impl<'c> ConvSilu<'c> {
    fn args(&self) -> Vec<Tensor<'c>> {
        [self.before, self.x, self.weights].into_iter().chain(self.past).collect()
    }

    /// Channels, weights of each, tokens and sequences.
    fn check(&self, op: &'static str) -> Result<[usize; 4]> {
        let ([channels, n, s, _], n_conv) = (self.x.ne(), self.weights.ne()[0]);
        let ok = n_conv > 1
            && rows(self.before, [channels, n_conv - 1, s])
            && rows(self.x, [channels, n, s])
            && plain(self.weights, DType::F32, [n_conv, channels, 1, 1])
            && self.past.is_none_or(|past| plain(past, DType::I32, [n, 1, 1, 1]));
        let expected =
            "f32 rows before [channels,n_conv-1,s] and x [channels,n,s], weights [n_conv,channels], i32 [n]";
        check(ok, op, expected, &self.args())?;
        Ok([channels, n_conv, n, s])
    }
}

impl<'c> DeltaRule<'c> {
    fn args(&self) -> Vec<Tensor<'c>> {
        [self.qkv, self.g, self.beta, self.state].into_iter().chain(self.past).collect()
    }

    /// The numbers of its node, its tokens and its sequences.
    fn check(&self, op: &'static str) -> Result<(Rule, usize, usize)> {
        let DeltaRule { qkv, g, beta, past, state, n_head_k, eps } = *self;
        let ([d, _, n_head_v, s], [width, n, ..]) = (state.ne(), qkv.ne());
        let n_heads = n_head_k.saturating_mul(2).saturating_add(n_head_v);
        let ok = n_head_k > 0
            && n_head_v.is_multiple_of(n_head_k)
            && d.checked_mul(n_heads) == Some(width)
            && rows(qkv, [width, n, s])
            && [g, beta].iter().all(|&t| plain(t, DType::F32, [n_head_v, n, s, 1]))
            && past.is_none_or(|past| plain(past, DType::I32, [n, 1, 1, 1]))
            && plain(state, DType::F32, [d, d, n_head_v, s])
            && eps >= 0.0;
        let expected =
            "f32 rows [d*(2Hk+H),n,s], g, beta [H,n,s], i32 [n], state [d,d,H,s], Hk a divisor of H";
        check(ok, op, expected, &self.args())?;
        Ok((Rule { d, n_head_k, n_head_v, eps, units: Units::default() }, n, s))
    }
}

impl<'c> Builder<'c> {
    /// Each channel convolved over the token and those before it in its document, `sum over i of w[i,c] x[t+i,c]` of
    /// the rows before and of the tokens, and SiLU of that: F32 `[channels, n, s]`. For the CPU; elsewhere the graph is
    /// refused.
    pub fn conv_silu(&self, a: ConvSilu<'c>) -> Result<Tensor<'c>> {
        let op = "conv_silu";
        let [channels, _, n, s] = a.check(op)?;
        let units = Units::default();
        self.custom(op, DType::F32, [channels, n, s, 1], &a.args(), move |part| run_conv(&part, &units))
    }

    /// The gradients of `before` and `x` from that of [`Builder::conv_silu`]'s result, and from what those after the
    /// last token find for the last `n_conv - 1` rows, F32 `[channels, n_conv - 1]`; of one sequence.
    pub fn conv_silu_back(
        &self,
        a: ConvSilu<'c>,
        d_out: Tensor<'c>,
        d_after: Tensor<'c>,
    ) -> Result<[Tensor<'c>; 2]> {
        let op = "conv_silu_back";
        let [channels, n_conv, n, s] = a.check(op)?;
        let ok = s == 1 && rows(d_out, [channels, n, 1]) && rows(d_after, [channels, n_conv - 1, 1]);
        check(ok, op, "f32 rows of the result's shape and [channels,n_conv-1]", &[d_out, d_after])?;
        let ne = [channels, (n_conv - 1).saturating_add(n), 1, 1];
        let args: Vec<Tensor<'c>> = [d_out, d_after].into_iter().chain(a.args()).collect();
        let units = Units::default();
        let all = self.custom(op, DType::F32, ne, &args, move |part| run_conv_back(&part, &units))?;
        let part = |first: usize, n: usize| {
            let row = 4 * channels;
            self.view(all, [channels, n, 1, 1], [row, row * n, row * n], row * first)
        };
        Ok([part(0, n_conv - 1)?, part(n_conv - 1, n)?])
    }

    /// The gated delta rule, token by token, as [`Builder::gated_delta_net`]; queries and keys are divided by their
    /// length. Returns the outputs, F32 `[d, n_head_v, n, s]`, and the states after the last token,
    /// `[d * d * n_head_v, s]`. For the CPU; elsewhere the graph is refused.
    pub fn delta_rule(&self, rule: DeltaRule<'c>) -> Result<[Tensor<'c>; 2]> {
        let op = "delta_rule";
        let (how, n, s) = rule.check(op)?;
        let (d, n_head) = (how.d, how.n_head_v);
        let width = d.saturating_mul(n_head);
        let ne = [width, n.saturating_add(d).saturating_mul(s), 1, 1];
        let all = self.custom(op, DType::F32, ne, &rule.args(), move |part| run_rule(&part, &how))?;
        let row = 4 * width;
        let out = self.view(all, [d, n_head, n, s], [4 * d, row, row * n], 0)?;
        let state = self.view(all, [width * d, s, 1, 1], [row * d, row * d * s, row * d * s], row * n * s)?;
        Ok([out, state])
    }

    /// The gradients of the operands of [`Builder::delta_rule`] from those of its outputs, F32 `[d, n_head_v, n]`, and
    /// of the states after the last token, `[d * d * n_head_v]`, contiguous. For the CPU; elsewhere the graph is
    /// refused.
    pub fn delta_rule_back(
        &self,
        rule: DeltaRule<'c>,
        d_out: Tensor<'c>,
        d_state: Tensor<'c>,
    ) -> Result<DeltaGrads<'c>> {
        let op = "delta_rule_back";
        let (how, n, s) = rule.check(op)?;
        let (d, n_head, [width, ..]) = (how.d, how.n_head_v, rule.qkv.ne());
        let of_state = d.saturating_mul(d).saturating_mul(n_head);
        let ok = s == 1
            && plain(d_out, DType::F32, [d, n_head, n, 1])
            && plain(d_state, DType::F32, [of_state, 1, 1, 1]);
        check(ok, op, "contiguous f32 [d,H,n] and [d*d*H]", &[d_out, d_state])?;
        let rows = width.saturating_add(2 * n_head).saturating_mul(n);
        let ne = [rows.saturating_add(of_state), 1, 1, 1];
        let args: Vec<Tensor<'c>> = [d_out, d_state].into_iter().chain(rule.args()).collect();
        let all = self.custom(op, DType::F32, ne, &args, move |part| run_rule_back(&part, &how))?;
        let part = |first: usize, [n0, n1]: [usize; 2]| {
            self.view(all, [n0, n1, 1, 1], [4 * n0, 4 * n0 * n1, 4 * n0 * n1], 4 * first)
        };
        Ok(DeltaGrads {
            qkv: part(0, [width, n])?,
            g: part(width * n, [n_head, n])?,
            beta: part((width + n_head) * n, [n_head, n])?,
            state: part(rows, [of_state, 1])?,
        })
    }
}

thread_local! {
    static CONV: RefCell<conv::Scratch> = RefCell::default();
    static FORWARD: RefCell<forward::Scratch> = RefCell::default();
    static BACKWARD: RefCell<backward::Scratch> = RefCell::default();
}

/// Columns of the rows of floats of a sequence in heads of `d`.
fn cut(t: Source<'_>, d: usize, seq: usize) -> Heads<'_> {
    let ([width, n, n_seqs, _], nb) = (t.ne(), t.tensor().nb);
    assert!(seq < n_seqs && width.is_multiple_of(d), "{width} columns in heads of {d}");
    // SAFETY: rows of a sequence of a source, which has values and stays as it is.
    unsafe {
        let first = t.float_rows().add(seq * (nb[2] / 4));
        Heads::new(first, [d, width / d, n], [d, nb[1] / 4])
    }
}

/// For each token, how many of its document come before it; empty if all are of one document.
fn past<'a>(part: &Part<'a>, source: usize) -> &'a [i32] {
    part.optional(source).map(|past| past.all::<i32>()).unwrap_or_default()
}

/// `ne` floats of a node's result from `first` on, as heads.
///
/// # Safety
/// They are inside the result, and written as [`HeadsMut`] says.
unsafe fn written<'a>(part: &Part<'a>, first: usize, ne: [usize; 3]) -> HeadsMut<'a> {
    // SAFETY: the caller's promise.
    unsafe { HeadsMut::new((part.node().data as *mut f32).add(first), ne, [ne[0], ne[0] * ne[1]]) }
}

/// The channels of a unit of work, as many in each.
fn channels_at_once(channels: usize) -> usize {
    let (mut w, mut rest) = (channels, CHANNELS);
    while rest > 0 {
        (w, rest) = (rest, w % rest);
    }
    w
}

/// The operands of a node of the convolution, its sources from `first` on, for a sequence, in units of `w` channels.
fn conv_inputs<'a>(part: &Part<'a>, first: usize, w: usize, seq: usize) -> conv::Inputs<'a> {
    let [before, x] = [0, 1].map(|i| cut(part.source(first + i), w, seq));
    conv::Inputs { before, x, weights: part.source(first + 2).all(), past: past(part, first + 3) }
}

fn run_conv(part: &Part<'_>, units: &Units) {
    let [channels, n, s, _] = part.ne();
    let w = channels_at_once(channels);
    let n_units = channels / w;
    CONV.with_borrow_mut(|scratch| {
        units.work(n_units * s, part.nth(), |unit| {
            let (seq, unit) = (unit / n_units, unit % n_units);
            let inputs = conv_inputs(part, 0, w, seq);
            // SAFETY: the result is contiguous F32 [channels, n, s], and units of work write different channels.
            unsafe { scratch.run(&inputs, unit, &mut written(part, channels * n * seq, [w, n_units, n])) };
        });
    });
}

fn run_conv_back(part: &Part<'_>, units: &Units) {
    let w = channels_at_once(part.ne()[0]);
    let [d_out, d_after] = [0, 1].map(|i| cut(part.source(i), w, 0));
    let inputs = conv_inputs(part, 2, w, 0);
    let ([_, n_units, n], [.., n_before]) = (inputs.x.shape(), inputs.before.shape());
    CONV.with_borrow_mut(|scratch| {
        units.work(n_units, part.nth(), |unit| {
            // SAFETY: the result is contiguous F32 [channels, n_conv - 1 + n], and units of work write different channels.
            unsafe {
                let mut d_rows = written(part, 0, [w, n_units, n_before + n]);
                scratch.differentiate(&inputs, unit, d_out, d_after, &mut d_rows);
            }
        });
    });
}

/// The operands of a node of the rule, its sources from `first` on, for a sequence.
fn rule_inputs<'a>(part: &Part<'a>, first: usize, rule: &Rule, seq: usize) -> Inputs<'a> {
    let Rule { d, n_head_k, n_head_v, eps, .. } = *rule;
    let qkv = cut(part.source(first), d, seq);
    let [g, beta, state] = [1, 2, 3].map(|i| part.source(first + i).all::<f32>());
    let (rates, of_state) = (qkv.shape()[2] * n_head_v, d * d * n_head_v);
    let [g, beta] = [g, beta].map(|all| &all[rates * seq..][..rates]);
    let (state, past) = (&state[of_state * seq..][..of_state], past(part, first + 4));
    Inputs { qkv, g, beta, past, state, n_head_k, n_head_v, eps }
}

fn run_rule(part: &Part<'_>, rule: &Rule) {
    let [_, n, s, _] = part.source(0).ne();
    let &Rule { d, n_head_k, n_head_v, .. } = rule;
    let width = d * n_head_v;
    FORWARD.with_borrow_mut(|scratch| {
        rule.units.work(n_head_k * s, part.nth(), |unit| {
            let (seq, head) = (unit / n_head_k, unit % n_head_k);
            let inputs = rule_inputs(part, 0, rule, seq);
            // SAFETY: the result is contiguous F32 [d * n_head_v, (n + d) * s], of which the last d * s rows are the
            // states; units of work write different value heads.
            unsafe {
                let mut out = written(part, width * n * seq, [d, n_head_v, n]);
                let mut states = written(part, width * (n * s + d * seq), [d * d, n_head_v, 1]);
                scratch.run(&inputs, head, &mut out, &mut states);
            }
        });
    });
}

fn run_rule_back(part: &Part<'_>, rule: &Rule) {
    let Rule { d, n_head_k, n_head_v, .. } = *rule;
    let (inputs, d_out) = (rule_inputs(part, 2, rule, 0), heads_of(part.source(0)));
    let d_states = part.source(1).all::<f32>();
    let [_, n_heads, n] = inputs.qkv.shape();
    let width = d * n_heads;
    BACKWARD.with_borrow_mut(|scratch| {
        rule.units.work(n_head_k, part.nth(), |head| {
            // SAFETY: the result is contiguous F32, these four one after the other; units of work write different heads.
            unsafe {
                let mut to = backward::Outputs {
                    d_qkv: written(part, 0, [d, n_heads, n]),
                    d_g: written(part, width * n, [1, n_head_v, n]),
                    d_beta: written(part, (width + n_head_v) * n, [1, n_head_v, n]),
                    d_states: written(part, (width + 2 * n_head_v) * n, [d * d, n_head_v, 1]),
                };
                scratch.differentiate(&inputs, head, d_out, d_states, &mut to);
            }
        });
    });
}
