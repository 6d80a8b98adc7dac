//! `numpy.random` in its legacy form.

use super::mt19937::Mt19937;

/// NumPy's legacy generator: the state behind `np.random.seed` and the functions of `np.random`.
#[derive(Clone)]
pub struct RandomState(Mt19937);

impl RandomState {
    /// `np.random.seed(seed)`.
    pub fn new(seed: u32) -> RandomState {
        RandomState(Mt19937::from_word(seed))
    }

    /// `np.random.randint(low, high)`: at least `low`, below `high`; `low < high`.
    ///
    /// Legacy draws keep as many low bits of a word as the range needs, and draw again while they exceed it.
    pub fn randint(&mut self, low: u32, high: u32) -> u32 {
        debug_assert!(low < high, "an integer from {low} to below {high}");
        let last = high - low - 1;
        if last == 0 {
            return low;
        }
        let mask = u32::MAX >> last.leading_zeros();
        loop {
            let value = self.0.next_u32() & mask;
            if value <= last {
                return low + value;
            }
        }
    }
}
