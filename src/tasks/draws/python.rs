//! `random.Random` of Python.

use std::collections::HashSet;

use super::mt19937::Mt19937;

/// Python's generator: `random.Random(seed)`, or the module's own after `random.seed(seed)`.
#[derive(Clone)]
pub struct Random(Mt19937);

impl Random {
    /// `random.Random(seed)` of a non-negative `int`.
    pub fn new(seed: u64) -> Random {
        let low = seed as u32;
        let high = (seed >> 32) as u32;
        Random(if high == 0 { Mt19937::from_words(&[low]) } else { Mt19937::from_words(&[low, high]) })
    }

    /// `random()`: at least 0, below 1.
    pub fn random(&mut self) -> f64 {
        let high = f64::from(self.0.next_u32() >> 5);
        let low = f64::from(self.0.next_u32() >> 6);
        (high * 67_108_864.0 + low) / 9_007_199_254_740_992.0
    }

    /// `getrandbits(bits)`, for at most 128 bits.
    pub fn getrandbits(&mut self, bits: u32) -> u128 {
        debug_assert!(bits <= 128, "{bits} bits");
        let mut value = 0;
        for word in 0..bits.min(128).div_ceil(32) {
            let wanted = (bits - 32 * word).min(32);
            value |= u128::from(self.0.next_u32() >> (32 - wanted)) << (32 * word);
        }
        value
    }

    /// `_randbelow(n)`: at least 0, below `n`, which is at least 1.
    pub fn below(&mut self, n: usize) -> usize {
        debug_assert!(n > 0, "a number below 0");
        // One bit more than needed where n is a power of two, as in the original.
        let bits = usize::BITS - n.leading_zeros();
        loop {
            let value = self.getrandbits(bits) as usize;
            if value < n || n == 0 {
                return value;
            }
        }
    }

    /// `randint(first, last)`, both included; `first <= last`.
    pub fn randint(&mut self, first: usize, last: usize) -> usize {
        first + self.below(last - first + 1)
    }

    /// `choice(items)`, of at least one item.
    pub fn choice<'a, T>(&mut self, items: &'a [T]) -> &'a T {
        &items[self.below(items.len())]
    }

    /// `choices(items, k=k)`: with repetitions, of at least one item.
    pub fn choices<T: Clone>(&mut self, items: &[T], k: usize) -> Vec<T> {
        let n = items.len() as f64;
        (0..k).map(|_| items[(self.random() * n) as usize].clone()).collect()
    }

    /// `sample(range(n), k)`: `k` different numbers below `n`, in the order of their draws; `k <= n`.
    pub(crate) fn sample_range(&mut self, n: usize, k: usize) -> Vec<usize> {
        assert!(k <= n, "a sample of {k} of {n}");
        // Python keeps a list of all where that is smaller than a set of the chosen.
        let mut set_size = 21;
        if k > 5 {
            let mut table = 1;
            while table < 3 * k {
                table *= 4;
            }
            set_size += table;
        }
        if n <= set_size {
            let mut pool: Vec<usize> = (0..n).collect();
            return (0..k)
                .map(|i| {
                    let j = self.below(n - i);
                    let chosen = pool[j];
                    pool[j] = pool[n - i - 1];
                    chosen
                })
                .collect();
        }
        let mut chosen = HashSet::with_capacity(k);
        (0..k)
            .map(|_| loop {
                let j = self.below(n);
                if chosen.insert(j) {
                    return j;
                }
            })
            .collect()
    }

    /// `sample(items, k)`: without repetitions; `k` is at most the number of items.
    pub fn sample<T: Clone>(&mut self, items: &[T], k: usize) -> Vec<T> {
        self.sample_range(items.len(), k).into_iter().map(|i| items[i].clone()).collect()
    }

    /// `shuffle(items)`.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for i in (1..items.len()).rev() {
            items.swap(i, self.below(i + 1));
        }
    }

    /// `str(uuid.UUID(int=getrandbits(128), version=4))`.
    pub fn uuid4(&mut self) -> String {
        let random = self.getrandbits(128);
        // Version and variant of RFC 9562.
        let bits = random & !(0xf000 << 64) & !(0xc000 << 48) | 0x4000 << 64 | 0x8000 << 48;
        let digits = format!("{bits:032x}");
        [&digits[..8], &digits[8..12], &digits[12..16], &digits[16..20], &digits[20..]].join("-")
    }
}
