//! Products of few rows beside the same in f64, with floats rounded as the products do it.

use super::*;
use crate::codes::tests::{filled_row, random_rows};
use crate::integers::tests::weights;

fn check<const N: usize>(with: Instructions, kind: Kind, k: usize, m: usize) {
    let (block, n_bytes) = kind.block();
    let row_bytes = k / block * n_bytes;
    let rows = random_rows(kind, m, k);
    let x: Vec<f32> = (0..N * k).map(|i| (i as f32 * 0.37).sin() * (1.0 + (i / 32 % 3) as f32)).collect();
    let mut rounded = Rounded::default();
    rounded.set_for(with, kind, k, x.chunks_exact(k));
    let mut seen = vec![false; m];
    rounded.products::<N>(&rows, row_bytes, 0, |row, products| {
        seen[row] = true;
        let w = weights(kind, &rows[row * row_bytes..][..row_bytes]);
        for (t, product) in products.into_iter().enumerate() {
            let (mut sum, mut size) = (0.0, 0.0);
            for (w, x) in w.chunks_exact(BLOCK).zip(x[t * k..][..k].chunks_exact(BLOCK)) {
                let scale = x.iter().fold(0.0f32, |m, x| m.max(x.abs())) / 127.0;
                for (w, x) in w.iter().zip(x) {
                    let rounded = f64::from((x / scale).round_ties_even()) * f64::from(scale);
                    sum += w * rounded;
                    size += (w * rounded).abs();
                }
            }
            let off = (f64::from(product) - sum).abs();
            assert!(off <= 1e-4 * size, "{with:?} {kind:?} {k} {m} {row} {t}: {product}, expected {sum}");
        }
    });
    assert!(seen.iter().all(|s| *s));
}

#[test]
fn products() {
    let mut skipped = vec![Instructions::Avx2, Instructions::Vnni, Instructions::AvxVnni];
    for with in Instructions::all() {
        skipped.retain(|s| *s != with);
        for kind in Kind::ALL.into_iter().filter(|kind| available(*kind)) {
            let block = kind.block().0;
            for (n_blocks, m) in [(1, 1), (2, 3), (3, 8), (3, 19)] {
                check::<1>(with, kind, n_blocks * block, m);
                check::<3>(with, kind, n_blocks * block, m);
                check::<4>(with, kind, n_blocks * block, m);
            }
        }
    }
    skipped.iter().for_each(|s| eprintln!("skipped, for this processor has no {s:?}: products of few rows"));
}

/// Largest codes with largest floats of either sign: nothing overflows.
#[test]
fn the_largest_codes() {
    for with in Instructions::all() {
        for kind in Kind::ALL.into_iter().filter(|kind| available(*kind)) {
            let (block, n_bytes) = kind.block();
            for byte in [0u8, 0x7f, 0x80, 0xff] {
                let row = filled_row(kind, byte, 256 / block);
                let w: f64 = weights(kind, &row).iter().sum();
                for sign in [1.0f32, -1.0] {
                    let mut rounded = Rounded::default();
                    rounded.set_for(with, kind, 256, [&[sign; 256][..]].into_iter());
                    rounded.products::<1>(&row, 256 / block * n_bytes, 0, |_, [found]| {
                        let expected = f64::from(sign) * w;
                        let off = (f64::from(found) - expected).abs();
                        assert!(
                            off <= 1e-5 * expected.abs() + 1e-2,
                            "{with:?} {kind:?} {byte}: {found}, {expected}"
                        );
                    });
                }
            }
        }
    }
}

#[test]
fn what_is_no_number_stays_none() {
    for with in Instructions::all() {
        for kind in [Kind::Q4_0, Kind::Q4_1] {
            for no_number in [f32::NAN, f32::INFINITY] {
                let mut x = vec![1.0; 64];
                x[40] = no_number;
                let mut rounded = Rounded::default();
                rounded.set_for(with, kind, 64, [&x[..], &[0.0; 64]].into_iter());
                let mut products = [1.0; 2];
                let row = random_rows(kind, 1, 64);
                rounded.products::<2>(&row, row.len(), 0, |_, found| products = found);
                assert!(products[0].is_nan() && products[1] == 0.0, "{with:?} {kind:?}: {products:?}");
            }
        }
    }
}
