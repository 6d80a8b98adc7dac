//! Ops against naive ones in f64 on random shapes: products, norms, gates, rows, softmax.

use crate::common::*;
use crate::soft_max::{Score, SoftMax};
use ggml::{DType, Error};

/// Largest magnitude in each block of `n` of a row.
fn block_max(row: &[f32], n: usize) -> Vec<f64> {
    let max = |c: &[f32]| c.iter().fold(0.0f64, |m, &x| m.max(f64::from(x.abs())));
    row.chunks(n).flat_map(|c| std::iter::repeat_n(max(c), c.len())).collect()
}

/// How far a product may be off: what rounding the activations (and summing in f32) can do at most.
pub(crate) fn product_bound(dtype: DType, w: &[f32], x: &[f32]) -> f64 {
    let terms: f64 = w.iter().zip(x).map(|(w, x)| f64::from((w * x).abs())).sum();
    // Each term, and what quantized blocks are multiplied by.
    let f32_sum = terms * rounding(2 * w.len()) + 1e-9;
    match dtype {
        DType::F32 => f32_sum,
        DType::F16 => terms * 2f64.powi(-10) + f32_sum,
        DType::BF16 => terms * 2f64.powi(-8) + f32_sum,
        _ => {
            // 8-bit activations: half a step of the block, and scales and sums kept as f16.
            let block = if dtype.block_size() == 256 { 256 } else { 32 };
            let w_max = w.iter().fold(0.0f64, |m, &w| m.max(f64::from(w.abs())));
            let steps: f64 =
                w.iter().zip(block_max(x, block)).map(|(w, m)| f64::from(w.abs()) * m / 254.0).sum();
            let scales: f64 = x.iter().map(|x| f64::from(x.abs())).sum::<f64>() * w_max * 2f64.powi(-10);
            1.02 * steps + scales + f32_sum
        }
    }
}

#[test]
fn mul_mat_of_every_weight_type() {
    let mut rng = Rng(1);
    for threads in [1, 3] {
        let mut exec = executor(threads);
        for &dtype in DType::ALL.iter().filter(|d| d.can_quantize()) {
            let unit = dtype.block_size().max(16);
            let (k, m) = (unit * rng.int(1, 3), rng.pick(&[1, 3, 17, 48, 64]));
            let n = rng.pick(&[1, 2, 5, 8, 33, 64]);
            let (wt, w) = stored(dtype, &[k, m], &rng.values(k * m));
            let x = rng.values(k * n);
            let got =
                eval(&mut exec, |b, feed| b.mul_mat(b.stored(&wt)?, feed.f32(b, &[k, n], &x)?)).unwrap();
            let mut want = Vec::new();
            let mut bounds = Vec::new();
            for x in x.chunks(k) {
                for w in w.chunks(k) {
                    want.push(w.iter().zip(x).map(|(w, x)| f64::from(*w) * f64::from(*x)).sum());
                    bounds.push(product_bound(dtype, w, x));
                }
            }
            assert_within(
                &got,
                &want,
                |i| bounds[i],
                &format!("{dtype} [{k},{m}] x [{k},{n}], {threads} threads"),
            );
        }
    }
}

#[test]
fn mul_mat_with_grouped_heads_and_strided_views() {
    let mut rng = Rng(2);
    let mut exec = executor(2);
    for dtype in [DType::F32, DType::F16, DType::Q8_0] {
        for _ in 0..8 {
            // Keys as a cache has them: a cell's heads side by side, seen as [d, cells, heads].
            let (d, kv, group) = (32 * rng.int(1, 3), rng.int(1, 3), rng.int(1, 4));
            let (cells, used, n) = (rng.int(8, 40), rng.int(1, 8), rng.int(1, 9));
            let heads = kv * group;
            let (cache, held) = stored(dtype, &[d * kv, cells], &rng.values(d * kv * cells));
            let q = rng.values(d * heads * n);
            let got = eval(&mut exec, |b, feed| {
                let k = heads_of(b, b.stored(&cache)?, d, used, kv)?;
                let q = b.permute(feed.f32(b, &[d, heads, n], &q)?, [0, 2, 1, 3])?;
                b.mul_mat(k, q)
            })
            .unwrap();
            let mut want = Vec::new();
            let mut bounds = Vec::new();
            for h in 0..heads {
                for t in 0..n {
                    for c in 0..used {
                        let k = &held[c * d * kv + h / group * d..][..d];
                        let q = &q[(t * heads + h) * d..][..d];
                        want.push(k.iter().zip(q).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum());
                        bounds.push(product_bound(dtype, k, q));
                    }
                }
            }
            assert_within(&got, &want, |i| bounds[i], &format!("{dtype} d {d} kv {kv} heads {heads} n {n}"));
        }
    }
}

