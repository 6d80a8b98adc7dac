//! Products of quantised weights with floats in 8-bit numbers. Floats are rounded in blocks of 32, as ggml rounds them beside types
//! with such blocks; beside K-quants it does so in blocks of 256.
//!
//! Several rows of weights are read at once, and their codes are multiplied as they lie: their offset is taken off sums that are
//! known beforehand.

// Other processors have none of the loops, and `available` says so.
#![cfg_attr(not(target_arch = "x86_64"), allow(dead_code, unused_variables))]

#[cfg(target_arch = "x86_64")]
mod products;

use crate::aligned::Aligned;
#[cfg(target_arch = "x86_64")]
use crate::codes::x86;
use crate::codes::Kind;

/// Values that are rounded together.
const BLOCK: usize = 32;
/// Adding 1.5 * 2^23 leaves the nearest integer in the low bits of the sum.
const ROUND: f32 = 12_582_912.0;
/// Rows of floats multiplied at a time, at most.
pub const MOST: usize = 8;
/// Rows of floats from which on codes are put in order before they are multiplied.
const PANEL_FROM: usize = 2 * MOST;
/// Rows of weights that are taken together, at most: fewer take as long. Sums do not depend on it.
pub const ROWS: usize = 16;

/// A set of instructions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Instructions {
    /// AVX2 with fused multiply-adds of floats.
    Avx2,
    /// VNNI without AVX-512.
    AvxVnni,
    /// AVX-512 with VNNI.
    Avx512,
}

impl Instructions {
    /// All that this processor has, the best one first.
    fn all() -> impl Iterator<Item = Instructions> {
        [Instructions::Avx512, Instructions::AvxVnni, Instructions::Avx2].into_iter().filter(|i| i.are_here())
    }

