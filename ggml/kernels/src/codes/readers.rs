//! The layout of codes in the blocks of each type: readers of several rows at once.

use super::rows::*;
use crate::simd::lanes::Lanes;
use crate::simd::MOST;

/// A register for each place in an array. (What the standard library has for it becomes a function of its own, whose
/// instructions are calls.)
#[inline(always)]
fn each<L: Lanes, const N: usize>(l: L, mut of: impl FnMut(usize) -> L::Ints) -> [L::Ints; N] {
    let mut all = [l.all(0); N];
    for (i, to) in all.iter_mut().enumerate() {
        *to = of(i);
    }
    all
}

#[inline(always)]
fn and<L: Lanes>(l: L, a: L::Ints, mask: i32) -> L::Ints {
    l.and(a, l.all(mask))
}

/// Bytes shifted to the right, and what `mask` leaves of each: nothing that came from another byte.
#[inline(always)]
fn right<L: Lanes>(l: L, a: L::Ints, by: usize, mask: i32) -> L::Ints {
    and(l, l.right(a, by), mask * 0x0101_0101)
}

/// Bytes shifted to the left, and what `mask` leaves of each: nothing that came from another byte.
#[inline(always)]
fn left<L: Lanes>(l: L, a: L::Ints, by: usize, mask: i32) -> L::Ints {
    and(l, l.left(a, by), mask * 0x0101_0101)
}

/// Sixteen bytes of each block from each of up to three places on.
#[inline(always)]
fn bytes<L: Lanes, const B: usize, const N: usize>(
    l: L,
    blocks: [&[u8; B]; MOST],
    places: [usize; N],
) -> [L::Ints; 12] {
    const { assert!(B >= 16) };
    let last = places.into_iter().max().unwrap_or_default();
    assert!(last <= B - 16);
    let mut all = [l.all(0); 12];
    for (to, at) in all.as_chunks_mut::<4>().0.iter_mut().zip(places) {
        // SAFETY: `at` is at most `last`, from which on sixteen bytes are in a block.
        *to = unsafe { l.transposed(blocks.map(|b| b.as_ptr().wrapping_add(at))) };
    }
    all
}

/// Factors and minima of six bits each, of which each lane has twelve bytes, as types Q4_K and Q5_K have them.
#[inline(always)]
fn six_bits<L: Lanes>(l: L, [x, y, z]: [L::Ints; 3]) -> [[L::Ints; 4]; 2] {
    let factors = l.or(right(l, z, 0, 15), left(l, right(l, x, 6, 3), 4, 0x30));
    let minima = l.or(right(l, z, 4, 15), left(l, right(l, y, 6, 3), 4, 0x30));
    let none = l.all(0);
    [[right(l, x, 0, 63), factors, none, none], [right(l, y, 0, 63), minima, none, none]]
}

/// The low halves of bytes of four registers, then the high ones.
#[inline(always)]
fn halves<L: Lanes>(l: L, b: &[L::Ints; 12]) -> [L::Ints; 8] {
    let mut codes = [l.all(0); 8];
    for i in 0..4 {
        (codes[i], codes[4 + i]) = (right(l, b[i], 0, 15), right(l, b[i], 4, 15));
    }
    codes
}

#[inline(always)]
fn looked_up<L: Lanes>(l: L, b: &[L::Ints; 12]) -> [L::Ints; 8] {
    let codes = halves(l, b);
    each(l, |i| l.looked_up(codes[i]))
}

/// Blocks of 32 codes of four bits: the low halves of sixteen bytes, then the high ones.
macro_rules! halves_of_bytes {
    ($name:ident, $at:literal, $l:ident, $b:ident => $codes:expr) => {
        impl Rows for $name {
            #[inline(always)]
            fn group<L: Lanes>(l: L, blocks: Blocks<Self>, _: usize) -> [L::Ints; 12] {
                bytes(l, blocks, [$at])
            }

            #[inline(always)]
            fn part_codes<L: Lanes>(
                $l: L,
                _: &[L::Ints; 8],
                $b: &[L::Ints; 12],
                _: usize,
                _: usize,
            ) -> [L::Ints; 8] {
                $codes
            }
        }
    };
}

halves_of_bytes!(Q4_0, 2, l, b => halves(l, b));
halves_of_bytes!(Q4_1, 4, l, b => halves(l, b));
halves_of_bytes!(Iq4Nl, 2, l, b => looked_up(l, b));

