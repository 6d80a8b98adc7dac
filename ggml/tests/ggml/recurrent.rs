//! Ops of recurrent layers against loops in f64.

use crate::common::*;
use ggml::recurrent::DeltaRule;
use ggml::{DType, Error};

#[test]
fn a_convolution_of_each_channel() {
    let mut rng = Rng(1);
    for (n_conv, channels, n, s) in [(2, 1, 1, 1), (4, 7, 1, 3), (4, 40, 9, 2), (3, 64, 100, 1)] {
        let time = n_conv - 1 + n;
        let (x, w) = (rng.values(time * channels * s), rng.values(n_conv * channels));
        let got = eval(&mut executor(2), |b, feed| {
            let x = feed.f32(b, &[time, channels, s], &x)?;
            b.ssm_conv(x, feed.f32(b, &[n_conv, channels], &w)?)
        });
        let terms = |seq: usize, t: usize, c: usize| {
            let seen = &x[(seq * channels + c) * time + t..][..n_conv];
            seen.iter().zip(&w[c * n_conv..]).map(|(&x, &w)| f64::from(x) * f64::from(w))
        };
        let all = (0..s).flat_map(|seq| (0..n).flat_map(move |t| (0..channels).map(move |c| (seq, t, c))));
        let of = all
            .map(|(seq, t, c)| (terms(seq, t, c).sum::<f64>(), terms(seq, t, c).map(f64::abs).sum::<f64>()));
        let (want, sizes): (Vec<f64>, Vec<f64>) = of.unzip();
        // A product and a sum for each term.
        let bound = |i: usize| rounding(n_conv + 1) * sizes[i];
        assert_within(&got.unwrap(), &want, bound, &format!("{n_conv} {channels} {n} {s}"));
    }
}

#[test]
fn softplus_is_what_it_says() {
    let x: Vec<f32> = (-200..200).map(|i| i as f32 / 5.0).collect();
    let got = eval(&mut executor(1), |b, feed| b.softplus(feed.f32(b, &[x.len(), 1], &x)?)).unwrap();
    let want: Vec<f64> = x.iter().map(|&x| f64::from(x).exp().ln_1p()).collect();
    // Logarithms and exponentials are right to a unit in the last place, 2 of these, and their sum has one
    // more; near 0 the logarithm is as far off as the sum.
    assert_within(&got, &want, |i| UNIT * (3.0 + 2.0 * want[i]), "softplus");
}

