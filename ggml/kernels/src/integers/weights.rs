//! Rows of quantised weights as whole numbers of 16 bits: each block of 32 has a factor, and each half of it a number that
//! is added. Nothing is rounded: `factor * number + added` is what the type says, but for the order of roundings of floats.

use super::BLOCK;

/// The types that have such numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Kind {
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q8_0,
    Iq4Nl,
    Iq4Xs,
    Q2K,
    Q3K,
    Q4K,
    Q5K,
    Q6K,
}

/// The values of a code of four bits in the types IQ4_NL and IQ4_XS.
#[cfg(target_arch = "x86_64")]
const IQ4: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

/// A part of a row as whole numbers.
pub(super) struct Numbers<'a> {
    /// As many as the part has elements, none larger than 4096 in size.
    pub(super) values: &'a mut [i16],
    /// One for each [`BLOCK`] of them.
    pub(super) factors: &'a mut [f32],
    /// Two for each block; untouched where [`Kind::adds`] is false.
    pub(super) added: &'a mut [f32],
}

impl Kind {
    /// Elements of a block of the type, and its bytes.
    pub fn block(self) -> (usize, usize) {
        match self {
            Kind::Q4_0 | Kind::Iq4Nl => (32, 18),
            Kind::Q4_1 => (32, 20),
            Kind::Q5_0 => (32, 22),
            Kind::Q5_1 => (32, 24),
            Kind::Q8_0 => (32, 34),
            Kind::Iq4Xs => (256, 136),
            Kind::Q2K => (256, 84),
            Kind::Q3K => (256, 110),
            Kind::Q4K => (256, 144),
            Kind::Q5K => (256, 176),
            Kind::Q6K => (256, 210),
        }
    }

    /// Whether something is added to the products of factors and numbers.
    pub(super) fn adds(self) -> bool {
        matches!(self, Kind::Q4_1 | Kind::Q5_1 | Kind::Q2K | Kind::Q4K | Kind::Q5K)
    }

    /// Reads whole blocks.
    ///
    /// # Safety
    /// The processor has AVX2.
    pub(super) unsafe fn read(self, bytes: &[u8], to: Numbers<'_>) {
        let (block, n_bytes) = self.block();
        let n = bytes.len() / n_bytes * block;
        assert!(bytes.len().is_multiple_of(n_bytes) && to.values.len() == n);
        assert!(to.factors.len() == n / BLOCK && to.added.len() == n / BLOCK * 2);
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the caller's promise.
        unsafe {
            match self {
                Kind::Q4_0 => avx2::q4_0(bytes, to),
                Kind::Q4_1 => avx2::q4_1(bytes, to),
                Kind::Q5_0 => avx2::q5_0(bytes, to),
                Kind::Q5_1 => avx2::q5_1(bytes, to),
                Kind::Q8_0 => avx2::q8_0(bytes, to),
                Kind::Iq4Nl => avx2::iq4_nl(bytes, to),
                Kind::Iq4Xs => avx2::iq4_xs(bytes, to),
                Kind::Q2K => avx2::q2_k(bytes, to),
                Kind::Q3K => avx2::q3_k(bytes, to),
                Kind::Q4K => avx2::q4_k(bytes, to),
                Kind::Q5K => avx2::q5_k(bytes, to),
                Kind::Q6K => avx2::q6_k(bytes, to),
            }
        }
    }
}

/// Readers of each type. Every code becomes a signed byte first, 32 of them in a register.
#[cfg(target_arch = "x86_64")]
mod avx2 {
    use std::arch::x86_64::*;

    use half::f16;

    use super::{Numbers, BLOCK, IQ4};

    fn scale(bytes: &[u8], at: usize) -> f32 {
        f16::from_le_bytes([bytes[at], bytes[at + 1]]).to_f32()
    }

    /// Writes 32 signed bytes as numbers.
    #[target_feature(enable = "avx2")]
    fn put(codes: __m256i, out: &mut [i16; BLOCK]) {
        let halves = [_mm256_castsi256_si128(codes), _mm256_extracti128_si256::<1>(codes)];
        for (out, codes) in out.as_chunks_mut::<16>().0.iter_mut().zip(halves) {
            // SAFETY: 16 numbers are written to 16.
            unsafe { _mm256_storeu_si256(out.as_mut_ptr().cast(), _mm256_cvtepi8_epi16(codes)) }
        }
    }

    /// Writes 32 signed bytes as numbers, each half multiplied by a factor.
    #[target_feature(enable = "avx2")]
    fn put_times(codes: __m256i, factors: [i16; 2], out: &mut [i16; BLOCK]) {
        let halves = [_mm256_castsi256_si128(codes), _mm256_extracti128_si256::<1>(codes)];
        for ((out, codes), factor) in out.as_chunks_mut::<16>().0.iter_mut().zip(halves).zip(factors) {
            let products = _mm256_mullo_epi16(_mm256_cvtepi8_epi16(codes), _mm256_set1_epi16(factor));
            // SAFETY: 16 numbers are written to 16.
            unsafe { _mm256_storeu_si256(out.as_mut_ptr().cast(), products) }
        }
    }

