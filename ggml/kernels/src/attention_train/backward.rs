//! Gradients of a tile of keys from all the queries that see it.

use std::f32::consts::{LN_2, LOG2_E};
use std::ops::Range;

use super::forward::pack;
use super::products::{Factors, Products};
use super::view::{Heads, HeadsMut, KeyRanges};
use super::{Row, KEYS};
use crate::gemm::Matrix;

pub struct Inputs<'a> {
    /// Queries, `[d, n_head, T]`.
    pub q: Heads<'a>,
    /// Keys, `[d, n_head_kv, N]`, in the order of their positions.
    pub k: Heads<'a>,
    /// Values, `[d_v, n_head_kv, N]`.
    pub v: Heads<'a>,
    /// The range of keys that each query token sees; with landmarks the last is its own.
    pub key_ranges: KeyRanges<'a>,
    /// Outputs of the forward pass and the log-sum-exp of each row, `[d_v + 1, n_head, T]`.
    pub o_lse: Heads<'a>,
    /// Gradient of the outputs, `[d_v, n_head, T]`.
    pub d_out: Heads<'a>,
    /// Gradient of the keys, added to.
    pub d_k: HeadsMut<'a>,
    /// Gradient of the values, added to.
    pub d_v: HeadsMut<'a>,
    /// Factor on the products of queries and keys.
    pub scale: f32,
    /// The function that turns a row of scores into weights.
    pub row: &'a dyn Row,
    /// Query heads of a KV head.
    pub n_rep: usize,
    /// Rounding of the factors of products.
    pub factors: Factors,
    /// Tokens of a tile of queries.
    pub tokens: usize,
}

/// Buffers of a thread for one tile; rows are tokens by query heads of one KV head.
#[derive(Debug, Default)]
pub struct Scratch {
    products: Products,
    /// `[rows][d]`, in units that make scores exponents of two.
    q: Vec<f32>,
    /// `[rows][d_v]`.
    d_out: Vec<f32>,
    /// `[rows][KEYS]`: scores, then weights.
    weights: Vec<f32>,
    /// `[rows][KEYS]`: gradients of the weights, then of the scores.
    d_scores: Vec<f32>,
}

impl Scratch {
    /// Adds to the gradients of a tile ([`Row::tile`]) of keys and values, and to `d_q`, `[T][n_rep][d]`, what they come to.
    ///
    /// # Safety
    /// Nobody else reads or writes the rows of `d_k` and `d_v` of these keys of this head meanwhile, and they are no memory of
    /// the other operands.
    ///
    /// # Panics
    /// Where shapes do not agree, keys or the head are not there, or `d_q` is not as long as all queries of the head.
    pub unsafe fn differentiate(
        &mut self,
        inputs: &Inputs<'_>,
        head_kv: usize,
        keys: Range<usize>,
        d_q: &mut [f32],
    ) {
        let &Inputs { q, k, v, key_ranges, o_lse, d_out, scale, row, n_rep, tokens, factors, .. } = inputs;
        let (d_k, d_v) = (&inputs.d_k, &inputs.d_v);
        assert_fits([&q, &k, &v, &o_lse, &d_out], [d_k, d_v], n_rep);
        assert!(
            keys.start <= keys.end && keys.end <= k.n && head_kv < k.shape()[1],
            "{keys:?} of head {head_kv}"
        );
        assert!(d_q.len() == q.n * n_rep * q.d && tokens > 0, "{} floats", d_q.len());
        self.products.factors = factors;
        let heads = head_kv * n_rep..(head_kv + 1) * n_rep;
        let (d, dv, n_keys) = (q.d, v.d, k.n);
        for start in (0..q.n).step_by(tokens) {
            let tokens = start..(start + tokens).min(q.n);
            let Some((tokens, keys)) = key_ranges.window(&heads, tokens, &keys) else { continue };
            let n = tokens.len() * n_rep;
            pack(&q, heads.clone(), tokens.clone(), scale * LOG2_E, &mut self.q);
            pack(&d_out, heads.clone(), tokens.clone(), 1.0, &mut self.d_out);
            self.weights.resize(self.weights.len().max(n * KEYS), 0.0);
            self.d_scores.resize(self.d_scores.len().max(n * KEYS), 0.0);
            let queries = Matrix::rows(&self.q, n, d, d);
            let grads = Matrix::rows(&self.d_out, n, dv, dv);
            let (k, v) = (k.head(head_kv, keys.clone()), v.head(head_kv, keys.clone()));
            self.products.multiply_into(&mut self.weights, KEYS, false, k, queries.transposed(), 1.0);
            self.products.multiply_into(&mut self.d_scores, KEYS, false, v, grads.transposed(), 1.0);
            let rows = self.weights.chunks_exact_mut(KEYS).zip(self.d_scores.chunks_exact_mut(KEYS));
            let ids = tokens.clone().flat_map(|t| heads.clone().map(move |h| (h, t)));
            for (((h, t), (p, ds)), grad) in ids.zip(rows).zip(self.d_out.chunks_exact(dv)) {
                let (out, lse) = o_lse.row(h, t).split_at(dv);
                let dot: f32 = out.iter().zip(grad).map(|(o, g)| o * g).sum();
                let (seen, end) = (key_ranges.seen(h, t, &keys), key_ranges.seen(h, t, &(0..n_keys)).end);
                for x in [&mut *p, &mut *ds] {
                    x[..seen.start - keys.start].fill(0.0);
                    x[seen.end - keys.start..keys.len()].fill(0.0);
                }
                if !seen.is_empty() {
                    row.differentiate([p, ds], keys.start, seen, end, [lse[0] * LOG2_E, dot]);
                }
            }
            let weights = Matrix::rows(&self.weights, n, keys.len(), KEYS);
            let d_scores = Matrix::rows(&self.d_scores, n, keys.len(), KEYS);
            // SAFETY: keys.len() columns of `dv` or `d` floats from the first key on are rows of the gradients, which are as
            // the values and keys (`assert_fits`); they are the caller's, apart from each other and from all read here.
            unsafe {
                let (to_v, to_k) = (d_v.at(head_kv, keys.start), d_k.at(head_kv, keys.start));
                self.products.multiply(to_v, d_v.step(), true, grads.transposed(), weights, 1.0);
                // The queries carry scale / ln 2.
                self.products.multiply(to_k, d_k.step(), true, queries.transposed(), d_scores, LN_2);
            }
            let to_q = &mut d_q[tokens.start * n_rep * d..tokens.end * n_rep * d];
            self.products.multiply_into(to_q, d, true, k.transposed(), d_scores.transposed(), scale);
        }
    }
}

