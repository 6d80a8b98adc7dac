//! Ops of mixtures of experts against loops in f64, and against ggml's own product.

use crate::common::*;
use ggml::experts::{Gating, GatingKind};
use ggml::matmul::Kernel;
use ggml::DType;

/// Shapes: columns and rows of a weight, experts, those used, tokens.
const SHAPES: [[usize; 5]; 5] =
    [[32, 7, 4, 2, 1], [64, 100, 5, 1, 3], [320, 65, 8, 3, 70], [256, 33, 3, 3, 600], [96, 64, 40, 6, 20]];

/// Indices of the `k` largest of each row, largest first.
fn largest(scores: &[f32], n: usize, k: usize) -> Vec<usize> {
    let of_row = |row: &[f32]| {
        let mut ids: Vec<usize> = (0..n).collect();
        ids.sort_by(|&a, &b| row[b].total_cmp(&row[a]));
        ids.truncate(k);
        ids
    };
    scores.chunks(n).flat_map(of_row).collect()
}

#[test]
fn choice_and_values_of_the_chosen() {
    let mut rng = Rng(1);
    for (n, k, t) in [(1, 1, 1), (8, 2, 5), (8, 8, 3), (128, 8, 300)] {
        let (scores, values) = (rng.values(n * t), rng.values(n * t));
        let ids = largest(&scores, n, k);
        for threads in [1, 3] {
            let got = eval(&mut executor(threads), |b, feed| {
                let chosen = b.top_k(feed.f32(b, &[n, t], &scores)?, k)?;
                assert_eq!((chosen.n_used(), chosen.n_tokens()), (k, t));
                b.of_chosen(feed.f32(b, &[n, t], &values)?, chosen)
            })
            .unwrap();
            let want: Vec<f32> = ids.iter().enumerate().map(|(i, e)| values[i / k * n + e]).collect();
            assert_eq!(got, want, "{n} {k} {t}");
        }
    }
}

/// ggml takes rows of one number for contiguous whatever the step to the next element.
#[test]
fn rows_of_one_score_may_be_a_column() {
    let scores = Rng(3).values(5);
    let got = eval(&mut executor(2), |b, feed| {
        let rows = b.permute(feed.f32(b, &[5, 1], &scores)?, [1, 0, 2, 3])?;
        b.one_hot(b.top_k(rows, 1)?, false)
    })
    .unwrap();
    assert_eq!(got, [1.0; 5]);
}

#[test]
fn the_chosen_are_ones_among_zeros() {
    let mut rng = Rng(2);
    for (n, k, t, threads) in [(1, 1, 1, 1), (8, 2, 5, 3), (128, 8, 300, 2)] {
        let scores = rng.values(n * t);
        let ids = largest(&scores, n, k);
        for by_place in [false, true] {
            let got = eval(&mut executor(threads), |b, feed| {
                let chosen = b.top_k(feed.f32(b, &[n, t], &scores)?, k)?;
                b.one_hot(chosen, by_place)
            })
            .unwrap();
            let columns = if by_place { k * t } else { t };
            let mut want = vec![0.0; n * columns];
            ids.iter().enumerate().for_each(|(i, e)| want[i * columns / (k * t) * n + e] = 1.0);
            assert_eq!(got, want, "{n} {k} {t} {by_place}");
        }
    }
}

/// Whoever chooses: on the CPU nothing comes to ggml's sort, which has no order for what is no number.
#[test]
fn no_number_is_chosen_last() {
    let (n, k) = (64, 4);
    // Rows without a number, with one in three, with two, and numbers of every kind in between.
    let mut scores = vec![f32::NAN; n * 9];
    scores[n..2 * n].iter_mut().step_by(3).for_each(|x| *x = 1.0);
    (scores[2 * n + 50], scores[2 * n + 7]) = (f32::NEG_INFINITY, -1.0);
    let mut rng = Rng(3);
    for (i, (x, value)) in scores[3 * n..].iter_mut().zip(rng.values(6 * n)).enumerate() {
        *x = match i % 7 {
            0 => f32::NAN,
            1 => -f32::NAN,
            _ => value,
        };
    }
    let largest = |row: &[f32]| {
        let mut ids: Vec<usize> = (0..n).collect();
        // Stable: of equal ones the first.
        ids.sort_by(|&a, &b| {
            let of = |i: usize| if row[i].is_nan() { f32::NEG_INFINITY } else { row[i] };
            of(b).total_cmp(&of(a))
        });
        ids[..k].iter().map(|&id| id as f32).collect::<Vec<_>>()
    };
    let want: Vec<f32> = scores.chunks(n).flat_map(largest).collect();
    let values: Vec<f32> = (0..n * 9).map(|i| (i % n) as f32).collect();
    for threads in [1, 2] {
        let got = eval(&mut executor(threads), |b, feed| {
            let chosen = b.top_k(feed.f32(b, &[n, 9], &scores)?, k)?;
            b.of_chosen(feed.f32(b, &[n, 9], &values)?, chosen)
        });
        assert_eq!(got.unwrap(), want);
    }
}

