//! The ops of a softmax over rows that come in pieces.

use crate::common::*;
use ggml::DType;

#[test]
fn the_largest_of_rows_of_every_width() {
    let mut rng = Rng(3);
    let mut exec = executor(1);
    for n in (1..140).chain([255, 256, 257, 4095, 4096, 4097, 4160, 5000]) {
        let rows = 6;
        // All below zero: what is looked at beyond a row would be seen.
        let mut x: Vec<f32> = rng.values(n * rows).iter().map(|x| x.abs() - 10.0).collect();
        // The largest first, last, and none that is finite.
        x[0] = -1.0;
        x[2 * n - 1] = -2.0;
        x[2 * n..3 * n].fill(f32::NEG_INFINITY);
        let got = eval(&mut exec, |b, feed| b.row_max(feed.f32(b, &[n, rows / 2, 2], &x)?)).unwrap();
        let want = x.chunks(n).map(|row| row.iter().fold(f32::MIN, |most, x| most.max(*x)));
        assert_eq!(got, want.collect::<Vec<_>>(), "{n}");
    }
}

#[test]
fn logarithms_and_absolute_values() {
    let x = [-3.5f32, -0.0, 1e-30, 0.25, 1.0, 7e20];
    let mut exec = executor(1);
    let got = eval(&mut exec, |b, feed| b.log(feed.f32(b, &[3, 2], &x)?)).unwrap();
    assert!(got[0].is_nan() && got[1] == f32::NEG_INFINITY);
    let want: Vec<f64> = x[2..].iter().map(|&x| f64::from(x).ln()).collect();
    // Logarithms are right to a unit in the last place, 2 of these.
    assert_within(&got[2..], &want, |i| 2.0 * UNIT * want[i].abs(), "log");
    assert_eq!(eval(&mut exec, |b, feed| b.abs(feed.f32(b, &[3, 2], &x)?)).unwrap(), x.map(f32::abs));
    assert_eq!(eval(&mut exec, |b, feed| b.relu(feed.f32(b, &[3, 2], &x)?)).unwrap(), x.map(|x| x.max(0.0)));
}

#[test]
fn other_types_and_gaps_between_rows_are_refused() {
    with(|b| {
        let half = b.input("t", DType::F16, &[8, 4])?.1;
        let gaps = b.columns(b.input("t", DType::F32, &[8, 4])?.1, 0, 4)?;
        for wrong in [half, gaps] {
            refused(b.row_max(wrong), "row_max");
            refused(b.log(wrong), "log");
            refused(b.abs(wrong), "abs");
            refused(b.relu(wrong), "relu");
        }
        Ok(())
    });
}

/// Each of these products is 40,000, and their sum is more than the largest number of half precision.
#[test]
fn products_of_halves_are_summed_in_floats() {
    let x = [200.0f32; 64];
    let got =
        eval(&mut executor(1), |b, feed| b.mul_mat(feed.f16(b, &[64, 1], &x)?, feed.f32(b, &[64, 1], &x)?));
    assert_eq!(got.unwrap(), [64.0 * 40_000.0]);
}
