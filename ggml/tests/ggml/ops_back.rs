//! Gradients of ops against finite differences of naive forward ones in f64, sums, and results added into
//! stores.

use crate::common::*;
use ggml::graph::Builder;
use ggml::matmul::Kernel;
use ggml::ops::RopeParams;
use ggml::tensor::Tensor;
use ggml::{DType, Result};

/// The gradient of `sum(grad * f(x))` by central differences: of fourth order, so that the step need not be
/// small.
fn differences(x: &[f64], grad: &[f64], f: impl Fn(&[f64]) -> Vec<f64>) -> Vec<f64> {
    let loss = |x: &[f64]| f(x).iter().zip(grad).map(|(y, g)| y * g).sum::<f64>();
    let h = 1e-3;
    (0..x.len())
        .map(|i| {
            let at = |step: f64| {
                let mut x = x.to_vec();
                x[i] += step * h;
                loss(&x)
            };
            (8.0 * (at(1.0) - at(-1.0)) - (at(2.0) - at(-2.0))) / (12.0 * h)
        })
        .collect()
}

/// How far [`differences`] of numbers and derivatives of order 1 are off at most: the step's fourth power
/// over 30, and roundings in f64 over the step.
const STEP: f64 = 1e-9;

/// Random gradients and inputs of n rows, each as floats, and the op on them; then the same input's gradient
/// by differences. `off` says of a row's gradient and input how far each result may be off.
fn agree(
    n: usize,
    rows: usize,
    what: &str,
    op: impl for<'c> Fn(&Builder<'c>, Tensor<'c>, Tensor<'c>) -> Result<Tensor<'c>>,
    forward: impl Fn(&[f64]) -> Vec<f64>,
    off: impl Fn(&[f64], &[f64]) -> Vec<f64>,
) {
    let mut rng = Rng((n * 100 + rows) as u64);
    let (grad, x): (Vec<f32>, Vec<f32>) = (rng.values(n * rows), rng.values(n * rows));
    let x: Vec<f32> = x.iter().map(|x| 3.0 * x).collect();
    for mut exec in [executor(1), executor(3), portable()] {
        let got =
            eval(&mut exec, |b, feed| op(b, feed.f32(b, &[n, rows], &grad)?, feed.f32(b, &[n, rows], &x)?))
                .unwrap();
        let want = differences(&to_f64(&x), &to_f64(&grad), &forward);
        let rows_off = grad.chunks(n).zip(x.chunks(n)).flat_map(|(g, x)| off(&to_f64(g), &to_f64(x)));
        let off: Vec<f64> = rows_off.collect();
        assert_within(&got, &want, |i| off[i] + STEP, &format!("{what} [{n}, {rows}]"));
    }
}

fn by_rows(n: usize, f: impl Fn(&[f64]) -> Vec<f64>) -> impl Fn(&[f64]) -> Vec<f64> {
    move |x| x.chunks(n).flat_map(&f).collect()
}

/// How far the slope of [`silu`] may be off, `s (1 + x (1 - s))` of the logistic function `s`: its products
/// and sums.
fn slope_off(x: f64) -> f64 {
    let (s, parts) = logistic(x);
    let rest = 1.0 - s;
    let inner_off = x.abs() * (s * parts + 2.0 * UNIT * rest) + UNIT;
    s * ((1.0 + x * rest).abs() * (parts + 3.0 * UNIT) + inner_off)
}

/// How far the gradient of a norm may be off, `(d - x sum(x d) / sum(x x)) / rms`: sums of n products, a root
/// and its inverse, products and quotients.
fn norm_back_off(d: &[f64], x: &[f64], eps: f64) -> Vec<f64> {
    let n = x.len();
    let square = x.iter().map(|x| x * x).sum::<f64>() / n as f64 + eps;
    let along = x.iter().zip(d).map(|(x, d)| (x * d).abs()).sum::<f64>() / n as f64 / square;
    // The quotient of both sums, and the root of one.
    let off = |(d, x): (&f64, &f64)| (d.abs() + 3.0 * (x * along).abs()) * rounding(n + 8) / square.sqrt();
    d.iter().zip(x).map(off).collect()
}

