//! Products in 8-bit and in 16-bit integers, of 16-bit floats, and in AMX tiles, against sums in f64 over the floats that
//! ggml makes of the weights. On a processor without the instructions they are refused.

use crate::common::*;
use ggml::graph::Builder;
use ggml::matmul::{Kernel, INTEGER_TYPES};
use ggml::tensor::Tensor;
use ggml::{DType, Error, Result};

/// Rows of weights, rows of floats and threads that do not divide them evenly.
const DIVIDED: [[usize; 3]; 4] = [[192, 512, 2], [600, 3, 4], [5, 700, 4], [64, 64, 16]];

/// Products of `n` rows inside of a wider matrix with rows of weights, all `k` wide: `definition` says of a row of weights
/// and one of floats what `op` makes of them, and how far that may be off. Threads change no bit.
fn check(
    what: &str,
    held: &[f32],
    [k, n, threads]: [usize; 3],
    op: impl for<'c> Fn(&Builder<'c>, Tensor<'c>) -> Result<Tensor<'c>>,
    definition: impl Fn(&[f32], &[f32]) -> (f64, f64),
) {
    let wide = Rng((k + n) as u64).values((k + 3) * n);
    let run = |threads: usize| {
        eval(&mut executor(threads), |b, feed| {
            let (x, row) = (feed.f32(b, &[k + 3, n], &wide)?, 4 * (k + 3));
            op(b, b.view(x, [k, n, 1, 1], [row, row * n, row * n], 8)?)
        })
        .unwrap()
    };
    let rows = wide.chunks_exact(k + 3).map(|row| &row[2..][..k]);
    let pairs = rows.flat_map(|x| held.chunks_exact(k).map(move |w| (w, x)));
    let (want, off): (Vec<f64>, Vec<f64>) = pairs.map(|(w, x)| definition(w, x)).unzip();
    let got = run(threads);
    assert_within(&got, &want, |i| off[i], &format!("{what}, {threads} threads"));
    assert_eq!(got, run(1), "{what}: {threads} threads");
}

/// The product of two rows, and the magnitudes of its terms.
fn dot(w: &[f32], x: &[f32]) -> (f64, f64) {
    let terms = w.iter().zip(x).map(|(w, x)| f64::from(*w) * f64::from(*x));
    terms.fold((0.0, 0.0), |(sum, size), term| (sum + term, size + term.abs()))
}

/// The product where each float is rounded by a part of the largest of its block of 32.
fn rounded_by(part: f64, w: &[f32], x: &[f32]) -> (f64, f64) {
    let of_block = |(w, x): (&[f32], &[f32])| {
        let largest = x.iter().fold(0.0f32, |m, x| x.abs().max(m));
        f64::from(largest) * w.iter().map(|w| f64::from(w.abs())).sum::<f64>()
    };
    let size: f64 = w.chunks(32).zip(x.chunks(32)).map(of_block).sum();
    (dot(w, x).0, part * size + 1e-6)
}

/// A weight whose rows are so wide, by its columns.
fn turned(held: &[f32], width: usize) -> Vec<f32> {
    let n = held.len() / width;
    (0..held.len()).map(|i| held[i % n * width + i / n]).collect()
}

#[test]
fn in_eight_bits() {
    for &dtype in INTEGER_TYPES {
        if !Kernel::Int8.available(dtype) {
            eprintln!("{dtype}: no product in 8 bits on this processor, not tested");
            continue;
        }
        let block = dtype.block_size();
        let weights = [(block, 1), (3 * block, 7), (768, 34), (1536, 192)];
        let rows = [1, 2, 3, 5, 8, 11, 16, 19, 67];
        // More floats than stay in a cache while a weight goes by.
        let long = [DType::Q4_0, DType::Q4_K].contains(&dtype).then_some([8192, 24, 150]);
        let shapes = weights.into_iter().flat_map(|(k, m)| rows.map(|n| [k, m, n]));
        for [k, m, n] in shapes.chain(long) {
            let (w, held) = stored(dtype, &[k, m], &Rng(k as u64).values(k * m));
            check(
                &format!("{dtype} {k} {m} {n}"),
                &held,
                [k, n, 3],
                |b, x| b.matmul(Kernel::Int8, b.stored(&w)?, x, false),
                // By half of a 127th.
                |w, x| rounded_by(1.0 / 253.0, w, x),
            );
        }
    }
}