/// The terms of an element of a product, by definition: `sum` over index `i` of the weight's element `at(row,
/// i)` of the expert and element `i` of the input.
struct Definition<'a> {
    w: &'a [f32],
    x: &'a [f32],
    ids: &'a [usize],
    shape: [usize; 5],
    places: usize,
    transposed: bool,
}

impl Definition<'_> {
    /// The product, and the magnitudes of what is summed up.
    fn product(&self) -> (Vec<f64>, Vec<f64>) {
        let [k, m, _, n_used, _] = self.shape;
        let (over, len) = if self.transposed { (m, k) } else { (k, m) };
        let (mut out, mut sizes) = (Vec::new(), Vec::new());
        for (row, e) in self.ids.iter().enumerate() {
            let x = &self.x[row / (n_used / self.places) * over..][..over];
            for o in 0..len {
                let at = |i: usize| if self.transposed { (e * m + i) * k + o } else { (e * m + o) * k + i };
                let terms = (0..over).map(|i| f64::from(self.w[at(i)]) * f64::from(x[i]));
                out.push(terms.clone().sum());
                sizes.push(terms.map(f64::abs).sum());
            }
        }
        (out, sizes)
    }
}

#[test]
fn products_with_the_weights_of_experts() {
    let mut rng = Rng(2);
    use DType::*;
    let types = [F32, F16, Q8_0, Q4_1, IQ4_NL, MXFP4, Q4_K, Q6_K];
    for dtype in types {
        for shape in SHAPES.into_iter().filter(|shape| shape[0].is_multiple_of(dtype.block_size())) {
            let [k, m, n, n_used, t] = shape;
            let (w, held) = stored(dtype, &[k, m, n], &rng.values(k * m * n));
            let scores = rng.values(n * t);
            let ids = largest(&scores, n, n_used);
            for (places, transposed) in [(1, false), (n_used, false), (1, true), (n_used, true)] {
                let width = if transposed { m } else { k };
                let x = rng.values(width * places * t);
                let run = |kernel, threads| {
                    eval(&mut executor(threads), |b, feed| {
                        let chosen = b.top_k(feed.f32(b, &[n, t], &scores)?, n_used)?;
                        let (w, x) = (b.stored(&w)?, feed.f32(b, &[width, places, t], &x)?);
                        b.matmul_experts(kernel, w, x, chosen, transposed)
                    })
                    .unwrap()
                };
                let definition = Definition { w: &held, x: &x, ids: &ids, shape, places, transposed };
                let (want, sizes) = definition.product();
                let what = format!("{dtype} {shape:?} {places} {transposed}");
                let got = run(Kernel::F32, 1);
                // The sum, and what makes a float of a quantized weight.
                let bound = rounding(width + 4);
                assert_within(&got, &want, |i| bound * sizes[i], &what);
                assert_eq!(got, run(Kernel::F32, 3), "threads, {what}");
                if !transposed {
                    // Activations of 8 bits: an error of up to 1/254 of the largest, as if each term were as large.
                    assert_within(&run(Kernel::Ggml, 2), &want, |i| 1e-2 * sizes[i] + 1e-3, &what);
                }
                if !transposed && Kernel::Int8.available(dtype) {
                    let got = run(Kernel::Int8, 3);
                    assert_within(&got, &want, |i| 1e-2 * sizes[i] + 1e-3, &what);
                    assert_eq!(got, run(Kernel::Int8, 1), "threads, {what}");
                }
            }
        }
    }
}

#[test]
fn biases_and_sums() {
    let mut rng = Rng(3);
    for [_, m, n, n_used, t] in SHAPES {
        let (scores, x, bias) = (rng.values(n * t), rng.values(m * n_used * t), rng.values(m * n));
        let got = eval(&mut executor(2), |b, feed| {
            let chosen = b.top_k(feed.f32(b, &[n, t], &scores)?, n_used)?;
            let x = feed.f32(b, &[m, n_used, t], &x)?;
            b.sum_places(b.add_chosen(x, feed.f32(b, &[m, n], &bias)?, chosen)?)
        })
        .unwrap();
        let ids = largest(&scores, n, n_used);
        let mut want = vec![0.0; m * t];
        for (row, e) in ids.iter().enumerate() {
            for i in 0..m {
                want[row / n_used * m + i] += f64::from(x[row * m + i]) + f64::from(bias[e * m + i]);
            }
        }
        assert_within(&got, &want, |_| 1e-5, "sums");
    }
}

