//! Readers of several rows at once: a lane of a register is a row, and holds four codes of it.

use super::x86::Codes;
use crate::simd::lanes::{Lanes, MOST};

/// A block of each row; registers with fewer lanes than [`MOST`] take as many of the first.
pub(crate) type Blocks<'a, T> = [&'a <T as Codes>::Block; MOST];

/// A type of weights of which several rows are read at once. A block has parts of 32 weights, or of sixteen in types with
/// [`Codes::HALVES`], and parts are read in groups that share bytes.
pub(crate) trait Rows: Codes {
    const GROUPS: usize = 1;
    const IN_GROUP: usize = 1;
    const N_FACTORS: usize = if Self::HALVES { 2 * Self::PARTS } else { Self::PARTS };

    /// Bytes that all groups of a block share.
    #[inline(always)]
    fn shared<L: Lanes>(l: L, _: Blocks<Self>) -> [L::Ints; 8] {
        [l.all(0); 8]
    }

    /// Bytes of a group, below [`Rows::GROUPS`], up to twelve registers of them.
    fn group<L: Lanes>(l: L, blocks: Blocks<Self>, group: usize) -> [L::Ints; 12];

    /// The number of a part of a group.
    #[inline(always)]
    fn part(group: usize, i: usize) -> usize {
        group * Self::IN_GROUP + i
    }

    /// The codes of a part of a group, four in each lane of a register; four registers of them in types with halves, else
    /// eight.
    fn part_codes<L: Lanes>(
        l: L,
        shared: &[L::Ints; 8],
        bytes: &[L::Ints; 12],
        group: usize,
        i: usize,
    ) -> [L::Ints; 8];

    /// In each lane the half-precision number that is the factor of a row's block, and behind it what is added, if anything.
    #[inline(always)]
    fn heads_of_rows<L: Lanes>(l: L, blocks: Blocks<Self>) -> L::Ints {
        l.words(blocks.map(|b| word(b.as_ref(), Self::FACTOR, !Self::ADDS)))
    }

    /// [`Codes::multiples`] of each row: the bytes of a lane are those of four parts.
    #[inline(always)]
    fn multiples_of_rows<L: Lanes>(l: L, _: Blocks<Self>) -> [[L::Ints; 4]; 2] {
        [[l.all(0x0101_0101); 4]; 2]
    }

    /// Factors of each part of a block, and what is added for each.
    #[inline(always)]
    fn factors<L: Lanes>(l: L, blocks: Blocks<Self>) -> [[L::Floats; 16]; 2] {
        let [factor, added] = l.two_halves(Self::heads_of_rows(l, blocks));
        if Self::PARTS == 1 {
            return [[factor; 16], [added; 16]];
        }
        let [factors, times] = Self::multiples_of_rows(l, blocks);
        let n = if Self::HALVES { 16 } else { 8 };
        let added = l.times(added, l.every(Self::SIGN));
        [in_floats(l, factors, n, factor), in_floats(l, times, if Self::ADDS { n } else { 0 }, added)]
    }
}

/// The first `n` of sixteen signed bytes in each lane, as floats times `unit`.
#[inline(always)]
fn in_floats<L: Lanes>(l: L, quads: [L::Ints; 4], n: usize, unit: L::Floats) -> [L::Floats; 16] {
    let mut all = [l.none(); 16];
    for (to, quad) in all[..n].as_chunks_mut::<4>().0.iter_mut().zip(quads) {
        for (i, to) in to.iter_mut().enumerate() {
            *to = l.times(l.floats(l.signed_byte(quad, i)), unit);
        }
    }
    all
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
