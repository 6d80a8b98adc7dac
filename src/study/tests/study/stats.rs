//! Correlations, against some found by hand.

use ropewalk_study::{pearson, spearman};

#[track_caller]
fn near(found: Option<f64>, expected: f64) {
    assert!((found.unwrap() - expected).abs() < 1e-12, "{found:?}, expected {expected}");
}

#[test]
fn correlations_are_those_found_by_hand() {
    let line = [(1.0, 3.0), (2.0, 5.0), (3.0, 7.0)];
    near(pearson(&line), 1.0);
    near(spearman(&line.map(|(x, y)| (x, -y))), -1.0);
    // Means 2.5 and 2; sums of squares 5 and 2, of products 2.
    let pairs = [(1.0, 1.0), (2.0, 2.0), (3.0, 3.0), (4.0, 2.0)];
    near(pearson(&pairs), 2.0 / 10f64.sqrt());
    // Ranks 1 2 3 4 and 1 2.5 4 2.5: sums of squares 5 and 4.5, of products 3.
    near(spearman(&pairs), 3.0 / 22.5f64.sqrt());
    // Any growing curve has rank correlation 1, and a lower one of the values.
    let curve = [(1.0, 1.0), (2.0, 4.0), (3.0, 100.0), (4.0, 1e6)];
    near(spearman(&curve), 1.0);
    assert!(pearson(&curve).unwrap() < 0.9);
}

#[test]
fn too_few_or_equal_values_have_none() {
    assert_eq!(pearson(&[(1.0, 2.0), (2.0, 1.0)]), None);
    assert_eq!(spearman(&[]), None);
    let flat = [(1.0, 0.1), (2.0, 0.1), (3.0, 0.1), (4.0, 0.1)];
    assert_eq!((pearson(&flat), spearman(&flat)), (None, None));
    assert_eq!(pearson(&[(f64::INFINITY, 1.0), (1.0, 2.0), (2.0, 3.0)]), None);
}
