//! Products in integers against sums in f64 over the floats that ggml makes of the weights. On a processor without the
//! instructions they are refused.

use crate::common::*;
use ggml::integers::has_integer_product;
use ggml::{DType, Error};

pub(crate) const TYPES: [DType; 12] = [
    DType::Q4_0,
    DType::Q4_1,
    DType::Q5_0,
    DType::Q5_1,
    DType::Q8_0,
    DType::IQ4_NL,
    DType::IQ4_XS,
    DType::Q2_K,
    DType::Q3_K,
    DType::Q4_K,
    DType::Q5_K,
    DType::Q6_K,
];

/// Products of a weight `[k, m]` and of one `[k, 40]` with the same rounded rows `[k, n]`, which lie inside a wider
/// matrix.
fn check(dtype: DType, [k, m, n]: [usize; 3], threads: usize) {
    let mut rng = Rng(3 + k as u64);
    let (w, held) = stored(dtype, &[k, m], &rng.values(k * m));
    let (other, other_held) = stored(DType::Q8_0, &[k, 40], &rng.values(k * 40));
    let wide = rng.values((k + 8) * n);
    let run = |threads: usize| {
        eval(&mut executor(threads), |b, feed| {
            let x = feed.f32(b, &[k + 8, n], &wide)?;
            let row = 4 * (k + 8);
            let rounded = b.rounded(b.view(x, [k, n, 1, 1], [row, row * n, row * n], 16)?)?;
            let first = b.integer_product(b.stored(&w)?, rounded)?;
            let second = b.integer_product(b.stored(&other)?, rounded)?;
            b.concat(first, second, 0)
        })
        .unwrap()
    };
    let got = run(threads);
    let (mut want, mut bounds) = (Vec::new(), Vec::new());
    for i in 0..n {
        let x = &wide[i * (k + 8) + 4..][..k];
        let largest: Vec<f64> =
            x.chunks(32).map(|x| x.iter().fold(0.0, |m, x| f64::from(x.abs()).max(m))).collect();
        for w in held.chunks_exact(k).chain(other_held.chunks_exact(k)) {
            want.push(x.iter().zip(w).map(|(x, w)| f64::from(*x) * f64::from(*w)).sum());
            // A float is rounded by half of a 16,383th of the largest of its block.
            let rounding =
                w.iter().enumerate().map(|(i, w)| largest[i / 32] * f64::from(w.abs())).sum::<f64>();
            bounds.push(rounding / 32_000.0 + 1e-6);
        }
    }
    assert_within(&got, &want, |i| bounds[i], &format!("{dtype} {k} {m} {n}, {threads} threads"));
    assert_eq!(got, run(1), "{dtype} {k} {m} {n}: {threads} threads");
}

#[test]
fn agrees_with_the_definition() {
    if !has_integer_product(DType::Q4_0) {
        return eprintln!("integer products: no instructions on this processor, not tested");
    }
    for dtype in TYPES {
        for shape in [[256, 1, 1], [512, 33, 11], [768, 64, 32], [1536, 70, 200]] {
            check(dtype, shape, 3);
        }
    }
    for (m, n, threads) in [(192, 512, 2), (600, 3, 4), (5, 700, 4), (64, 64, 16)] {
        check(DType::Q4_1, [576, m, n], threads);
    }
}

#[test]
fn wrong_shapes_types_and_processors_are_refused() {
    executor(1)
        .measure::<_, Error>(64, |b| {
            let t = |dtype, shape: &[usize]| b.input("t", dtype, shape).unwrap().1;
            if !has_integer_product(DType::Q8_0) {
                refused(b.rounded(t(DType::F32, &[32, 4])), "rounded");
                return Ok(());
            }
            for wrong in [t(DType::F16, &[32, 4]), t(DType::F32, &[32, 4, 2]), t(DType::F32, &[40, 4])] {
                refused(b.rounded(wrong), "rounded");
            }
            let rounded = b.rounded(t(DType::F32, &[64, 4]))?;
            assert_eq!(b.integer_product(t(DType::Q8_0, &[64, 6]), rounded)?.ne(), [6, 4, 1, 1]);
            let wrong = [(DType::Q8_0, [32, 6]), (DType::F16, [64, 6]), (DType::F32, [64, 6])];
            for (dtype, shape) in wrong {
                refused(b.integer_product(t(dtype, &shape), rounded), "integer_product");
            }
            Ok(())
        })
        .unwrap();
}
