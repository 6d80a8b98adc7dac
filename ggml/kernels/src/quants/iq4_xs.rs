//! IQ4_XS: places in a table, and a factor of six bits for each 32.

use super::format::*;

pub(crate) struct Iq4Xs;

impl Format for Iq4Xs {
    blocks!(IQ4_XS);
    const SIGNED: bool = true;
    const CODES: usize = 8;
    const GROUPS: usize = 8;

    #[inline(always)]
    fn part_codes<L: Lanes>(l: L, _: &Codes<L>, b: &Bytes<L>, _: usize, _: usize) -> Codes<L> {
        lookup(l, b, &IQ4)
    }

    #[inline(always)]
    fn multiples_of_rows<L: Lanes>(l: L, blocks: Blocks<Self>) -> [[L::Ints; 4]; 2] {
        let [high, low, ..] = bytes::<L, Self, 1>(l, blocks, [0]);
        let mut all = [l.all(0); 4];
        for part in 0..8 {
            let four = and(l, l.right(low, 4 * part), 15);
            let two = and(l, l.right(high, 16 + 2 * part), 3);
            let six = l.or(four, l.left(two, 4));
            all[part / 4] = l.or(all[part / 4], l.left(six, 8 * (part % 4)));
        }
        [each(l, |i| l.sub_bytes(all[i], l.all(0x2020_2020))); 2]
    }
}
