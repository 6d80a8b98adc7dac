//! Products in AMX tiles against naive sums in f64. On a processor without tiles they are refused.

use crate::common::*;
use ggml::tiled::has_tiles;
use ggml::{DType, Error};

const TYPES: [DType; 7] =
    [DType::F32, DType::F16, DType::BF16, DType::Q4_1, DType::Q8_0, DType::Q4_K, DType::IQ4_NL];

/// Products of a weight `[k, m]` and of one `[k, 40]` with the same packed rows `[k, n]`, the first ones inside a wider
/// matrix.
fn check(dtype: DType, [k, m, n]: [usize; 3], threads: usize) {
    let mut rng = Rng(7 + k as u64);
    let (w, held) = stored(dtype, &[k, m], &rng.values(k * m));
    let (other, other_held) = stored(DType::F16, &[k, 40], &rng.values(k * 40));
    let wide = rng.values((k + 3) * n);
    let run = |threads: usize| {
        eval(&mut executor(threads), |b, feed| {
            let x = feed.f32(b, &[k + 3, n], &wide)?;
            let row = 4 * (k + 3);
            let packed = b.pack(b.view(x, [k, n, 1, 1], [row, row * n, row * n], 8)?)?;
            let first = b.packed_product(b.stored(&w)?, packed)?;
            let second = b.packed_product(b.stored(&other)?, packed)?;
            b.concat(first, second, 0)
        })
        .unwrap()
    };
    let got = run(threads);
    let (mut want, mut sizes) = (Vec::new(), Vec::new());
    for i in 0..n {
        let x = &wide[i * (k + 3) + 2..][..k];
        for w in held.chunks_exact(k).chain(other_held.chunks_exact(k)) {
            let terms = || x.iter().zip(w).map(|(x, w)| f64::from(*x) * f64::from(*w));
            want.push(terms().sum());
            sizes.push(terms().map(f64::abs).sum::<f64>());
        }
    }
    let bound = |i: usize| 2f64.powi(-15) * sizes[i] + 1e-7;
    assert_within(&got, &want, bound, &format!("{dtype} {k} {m} {n}, {threads} threads"));
    assert_eq!(got, run(1), "{dtype} {k} {m} {n}: {threads} threads");
}

/// The sum over the rows of a weight `[k, m]`, weighted by rows `[m, n]`.
fn check_transposed(dtype: DType, [k, m, n]: [usize; 3], threads: usize) {
    let mut rng = Rng(11 + m as u64);
    let (w, held) = stored(dtype, &[k, m], &rng.values(k * m));
    let d = rng.values(m * n);
    let run = |threads: usize| {
        eval(&mut executor(threads), |b, feed| {
            let packed = b.pack(feed.f32(b, &[m, n], &d)?)?;
            b.packed_product_t(b.stored(&w)?, packed)
        })
        .unwrap()
    };
    let got = run(threads);
    let (mut want, mut sizes) = (Vec::new(), Vec::new());
    for i in 0..n * k {
        let terms = || (0..m).map(|j| f64::from(d[i / k * m + j]) * f64::from(held[j * k + i % k]));
        want.push(terms().sum());
        sizes.push(terms().map(f64::abs).sum::<f64>());
    }
    let bound = |i: usize| 2f64.powi(-15) * sizes[i] + 1e-7;
    assert_within(&got, &want, bound, &format!("{dtype} {k} {m} {n} transposed, {threads} threads"));
    assert_eq!(got, run(1), "{dtype} {k} {m} {n} transposed: {threads} threads");
}

#[test]
fn agrees_with_the_definition() {
    if !has_tiles() {
        return eprintln!("AMX: not on this processor, not tested");
    }
    for dtype in TYPES {
        for shape in [[256, 1, 1], [512, 33, 31], [768, 64, 32], [1536, 70, 100]] {
            check(dtype, shape, 3);
            check_transposed(dtype, shape, 3);
        }
    }
    for (m, n, threads) in [(192, 512, 2), (600, 3, 4), (5, 700, 4), (64, 64, 16)] {
        check(DType::Q8_0, [576, m, n], threads);
        check_transposed(DType::Q8_0, [576, m, n], threads);
    }
    check(DType::F32, [37, 50, 20], 2);
}

#[test]
fn wrong_shapes_types_and_processors_are_refused() {
    executor(1)
        .measure::<_, Error>(64, |b| {
            let t = |dtype, shape: &[usize]| b.input("t", dtype, shape).unwrap().1;
            if !has_tiles() {
                refused(b.pack(t(DType::F32, &[32, 4])), "pack");
                return Ok(());
            }
            for wrong in [t(DType::F16, &[32, 4]), t(DType::F32, &[32, 4, 2])] {
                refused(b.pack(wrong), "pack");
            }
            let packed = b.pack(t(DType::F32, &[32, 4]))?;
            assert_eq!(b.packed_product(t(DType::Q8_0, &[32, 6]), packed)?.ne(), [6, 4, 1, 1]);
            assert_eq!(b.packed_product_t(t(DType::Q8_0, &[64, 32]), packed)?.ne(), [64, 4, 1, 1]);
            for wrong in [t(DType::F32, &[31, 6]), t(DType::I32, &[32, 6]), t(DType::F32, &[32, 6, 2])] {
                refused(b.packed_product(wrong, packed), "packed_product");
                refused(b.packed_product_t(wrong, packed), "packed_product_t");
            }
            Ok(())
        })
        .unwrap();
}
