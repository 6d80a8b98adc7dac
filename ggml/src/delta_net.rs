//! Gated delta-nets for training, ops of our own for the CPU: the convolution over the last tokens with SiLU behind
//! it, and the gated delta rule, forward and backward, over the tokens of one sequence.
//!
//! A sequence may come in parts: the rows that the convolution read last, and the states behind the last token, go
//! from one to the next, and their gradients back. Within it a document sees nothing of the one before. Work is
//! divided by channels, and by heads of keys, so no bit depends on the number of threads.

use std::cell::RefCell;
use std::ffi::c_void;

use kernels::attention_train::{Heads, HeadsMut};
use kernels::delta_net::{backward, conv, forward, Inputs};

use crate::graph::Builder;
use crate::ops::{check, contiguous, f32_rows, possible};
use crate::tensor::Tensor;
use crate::units::Units;
use crate::{sys, DType, Result};

/// Most channels of a unit of work of the convolution.
const CHANNELS: usize = 256;

/// Operands of [`Builder::conv_silu`].
#[derive(Debug, Clone, Copy)]
pub struct ConvSilu<'c> {
    /// Rows before the first token, F32 `[channels, n_conv - 1]`.
    pub before: Tensor<'c>,
    /// A row for each token, F32 `[channels, n]`.
    pub x: Tensor<'c>,
    /// F32 `[n_conv, channels]`, the weight of the token itself last.
    pub weights: Tensor<'c>,
    /// For each token, how many of its document come before it, I32 `[n]`.
    pub past: Tensor<'c>,
}

/// Operands of [`Builder::delta_rule`].
#[derive(Debug, Clone, Copy)]
pub struct DeltaRule<'c> {
    /// Heads of queries and of keys, which are made as long as 1, then of values: F32
    /// `[d * (2 n_head_k + n_head_v), n]`.
    pub qkv: Tensor<'c>,
    /// Logarithm of what is left of the state, F32 `[n_head_v, n]`.
    pub g: Tensor<'c>,
    /// How much of the difference is learned, F32 `[n_head_v, n]`.
    pub beta: Tensor<'c>,
    /// For each token, how many of its document come before it, I32 `[n]`; the state begins at 0 where none do.
    pub past: Tensor<'c>,
    /// The states before the first token, F32 `[d, d, n_head_v]`.
    pub state: Tensor<'c>,
    /// Heads of queries, and of keys.
    pub n_head_k: usize,
    /// Added to the square of the length of queries and keys.
    pub eps: f32,
}

/// Gradients of the operands of [`Builder::delta_rule`], of their shapes.
#[derive(Debug, Clone, Copy)]
pub struct DeltaGrads<'c> {
    /// Of queries, keys and values.
    pub qkv: Tensor<'c>,
    /// Of the logarithm of what is left.
    pub g: Tensor<'c>,
    /// Of how much is learned.
    pub beta: Tensor<'c>,
    /// Of the states before the first token.
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
fn rows(t: Tensor<'_>, ne: [usize; 2]) -> bool {
    f32_rows(t) && t.ne() == [ne[0], ne[1], 1, 1] && t.nb()[1].is_multiple_of(4)
}

fn plain(t: Tensor<'_>, dtype: DType, ne: [usize; 4]) -> bool {
    t.dtype() == dtype && t.ne() == ne && contiguous(t)
}

/// Channels, weights of each, and tokens.
fn conv_shape(op: &'static str, a: ConvSilu<'_>) -> Result<[usize; 3]> {
    let ConvSilu { before, x, weights, past } = a;
    let ([channels, n, ..], n_conv) = (x.ne(), weights.ne()[0]);
    let ok = n_conv > 1
        && rows(before, [channels, n_conv - 1])
        && rows(x, [channels, n])
        && plain(weights, DType::F32, [n_conv, channels, 1, 1])
        && plain(past, DType::I32, [n, 1, 1, 1]);
    let expected =
        "f32 rows before [channels,n_conv-1] and x [channels,n], weights [n_conv,channels], i32 [n]";
    check(ok, op, expected, &[before, x, weights, past])?;
    Ok([channels, n_conv, n])
}

impl<'c> DeltaRule<'c> {
    fn args(&self) -> [Tensor<'c>; 5] {
        [self.qkv, self.g, self.beta, self.past, self.state]
    }

