//! Readers of each type. Functions that take or give registers must be inlined into one that has AVX2.

use std::arch::x86_64::*;

use half::f16;

use super::Kind;

/// The values of a code of four bits in the types IQ4_NL and IQ4_XS.
const IQ4: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

/// Factors of a block: `factor` times a whole number for each part, or each half of one ([`Codes::HALVES`]); and
/// `added` times another, which is added. Those behind the last have no meaning.
pub(crate) struct Heads {
    pub(crate) factor: f32,
    pub(crate) factors: [i8; 16],
    pub(crate) added: f32,
    pub(crate) times: [i8; 16],
}

/// A type of weights.
pub(crate) trait Codes {
    /// The bytes of a block.
    type Block;
    const KIND: Kind;
    const ADDS: bool = Self::KIND.adds();
    const SIGNED: bool = Self::KIND.signed();
    /// Registers of 32 codes that a block has.
    const PARTS: usize;
    /// Whether factors are of sixteen weights each, not of 32.
    const HALVES: bool;

    fn blocks(bytes: &[u8]) -> &[Self::Block];

    /// The codes of a part.
    ///
    /// # Safety
    /// The processor has AVX2.
    unsafe fn codes(b: &Self::Block, part: usize) -> __m256i;

    /// Factors of a block.
    fn heads(b: &Self::Block) -> Heads;
}

/// A type with blocks of 32.
pub(crate) trait Small: Codes {
    /// The bits of the factor of a block of 32, and behind them those of what is added, if anything.
    fn head(b: &Self::Block) -> i32;

    /// Where the bytes of a block of 32 begin whose halves are its codes.
    const NIBBLES: Option<usize>;

    /// The code that a half of a byte stands for.
    ///
    /// # Safety
    /// The processor has AVX2.
    #[inline(always)]
    unsafe fn value(halves: __m256i) -> __m256i {
        halves
    }

    /// The bytes of a block.
    fn bytes(b: &Self::Block) -> &[u8];

    /// Bytes of blocks of 32 of eight rows, four in a register: in each lane those of a row.
    ///
    /// # Safety
    /// The processor has AVX2.
    #[inline(always)]
    unsafe fn quads_of_eight(blocks: [&Self::Block; 8]) -> [__m256i; 4] {
        let at = Self::NIBBLES.unwrap_or(0);
        // SAFETY: 16 bytes are read from 16; the caller's promise.
        unsafe {
            let mut pairs = [_mm256_setzero_si256(); 4];
            for (i, pair) in pairs.iter_mut().enumerate() {
                let low = _mm_loadu_si128(Self::bytes(blocks[i])[at..at + 16].as_ptr().cast());
                let high = _mm_loadu_si128(Self::bytes(blocks[4 + i])[at..at + 16].as_ptr().cast());
                *pair = _mm256_inserti128_si256::<1>(_mm256_castsi128_si256(low), high);
            }
            let [a, b, c, d] = pairs;
            let (ab, cd) = (_mm256_unpacklo_epi32(a, b), _mm256_unpacklo_epi32(c, d));
            let (ab_high, cd_high) = (_mm256_unpackhi_epi32(a, b), _mm256_unpackhi_epi32(c, d));
            [
                _mm256_unpacklo_epi64(ab, cd),
                _mm256_unpackhi_epi64(ab, cd),
                _mm256_unpacklo_epi64(ab_high, cd_high),
                _mm256_unpackhi_epi64(ab_high, cd_high),
            ]
        }
    }

    /// Factors of blocks of 32 of eight rows, and what is added.
    ///
    /// # Safety
    /// The processor has AVX2 and F16C.
    #[inline(always)]
    unsafe fn heads_of_eight(blocks: [&Self::Block; 8]) -> [__m256; 2] {
        // SAFETY: the caller's promise.
        unsafe {
            let h = blocks.map(Self::head);
            let heads = _mm256_setr_epi32(h[0], h[1], h[2], h[3], h[4], h[5], h[6], h[7]);
            let low = _mm256_and_si256(heads, _mm256_set1_epi32(0xffff));
            let both = _mm256_packus_epi32(low, _mm256_srli_epi32::<16>(heads));
            // In each half: four factors, then four numbers added.
            let both = _mm256_permute4x64_epi64::<0b11_01_10_00>(both);
            [
                _mm256_cvtph_ps(_mm256_castsi256_si128(both)),
                _mm256_cvtph_ps(_mm256_extracti128_si256::<1>(both)),
            ]
        }
    }
}

fn scale(bytes: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([bytes[at], bytes[at + 1]]).to_f32()
}

#[inline(always)]
unsafe fn load(bytes: &[u8], at: usize) -> __m256i {
    let bytes: &[u8; 32] = bytes[at..at + 32].try_into().expect("32 bytes");
    // SAFETY: 32 bytes are read from 32; AVX2 is the caller's promise.
    unsafe { _mm256_loadu_si256(bytes.as_ptr().cast()) }
}

