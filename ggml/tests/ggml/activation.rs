//! Functions of single elements and their slopes, over all that they tell apart.

use crate::common::*;
use ggml::graph::Builder;
use ggml::tensor::Tensor;
use ggml::Result;
use kernels::sigmoid::sigmoid;

/// An op of a row of floats, and its gradient where that of the result is 1.
fn of(
    x: &[f32],
    op: impl for<'c> FnOnce(&Builder<'c>, Tensor<'c>) -> Result<Tensor<'c>>,
    back: impl for<'c> FnOnce(&Builder<'c>, Tensor<'c>, Tensor<'c>) -> Result<Tensor<'c>>,
) -> [Vec<f32>; 2] {
    let (mut exec, shape) = (executor(1), [x.len(), 1]);
    let y = eval(&mut exec, |b, feed| op(b, feed.f32(b, &shape, x)?)).unwrap();
    let ones = vec![1.0; x.len()];
    let slopes = eval(&mut exec, |b, feed| back(b, feed.f32(b, &shape, &ones)?, feed.f32(b, &shape, x)?));
    [y, slopes.unwrap()]
}

/// Compares with a function in f64 and its differences.
fn near(x: &[f32], [y, slopes]: [Vec<f32>; 2], exact: impl Fn(f64) -> f64, [off, slopes_off]: [f64; 2]) {
    for ((&x, &y), &slope) in x.iter().zip(&y).zip(&slopes) {
        let (h, at) = (1e-5, f64::from(x));
        assert!((f64::from(y) - exact(at)).abs() <= off * (1.0 + at.abs()), "{x}: {y}");
        let differences = (exact(at + h) - exact(at - h)) / (2.0 * h);
        assert!((f64::from(slope) - differences).abs() <= slopes_off, "{x}: {slope} {differences}");
    }
}

#[test]
fn sigmoids() {
    for i in -100_000..100_000 {
        let x = i as f32 / 1000.0;
        let exact = 1.0 / (1.0 + (-f64::from(x)).exp());
        // Below exp(-86.6) it is 0.
        assert!((f64::from(sigmoid(x)) - exact).abs() <= 5e-6 * exact + 1e-37, "{x}");
    }
    assert!(sigmoid(f32::NAN).is_nan());
    assert_eq!([sigmoid(f32::INFINITY), sigmoid(f32::NEG_INFINITY)], [1.0, 0.0]);
}

#[test]
fn gelus() {
    let c = (2.0 / std::f64::consts::PI).sqrt();
    let x: Vec<f32> = (-20_000..20_000).map(|i| i as f32 / 1000.0).collect();
    let exact = |x: f64| 0.5 * x * (1.0 + (c * (x + 0.044715 * x * x * x)).tanh());
    near(&x, of(&x, |b, x| b.gelu_exact(x, false), |b, d, x| b.gelu_back(d, x, false)), exact, [2e-6, 1e-5]);
    let [_, slopes] = of(&[1e20, -1e20], |b, x| b.gelu_exact(x, false), |b, d, x| b.gelu_back(d, x, false));
    assert_eq!(slopes, [1.0, 0.0]);
}

/// The error function by its power series, which converges everywhere and loses few digits up to 5.
fn erf(x: f64) -> f64 {
    let (mut term, mut sum) = (x, x);
    for n in 1..200 {
        term *= -x * x / f64::from(n);
        sum += term / f64::from(2 * n + 1);
    }
    2.0 / std::f64::consts::PI.sqrt() * sum
}

#[test]
fn gelus_by_the_error_function() {
    // Known values.
    assert!((erf(0.5) - 0.520_499_877_813_046_5).abs() < 1e-15);
    assert!((erf(2.0) - 0.995_322_265_018_952_7).abs() < 1e-14);
    let x: Vec<f32> = (-5000..5000).map(|i| i as f32 / 1000.0).collect();
    let exact = |x: f64| 0.5 * x * (1.0 + erf(x / 2f64.sqrt()));
    near(&x, of(&x, |b, x| b.gelu_exact(x, true), |b, d, x| b.gelu_back(d, x, true)), exact, [3e-7, 2e-6]);
    let [y, slopes] = of(&[1e20, -1e20], |b, x| b.gelu_exact(x, true), |b, d, x| b.gelu_back(d, x, true));
    assert_eq!((y[0], slopes), (1e20, vec![1.0, 0.0]));
}