/// The same with a fifth bit of each code, in four bytes before them.
macro_rules! with_a_fifth_bit {
    ($name:ident, $bits:literal) => {
        impl Rows for $name {
            #[inline(always)]
            fn shared<L: Lanes>(l: L, blocks: Blocks<Self>) -> [L::Ints; 8] {
                [l.words(blocks.map(|b| word(b, $bits, false))); 8]
            }

            #[inline(always)]
            fn group<L: Lanes>(l: L, blocks: Blocks<Self>, _: usize) -> [L::Ints; 12] {
                bytes(l, blocks, [$bits + 4])
            }

            #[inline(always)]
            fn part_codes<L: Lanes>(
                l: L,
                bits: &[L::Ints; 8],
                b: &[L::Ints; 12],
                _: usize,
                _: usize,
            ) -> [L::Ints; 8] {
                let mut codes = halves(l, b);
                for (i, code) in codes.iter_mut().enumerate() {
                    // A product moves each of four bits to the fifth bit of another byte.
                    let four = and(l, l.right(bits[0], 4 * i), 15);
                    let fifth = and(l, l.mul(four, l.all(0x0204_0810)), 0x1010_1010);
                    *code = l.or(*code, fifth);
                }
                codes
            }
        }
    };
}

with_a_fifth_bit!(Q5_0, 2);
with_a_fifth_bit!(Q5_1, 4);

impl Rows for Q8_0 {
    #[inline(always)]
    fn group<L: Lanes>(l: L, blocks: Blocks<Self>, _: usize) -> [L::Ints; 12] {
        bytes(l, blocks, [2, 18])
    }

    #[inline(always)]
    fn part_codes<L: Lanes>(_: L, _: &[L::Ints; 8], b: &[L::Ints; 12], _: usize, _: usize) -> [L::Ints; 8] {
        std::array::from_fn(|i| b[i])
    }
}

impl Rows for Iq4Xs {
    const GROUPS: usize = 8;

    #[inline(always)]
    fn group<L: Lanes>(l: L, blocks: Blocks<Self>, group: usize) -> [L::Ints; 12] {
        bytes(l, blocks, [8 + 16 * group])
    }

    #[inline(always)]
    fn part_codes<L: Lanes>(l: L, _: &[L::Ints; 8], b: &[L::Ints; 12], _: usize, _: usize) -> [L::Ints; 8] {
        looked_up(l, b)
    }

