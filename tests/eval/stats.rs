//! Intervals of scores and of perplexities.

use ropewalk::eval::stats::{interval, interval_of_differences, perplexity_interval, wilson};

#[test]
fn the_interval_is_wilsons() {
    let near = |(a, b): (f64, f64), (c, d): (f64, f64)| (a - c).abs() < 5e-5 && (b - d).abs() < 5e-5;
    assert!(near(wilson(0, 20), (0.0, 0.16113)));
    assert!(near(wilson(10, 20), (0.29930, 0.70070)));
    assert!(near(wilson(19, 20), (0.76387, 0.99113)));
    assert!(near(wilson(20, 20), (0.83887, 1.0)));
    assert_eq!(wilson(0, 0), (0.0, 1.0));
    assert_eq!(interval(&[1.0, 0.0, 1.0]), ("wilson", wilson(2, 3)));
    // One score says little, whatever it is; of many their spread says more than the rate.
    let (how, (low, high)) = interval(&[0.75]);
    assert!(how == "wilson" && low < 0.2 && high > 0.97, "{low} {high}");
    let (how, (low, high)) = interval(&[0.7, 0.8].repeat(20));
    assert!(how == "bootstrap" && low > 0.7 && high < 0.8 && low < 0.75 && high > 0.75, "{low} {high}");
    assert_eq!(interval(&[0.5; 40]).0, "wilson");
    assert_eq!(interval_of_differences(&[0.0; 40]), (0.0, 0.0));
    let (low, high) = interval_of_differences(&[0.0]);
    assert!(low < -0.5 && high > 0.5);
}

#[test]
fn intervals_of_perplexities_are_those_of_their_logarithms() {
    let (low, high) = perplexity_interval(20.0, 2.0).unwrap();
    let around = [20f64.ln() - 0.196, 20f64.ln() + 0.196].map(f64::exp);
    assert!((low - around[0]).abs() < 1e-12 && (high - around[1]).abs() < 1e-12, "{low} {high}");
    // Three key tokens of LongPPL: 1.96 standard errors to the left of the perplexity itself is -0.04.
    let (low, high) = perplexity_interval(2.63, 1.364).unwrap();
    assert!(low == 1.0 && (7.2..7.3).contains(&high), "{low} {high}");
    assert_eq!(perplexity_interval(5.0, 0.0), Some((5.0, 5.0)));
    assert_eq!(perplexity_interval(2.0, f64::MAX), None);
}
