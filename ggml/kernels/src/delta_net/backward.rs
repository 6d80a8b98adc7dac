//! Gradients of the gated delta rule.
//!
//! With D the gradient of the state after a token, S' the decayed state, `r = v - S' k`, and o the gradient of the
//! output over `sqrt(d)`: `D += o q^T`, `d_beta = D k . r`, `d_r = beta D k`, `d_v = d_r`,
//! `d_k = beta D^T r - S'^T d_r` and `d_q = S^T o`. The gradient of S' is `D - d_r k^T`; its product with S' is that of
//! g, and `exp(g)` of it the D of the token before.

use super::{add, add_dot, decay, total, Inputs, Unit, CHUNK, ROWS};
use crate::attention_train::{Heads, HeadsMut};
use crate::simd::{fma, with_registers, FloatLanes, Registers};

pub struct Outputs<'a> {
    /// Gradients of queries, keys and values, `[d, 2 n_head_k + n_head_v, n]`.
    pub d_qkv: HeadsMut<'a>,
    /// Gradient of g, `[1, n_head_v, n]`.
    pub d_g: HeadsMut<'a>,
    /// Gradient of beta, `[1, n_head_v, n]`.
    pub d_beta: HeadsMut<'a>,
    /// Gradient of the states before the first token, `[d * d, n_head_v, 1]`.
    pub d_states: HeadsMut<'a>,
}

#[derive(Debug, Default)]
pub struct Scratch {
    unit: Unit,
    left: Vec<f32>,
    /// `[n][d]`, of queries and keys of length 1.
    d_q: Vec<f32>,
    d_k: Vec<f32>,
    /// For each token, of g and of beta.
    d_rates: Vec<[f32; 2]>,
    rows: Rows,
}

#[derive(Debug, Default)]
struct Rows {
    /// Before each chunk of tokens, `[chunk][row][d]`.
    borders: Vec<f32>,
    now: Vec<f32>,
    /// Within a chunk, after the decay of each token: `[token][row][d]`.
    decayed: Vec<f32>,
    /// Within a chunk, what each token's values differ by from what the state has, `[token][row]`.
    errors: Vec<f32>,
}

impl Scratch {
    /// Computes the gradients of a key head, of its query head and of the value heads that it belongs to, from those
    /// of the outputs, `[d, n_head_v, n]`, and of the states after the last token, `[n_head_v][d][d]`.
    ///
    /// # Safety
    /// Nobody else reads or writes these heads of the outputs meanwhile, and they are no memory of each other or of the operands.
    pub unsafe fn differentiate(
        &mut self,
        x: &Inputs<'_>,
        head_k: usize,
        d_out: Heads<'_>,
        d_states: &[f32],
        to: &mut Outputs<'_>,
    ) {
        // SAFETY: the caller's promise.
        with_registers!(Registers::best(), s => unsafe {
            self.differentiate_with(s, x, head_k, d_out, d_states, to)
        });
    }