#[test]
fn norms_sums_and_gates() {
    let mut rng = Rng(3);
    for mut exec in [executor(1), executor(3), portable()] {
        for _ in 0..10 {
            let (n, t) = (rng.int(1, 70), rng.int(1, 9));
            let (x, y, w) = (rng.values(2 * n * t), rng.values(n * t), rng.values(n));
            let half = |i: usize| f64::from(x[i / n * 2 * n + i % n]);

            // The norm of a view of every row's first half, times a weight.
            let got = eval(&mut exec, |b, feed| {
                let v = b.columns(feed.f32(b, &[2 * n, t], &x)?, 0, n)?;
                b.mul(b.rms_norm(v, 1e-5)?, feed.f32(b, &[n], &w)?)
            })
            .unwrap();
            let rms = |row: usize| {
                let sum: f64 = (0..n).map(|i| half(row * n + i).powi(2)).sum();
                (sum / n as f64 + 1e-5).sqrt()
            };
            let want: Vec<f64> = (0..n * t).map(|i| half(i) / rms(i / n) * f64::from(w[i % n])).collect();
            // A sum of n squares, its root and the inverse of that, and products.
            assert_within(&got, &want, |i| rounding(n + 8) * want[i].abs(), "rms_norm");

            let got = eval(&mut exec, |b, feed| {
                let g = b.columns(feed.f32(b, &[2 * n, t], &x)?, 0, n)?;
                b.swiglu(g, feed.f32(b, &[n, t], &y)?)
            })
            .unwrap();
            let gated = |i: usize| {
                let ((gate, off), y) = (silu(half(i)), f64::from(y[i]));
                (gate * y, (off + UNIT * gate.abs()) * y.abs())
            };
            let (want, off): (Vec<f64>, Vec<f64>) = (0..n * t).map(gated).unzip();
            assert_within(&got, &want, |i| off[i], "swiglu");

            let got = eval(&mut exec, |b, feed| {
                let v = b.columns(feed.f32(b, &[2 * n, t], &x)?, 0, n)?;
                b.scale(b.add(v, feed.f32(b, &[n], &w)?)?, -0.5)
            })
            .unwrap();
            // One rounding, and half of what it gives.
            let want: Vec<f32> = (0..n * t).map(|i| -0.5 * (half(i) as f32 + w[i % n])).collect();
            assert_eq!(got, want);
        }
    }
}