#[test]
fn the_gated_delta_rule_token_by_token() {
    let mut rng = Rng(2);
    for [d, h_k, h, n, s] in [[4, 1, 1, 1, 1], [8, 2, 2, 5, 1], [16, 2, 6, 3, 2], [32, 4, 4, 33, 3]] {
        let (q, v) = (rng.values(d * h_k * n * s), rng.values(d * h * n * s));
        // Longer keys would make states grow.
        let k: Vec<f32> = rng.values(d * h_k * n * s).iter().map(|x| x / (d as f32).sqrt()).collect();
        let g: Vec<f32> = rng.values(h * n * s).iter().map(|x| -x.abs()).collect();
        let (beta, before) = (rng.values(h * n * s), rng.values(d * d * h * s));
        let got = eval_all(&mut executor(3), 1, |b, feed| {
            let rule = DeltaRule {
                q: feed.f32(b, &[d, h_k, n, s], &q)?,
                k: feed.f32(b, &[d, h_k, n, s], &k)?,
                v: feed.f32(b, &[d, h, n, s], &v)?,
                g: feed.f32(b, &[1, h, n, s], &g)?,
                beta: feed.f32(b, &[1, h, n, s], &beta)?,
                state: feed.f32(b, &[d, d, h, s], &before)?,
            };
            let [out, state] = b.gated_delta_net(rule)?;
            Ok([b.cont(out)?, b.cont(state)?])
        });
        // With each value, how far it may be off.
        let (mut outs, mut states) = (vec![(0.0, 0.0); d * h * n * s], vec![(0.0, 0.0); d * d * h * s]);
        for (seq, head) in (0..s).flat_map(|seq| (0..h).map(move |head| (seq, head))) {
            // Rows of the state are those of the values.
            let at = (seq * h + head) * d * d;
            let mut state: Vec<(f64, f64)> =
                before[at..at + d * d].iter().map(|&x| (x.into(), 0.0)).collect();
            for t in 0..n {
                let of_key =
                    &|x: &[f32], i: usize| -> f64 { x[((seq * n + t) * h_k + head % h_k) * d + i].into() };
                let row = (seq * n + t) * h + head;
                let (decay, learn) = (f64::from(g[row]).exp(), f64::from(beta[row]));
                // An exponential is right to 2 of these units; a product.
                let decayed = |(x, off): (f64, f64)| (x * decay, decay * (off + 3.0 * UNIT * x.abs()));
                state.iter_mut().for_each(|x| *x = decayed(*x));
                for j in 0..d {
                    let own = &mut state[j * d..(j + 1) * d];
                    let (known, known_off) = product(own, |i| of_key(&k, i));
                    let missing = f64::from(v[row * d + j]) - known;
                    // A difference, its product with the rate, that with the key, and a sum.
                    let new_off = learn.abs() * (known_off + 3.0 * UNIT * missing.abs());
                    for (i, (x, off)) in own.iter_mut().enumerate() {
                        *x += learn * missing * of_key(&k, i);
                        *off += new_off * of_key(&k, i).abs() + UNIT * x.abs();
                    }
                    let (out, off) = product(own, |i| of_key(&q, i));
                    let root = (d as f64).sqrt();
                    // A root, its inverse, a product.
                    outs[row * d + j] = (out / root, (off + 3.0 * UNIT * out.abs()) / root);
                }
            }
            states[at..at + d * d].copy_from_slice(&state);
        }
        for (got, all) in got.unwrap().iter().zip([&outs, &states]) {
            let (want, off): (Vec<f64>, Vec<f64>) = all.iter().copied().unzip();
            assert_within(got, &want, |i| off[i], &format!("{d} {h_k} {h} {n} {s}"));
        }
    }
}

/// The product of a row of a state and a vector, and how far it may be off: a product and a sum for each
/// term, and what the row is off.
fn product(row: &[(f64, f64)], of: impl Fn(usize) -> f64) -> (f64, f64) {
    let (mut sum, mut off) = (0.0, 0.0);
    for (i, (x, x_off)) in row.iter().enumerate() {
        sum += x * of(i);
        off += of(i).abs() * (x_off + rounding(row.len() + 1) * x.abs());
    }
    (sum, off)
}

#[test]
fn what_does_not_fit_is_refused() {
    let refused =
        |result: ggml::Result<Vec<f32>>| assert!(matches!(result, Err(Error::Op { .. })), "{result:?}");
    // Arguments by shape: q, k, v, g, beta, state.
    let good = [[4, 2, 3, 2], [4, 2, 3, 2], [4, 4, 3, 2], [1, 4, 3, 2], [1, 4, 3, 2], [4, 4, 4, 2]];
    let rule = |shapes: [[usize; 4]; 6]| {
        eval(&mut executor(1), |b, _| {
            let input = |i: usize| b.input("x", DType::F32, &shapes[i]).map(|x| x.1);
            let [q, k, v] = [input(0)?, input(1)?, input(2)?];
            let rule = DeltaRule { q, k, v, g: input(3)?, beta: input(4)?, state: input(5)? };
            b.cont(b.gated_delta_net(rule)?[0])
        })
    };
    for (arg, dim) in (0..6).flat_map(|arg| (0..4).map(move |dim| (arg, dim))) {
        let mut shapes = good;
        shapes[arg][dim] += 1;
        refused(rule(shapes));
    }
    // Three heads of keys do not divide into four of values.
    let mut shapes = good;
    (shapes[0][1], shapes[1][1]) = (3, 3);
    refused(rule(shapes));
    for (x, w) in [
        ([5, 3, 1, 1], [4, 4, 1]),
        ([3, 3, 1, 1], [4, 3, 1]),
        ([5, 3, 1, 2], [4, 3, 1]),
        ([5, 3, 1, 1], [4, 3, 2]),
    ] {
        refused(eval(&mut executor(1), |b, _| {
            let (x, w) = (b.input("x", DType::F32, &x)?.1, b.input("w", DType::F32, &w)?.1);
            b.ssm_conv(x, w)
        }));
    }
}
