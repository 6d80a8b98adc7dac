//! Products with few rows against ggml's own, which round alike.

use crate::common::*;
use ggml::few::{has_few_rows_product, MOST_ROWS};
use ggml::{DType, Error};

const TYPES: [DType; 5] = [DType::Q4_0, DType::Q4_1, DType::Q5_0, DType::Q5_1, DType::IQ4_NL];

#[test]
fn agrees_with_ggml() {
    for dtype in TYPES {
        if !has_few_rows_product(dtype) {
            eprintln!("{dtype}: no such product on this processor, not tested");
            continue;
        }
        for (k, m) in [(32, 1), (96, 7), (576, 34), (1536, 192)] {
            for n in 1..=MOST_ROWS + 3 {
                let mut rng = Rng((k + n) as u64);
                let (w, held) = stored(dtype, &[k, m], &rng.values(k * m));
                let wide = rng.values((k + 8) * n);
                let run = |threads: usize, ours: bool| {
                    eval(&mut executor(threads), |b, feed| {
                        let row = 4 * (k + 8);
                        let x = feed.f32(b, &[k + 8, n], &wide)?;
                        let x = b.view(x, [k, n, 1, 1], [row, row * n, row * n], 16)?;
                        let w = b.stored(&w)?;
                        if ours {
                            b.few_rows_product(w, x)
                        } else {
                            b.mul_mat(w, b.cont(x)?)
                        }
                    })
                    .unwrap()
                };
                let (ours, ggmls) = (run(3, true), run(1, false));
                let sizes: Vec<f64> = (0..n * m)
                    .map(|i| {
                        let (x, w) = (&wide[i / m * (k + 8) + 4..][..k], &held[i % m * k..][..k]);
                        x.iter().zip(w).map(|(x, w)| f64::from((x * w).abs())).sum()
                    })
                    .collect();
                let what = format!("{dtype} {k} {m} {n}");
                // ggml keeps the sum of a block as a half-precision float.
                assert_within(&ours, &to_f64(&ggmls), |i| 1e-3 * sizes[i] + 1e-6, &what);
                assert_eq!(ours, run(1, true), "{what}: threads");
            }
        }
    }
}

#[test]
fn wrong_shapes_and_types_are_refused() {
    executor(1)
        .measure::<_, Error>(64, |b| {
            let t = |dtype, shape: &[usize]| b.input("t", dtype, shape).unwrap().1;
            let x = t(DType::F32, &[64, 2]);
            refused(b.few_rows_product(t(DType::Q8_0, &[64, 4]), x), "few_rows_product");
            refused(b.few_rows_product(t(DType::Q4_1, &[32, 4]), x), "few_rows_product");
            refused(
                b.few_rows_product(t(DType::Q4_1, &[64, 4]), t(DType::F16, &[64, 2])),
                "few_rows_product",
            );
            Ok(())
        })
        .unwrap();
}