    #[inline(always)]
    fn multiples_of_rows<L: Lanes>(l: L, blocks: Blocks<Self>) -> [[L::Ints; 4]; 2] {
        let [high, low, ..] = bytes(l, blocks, [0]);
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

/// Types with factors and minima of six bits after the numbers that they multiply.
macro_rules! six_bits_each {
    () => {
        const GROUPS: usize = 4;
        const IN_GROUP: usize = 2;

        #[inline(always)]
        fn heads_of_rows<L: Lanes>(l: L, blocks: Blocks<Self>) -> L::Ints {
            bytes(l, blocks, [0])[0]
        }

        #[inline(always)]
        fn multiples_of_rows<L: Lanes>(l: L, blocks: Blocks<Self>) -> [[L::Ints; 4]; 2] {
            let [_, x, y, z, ..] = bytes(l, blocks, [0]);
            six_bits(l, [x, y, z])
        }
    };
}

impl Rows for Q4K {
    six_bits_each!();

    #[inline(always)]
    fn group<L: Lanes>(l: L, blocks: Blocks<Self>, group: usize) -> [L::Ints; 12] {
        bytes(l, blocks, [16 + 32 * group, 32 + 32 * group])
    }

    #[inline(always)]
    fn part_codes<L: Lanes>(l: L, _: &[L::Ints; 8], b: &[L::Ints; 12], _: usize, i: usize) -> [L::Ints; 8] {
        each(l, |quad| right(l, b[quad], 4 * i, 15))
    }
}

impl Rows for Q5K {
    six_bits_each!();

    #[inline(always)]
    fn shared<L: Lanes>(l: L, blocks: Blocks<Self>) -> [L::Ints; 8] {
        let both = bytes(l, blocks, [16, 32]);
        std::array::from_fn(|quad| both[quad])
    }

    #[inline(always)]
    fn group<L: Lanes>(l: L, blocks: Blocks<Self>, group: usize) -> [L::Ints; 12] {
        bytes(l, blocks, [48 + 32 * group, 64 + 32 * group])
    }

    #[inline(always)]
    fn part_codes<L: Lanes>(
        l: L,
        bits: &[L::Ints; 8],
        b: &[L::Ints; 12],
        group: usize,
        i: usize,
    ) -> [L::Ints; 8] {
        let bit = Self::part(group, i);
        let mut codes = [l.all(0); 8];
        for (quad, code) in codes.iter_mut().enumerate() {
            let fifth =
                if bit < 4 { left(l, bits[quad], 4 - bit, 16) } else { right(l, bits[quad], bit - 4, 16) };
            *code = l.or(right(l, b[quad], 4 * i, 15), fifth);
        }
        codes
    }
}

/// Types with groups of sixteen bytes in which four parts share bytes: the groups 2 h and 2 h + 1 are the first and the second
/// sixteen weights of the parts of 32 from 4 h on.
macro_rules! four_share {
    () => {
        const GROUPS: usize = 4;
        const IN_GROUP: usize = 4;

        #[inline(always)]
        fn part(group: usize, i: usize) -> usize {
            2 * (group / 2 * 4 + i) + group % 2
        }
    };
}

impl Rows for Q2K {
    four_share!();

    #[inline(always)]
    fn multiples_of_rows<L: Lanes>(l: L, blocks: Blocks<Self>) -> [[L::Ints; 4]; 2] {
        let [a, b, c, d, ..] = bytes(l, blocks, [0]);
        let low = each(l, |i| right(l, [a, b, c, d][i], 0, 15));
        [low, each(l, |i| right(l, [a, b, c, d][i], 4, 15))]
    }

    #[inline(always)]
    fn group<L: Lanes>(l: L, blocks: Blocks<Self>, group: usize) -> [L::Ints; 12] {
        bytes(l, blocks, [16 + 16 * group])
    }

    #[inline(always)]
    fn part_codes<L: Lanes>(l: L, _: &[L::Ints; 8], b: &[L::Ints; 12], _: usize, i: usize) -> [L::Ints; 8] {
        each(l, |quad| right(l, b[quad % 4], 2 * i, 3))
    }
}

impl Rows for Q3K {
    four_share!();

    #[inline(always)]
    fn multiples_of_rows<L: Lanes>(l: L, blocks: Blocks<Self>) -> [[L::Ints; 4]; 2] {
        let [_, low, next, high, ..] = bytes(l, blocks, [92]);
        let low = [right(l, low, 0, 15), right(l, next, 0, 15), right(l, low, 4, 15), right(l, next, 4, 15)];
        let six: [L::Ints; 4] = each(l, |i| l.or(low[i], left(l, right(l, high, 2 * i, 3), 4, 0x30)));
        [each(l, |i| l.sub_bytes(six[i], l.all(0x2020_2020))); 2]
    }

    #[inline(always)]
    fn shared<L: Lanes>(l: L, blocks: Blocks<Self>) -> [L::Ints; 8] {
        let both = bytes(l, blocks, [0, 16]);
        std::array::from_fn(|quad| both[quad])
    }

    #[inline(always)]
    fn group<L: Lanes>(l: L, blocks: Blocks<Self>, group: usize) -> [L::Ints; 12] {
        bytes(l, blocks, [32 + 16 * group])
    }

    #[inline(always)]
    fn part_codes<L: Lanes>(
        l: L,
        bits: &[L::Ints; 8],
        b: &[L::Ints; 12],
        group: usize,
        i: usize,
    ) -> [L::Ints; 8] {
        let bit = group / 2 * 4 + i;
        let mut codes = [l.all(0); 8];
        for (quad, code) in codes.iter_mut().enumerate() {
            let bits = bits[4 * (group % 2) + quad % 4];
            let third = if bit < 2 { left(l, bits, 2 - bit, 4) } else { right(l, bits, bit - 2, 4) };
            *code = l.or(right(l, b[quad % 4], 2 * i, 3), third);
        }
        codes
    }
}

impl Rows for Q6K {
    four_share!();

    #[inline(always)]
    fn multiples_of_rows<L: Lanes>(l: L, blocks: Blocks<Self>) -> [[L::Ints; 4]; 2] {
        let [a, b, c, d, ..] = bytes(l, blocks, [192]);
        [[a, b, c, d]; 2]
    }

    #[inline(always)]
    fn group<L: Lanes>(l: L, blocks: Blocks<Self>, group: usize) -> [L::Ints; 12] {
        let (h, c) = (group / 2, 16 * (group % 2));
        bytes(l, blocks, [64 * h + c, 64 * h + 32 + c, 128 + 32 * h + c])
    }

    #[inline(always)]
    fn part_codes<L: Lanes>(l: L, _: &[L::Ints; 8], b: &[L::Ints; 12], _: usize, i: usize) -> [L::Ints; 8] {
        let mut codes = [l.all(0); 8];
        for (quad, code) in codes.iter_mut().enumerate() {
            let bits = b[8 + quad % 4];
            let high = if i < 2 { left(l, bits, 4 - 2 * i, 0x30) } else { right(l, bits, 2 * i - 4, 0x30) };
            *code = l.or(right(l, b[i % 2 * 4 + quad % 4], i / 2 * 4, 15), high);
        }
        codes
    }
}