/// The low halves of sixteen bytes, then the high ones.
#[inline(always)]
unsafe fn nibbles(bytes: &[u8], at: usize) -> __m256i {
    let bytes: &[u8; 16] = bytes[at..at + 16].try_into().expect("16 bytes");
    // SAFETY: 16 bytes are read from 16; AVX2 is the caller's promise.
    unsafe {
        let q = _mm_loadu_si128(bytes.as_ptr().cast());
        _mm256_and_si256(_mm256_set_m128i(_mm_srli_epi16::<4>(q), q), _mm256_set1_epi8(15))
    }
}

/// `bit` in each byte for which a bit of four bytes is set.
#[inline(always)]
unsafe fn spread(bytes: &[u8], at: usize, bit: i8) -> __m256i {
    let bits = i32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
    // SAFETY: AVX2 is the caller's promise.
    unsafe {
        let of_byte =
            _mm256_setr_epi64x(0, 0x0101_0101_0101_0101, 0x0202_0202_0202_0202, 0x0303_0303_0303_0303);
        let bits = _mm256_shuffle_epi8(_mm256_set1_epi32(bits), of_byte);
        let each = _mm256_set1_epi64x(0x8040_2010_0804_0201_u64 as i64);
        _mm256_and_si256(_mm256_cmpeq_epi8(_mm256_and_si256(bits, each), each), _mm256_set1_epi8(bit))
    }
}

/// `bit` in each byte that has bit `i` set.
#[inline(always)]
unsafe fn chosen(bytes: __m256i, i: usize, bit: i8) -> __m256i {
    // SAFETY: AVX2 is the caller's promise.
    unsafe {
        let mask = _mm256_set1_epi8((1u8 << i) as i8);
        let is_set = _mm256_cmpeq_epi8(_mm256_and_si256(bytes, mask), mask);
        _mm256_and_si256(is_set, _mm256_set1_epi8(bit))
    }
}

/// Bytes shifted to the right, and what `mask` leaves of them.
#[inline(always)]
unsafe fn shifted(bytes: __m256i, by: usize, mask: i8) -> __m256i {
    // SAFETY: AVX2 is the caller's promise.
    unsafe {
        let shifted = _mm256_srl_epi16(bytes, _mm_cvtsi32_si128(by as i32));
        _mm256_and_si256(shifted, _mm256_set1_epi8(mask))
    }
}

#[inline(always)]
unsafe fn looked_up(codes: __m256i) -> __m256i {
    // SAFETY: 16 bytes are read from 16; AVX2 is the caller's promise.
    unsafe {
        let table = _mm_loadu_si128(IQ4.as_ptr().cast());
        _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(table), codes)
    }
}

