//! Products beside sums in f64 of the rounded numbers.

use super::*;

fn check(format: Format, [k, m, n]: [usize; 3], transposed: bool) {
    let rounded =
        |x: f32| f64::from(if format == Format::Bf16 { half::bf16::from_f32(x).to_f32() } else { x });
    let weight = |w: f32| match format {
        Format::Bf16 => (half::bf16::from_f32(w).to_bits(), rounded(w)),
        Format::F16 => (half::f16::from_f32(w).to_bits(), half::f16::from_f32(w).to_f64()),
    };
    let value = |i: usize, by: f32| ((i as f32 * by).sin() * 1.7 + 0.1) * (1.0 + (i % 7) as f32);
    let w: Vec<f32> = (0..k * m).map(|i| value(i, 0.37)).collect();
    let x: Vec<f32> = (0..k * n).map(|i| value(i, 0.61)).collect();
    let bits: Vec<u16> = w.iter().map(|w| weight(*w).0).collect();
    let weights = Weights::new(format, &bits, [k, m], transposed);
    let run = |parts: &[(Range<usize>, Range<usize>)]| {
        let mut all = vec![f32::NAN; m * n];
        let mut scratch = Scratch::default();
        for (columns, rows) in parts {
            // SAFETY: n rows of m floats, which nobody else writes.
            let out = unsafe { Output::new(all.as_mut_ptr(), m) };
            scratch.multiply(&weights, |j| &x[j * k..][..k], columns.clone(), rows.clone(), out);
        }
        all
    };
    let all = run(&[(0..m, 0..n)]);
    for (j, row) in all.chunks_exact(m).enumerate() {
        for (i, found) in row.iter().enumerate() {
            let (mut sum, mut size) = (0.0, 0.0);
            for (at, x) in x[j * k..][..k].iter().enumerate() {
                let term = weight(w[if transposed { at * m + i } else { i * k + at }]).1 * rounded(*x);
                sum += term;
                size += term.abs();
            }
            let off = (f64::from(*found) - sum).abs();
            assert!(
                off <= 1e-5 * size,
                "{format:?} {k} {m} {n} {transposed}: {i} {j}: {found}, expected {sum}"
            );
        }
    }
    let (a, b) = (m / 3, n / 2);
    let parts = run(&[(0..a, 0..n), (a..m, b..n), (a..m, 0..b)]);
    assert_eq!(parts, all, "{format:?} {k} {m} {n} {transposed}: in parts");
}

#[test]
fn products() {
    for (format, transposed) in [(Format::Bf16, false), (Format::Bf16, true), (Format::F16, false)] {
        if !format.available() {
            eprintln!("skipped, for this processor has no instructions for it: products of {format:?}");
            continue;
        }
        for shape in
            [[1, 1, 1], [2, 33, 7], [31, 5, 6], [64, 100, 13], [515, 31, 4], [1100, 70, 9], [513, 64, 12]]
        {
            check(format, shape, transposed);
        }
    }
}
