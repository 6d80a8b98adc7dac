//! Readers of each type. Functions that take or give registers must be inlined into one that has AVX2: that is all that is
//! asked of whoever calls the unsafe ones. An index past the bytes or parts panics.

use std::arch::x86_64::*;

use gguf::DType;
use half::f16;

use crate::simd::lanes::IQ4;

/// Factors of a block: `factor` times a whole number for each part, or each half of one ([`Codes::HALVES`]); and
/// `added` times another, which is added. Those behind the last have no meaning.
pub(crate) struct Heads {
    pub(crate) factor: f32,
    pub(crate) factors: [i8; 16],
    pub(crate) added: f32,
    pub(crate) times: [i8; 16],
}

pub(crate) trait Codes {
    type Block: AsRef<[u8]>;
    const DTYPE: DType;
    const ADDS: bool = super::adds(Self::DTYPE);
    const SIGNED: bool = super::signed(Self::DTYPE);
    /// Registers of 32 codes that a block has.
    const PARTS: usize = Self::DTYPE.block_size() / 32;
    /// True if factors are for 16 weights each, false if for 32.
    const HALVES: bool = super::halves(Self::DTYPE);
    /// Where in a block its factor lies, a half-precision number; behind it what is added, in types that add.
    const FACTOR: usize;

    fn blocks(bytes: &[u8]) -> &[Self::Block];

    /// The codes of a part.
    ///
    /// # Safety
    /// The processor has AVX2.
    unsafe fn codes(b: &Self::Block, part: usize) -> __m256i;

    /// Whole numbers of each part, or half of one: times the factor, and times what is added.
    fn multiples(_: &Self::Block) -> [[i8; 16]; 2] {
        [[1; 16]; 2]
    }

    #[inline(always)]
    fn heads(b: &Self::Block) -> Heads {
        let [factors, times] = Self::multiples(b);
        let bytes = b.as_ref();
        let added = if Self::ADDS { Self::SIGN * scale(bytes, Self::FACTOR + 2) } else { 0.0 };
        Heads { factor: scale(bytes, Self::FACTOR), factors, added, times }
    }

    /// K-quants have what is added with the other sign.
    const SIGN: f32 = if Self::PARTS > 1 { -1.0 } else { 1.0 };
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
    ($name:ident, $dtype:ident, $b:ident => $codes:expr) => {
        pub(crate) struct $name;

        impl Codes for $name {
            type Block = [u8; DType::$dtype.block_bytes()];
            const DTYPE: DType = DType::$dtype;
            const FACTOR: usize = 0;

            #[inline(always)]
            fn blocks(bytes: &[u8]) -> &[Self::Block] {
                bytes.as_chunks().0
            }

            #[inline(always)]
            unsafe fn codes($b: &Self::Block, _: usize) -> __m256i {
                // SAFETY: the caller's promise.
                unsafe { $codes }
            }
        }
    };
}

small!(Q4_0, Q4_0, b => nibbles(b, 2));
small!(Q4_1, Q4_1, b => nibbles(b, 4));
small!(Q5_0, Q5_0, b => _mm256_or_si256(nibbles(b, 6), spread(b, 2, 16)));
small!(Q5_1, Q5_1, b => _mm256_or_si256(nibbles(b, 8), spread(b, 4, 16)));
small!(Q8_0, Q8_0, b => load(b, 2));
small!(Iq4Nl, IQ4_NL, b => looked_up(nibbles(b, 2)));

/// A type with blocks of 256.
macro_rules! large {
    (
        $(#[$doc:meta])*
        $name:ident, $dtype:ident, $b:ident => $factor:expr,
        $i:ident => $codes:expr, $factors:expr, $times:expr
    ) => {
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

            #[inline(always)]
            unsafe fn codes($b: &Self::Block, $i: usize) -> __m256i {
                // SAFETY: the caller's promise.
                unsafe { $codes }
            }

            #[inline(always)]
            fn multiples($b: &Self::Block) -> [[i8; 16]; 2] {
                [$factors, $times]
            }
        }
    };
}

large!(
    /// Places in a table; a factor of six bits for 32.
    Iq4Xs, IQ4_XS, b => 0,
    i => looked_up(nibbles(b, 8 + 16 * i)),
    {
        let high = u16::from_le_bytes([b[2], b[3]]);
        let of = |i: usize| (b[4 + i / 2] >> (4 * (i % 2)) & 15) as i8 + 16 * (high >> (2 * i) & 3) as i8 - 32;
        std::array::from_fn(|i| if i < 8 { of(i) } else { 0 })
    },
    [0; 16]
);
large!(
    /// Two bits each; a factor and a minimum of four bits for sixteen.
    Q2K, Q2_K, b => 80,
    i => shifted(load(b, 16 + i / 4 * 32), i % 4 * 2, 3),
    std::array::from_fn(|i| (b[i] & 15) as i8),
    std::array::from_fn(|i| (b[i] >> 4) as i8)
);
large!(
    /// Two bits each, and a third elsewhere. A factor of six bits for sixteen.
    Q3K, Q3_K, b => 108,
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
    [0; 16]
);
large!(
    /// Four bits each; a factor and a minimum for 32.
    Q4K, Q4_K, b => 0,
    i => shifted(load(b, 16 + i / 2 * 32), i % 2 * 4, 15),
    six_bits(b)[0], six_bits(b)[1]
);
large!(
    /// Like Q4_K, with a fifth bit elsewhere.
    Q5K, Q5_K, b => 0,
    i => _mm256_or_si256(shifted(load(b, 48 + i / 2 * 32), i % 2 * 4, 15), chosen(load(b, 16), i, 16)),
    six_bits(b)[0], six_bits(b)[1]
);
large!(
    /// Four bits each and two elsewhere. A factor of eight bits for sixteen.
    Q6K, Q6_K, b => 208,
    i => {
        let (half, quarter) = (i / 4, i % 4);
        let low = shifted(load(b, half * 64 + quarter % 2 * 32), quarter / 2 * 4, 15);
        let high = shifted(load(b, 128 + half * 32), quarter * 2, 3);
        _mm256_or_si256(low, _mm256_slli_epi16::<4>(high))
    },
    std::array::from_fn(|i| b[192 + i] as i8),
    [0; 16]
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