    #[target_feature(enable = "avx2")]
    fn load(bytes: &[u8], at: usize) -> __m256i {
        let bytes: &[u8; 32] = bytes[at..at + 32].try_into().expect("32 bytes");
        // SAFETY: 32 bytes are read from 32.
        unsafe { _mm256_loadu_si256(bytes.as_ptr().cast()) }
    }

    /// The low halves of sixteen bytes, then the high ones.
    #[target_feature(enable = "avx2")]
    fn nibbles(bytes: &[u8], at: usize) -> __m256i {
        let bytes: &[u8; 16] = bytes[at..at + 16].try_into().expect("16 bytes");
        // SAFETY: 16 bytes are read from 16.
        let q = unsafe { _mm_loadu_si128(bytes.as_ptr().cast()) };
        _mm256_and_si256(_mm256_set_m128i(_mm_srli_epi16::<4>(q), q), _mm256_set1_epi8(15))
    }

    /// `bit` in each byte for which a bit of four bytes is set.
    #[target_feature(enable = "avx2")]
    fn spread(bytes: &[u8], at: usize, bit: i8) -> __m256i {
        let bits = i32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
        let of_byte =
            _mm256_setr_epi64x(0, 0x0101_0101_0101_0101, 0x0202_0202_0202_0202, 0x0303_0303_0303_0303);
        let bits = _mm256_shuffle_epi8(_mm256_set1_epi32(bits), of_byte);
        let each = _mm256_set1_epi64x(0x8040_2010_0804_0201_u64 as i64);
        _mm256_and_si256(_mm256_cmpeq_epi8(_mm256_and_si256(bits, each), each), _mm256_set1_epi8(bit))
    }

    /// `bit` in each byte that has bit `i` set.
    #[target_feature(enable = "avx2")]
    fn chosen(bytes: __m256i, i: usize, bit: i8) -> __m256i {
        let mask = _mm256_set1_epi8((1u8 << i) as i8);
        _mm256_and_si256(_mm256_cmpeq_epi8(_mm256_and_si256(bytes, mask), mask), _mm256_set1_epi8(bit))
    }

    /// Bytes shifted to the right, and what `mask` leaves of them.
    #[target_feature(enable = "avx2")]
    fn shifted(bytes: __m256i, by: usize, mask: i8) -> __m256i {
        let shifted = _mm256_srl_epi16(bytes, _mm_cvtsi32_si128(by as i32));
        _mm256_and_si256(shifted, _mm256_set1_epi8(mask))
    }

