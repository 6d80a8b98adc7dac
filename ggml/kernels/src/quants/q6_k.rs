//! Q6_K: codes of four bits and two elsewhere, of which 32 stands for 0; a factor of eight bits for each sixteen.

use super::format::*;

pub(crate) struct Q6K;

impl Format for Q6K {
    blocks!(Q6_K);
    const OFFSET: i8 = 32;
    const HALVES: bool = true;
    const FACTOR: usize = 208;
    const CODES: usize = 0;

    #[inline(always)]
    fn group<L: Lanes>(l: L, blocks: Blocks<Self>, group: usize) -> Bytes<L> {
        let (h, c) = (group / 2, 16 * (group % 2));
        bytes::<L, Self, 3>(l, blocks, [64 * h + c, 64 * h + 32 + c, 128 + 32 * h + c])
    }

    #[inline(always)]
    fn part_codes<L: Lanes>(l: L, _: &Codes<L>, b: &Bytes<L>, _: usize, i: usize) -> Codes<L> {
        let mut codes = [l.all(0); 8];
        for (quad, code) in codes.iter_mut().enumerate() {
            let bits = b[8 + quad % 4];
            let high = if i < 2 { left(l, bits, 4 - 2 * i, 0x30) } else { right(l, bits, 2 * i - 4, 0x30) };
            *code = l.or(right(l, b[i % 2 * 4 + quad % 4], i / 2 * 4, 15), high);
        }
        codes
    }

    #[inline(always)]
    fn multiples_of_rows<L: Lanes>(l: L, blocks: Blocks<Self>) -> [[L::Ints; 4]; 2] {
        let [a, b, c, d, ..] = bytes::<L, Self, 1>(l, blocks, [192]);
        [[a, b, c, d]; 2]
    }
}