fn normed(x: &[f64], eps: f64) -> Vec<f64> {
    let rms = (x.iter().map(|x| x * x).sum::<f64>() / x.len() as f64 + eps).sqrt();
    x.iter().map(|x| x / rms).collect()
}

#[test]
fn gradients_of_norms_and_gates() {
    for (n, rows) in [(1, 1), (1, 5), (7, 3), (32, 1), (40, 9)] {
        for eps in [1e-5, 0.5] {
            let forward = by_rows(n, |x| normed(x, f64::from(eps as f32)));
            let off = |d: &[f64], x: &[f64]| norm_back_off(d, x, eps);
            agree(n, rows, "rms_norm_back", |b, g, x| b.rms_norm_back(g, x, eps as f32), forward, off);
        }
        let forward = by_rows(n, |x| x.iter().map(|&x| silu(x).0).collect());
        let off = |d: &[f64], x: &[f64]| d.iter().zip(x).map(|(d, &x)| d.abs() * slope_off(x)).collect();
        agree(n, rows, "silu_back", |b, g, x| b.silu_back(g, x), forward, off);
    }
}

#[test]
fn gradients_of_a_gated_unit() {
    for (n, rows) in [(1, 1), (5, 3), (33, 7)] {
        let mut rng = Rng(n as u64);
        let d = rng.values(n * rows);
        let gate: Vec<f32> = rng.values(n * rows).iter().map(|x| 8.0 * x).collect();
        let up = rng.values(n * rows);
        // Inputs as one row each: the gate and then the other, as the result has them.
        let both: Vec<f32> = gate.chunks(n).zip(up.chunks(n)).flat_map(|(g, u)| [g, u].concat()).collect();
        let forward = by_rows(2 * n, |x| (0..n).map(|i| silu(x[i]).0 * x[n + i]).collect());
        let want = differences(&to_f64(&both), &to_f64(&d), forward);
        // Two products with what the slope is, one with the function.
        let off = |i: usize| {
            let (row, i) = (i / (2 * n), i % (2 * n));
            let at = row * n + i % n;
            let [d, gate, up] = [d[at], gate[at], up[at]].map(f64::from);
            let (y, y_off) = silu(gate);
            let slope = want[row * 2 * n + i].abs();
            STEP + match i < n {
                true => (d * up).abs() * slope_off(gate) + 2.0 * UNIT * slope,
                false => d.abs() * (y_off + UNIT * y.abs()),
            }
        };
        for threads in [1, 3] {
            let mut exec = executor(threads);
            let got = eval(&mut exec, |b, feed| {
                let both = feed.f32(b, &[2 * n, rows], &both)?;
                let (gate, up) = (b.columns(both, 0, n)?, b.columns(both, n, n)?);
                b.swiglu_back(feed.f32(b, &[n, rows], &d)?, gate, up)
            })
            .unwrap();
            assert_within(&got, &want, off, "swiglu_back");
            // The same from ops that every device has.
            let plain = eval(&mut exec, |b, feed| {
                let (gate, up) = (feed.f32(b, &[n, rows], &gate)?, feed.f32(b, &[n, rows], &up)?);
                let d = feed.f32(b, &[n, rows], &d)?;
                b.concat(b.silu_back(b.mul(d, up)?, gate)?, b.mul(d, b.silu(gate)?)?, 0)
            })
            .unwrap();
            assert_within(&plain, &want, off, "silu_back and silu");
        }
    }
}

