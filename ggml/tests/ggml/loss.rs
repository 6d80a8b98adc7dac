//! Cross entropy against its definition in f64.

use crate::common::{assert_within, eval_all, executor, portable, rounding, UNIT};
use ggml::graph::Executor;
use ggml::{DType, Error, Result};

/// Cross entropy of logits that are half of an input, as they must be a result, and its gradient.
fn tried(
    exec: &mut Executor,
    [n_vocab, t]: [usize; 2],
    x: &[f32],
    targets: &[i32],
    weights: &[f32],
) -> Result<[Vec<f32>; 2]> {
    eval_all(exec, 1, |b, feed| {
        let logits = b.scale(feed.f32(b, &[n_vocab, t], x)?, 0.5)?;
        let (targets, weights) = (feed.i32(b, targets)?, feed.f32(b, &[t], weights)?);
        let stats = b.cross_entropy(logits, targets)?;
        Ok([stats, b.cross_entropy_back(logits, targets, stats, weights)?])
    })
}

fn run(exec: &mut Executor, shape: [usize; 2], x: &[f32], targets: &[i32], weights: &[f32]) -> [Vec<f32>; 2] {
    tried(exec, shape, x, targets, weights).unwrap()
}

fn logits(n: usize, spread: f32) -> Vec<f32> {
    (0..n as u32)
        .map(|i| ((i.wrapping_mul(2_654_435_761) >> 8) as f32 / 8_388_608.0 - 1.0) * spread)
        .collect()
}

#[test]
fn agrees_with_the_definition() {
    for (n_vocab, t, spread, threads) in
        [(49_152, 3, 20.0, 2), (1, 2, 1.0, 1), (7, 5, 300.0, 3), (1000, 4, 0.0, 1)]
    {
        let x = logits(n_vocab * t, spread);
        let targets: Vec<i32> = (0..t).map(|i| (i * 7919 % n_vocab) as i32).collect();
        let weights: Vec<f32> = (0..t).map(|i| i as f32 * 0.25).collect();
        let [stats, grad] = run(&mut executor(threads), [n_vocab, t], &x, &targets, &weights);
        for i in 0..t {
            let row: Vec<f64> =
                x[i * n_vocab..(i + 1) * n_vocab].iter().map(|&x| f64::from(x * 0.5)).collect();
            let max = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let sum: f64 = row.iter().map(|x| (x - max).exp()).sum();
            let (target, log_sum) = (targets[i] as usize, sum.ln());
            let loss = log_sum + max - row[target];
            // Powers of two are right to 2e-7, 4 of these units, of a difference times a rounded constant.
            let power_off = |x: f64| UNIT * (4.0 + 3.0 * (max - x));
            let mean: f64 = row.iter().map(|&x| (x - max).exp() / sum * power_off(x)).sum();
            // Of 256 terms that are summed in floats 32 are in one lane; all others are in f64.
            let sum_off = mean + rounding(32);
            let loss_off = sum_off + UNIT * loss.abs();
            assert_within(&stats[3 * i..][..1], &[loss], |_| loss_off, &format!("{n_vocab}: loss {i}"));
            let weight = f64::from(weights[i]);
            let p = |j: usize| (row[j] - max).exp() / sum;
            let one = |j: usize| if j == target { 1.0 } else { 0.0 };
            let want: Vec<f64> = (0..n_vocab).map(|j| weight * (p(j) - one(j))).collect();
            // That of the target is computed of the loss. The others have the exponential of the rounded
            // logarithm, right to 2 of these units, and two products; what is below 2^-125 may be 0.
            let parts = |j: usize| match j == target {
                true => loss_off,
                false => sum_off + UNIT * (log_sum.abs() + 4.0) + power_off(row[j]),
            };
            let off = |j: usize| weight * p(j) * parts(j) + UNIT * want[j].abs() + 2f64.powi(-125);
            assert_within(&grad[i * n_vocab..][..n_vocab], &want, off, &format!("{n_vocab}: gradient {i}"));
        }
    }
}

#[test]
fn threads_change_no_bit() {
    let (n_vocab, t) = (5000, 9);
    let (x, targets, weights) = (logits(n_vocab * t, 9.0), [3; 9], [0.1; 9]);
    let one = run(&mut executor(1), [n_vocab, t], &x, &targets, &weights);
    for mut exec in [executor(4), portable()] {
        assert!(one == run(&mut exec, [n_vocab, t], &x, &targets, &weights));
    }
}

#[test]
fn what_is_not_a_number_stays_visible() {
    let weights = [1.0];
    for bad in [f32::NAN, f32::INFINITY] {
        let [stats, _] =
            run(&mut executor(1), [20, 1], &[&[0.5; 17][..], &[bad, 0.0, 1.0]].concat(), &[2], &weights);
        assert!(stats[0].is_nan(), "{bad}: {stats:?}");
    }
    // A token that cannot be: no loss unless it is the target, then an infinite one.
    let x = [f32::NEG_INFINITY, 0.0, 0.0];
    let [stats, grad] = run(&mut executor(1), [3, 1], &x, &[1], &weights);
    assert_eq!((stats[0], grad[0]), (std::f32::consts::LN_2, 0.0));
    assert_eq!(run(&mut executor(1), [3, 1], &x, &[0], &weights)[0][0], f32::INFINITY);
}

#[test]
fn refused() {
    let mut exec = executor(1);
    let mut of = |targets: &[i32]| tried(&mut exec, [10, 2], &[0.0; 20], targets, &[1.0; 2]);
    assert!(of(&[0, 9]).is_ok());
    assert!(of(&[0, 10]).is_err(), "a target beyond the vocabulary");
    let inputs = exec.build::<_, Error>(32, |b| {
        let (_, x) = b.input("x", DType::F32, &[10, 2])?;
        let (_, targets) = b.input("targets", DType::I32, &[2])?;
        let (_, weights) = b.input("weights", DType::F32, &[2])?;
        let stats = b.cross_entropy(x, targets)?;
        b.output(b.cross_entropy_back(x, targets, stats, weights)?);
        Ok(())
    });
    assert!(inputs.is_err(), "an input must not be written over");
    let views = exec.build::<_, Error>(32, |b| {
        let (_, x) = b.input("x", DType::F32, &[2, 2])?;
        let (_, targets) = b.input("targets", DType::I32, &[2])?;
        let logits = b.scale(x, 2.0)?;
        let weights = b.view(logits, [2, 1, 1, 1], [8, 8, 8], 0)?;
        let stats = b.cross_entropy(logits, targets)?;
        b.output(b.cross_entropy_back(logits, targets, stats, weights)?);
        Ok(())
    });
    assert!(views.is_err(), "what is read must not be written over");
    let shapes = exec.build::<_, Error>(32, |b| {
        let (_, x) = b.input("x", DType::F32, &[10, 2])?;
        let (_, targets) = b.input("targets", DType::I32, &[3])?;
        b.output(b.cross_entropy(x, targets)?);
        Ok(())
    });
    assert!(shapes.is_err());
}
