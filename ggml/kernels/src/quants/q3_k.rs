//! Q3_K: codes of two bits and a third elsewhere, of which 4 stands for 0; a factor of six bits for each sixteen.

use super::format::*;

pub(crate) struct Q3K;

impl Format for Q3K {
    blocks!(Q3_K);
    const OFFSET: i8 = 4;
    const HALVES: bool = true;
    const FACTOR: usize = 108;
    const CODES: usize = 32;

    #[inline(always)]
    fn shared<L: Lanes>(l: L, blocks: Blocks<Self>) -> Codes<L> {
        let [a, b, c, d, e, f, g, h, ..] = bytes::<L, Self, 2>(l, blocks, [0, 16]);
        [a, b, c, d, e, f, g, h]
    }

    #[inline(always)]
    fn part_codes<L: Lanes>(l: L, bits: &Codes<L>, b: &Bytes<L>, group: usize, i: usize) -> Codes<L> {
        let bit = group / 2 * 4 + i;
        let mut codes = [l.all(0); 8];
        for (quad, code) in codes.iter_mut().enumerate() {
            let bits = bits[4 * (group % 2) + quad % 4];
            let third = if bit < 2 { left(l, bits, 2 - bit, 4) } else { right(l, bits, bit - 2, 4) };
            *code = l.or(right(l, b[quad % 4], 2 * i, 3), third);
        }
        codes
    }

    #[inline(always)]
    fn multiples_of_rows<L: Lanes>(l: L, blocks: Blocks<Self>) -> [[L::Ints; 4]; 2] {
        let [_, low, next, high, ..] = bytes::<L, Self, 1>(l, blocks, [92]);
        let low = [right(l, low, 0, 15), right(l, next, 0, 15), right(l, low, 4, 15), right(l, next, 4, 15)];
        let mut all = [l.all(0); 4];
        for (i, to) in all.iter_mut().enumerate() {
            let six = l.or(low[i], left(l, right(l, high, 2 * i, 3), 4, 0x30));
            *to = l.sub_bytes(six, l.all(0x2020_2020));
        }
        [all; 2]
    }
}
