//! Mixtures of experts: the choice of experts, products with their weights, and the gradient of a router.

use std::ops::Range;

use crate::gemm::{multiply_into, Matrix};

/// Rows of a weight that are floats at once.
const WEIGHT_ROWS: usize = 64;
/// Columns of a weight that a unit of the transposed product takes: whole blocks of every type.
const COLUMNS: usize = 256;
/// Rows of an input gathered at once.
const INPUT_ROWS: usize = 256;
/// Least sum that chosen weights are divided by: llama.cpp's, the smallest normal number of half precision.
pub const LEAST_SUM: f32 = 6.103_515_6e-5;

/// Fills `ids` with the indices of the largest scores, largest first; of equal ones the first. NaN counts as the
/// least.
///
/// # Panics
/// For more indices than scores.
pub fn top_k(scores: &[f32], order: &mut Vec<i32>, ids: &mut [i32]) {
    let score = |i: i32| {
        let s = scores[i as usize];
        if s.is_nan() {
            f32::NEG_INFINITY
        } else {
            s
        }
    };
    order.clear();
    order.extend(0..scores.len() as i32);
    // Ids of experts differ, so this is a total order.
    order.sort_unstable_by(|&a, &b| score(b).total_cmp(&score(a)).then(a.cmp(&b)));
    ids.copy_from_slice(&order[..ids.len()]);
}

/// The rows of a batch that each expert computes. A row is one of the places of a token.
#[derive(Debug, Default)]
pub struct Groups {
    ends: Vec<usize>,
    rows: Vec<usize>,
}

impl Groups {
    /// Groups rows by the expert of each.
    ///
    /// # Panics
    /// For an expert that is not below `n_expert`.
    pub fn of(experts: &[i32], n_expert: usize) -> Groups {
        let mut ends = vec![0; n_expert + 1];
        experts.iter().for_each(|&e| ends[e as usize + 1] += 1);
        (0..n_expert).for_each(|e| ends[e + 1] += ends[e]);
        let mut rows = vec![0; experts.len()];
        for (row, &e) in experts.iter().enumerate() {
            rows[ends[e as usize]] = row;
            ends[e as usize] += 1;
        }
        ends.pop();
        Groups { ends, rows }
    }

    /// The rows of an expert, ascending.
    pub fn rows(&self, expert: usize) -> &[usize] {
        let start = expert.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.rows[start..self.ends[expert]]
    }
}

/// Shapes of a product with experts' weights.
#[derive(Debug, Clone, Copy)]
pub struct Shape {
    /// Columns of a weight.
    pub n_in: usize,
    /// Rows of a weight.
    pub n_out: usize,
    /// Rows of the batch that share a row of the input.
    pub shared: usize,
}

impl Shape {
    /// Units of work of one expert in [`Scratch::product`]: ranges of rows of its weight.
    pub fn units(&self) -> usize {
        self.n_out.div_ceil(WEIGHT_ROWS)
    }

    /// Number of units of [`Scratch::product_t`], which are ranges of columns.
    pub fn units_t(&self) -> usize {
        self.n_in.div_ceil(COLUMNS)
    }
}

#[derive(Debug, Default)]
pub struct Scratch {
    weights: Vec<f32>,
    inputs: Vec<f32>,
    out: Vec<f32>,
}

fn room(v: &mut Vec<f32>, n: usize) -> &mut [f32] {
    v.resize(v.len().max(n), 0.0);
    &mut v[..n]
}

impl Scratch {
    /// One expert's product with its rows of `x`, `[..][n_in]`, for a unit of the rows of its weight. `read` gives a
    /// row of the weight from a column on; `write` takes a row of the batch, the first row of the weight, and values.
    pub fn product(
        &mut self,
        shape: Shape,
        unit: usize,
        rows: &[usize],
        x: &[f32],
        read: impl Fn(usize, usize, &mut [f32]),
        mut write: impl FnMut(usize, usize, &[f32]),
    ) {
        let Shape { n_in, n_out, shared } = shape;
        let outs = unit * WEIGHT_ROWS..n_out.min((unit + 1) * WEIGHT_ROWS);
        let m = outs.len();
        let weights = room(&mut self.weights, m * n_in);
        outs.clone().zip(weights.chunks_exact_mut(n_in)).for_each(|(row, to)| read(row, 0, to));
        for rows in rows.chunks(INPUT_ROWS) {
            let n = rows.len();
            let inputs = room(&mut self.inputs, n * n_in);
            gather(inputs, rows, x, shared, n_in, 0..n_in);
            let out = room(&mut self.out, n * m);
            let inputs = Matrix::rows(inputs, n, n_in, n_in).transposed();
            multiply_into(out, m, false, Matrix::rows(weights, m, n_in, n_in), inputs, 1.0);
            rows.iter().zip(out.chunks_exact(m)).for_each(|(&row, out)| write(row, outs.start, out));
        }
    }