    /// # Safety
    /// The promise of [`Scratch::differentiate`].
    unsafe fn differentiate_with<S: FloatLanes>(
        &mut self,
        s: S,
        x: &Inputs<'_>,
        head_k: usize,
        d_out: Heads<'_>,
        d_states: &[f32],
        to: &mut Outputs<'_>,
    ) {
        x.check();
        let ([d, _, n], scale) = (x.qkv.shape(), x.scale());
        let Scratch { unit, left, d_q, d_k, d_rates, rows } = self;
        unit.load(s, x, head_k);
        for grad in [&mut *d_q, &mut *d_k] {
            grad.clear();
            grad.resize(n * d, 0.0);
        }
        for h in (head_k..x.n_head_v).step_by(x.n_head_k) {
            left.clear();
            left.extend((0..n).map(|t| x.left(h, t)));
            d_rates.clear();
            d_rates.resize(n, [0.0; 2]);
            // SAFETY: the head is the caller's, apart from the other outputs and the operands.
            let d_state = unsafe { to.d_states.row(h, 0) };
            d_state.copy_from_slice(&d_states[h * d * d..(h + 1) * d * d]);
            let tiles = d_state.chunks_mut(ROWS * d).zip(x.state_of(h).chunks(ROWS * d));
            for (tile, (d_rows, state)) in tiles.enumerate() {
                let (first, n_rows) = (tile * ROWS, d_rows.len() / d);
                rows.keep_borders(s, x, unit, left, (h, first), state);
                for chunk in (0..n.div_ceil(CHUNK)).rev() {
                    let start = chunk * CHUNK;
                    let tokens = start..(start + CHUNK).min(n);
                    rows.keep(s, x, unit, left, (h, first), tokens.clone());
                    for t in tokens.rev() {
                        let ((q, k), beta) = (unit.at(t), x.beta(h, t));
                        let at = (t - start) * n_rows;
                        let errors = &rows.errors[at..at + n_rows];
                        let decayed = rows.decayed[at * d..(at + n_rows) * d].chunks_exact(d);
                        let d_out = &d_out.row(h, t)[first..first + n_rows];
                        // SAFETY: as above.
                        let d_v = unsafe { to.d_qkv.row(2 * x.n_head_k + h, t) };
                        let d_v = d_v[first..first + n_rows].iter_mut();
                        let (d_q, d_k) = (&mut d_q[t * d..(t + 1) * d], &mut d_k[t * d..(t + 1) * d]);
                        let [mut d_g, mut d_beta, mut learned] = [0.0; 3];
                        let all = d_rows.chunks_exact_mut(d).zip(decayed).zip(errors).zip(d_out).zip(d_v);
                        for ((((d_row, decayed), error), d_out), d_v) in all {
                            let (o, delta) = (d_out * scale, beta * error);
                            let d_delta = add_dot(s, d_row, o, q, k);
                            d_beta = fma(d_delta, *error, d_beta);
                            learned = fma(o, delta, learned);
                            *d_v = beta * d_delta;
                            let of = OfRow { left: left[t], delta, d_error: *d_v, o };
                            d_g += of.back(s, d_row, decayed, k, d_q, d_k);
                        }
                        // What a query reads is the decayed state and what this token added to it.
                        add(s, d_q, learned, k);
                        d_rates[t][0] += d_g;
                        d_rates[t][1] += d_beta;
                    }
                }
            }
            for (t, [d_g, d_beta]) in d_rates.iter().enumerate() {
                // SAFETY: as above.
                unsafe { (to.d_g.row(h, t)[0], to.d_beta.row(h, t)[0]) = (*d_g, *d_beta) };
            }
        }
        for t in 0..n {
            let ((q, k), [q_factor, k_factor], row) = (unit.at(t), unit.factors[t], t * d..(t + 1) * d);
            let parts =
                [(head_k, q, &d_q[row.clone()], q_factor), (x.n_head_k + head_k, k, &d_k[row], k_factor)];
            for (head, y, d_y, factor) in parts {
                // SAFETY: as above.
                let out = unsafe { to.d_qkv.row(head, t) };
                let along = super::dot(s, y, d_y);
                out.iter_mut().zip(d_y).zip(y).for_each(|((o, d), y)| *o = factor * (d - along * y));
            }
        }
    }
}

/// The numbers of a row of the state at a token.
struct OfRow {
    left: f32,
    /// The change that was learned.
    delta: f32,
    d_error: f32,
    /// Gradient of the row's output, scaled.
    o: f32,
}

