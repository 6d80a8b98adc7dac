//! How codes of each type lie in its blocks: readers of several rows at once.
//!
//! Safety of all functions here: the processor has the instructions of the lanes.

use super::lanes::{Lanes, MOST};
use super::rows::{word, Blocks, Rows};
use super::x86::*;

#[inline(always)]
unsafe fn and<L: Lanes>(a: L::Ints, mask: i32) -> L::Ints {
    // SAFETY: the caller's promise.
    unsafe { L::and(a, L::all(mask)) }
}

/// Bytes shifted to the right, and what `mask` leaves of each: nothing that came from another byte.
#[inline(always)]
unsafe fn right<L: Lanes>(a: L::Ints, by: usize, mask: i32) -> L::Ints {
    // SAFETY: the caller's promise.
    unsafe { and::<L>(L::right(a, by), mask * 0x0101_0101) }
}

/// Bytes shifted to the left, and what `mask` leaves of each: nothing that came from another byte.
#[inline(always)]
unsafe fn left<L: Lanes>(a: L::Ints, by: usize, mask: i32) -> L::Ints {
    // SAFETY: the caller's promise.
    unsafe { and::<L>(L::left(a, by), mask * 0x0101_0101) }
}

/// Sixteen bytes of each block from each of up to three places on.
///
/// # Safety
/// Sixteen bytes from each place on are in a block, and the processor has the instructions of these lanes.
#[inline(always)]
unsafe fn bytes<L: Lanes, const B: usize, const N: usize>(
    blocks: [&[u8; B]; MOST],
    places: [usize; N],
) -> [L::Ints; 12] {
    // SAFETY: the caller's promise.
    unsafe {
        let mut all = [L::all(0); 12];
        for (to, at) in all.as_chunks_mut::<4>().0.iter_mut().zip(places) {
            debug_assert!(at + 16 <= B);
            *to = L::transposed(blocks.map(|b| b.as_ptr().wrapping_add(at)));
        }
        all
    }
}

/// Factors and minima of six bits each, of which each lane has twelve bytes, as types Q4_K and Q5_K have them.
#[inline(always)]
unsafe fn six_bits<L: Lanes>([x, y, z]: [L::Ints; 3]) -> [[L::Ints; 4]; 2] {
    // SAFETY: the caller's promise.
    unsafe {
        let factors = L::or(right::<L>(z, 0, 15), left::<L>(right::<L>(x, 6, 3), 4, 0x30));
        let minima = L::or(right::<L>(z, 4, 15), left::<L>(right::<L>(y, 6, 3), 4, 0x30));
        let none = L::all(0);
        [[right::<L>(x, 0, 63), factors, none, none], [right::<L>(y, 0, 63), minima, none, none]]
    }
}

/// The low halves of bytes of four registers, then the high ones.
#[inline(always)]
unsafe fn halves<L: Lanes>(b: &[L::Ints; 12]) -> [L::Ints; 8] {
    // SAFETY: the caller's promise.
    unsafe {
        let mut codes = [L::all(0); 8];
        for i in 0..4 {
            (codes[i], codes[4 + i]) = (right::<L>(b[i], 0, 15), right::<L>(b[i], 4, 15));
        }
        codes
    }
}

/// Blocks of 32 codes of four bits: the low halves of sixteen bytes, then the high ones.
macro_rules! halves_of_bytes {
    ($name:ident, $at:literal, $b:ident => $codes:expr) => {
        impl Rows for $name {
            #[inline(always)]
            unsafe fn group<L: Lanes>(blocks: Blocks<Self>, _: usize) -> [L::Ints; 12] {
                // SAFETY: the bytes lie within a block of this type; the caller's promise.
                unsafe { bytes::<L, _, _>(blocks, [$at]) }
            }

            #[inline(always)]
            unsafe fn part_codes<L: Lanes>(
                _: &[L::Ints; 8],
                $b: &[L::Ints; 12],
                _: usize,
                _: usize,
            ) -> [L::Ints; 8] {
                // SAFETY: the caller's promise.
                unsafe { $codes }
            }
        }
    };
}