#[test]
fn gradients_of_a_router_through_the_ops_it_is_made_of() {
    // The loss is the product of the weights with d_weights, its slope by differences of ggml's forward ops.
    let (n, n_used, t) = (6usize, 3usize, 4usize);
    let mut rng = Rng(4);
    let (logits, d_weights) = (rng.values(n * t), rng.values(n_used * t));
    let logits: Vec<f32> = logits.iter().map(|x| 2.0 * x).collect();
    for (kind, normalised) in
        [(GatingKind::Softmax, true), (GatingKind::Softmax, false), (GatingKind::SoftmaxOfChosen, false)]
    {
        let gating = Gating { kind, normalised };
        let weights = |logits: &[f32]| {
            eval(&mut executor(1), |b, feed| {
                let x = feed.f32(b, &[n, t], logits)?;
                let p = if kind == GatingKind::Softmax { b.soft_max(x)? } else { x };
                let mut w = b.of_chosen(p, b.top_k(p, n_used)?)?;
                if kind == GatingKind::SoftmaxOfChosen {
                    w = b.soft_max(w)?;
                }
                if normalised {
                    w = b.div(w, b.clamp(b.sum_rows(w)?, 1e-4, f32::INFINITY)?)?;
                }
                Ok(w)
            })
            .unwrap()
        };
        let got = eval(&mut executor(2), |b, feed| {
            let x = feed.f32(b, &[n, t], &logits)?;
            let chosen = b.top_k(x, n_used)?;
            b.router_back(x, chosen, feed.f32(b, &[n_used, t], &d_weights)?, gating)
        })
        .unwrap();
        for (i, got) in got.iter().enumerate() {
            let loss = |step: f32| {
                let mut x = logits.clone();
                x[i] += step;
                weights(&x).iter().zip(&d_weights).map(|(w, d)| f64::from(w * d)).sum::<f64>()
            };
            let slope = (loss(1e-2) - loss(-1e-2)) / 2e-2;
            assert!((slope - f64::from(*got)).abs() < 2e-4, "{gating:?} {i}: {slope} {got}");
        }
    }
}

#[test]
fn gradients_of_the_activation_of_gpt_oss() {
    let mut rng = Rng(5);
    let (n, shape) = (40 * 3 * 2, [40, 3, 2]);
    let ten = |x: Vec<f32>| x.into_iter().map(|x| 10.0 * x).collect::<Vec<_>>();
    let (grad, gate, up) = (rng.values(n), ten(rng.values(n)), ten(rng.values(n)));
    let numbers = [1.702, 7.0];
    let value = |g: f64, u: f64| {
        let (x, y) = (g.min(7.0), u.clamp(-7.0, 7.0));
        x / (1.0 + (-1.702 * x).exp()) * (y + 1.0)
    };
    let forward = eval(&mut executor(2), |b, feed| {
        b.swiglu_oai(feed.f32(b, &shape, &gate)?, feed.f32(b, &shape, &up)?, numbers)
    })
    .unwrap();
    let want: Vec<f64> = gate.iter().zip(&up).map(|(g, u)| value(f64::from(*g), f64::from(*u))).collect();
    assert_within(&forward, &want, |i| 1e-6 * (1.0 + want[i].abs()), "forward");
    let got = eval(&mut executor(2), |b, feed| {
        let [d, g, u] = [&grad, &gate, &up].map(|x| feed.f32(b, &shape, x).unwrap());
        b.swiglu_oai_back(d, g, u, numbers)
    })
    .unwrap();
    for i in 0..n {
        let (d, g, u) = (f64::from(grad[i]), f64::from(gate[i]), f64::from(up[i]));
        let slopes = [
            (value(g + 1e-6, u) - value(g - 1e-6, u)) / 2e-6 * d,
            (value(g, u + 1e-6) - value(g, u - 1e-6)) / 2e-6 * d,
        ];
        for (part, slope) in slopes.into_iter().enumerate() {
            let got = f64::from(got[i / 40 * 80 + part * 40 + i % 40]);
            assert!((got - slope).abs() < 1e-4 * (1.0 + slope.abs()), "{part} {i}: {got} {slope}");
        }
    }
}

