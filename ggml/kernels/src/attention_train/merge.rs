//! One softmax over keys that were attended to in parts.

/// Joins the results of one query over parts of its keys, `[d_v + 1]` each: outputs, and after them the log-sum-exp of
/// the part's scores. `out` becomes what attention over all parts together gives; zeros and -inf where none of them
/// saw a key.
///
/// # Panics
/// For parts of other lengths than `out`, or of none.
pub fn merge(parts: &[&[f32]], out: &mut [f32]) {
    let d = out.len() - 1;
    let max = parts.iter().map(|part| part[d]).fold(f32::NEG_INFINITY, f32::max);
    out.fill(0.0);
    // A NaN is not -inf and gets through.
    if parts.iter().all(|part| part[d] == f32::NEG_INFINITY) {
        out[d] = f32::NEG_INFINITY;
        return;
    }
    let sum: f32 = parts.iter().map(|part| (part[d] - max).exp()).sum();
    for part in parts {
        let weight = (part[d] - max).exp() / sum;
        out[..d].iter_mut().zip(&part[..d]).for_each(|(o, x)| *o += weight * x);
    }
    out[d] = max + sum.ln();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_weigh_by_their_sums_of_exponentials() {
        let mut out = [7.0; 3];
        // e^0 and 3 e^0: a quarter and three quarters.
        merge(&[&[4.0, 8.0, 0.0], &[0.0, 4.0, 3f32.ln()]], &mut out);
        let want = [1.0, 5.0, 4f32.ln()];
        assert!(out.iter().zip(want).all(|(a, b)| (a - b).abs() < 1e-6), "{out:?}");
        let unseen = [0.0, 0.0, f32::NEG_INFINITY];
        merge(&[&unseen, &[1.0, 2.0, -900.0], &unseen], &mut out);
        assert_eq!(out, [1.0, 2.0, -900.0]);
        merge(&[&unseen, &unseen], &mut out);
        assert_eq!(out, unseen);
        merge(&[&unseen, &[f32::NAN; 3]], &mut out);
        assert!(out.iter().all(|x| x.is_nan()), "{out:?}");
    }
}
