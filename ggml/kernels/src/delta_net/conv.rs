//! A convolution over the last tokens, separate for each channel, followed by SiLU.
//!
//! The inputs are rows of tokens: the rows before the first token, one fewer than there are weights, then one for each
//! token. A token does not see anything before its document.

use crate::attention_train::{Heads, HeadsMut};
use crate::sigmoid::sigmoid;
use crate::simd::fma;

/// Operands; channels are cut into units of equal width, here the heads.
#[derive(Clone, Copy)]
pub struct Inputs<'a> {
    /// Rows before the first token, `[w, n_units, n_conv - 1]`.
    pub before: Heads<'a>,
    /// `[w, n_units, n]`
    pub x: Heads<'a>,
    /// `[channels][n_conv]`, that of the token itself last.
    pub weights: &'a [f32],
    /// For each token, how many of its document come before it; empty where all come from one.
    pub past: &'a [i32],
}

impl<'a> Inputs<'a> {
    /// Row `i` of those before and of the tokens.
    fn row(&self, unit: usize, i: usize) -> &'a [f32] {
        match i.checked_sub(self.before.n) {
            Some(t) => self.x.row(unit, t),
            None => self.before.row(unit, i),
        }
    }

    /// The first weight that counts for a token.
    fn first(&self, t: usize) -> usize {
        self.past
            .get(t)
            .map_or(0, |&past| self.before.n - self.before.n.min(usize::try_from(past).unwrap_or(0)))
    }

    fn check(&self) {
        let [[w, n_units, n_before], [x_w, x_units, n]] = [self.before.shape(), self.x.shape()];
        let fits = (w, n_units) == (x_w, x_units) && [0, n].contains(&self.past.len());
        assert!(fits && self.weights.len() == w * n_units * (n_before + 1), "the caller's shapes agree");
    }
}

#[derive(Debug, Default)]
pub struct Scratch {
    /// The weights of a unit, `[n_conv][w]`.
    weights: Vec<f32>,
    sums: Vec<f32>,
}

impl Scratch {
    fn load(&mut self, x: &Inputs<'_>, unit: usize) {
        x.check();
        let (w, n_conv) = (x.x.d, x.before.n + 1);
        let own = &x.weights[unit * w * n_conv..(unit + 1) * w * n_conv];
        self.weights.clear();
        self.weights.extend((0..n_conv).flat_map(|i| own.iter().skip(i).step_by(n_conv)));
        self.sums.resize(w, 0.0);
    }

    /// The unit's sums at a token.
    fn convolve(&mut self, x: &Inputs<'_>, unit: usize, t: usize) {
        let w = x.x.d;
        self.sums.fill(0.0);
        for i in x.first(t)..=x.before.n {
            let taps = self.sums.iter_mut().zip(x.row(unit, t + i)).zip(&self.weights[i * w..(i + 1) * w]);
            taps.for_each(|((sum, x), weight)| *sum = fma(*x, *weight, *sum));
        }
    }

    /// Computes the unit's rows of the result, `[w, n_units, n]`.
    ///
    /// # Safety
    /// Nobody else reads or writes this unit of it meanwhile, and it is no memory of the operands.
    pub unsafe fn run(&mut self, x: &Inputs<'_>, unit: usize, out: &mut HeadsMut<'_>) {
        self.load(x, unit);
        for t in 0..x.x.n {
            self.convolve(x, unit, t);
            // SAFETY: the unit is the caller's.
            let out = unsafe { out.row(unit, t) };
            out.iter_mut().zip(&self.sums).for_each(|(out, sum)| *out = sum * sigmoid(*sum));
        }
    }

    /// Computes the gradient of the unit's rows before the first token and at each, `[w, n_units, n_conv - 1 + n]`,
    /// from that of the result, `[w, n_units, n]`. `d_after`, `[w, n_units, n_conv - 1]`, is what those after the
    /// last token find for the last of these rows.
    ///
    /// # Safety
    /// Nobody else reads or writes this unit of `d_rows` meanwhile, and it is no memory of the operands.
    pub unsafe fn differentiate(
        &mut self,
        x: &Inputs<'_>,
        unit: usize,
        d_out: Heads<'_>,
        d_after: Heads<'_>,
        d_rows: &mut HeadsMut<'_>,
    ) {
        self.load(x, unit);
        let (w, n, n_before) = (x.x.d, x.x.n, x.before.n);
        for i in 0..n + n_before {
            // SAFETY: the unit is the caller's.
            let row = unsafe { d_rows.row(unit, i) };
            match i.checked_sub(n) {
                Some(after) => row.copy_from_slice(d_after.row(unit, after)),
                None => row.fill(0.0),
            }
        }
        for t in 0..n {
            self.convolve(x, unit, t);
            for (sum, d) in self.sums.iter_mut().zip(d_out.row(unit, t)) {
                let s = sigmoid(*sum);
                *sum = d * s * (1.0 + *sum * (1.0 - s));
            }
            for i in x.first(t)..=n_before {
                // SAFETY: as above.
                let row = unsafe { d_rows.row(unit, t + i) };
                let taps = row.iter_mut().zip(&self.sums).zip(&self.weights[i * w..(i + 1) * w]);
                taps.for_each(|((row, d), weight)| *row = fma(*d, *weight, *row));
            }
        }
    }
}