    /// The numbers of its node, and its tokens.
    fn check(&self, op: &'static str) -> Result<(Rule, usize)> {
        let DeltaRule { qkv, g, beta, past, state, n_head_k, eps } = *self;
        let ([d, _, n_head_v, _], [width, n, ..]) = (state.ne(), qkv.ne());
        let n_heads = n_head_k.saturating_mul(2).saturating_add(n_head_v);
        let ok = n_head_k > 0
            && n_head_v.is_multiple_of(n_head_k)
            && d.checked_mul(n_heads) == Some(width)
            && rows(qkv, [width, n])
            && [g, beta].iter().all(|&t| plain(t, DType::F32, [n_head_v, n, 1, 1]))
            && plain(past, DType::I32, [n, 1, 1, 1])
            && plain(state, DType::F32, [d, d, n_head_v, 1])
            && eps >= 0.0;
        let expected = "f32 rows [d*(2Hk+H),n], g, beta [H,n], i32 [n], state [d,d,H], Hk a divisor of H";
        check(ok, op, expected, &self.args())?;
        Ok((Rule { d, n_head_k, n_head_v, eps, units: Units::default() }, n))
    }
}

impl<'c> Builder<'c> {
    /// Each channel convolved over the token and those before it in its document, `sum over i of w[i,c] x[t+i,c]` of
    /// the rows before and of the tokens, and SiLU of that: F32 `[channels, n]`. For the CPU; elsewhere the graph is
    /// refused.
    pub fn conv_silu(&self, a: ConvSilu<'c>) -> Result<Tensor<'c>> {
        let (op, ConvSilu { before, x, weights, past }) = ("conv_silu", a);
        let [channels, _, n] = conv_shape(op, a)?;
        possible(op, DType::F32, [channels, n, 1, 1])?;
        self.custom(DType::F32, [channels, n, 1, 1], &[before, x, weights, past], run_conv, Units::default())
    }

    /// The gradients of `before` and `x` from that of [`Builder::conv_silu`]'s result, and from what those behind the
    /// last token find for the last `n_conv - 1` rows, F32 `[channels, n_conv - 1]`.
    pub fn conv_silu_back(
        &self,
        a: ConvSilu<'c>,
        d_out: Tensor<'c>,
        d_after: Tensor<'c>,
    ) -> Result<[Tensor<'c>; 2]> {
        let (op, ConvSilu { before, x, weights, past }) = ("conv_silu_back", a);
        let [channels, n_conv, n] = conv_shape(op, a)?;
        let ok = rows(d_out, [channels, n]) && rows(d_after, [channels, n_conv - 1]);
        check(ok, op, "f32 rows of the result's shape and [channels,n_conv-1]", &[d_out, d_after])?;
        let ne = [channels, (n_conv - 1).saturating_add(n), 1, 1];
        possible(op, DType::F32, ne)?;
        let args = [before, x, weights, past, d_out, d_after];
        let all = self.custom(DType::F32, ne, &args, run_conv_back, Units::default())?;
        let part = |first: usize, n: usize| {
            let row = 4 * channels;
            self.view(all, [channels, n, 1, 1], [row, row * n, row * n], row * first)
        };
        Ok([part(0, n_conv - 1)?, part(n_conv - 1, n)?])
    }

    /// The gated delta rule, token by token, as [`Builder::gated_delta_net`] of one sequence; queries and keys are
    /// divided by their length. Returns the outputs, F32 `[d, n_head_v, n]`, and the states behind the last token,
    /// `[d * d * n_head_v]`. For the CPU; elsewhere the graph is refused.
    pub fn delta_rule(&self, rule: DeltaRule<'c>) -> Result<[Tensor<'c>; 2]> {
        let op = "delta_rule";
        let (how, n) = rule.check(op)?;
        let (d, n_head) = (how.d, how.n_head_v);
        let width = d.saturating_mul(n_head);
        let ne = [width, n.saturating_add(d), 1, 1];
        possible(op, DType::F32, ne)?;
        let all = self.custom(DType::F32, ne, &rule.args(), run_rule, how)?;
        let row = 4 * width;
        let out = self.view(all, [d, n_head, n, 1], [4 * d, row, row * n], 0)?;
        let state = self.view(all, [width * d, 1, 1, 1], [row * d; 3], row * n)?;
        Ok([out, state])
    }

    /// The gradients of the operands of [`Builder::delta_rule`] from those of its outputs, F32 `[d, n_head_v, n]`, and
    /// of the states behind the last token, `[d * d * n_head_v]`, contiguous. For the CPU; elsewhere the graph is
    /// refused.
    pub fn delta_rule_back(
        &self,
        rule: DeltaRule<'c>,
        d_out: Tensor<'c>,
        d_state: Tensor<'c>,
    ) -> Result<DeltaGrads<'c>> {
        let op = "delta_rule_back";
        let (how, n) = rule.check(op)?;
        let (d, n_head, [width, ..]) = (how.d, how.n_head_v, rule.qkv.ne());
        let of_state = d.saturating_mul(d).saturating_mul(n_head);
        let ok =
            plain(d_out, DType::F32, [d, n_head, n, 1]) && plain(d_state, DType::F32, [of_state, 1, 1, 1]);
        check(ok, op, "contiguous f32 [d,H,n] and [d*d*H]", &[d_out, d_state])?;
        let rows = width.saturating_add(2 * n_head).saturating_mul(n);
        let ne = [rows.saturating_add(of_state), 1, 1, 1];
        possible(op, DType::F32, ne)?;
        let args: Vec<Tensor<'c>> = rule.args().into_iter().chain([d_out, d_state]).collect();
        let all = self.custom(DType::F32, ne, &args, run_rule_back, how)?;
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

/// Columns of rows in heads.
///
/// # Safety
/// A computed source of a running node, F32 rows of whole heads of `d` at a distance of whole floats, that stays as it
/// is for `'a`.
unsafe fn cut(t: &sys::ggml_tensor, d: usize) -> Heads<'_> {
    let [width, n] = [t.ne[0] as usize, t.ne[1] as usize];
    // SAFETY: the caller's promise.
    unsafe { Heads::new(t.data as *const f32, [d, width / d, n], [d, t.nb[1] / 4]) }
}

/// # Safety
/// A computed source of a running node, contiguous, of numbers of type `T`, that stays as it is for `'a`.
unsafe fn all<T>(t: &sys::ggml_tensor) -> &[T] {
    let n = t.ne.iter().product::<i64>() as usize;
    // SAFETY: the caller's promise.
    unsafe { std::slice::from_raw_parts(t.data as *const T, n) }
}

/// `ne` floats of a node's result from `first` on, as heads.
///
/// # Safety
/// They are inside the result, and written as [`HeadsMut`] says.
unsafe fn written(dst: &sys::ggml_tensor, first: usize, ne: [usize; 3]) -> HeadsMut<'_> {
    // SAFETY: the caller's promise.
    unsafe { HeadsMut::new((dst.data as *mut f32).add(first), ne, [ne[0], ne[0] * ne[1]]) }
}