#[test]
fn gradient_of_rope() {
    let (d, n_head, n_tokens) = (16usize, 3usize, 5usize);
    let pos: Vec<i32> = vec![0, 1, 7, 300, 2];
    let mut rng = Rng(2);
    let factors: Vec<f32> = (0..d / 2).map(|_| 1.0 + rng.unit().abs()).collect();
    for (n_dims, neox) in [(16, true), (16, false), (8, true), (6, false)] {
        let p = RopeParams { n_dims, neox, freq_base: 100.0, freq_scale: 0.5, mscale: 1.3 };
        let heads = Heads { d, n_head, n_rot: n_dims, halves: neox };
        let theta =
            |_: usize, j: usize| 0.5 * 100f64.powf(-2.0 * j as f64 / n_dims as f64) / f64::from(factors[j]);
        let (grad, x) = (rng.values(d * n_head * n_tokens), rng.values(d * n_head * n_tokens));
        let want = differences(&to_f64(&x), &to_f64(&grad), |x| heads.rotate(x, &pos, theta, 1.3));
        // The op's mscale is on the rotation, whose gradient has it once, too.
        let got = eval(&mut executor(2), |b, feed| {
            let g = feed.f32(b, &[d, n_head, n_tokens], &grad)?;
            b.rope(g, feed.i32(b, &pos)?, Some(feed.f32(b, &[d / 2], &factors)?), &p, true)
        })
        .unwrap();
        // A quotient by the factor, and the scale.
        let parts = |j: usize| series_off(100.0, n_dims, j) + 2.0 * UNIT;
        let off = |i: usize| heads.off(i, &pos, theta, parts, 1.3) + STEP;
        assert_within(&got, &want, off, &format!("rope_back {p:?}"));
    }
}

#[test]
fn gradient_of_a_norms_weight() {
    // y = w * rms_norm(x): dw = sum over tokens of grad * rms_norm(x), by an outer product with ones and by
    // sums of rows.
    let (n, rows) = (37usize, 11usize);
    let mut rng = Rng(4);
    let (grad, x, w) = (rng.values(n * rows), rng.values(n * rows), rng.values(n));
    let forward = |w: &[f64]| -> Vec<f64> {
        let rows = x.chunks(n).map(|x| normed(&to_f64(x), f64::from(1e-5f32)));
        rows.flat_map(|y| y.iter().zip(w).map(|(y, w)| y * w).collect::<Vec<_>>()).collect()
    };
    let want = differences(&to_f64(&w), &to_f64(&grad), forward);
    // A norm of n products, and the sum of its products with the gradients of all rows.
    let normed = forward(&vec![1.0; n]);
    let size = |i: usize| (0..rows).map(|t| (f64::from(grad[t * n + i]) * normed[t * n + i]).abs()).sum();
    let sizes: Vec<f64> = (0..n).map(size).collect();
    for by_outer in [true, false] {
        let got = eval(&mut executor(1), |b, feed| {
            let y = b.rms_norm(feed.f32(b, &[n, rows], &x)?, 1e-5)?;
            let product = b.mul(feed.f32(b, &[n, rows], &grad)?, y)?;
            if by_outer {
                b.gemm_outer(Kernel::F32, product, feed.f32(b, &[1, rows], &vec![1.0; rows])?)
            } else {
                b.sum_rows(b.cont(b.permute(product, [1, 0, 2, 3])?)?)
            }
        })
        .unwrap();
        assert_within(
            &got,
            &want,
            |i| rounding(n + rows + 9) * sizes[i] + STEP,
            "gradient of a norm's weight",
        );
    }
}

#[test]
fn elementwise_ops_and_sums() {
    let (n, rows) = (19usize, 6usize);
    let mut rng = Rng(6);
    let (x, y) = (rng.values(n * rows), rng.values(n));
    let run = |op: &dyn for<'c> Fn(&Builder<'c>, Tensor<'c>, Tensor<'c>) -> Result<Tensor<'c>>| {
        eval(&mut executor(2), |b, feed| op(b, feed.f32(b, &[n, rows], &x)?, feed.f32(b, &[n], &y)?)).unwrap()
    };
    let want: Vec<f32> = x.iter().enumerate().map(|(i, x)| x - y[i % n]).collect();
    assert_eq!(run(&|b, x, y| b.sub(x, y)), want);
    let x64 = to_f64(&x);
    let (want, off): (Vec<f64>, Vec<f64>) = x64.iter().map(|&x| silu(x)).unzip();
    assert_within(&run(&|b, x, _| b.silu(x)), &want, |i| off[i], "silu");
    let sum = |r: &[f64]| (r.iter().sum::<f64>(), rounding(n) * r.iter().map(|x| x.abs()).sum::<f64>());
    let (want, off): (Vec<f64>, Vec<f64>) = x64.chunks(n).map(sum).unzip();
    assert_within(&run(&|b, x, _| b.sum_rows(x)), &want, |i| off[i], "sum_rows");
}

