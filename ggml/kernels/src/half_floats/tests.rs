//! Products compared with sums in f64 of the rounded numbers.

use super::*;
use crate::gemm::Matrix;
use crate::rounding::rounding;

/// Whatever an output covers, nothing is written beyond the columns that the weights have.
#[test]
fn columns_beyond_the_weights_are_refused() {
    for format in [Format::Bf16, Format::F16] {
        if !format.available() {
            continue; // The tests of crate `ggml` say so.
        }
        let (bits, mut out) = ([0u16; 4 * 3], [f32::NAN; 4 * 2]);
        let multiply = || {
            let weights = Weights::new(format, &bits, [4, 3], false);
            Scratch::default().multiply(&weights, |_| &[1.0; 4], 2, Output::new(&mut out, 4));
        };
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(multiply)).expect_err("accepted");
        assert!(out.iter().all(|x| x.is_nan()), "{format:?}: {out:?}");
    }
}

/// `m` by `n` sums of `k` terms, of matrices whose rows or columns lie side by side, with gaps.
fn check_matrices([k, m, n]: [usize; 3], [a_rows, b_rows]: [bool; 2]) {
    let rounded = |x: f32| half::bf16::from_f32(x).to_f64();
    let value = |i: usize, by: f32| ((i as f32 * by).sin() * 1.7 + 0.1) * (1.0 + (i % 7) as f32);
    let matrix = |rows: usize, cols: usize, by_rows: bool, by: f32| {
        let (lines, len) = if by_rows { (rows, cols) } else { (cols, rows) };
        ((0..lines * (len + 3)).map(|i| value(i, by)).collect::<Vec<f32>>(), len + 3)
    };
    let ((a, a_step), (b, b_step)) = (matrix(m, k, a_rows, 0.37), matrix(k, n, b_rows, 0.61));
    let of = |data: &[f32], step: usize, by_rows: bool, i: usize, j: usize| {
        data[if by_rows { i * step + j } else { j * step + i }]
    };
    let view = |data, rows, cols, step, by_rows| match by_rows {
        true => Matrix::rows(data, rows, cols, step),
        false => Matrix::rows(data, cols, rows, step).transposed(),
    };
    let (cs, factor) = (m + 5, 0.75f32);
    for add in [false, true] {
        let mut out = vec![2.0f32; cs * n];
        let (a_view, b_view) = (view(&a, m, k, a_step, a_rows), view(&b, k, n, b_step, b_rows));
        // SAFETY: n columns of m floats, cs apart.
        unsafe { Scratch::default().product(out.as_mut_ptr(), cs, add, a_view, b_view, factor) };
        for (j, column) in out.chunks_exact(cs).enumerate() {
            assert!(column[m..].iter().all(|x| *x == 2.0), "written beyond column {j}");
            for (i, found) in column[..m].iter().enumerate() {
                let terms = (0..k).map(|t| {
                    rounded(of(&a, a_step, a_rows, i, t)) * rounded(of(&b, b_step, b_rows, t, j) * factor)
                });
                let size: f64 = terms.clone().map(f64::abs).sum();
                let sum = terms.sum::<f64>() + if add { 2.0 } else { 0.0 };
                let off = (f64::from(*found) - sum).abs();
                assert!(
                    off <= rounding(k + 2) * (size + 2.0),
                    "{k} {m} {n} {a_rows} {b_rows} {add}: {i} {j}: {found}, expected {sum}"
                );
            }
        }
    }
}

#[test]
fn products_of_rounded_matrices() {
    if !Format::Bf16.available() {
        return eprintln!(
            "skipped, for this processor has no instructions for it: products of rounded matrices"
        );
    }
    for shape in [[1, 1, 1], [2, 33, 7], [31, 5, 16], [64, 100, 17], [1100, 35, 9], [513, 64, 33]] {
        for by_rows in [[true, true], [true, false], [false, true], [false, false]] {
            check_matrices(shape, by_rows);
        }
    }
}
