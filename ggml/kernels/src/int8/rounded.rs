//! Floats rounded to eight bits, in the order in which products read them: groups of rows are interleaved, so that all
//! values that are multiplied with a part of the weights are adjacent.

use gguf::DType;

use super::MOST;
use crate::aligned::Aligned;
use crate::quants;
use crate::simd::Instructions;

/// Values that are rounded together.
pub(super) const BLOCK: usize = 32;
pub(super) const BYTES: usize = BLOCK / 4;

/// How rounded rows lie in words: groups of `width` rows, of each group the blocks one after the other, and of a block the bytes
/// of each row, then the scale of each row, then the sum of each row, or in types whose factors are of sixteen weights those of
/// the first halves and then those of the second.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    pub(super) with: Instructions,
    pub(super) dtype: DType,
    pub(super) k: usize,
    n: usize,
    pub(super) width: usize,
}

impl Layout {
    /// Layout of `n` rows of `k` floats, for weights of this type.
    ///
    /// # Panics
    /// Where [`available`](quants::available) is false, or `k` is not whole blocks of the type.
    pub fn new(dtype: DType, k: usize, n: usize) -> Layout {
        Layout::with(Instructions::best(), dtype, k, n)
    }

    pub(super) fn with(with: Instructions, dtype: DType, k: usize, n: usize) -> Layout {
        let whole = quants::TYPES.contains(&dtype) && k > 0 && k.is_multiple_of(dtype.block_size());
        assert!(whole, "{dtype:?}, rows of {k}");
        Layout { with, dtype, k, n, width: n.next_power_of_two().min(MOST) }
    }

    /// Returns true if rows that were rounded for one type can be multiplied with weights of the other.
    pub fn serves(&self, dtype: DType) -> bool {
        let sums = |dtype: DType| (quants::facts(dtype).halves, self.factor(dtype));
        quants::TYPES.contains(&dtype)
            && sums(dtype) == sums(self.dtype)
            && self.k.is_multiple_of(dtype.block_size())
    }

    /// Returns the integer that sums of rounded values are multiplied by beforehand; in types that add it, this is
    /// their scale.
    fn factor(&self, dtype: DType) -> Option<i32> {
        (!quants::facts(dtype).adds).then(|| -self.with.offset(dtype))
    }

    /// Floats of a row.
    pub fn k(&self) -> usize {
        self.k
    }

    pub(super) fn n_blocks(&self) -> usize {
        self.k / BLOCK
    }

    /// Words of a block of all rows of a group.
    pub(super) fn record(&self) -> usize {
        self.width * (BYTES + 1 + if quants::facts(self.dtype).halves { 2 } else { 1 })
    }

    pub fn group_words(&self) -> usize {
        self.n_blocks() * self.record()
    }

    pub fn n_groups(&self) -> usize {
        self.n.div_ceil(self.width)
    }

    /// Words of all groups; `None` where they are too many to count.
    pub fn n_words(&self) -> Option<usize> {
        self.k.checked_mul(2)?;
        self.n_groups().checked_mul(self.group_words())
    }

    pub fn rows(&self, group: usize) -> std::ops::Range<usize> {
        group * self.width..self.n.min((group + 1) * self.width)
    }

    /// Rounds a row into its group's words.
    pub fn round(&self, row: usize, x: &[f32], group: &mut [u32]) {
        assert!(x.len() == self.k && group.len() == self.group_words() && row < self.n);
        let (at, factor) = (row % self.width, self.factor(self.dtype));
        #[cfg(target_arch = "x86_64")]
        // SAFETY: a layout is made where the processor has one of the sets of instructions, all of which have AVX2.
        unsafe {
            if quants::facts(self.dtype).halves {
                round::<2>(x, group, self.record(), self.width, at, factor);
            } else {
                round::<1>(x, group, self.record(), self.width, at, factor);
            }
        }
        #[cfg(not(target_arch = "x86_64"))]
        unreachable!("{at} {factor:?}: there is no layout on other processors");
    }
}