/// Uses enough elements that a pool's threads divide them.
#[test]
fn sums_and_products_in_a_pool() {
    let (n, heads, t) = (48, 7, 61);
    let mut rng = Rng(31);
    let (x, y) = (rng.values((n + 5) * heads * t), rng.values(n * heads * t));
    let weights = [[n, heads, t], [n, heads, 1], [n, 1, t], [n, 1, 1], [1, heads, t]];
    for shape in weights {
        let w = rng.values(shape.iter().product());
        let results = [portable(), executor(1), executor(3)].map(|mut exec| {
            eval(&mut exec, |b, feed| {
                // Rows with gaps, seen through a permutation of the outer dimensions.
                let x = feed.f32(b, &[n + 5, t, heads], &x)?;
                let row = 4 * (n + 5);
                let x = b.view(x, [n, t, heads, 1], [row, row * t, row * t * heads], 8)?;
                let (x, w) = (b.permute(x, [0, 2, 1, 3])?, feed.f32(b, &shape, &w)?);
                let out = b.add(b.mul(x, w)?, feed.f32(b, &[n, heads, t], &y)?)?;
                b.sub(b.add(out, w)?, x)
            })
            .unwrap()
        });
        let want: Vec<f32> = (0..n * heads * t)
            .map(|i| {
                let (j, h, s) = (i % n, i / n % heads, i / n / heads);
                let x = x[(h * t + s) * (n + 5) + 2 + j];
                let at = |i: usize, size: usize| if size == 1 { 0 } else { i };
                let [n0, n1, n2] = shape;
                let w = w[at(j, n0) + n0 * (at(h, n1) + n1 * at(s, n2))];
                x * w + y[i] + w - x
            })
            .collect();
        assert!(results.iter().all(|got| *got == want), "{shape:?}");
    }
}

/// Four dimensions, and some of them repeated several times.
#[test]
fn repeated_operands_in_a_pool() {
    let (shape, times) = ([48, 6, 8, 9], [[48, 2, 4, 3], [48, 3, 1, 9], [48, 6, 2, 1]]);
    let mut rng = Rng(37);
    let x = rng.values(shape.iter().product());
    for small in times {
        let w = rng.values(small.iter().product());
        let [theirs, ours] = [portable(), executor(3)].map(|mut exec| {
            eval(&mut exec, |b, feed| b.add(feed.f32(b, &shape, &x)?, feed.f32(b, &small, &w)?)).unwrap()
        });
        assert_eq!(ours, theirs, "{small:?}");
    }
}

#[test]
fn rows_are_written_where_the_index_says_and_read_back() {
    let mut rng = Rng(4);
    let mut exec = executor(2);
    let types = [DType::F32, DType::F16, DType::BF16, DType::Q8_0, DType::Q4_0, DType::Q5_1];
    for dtype in types {
        let (n, cells, t) = (64, rng.int(9, 30), rng.int(1, 6));
        let before = rng.values(n * cells);
        let (cache, held) = stored(dtype, &[n, cells], &before);
        let x = rng.values(2 * n * t);
        let mut free: Vec<i64> = (0..cells as i64).collect();
        let index: Vec<i64> = (0..t).map(|_| free.swap_remove(rng.int(0, free.len() - 1))).collect();
        let back: Vec<i32> = index.iter().rev().map(|&i| i as i32).collect();

        // From a view with gaps between its rows; read back in the same graph, after the write.
        let got = eval(&mut exec, |b, feed| {
            let rows = b.columns(feed.f32(b, &[2 * n, t], &x)?, n, n)?;
            let written = b.set_rows(b.stored(&cache)?, rows, feed.i64(b, &index)?)?;
            b.get_rows(written, feed.i32(b, &back)?)
        })
        .unwrap();

        let after = contents(&cache);
        let mut want = held.clone();
        for (j, &cell) in index.iter().enumerate() {
            let row = &x[j * 2 * n + n..][..n];
            let bytes = ggml::dtype::quantize(dtype, n, row).unwrap();
            ggml::dtype::dequantize(dtype, &bytes, &mut want[cell as usize * n..][..n]).unwrap();
        }
        let want64: Vec<f64> = want.iter().map(|&w| f64::from(w)).collect();
        // ggml's vector quantizers may break a tie the other way: one step of the coarsest type here.
        let step = if dtype.is_quantized() { 2.2 / 15.0 } else { 0.0 };
        assert_within(&after, &want64, |_| step, dtype.name());
        for (cell, (a, h)) in after.chunks(n).zip(held.chunks(n)).enumerate() {
            assert!(index.contains(&(cell as i64)) || a == h, "{dtype}: cell {cell} was not to be written");
        }
        for (row, &cell) in got.chunks(n).zip(&back) {
            assert_eq!(row, &after[cell as usize * n..][..n], "{dtype}: cell {cell} read back");
        }
    }
}

