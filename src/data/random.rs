//! Random numbers and shuffles that are the same in every version and on every machine.

use rand_chacha::rand_core::{RngCore, SeedableRng};
use rand_chacha::ChaCha8Rng;
use sha2::{Digest, Sha256};

/// A generator for this seed, purpose and pair of numbers, seeded by a hash of them. (The ways of crate
/// `rand` from a `u64` to a seed, and from random bits to a number in a range, may change with its versions.)
pub(crate) fn rng(seed: u64, purpose: &str, a: u64, b: u64) -> ChaCha8Rng {
    let mut hash = Sha256::new();
    [seed, a, b].iter().for_each(|n| hash.update(n.to_le_bytes()));
    hash.update(purpose);
    ChaCha8Rng::from_seed(hash.finalize().into())
}

/// A uniform number below `n`, by rejection: draws from the incomplete end of the range of `u64` are thrown
/// away.
pub(crate) fn below(rng: &mut ChaCha8Rng, n: u64) -> u64 {
    let end = u64::MAX - u64::MAX % n;
    loop {
        let x = rng.next_u64();
        if x < end {
            return x % n;
        }
    }
}

/// A uniform number from 0 on and below 1, of 53 random bits.
pub(crate) fn unit(rng: &mut ChaCha8Rng) -> f64 {
    (rng.next_u64() >> 11) as f64 / (1u64 << 53) as f64
}

/// An index drawn with these weights, which are not negative and not all 0.
pub(crate) fn choose(rng: &mut ChaCha8Rng, weights: &[f64]) -> usize {
    let mut at = unit(rng) * weights.iter().sum::<f64>();
    for (i, w) in weights.iter().enumerate() {
        if at < *w {
            return i;
        }
        at -= w;
    }
    // Rounding: the last that can be drawn.
    weights.iter().rposition(|w| *w > 0.0).unwrap_or_default()
}

/// `k` different numbers below `n`, ascending; all of them where there are fewer (Floyd).
pub(crate) fn subset(rng: &mut ChaCha8Rng, n: u64, k: u64) -> Vec<u64> {
    let mut taken = std::collections::BTreeSet::new();
    for j in n.saturating_sub(k)..n {
        let x = below(rng, j + 1);
        taken.insert(if taken.contains(&x) { j } else { x });
    }
    taken.into_iter().collect()
}

/// Shuffles in place (Fisher and Yates).
pub(crate) fn shuffle<T>(items: &mut [T], rng: &mut ChaCha8Rng) {
    for i in (1..items.len()).rev() {
        items.swap(i, below(rng, i as u64 + 1) as usize);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_order_is_this_one_for_good() {
        let order = |seed, epoch| {
            let mut items: Vec<u32> = (0..10).collect();
            shuffle(&mut items, &mut rng(seed, "samples", epoch, 0));
            items
        };
        assert_eq!(order(1, 0), [7, 0, 5, 9, 6, 1, 4, 2, 3, 8]);
        assert_ne!(order(1, 0), order(1, 1));
        assert_ne!(order(1, 0), order(2, 0));
    }

    #[test]
    fn draws_are_as_likely_as_they_should_be() {
        let mut rng = rng(3, "test", 0, 0);
        let (mut chosen, mut pairs) = ([0u32; 4], std::collections::HashMap::new());
        for _ in 0..6000 {
            chosen[choose(&mut rng, &[1.0, 0.0, 2.0, 3.0])] += 1;
            *pairs.entry(subset(&mut rng, 4, 2)).or_insert(0u32) += 1;
        }
        for (n, expected) in chosen.iter().zip([1000u32, 0, 2000, 3000]) {
            assert!(n.abs_diff(expected) < 200, "{chosen:?}");
        }
        assert_eq!(pairs.len(), 6);
        assert!(pairs.values().all(|n| n.abs_diff(1000) < 145), "{pairs:?}");
        assert_eq!(subset(&mut rng, 3, 5), [0, 1, 2]);
    }

    #[test]
    fn every_order_is_as_likely() {
        let mut count = std::collections::HashMap::new();
        for seed in 0..6000 {
            let mut items = [0, 1, 2];
            shuffle(&mut items, &mut rng(seed, "test", 0, 0));
            *count.entry(items).or_insert(0u32) += 1;
        }
        assert_eq!(count.len(), 6);
        // Five standard deviations of a binomial with 6000 draws of 1/6.
        assert!(count.values().all(|n| n.abs_diff(1000) < 145), "{count:?}");
    }
}