/// A type with blocks of 32, whose factor and added number come first.
macro_rules! small {
    (@) => { None };
    (@ $nibbles:literal) => { Some($nibbles) };
    ($(#[$doc:meta])* $name:ident, $bytes:literal, $b:ident => $codes:expr $(, nibbles: $nibbles:literal $(, $value:expr)?)?) => {
        $(#[$doc])*
        pub(crate) struct $name;

        impl Codes for $name {
            type Block = [u8; $bytes];
            const KIND: Kind = Kind::$name;
            const PARTS: usize = 1;
            const HALVES: bool = false;

            #[inline(always)]
            fn blocks(bytes: &[u8]) -> &[Self::Block] {
                bytes.as_chunks().0
            }

            #[inline(always)]
            unsafe fn codes($b: &Self::Block, _: usize) -> __m256i {
                // SAFETY: the caller's promise.
                unsafe { $codes }
            }

            #[inline(always)]
            fn heads(b: &Self::Block) -> Heads {
                let added = if Self::ADDS { scale(b, 2) } else { 0.0 };
                Heads { factor: scale(b, 0), factors: [1; 16], added, times: [1; 16] }
            }
        }

        impl Small for $name {
            const NIBBLES: Option<usize> = small!(@ $($nibbles)?);

            $($(
                #[inline(always)]
                unsafe fn value(halves: __m256i) -> __m256i {
                    // SAFETY: the caller's promise.
                    unsafe { $value(halves) }
                }
            )?)?

            #[inline(always)]
            fn bytes(b: &Self::Block) -> &[u8] {
                b
            }

            #[inline(always)]
            fn head(b: &Self::Block) -> i32 {
                i32::from_le_bytes([b[0], b[1], b[2], b[3]])
            }
        }
    };
}

small!(
    /// Four bits each.
    Q4_0, 18, b => nibbles(b, 2), nibbles: 2
);
small!(
    /// Four bits each.
    Q4_1, 20, b => nibbles(b, 4), nibbles: 4
);
small!(
    /// Four bits each, and a fifth elsewhere.
    Q5_0, 22, b => _mm256_or_si256(nibbles(b, 6), spread(b, 2, 16))
);
small!(
    /// Four bits each, and a fifth elsewhere.
    Q5_1, 24, b => _mm256_or_si256(nibbles(b, 8), spread(b, 4, 16))
);
small!(
    /// Signed bytes.
    Q8_0, 34, b => load(b, 2)
);
small!(
    /// Places in a table.
    Iq4Nl, 18, b => looked_up(nibbles(b, 2)), nibbles: 2, looked_up
);

/// A type with blocks of 256.
macro_rules! large {
    (
        $(#[$doc:meta])*
        $name:ident, $bytes:literal, halves: $halves:literal, $b:ident => $factor:expr,
        $i:ident => $codes:expr, $factors:expr, $added:expr, $times:expr
    ) => {
        $(#[$doc])*
        pub(crate) struct $name;

        impl Codes for $name {
            type Block = [u8; $bytes];
            const KIND: Kind = Kind::$name;
            const PARTS: usize = 8;
            const HALVES: bool = $halves;

            #[inline(always)]
            fn blocks(bytes: &[u8]) -> &[Self::Block] {
                bytes.as_chunks().0
            }

            #[inline(always)]
            unsafe fn codes($b: &Self::Block, $i: usize) -> __m256i {
                // SAFETY: the caller's promise.
                unsafe { $codes }
            }

            #[inline(always)]
            fn heads($b: &Self::Block) -> Heads {
                Heads { factor: scale($b, $factor), factors: $factors, added: $added, times: $times }
            }
        }
    };
}

large!(
    /// Places in a table; a factor of six bits for 32.
    Iq4Xs, 136, halves: false, b => 0,
    i => looked_up(nibbles(b, 8 + 16 * i)),
    {
        let high = u16::from_le_bytes([b[2], b[3]]);
        let of = |i: usize| (b[4 + i / 2] >> (4 * (i % 2)) & 15) as i8 + 16 * (high >> (2 * i) & 3) as i8 - 32;
        std::array::from_fn(|i| if i < 8 { of(i) } else { 0 })
    },
    0.0, [0; 16]
);
large!(
    /// Two bits each; a factor and a minimum of four bits for sixteen.
    Q2K, 84, halves: true, b => 80,
    i => shifted(load(b, 16 + i / 4 * 32), i % 4 * 2, 3),
    std::array::from_fn(|i| (b[i] & 15) as i8),
    -scale(b, 82), std::array::from_fn(|i| (b[i] >> 4) as i8)
);
large!(
    /// Two bits each, and a third elsewhere. A factor of six bits for sixteen.
    Q3K, 110, halves: true, b => 108,
    i => _mm256_or_si256(shifted(load(b, 32 + i / 4 * 32), i % 4 * 2, 3), chosen(load(b, 0), i, 4)),
    {
        let [low, next, high] = [96, 100, 104].map(|at| word(b, at));
        let quads = [low, next, low >> 4, next >> 4].into_iter().enumerate();
        let quads = quads.map(|(i, x)| x & 0x0f0f_0f0f | (high >> (2 * i) & 0x0303_0303) << 4);
        let mut all = [0; 16];
        for (all, quad) in all.as_chunks_mut::<4>().0.iter_mut().zip(quads) {
            *all = quad.to_le_bytes().map(|x| x as i8 - 32);
        }
        all
    },
    0.0, [0; 16]
);
large!(
    /// Four bits each; a factor and a minimum for 32.
    Q4K, 144, halves: false, b => 0,
    i => shifted(load(b, 16 + i / 2 * 32), i % 2 * 4, 15),
    six_bits(b)[0], -scale(b, 2), six_bits(b)[1]
);
large!(
    /// As Q4_K, with a fifth bit elsewhere.
    Q5K, 176, halves: false, b => 0,
    i => _mm256_or_si256(shifted(load(b, 48 + i / 2 * 32), i % 2 * 4, 15), chosen(load(b, 16), i, 16)),
    six_bits(b)[0], -scale(b, 2), six_bits(b)[1]
);
large!(
    /// Four bits each and two elsewhere. A factor of eight bits for sixteen.
    Q6K, 210, halves: true, b => 208,
    i => {
        let (half, quarter) = (i / 4, i % 4);
        let low = shifted(load(b, half * 64 + quarter % 2 * 32), quarter / 2 * 4, 15);
        let high = shifted(load(b, 128 + half * 32), quarter * 2, 3);
        _mm256_or_si256(low, _mm256_slli_epi16::<4>(high))
    },
    std::array::from_fn(|i| b[192 + i] as i8),
    0.0, [0; 16]
);

fn word(b: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(b[at..at + 4].try_into().expect("four bytes"))
}

/// Factors and minima of the eight parts of a block of Q4_K or Q5_K, six bits each, in twelve bytes from the fourth on.
#[inline(always)]
fn six_bits(b: &[u8]) -> [[i8; 16]; 2] {
    let [x, y, z] = [4, 8, 12].map(|at| word(b, at));
    let join =
        |low: u32, high: u32| (u128::from(low) | u128::from(high) << 32).to_le_bytes().map(|x| x as i8);
    let (six, four, two) = (0x3f3f_3f3f, 0x0f0f_0f0f, 0x0303_0303);
    [join(x & six, z & four | (x >> 6 & two) << 4), join(y & six, z >> 4 & four | (y >> 6 & two) << 4)]
}
