//! Correlation.

/// Pearson's correlation of pairs; `None` below three of them, or where one side does not vary.
///
/// Source: Pearson 1895; the sums are taken about the means.
pub fn pearson(pairs: &[(f64, f64)]) -> Option<f64> {
    if pairs.len() < 3 {
        return None;
    }
    let n = pairs.len() as f64;
    let (mx, my) = (pairs.iter().map(|p| p.0).sum::<f64>() / n, pairs.iter().map(|p| p.1).sum::<f64>() / n);
    let sum = |f: &dyn Fn(f64, f64) -> f64| pairs.iter().map(|&(x, y)| f(x - mx, y - my)).sum::<f64>();
    let (xx, yy, xy) = (sum(&|x, _| x * x), sum(&|_, y| y * y), sum(&|x, y| x * y));
    // Equal values may leave a rest of rounding.
    let flat = |ss: f64, mean: f64| ss <= n * (mean.abs() * 1e-12).powi(2);
    if flat(xx, mx) || flat(yy, my) {
        return None;
    }
    Some((xy / (xx.sqrt() * yy.sqrt())).clamp(-1.0, 1.0)).filter(|r| r.is_finite())
}

/// Spearman's rank correlation: Pearson's of the ranks, equal values sharing the mean of theirs.
pub fn spearman(pairs: &[(f64, f64)]) -> Option<f64> {
    let x = ranks(pairs.iter().map(|p| p.0).collect());
    let y = ranks(pairs.iter().map(|p| p.1).collect());
    pearson(&x.into_iter().zip(y).collect::<Vec<_>>())
}

/// Ranks from 1.
fn ranks(values: Vec<f64>) -> Vec<f64> {
    let mut order: Vec<usize> = (0..values.len()).collect();
    order.sort_by(|&a, &b| values[a].total_cmp(&values[b]));
    let mut out = vec![0.0; values.len()];
    let mut from = 0;
    while from < order.len() {
        let same = order[from..].iter().take_while(|&&i| values[i] == values[order[from]]).count().max(1);
        // The mean of the ranks from+1 to from+same.
        let rank = from as f64 + (same as f64 + 1.0) / 2.0;
        order[from..from + same].iter().for_each(|&i| out[i] = rank);
        from += same;
    }
    out
}