/// The operands of a node of the convolution, and the channels of a unit of work: as many in each.
///
/// # Safety
/// A running node made in `conv_silu` or `conv_silu_back`.
unsafe fn conv_inputs(dst: &sys::ggml_tensor) -> (conv::Inputs<'_>, usize) {
    let (mut w, mut rest) = (dst.ne[0] as usize, CHANNELS);
    while rest > 0 {
        (w, rest) = (rest, w % rest);
    }
    // SAFETY: its sources are the tensors checked there, computed before; they are alive and stay as they are.
    unsafe {
        let [before, x] = [0, 1].map(|i| cut(&*dst.src[i], w));
        (conv::Inputs { before, x, weights: all(&*dst.src[2]), past: all(&*dst.src[3]) }, w)
    }
}

unsafe extern "C" fn run_conv(dst: *mut sys::ggml_tensor, _: i32, nth: i32, data: *mut c_void) {
    // SAFETY: ggml passes the node made in `conv_silu`, whose user data is the counter kept there.
    let (dst, units) = unsafe { (&*dst, &*(data as *const Units)) };
    // SAFETY: that node.
    let (inputs, w) = unsafe { conv_inputs(dst) };
    let [_, n_units, n] = inputs.x.shape();
    CONV.with_borrow_mut(|scratch| {
        units.work(n_units, nth, |unit| {
            // SAFETY: dst is contiguous F32 [channels, n], and units of work write channels of their own.
            unsafe { scratch.run(&inputs, unit, &mut written(dst, 0, [w, n_units, n])) };
        });
    });
}

