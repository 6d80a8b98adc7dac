//! The definition of attention with landmarks and of its gradients in f64, and how far floats may be off, to
//! first order.

use super::Case;
use crate::common::{add, dot, magnitude, rounding, UNIT};
use crate::soft_max::{summed, Score, SoftMax};

/// In f64: output, gradients, and the sum of weights of each row.
#[derive(Default, Clone)]
pub(super) struct Exact {
    pub(super) out: Vec<f64>,
    pub(super) d_q: Vec<f64>,
    pub(super) d_k: Vec<f64>,
    pub(super) d_v: Vec<f64>,
    pub(super) sums: Vec<f64>,
    /// How far floats may be off: outputs and gradients in this order.
    pub(super) off: [Vec<f64>; 4],
    /// The same of the log-sum-exp of each row.
    pub(super) lse_off: Vec<f64>,
}

/// Adds magnitudes, as [`add`] adds values.
fn add_off(to: &mut [f64], x: &[f64], factor: f64) {
    to.iter_mut().zip(x).for_each(|(t, x)| *t += (x * factor).abs());
}

/// Keys with their softmax, and the landmark that stands for them.
struct Group {
    keys: Vec<usize>,
    p: SoftMax,
    landmark: Option<usize>,
}

/// Gradients of the probabilities of a group, less the group's weight, and their mean, with how far each may
/// be off.
struct Grads {
    each: Vec<(f64, f64)>,
    mean: (f64, f64),
}

impl Case {
    /// Groups of keys of one row, the query's own first.
    fn groups(&self, scores: &[Score], first: usize, end: usize) -> Vec<Group> {
        let (b, own) = (self.block, (end - 1) / self.block);
        let keys =
            |s: usize| (s * b..(s + 1) * b - 1).filter(|j| (first..end).contains(j)).collect::<Vec<_>>();
        let of =
            |keys: &[usize]| SoftMax::new(&keys.iter().map(|&j| scores[j]).collect::<Vec<_>>(), keys.len());
        let earlier = (first / b..own).filter(|&s| !keys(s).is_empty());
        let closed =
            earlier.map(|s| Group { p: of(&keys(s)), keys: keys(s), landmark: Some((s + 1) * b - 1) });
        let closed: Vec<Group> = closed.collect();
        let mut all = keys(own);
        let mut own: Vec<Score> = all.iter().map(|&j| scores[j]).collect();
        for Group { p, landmark, .. } in &closed {
            let landmark = landmark.unwrap();
            all.push(landmark);
            own.push(p.joined(scores[landmark]));
        }
        // All keys are summed at once.
        let open = Group { keys: all, p: SoftMax::new(&own, end - first), landmark: None };
        std::iter::once(open).chain(closed).collect()
    }

