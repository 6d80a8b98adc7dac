//! Products of quantised weights with few rows of floats, as in decoding. Floats are rounded to eight bits in blocks of 32, as
//! ggml rounds them beside these types.
//!
//! ggml's own products wait for one sum of a row; here four are under way at once, and the codes of weights are multiplied as
//! they lie: their offset is taken off sums that are known beforehand.

/// Calls a macro with each set of instructions: `unsigned` adds in each lane four products to a sum, of codes without a sign, and
/// `signed` of codes with one, where the sum has been made for their offset.
#[cfg(target_arch = "x86_64")]
macro_rules! for_each_set {
    ($loops:ident) => {
        $loops!(
            avx2, "avx2,fma,f16c",
            unsigned: |sum, codes, x| {
                let pairs = _mm256_maddubs_epi16(codes, x);
                _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)))
            },
            // Two products of 128 and 127 fit in 16 bits.
            signed: |sum, codes, x| {
                let pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(codes), _mm256_sign_epi8(x, codes));
                _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)))
            }
        );
        $loops!(
            vnni, "avx2,fma,f16c,avx512vnni,avx512vl",
            unsigned: |sum, codes, x| _mm256_dpbusd_epi32(sum, codes, x),
            signed: |sum, codes, x| {
                _mm256_dpbusd_epi32(sum, _mm256_xor_si256(codes, _mm256_set1_epi8(-128)), x)
            }
        );
        $loops!(
            avx_vnni, "avx2,fma,f16c,avxvnni",
            unsigned: |sum, codes, x| _mm256_dpbusd_avx_epi32(sum, codes, x),
            signed: |sum, codes, x| {
                _mm256_dpbusd_avx_epi32(sum, _mm256_xor_si256(codes, _mm256_set1_epi8(-128)), x)
            }
        );
    };
}

#[cfg(target_arch = "x86_64")]
mod eights;
#[cfg(target_arch = "x86_64")]
mod rows;

use crate::aligned::Aligned;
#[cfg(target_arch = "x86_64")]
use crate::codes::x86;
use crate::codes::Kind;

/// Values that are rounded together.
const BLOCK: usize = 32;
/// Adding 1.5 * 2^23 leaves the nearest integer in the low bits of the sum.
const ROUND: f32 = 12_582_912.0;
/// Rows of floats multiplied at a time, at most.
pub const MOST: usize = 4;
/// Rows of weights that are taken together: threads must begin at multiples of it for the same sums.
pub const ROWS: usize = 8;

/// A set of instructions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Instructions {
    /// AVX2 with fused multiply-adds of floats.
    Avx2,
    /// VNNI on registers of AVX-512's 256-bit form.
    Vnni,
    /// VNNI without AVX-512.
    AvxVnni,
}

impl Instructions {
    /// All that this processor has, the best one first.
    fn all() -> impl Iterator<Item = Instructions> {
        [Instructions::Vnni, Instructions::AvxVnni, Instructions::Avx2].into_iter().filter(|i| i.are_here())
    }

    fn are_here(self) -> bool {
        #[cfg(target_arch = "x86_64")]
        match self {
            Instructions::Avx2 => crate::codes::has_avx2(),
            Instructions::Vnni => {
                is_x86_feature_detected!("avx512vnni")
                    && is_x86_feature_detected!("avx512vl")
                    && crate::codes::has_avx2()
            }
            Instructions::AvxVnni => is_x86_feature_detected!("avxvnni") && crate::codes::has_avx2(),
        }
        #[cfg(not(target_arch = "x86_64"))]
        false
    }

    /// The offset of codes for the instructions to multiply them: they take one factor without a sign.
    fn offset(self, kind: Kind) -> i32 {
        match (self, kind.signed()) {
            // Signs are moved to the other factor instead.
            (Instructions::Avx2, true) => 0,
            (_, true) => 128,
            (_, false) => i32::from(kind.offset()),
        }
    }
}