    #[target_feature(enable = "avx2")]
    fn looked_up(codes: __m256i) -> __m256i {
        // SAFETY: 16 bytes are read from 16.
        let table = unsafe { _mm_loadu_si128(IQ4.as_ptr().cast()) };
        _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(table), codes)
    }

    /// A reader of blocks of 32: the expressions give factor, number added, and codes of a block's bytes.
    macro_rules! small {
        ($(#[$doc:meta])* $name:ident, $bytes:literal, $b:ident => $factor:expr, $added:expr, $codes:expr) => {
            $(#[$doc])*
            #[target_feature(enable = "avx2")]
            pub(super) fn $name(bytes: &[u8], to: Numbers<'_>) {
                let heads = to.factors.iter_mut().zip(to.added.as_chunks_mut::<2>().0);
                let blocks = bytes.as_chunks::<$bytes>().0.iter().zip(to.values.as_chunks_mut().0);
                for (($b, values), (factor, added)) in blocks.zip(heads) {
                    *factor = $factor;
                    *added = [$added; 2];
                    put($codes, values);
                }
            }
        };
    }

    small!(
        /// Four bits each; 8 means 0.
        q4_0, 18, b => scale(b, 0), 0.0, _mm256_sub_epi8(nibbles(b, 2), _mm256_set1_epi8(8))
    );
    small!(q4_1, 20, b => scale(b, 0), scale(b, 2), nibbles(b, 4));
    small!(
        /// Four bits each, and a fifth elsewhere; 16 means 0.
        q5_0, 22, b => scale(b, 0), 0.0,
        _mm256_sub_epi8(_mm256_or_si256(nibbles(b, 6), spread(b, 2, 16)), _mm256_set1_epi8(16))
    );
    small!(q5_1, 24, b => scale(b, 0), scale(b, 2), _mm256_or_si256(nibbles(b, 8), spread(b, 4, 16)));
    small!(q8_0, 34, b => scale(b, 0), 0.0, load(b, 2));
    small!(iq4_nl, 18, b => scale(b, 0), 0.0, looked_up(nibbles(b, 2)));

    /// A reader of blocks of 256: of a block's bytes the expressions give the factor, and of each of its eight parts
    /// the codes, what multiplies their halves, and what is added to these.
    macro_rules! large {
        (
            $(#[$doc:meta])*
            $name:ident, $bytes:literal, $b:ident => $factor:expr, $i:ident => $codes:expr, $factors:expr, $added:expr
        ) => {
            $(#[$doc])*
            #[target_feature(enable = "avx2")]
            pub(super) fn $name(bytes: &[u8], to: Numbers<'_>) {
                let heads = to.factors.as_chunks_mut::<8>().0.iter_mut().zip(to.added.as_chunks_mut::<16>().0);
                let blocks = bytes.as_chunks::<$bytes>().0.iter().zip(to.values.as_chunks_mut::<256>().0);
                for (($b, values), (factors, added)) in blocks.zip(heads) {
                    *factors = [$factor; 8];
                    let parts = values.as_chunks_mut::<BLOCK>().0.iter_mut().zip(added.as_chunks_mut::<2>().0);
                    for ($i, (values, added)) in parts.enumerate() {
                        *added = $added;
                        put_times($codes, $factors, values);
                    }
                }
            }
        };
    }

    large!(
        /// A factor of six bits and 32 codes for each of eight parts.
        iq4_xs, 136, b => scale(b, 0), i => looked_up(nibbles(b, 8 + 16 * i)),
        {
            let (low, high) = (b[4 + i / 2] >> (4 * (i % 2)) & 15, u16::from_le_bytes([b[2], b[3]]) >> (2 * i) & 3);
            [i16::from(low) + 16 * high as i16 - 32; 2]
        },
        [0.0; 2]
    );
    large!(
        /// Two bits each; a factor and a minimum of four bits for sixteen.
        q2_k, 84, b => scale(b, 80), i => shifted(load(b, 16 + i / 4 * 32), i % 4 * 2, 3),
        [0, 1].map(|half| i16::from(b[2 * i + half] & 15)),
        {
            let least = -scale(b, 82);
            [0, 1].map(|half| least * f32::from(b[2 * i + half] >> 4))
        }
    );
    large!(
        /// Two bits each, and a third: where it is missing, 4 is taken off. A factor of six bits for sixteen.
        q3_k, 110, b => scale(b, 108), i => {
            let third = chosen(load(b, 0), i, 4);
            let codes = shifted(load(b, 32 + i / 4 * 32), i % 4 * 2, 3);
            _mm256_sub_epi8(_mm256_add_epi8(codes, third), _mm256_set1_epi8(4))
        },
        [2 * i, 2 * i + 1].map(|i| {
            let (low, high) = (b[96 + i % 8] >> (i / 8 * 4) & 15, b[104 + i % 4] >> (i / 4 * 2) & 3);
            i16::from(low | high << 4) - 32
        }),
        [0.0; 2]
    );
    large!(
        /// Four bits each; a factor and a minimum for 32.
        q4_k, 144, b => scale(b, 0), i => shifted(load(b, 16 + i / 2 * 32), i % 2 * 4, 15),
        [six_bits(&b[4..16], i).0; 2], [-scale(b, 2) * six_bits(&b[4..16], i).1; 2]
    );
    large!(
        /// As Q4_K, with a fifth bit elsewhere.
        q5_k, 176, b => scale(b, 0),
        i => _mm256_or_si256(shifted(load(b, 48 + i / 2 * 32), i % 2 * 4, 15), chosen(load(b, 16), i, 16)),
        [six_bits(&b[4..16], i).0; 2], [-scale(b, 2) * six_bits(&b[4..16], i).1; 2]
    );
    large!(
        /// Four bits each and two elsewhere; 32 means 0. A factor of eight bits for sixteen.
        q6_k, 210, b => scale(b, 208), i => {
            let (half, quarter) = (i / 4, i % 4);
            let low = shifted(load(b, half * 64 + quarter % 2 * 32), quarter / 2 * 4, 15);
            let high = shifted(load(b, 128 + half * 32), quarter * 2, 3);
            _mm256_sub_epi8(_mm256_or_si256(low, _mm256_slli_epi16::<4>(high)), _mm256_set1_epi8(32))
        },
        [0, 1].map(|half| i16::from(b[192 + 2 * i + half] as i8)),
        [0.0; 2]
    );

    /// Factor and minimum, six bits each, of part `i` of eight.
    fn six_bits(b: &[u8], i: usize) -> (i16, f32) {
        let (factor, least) = if i < 4 {
            (b[i] & 63, b[i + 4] & 63)
        } else {
            (b[i + 4] & 15 | b[i - 4] >> 6 << 4, b[i + 4] >> 4 | b[i] >> 6 << 4)
        };
        (i16::from(factor), f32::from(least))
    }
}
