//! The definition of attention and of its gradients in f64, and how far floats may be off.

use ggml::matmul::Kernel;

use super::Case;
use crate::common::{add, dot, magnitude, rounding, UNIT};

/// In f64: output and log-sum-exp, gradients.
#[derive(Default)]
pub(super) struct Exact {
    pub(super) o_lse: Vec<f64>,
    pub(super) d_q: Vec<f64>,
    pub(super) d_k: Vec<f64>,
    pub(super) d_v: Vec<f64>,
    /// How far floats may be off.
    pub(super) off: [Vec<f64>; 4],
}

/// The largest error of rounding to bfloat16, in parts of a number.
const SHORT: f64 = 1.0 / 256.0;
/// The largest error of a product of factors that are sums of two bfloat16, in parts of it.
const TILES: f64 = 3.0 / 65536.0;

/// How far sums may be off.
#[derive(Default, Clone, Copy)]
struct Off {
    /// Bound on errors that add up.
    linear: f64,
    /// Roundings that know nothing of each other: their magnitudes, and the sum of their squares.
    magnitudes: f64,
    squares: f64,
}

impl Off {
    fn add(&mut self, rounding: f64, linear: f64) {
        self.linear += linear;
        self.magnitudes += rounding;
        self.squares += rounding * rounding;
    }

    /// Bound as in [`rounding`]: more than six times the root of the squares is not seen, more than all of them cannot
    /// be.
    fn roundings(&self) -> f64 {
        self.magnitudes.min(6.0 * self.squares.sqrt())
    }

    fn all(&self) -> f64 {
        self.linear + self.roundings()
    }
}

impl Case {
    /// Operands of a product, rounded where the op rounds them.
    fn factors(&self, x: &[f64], scale: f32) -> Vec<f64> {
        let short = |x: f64| f64::from(half::bf16::from_f32(x as f32 * scale)) / f64::from(scale);
        x.iter().map(|&x| if self.kernel == Kernel::HalfFloats { short(x) } else { x }).collect()
    }