/// Whether weights of this type have such products on this processor. With K-quants and Q8_0 ggml's are as fast or faster.
pub fn available(kind: Kind) -> bool {
    let is_small = matches!(kind, Kind::Q4_0 | Kind::Q4_1 | Kind::Q5_0 | Kind::Q5_1 | Kind::Iq4Nl);
    is_small && Instructions::all().next().is_some()
}

/// Calls the loops of a set of instructions for the type of a [`Kind`].
#[cfg(target_arch = "x86_64")]
macro_rules! with_small {
    ($kind:expr, $set:ident $args:tt) => {
        match $kind {
            Kind::Q4_0 => rows::$set::products::<x86::Q4_0, N> $args,
            Kind::Q4_1 => rows::$set::products::<x86::Q4_1, N> $args,
            Kind::Q5_0 => rows::$set::products::<x86::Q5_0, N> $args,
            Kind::Q5_1 => rows::$set::products::<x86::Q5_1, N> $args,
            Kind::Iq4Nl => rows::$set::products::<x86::Iq4Nl, N> $args,
            other => unreachable!("{other:?}: `set` has refused the type"),
        }
    };
}

/// Rows of floats rounded to eight bits, for weights of one type.
#[derive(Default)]
pub struct Rounded {
    kind: Option<(Instructions, Kind)>,
    n_blocks: usize,
    /// `[row][block][32]`
    bytes: Aligned<i8>,
    /// `[row][block]`
    scales: Aligned<f32>,
    /// `[row][block][8]`: of each four values their sum, as a float times the scale where a type adds, else as a whole
    /// number times the negative offset of codes.
    sums: Aligned<i32>,
    /// `[row][block]`: the same of all values.
    totals: Aligned<i32>,
}

impl Rounded {
    /// Takes rows of `k` floats, whole blocks, to be multiplied with weights of this type.
    ///
    /// # Panics
    /// Where [`available`] is false, or `k` is not whole blocks.
    pub fn set<'a>(&mut self, kind: Kind, k: usize, rows: impl ExactSizeIterator<Item = &'a [f32]>) {
        let with = Instructions::all().next().expect("the caller has asked whether there are instructions");
        self.set_for(with, kind, k, rows);
    }

    fn set_for<'a>(
        &mut self,
        with: Instructions,
        kind: Kind,
        k: usize,
        rows: impl ExactSizeIterator<Item = &'a [f32]>,
    ) {
        assert!(available(kind) && k.is_multiple_of(BLOCK), "{kind:?}, rows of {k}");
        (self.kind, self.n_blocks) = (Some((with, kind)), k / BLOCK);
        self.bytes.refill(rows.len() * k, 0);
        self.scales.refill(rows.len() * self.n_blocks, 0.0);
        self.sums.refill(rows.len() * self.n_blocks * 8, 0);
        self.totals.refill(rows.len() * self.n_blocks, 0);
        let heads = self.scales.chunks_exact_mut(self.n_blocks.max(1));
        let totals = self.totals.chunks_exact_mut(self.n_blocks.max(1));
        let sums = self.sums.as_chunks_mut::<8>().0.chunks_exact_mut(self.n_blocks.max(1));
        let parts = self.bytes.as_chunks_mut::<BLOCK>().0.chunks_exact_mut(self.n_blocks.max(1));
        let factor = (!kind.adds()).then(|| -with.offset(kind));
        for (row, (((bytes, scales), sums), totals)) in rows.zip(parts.zip(heads).zip(sums).zip(totals)) {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: whatever the instructions, the processor has AVX2.
            unsafe {
                round(&row[..k], bytes, scales, sums, totals, factor);
            }
            #[cfg(not(target_arch = "x86_64"))]
            unreachable!("{row:?} {bytes:?} {scales:?} {sums:?} {totals:?} {factor:?}: the caller has asked");
        }
    }

    /// Products of rows of weights, each of `row_bytes`, with the rounded rows `first..first + N`, at most [`MOST`]: `out`
    /// gets the weight's row, counted from 0, and its products.
    ///
    /// # Panics
    /// Where rows are not as long as the rounded ones, or these are fewer.
    pub fn products<const N: usize>(
        &self,
        rows: &[u8],
        row_bytes: usize,
        first: usize,
        mut out: impl FnMut(usize, [f32; N]),
    ) {
        let Some((with, kind)) = self.kind else { panic!("rows are rounded before they are multiplied") };
        let (block, block_bytes) = kind.block();
        assert!(row_bytes == self.n_blocks * BLOCK / block * block_bytes && row_bytes > 0);
        assert!(rows.len().is_multiple_of(row_bytes) && (first + N) * self.n_blocks <= self.scales.len());
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the processor has the instructions that rows were rounded for.
        unsafe {
            match with {
                Instructions::Avx2 => with_small!(kind, avx2(self, rows, row_bytes, first, &mut out)),
                Instructions::Vnni => with_small!(kind, vnni(self, rows, row_bytes, first, &mut out)),
                Instructions::AvxVnni => with_small!(kind, avx_vnni(self, rows, row_bytes, first, &mut out)),
            }
        }
        #[cfg(not(target_arch = "x86_64"))]
        unreachable!("{with:?}: no rows were rounded");
    }
}