#[test]
fn stores_are_added_to_in_place() {
    let mut rng = Rng(8);
    let (n, rows) = (32usize, 6usize);
    let before = rng.values(n * rows);
    let x = rng.values(n * 2);
    for threads in [1, 3] {
        // Rows 1 and 3 of a tensor, twice in one graph: both additions count.
        let (t, _) = stored(DType::F32, &[n, rows], &before);
        let got = eval(&mut executor(threads), |b, feed| {
            let at = b.stored(&t)?;
            let part = b.view(at, [n, 2, 1, 1], [8 * n, 16 * n, 16 * n], 4 * n)?;
            let x = feed.f32(b, &[n, 2], &x)?;
            b.cont(b.add_into(b.add_into(part, x)?, x)?)
        })
        .unwrap();
        let mut want = before.clone();
        for (row, x) in [1, 3].iter().zip(x.chunks(n)) {
            want[row * n..][..n].iter_mut().zip(x).for_each(|(w, x)| *w = *w + x + x);
        }
        assert_eq!(contents(&t), want);
        assert_eq!(got, [&want[n..2 * n], &want[3 * n..4 * n]].concat());
    }
}

#[test]
fn what_cannot_be_written_or_has_another_shape_is_refused() {
    use DType::*;
    let (t, _) = stored(F32, &[8, 4], &[0.0; 32]);
    let (half, _) = stored(F16, &[8, 4], &[0.0; 32]);
    with(|b| {
        let new = |dtype, shape: &[usize]| b.input("t", dtype, shape).unwrap().1;
        let x = new(F32, &[8, 4]);
        let at = b.stored(&t)?;
        b.add_into(at, x)?;
        // Not stored, another shape, another type, the same memory, rows over each other.
        refused(b.add_into(x, x), "add_into");
        refused(b.add_into(at, new(F32, &[8, 1])), "add_into");
        refused(b.add_into(b.stored(&half)?, x), "add_into");
        refused(b.add_into(at, new(F16, &[8, 4])), "add_into");
        refused(b.add_into(at, at), "add_into");
        let again = b.stored(&t)?;
        refused(b.add_into(b.columns(at, 0, 4)?, b.columns(again, 2, 4)?), "add_into");
        let over = b.view(at, [8, 3, 1, 1], [16, 128, 128], 0)?;
        refused(b.add_into(over, new(F32, &[8, 3])), "add_into");

        let turned = b.permute(new(F32, &[4, 8]), [1, 0, 2, 3])?;
        for wrong in [new(F16, &[8, 4]), turned] {
            refused(b.sub(wrong, x), "sub");
            refused(b.silu(wrong), "silu");
            refused(b.sum_rows(wrong), "sum_rows");
        }
        for wrong in [new(F16, &[8, 4]), turned, new(F32, &[8, 5]), new(F32, &[8, 4, 2])] {
            refused(b.rms_norm_back(wrong, x, 1e-5), "rms_norm_back");
            refused(b.rms_norm_back(x, wrong, 1e-5), "rms_norm_back");
            refused(b.silu_back(wrong, x), "silu_back");
            refused(b.silu_back(x, wrong), "silu_back");
            refused(b.swiglu_back(wrong, x, x), "swiglu_back");
            refused(b.swiglu_back(x, wrong, x), "swiglu_back");
            refused(b.swiglu_back(x, x, wrong), "swiglu_back");
        }
        // Rows with gaps, which some devices would read without them.
        let gaps = b.columns(new(F32, &[16, 4]), 0, 8)?;
        for (grad, x) in [(gaps, x), (x, gaps)] {
            refused(b.rms_norm_back(grad, x, 1e-5), "rms_norm_back");
            refused(b.silu_back(grad, x), "silu_back");
        }
        refused(b.rms_norm_back(x, x, -1.0), "rms_norm_back");
        refused(b.sub(x, new(F32, &[3, 4])), "sub");
        let p = RopeParams { n_dims: 8, neox: true, freq_base: 1e4, freq_scale: 1.0, mscale: 1.0 };
        refused(b.rope(new(F32, &[8, 1, 4]), new(I32, &[3]), None, &p, true), "rope_back");
        refused(b.rope(new(F32, &[7, 1, 4]), new(I32, &[4]), None, &p, true), "rope_back");
        Ok(())
    });
}