    /// The definition, on any numbers; and how far floats may be off, to first order. Weights and the gradients of scores are
    /// rounded to bfloat16 as well, each again, and whichever way they happen to lie.
    pub(super) fn exact(&self, [q, k, v, d_out, sinks]: [&[f64]; 5], key_ranges: &[i32]) -> Exact {
        let (d, d_v, scale) = (self.d, self.d_v, f64::from(self.scale()));
        let cap = f64::from(self.softcap.unwrap_or(f32::INFINITY));
        // Queries are rounded in the units in which scores are exponents of two.
        let q = self.factors(q, self.scale() * std::f32::consts::LOG2_E);
        let [k, v, short_out] = [k, v, d_out].map(|x| self.factors(x, 1.0));
        let short = if self.kernel == Kernel::HalfFloats { SHORT } else { 0.0 };
        let rounding = |n: usize| rounding(n) + if self.kernel == Kernel::F32Tiles { TILES } else { 0.0 };
        let (n_rows, n_seen) = (self.n_tokens * self.n_rep, self.n_keys);
        // The lanes of a sum are summed up, and a sum is scaled again with each tile of keys.
        let summed = |n: usize| rounding(n + 24);
        let mut exact = Exact {
            d_q: vec![0.0; q.len()],
            d_k: vec![0.0; k.len()],
            d_v: vec![0.0; v.len()],
            ..Exact::default()
        };
        let none = |n: usize| vec![Off::default(); n];
        let mut off = [vec![], none(q.len()), none(k.len()), none(v.len())];
        for t in 0..self.n_tokens {
            let limit = |i: i32| i.clamp(0, self.n_keys as i32) as usize;
            for (h, &sink) in sinks.iter().enumerate() {
                let upper = self.n_tables() == 2 && h >= self.n_head() / 2;
                let at = 2 * (t + if upper { self.n_tokens } else { 0 });
                let (first, end) = (limit(key_ranges[at]), limit(key_ranges[at + 1]));
                let row = t * self.n_head() + h;
                let (q, g) = (&q[row * d..][..d], &d_out[row * d_v..][..d_v]);
                let short_g = &short_out[row * d_v..][..d_v];
                let at = |c: usize| c * self.n_head_kv + h / self.n_rep;
                let capped = |s: f64| if cap.is_finite() { cap * (s / cap).tanh() } else { s };
                let keys = |c: usize| &k[at(c) * d..][..d];
                let values = |c: usize| &v[at(c) * d_v..][..d_v];
                let plain: Vec<f64> = (first..end).map(|c| scale * dot(q, keys(c))).collect();
                let scores: Vec<f64> = plain.iter().map(|&s| capped(s)).collect();
                let max = scores.iter().fold(sink, |m, s| m.max(*s));
                let sum: f64 = scores.iter().chain([&sink]).map(|s| (s - max).exp()).sum();
                let lse = if max == f64::NEG_INFINITY { max } else { max + sum.ln() };
                let weights: Vec<f64> = scores.iter().map(|s| (s - lse).exp()).collect();
                let sink_weight = if lse.is_finite() { (sink - lse).exp() } else { 0.0 };

                // Scores: a sum and its units; a tanh is right to 4e-7, 7 of these units.
                let mut off_scores = Vec::new();
                for (c, s) in (first..end).zip(&scores) {
                    let product = rounding(d + 6) * scale * magnitude(q, keys(c));
                    off_scores.push(product + 12.0 * UNIT * s.abs());
                }
                let weighted: f64 = weights.iter().zip(&off_scores).map(|(p, e)| p * e).sum();
                let sink_off = if sink.is_finite() { sink_weight * 4.0 * UNIT * sink.abs() } else { 0.0 };
                let lse_off = if lse.is_finite() {
                    weighted + sink_off + summed(n_seen) + UNIT * (4.0 * lse.abs() + 4.0 * max.abs())
                } else {
                    0.0
                };
                // Powers of two are right to 2e-7, 4 of these units; what they are taken of is a difference.
                let part_off = |e: f64, s: f64| e + lse_off + UNIT * (8.0 + 4.0 * (s.abs() + lse.abs()));
                let parts: Vec<f64> = off_scores.iter().zip(&scores).map(|(&e, &s)| part_off(e, s)).collect();

                let mut out = vec![0.0; d_v];
                let mut off_out = none(d_v);
                // Of the product of the output and its gradient.
                let mut off_dot = Off::default();
                for ((c, p), part) in (first..end).zip(&weights).zip(&parts) {
                    add(&mut out, values(c), *p);
                    for (off, v) in off_out.iter_mut().zip(values(c)) {
                        off.add(short * (p * v).abs(), (part + summed(n_seen)) * (p * v).abs());
                    }
                    off_dot.add(short * (p * dot(g, values(c))).abs(), 0.0);
                    off_dot.linear += p * (part + summed(n_seen)) * magnitude(g, values(c));
                }
                off_dot.linear += rounding(d_v + 2) * magnitude(g, &out);
                let of_dot = off_dot.roundings() + off_dot.linear;
                // The weighted keys that an error of the product is passed on by: the same for all of them.
                let mut passed = vec![0.0; d];
                let seen = (first..end).zip(&weights).zip(&plain).zip(&parts);
                for (((c, p), plain), part) in seen {
                    let bend = 1.0 / (plain / cap).cosh().powi(2);
                    let scale = scale * bend;
                    let size = magnitude(short_g, values(c));
                    let slope = dot(short_g, values(c)) - dot(g, &out);
                    let ds = p * slope * scale;
                    add(&mut exact.d_v[at(c) * d_v..][..d_v], short_g, *p);
                    add(&mut exact.d_k[at(c) * d..][..d], q, ds);
                    add(&mut exact.d_q[row * d..][..d], keys(c), ds);
                    add(&mut passed, keys(c), p * scale);
                    // 1 - tanh^2 is off by twice the tanh, and by it as often as the score is.
                    let bent = match cap.is_finite() {
                        true => (2.0 * part / cap + 16.0 * UNIT) * f64::from(self.scale()),
                        false => 0.0,
                    };
                    let ds_off = ds.abs() * (part + 4.0 * UNIT)
                        + p * scale * rounding(d_v + 4) * (size + dot(g, &out).abs())
                        + p * slope.abs() * bent;
                    let ds_linear = ds_off + p * scale * off_dot.linear;
                    for (off, (q, _)) in off[2][at(c) * d..][..d].iter_mut().zip(q.iter().zip(keys(c))) {
                        off.add(
                            short * (ds * q).abs(),
                            q.abs() * (ds_linear + (summed(n_rows) + 4.0 * UNIT) * ds.abs()),
                        );
                        // A root of squares already: a sixth of it counts as one rounding.
                        let dot = (p * scale * q).abs() * off_dot.roundings();
                        off.magnitudes += dot;
                        off.squares += (dot / 6.0).powi(2);
                    }
                    for (off, k) in off[1][row * d..][..d].iter_mut().zip(keys(c)) {
                        off.add(
                            short * (ds * k).abs(),
                            k.abs() * (ds_off + (summed(n_seen) + 4.0 * UNIT) * ds.abs()),
                        );
                    }
                    for (off, g) in off[3][at(c) * d_v..][..d_v].iter_mut().zip(short_g) {
                        off.add(short * (p * g).abs(), (p * g).abs() * (part + summed(n_rows)));
                    }
                }
                for (off, passed) in off[1][row * d..][..d].iter_mut().zip(&passed) {
                    off.linear += passed.abs() * of_dot;
                }
                exact.o_lse.extend(out);
                exact.o_lse.push(lse);
                off[0].extend(off_out);
                off[0].push(Off { linear: lse_off, ..Off::default() });
            }
        }
        exact.off = off.map(|off| off.iter().map(Off::all).collect());
        exact
    }
}