    /// The same with the transposed weight: `x` is `[..][n_out]`, and a unit is of the columns of the weight.
    pub fn product_t(
        &mut self,
        shape: Shape,
        unit: usize,
        rows: &[usize],
        x: &[f32],
        read: impl Fn(usize, usize, &mut [f32]),
        mut write: impl FnMut(usize, usize, &[f32]),
    ) {
        let Shape { n_in, n_out, shared } = shape;
        let columns = unit * COLUMNS..n_in.min((unit + 1) * COLUMNS);
        let width = columns.len();
        for rows in rows.chunks(INPUT_ROWS) {
            let n = rows.len();
            let out = room(&mut self.out, n * width);
            for from in (0..n_out).step_by(WEIGHT_ROWS) {
                let outs = from..n_out.min(from + WEIGHT_ROWS);
                let m = outs.len();
                let weights = room(&mut self.weights, m * width);
                outs.clone()
                    .zip(weights.chunks_exact_mut(width))
                    .for_each(|(row, to)| read(row, columns.start, to));
                let inputs = room(&mut self.inputs, n * m);
                gather(inputs, rows, x, shared, n_out, outs);
                let weights = Matrix::rows(weights, m, width, width).transposed();
                let inputs = Matrix::rows(inputs, n, m, m).transposed();
                multiply_into(out, width, from > 0, weights, inputs, 1.0);
            }
            rows.iter().zip(out.chunks_exact(width)).for_each(|(&row, out)| write(row, columns.start, out));
        }
    }
}

/// Some columns of the rows of an input, `len` wide, that rows of the batch have.
fn gather(to: &mut [f32], rows: &[usize], x: &[f32], shared: usize, len: usize, columns: Range<usize>) {
    for (to, row) in to.chunks_exact_mut(columns.len()).zip(rows) {
        to.copy_from_slice(&x[row / shared * len..][columns.clone()]);
    }
}

/// How the weights of chosen experts follow from a router's logits.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Gating {
    /// Probabilities of all experts, or of those chosen.
    pub kind: GatingKind,
    /// Weights are divided by their sum, or by [`LEAST_SUM`] if that is more.
    pub normalised: bool,
}

/// The function that makes weights of a router's logits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GatingKind {
    /// A softmax over all experts; those with the most are chosen.
    Softmax,
    /// A softmax over those chosen, which are those with the largest logits.
    SoftmaxOfChosen,
}

fn softmax(x: impl Iterator<Item = f32> + Clone) -> Vec<f64> {
    let max = x.clone().fold(f32::NEG_INFINITY, f32::max);
    let powers: Vec<f64> = x.map(|x| f64::from(x - max).exp()).collect();
    let sum: f64 = powers.iter().sum();
    powers.into_iter().map(|p| p / sum).collect()
}

impl Gating {
    /// The gradient of a token's logits from that of the weights of its chosen experts.
    ///
    /// # Panics
    /// For chosen experts that are not below the number of logits.
    pub fn back(&self, logits: &[f32], chosen: &[i32], d_weights: &[f32], d_logits: &mut [f32]) {
        let at = |e: &i32| *e as usize;
        // Of all experts, or of those chosen.
        let p: Vec<f64> = match self.kind {
            GatingKind::Softmax => softmax(logits.iter().copied()),
            GatingKind::SoftmaxOfChosen => softmax(chosen.iter().map(|e| logits[at(e)])),
        };
        let u: Vec<f64> = match self.kind {
            GatingKind::SoftmaxOfChosen => p.clone(),
            GatingKind::Softmax => chosen.iter().map(|e| p[at(e)]).collect(),
        };
        let mut d: Vec<f64> = d_weights.iter().map(|&d| f64::from(d)).collect();
        if self.normalised {
            let (sum, least) = (u.iter().sum::<f64>(), f64::from(LEAST_SUM));
            let mean = if sum > least { dot(&d, &u) / sum } else { 0.0 };
            d.iter_mut().for_each(|d| *d = (*d - mean) / sum.max(least));
        }
        d_logits.fill(0.0);
        let mean = dot(&d, &u);
        if self.kind == GatingKind::Softmax {
            d_logits.iter_mut().zip(&p).for_each(|(to, p)| *to = (-p * mean) as f32);
        }
        for ((e, d), u) in chosen.iter().zip(&d).zip(&u) {
            d_logits[at(e)] = (u * (d - mean)) as f32;
        }
    }
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gradients_of_routers_are_slopes() {
        let logits = [0.3f32, -1.0, 2.0, 0.7, 1.1];
        let (chosen, d_weights) = ([2, 4, 3], [0.5f32, -1.5, 2.0]);
        let weights = |x: &[f64], gating: Gating| -> Vec<f64> {
            let of = |x: Vec<f64>| {
                let sum: f64 = x.iter().map(|x| x.exp()).sum();
                x.into_iter().map(move |x| x.exp() / sum).collect::<Vec<_>>()
            };
            let pick = |p: &[f64]| chosen.iter().map(|&e| p[e as usize]).collect::<Vec<_>>();
            let mut w = match gating.kind {
                GatingKind::Softmax => pick(&of(x.to_vec())),
                GatingKind::SoftmaxOfChosen => of(pick(x)),
            };
            let sum: f64 = w.iter().sum();
            let by = if gating.normalised { sum.max(f64::from(LEAST_SUM)) } else { 1.0 };
            w.iter_mut().for_each(|w| *w /= by);
            w
        };
        for kind in [GatingKind::Softmax, GatingKind::SoftmaxOfChosen] {
            for (normalised, shift) in [(false, 0.0), (true, 0.0), (true, -20.0)] {
                let gating = Gating { kind, normalised };
                let logits = logits.map(|x| x + shift);
                let mut got = [f32::NAN; 5];
                gating.back(&logits, &chosen, &d_weights, &mut got);
                for (i, got) in got.iter().enumerate() {
                    let loss = |step: f64| {
                        let mut x = logits.map(f64::from);
                        x[i] += step;
                        weights(&x, gating).iter().zip(d_weights).map(|(w, d)| w * f64::from(d)).sum::<f64>()
                    };
                    let slope = (loss(1e-5) - loss(-1e-5)) / 2e-5;
                    assert!((slope - f64::from(*got)).abs() < 1e-6, "{gating:?} {i}: {slope} {got}");
                }
            }
        }
    }
}