#[test]
fn wrong_shapes_and_types_are_refused() {
    use DType::*;
    with(|b| {
        let t = |dtype, shape: &[usize]| b.input("t", dtype, shape).unwrap().1;
        let scores = t(F32, &[6, 5]);
        let chosen = b.top_k(scores, 2)?;
        for (wrong, k) in [(scores, 0), (scores, 7), (t(F16, &[6, 5]), 2), (t(F32, &[6, 5, 2]), 2)] {
            refused(b.top_k(wrong, k), "top_k");
        }
        for wrong in [t(F32, &[5, 5]), t(F32, &[6, 4]), t(F16, &[6, 5]), b.columns(t(F32, &[7, 5]), 0, 6)?] {
            refused(b.of_chosen(wrong, chosen), "of_chosen");
        }
        let (w, x) = (t(Q8_0, &[32, 64, 6]), t(F32, &[32, 1, 5]));
        assert_eq!(b.matmul_experts(Kernel::Ggml, w, x, chosen, false)?.ne(), [64, 2, 5, 1]);
        assert_eq!(b.matmul_experts(Kernel::F32, w, t(F32, &[32, 2, 5]), chosen, false)?.ne(), [64, 2, 5, 1]);
        assert_eq!(b.matmul_experts(Kernel::F32, w, t(F32, &[64, 1, 5]), chosen, true)?.ne(), [32, 2, 5, 1]);
        for wrong in
            [t(Q8_0, &[64, 64, 6]), t(Q8_0, &[32, 64, 5]), t(I32, &[32, 64, 6]), t(Q8_0, &[32, 64, 6, 2])]
        {
            for kernel in Kernel::ALL {
                refused(b.matmul_experts(kernel, wrong, x, chosen, false), "matmul_experts");
            }
        }
        let floats = t(F16, &[32, 64, 6]);
        refused(b.matmul_experts(Kernel::Int8, floats, x, chosen, false), "matmul_experts");
        for kernel in [Kernel::Int16, Kernel::HalfFloats, Kernel::Bf16x3] {
            refused(b.matmul_experts(kernel, w, x, chosen, false), "matmul_experts");
        }
        for wrong in [t(F32, &[32, 3, 5]), t(F32, &[32, 2, 4]), t(F16, &[32, 2, 5]), t(F32, &[32, 2, 5, 2])] {
            for kernel in Kernel::ALL {
                refused(b.matmul_experts(kernel, w, wrong, chosen, false), "matmul_experts");
            }
        }
        for kernel in Kernel::ALL {
            refused(b.matmul_experts(kernel, w, x, chosen, true), "matmul_experts");
        }
        refused(b.matmul_experts(Kernel::Int8, w, t(F32, &[64, 1, 5]), chosen, true), "matmul_experts");
        let y = t(F32, &[64, 2, 5]);
        assert_eq!(b.add_chosen(y, t(F32, &[64, 6]), chosen)?.ne(), [64, 2, 5, 1]);
        for wrong in [t(F32, &[64, 5]), t(F32, &[63, 6]), t(F16, &[64, 6])] {
            refused(b.add_chosen(y, wrong, chosen), "add_chosen");
        }
        refused(b.add_chosen(t(F32, &[64, 2, 4]), t(F32, &[64, 6]), chosen), "add_chosen");
        refused(b.sum_places(t(F16, &[64, 2, 5])), "sum_places");
        refused(b.sum_places(t(F32, &[64, 2, 5, 2])), "sum_places");
        let gating = Gating { kind: GatingKind::Softmax, normalised: true };
        let d = t(F32, &[2, 5]);
        assert_eq!(b.router_back(scores, chosen, d, gating)?.ne(), [6, 5, 1, 1]);
        refused(b.router_back(t(F32, &[6, 4]), chosen, d, gating), "router_back");
        refused(b.router_back(scores, chosen, t(F32, &[3, 5]), gating), "router_back");
        for (other, numbers) in [(t(F32, &[64, 2, 4]), [1.0, 1.0]), (y, [f32::NAN, 1.0]), (y, [1.0, 0.0])] {
            refused(b.swiglu_oai(y, other, numbers), "swiglu_oai");
            refused(b.swiglu_oai_back(y, y, other, numbers), "swiglu_oai_back");
        }
        refused(b.clamp(y, 1.0, 0.0), "clamp");
        refused(b.clamp(y, f32::NAN, 0.0), "clamp");
        refused(b.div(y, t(F32, &[3])), "div");
        Ok(())
    });
}