#[test]
fn row_indices_out_of_range_or_unset_are_refused() {
    let mut exec = executor(1);
    let (w, _) = stored(DType::Q8_0, &[32, 5], &[0.5; 160]);
    let build = |exec: &mut ggml::graph::Executor| {
        exec.build::<_, Error>(8, |b| {
            let (id, rows) = b.input("rows", DType::I32, &[2])?;
            let (other, _) = b.input("unused", DType::F32, &[3])?;
            Ok((id, other, b.output(b.get_rows(b.stored(&w)?, rows)?)))
        })
        .unwrap()
    };
    let (id, other, out) = build(&mut exec);
    assert!(exec.compute().is_err(), "indices never set");
    for bad in [[0, 5], [-1, 0], [i32::MAX, i32::MIN]] {
        refused(exec.set(id, &bad), "set");
    }
    refused(exec.set(id, &[1i64]), "set");
    refused(exec.set(id, &[1.0f32, 2.0]), "set");
    exec.set(other, &[1.0f32; 3]).unwrap();
    exec.set(id, &[4, 0]).unwrap();
    for _ in 0..3 {
        exec.compute().unwrap(); // Indices stay what they were: no later node is lent their memory.
    }
    assert_eq!(exec.borrow_f32(out).unwrap().unwrap().len(), 64);
}

/// Two threads would write one row.
#[test]
fn a_row_is_written_once() {
    let (cache, _) = stored(DType::F32, &[4, 9], &[0.0; 36]);
    let mut exec = executor(2);
    let (id, out) = exec
        .build::<_, Error>(8, |b| {
            let (id, index) = b.input("cells", DType::I64, &[4])?;
            let (rows_id, rows) = b.input("rows", DType::F32, &[4, 4])?;
            let out = b.output(b.set_rows(b.stored(&cache)?, rows, index)?);
            Ok(((id, rows_id), out))
        })
        .unwrap();
    exec.set(id.1, &[1.0f32; 16]).unwrap();
    for twice in [[3, 3, 3, 3], [0, 1, 2, 0], [8, 5, 5, 1]] {
        refused(exec.set(id.0, &twice.map(i64::from)), "set");
    }
    assert!(exec.compute().is_err(), "no indices were taken");
    exec.set(id.0, &[8i64, 0, 4, 2]).unwrap();
    exec.compute().unwrap();
    let mut all = Vec::new();
    exec.read_f32(out, &mut all).unwrap();
    let written: Vec<usize> = (0..9).filter(|&i| all[4 * i..4 * i + 4] == [1.0; 4]).collect();
    assert_eq!(written, [0, 2, 4, 8]);
}

/// Also of rows of which some are -inf, as a mask leaves them.
#[test]
fn soft_max_of_rows() {
    let mut rng = Rng(5);
    let mut exec = executor(2);
    for masked in [false, true, false, true] {
        let (n, t) = (rng.int(1, 90), rng.int(1, 20));
        let mut x = rng.values(n * t);
        let hidden = |(i, x): (usize, &mut f32)| {
            if masked && i % n > 0 && rng.int(0, 2) == 0 {
                *x = f32::NEG_INFINITY;
            }
        };
        x.iter_mut().enumerate().for_each(hidden);
        let got = eval(&mut exec, |b, feed| b.soft_max(feed.f32(b, &[n, t], &x)?)).unwrap();
        let (mut want, mut bounds) = (Vec::new(), Vec::new());
        for row in x.chunks(n) {
            let scores: Vec<Score> = row.iter().map(|x| Score { value: f64::from(*x), off: 0.0 }).collect();
            let p = SoftMax::new(&scores, n);
            bounds.extend(p.weights.iter().zip(&p.off).map(|(p, off)| p * off));
            want.extend(&p.weights);
        }
        assert_within(&got, &want, |i| bounds[i], "soft_max");
    }
}