unsafe extern "C" fn run_conv_back(dst: *mut sys::ggml_tensor, _: i32, nth: i32, data: *mut c_void) {
    // SAFETY: ggml passes the node made in `conv_silu_back`, whose user data is the counter kept there.
    let (dst, units) = unsafe { (&*dst, &*(data as *const Units)) };
    // SAFETY: that node; its last sources are F32 rows of as many channels, too.
    let ((inputs, w), [d_out, d_after]) = unsafe {
        let (inputs, w) = conv_inputs(dst);
        ((inputs, w), [4, 5].map(|i| cut(&*dst.src[i], w)))
    };
    let ([_, n_units, n], [.., n_before]) = (inputs.x.shape(), inputs.before.shape());
    CONV.with_borrow_mut(|scratch| {
        units.work(n_units, nth, |unit| {
            // SAFETY: dst is contiguous F32 [channels, n_conv - 1 + n], and units of work write channels of their own.
            unsafe {
                let mut d_rows = written(dst, 0, [w, n_units, n_before + n]);
                scratch.differentiate(&inputs, unit, d_out, d_after, &mut d_rows);
            }
        });
    });
}

/// The operands of a node of the rule.
///
/// # Safety
/// A running node made in `delta_rule` or `delta_rule_back`, with these numbers.
unsafe fn rule_inputs<'a>(dst: &'a sys::ggml_tensor, rule: &Rule) -> Inputs<'a> {
    let Rule { d, n_head_k, n_head_v, eps, .. } = *rule;
    // SAFETY: its sources are the tensors checked there, computed before; they are alive and stay as they are.
    unsafe {
        let [g, beta, state] = [1, 2, 4].map(|i| all(&*dst.src[i]));
        let (qkv, past) = (cut(&*dst.src[0], d), all(&*dst.src[3]));
        Inputs { qkv, g, beta, past, state, n_head_k, n_head_v, eps }
    }
}

unsafe extern "C" fn run_rule(dst: *mut sys::ggml_tensor, _: i32, nth: i32, data: *mut c_void) {
    // SAFETY: ggml passes the node made in `delta_rule`, whose user data is the numbers kept there.
    let (dst, rule) = unsafe { (&*dst, &*(data as *const Rule)) };
    // SAFETY: that node.
    let inputs = unsafe { rule_inputs(dst, rule) };
    let (&Rule { d, n_head_v, .. }, n) = (rule, inputs.past.len());
    FORWARD.with_borrow_mut(|scratch| {
        rule.units.work(rule.n_head_k, nth, |head| {
            // SAFETY: dst is contiguous F32 [d * n_head_v, n + d], of which the last d rows are the states; units of
            // work write value heads of their own.
            unsafe {
                let mut out = written(dst, 0, [d, n_head_v, n]);
                let mut states = written(dst, d * n_head_v * n, [d * d, n_head_v, 1]);
                scratch.run(&inputs, head, &mut out, &mut states);
            }
        });
    });
}

unsafe extern "C" fn run_rule_back(dst: *mut sys::ggml_tensor, _: i32, nth: i32, data: *mut c_void) {
    // SAFETY: ggml passes the node made in `delta_rule_back`, whose user data is the numbers kept there.
    let (dst, rule) = unsafe { (&*dst, &*(data as *const Rule)) };
    let Rule { d, n_head_k, n_head_v, .. } = *rule;
    // SAFETY: that node; its last sources are contiguous F32 [d, n_head_v, n] and [d * d * n_head_v].
    let (inputs, d_out, d_states) = unsafe {
        let d_out = &*dst.src[5];
        let n = d_out.ne[2] as usize;
        let d_out = Heads::new(d_out.data as *const f32, [d, n_head_v, n], [d, d * n_head_v]);
        (rule_inputs(dst, rule), d_out, all(&*dst.src[6]))
    };
    let [_, n_heads, n] = inputs.qkv.shape();
    let width = d * n_heads;
    BACKWARD.with_borrow_mut(|scratch| {
        rule.units.work(n_head_k, nth, |head| {
            // SAFETY: dst is contiguous F32, these four one after the other; units of work write heads of their own.
            unsafe {
                let mut to = backward::Outputs {
                    d_qkv: written(dst, 0, [d, n_heads, n]),
                    d_g: written(dst, width * n, [1, n_head_v, n]),
                    d_beta: written(dst, (width + n_head_v) * n, [1, n_head_v, n]),
                    d_states: written(dst, (width + 2 * n_head_v) * n, [d * d, n_head_v, 1]),
                };
                scratch.differentiate(&inputs, head, d_out, d_states, &mut to);
            }
        });
    });
}