/// Panics unless operands of a backward pass, queries, keys, values, outputs and their gradient, agree with each other and with
/// the gradients of keys and values.
fn assert_fits([q, k, v, o_lse, d_out]: [&Heads<'_>; 5], [d_k, d_v]: [&HeadsMut<'_>; 2], n_rep: usize) {
    let ([d, n_head, n], [_, n_head_kv, n_keys], dv) = (q.shape(), k.shape(), v.d);
    let heads = n_head_kv.checked_mul(n_rep) == Some(n_head) && n_rep > 0;
    let read = k.d == d && v.shape() == [dv, n_head_kv, n_keys] && d_out.shape() == [dv, n_head, n];
    let lse = o_lse.shape() == [dv + 1, n_head, n];
    let written = d_k.shape() == k.shape() && d_v.shape() == v.shape();
    assert!(
        heads && read && lse && written,
        "{n_rep} heads for one, q {:?}, k {:?}, v {:?}, o_lse {:?}, d_out {:?}, d_k {:?}, d_v {:?}",
        q.shape(),
        k.shape(),
        v.shape(),
        o_lse.shape(),
        d_out.shape(),
        d_k.shape(),
        d_v.shape()
    );
}

#[cfg(test)]
mod tests {
    use super::super::Plain;
    use super::*;

    /// Gradients that are not as the keys and values are refused before a float of them is written.
    #[test]
    fn gradients_of_other_shapes_are_refused() {
        let (ones, pairs) = ([1.0f32; 32], [0, 3, 0, 3]);
        let steps = |ne: [usize; 3]| [ne[0], ne[0] * ne[1]];
        // SAFETY: more floats than any of these shapes has.
        let read = |ne: [usize; 3]| unsafe { Heads::new(ones.as_ptr(), ne, steps(ne)) };
        let run = |d_k: [usize; 3], d_v: [usize; 3], n_d_q: usize| {
            let (mut to_k, mut to_v, mut d_q) = ([0.0f32; 32], [0.0f32; 32], vec![0.0; n_d_q]);
            // SAFETY: likewise, and nothing else uses them.
            let write = |x: &mut [f32; 32], ne| unsafe { HeadsMut::new(x.as_mut_ptr(), ne, steps(ne)) };
            let inputs = Inputs {
                q: read([4, 1, 2]),
                k: read([4, 1, 3]),
                v: read([5, 1, 3]),
                key_ranges: KeyRanges::new(&pairs, 3),
                o_lse: read([6, 1, 2]),
                d_out: read([5, 1, 2]),
                d_k: write(&mut to_k, d_k),
                d_v: write(&mut to_v, d_v),
                scale: 1.0,
                row: &Plain { softcap: None },
                n_rep: 1,
                factors: Factors::Floats,
                tokens: 2,
            };
            let differentiate = || {
                // SAFETY: nobody else uses the gradients.
                unsafe { Scratch::default().differentiate(&inputs, 0, 0..3, &mut d_q) }
            };
            let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(differentiate)).is_ok();
            assert!(done || to_k == [0.0; 32] && to_v == [0.0; 32]);
            done
        };
        let (k, v) = ([4, 1, 3], [5, 1, 3]);
        assert!(run(k, v, 8));
        for k in [[3, 1, 3], [5, 1, 3], [4, 1, 2], [4, 1, 4], [4, 2, 3]] {
            assert!(!run(k, v, 8), "{k:?}");
        }
        for v in [[4, 1, 3], [6, 1, 3], [5, 1, 2], [5, 2, 3]] {
            assert!(!run(k, v, 8), "{v:?}");
        }
        assert!(!run(k, v, 7) && !run(k, v, 9));
    }
}
