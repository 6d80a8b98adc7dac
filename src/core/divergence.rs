//! How far two predictions of the next token are apart, out of their logits.

/// The figures of one token, in nats.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Divergence {
    /// KL(p || q) over the vocabulary (Kullback and Leibler 1951).
    pub kl: f64,
    /// True if both have the same most probable token.
    pub same_top: bool,
    /// Negative log-likelihood of the token that follows, under `p` and under `q`.
    pub nll: [f64; 2],
}

impl Divergence {
    /// The logits of the reference and of the other model, and the token that follows.
    pub fn of(p: &[f32], q: &[f32], next: usize) -> Divergence {
        let (log_p, log_q) = (log_sum_exp(p), log_sum_exp(q));
        let term = |(&p, &q): (&f32, &f32)| {
            let (p, q) = (f64::from(p) - log_p, f64::from(q) - log_q);
            p.exp() * (p - q)
        };
        // Rounding may take it a little below zero. NaN stays.
        let kl = p.iter().zip(q).map(term).sum::<f64>();
        let kl = if kl < 0.0 { 0.0 } else { kl };
        let nll = [log_p - f64::from(p[next]), log_q - f64::from(q[next])];
        Divergence { kl, same_top: top(p) == top(q), nll }
    }
}

fn log_sum_exp(row: &[f32]) -> f64 {
    let max = f64::from(row.iter().copied().fold(f32::NEG_INFINITY, f32::max));
    max + row.iter().map(|&x| (f64::from(x) - max).exp()).sum::<f64>().ln()
}

fn top(row: &[f32]) -> usize {
    (0..row.len()).reduce(|best, i| if row[i] > row[best] { i } else { best }).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn divergences_are_those_of_the_definition() {
        // p = (1/2, 1/4, 1/4), q = (1/4, 1/4, 1/2), in logits with different constants.
        let p = [2f32.ln() + 3.0, 3.0, 3.0];
        let q = [-1.0, -1.0, 2f32.ln() - 1.0];
        let found = Divergence::of(&p, &q, 2);
        let expected = 0.5 * 2f64.ln() - 0.25 * 2f64.ln();
        assert!((found.kl - expected).abs() < 1e-7 && !found.same_top, "{}", found.kl);
        assert!((found.nll[0] - 4f64.ln()).abs() < 1e-7 && (found.nll[1] - 2f64.ln()).abs() < 1e-7);
        let same = Divergence::of(&p, &p, 0);
        assert_eq!((same.kl, same.same_top), (0.0, true));
        assert!(Divergence::of(&p, &[f32::NAN, 0.0, 0.0], 0).kl.is_nan());
    }
}