impl OfRow {
    /// Moves the gradient of the row to before the token; adds to those of query and key, and gives that of g.
    #[inline]
    fn back<S: FloatLanes>(
        &self,
        s: S,
        d_row: &mut [f32],
        decayed: &[f32],
        k: &[f32],
        d_q: &mut [f32],
        d_k: &mut [f32],
    ) -> f32 {
        s.run(|| {
            let OfRow { left, delta, d_error, o } = *self;
            let whole = d_row.len() / S::N * S::N;
            let (d_rows, d_rest) = d_row.split_at_mut(whole);
            let ((states, state_rest), (keys, k_rest)) = (decayed.split_at(whole), k.split_at(whole));
            let ((d_qs, dq_rest), (d_ks, dk_rest)) = (d_q.split_at_mut(whole), d_k.split_at_mut(whole));
            let [keep, learn, forget, read] = [left, delta, -d_error, o].map(|x| s.splat(x));
            let (mut last, mut sums) = (0.0, s.none());
            let read_only = states.chunks_exact(S::N).zip(keys.chunks_exact(S::N));
            let written = d_qs.chunks_exact_mut(S::N).zip(d_ks.chunks_exact_mut(S::N));
            for ((d, (state, k)), (d_q, d_k)) in d_rows.chunks_exact_mut(S::N).zip(read_only).zip(written) {
                let (behind, state) = (s.read(d), s.read(state));
                s.write(s.mul_add(learn, behind, s.mul_add(forget, state, s.read(d_k))), d_k);
                s.write(s.mul_add(read, state, s.read(d_q)), d_q);
                let below = s.mul_add(forget, s.read(k), behind);
                sums = s.mul_add(below, state, sums);
                s.write(s.times(keep, below), d);
            }
            let rest = d_rest.iter_mut().zip(state_rest).zip(k_rest).zip(dq_rest).zip(dk_rest);
            for ((((d, state), k), d_q), d_k) in rest {
                *d_k = fma(delta, *d, fma(-d_error, *state, *d_k));
                *d_q = fma(o, *state, *d_q);
                let below = fma(-d_error, *k, *d);
                last = fma(below, *state, last);
                *d = left * below;
            }
            if left == 0.0 {
                // What was there before does not count, whatever it was.
                d_row.fill(0.0);
            }
            total(s, sums, last)
        })
    }
}

impl Rows {
    /// Runs through the tokens, from `state`, keeping what the rows are before each chunk. `(h, first)`: the value
    /// head, and the first of the rows.
    fn keep_borders<S: FloatLanes>(
        &mut self,
        s: S,
        x: &Inputs<'_>,
        unit: &Unit,
        left: &[f32],
        (h, first): (usize, usize),
        state: &[f32],
    ) {
        let Rows { borders, now, .. } = self;
        borders.clear();
        borders.extend_from_slice(state);
        now.clear();
        now.extend_from_slice(state);
        for (t, &left) in left.iter().enumerate() {
            if t > 0 && t.is_multiple_of(CHUNK) {
                borders.extend_from_slice(now);
            }
            // Nobody asks for what is after the last border.
            if t >= (x.qkv.shape()[2] - 1) / CHUNK * CHUNK {
                break;
            }
            let ((_, k), beta) = (unit.at(t), x.beta(h, t));
            for (row, v) in now.chunks_exact_mut(unit.d).zip(&x.value(h, t)[first..]) {
                let delta = (v - decay(s, row, left, k)) * beta;
                add(s, row, delta, k);
            }
        }
    }

    /// Runs through a chunk again, and keeps all that its backward pass needs.
    fn keep<S: FloatLanes>(
        &mut self,
        s: S,
        x: &Inputs<'_>,
        unit: &Unit,
        left: &[f32],
        (h, first): (usize, usize),
        tokens: std::ops::Range<usize>,
    ) {
        let Rows { borders, now, decayed, errors } = self;
        let len = now.len();
        let border = tokens.start / CHUNK * len;
        now.copy_from_slice(&borders[border..border + len]);
        decayed.clear();
        errors.clear();
        for t in tokens {
            let ((_, k), beta) = (unit.at(t), x.beta(h, t));
            for (row, v) in now.chunks_exact_mut(unit.d).zip(&x.value(h, t)[first..]) {
                let error = v - decay(s, row, left[t], k);
                decayed.extend_from_slice(row);
                errors.push(error);
                add(s, row, error * beta, k);
            }
        }
    }
}
