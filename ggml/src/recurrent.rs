//! Ops of recurrent layers: a short convolution over time, and the gated delta rule.

use crate::graph::Builder;
use crate::ops::{call, check, contiguous, packed_rows, possible};
use crate::tensor::Tensor;
use crate::{sys, DType, Result};

/// Arguments of [`Builder::gated_delta_net`], F32, of `n` tokens of each of `s` sequences.
#[derive(Debug, Clone, Copy)]
pub struct DeltaRule<'c> {
    /// Queries `[d, n_head_k, n, s]`; query head `h % n_head_k` belongs to value head `h`.
    pub q: Tensor<'c>,
    /// Keys, of the same shape.
    pub k: Tensor<'c>,
    /// Values `[d, n_head_v, n, s]`.
    pub v: Tensor<'c>,
    /// Logarithm of what is left of the state, `[1, n_head_v, n, s]`.
    pub g: Tensor<'c>,
    /// How much of the difference is learned, of the same shape.
    pub beta: Tensor<'c>,
    /// The states before the first token, `[d, d, n_head_v, s]`.
    pub state: Tensor<'c>,
}

impl<'c> Builder<'c> {
    /// Each channel convolved over time with its own weights: x `[n_conv - 1 + n, channels, s]`, time first, and
    /// weights `[n_conv, channels]`, both F32, to `[channels, n, s]`, `out[c,t] = sum over i of w[i,c] x[t+i,c]`.
    pub fn ssm_conv(&self, x: Tensor<'c>, w: Tensor<'c>) -> Result<Tensor<'c>> {
        let (n, k) = (x.ne(), w.ne());
        let shapes = n[3] == 1 && k[2] * k[3] == 1 && n[1] == k[1] && n[0] >= k[0];
        let plain = |t: Tensor<'_>| t.dtype() == DType::F32 && packed_rows(t) && contiguous(t);
        check(
            shapes && plain(x) && plain(w),
            "ssm_conv",
            "contiguous f32 [n_conv-1+n,channels,s] and [n_conv,channels]",
            &[x, w],
        )?;
        possible("ssm_conv", DType::F32, [n[1], n[0] - k[0] + 1, n[2], 1])?;
        call!(self, "ssm_conv", ggml_ssm_conv(x, w))
    }

    /// The gated delta rule, token by token: the state of each head becomes `S exp(g) + beta k (v - k S exp(g))`, and
    /// its output is `q S / sqrt(d)`. Returns the outputs `[d, n_head_v, n, s]` and the states after the last token,
    /// `[d * d * n_head_v, s]`.
    pub fn gated_delta_net(&self, rule: DeltaRule<'c>) -> Result<[Tensor<'c>; 2]> {
        let DeltaRule { q, k, v, g, beta, state } = rule;
        let [d, n_head, n, s] = v.ne();
        let heads = q.ne()[1];
        let keys = q.ne() == [d, heads, n, s] && k.ne() == q.ne() && n_head.is_multiple_of(heads);
        let gates = [g, beta].iter().all(|t| t.ne() == [1, n_head, n, s]);
        let all = [q, k, v, g, beta, state];
        let types = all.iter().all(|&t| t.dtype() == DType::F32)
            && [q, k, v].iter().all(|&t| packed_rows(t))
            && [g, beta, state].iter().all(|&t| contiguous(t));
        check(
            keys && gates && types && state.ne() == [d, d, n_head, s],
            "gated_delta_net",
            "f32 q, k [d,Hk,n,s], v [d,H,n,s], g, beta [1,H,n,s] and states [d,d,H,s], Hk a divisor of H",
            &all,
        )?;
        let (width, rows) = (d.saturating_mul(n_head), n.saturating_mul(s));
        possible("gated_delta_net", DType::F32, [width, rows.saturating_add(d.saturating_mul(s)), 1, 1])?;
        let raw = call!(self, "gated_delta_net", ggml_gated_delta_net(q, k, v, g, beta, state; 1))?;
        // The states lie after the outputs.
        let row = 4 * width;
        let out = self.view(raw, [d, n_head, n, s], [4 * d, row, row * n], 0)?;
        let state = self.view(raw, [d * width, s, 1, 1], [row * d, row * d * s, row * d * s], row * rows)?;
        Ok([out, state])
    }
}