/// Floats that one node rounds give every weight they serve the product that it has with them alone.
#[test]
fn shared_floats_give_the_same_products() {
    let types: Vec<DType> = INTEGER_TYPES.iter().copied().filter(|t| Kernel::Int8.available(*t)).collect();
    for (k, m, n) in [(256, 5, 1), (512, 34, 6), (768, 300, 40), (8192, 17, 150)] {
        let mut rng = Rng((k + n) as u64);
        let values = rng.values(k * n);
        for first in &types {
            let mut served = 0;
            for dtype in &types {
                let (w, _) = stored(*dtype, &[k, m], &rng.values(k * m));
                let mut run = |threads: usize, shared: bool| {
                    eval(&mut executor(threads), |b, feed| {
                        let x = feed.f32(b, &[k, n], &values)?;
                        let rounded = b.prepare(Kernel::Int8Shared, x, *first)?;
                        match (rounded.serves(Kernel::Int8Shared, *dtype), shared) {
                            (true, true) => b.matmul_prepared(b.stored(&w)?, rounded, false),
                            (_, true) => {
                                refused(b.matmul_prepared(b.stored(&w)?, rounded, false), "matmul");
                                b.matmul(Kernel::Int8, b.stored(&w)?, x, false)
                            }
                            (serves, false) => {
                                served += usize::from(serves);
                                b.matmul(Kernel::Int8, b.stored(&w)?, x, false)
                            }
                        }
                    })
                    .unwrap()
                };
                let alone = run(1, false);
                assert_eq!(run(1, true), alone, "{dtype}, floats rounded for {first}: {k} {m} {n}");
                assert_eq!(run(3, true), alone, "{dtype}, floats rounded for {first}: {k} {m} {n}, threads");
            }
            assert!(served > 0, "{first} serves itself");
        }
    }
}

/// Of two weights with the same rounded rows.
#[test]
fn in_integers() {
    if !Kernel::Int16.available(DType::Q4_0) {
        return eprintln!("integer products: no instructions on this processor, not tested");
    }
    let shapes = [[256, 1, 1], [512, 33, 11], [768, 64, 32], [1536, 70, 200]];
    let all = INTEGER_TYPES.iter().flat_map(|&dtype| shapes.map(|shape| (dtype, shape, 3)));
    let divided = DIVIDED.map(|[m, n, threads]| (DType::Q4_1, [576, m, n], threads));
    for (dtype, [k, m, n], threads) in all.chain(divided) {
        let (w, mut held) = stored(dtype, &[k, m], &Rng(k as u64).values(k * m));
        let (other, more) = stored(DType::Q8_0, &[k, 40], &Rng(3 + k as u64).values(k * 40));
        held.extend(more);
        check(
            &format!("{dtype} {k} {m} {n}"),
            &held,
            [k, n, threads],
            |b, x| {
                let x = b.prepare(Kernel::Int16, x, DType::Q8_0)?;
                let first = b.matmul_prepared(b.stored(&w)?, x, false)?;
                b.concat(first, b.matmul_prepared(b.stored(&other)?, x, false)?, 0)
            },
            // By half of a 16,383th.
            |w, x| rounded_by(1.0 / 32_000.0, w, x),
        );
    }
}

#[test]
fn of_short_floats() {
    for (dtype, transposed) in [(DType::BF16, false), (DType::BF16, true), (DType::F16, false)] {
        if !Kernel::HalfFloats.available(dtype) {
            eprintln!("{dtype}: no such product on this processor, not tested");
            continue;
        }
        // Around whole words, registers and panels.
        let odd = [[1, 1, 1], [2, 33, 7], [31, 5, 6], [33, 5, 3], [515, 31, 4], [513, 64, 12], [1100, 70, 9]];
        // So many rows that weights are laid out in panels, whatever their type.
        let many = [[1, 1, 65], [31, 5, 66], [515, 33, 67], [576, 192, 70], [1100, 70, 71]];
        for [k, m, n] in odd.into_iter().chain([[64, 200, 17], [1536, 65, 20], [33, 7, 64]]).chain(many) {
            let shape = if transposed { [m, k] } else { [k, m] };
            let (w, mut held) = stored(dtype, &shape, &Rng(k as u64).values(k * m));
            if transposed {
                held = turned(&held, m);
            }
            check(
                &format!("{dtype} {k} {m} {n} {transposed}"),
                &held,
                [k, n, 3],
                |b, x| b.matmul(Kernel::HalfFloats, b.stored(&w)?, x, transposed),
                |w, x| {
                    let short = |x: &f32| half::bf16::from_f32(*x).to_f32();
                    let x: Vec<f32> =
                        if dtype == DType::BF16 { x.iter().map(short).collect() } else { x.to_vec() };
                    let (sum, size) = dot(w, &x);
                    (sum, rounding(k + 1) * size + 1e-9)
                },
            );
        }
    }
}

