//! Q2_K: codes of two bits; a factor and a minimum of four bits for each sixteen.

use super::format::*;

pub(crate) struct Q2K;

impl Format for Q2K {
    blocks!(Q2_K);
    const ADDS: bool = true;
    const HALVES: bool = true;
    const FACTOR: usize = 80;
    const CODES: usize = 16;

    #[inline(always)]
    fn part_codes<L: Lanes>(l: L, _: &Codes<L>, b: &Bytes<L>, _: usize, i: usize) -> Codes<L> {
        each(l, |quad| right(l, b[quad % 4], 2 * i, 3))
    }

    #[inline(always)]
    fn multiples_of_rows<L: Lanes>(l: L, blocks: Blocks<Self>) -> [[L::Ints; 4]; 2] {
        let b = bytes::<L, Self, 1>(l, blocks, [0]);
        [each(l, |i| right(l, b[i], 0, 15)), each(l, |i| right(l, b[i], 4, 15))]
    }
}
