//! Products in integers compared with the same in f64.

use super::*;
use crate::quants::tests::{filled_row, random_rows as rows, weights};

fn check(with: Instructions, dtype: DType, k: usize, n: usize, m: usize) {
    let (block, n_bytes) = (dtype.block_size(), dtype.block_bytes());
    let row_bytes = k / block * n_bytes;
    let bytes = rows(dtype, m, k);
    let x: Vec<f32> = (0..n * k).map(|i| ((i * 7919) % 2003) as f32 / 1001.5 - 1.0).collect();
    let shape = Shape { k, n };
    let mut packed = vec![u32::MAX; shape.n_words().unwrap()];
    for (row, words) in x.chunks_exact(k).zip(packed.chunks_exact_mut(shape.row_words())) {
        shape.pack(row, words);
    }
    let mut out = vec![f32::NAN; n * m];
    let mut scratch = Scratch::default();
    for (tokens, rows) in [(0..n / 2, 0..m), (n / 2..n, 0..m / 3), (n / 2..n, m / 3..m)] {
        let mut to = Output::new(&mut out, m);
        let row = |i: usize| &bytes[i * row_bytes..][..row_bytes];
        scratch.multiply_with(with, &Product { dtype, row, packed: &packed, shape }, to.part(rows, tokens));
    }
    for j in 0..m {
        let w = weights(dtype, &bytes[j * row_bytes..][..row_bytes]);
        for t in 0..n {
            let terms = || w.iter().zip(&x[t * k..]).map(|(w, x)| w * f64::from(*x));
            let (sum, found) = (terms().sum::<f64>(), f64::from(out[t * m + j]));
            // Floats are below 1, rounded to a half of 2^-14 of the largest of a block.
            let bound = w.iter().map(|w| w.abs()).sum::<f64>() * 2f64.powi(-15) * 1.05 + 1e-6;
            assert!(
                (found - sum).abs() <= bound,
                "{with:?} {dtype:?} {k} {n} {m} {j} {t}: {found}, expected {sum}"
            );
        }
    }
}

/// Against sums in f64, of shapes around whole panels, chunks and groups of tokens.
#[test]
fn products() {
    let mut skipped = vec![Instructions::Avx2, Instructions::AvxVnni, Instructions::Avx512];
    for with in Instructions::all() {
        skipped.retain(|s| *s != with);
        for &dtype in quants::TYPES {
            let block = dtype.block_size();
            for (n_blocks, n, m) in [(1, 1, 1), (3, 2, 5), (2, 9, 16), (5, 40, 33), (3, 70, 150)] {
                check(with, dtype, n_blocks * block, n, m);
            }
            check(with, dtype, 768, 46, 70);
            check(with, dtype, 1536, 12, 7);
        }
    }
    skipped.iter().for_each(|s| eprintln!("skipped, for this processor has no {s:?}: products in integers"));
}

#[test]
fn the_largest_numbers_do_not_overflow() {
    for with in Instructions::all() {
        for &dtype in quants::TYPES {
            let k = 256;
            for byte in [0u8, 0x7f, 0x80, 0xff] {
                let bytes = filled_row(dtype, byte, k / dtype.block_size());
                let expected: f64 = weights(dtype, &bytes).iter().sum();
                for n in [1, 20] {
                    let shape = Shape { k, n };
                    let mut packed = vec![0; shape.n_words().unwrap()];
                    packed
                        .chunks_exact_mut(shape.row_words())
                        .for_each(|words| shape.pack(&[1.0; 256], words));
                    let mut out = vec![f32::NAN; n];
                    let product = Product { dtype, row: |_| &bytes[..], packed: &packed, shape };
                    Scratch::default().multiply_with(with, &product, Output::new(&mut out, 1));
                    for found in out {
                        assert!(
                            (f64::from(found) - expected).abs() <= 1e-5 * expected.abs() + 1e-3,
                            "{dtype:?} {byte}"
                        );
                    }
                }
            }
        }
    }
}

/// Whatever an output covers, nothing is written beyond the floats that there are.
#[test]
fn rows_beyond_the_floats_are_refused() {
    for with in Instructions::all() {
        for n in [1, 20] {
            let shape = Shape { k: 64, n };
            let (bytes, packed) = (filled_row(DType::Q8_0, 1, 2), vec![0; shape.n_words().unwrap()]);
            let product = Product { dtype: DType::Q8_0, row: |_| &bytes[..], packed: &packed, shape };
            let mut out = vec![f32::NAN; n + 1];
            let multiply = || {
                Scratch::default().multiply_with(with, &product, Output::new(&mut out, 1));
            };
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(multiply)).expect_err("accepted");
            assert!(out.iter().all(|x| x.is_nan()), "{with:?} {n}: {out:?}");
        }
    }
}

#[test]
fn what_is_no_number_stays_none() {
    let mut x = [1.0; 64];
    (x[3], x[40]) = (f32::INFINITY, f32::NAN);
    let shape = Shape { k: 64, n: 1 };
    let mut packed = vec![0; shape.n_words().unwrap()];
    shape.pack(&x, &mut packed);
    assert!(packed[32..34].iter().all(|scale| f32::from_bits(*scale).is_nan()));
    shape.pack(&[0.0; 64], &mut packed);
    assert!(packed.iter().all(|word| *word == 0));
}