/// Rounds blocks to bytes and scales; sums of four, and of all, are multiplied by `factor`, or by the scale where there is none.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
fn round(
    row: &[f32],
    bytes: &mut [[i8; BLOCK]],
    scales: &mut [f32],
    sums: &mut [[i32; 8]],
    totals: &mut [i32],
    factor: Option<i32>,
) {
    let blocks = row.as_chunks::<BLOCK>().0.iter().zip(bytes);
    for (((x, bytes), (to, sums)), total) in blocks.zip(scales.iter_mut().zip(sums)).zip(totals) {
        let largest = x.iter().fold(0.0f32, |m, x| if x.abs() > m { x.abs() } else { m });
        let inverse = if largest > 0.0 { 127.0 / largest } else { 0.0 };
        // What is no number stays none.
        let finite = x.iter().fold(true, |all, x| all & x.is_finite());
        let scale = if finite { largest / 127.0 } else { f32::NAN };
        bytes.iter_mut().zip(x).for_each(|(byte, x)| *byte = (x * inverse + ROUND).to_bits() as i8);
        *to = scale;
        let times = |sum: i32| match factor {
            Some(factor) => factor * sum,
            None => (sum as f32 * scale).to_bits() as i32,
        };
        *total = times(bytes.iter().map(|x| i32::from(*x)).sum());
        for (sum, four) in sums.iter_mut().zip(bytes.as_chunks::<4>().0) {
            *sum = times(four.iter().map(|x| i32::from(*x)).sum());
        }
    }
}

/// Where N rounded rows lie.
#[cfg(target_arch = "x86_64")]
struct Floats<const N: usize> {
    n_blocks: usize,
    bytes: [*const i8; N],
    scales: [*const f32; N],
    sums: [*const i32; N],
    totals: [*const i32; N],
}

#[cfg(target_arch = "x86_64")]
impl<const N: usize> Floats<N> {
    /// Rows `first..first + N`.
    fn new(x: &Rounded, first: usize) -> Floats<N> {
        let n = x.n_blocks;
        Floats {
            n_blocks: n,
            bytes: std::array::from_fn(|t| x.bytes[(first + t) * n * BLOCK..][..n * BLOCK].as_ptr()),
            scales: std::array::from_fn(|t| x.scales[(first + t) * n..][..n].as_ptr()),
            sums: std::array::from_fn(|t| x.sums[(first + t) * n * 8..][..n * 8].as_ptr()),
            totals: std::array::from_fn(|t| x.totals[(first + t) * n..][..n].as_ptr()),
        }
    }
}

#[cfg(test)]
mod tests;