    /// The definition, on any numbers, and its gradient in the form of the paper's two softmaxes.
    pub(super) fn exact(&self, [q, k, v, d_out]: [&[f64]; 4], key_ranges: &[i32]) -> Exact {
        let (d, d_v, scale) = (self.d, self.d_v, f64::from(self.scale()));
        let mut exact = Exact {
            d_q: vec![0.0; q.len()],
            d_k: vec![0.0; k.len()],
            d_v: vec![0.0; v.len()],
            off: [0, q.len(), k.len(), v.len()].map(|n| vec![0.0; n]),
            ..Exact::default()
        };
        let of_rows = summed(self.n_tokens * self.n_rep);
        for t in 0..self.n_tokens {
            let (first, end) = (key_ranges[2 * t] as usize, key_ranges[2 * t + 1] as usize);
            let of_keys = summed(end - first);
            for h in 0..self.n_head() {
                let row = t * self.n_head() + h;
                let (q, g) = (&q[row * d..][..d], &d_out[row * d_v..][..d_v]);
                let at = |j: usize| j * self.n_head_kv + h / self.n_rep;
                let key = |j: usize| &k[at(j) * d..][..d];
                let value = |j: usize| &v[at(j) * d_v..][..d_v];
                let scores: Vec<Score> =
                    (0..self.n_keys).map(|j| Score::new(q, key(j), scale, None)).collect();
                let groups = self.groups(&scores, first, end);
                let open = &groups[0];
                // The weight of a group, and how far it may be off, in parts of it; the latter less what all
                // weights are off.
                let weight = |landmark: Option<usize>| match landmark {
                    Some(landmark) => {
                        let i = open.keys.iter().position(|&j| j == landmark).unwrap();
                        [open.p.weights[i], open.p.off[i], open.p.own[i]]
                    }
                    None => [1.0, 0.0, 0.0],
                };
                // The product of an output's gradient and a value.
                let product = |j: usize| (dot(g, value(j)), rounding(d_v + 6) * magnitude(g, value(j)));
                let (mut out, mut off_out, mut sum, mut off_dot) = (vec![0.0; d_v], vec![0.0; d_v], 0.0, 0.0);
                let mut grads: Vec<Grads> = Vec::new();
                for Group { keys, p, landmark } in &groups {
                    let [weight, weight_off, own_off] = weight(*landmark);
                    // Weights of closed blocks are relative to two sums, others to one.
                    let offs = if landmark.is_some() { &p.off } else { &p.own };
                    let (mut each, mut mean) = (Vec::new(), (0.0, 0.0));
                    let all = keys.iter().zip(&p.weights).zip(p.off.iter().zip(offs));
                    for ((&j, &p), (off, own)) in all {
                        if landmark.is_none() && j % self.block == self.block - 1 {
                            // Comes below.
                            each.push((0.0, 0.0));
                            continue;
                        }
                        let (w, off_w) = (weight * p, weight_off + off);
                        add(&mut out, value(j), w);
                        add_off(&mut off_out, value(j), w * (own_off + own + of_keys));
                        add(&mut exact.d_v[at(j) * d_v..][..d_v], g, w);
                        add_off(&mut exact.off[3][at(j) * d_v..][..d_v], g, w * (off_w + of_rows));
                        sum += w;
                        off_dot += w * (off_w + of_keys) * magnitude(g, value(j));
                        let (grad, off_grad) = product(j);
                        each.push((grad, off_grad));
                        mean.0 += p * grad;
                        mean.1 += p * (off_grad + (off + summed(keys.len())) * grad.abs());
                    }
                    grads.push(Grads { each, mean });
                }
                // A landmark's gradient is the mean of its block.
                let means: Vec<(f64, f64)> = grads[1..].iter().map(|grads| grads.mean).collect();
                let n_own = open.keys.len() - means.len();
                grads[0].each[n_own..].copy_from_slice(&means);
                grads[0].mean = (dot(g, &out), off_dot + rounding(d_v + 4) * magnitude(g, &out));
                for (Group { keys, p, landmark }, Grads { each, mean }) in groups.iter().zip(&grads) {
                    let [weight, weight_off, _] = weight(*landmark);
                    for (i, &j) in keys.iter().enumerate() {
                        let ((grad, off_grad), p, off_p) =
                            (each[i], weight * p.weights[i], p.off[i] + weight_off);
                        let ds = p * (grad - mean.0) * scale;
                        let inner = off_grad + mean.1 + 2.0 * UNIT * (grad.abs() + mean.0.abs());
                        let off_ds = scale * p * inner + ds.abs() * (off_p + 4.0 * UNIT);
                        add(&mut exact.d_k[at(j) * d..][..d], q, ds);
                        add(&mut exact.d_q[row * d..][..d], key(j), ds);
                        let products = |summed: f64| off_ds + ds.abs() * (summed + 4.0 * UNIT);
                        add_off(&mut exact.off[2][at(j) * d..][..d], q, products(of_rows));
                        add_off(&mut exact.off[1][row * d..][..d], key(j), products(of_keys));
                    }
                }
                add_off(&mut off_out, &out, open.p.lse_off);
                exact.out.extend(out);
                exact.off[0].extend(off_out);
                exact.sums.push(sum);
                exact.lse_off.push(open.p.lse_off);
            }
        }
        exact
    }
}
