//! Readers of several rows at once: each lane of a register holds four codes of one row.

use gguf::DType;

use crate::simd::lanes::Lanes;
use crate::simd::MOST;

/// A type of weights that are read as codes.
pub(crate) trait Codes {
    type Block: AsRef<[u8]>;
    const DTYPE: DType;
    const ADDS: bool = super::adds(Self::DTYPE);
    const SIGNED: bool = super::signed(Self::DTYPE);
    /// Parts of 32 codes that a block has.
    const PARTS: usize = Self::DTYPE.block_size() / 32;
    /// True if factors are for 16 weights each, false if for 32.
    const HALVES: bool = super::halves(Self::DTYPE);
    /// Where in a block its factor lies, a half-precision number; after it what is added, in types that add.
    const FACTOR: usize;
    /// K-quants have what is added with the other sign.
    const SIGN: f32 = if Self::PARTS > 1 { -1.0 } else { 1.0 };

    fn blocks(bytes: &[u8]) -> &[Self::Block];
}

/// Types, and where in their blocks the factor lies.
macro_rules! types {
    ($($(#[$doc:meta])* $name:ident: $dtype:ident, $factor:literal;)*) => {$(
        $(#[$doc])*
        pub(crate) struct $name;

        impl Codes for $name {
            type Block = [u8; DType::$dtype.block_bytes()];
            const DTYPE: DType = DType::$dtype;
            const FACTOR: usize = $factor;

            #[inline(always)]
            fn blocks(bytes: &[u8]) -> &[Self::Block] {
                bytes.as_chunks().0
            }
        }
    )*};
}

types! {
    Q4_0: Q4_0, 0;
    Q4_1: Q4_1, 0;
    Q5_0: Q5_0, 0;
    Q5_1: Q5_1, 0;
    Q8_0: Q8_0, 0;
    /// Places in a table.
    Iq4Nl: IQ4_NL, 0;
    /// Places in a table; a factor of six bits for 32.
    Iq4Xs: IQ4_XS, 0;
    /// Two bits each; a factor and a minimum of four bits for sixteen.
    Q2K: Q2_K, 80;
    /// Two bits each, and a third elsewhere. A factor of six bits for sixteen.
    Q3K: Q3_K, 108;
    /// Four bits each; a factor and a minimum of six bits for 32.
    Q4K: Q4_K, 0;
    /// Like Q4_K, with a fifth bit elsewhere.
    Q5K: Q5_K, 0;
    /// Four bits each and two elsewhere. A factor of eight bits for sixteen.
    Q6K: Q6_K, 208;
}

/// A block of each row; registers with fewer lanes than [`MOST`] take as many of the first.
pub(crate) type Blocks<'a, T> = [&'a <T as Codes>::Block; MOST];

/// A type of weights of which several rows are read at once. A block has parts of 32 weights, or of sixteen in types with
/// [`Codes::HALVES`], and parts are read in groups that share bytes.
pub(crate) trait Rows: Codes {
    const GROUPS: usize = 1;
    const IN_GROUP: usize = 1;
    const N_FACTORS: usize = if Self::HALVES { 2 * Self::PARTS } else { Self::PARTS };
    /// Registers of codes of a part.
    const QUADS: usize = if Self::HALVES { 4 } else { 8 };

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

    /// The codes of a part of a group, four in each lane of a register, [`Rows::QUADS`] registers of them.
    fn part_codes<L: Lanes>(
        l: L,
        shared: &[L::Ints; 8],
        bytes: &[L::Ints; 12],
        group: usize,
        i: usize,
    ) -> [L::Ints; 8];

    /// In each lane the half-precision number that is the factor of a row's block, and after it what is added, if anything.
    #[inline(always)]
    fn heads_of_rows<L: Lanes>(l: L, blocks: Blocks<Self>) -> L::Ints {
        l.words(blocks.map(|b| word(b.as_ref(), Self::FACTOR, !Self::ADDS)))
    }

    /// Whole numbers of each part: times the factor, and times what is added. The bytes of a lane are those of four parts.
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
