//! Products in 8-bit integers against sums in f64 over the floats that ggml makes of the weights. On a processor without the
//! instructions they are refused.

use crate::common::*;
use crate::integers::TYPES;
use ggml::eight_bits::has_eight_bit_product;
use ggml::{DType, Error};

/// Products of a weight `[k, m]` with `n` rows, which lie inside a wider matrix.
fn check(dtype: DType, [k, m, n]: [usize; 3]) {
    let mut rng = Rng((k + n) as u64);
    let (w, held) = stored(dtype, &[k, m], &rng.values(k * m));
    let wide = rng.values((k + 8) * n);
    let run = |threads: usize| {
        eval(&mut executor(threads), |b, feed| {
            let row = 4 * (k + 8);
            let x = feed.f32(b, &[k + 8, n], &wide)?;
            b.eight_bit_product(b.stored(&w)?, b.view(x, [k, n, 1, 1], [row, row * n, row * n], 16)?)
        })
        .unwrap()
    };
    let (mut want, mut bounds) = (Vec::new(), Vec::new());
    for i in 0..n {
        let x = &wide[i * (k + 8) + 4..][..k];
        let largest: Vec<f64> =
            x.chunks(32).map(|x| x.iter().fold(0.0, |m, x| f64::from(x.abs()).max(m))).collect();
        for w in held.chunks_exact(k) {
            want.push(x.iter().zip(w).map(|(x, w)| f64::from(*x) * f64::from(*w)).sum());
            // A float is rounded by half of a 127th of the largest of its block.
            let rounding =
                w.iter().enumerate().map(|(i, w)| largest[i / 32] * f64::from(w.abs())).sum::<f64>();
            bounds.push(rounding / 253.0 + 1e-6);
        }
    }
    let got = run(3);
    assert_within(&got, &want, |i| bounds[i], &format!("{dtype} {k} {m} {n}"));
    assert_eq!(got, run(1), "{dtype} {k} {m} {n}: threads");
}

#[test]
fn agrees_with_the_definition() {
    for dtype in TYPES {
        if !has_eight_bit_product(dtype) {
            eprintln!("{dtype}: no such product on this processor, not tested");
            continue;
        }
        let block = dtype.block_size();
        for (k, m) in [(block, 1), (3 * block, 7), (768, 34), (1536, 192)] {
            for n in [1, 2, 3, 5, 8, 11, 16, 19, 67] {
                check(dtype, [k, m, n]);
            }
        }
    }
}

/// More floats than stay in a cache while a weight goes by.
#[test]
fn many_long_rows() {
    for dtype in [DType::Q4_0, DType::Q4_K] {
        if has_eight_bit_product(dtype) {
            check(dtype, [8192, 24, 150]);
        }
    }
}

/// Floats that one node rounds give every weight they serve the product that it has with them alone.
#[test]
fn shared_floats_give_the_same_products() {
    let types: Vec<DType> = TYPES.into_iter().filter(|t| has_eight_bit_product(*t)).collect();
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
                        let rounded = b.eight_bits(x, *first)?;
                        match (rounded.serve(*dtype), shared) {
                            (true, true) => b.shared_eight_bit_product(b.stored(&w)?, rounded),
                            (_, true) => {
                                refused(
                                    b.shared_eight_bit_product(b.stored(&w)?, rounded),
                                    "shared_eight_bit_product",
                                );
                                b.eight_bit_product(b.stored(&w)?, x)
                            }
                            (serves, false) => {
                                served += usize::from(serves);
                                b.eight_bit_product(b.stored(&w)?, x)
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

#[test]
fn wrong_shapes_and_types_are_refused() {
    executor(1)
        .measure::<_, Error>(64, |b| {
            let t = |dtype, shape: &[usize]| b.input("t", dtype, shape).unwrap().1;
            let x = t(DType::F32, &[64, 2]);
            for (w, x) in [
                (t(DType::F16, &[64, 4]), x),
                (t(DType::Q4_1, &[32, 4]), x),
                (t(DType::Q4_1, &[64, 4]), t(DType::F16, &[64, 2])),
            ] {
                refused(b.eight_bit_product(w, x), "eight_bit_product");
            }
            if has_eight_bit_product(DType::Q4_1) {
                refused(b.eight_bits(t(DType::F16, &[64, 2]), DType::Q4_1), "eight_bits");
                refused(b.eight_bits(t(DType::F32, &[48, 2]), DType::Q4_1), "eight_bits");
                refused(b.eight_bits(x, DType::Q4_K), "eight_bits");
                let rounded = b.eight_bits(x, DType::Q4_1)?;
                refused(
                    b.shared_eight_bit_product(t(DType::Q4_1, &[96, 4]), rounded),
                    "shared_eight_bit_product",
                );
            }
            refused(b.eight_bits(x, DType::F16), "eight_bits");
            Ok(())
        })
        .unwrap();
}