/// Of two weights with the same packed rows; and the sum over the rows of a weight, weighted by rows.
#[test]
fn in_tiles() {
    if !Kernel::Bf16x3.available(DType::F32) {
        return eprintln!("AMX: not on this processor, not tested");
    }
    let types = [DType::F32, DType::F16, DType::BF16, DType::Q4_1, DType::Q8_0, DType::Q4_K, DType::IQ4_NL];
    let shapes = [[256, 1, 1], [512, 33, 31], [768, 64, 32], [1536, 70, 100]];
    let all = types.into_iter().flat_map(|dtype| shapes.map(|shape| (dtype, shape, 3)));
    let divided = DIVIDED.map(|[m, n, threads]| (DType::Q8_0, [576, m, n], threads));
    // Around whole tiles, panels and chunks.
    let odd = [[1, 1, 1], [37, 50, 20], [33, 50, 40], [512, 65, 64], [1100, 40, 70]];
    let odd = odd.map(|shape| (DType::F32, shape, 2));
    for (dtype, [k, m, n], threads) in all.chain(divided).chain(odd) {
        let (w, mut held) = stored(dtype, &[k, m], &Rng(7 + k as u64).values(k * m));
        let (other, more) = stored(DType::F16, &[k, 40], &Rng(k as u64).values(k * 40));
        let (what, columns) = (format!("{dtype} {k} {m} {n}"), turned(&held, k));
        held.extend(more);
        let definition = |w: &[f32], x: &[f32]| {
            let (sum, size) = dot(w, x);
            (sum, 2f64.powi(-15) * size + 1e-7)
        };
        check(
            &what,
            &held,
            [k, n, threads],
            |b, x| {
                let x = b.prepare(Kernel::Bf16x3, x, dtype)?;
                let first = b.matmul_prepared(b.stored(&w)?, x, false)?;
                b.concat(first, b.matmul_prepared(b.stored(&other)?, x, false)?, 0)
            },
            definition,
        );
        check(
            &format!("{what} transposed"),
            &columns,
            [m, n, threads],
            |b, x| b.matmul(Kernel::Bf16x3, b.stored(&w)?, x, true),
            definition,
        );
    }
}

#[test]
fn wrong_shapes_types_and_processors_are_refused() {
    with(|b| {
        let t = |dtype, shape: &[usize]| b.input("t", dtype, shape).unwrap().1;
        let x = t(DType::F32, &[64, 2]);
        for kernel in [Kernel::Int8, Kernel::Int8Shared, Kernel::Int16] {
            for (w, x) in [
                (t(DType::F16, &[64, 4]), x),
                (t(DType::Q4_1, &[32, 4]), x),
                (t(DType::Q4_1, &[64, 4]), t(DType::F16, &[64, 2])),
                (t(DType::Q4_1, &[64, 4]), t(DType::F32, &[64, 2, 2])),
            ] {
                assert!(matches!(b.matmul(kernel, w, x, false), Err(Error::Op { .. })), "{kernel}");
            }
            let square = t(DType::Q4_1, &[64, 64]);
            assert!(matches!(b.matmul(kernel, square, x, true), Err(Error::Op { .. })), "{kernel}");
            refused(b.prepare(kernel, x, DType::F16), "prepare");
        }
        let w = t(DType::BF16, &[64, 4]);
        refused(b.matmul(Kernel::HalfFloats, t(DType::F32, &[64, 4]), x, false), "matmul");
        refused(b.matmul(Kernel::HalfFloats, w, t(DType::F32, &[32, 2]), false), "matmul");
        refused(b.matmul(Kernel::HalfFloats, w, x, true), "matmul");
        refused(b.matmul(Kernel::HalfFloats, t(DType::F16, &[4, 64]), x, true), "matmul");

        let (x, deep, half) = (t(DType::F32, &[64, 4]), t(DType::F32, &[64, 4, 2]), t(DType::F16, &[64, 4]));
        for (kernel, type_) in
            [(Kernel::Int8Shared, DType::Q8_0), (Kernel::Int16, DType::Q8_0), (Kernel::Bf16x3, DType::F32)]
        {
            for wrong in [half, deep] {
                refused(b.prepare(kernel, wrong, type_), "prepare");
            }
            if !kernel.available(type_) {
                refused(b.prepare(kernel, x, type_), "prepare");
                continue;
            }
            let prepared = b.prepare(kernel, x, type_)?;
            assert_eq!(b.matmul_prepared(t(type_, &[64, 6]), prepared, false)?.ne(), [6, 4, 1, 1]);
            for wrong in [t(type_, &[32, 6]), t(DType::I32, &[64, 6]), t(type_, &[64, 6, 2])] {
                refused(b.matmul_prepared(wrong, prepared, false), "matmul");
            }
            match kernel {
                Kernel::Bf16x3 => {
                    assert_eq!(b.matmul_prepared(t(type_, &[32, 64]), prepared, true)?.ne(), [32, 4, 1, 1]);
                }
                _ => {
                    refused(b.prepare(kernel, t(DType::F32, &[40, 4]), type_), "prepare");
                    refused(b.matmul_prepared(t(DType::F16, &[64, 6]), prepared, false), "matmul");
                    refused(b.matmul_prepared(t(type_, &[64, 64]), prepared, true), "matmul");
                }
            }
        }
        Ok(())
    });
}