/// Rounds blocks to bytes and scales; sums of all, or of each half where `PARTS` is 2, are multiplied by `factor`, or by the
/// scale where there is none.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
fn round<const PARTS: usize>(
    row: &[f32],
    group: &mut [u32],
    record: usize,
    width: usize,
    at: usize,
    factor: Option<i32>,
) {
    use std::arch::x86_64::*;
    for (x, record) in row.as_chunks::<BLOCK>().0.iter().zip(group.chunks_exact_mut(record)) {
        let (bytes, heads) = record.split_at_mut(width * BYTES);
        let bytes = &mut bytes[at * BYTES..][..BYTES];
        // SAFETY: 32 floats are read where so many are, and as many bytes written to eight words.
        let (largest, sums) = unsafe {
            let x: [__m256; 4] = std::array::from_fn(|i| _mm256_loadu_ps(x.as_ptr().add(8 * i)));
            let sizes = x.map(|x| {
                _mm256_castps_si256(_mm256_and_ps(x, _mm256_castsi256_ps(_mm256_set1_epi32(0x7fff_ffff))))
            });
            // As whole numbers, so that what is no number is the largest.
            let most =
                _mm256_max_epi32(_mm256_max_epi32(sizes[0], sizes[1]), _mm256_max_epi32(sizes[2], sizes[3]));
            let most = _mm_max_epi32(_mm256_castsi256_si128(most), _mm256_extracti128_si256::<1>(most));
            let most = _mm_max_epi32(most, _mm_shuffle_epi32::<0b00_00_11_10>(most));
            let most = _mm_max_epi32(most, _mm_shuffle_epi32::<0b00_00_00_01>(most));
            let largest = f32::from_bits(_mm_cvtsi128_si32(most) as u32);
            let inverse = _mm256_set1_ps(if largest > 0.0 { 127.0 / largest } else { 0.0 });
            let [a, b, c, d] = x.map(|x| _mm256_cvtps_epi32(_mm256_mul_ps(x, inverse)));
            let packed = _mm256_packs_epi16(_mm256_packs_epi32(a, b), _mm256_packs_epi32(c, d));
            let packed = _mm256_permutevar8x32_epi32(packed, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
            _mm256_storeu_si256(bytes.as_mut_ptr().cast(), packed);
            let pairs = _mm256_maddubs_epi16(_mm256_set1_epi8(1), packed);
            let fours = _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
            let twos = _mm256_hadd_epi32(fours, fours);
            let sums = _mm256_hadd_epi32(twos, twos);
            let half = |part: __m128i| _mm_cvtsi128_si32(part);
            (largest, [half(_mm256_castsi256_si128(sums)), half(_mm256_extracti128_si256::<1>(sums))])
        };
        let scale = if largest.is_finite() { largest / 127.0 } else { f32::NAN };
        heads[at] = scale.to_bits();
        let whole = [sums[0] + sums[1]];
        for (part, &sum) in (if PARTS == 1 { &whole[..] } else { &sums[..] }).iter().enumerate() {
            heads[(1 + part) * width + at] = match factor {
                Some(factor) => (factor * sum) as u32,
                None => (sum as f32 * scale).to_bits(),
            };
        }
    }
}

#[derive(Debug, Clone, Copy)]
pub struct Rounded<'a> {
    pub(super) layout: Layout,
    pub(super) words: &'a [u32],
}

impl<'a> Rounded<'a> {
    /// Rows that were rounded into these words.
    pub fn new(layout: Layout, words: &'a [u32]) -> Rounded<'a> {
        assert_eq!(Some(words.len()), layout.n_words());
        Rounded { layout, words }
    }

    /// Floats of a row.
    pub fn k(&self) -> usize {
        self.layout.k
    }
}

/// Memory that is kept between calls for rows to be rounded into.
#[derive(Default)]
pub struct Rounding(Aligned<u32>);

impl Rounding {
    /// Rounds rows of `k` floats, to be multiplied with weights of this type. What stands in place of a row that is not there is
    /// not determined.
    ///
    /// # Panics
    /// Panics like [`Layout::new`] and [`Layout::round`], and if rows are too many to count.
    pub fn set<'a>(
        &mut self,
        dtype: DType,
        k: usize,
        rows: impl ExactSizeIterator<Item = Option<&'a [f32]>>,
    ) -> Rounded<'_> {
        let layout = Layout::new(dtype, k, rows.len());
        let n_words = layout.n_words().expect("rows that are in memory can be counted");
        self.0.resize(n_words);
        let words = &mut self.0[..n_words];
        for (i, row) in rows.enumerate() {
            if let Some(row) = row {
                let group = &mut words[i / layout.width * layout.group_words()..][..layout.group_words()];
                layout.round(i, row, group);
            }
        }
        Rounded::new(layout, &self.0[..n_words])
    }
}

/// Rounded rows of a group from one on.
#[derive(Clone, Copy)]
pub(super) struct Floats {
    bytes: *const u32,
    heads: *const u32,
    record: usize,
    width: usize,
}

impl Floats {
    /// Rows from `first` on, of a group `width` wide.
    #[inline(always)]
    pub(super) fn new(x: &Rounded<'_>, first: usize, n: usize, width: usize) -> Floats {
        let at = first % width;
        assert!(width == x.layout.width && at + n <= width);
        let group = &x.words[first / width * x.layout.group_words()..][..x.layout.group_words()];
        let (bytes, heads) = group.split_at(width * BYTES);
        Floats {
            bytes: bytes[at * BYTES..].as_ptr(),
            heads: heads[at..].as_ptr(),
            record: x.layout.record(),
            width,
        }
    }

    /// The bytes of row `t`, its scale, and its sum, in a block, or that of a half in types that have two.
    ///
    /// # Safety
    /// There are such a row and block.
    #[inline(always)]
    pub(super) unsafe fn block(&self, t: usize, block: usize, half: usize) -> (*const i32, f32, i32) {
        // SAFETY: the caller's promise.
        unsafe {
            let heads = self.heads.add(block * self.record + t);
            let bytes = self.bytes.add(block * self.record + t * BYTES);
            (bytes.cast(), *heads.cast(), *heads.add(self.width * (1 + half)).cast())
        }
    }
}
