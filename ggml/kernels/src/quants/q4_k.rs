//! Q4_K: codes of four bits; a factor and a minimum of six bits for each 32.

use super::format::*;

pub(crate) struct Q4K;

impl Format for Q4K {
    blocks!(Q4_K);
    six_bits_each!();
    const CODES: usize = 16;

    #[inline(always)]
    fn part_codes<L: Lanes>(l: L, _: &Codes<L>, b: &Bytes<L>, _: usize, i: usize) -> Codes<L> {
        each(l, |quad| right(l, b[quad], 4 * i, 15))
    }
}
