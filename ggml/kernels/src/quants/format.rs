//! A format of blocks, which are read several rows at once: each lane of a register holds four codes of one row.

// What the files of formats take from here.
pub(super) use gguf::DType;

pub(super) use super::bytes::*;
pub(super) use crate::simd::lanes::Lanes;
use crate::simd::MOST;

/// A block of each row; registers with fewer lanes than [`MOST`] take as many of the first.
pub(crate) type Blocks<'a, T> = [&'a <T as Format>::Block; MOST];
/// Registers of codes, four in each lane.
pub(crate) type Codes<L> = [<L as Lanes>::Ints; 8];
/// Registers of bytes of blocks, four in each lane.
pub(crate) type Bytes<L> = [<L as Lanes>::Ints; 12];

/// Sets the type of a format and its blocks.
macro_rules! blocks {
    ($dtype:ident) => {
        type Block = [u8; DType::$dtype.block_bytes()];
        const DTYPE: DType = DType::$dtype;

        #[inline(always)]
        fn blocks(bytes: &[u8]) -> &[Self::Block] {
            bytes.as_chunks().0
        }
    };
}
pub(super) use blocks;

/// Sets what formats with factors and minima of six bits have in common: groups of 32 bytes, whose halves are the codes of two parts.
macro_rules! six_bits_each {
    () => {
        const ADDS: bool = true;
        const GROUPS: usize = 4;
        const IN_GROUP: usize = 2;

        #[inline(always)]
        fn group<L: Lanes>(l: L, blocks: Blocks<Self>, group: usize) -> Bytes<L> {
            let at = Self::CODES + 32 * group;
            bytes::<L, Self, 2>(l, blocks, [at, at + 16])
        }

        #[inline(always)]
        fn heads_of_rows<L: Lanes>(l: L, blocks: Blocks<Self>) -> L::Ints {
            bytes::<L, Self, 1>(l, blocks, [0])[0]
        }

        #[inline(always)]
        fn multiples_of_rows<L: Lanes>(l: L, blocks: Blocks<Self>) -> [[L::Ints; 4]; 2] {
            six_bits::<L, Self>(l, blocks)
        }
    };
}
pub(super) use six_bits_each;

/// A format of blocks. A block has parts of 32 weights, or of sixteen in formats with [`Format::HALVES`], and parts are read in
/// groups that share bytes. Unless a format says otherwise, a block has 32 weights, and sixteen bytes whose low halves are the
/// codes of the first sixteen.
pub(crate) trait Format {
    type Block: AsRef<[u8]>;
    const DTYPE: DType;
    /// True if a number is added to the products of factors and codes.
    const ADDS: bool = false;
    /// True if codes have a sign.
    const SIGNED: bool = false;
    /// The code that stands for 0, in formats to which nothing is added. Codes below it are read as they are: signed ones have an
    /// offset of 0.
    const OFFSET: i8 = 0;
    /// True if factors are for 16 weights each, false if for 32.
    const HALVES: bool = false;
    /// Where in a block its factor lies, a half-precision number; after it what is added, in formats that add.
    const FACTOR: usize = 0;
    /// Where in a block the bytes of the groups begin.
    const CODES: usize;
    /// Parts of 32 codes that a block has.
    const PARTS: usize = Self::DTYPE.block_size() / 32;
    /// K-quants have what is added with the other sign.
    const SIGN: f32 = if Self::PARTS > 1 { -1.0 } else { 1.0 };
    const GROUPS: usize = if Self::HALVES { 4 } else { 1 };
    const IN_GROUP: usize = if Self::HALVES { 4 } else { 1 };
    const N_FACTORS: usize = if Self::HALVES { 2 * Self::PARTS } else { Self::PARTS };
    /// Registers of codes of a part.
    const QUADS: usize = if Self::HALVES { 4 } else { 8 };

    fn blocks(bytes: &[u8]) -> &[Self::Block];

    /// Bytes that all groups of a block share.
    #[inline(always)]
    fn shared<L: Lanes>(l: L, _: Blocks<Self>) -> Codes<L> {
        [l.all(0); 8]
    }

    /// Bytes of a group, below [`Format::GROUPS`], up to twelve registers of them.
    #[inline(always)]
    fn group<L: Lanes>(l: L, blocks: Blocks<Self>, group: usize) -> Bytes<L> {
        bytes::<L, Self, 1>(l, blocks, [Self::CODES + 16 * group])
    }

    /// The number of a part of a group. With [`Format::HALVES`], the groups 2 h and 2 h + 1 are the first and the second sixteen
    /// weights of the parts of 32 from 4 h on.
    #[inline(always)]
    fn part(group: usize, i: usize) -> usize {
        if Self::HALVES {
            2 * (group / 2 * 4 + i) + group % 2
        } else {
            group * Self::IN_GROUP + i
        }
    }

    /// The codes of a part of a group, [`Format::QUADS`] registers of them.
    #[inline(always)]
    fn part_codes<L: Lanes>(l: L, _: &Codes<L>, bytes: &Bytes<L>, _: usize, _: usize) -> Codes<L> {
        half_bytes(l, bytes)
    }

    /// In each lane the half-precision number that is the factor of a row's block, and after it what is added, if anything.
    #[inline(always)]
    fn heads_of_rows<L: Lanes>(l: L, blocks: Blocks<Self>) -> L::Ints {
        l.words(blocks.map(|b| word(b.as_ref(), Self::FACTOR, !Self::ADDS)))
    }

    /// The factor of each row's block, and what is added.
    #[inline(always)]
    fn units<L: Lanes>(l: L, blocks: Blocks<Self>) -> [L::Floats; 2] {
        l.two_halves(Self::heads_of_rows(l, blocks))
    }

    /// Whole numbers of each part: times the factor, and times what is added. The bytes of a lane are those of four parts.
    #[inline(always)]
    fn multiples_of_rows<L: Lanes>(l: L, _: Blocks<Self>) -> [[L::Ints; 4]; 2] {
        [[l.all(0x0101_0101); 4]; 2]
    }

    /// Factors of each part of a block, and what is added for each.
    #[inline(always)]
    fn factors<L: Lanes>(l: L, blocks: Blocks<Self>) -> [[L::Floats; 16]; 2] {
        let [factor, added] = Self::units(l, blocks);
        if Self::PARTS == 1 {
            return [[factor; 16], [added; 16]];
        }
        let [factors, times] = Self::multiples_of_rows(l, blocks);
        let n = if Self::HALVES { 16 } else { 8 };
        let added = l.times(added, l.splat(Self::SIGN));
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