halves_of_bytes!(Q4_0, 2, b => halves::<L>(b));
halves_of_bytes!(Q4_1, 4, b => halves::<L>(b));
halves_of_bytes!(Iq4Nl, 2, b => halves::<L>(b).map(|code| L::looked_up(code)));

/// The same with a fifth bit of each code, in four bytes before them.
macro_rules! with_a_fifth_bit {
    ($name:ident, $bits:literal) => {
        impl Rows for $name {
            #[inline(always)]
            unsafe fn shared<L: Lanes>(blocks: Blocks<Self>) -> [L::Ints; 8] {
                // SAFETY: the caller's promise.
                unsafe { [L::words(blocks.map(|b| word(b, $bits, false))); 8] }
            }

            #[inline(always)]
            unsafe fn group<L: Lanes>(blocks: Blocks<Self>, _: usize) -> [L::Ints; 12] {
                // SAFETY: the bytes lie within a block of this type; the caller's promise.
                unsafe { bytes::<L, _, _>(blocks, [$bits + 4]) }
            }

            #[inline(always)]
            unsafe fn part_codes<L: Lanes>(
                bits: &[L::Ints; 8],
                b: &[L::Ints; 12],
                _: usize,
                _: usize,
            ) -> [L::Ints; 8] {
                // SAFETY: the caller's promise.
                unsafe {
                    let mut codes = halves::<L>(b);
                    for (i, code) in codes.iter_mut().enumerate() {
                        // A product moves each of four bits to the fifth of a byte of its own.
                        let four = and::<L>(L::right(bits[0], 4 * i), 15);
                        let fifth = and::<L>(L::mul(four, L::all(0x0204_0810)), 0x1010_1010);
                        *code = L::or(*code, fifth);
                    }
                    codes
                }
            }
        }
    };
}

with_a_fifth_bit!(Q5_0, 2);
with_a_fifth_bit!(Q5_1, 4);

impl Rows for Q8_0 {
    #[inline(always)]
    unsafe fn group<L: Lanes>(blocks: Blocks<Self>, _: usize) -> [L::Ints; 12] {
        // SAFETY: the bytes lie within a block of this type; the caller's promise.
        unsafe { bytes::<L, _, _>(blocks, [2, 18]) }
    }

    #[inline(always)]
    unsafe fn part_codes<L: Lanes>(_: &[L::Ints; 8], b: &[L::Ints; 12], _: usize, _: usize) -> [L::Ints; 8] {
        std::array::from_fn(|i| b[i])
    }
}

impl Rows for Iq4Xs {
    const GROUPS: usize = 8;

    #[inline(always)]
    unsafe fn group<L: Lanes>(blocks: Blocks<Self>, group: usize) -> [L::Ints; 12] {
        // SAFETY: the bytes lie within a block of this type; the caller's promise.
        unsafe { bytes::<L, _, _>(blocks, [8 + 16 * group]) }
    }

    #[inline(always)]
    unsafe fn part_codes<L: Lanes>(_: &[L::Ints; 8], b: &[L::Ints; 12], _: usize, _: usize) -> [L::Ints; 8] {
        // SAFETY: the caller's promise.
        unsafe { halves::<L>(b).map(|code| L::looked_up(code)) }
    }

    #[inline(always)]
    unsafe fn multiples_of_rows<L: Lanes>(blocks: Blocks<Self>) -> [[L::Ints; 4]; 2] {
        // SAFETY: the bytes lie within a block of this type; the caller's promise.
        unsafe {
            let [high, low, ..] = bytes::<L, _, _>(blocks, [0]);
            let mut all = [L::all(0); 4];
            for part in 0..8 {
                let four = and::<L>(L::right(low, 4 * part), 15);
                let two = and::<L>(L::right(high, 16 + 2 * part), 3);
                let six = L::or(four, L::left(two, 4));
                all[part / 4] = L::or(all[part / 4], L::left(six, 8 * (part % 4)));
            }
            [all.map(|six| L::sub_bytes(six, L::all(0x2020_2020))); 2]
        }
    }
}

