//! The differential equation of CLEX, its solution by Runge and Kutta's 3/8 rule, and the gradient through it.

use super::Activation;
use crate::hparams::ClexNet;

/// The equation for one base, with the network's matrices in f64.
///
/// For the logarithms x of d/2 frequencies and the factor t >= 1 by which a context is longer:
///
///   dx_j/dt = [D act(U (x + ln n(t)))]_j - 2 (2j) / ((d - 2) (2t - 1)),
///
/// where n_j(t) = b^(-2j/d) (2t - 1)^(-2j/(d-2)) are the frequencies of NTK-aware scaling by 2t - 1, and the last
/// term is their relative velocity; x_j(1) = -(2j/d) ln b. With D = 0 it is n(t) that solves it.
#[derive(Debug, Clone)]
pub(super) struct Ode {
    ln_base: f64,
    act: Activation,
    /// Length of a step.
    step: f64,
    /// Where the last step ends, which is cut.
    end: f64,
    /// `[n_hidden][n_pairs]`.
    up: Matrix,
    /// `[n_pairs][n_hidden]`.
    down: Matrix,
}

/// The states of a solution, at every point of its grid.
#[derive(Debug, Clone)]
pub(super) struct Solution<'o> {
    ode: &'o Ode,
    /// `[n_steps + 1][n_pairs]`, from t = 1 on.
    states: Vec<f64>,
    /// The asked-for time as a share of the last step.
    share: f64,
}

/// Gradients of the matrices, laid out as in [`ClexNet`].
#[derive(Debug, Clone, PartialEq)]
pub struct ClexGradient {
    /// `[n_pairs, n_hidden]`.
    pub up: Vec<f64>,
    /// `[n_hidden, n_pairs]`.
    pub down: Vec<f64>,
}

/// A matrix kept by rows and by columns, so that products with it and with its transpose both run along memory.
#[derive(Debug, Clone)]
struct Matrix {
    rows: usize,
    cols: usize,
    by_row: Vec<f64>,
    by_col: Vec<f64>,
}

impl Matrix {
    fn new(rows: usize, cols: usize, values: &[f32]) -> Matrix {
        let by_row: Vec<f64> = values.iter().map(|x| f64::from(*x)).collect();
        let by_col = (0..rows * cols).map(|i| by_row[i % rows * cols + i / rows]).collect();
        Matrix { rows, cols, by_row, by_col }
    }

    /// `M x`.
    fn times(&self, x: &[f64]) -> Vec<f64> {
        combine(&self.by_col, self.rows, x)
    }

    /// `M^T x`.
    fn transposed_times(&self, x: &[f64]) -> Vec<f64> {
        combine(&self.by_row, self.cols, x)
    }
}

type Velocities = [Vec<f64>; 4];

/// The sum of vectors of this length, which lie one after another, with these factors.
fn combine(vectors: &[f64], len: usize, factors: &[f64]) -> Vec<f64> {
    let mut out = vec![0.0; len];
    vectors.chunks_exact(len).zip(factors).for_each(|(v, f)| add(&mut out, *f, v));
    out
}

/// `to += factor * x`.
fn add(to: &mut [f64], factor: f64, x: &[f64]) {
    to.iter_mut().zip(x).for_each(|(t, x)| *t += factor * x);
}

/// `x + sum of factor * y`.
fn plus(x: &[f64], terms: &[(f64, &[f64])]) -> Vec<f64> {
    let mut out = x.to_vec();
    terms.iter().for_each(|(factor, y)| add(&mut out, *factor, y));
    out
}

impl Activation {
    fn at(self, x: f64) -> (f64, f64) {
        match self {
            Activation::Silu => {
                let s = 1.0 / (1.0 + (-x).exp());
                (x * s, s * (1.0 + x * (1.0 - s)))
            }
            Activation::Tanh => (x.tanh(), 1.0 - x.tanh().powi(2)),
        }
    }
}

impl Ode {
    /// Solves the equation on the grid 1, 1 + `step`, 1 + 2 `step` ..., with the last step cut at `end`.
    pub(super) fn new(net: &ClexNet, base: f64, act: Activation, step: f64, end: usize) -> Ode {
        let (pairs, hidden) = (net.n_pairs(), net.n_hidden());
        Ode {
            ln_base: base.ln(),
            act,
            step,
            end: end as f64,
            up: Matrix::new(hidden, pairs, net.up()),
            down: Matrix::new(pairs, hidden, net.down()),
        }
    }

    fn n_pairs(&self) -> usize {
        self.up.cols
    }

    /// ln n_j(t), and the velocity of NTK-aware scaling: two numbers that are multiplied by j.
    fn ntk(&self, t: f64) -> (f64, f64) {
        let d = 2.0 * self.n_pairs() as f64;
        let alpha = 2.0 * t - 1.0;
        (-2.0 * self.ln_base / d - 2.0 * alpha.ln() / (d - 2.0), -4.0 / ((d - 2.0) * alpha))
    }

    /// The hidden layer's input at a state.
    fn hidden(&self, t: f64, x: &[f64]) -> (Vec<f64>, Vec<f64>) {
        let slope = self.ntk(t).0;
        let z: Vec<f64> = x.iter().enumerate().map(|(j, x)| x + slope * j as f64).collect();
        let hidden = self.up.times(&z);
        (z, hidden)
    }

    /// dx/dt.
    fn velocity(&self, t: f64, x: &[f64]) -> Vec<f64> {
        let (_, mut hidden) = self.hidden(t, x);
        hidden.iter_mut().for_each(|a| *a = self.act.at(*a).0);
        let (mut out, own) = (self.down.times(&hidden), self.ntk(t).1);
        out.iter_mut().enumerate().for_each(|(j, v)| *v += own * j as f64);
        out
    }

