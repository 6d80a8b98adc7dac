//! Products of 16-bit floats against sums in f64 of the rounded numbers. On a processor without the instructions they are refused.

use crate::common::*;
use ggml::short_floats::has_short_product;
use ggml::{DType, Error};

fn check(dtype: DType, [k, m, n]: [usize; 3], transposed: bool) {
    let mut rng = Rng((k + n) as u64);
    let shape = if transposed { [m, k] } else { [k, m] };
    let (w, held) = stored(dtype, &shape, &rng.values(k * m));
    let wide = rng.values((k + 8) * n);
    let run = |threads: usize| {
        eval(&mut executor(threads), |b, feed| {
            let row = 4 * (k + 8);
            let x = feed.f32(b, &[k + 8, n], &wide)?;
            let (w, x) = (b.stored(&w)?, b.view(x, [k, n, 1, 1], [row, row * n, row * n], 16)?);
            if transposed {
                b.short_product_t(w, x)
            } else {
                b.short_product(w, x)
            }
        })
        .unwrap()
    };
    let (mut want, mut bounds) = (Vec::new(), Vec::new());
    for i in 0..n {
        let x = &wide[i * (k + 8) + 4..][..k];
        for j in 0..m {
            let weight = |l: usize| f64::from(held[if transposed { l * m + j } else { j * k + l }]);
            let rounded = |x: f32| if dtype == DType::BF16 { half::bf16::from_f32(x).to_f32() } else { x };
            let terms = x.iter().enumerate().map(|(l, x)| weight(l) * f64::from(rounded(*x)));
            let (sum, size) = terms.fold((0.0, 0.0), |(sum, size), term| (sum + term, size + term.abs()));
            want.push(sum);
            bounds.push(rounding(k + 1) * size + 1e-9);
        }
    }
    let got = run(3);
    assert_within(&got, &want, |i| bounds[i], &format!("{dtype} {k} {m} {n} {transposed}"));
    assert_eq!(got, run(1), "{dtype} {k} {m} {n} {transposed}: threads");
}

#[test]
fn agrees_with_the_definition() {
    for (dtype, transposed) in [(DType::BF16, false), (DType::BF16, true), (DType::F16, false)] {
        if !has_short_product(dtype) {
            eprintln!("{dtype}: no such product on this processor, not tested");
            continue;
        }
        for shape in [[1, 1, 1], [33, 5, 3], [64, 200, 17], [576, 192, 70], [1536, 65, 20]] {
            check(dtype, shape, transposed);
        }
    }
}

#[test]
fn wrong_shapes_and_types_are_refused() {
    executor(1)
        .measure::<_, Error>(64, |b| {
            let t = |dtype, shape: &[usize]| b.input("t", dtype, shape).unwrap().1;
            let (w, x) = (t(DType::BF16, &[64, 4]), t(DType::F32, &[64, 2]));
            refused(b.short_product(t(DType::F32, &[64, 4]), x), "short_product");
            refused(b.short_product(w, t(DType::F32, &[32, 2])), "short_product");
            refused(b.short_product_t(w, x), "short_product_t");
            refused(b.short_product_t(t(DType::F16, &[4, 64]), x), "short_product_t");
            Ok(())
        })
        .unwrap();
}
