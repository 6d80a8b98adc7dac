//! Blocks of quantised weights as codes, small whole numbers, and what turns these into weights: a code less the type's offset,
//! times a factor, and for some types a number added. 32 codes are read at a time.

/// The types whose weights are read as codes.
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

impl Kind {
    /// All of them.
    #[cfg(test)]
    pub(crate) const ALL: [Kind; 12] = [
        Kind::Q4_0,
        Kind::Q4_1,
        Kind::Q5_0,
        Kind::Q5_1,
        Kind::Q8_0,
        Kind::Iq4Nl,
        Kind::Iq4Xs,
        Kind::Q2K,
        Kind::Q3K,
        Kind::Q4K,
        Kind::Q5K,
        Kind::Q6K,
    ];

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

    /// Whether something is added to the products of factors and codes.
    pub(crate) const fn adds(self) -> bool {
        matches!(self, Kind::Q4_1 | Kind::Q5_1 | Kind::Q2K | Kind::Q4K | Kind::Q5K)
    }

    /// The code that stands for 0, in types to which nothing is added. Codes below it are read as they are: signed ones
    /// have an offset of 0.
    pub(crate) const fn offset(self) -> i8 {
        match self {
            Kind::Q4_0 => 8,
            Kind::Q5_0 => 16,
            Kind::Q6K => 32,
            Kind::Q3K => 4,
            _ => 0,
        }
    }

    /// Whether codes have a sign.
    pub(crate) const fn signed(self) -> bool {
        matches!(self, Kind::Q8_0 | Kind::Iq4Nl | Kind::Iq4Xs)
    }
}

/// Calls a function that is generic over [`x86::Codes`] with the type of a [`Kind`].
#[cfg(target_arch = "x86_64")]
macro_rules! with_codes {
    ($kind:expr, $($call:ident)::+ :: <_ $(, $more:ty)*> $args:tt) => {{
        use $crate::codes::{x86 as types, Kind};
        match $kind {
            Kind::Q4_0 => $($call)::+::<types::Q4_0 $(, $more)*> $args,
            Kind::Q4_1 => $($call)::+::<types::Q4_1 $(, $more)*> $args,
            Kind::Q5_0 => $($call)::+::<types::Q5_0 $(, $more)*> $args,
            Kind::Q5_1 => $($call)::+::<types::Q5_1 $(, $more)*> $args,
            Kind::Q8_0 => $($call)::+::<types::Q8_0 $(, $more)*> $args,
            Kind::Iq4Nl => $($call)::+::<types::Iq4Nl $(, $more)*> $args,
            Kind::Iq4Xs => $($call)::+::<types::Iq4Xs $(, $more)*> $args,
            Kind::Q2K => $($call)::+::<types::Q2K $(, $more)*> $args,
            Kind::Q3K => $($call)::+::<types::Q3K $(, $more)*> $args,
            Kind::Q4K => $($call)::+::<types::Q4K $(, $more)*> $args,
            Kind::Q5K => $($call)::+::<types::Q5K $(, $more)*> $args,
            Kind::Q6K => $($call)::+::<types::Q6K $(, $more)*> $args,
        }
    }};
}
#[cfg(target_arch = "x86_64")]
pub(crate) use with_codes;

/// Readers of each type. Functions that take or give registers must be inlined into one that has AVX2.
#[cfg(target_arch = "x86_64")]
pub(crate) mod x86 {
    use std::arch::x86_64::*;

    use half::f16;

    use super::Kind;

    /// The values of a code of four bits in the types IQ4_NL and IQ4_XS.
    const IQ4: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

    /// Factors of a block: `factor` times a whole number for each part, or each half of one ([`Codes::HALVES`]); and
    /// `added` times another, which is added. Those behind the last are 0.
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

        /// The bits of the factor of a block of 32, and behind them those of what is added, if anything.
        fn head(b: &Self::Block) -> i32;

        /// Factors of a block.
        fn heads(b: &Self::Block) -> Heads;
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
        ($(#[$doc:meta])* $name:ident, $bytes:literal, $b:ident => $codes:expr) => {
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
                fn head(b: &Self::Block) -> i32 {
                    i32::from_le_bytes([b[0], b[1], b[2], b[3]])
                }

                #[inline(always)]
                fn heads(b: &Self::Block) -> Heads {
                    let added = if Self::ADDS { scale(b, 2) } else { 0.0 };
                    Heads { factor: scale(b, 0), factors: [1; 16], added, times: [1; 16] }
                }
            }
        };
    }

    small!(
        /// Four bits each.
        Q4_0, 18, b => nibbles(b, 2)
    );
    small!(
        /// Four bits each.
        Q4_1, 20, b => nibbles(b, 4)
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
        Iq4Nl, 18, b => looked_up(nibbles(b, 2))
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
                fn head(_: &Self::Block) -> i32 {
                    unreachable!("parts of a block of 256 have factors of their own")
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
}

#[cfg(test)]
pub(crate) mod tests;