    /// The product of `grad` with the velocity's Jacobian in x; the gradients of the matrices are added to
    /// `sums`.
    fn velocity_back(&self, t: f64, x: &[f64], grad: &[f64], sums: &mut ClexGradient) -> Vec<f64> {
        let (z, mut hidden) = self.hidden(t, x);
        let mut d_hidden = self.down.transposed_times(grad);
        for (a, d) in hidden.iter_mut().zip(&mut d_hidden) {
            let (value, slope) = self.act.at(*a);
            (*a, *d) = (value, *d * slope);
        }
        let (pairs, n_hidden) = (self.n_pairs(), hidden.len());
        sums.down.chunks_exact_mut(n_hidden).zip(grad).for_each(|(row, g)| add(row, *g, &hidden));
        sums.up.chunks_exact_mut(pairs).zip(&d_hidden).for_each(|(row, d)| add(row, *d, &z));
        self.up.transposed_times(&d_hidden)
    }

    /// Where step `i` begins.
    fn at(&self, i: usize) -> f64 {
        (1.0 + i as f64 * self.step).min(self.end)
    }

    /// A step from `y`: the inputs of its four velocities with their times, and the velocities.
    fn stages(&self, i: usize, y: &[f64]) -> ([(f64, Vec<f64>); 4], Velocities) {
        let t = self.at(i);
        let h = self.at(i + 1) - t;
        let k1 = self.velocity(t, y);
        let y2 = plus(y, &[(h / 3.0, &k1)]);
        let k2 = self.velocity(t + h / 3.0, &y2);
        let y3 = plus(y, &[(h, &k2), (-h / 3.0, &k1)]);
        let k3 = self.velocity(t + h * 2.0 / 3.0, &y3);
        let y4 = plus(y, &[(h, &k1), (-h, &k2), (h, &k3)]);
        let k4 = self.velocity(t + h, &y4);
        let inputs = [(t, y.to_vec()), (t + h / 3.0, y2), (t + h * 2.0 / 3.0, y3), (t + h, y4)];
        (inputs, [k1, k2, k3, k4])
    }

    /// Solves it up to time `t`, 1 to `end`. Between points of the grid the solution is a straight line.
    pub(super) fn solve(&self, t: f64) -> Solution<'_> {
        let mut y: Vec<f64> = (0..self.n_pairs()).map(|j| self.ntk(1.0).0 * j as f64).collect();
        let (mut states, mut i) = (y.clone(), 0);
        // Points are multiples of the step up to what floats make of them.
        while self.at(i) < t - 1e-9 {
            let h = self.at(i + 1) - self.at(i);
            let (_, [k1, k2, k3, k4]) = self.stages(i, &y);
            let e = h / 8.0;
            y = plus(&y, &[(e, &k1), (3.0 * e, &k2), (3.0 * e, &k3), (e, &k4)]);
            states.extend(&y);
            i += 1;
        }
        let share = match i.checked_sub(1).map(|last| (self.at(last), self.at(i))) {
            Some((from, to)) => ((t - from) / (to - from)).clamp(0.0, 1.0),
            None => 1.0,
        };
        Solution { ode: self, states, share }
    }
}

impl Solution<'_> {
    fn state(&self, i: usize) -> &[f64] {
        let n = self.ode.n_pairs();
        &self.states[i * n..(i + 1) * n]
    }

    fn n_steps(&self) -> usize {
        self.states.len() / self.ode.n_pairs() - 1
    }

    /// x at the time it was solved for: logarithms of frequencies.
    pub(super) fn last(&self) -> Vec<f64> {
        match self.n_steps() {
            0 => self.state(0).to_vec(),
            n => {
                let (from, to) = (self.state(n - 1), self.state(n));
                from.iter().zip(to).map(|(a, b)| a + self.share * (b - a)).collect()
            }
        }
    }

    /// The gradients of the matrices, given that of [`Solution::last`]: the steps are differentiated as they
    /// were taken.
    pub(super) fn backward(&self, grad: &[f64]) -> ClexGradient {
        let (ode, n) = (self.ode, self.ode.up.by_row.len());
        let mut sums = ClexGradient { up: vec![0.0; n], down: vec![0.0; n] };
        // The gradient of a step's end; of the last step's beginning, what the straight line gives it.
        let mut g: Vec<f64> = grad.iter().map(|g| g * self.share).collect();
        for i in (0..self.n_steps()).rev() {
            let h = ode.at(i + 1) - ode.at(i);
            let (inputs, _) = ode.stages(i, self.state(i));
            let mut of_k =
                [1.0, 3.0, 3.0, 1.0].map(|w| g.iter().map(|g| g * w * h / 8.0).collect::<Vec<_>>());
            // How much of each velocity is in the input of a later one.
            const BEFORE: [&[f64]; 4] = [&[], &[1.0 / 3.0], &[-1.0 / 3.0, 1.0], &[1.0, -1.0, 1.0]];
            for stage in (0..4).rev() {
                let (t, x) = &inputs[stage];
                let of_x = ode.velocity_back(*t, x, &of_k[stage], &mut sums);
                add(&mut g, 1.0, &of_x);
                BEFORE[stage].iter().zip(&mut of_k).for_each(|(share, k)| add(k, share * h, &of_x));
            }
            if i + 1 == self.n_steps() {
                add(&mut g, 1.0 - self.share, grad);
            }
        }
        sums
    }
}
