//! Products compared with the same in f64, with floats rounded as the products round them.

use super::*;
use crate::quants::tests::{filled_row, random_rows, weights};

const BLOCK: usize = 32;

/// Rows rounded for these instructions.
fn words<'a>(
    with: Instructions,
    dtype: DType,
    rows: impl ExactSizeIterator<Item = &'a [f32]>,
) -> (Layout, Vec<u32>) {
    let mut rows = rows.enumerate().peekable();
    let k = rows.peek().unwrap().1.len();
    let layout = Layout::with(with, dtype, k, rows.len());
    let mut words = vec![0; layout.n_words().unwrap()];
    rows.for_each(|(i, x)| {
        let group = words.chunks_exact_mut(layout.group_words()).nth(i / layout.width).unwrap();
        layout.round(i, x, group);
    });
    (layout, words)
}

fn check(with: Instructions, dtype: DType, k: usize, m: usize, n: usize) {
    let (block, n_bytes) = (dtype.block_size(), dtype.block_bytes());
    let row_bytes = k / block * n_bytes;
    let rows = random_rows(dtype, m, k);
    let x: Vec<f32> = (0..n * k).map(|i| (i as f32 * 0.37).sin() * (1.0 + (i / 32 % 3) as f32)).collect();
    let (layout, words) = words(with, dtype, x.chunks_exact(k));
    let rounded = Rounded::new(layout, &words);
    let mut seen = vec![false; m * n];
    rounded.products(dtype, &mut Panel::default(), &rows, row_bytes, (0, n), &mut |first, t, products| {
        for (row, product) in (first..).zip(products) {
            seen[row * n + t] = true;
            let w = weights(dtype, &rows[row * row_bytes..][..row_bytes]);
            let (mut sum, mut size) = (0.0, 0.0);
            for (w, x) in w.chunks_exact(BLOCK).zip(x[t * k..][..k].chunks_exact(BLOCK)) {
                let scale = x.iter().fold(0.0f32, |m, x| m.max(x.abs())) / 127.0;
                for (w, x) in w.iter().zip(x) {
                    let rounded = f64::from((x / scale).round_ties_even()) * f64::from(scale);
                    sum += w * rounded;
                    size += (w * rounded).abs();
                }
            }
            let off = (f64::from(*product) - sum).abs();
            assert!(off <= 1e-4 * size, "{with:?} {dtype:?} {k} {m} {row} {t}: {product}, expected {sum}");
        }
    });
    assert!(seen.iter().all(|s| *s));
}

#[test]
fn products() {
    let mut skipped = vec![Instructions::Avx2, Instructions::Avx512, Instructions::AvxVnni];
    for with in Instructions::all() {
        skipped.retain(|s| *s != with);
        for &dtype in quants::TYPES {
            for (n_blocks, m) in [(1, 1), (2, 3), (3, 16), (3, 35)] {
                for n in [1, 3, 7, 16, 27] {
                    check(with, dtype, n_blocks * dtype.block_size(), m, n);
                }
            }
        }
    }
    skipped
        .iter()
        .for_each(|s| eprintln!("skipped, for this processor has no {s:?}: products in 8-bit integers"));
}

/// Each product is the same, whichever others are computed with it.
#[test]
fn do_not_depend_on_one_another() {
    for with in Instructions::all() {
        for &dtype in quants::TYPES {
            let (block, n_bytes) = (dtype.block_size(), dtype.block_bytes());
            let (k, m, n) = (2 * block, 37, 21);
            let row_bytes = k / block * n_bytes;
            let rows = random_rows(dtype, m, k);
            let x: Vec<f32> = (0..n * k).map(|i| (i as f32 * 0.37).sin()).collect();
            let (layout, words) = words(with, dtype, x.chunks_exact(k));
            let rounded = Rounded::new(layout, &words);
            let mut all = vec![0.0; m * n];
            let mut panel = Panel::default();
            rounded.products(dtype, &mut panel, &rows, row_bytes, (0, n), &mut |row, t, products| {
                all[t * m + row..][..products.len()].copy_from_slice(products);
            });
            for (t, expected) in all.chunks_exact(m).enumerate() {
                for (row, bytes) in rows.chunks_exact(row_bytes).enumerate() {
                    rounded.products(dtype, &mut panel, bytes, row_bytes, (t, 1), &mut |_, _, products| {
                        assert_eq!(products, &expected[row..][..1], "{with:?} {dtype:?} {row} {t}");
                    });
                }
            }
        }
    }
}

/// Largest codes with largest floats of either sign: nothing overflows.
#[test]
fn the_largest_codes() {
    for with in Instructions::all() {
        for &dtype in quants::TYPES {
            let (block, n_bytes) = (dtype.block_size(), dtype.block_bytes());
            for byte in [0u8, 0x7f, 0x80, 0xff] {
                let row = filled_row(dtype, byte, 256 / block);
                let w: f64 = weights(dtype, &row).iter().sum();
                for sign in [1.0f32, -1.0] {
                    let (layout, words) = words(with, dtype, [&[sign; 256][..]].into_iter());
                    let rounded = Rounded::new(layout, &words);
                    let panel = &mut Panel::default();
                    rounded.products(
                        dtype,
                        panel,
                        &row,
                        256 / block * n_bytes,
                        (0, 1),
                        &mut |_, _, found| {
                            let (expected, found) = (f64::from(sign) * w, f64::from(found[0]));
                            let off = (found - expected).abs();
                            assert!(
                                off <= 1e-5 * expected.abs() + 1e-2,
                                "{with:?} {dtype:?} {byte}: {found}, {expected}"
                            );
                        },
                    );
                }
            }
        }
    }
}

#[test]
fn what_is_no_number_stays_none() {
    for with in Instructions::all() {
        for &dtype in quants::TYPES {
            for no_number in [f32::NAN, f32::INFINITY] {
                let mut x = vec![1.0; 256];
                x[40] = no_number;
                let (layout, words) = words(with, dtype, [&x[..], &[0.0; 256]].into_iter());
                let rounded = Rounded::new(layout, &words);
                let mut all = [1.0; 2];
                let row = random_rows(dtype, 1, 256);
                rounded.products(
                    dtype,
                    &mut Panel::default(),
                    &row,
                    row.len(),
                    (0, 2),
                    &mut |_, t, found| all[t] = found[0],
                );
                assert!(all[0].is_nan() && all[1] == 0.0, "{with:?} {dtype:?}: {all:?}");
            }
        }
    }
}