/// Types with factors and minima of six bits behind the numbers that they multiply.
macro_rules! six_bits_each {
    () => {
        const GROUPS: usize = 4;
        const IN_GROUP: usize = 2;

        #[inline(always)]
        unsafe fn heads_of_rows<L: Lanes>(blocks: Blocks<Self>) -> L::Ints {
            // SAFETY: the bytes lie within a block of this type; the caller's promise.
            unsafe { bytes::<L, _, _>(blocks, [0])[0] }
        }

        #[inline(always)]
        unsafe fn multiples_of_rows<L: Lanes>(blocks: Blocks<Self>) -> [[L::Ints; 4]; 2] {
            // SAFETY: the bytes lie within a block of this type; the caller's promise.
            unsafe {
                let [_, x, y, z, ..] = bytes::<L, _, _>(blocks, [0]);
                six_bits::<L>([x, y, z])
            }
        }
    };
}

impl Rows for Q4K {
    six_bits_each!();

    #[inline(always)]
    unsafe fn group<L: Lanes>(blocks: Blocks<Self>, group: usize) -> [L::Ints; 12] {
        // SAFETY: the bytes lie within a block of this type; the caller's promise.
        unsafe { bytes::<L, _, _>(blocks, [16 + 32 * group, 32 + 32 * group]) }
    }

    #[inline(always)]
    unsafe fn part_codes<L: Lanes>(_: &[L::Ints; 8], b: &[L::Ints; 12], _: usize, i: usize) -> [L::Ints; 8] {
        // SAFETY: the caller's promise.
        unsafe { std::array::from_fn(|quad| right::<L>(b[quad], 4 * i, 15)) }
    }
}

impl Rows for Q5K {
    six_bits_each!();

    #[inline(always)]
    unsafe fn shared<L: Lanes>(blocks: Blocks<Self>) -> [L::Ints; 8] {
        // SAFETY: the bytes lie within a block of this type; the caller's promise.
        unsafe {
            let both = bytes::<L, _, _>(blocks, [16, 32]);
            std::array::from_fn(|quad| both[quad])
        }
    }

    #[inline(always)]
    unsafe fn group<L: Lanes>(blocks: Blocks<Self>, group: usize) -> [L::Ints; 12] {
        // SAFETY: the bytes lie within a block of this type; the caller's promise.
        unsafe { bytes::<L, _, _>(blocks, [48 + 32 * group, 64 + 32 * group]) }
    }

    #[inline(always)]
    unsafe fn part_codes<L: Lanes>(
        bits: &[L::Ints; 8],
        b: &[L::Ints; 12],
        group: usize,
        i: usize,
    ) -> [L::Ints; 8] {
        // SAFETY: the caller's promise.
        unsafe {
            let bit = Self::part(group, i);
            std::array::from_fn(|quad| {
                let fifth = if bit < 4 {
                    left::<L>(bits[quad], 4 - bit, 16)
                } else {
                    right::<L>(bits[quad], bit - 4, 16)
                };
                L::or(right::<L>(b[quad], 4 * i, 15), fifth)
            })
        }
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
    unsafe fn multiples_of_rows<L: Lanes>(blocks: Blocks<Self>) -> [[L::Ints; 4]; 2] {
        // SAFETY: the bytes lie within a block of this type; the caller's promise.
        unsafe {
            let [a, b, c, d, ..] = bytes::<L, _, _>(blocks, [0]);
            [0, 4].map(|by| [a, b, c, d].map(|b| right::<L>(b, by, 15)))
        }
    }

    #[inline(always)]
    unsafe fn group<L: Lanes>(blocks: Blocks<Self>, group: usize) -> [L::Ints; 12] {
        // SAFETY: the bytes lie within a block of this type; the caller's promise.
        unsafe { bytes::<L, _, _>(blocks, [16 + 16 * group]) }
    }

    #[inline(always)]
    unsafe fn part_codes<L: Lanes>(_: &[L::Ints; 8], b: &[L::Ints; 12], _: usize, i: usize) -> [L::Ints; 8] {
        // SAFETY: the caller's promise.
        unsafe { std::array::from_fn(|quad| right::<L>(b[quad % 4], 2 * i, 3)) }
    }
}

impl Rows for Q3K {
    four_share!();

