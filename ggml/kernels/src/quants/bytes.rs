//! How formats read bytes and codes: what several of them share.

use super::format::{Blocks, Bytes, Codes, Format};
use crate::simd::lanes::Lanes;

/// The values of a code of four bits in the formats IQ4_NL and IQ4_XS.
pub(super) const IQ4: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

/// A register for each place in an array. (What the standard library has for it becomes a function, whose instructions are calls. So
/// does a closure that the compiler thinks is long: `scripts/inlined.sh` finds those.)
#[inline(always)]
pub(super) fn each<L: Lanes, const N: usize>(l: L, mut of: impl FnMut(usize) -> L::Ints) -> [L::Ints; N] {
    let mut all = [l.all(0); N];
    for (i, to) in all.iter_mut().enumerate() {
        *to = of(i);
    }
    all
}

#[inline(always)]
pub(super) fn and<L: Lanes>(l: L, a: L::Ints, mask: i32) -> L::Ints {
    l.and(a, l.all(mask))
}

/// Bytes shifted to the right, and what `mask` leaves of each: nothing that came from another byte.
#[inline(always)]
pub(super) fn right<L: Lanes>(l: L, a: L::Ints, by: usize, mask: i32) -> L::Ints {
    and(l, l.right(a, by), mask * 0x0101_0101)
}

/// Bytes shifted to the left, and what `mask` leaves of each: nothing that came from another byte.
#[inline(always)]
pub(super) fn left<L: Lanes>(l: L, a: L::Ints, by: usize, mask: i32) -> L::Ints {
    and(l, l.left(a, by), mask * 0x0101_0101)
}

/// Four bytes, or two of them where only a factor is there.
#[inline(always)]
pub(super) fn word(bytes: &[u8], at: usize, half: bool) -> u32 {
    if half {
        u32::from(u16::from_le_bytes([bytes[at], bytes[at + 1]]))
    } else {
        u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
    }
}

/// Sixteen bytes of each block from each of up to three places on.
#[inline(always)]
pub(super) fn bytes<L: Lanes, T: Format + ?Sized, const N: usize>(
    l: L,
    blocks: Blocks<T>,
    places: [usize; N],
) -> Bytes<L> {
    let last = places.into_iter().max().unwrap_or_default();
    assert!(blocks.iter().all(|b| b.as_ref().len() >= last + 16));
    let mut all = [l.all(0); 12];
    for (to, at) in all.as_chunks_mut::<4>().0.iter_mut().zip(places) {
        // SAFETY: `at` is at most `last`, from which on sixteen bytes are in a block.
        *to = unsafe { l.transposed(blocks.map(|b| b.as_ref().as_ptr().wrapping_add(at))) };
    }
    all
}

/// The low halves of bytes of four registers, then the high ones.
#[inline(always)]
pub(super) fn half_bytes<L: Lanes>(l: L, b: &Bytes<L>) -> Codes<L> {
    let mut codes = [l.all(0); 8];
    for i in 0..4 {
        (codes[i], codes[4 + i]) = (right(l, b[i], 0, 15), right(l, b[i], 4, 15));
    }
    codes
}

/// The same, each the value that a table has for it.
#[inline(always)]
pub(super) fn lookup<L: Lanes>(l: L, b: &Bytes<L>, table: &[i8; 16]) -> Codes<L> {
    let codes = half_bytes(l, b);
    each(l, |i| l.lookup(table, codes[i]))
}

/// The same with a fifth bit of each code, in a word that each lane has.
#[inline(always)]
pub(super) fn with_fifth_bits<L: Lanes>(l: L, b: &Bytes<L>, bits: L::Ints) -> Codes<L> {
    let mut codes = half_bytes(l, b);
    for (i, code) in codes.iter_mut().enumerate() {
        // A product moves each of four bits to the fifth bit of another byte.
        let four = and(l, l.right(bits, 4 * i), 15);
        let fifth = and(l, l.mul(four, l.all(0x0204_0810)), 0x1010_1010);
        *code = l.or(*code, fifth);
    }
    codes
}

/// Factors and minima of six bits each in the twelve bytes after the numbers that they multiply.
#[inline(always)]
pub(super) fn six_bits<L: Lanes, T: Format + ?Sized>(l: L, blocks: Blocks<T>) -> [[L::Ints; 4]; 2] {
    let [_, x, y, z, ..] = bytes::<L, T, 1>(l, blocks, [0]);
    let factors = l.or(right(l, z, 0, 15), left(l, right(l, x, 6, 3), 4, 0x30));
    let minima = l.or(right(l, z, 4, 15), left(l, right(l, y, 6, 3), 4, 0x30));
    let none = l.all(0);
    [[right(l, x, 0, 63), factors, none, none], [right(l, y, 0, 63), minima, none, none]]
}