    fn are_here(self) -> bool {
        #[cfg(target_arch = "x86_64")]
        match self {
            Instructions::Avx2 => crate::codes::has_avx2(),
            Instructions::Avx512 => {
                is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512vnni")
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

/// Whether this processor has such products.
pub fn available() -> bool {
    Instructions::all().next().is_some()
}

/// Calls a function for a set of instructions and the type of a [`Kind`].
#[cfg(target_arch = "x86_64")]
macro_rules! with_kind {
    ($kind:expr, $set:ident::$of:ident, [$($n:ident)?], $args:tt) => {
        match $kind {
            Kind::Q4_0 => products::$set::$of::<x86::Q4_0 $(, $n)?> $args,
            Kind::Q4_1 => products::$set::$of::<x86::Q4_1 $(, $n)?> $args,
            Kind::Q5_0 => products::$set::$of::<x86::Q5_0 $(, $n)?> $args,
            Kind::Q5_1 => products::$set::$of::<x86::Q5_1 $(, $n)?> $args,
            Kind::Q8_0 => products::$set::$of::<x86::Q8_0 $(, $n)?> $args,
            Kind::Iq4Nl => products::$set::$of::<x86::Iq4Nl $(, $n)?> $args,
            Kind::Iq4Xs => products::$set::$of::<x86::Iq4Xs $(, $n)?> $args,
            Kind::Q2K => products::$set::$of::<x86::Q2K $(, $n)?> $args,
            Kind::Q3K => products::$set::$of::<x86::Q3K $(, $n)?> $args,
            Kind::Q4K => products::$set::$of::<x86::Q4K $(, $n)?> $args,
            Kind::Q5K => products::$set::$of::<x86::Q5K $(, $n)?> $args,
            Kind::Q6K => products::$set::$of::<x86::Q6K $(, $n)?> $args,
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
    /// `[row][block]`, or `[row][block][2]` in types whose factors are of sixteen weights: the sum of so many values, as a float
    /// times the scale where a type adds, else as a whole number times the negative offset of codes.
    totals: Aligned<i32>,
}

impl Rounded {
    /// Takes rows of `k` floats, whole blocks, to be multiplied with weights of this type.
    ///
    /// # Panics
    /// Where [`available`] is false, or `k` is not whole blocks of the type.
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
        assert!(k.is_multiple_of(kind.block().0), "{kind:?}, rows of {k}");
        (self.kind, self.n_blocks) = (Some((with, kind)), k / BLOCK);
        self.bytes.refill(rows.len() * k, 0);
        self.scales.refill(rows.len() * self.n_blocks, 0.0);
        let halves = kind.halves();
        let n_totals = if halves { 2 * self.n_blocks } else { self.n_blocks };
        self.totals.refill(rows.len() * n_totals, 0);
        let heads = self.scales.chunks_exact_mut(self.n_blocks.max(1));
        let totals = self.totals.chunks_exact_mut(n_totals.max(1));
        let parts = self.bytes.as_chunks_mut::<BLOCK>().0.chunks_exact_mut(self.n_blocks.max(1));
        let factor = (!kind.adds()).then(|| -with.offset(kind));
        for (row, ((bytes, scales), totals)) in rows.zip(parts.zip(heads).zip(totals)) {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: whatever the instructions, the processor has AVX2.
            unsafe {
                if halves {
                    round::<2>(&row[..k], bytes, scales, totals, factor);
                } else {
                    round::<1>(&row[..k], bytes, scales, totals, factor);
                }
            }
            #[cfg(not(target_arch = "x86_64"))]
            unreachable!("{row:?} {bytes:?} {scales:?} {totals:?} {factor:?}: the caller has asked");
        }
    }

    /// Products of rows of weights, each of `row_bytes`, with `n` rounded rows from `first` on: `out` gets the number of a row of
    /// weights, counted from 0, that of a rounded row, and the products of this one with rows of weights from that one on.
    ///
    /// # Panics
    /// Where rows are not as long as the rounded ones, or these are fewer.
    pub fn products(
        &self,
        panel: &mut Panel,
        rows: &[u8],
        row_bytes: usize,
        (first, n): (usize, usize),
        mut out: impl FnMut(usize, usize, &[f32]),
    ) {
        let (mut at, end) = (first, first + n);
        let many = n / MOST * MOST;
        if many >= PANEL_FROM {
            self.products_of_many(panel, rows, row_bytes, (first, many), &mut out);
            at += many;
        }
        while at < end {
            at += match end - at {
                1 => self.products_of_few::<1>(rows, row_bytes, at, &mut out),
                2..4 => self.products_of_few::<2>(rows, row_bytes, at, &mut out),
                4..MOST => self.products_of_few::<4>(rows, row_bytes, at, &mut out),
                _ => self.products_of_few::<MOST>(rows, row_bytes, at, &mut out),
            };
        }
    }

    /// The instructions and the type, where rows are those of such weights.
    fn checked(&self, rows: &[u8], row_bytes: usize, end: usize) -> (Instructions, Kind) {
        let Some((with, kind)) = self.kind else { panic!("rows are rounded before they are multiplied") };
        let (block, block_bytes) = kind.block();
        assert!(row_bytes == self.n_blocks * BLOCK / block * block_bytes && row_bytes > 0);
        assert!(rows.len().is_multiple_of(row_bytes) && end * self.n_blocks <= self.scales.len());
        (with, kind)
    }

    fn products_of_few<const N: usize>(
        &self,
        rows: &[u8],
        row_bytes: usize,
        first: usize,
        out: &mut impl FnMut(usize, usize, &[f32]),
    ) -> usize {
        let (with, kind) = self.checked(rows, row_bytes, first + N);
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the processor has the instructions that rows were rounded for.
        unsafe {
            match with {
                Instructions::Avx2 => {
                    with_kind!(kind, avx2::products, [N], (self, rows, row_bytes, first, out))
                }
                Instructions::Avx512 => {
                    with_kind!(kind, avx512::products, [N], (self, rows, row_bytes, first, out))
                }
                Instructions::AvxVnni => {
                    with_kind!(kind, avx_vnni::products, [N], (self, rows, row_bytes, first, out))
                }
            }
        }
        #[cfg(not(target_arch = "x86_64"))]
        unreachable!("{with:?}, {kind:?}: no rows were rounded");
        N
    }

    fn products_of_many(
        &self,
        panel: &mut Panel,
        rows: &[u8],
        row_bytes: usize,
        which: (usize, usize),
        out: &mut impl FnMut(usize, usize, &[f32]),
    ) {
        let (with, kind) = self.checked(rows, row_bytes, which.0 + which.1);
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the processor has the instructions that rows were rounded for.
        unsafe {
            match with {
                Instructions::Avx2 => {
                    with_kind!(kind, avx2::products_of_many, [], (self, panel, rows, row_bytes, which, out))
                }
                Instructions::Avx512 => {
                    with_kind!(kind, avx512::products_of_many, [], (self, panel, rows, row_bytes, which, out))
                }
                Instructions::AvxVnni => {
                    with_kind!(
                        kind,
                        avx_vnni::products_of_many,
                        [],
                        (self, panel, rows, row_bytes, which, out)
                    )
                }
            }
        }
        #[cfg(not(target_arch = "x86_64"))]
        unreachable!("{with:?}, {kind:?}: no rows were rounded, {panel:?}");
    }
}

/// Codes of some rows of weights in the order in which they are multiplied, for more floats than a few.
#[derive(Default)]
pub struct Panel {
    /// `[part][quad][lane]`, four codes each
    codes: Aligned<i32>,
    /// `[part][2][lane]`: the bits of factors, and of what is added.
    factors: Aligned<i32>,
}

/// Rounds blocks to bytes and scales; sums of all, or of each half where `PARTS` is 2, are multiplied by `factor`, or by the
/// scale where there is none.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
fn round<const PARTS: usize>(
    row: &[f32],
    bytes: &mut [[i8; BLOCK]],
    scales: &mut [f32],
    totals: &mut [i32],
    factor: Option<i32>,
) {
    let blocks = row.as_chunks::<BLOCK>().0.iter().zip(bytes);
    for (((x, bytes), to), totals) in blocks.zip(scales).zip(totals.as_chunks_mut::<PARTS>().0) {
        let largest = x.iter().fold(0.0f32, |m, x| if x.abs() > m { x.abs() } else { m });
        let inverse = if largest > 0.0 { 127.0 / largest } else { 0.0 };
        // What is no number stays none.
        let finite = x.iter().fold(true, |all, x| all & x.is_finite());
        let scale = if finite { largest / 127.0 } else { f32::NAN };
        bytes.iter_mut().zip(x).for_each(|(byte, x)| *byte = (x * inverse + ROUND).to_bits() as i8);
        *to = scale;
        for (total, part) in totals.iter_mut().zip(bytes.chunks_exact(BLOCK / PARTS)) {
            let sum = part.iter().map(|x| i32::from(*x)).sum::<i32>();
            *total = match factor {
                Some(factor) => factor * sum,
                None => (sum as f32 * scale).to_bits() as i32,
            };
        }
    }
}

/// Where N rounded rows lie.
#[cfg(target_arch = "x86_64")]
struct Floats<const N: usize> {
    bytes: [*const i8; N],
    scales: [*const f32; N],
    totals: [*const i32; N],
}

#[cfg(target_arch = "x86_64")]
impl<const N: usize> Floats<N> {
    /// Rows `first..first + N`.
    fn new(x: &Rounded, first: usize) -> Floats<N> {
        let n = x.n_blocks;
        let n_totals = x.totals.len() / x.scales.len().max(1) * n;
        Floats {
            bytes: std::array::from_fn(|t| x.bytes[(first + t) * n * BLOCK..][..n * BLOCK].as_ptr()),
            scales: std::array::from_fn(|t| x.scales[(first + t) * n..][..n].as_ptr()),
            totals: std::array::from_fn(|t| x.totals[(first + t) * n_totals..][..n_totals].as_ptr()),
        }
    }
}

#[cfg(test)]
mod tests;