    #[inline(always)]
    unsafe fn multiples_of_rows<L: Lanes>(blocks: Blocks<Self>) -> [[L::Ints; 4]; 2] {
        // SAFETY: the bytes lie within a block of this type; the caller's promise.
        unsafe {
            let [_, low, next, high, ..] = bytes::<L, _, _>(blocks, [92]);
            let low = [
                right::<L>(low, 0, 15),
                right::<L>(next, 0, 15),
                right::<L>(low, 4, 15),
                right::<L>(next, 4, 15),
            ];
            let six = std::array::from_fn(|i| L::or(low[i], left::<L>(right::<L>(high, 2 * i, 3), 4, 0x30)));
            [six.map(|six| L::sub_bytes(six, L::all(0x2020_2020))); 2]
        }
    }

    #[inline(always)]
    unsafe fn shared<L: Lanes>(blocks: Blocks<Self>) -> [L::Ints; 8] {
        // SAFETY: the bytes lie within a block of this type; the caller's promise.
        unsafe {
            let both = bytes::<L, _, _>(blocks, [0, 16]);
            std::array::from_fn(|quad| both[quad])
        }
    }

    #[inline(always)]
    unsafe fn group<L: Lanes>(blocks: Blocks<Self>, group: usize) -> [L::Ints; 12] {
        // SAFETY: the bytes lie within a block of this type; the caller's promise.
        unsafe { bytes::<L, _, _>(blocks, [32 + 16 * group]) }
    }

    #[inline(always)]
    unsafe fn part_codes<L: Lanes>(
        bits: &[L::Ints; 8],
        b: &[L::Ints; 12],
        group: usize,
        i: usize,
    ) -> [L::Ints; 8] {
        // SAFETY: the caller's promise.
        unsafe {
            let bit = group / 2 * 4 + i;
            std::array::from_fn(|quad| {
                let bits = bits[4 * (group % 2) + quad % 4];
                let third = if bit < 2 { left::<L>(bits, 2 - bit, 4) } else { right::<L>(bits, bit - 2, 4) };
                L::or(right::<L>(b[quad % 4], 2 * i, 3), third)
            })
        }
    }
}

impl Rows for Q6K {
    four_share!();

    #[inline(always)]
    unsafe fn multiples_of_rows<L: Lanes>(blocks: Blocks<Self>) -> [[L::Ints; 4]; 2] {
        // SAFETY: the bytes lie within a block of this type; the caller's promise.
        unsafe {
            let [a, b, c, d, ..] = bytes::<L, _, _>(blocks, [192]);
            [[a, b, c, d]; 2]
        }
    }

    #[inline(always)]
    unsafe fn group<L: Lanes>(blocks: Blocks<Self>, group: usize) -> [L::Ints; 12] {
        // SAFETY: the bytes lie within a block of this type; the caller's promise.
        unsafe {
            let (h, c) = (group / 2, 16 * (group % 2));
            bytes::<L, _, _>(blocks, [64 * h + c, 64 * h + 32 + c, 128 + 32 * h + c])
        }
    }

    #[inline(always)]
    unsafe fn part_codes<L: Lanes>(_: &[L::Ints; 8], b: &[L::Ints; 12], _: usize, i: usize) -> [L::Ints; 8] {
        // SAFETY: the caller's promise.
        unsafe {
            std::array::from_fn(|quad| {
                let bits = b[8 + quad % 4];
                let high =
                    if i < 2 { left::<L>(bits, 4 - 2 * i, 0x30) } else { right::<L>(bits, 2 * i - 4, 0x30) };
                L::or(right::<L>(b[i % 2 * 4 + quad % 4], i / 2 * 4, 15), high)
            })
        }
    }
}
