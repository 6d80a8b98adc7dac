//! Products of several rows at a time: a lane of a register is a row, so that four codes of each row are multiplied by one
//! instruction with the same four values. Scales are multiplied for all rows at once, and no lanes are summed up.

use std::arch::x86_64::*;

use super::rounded::{Floats, Rounded};
use super::{Panel, MOST as AT_ONCE};
use crate::codes::lanes::{Lanes, Narrow, Wide, MOST};
use crate::codes::rows::{Blocks, Rows};

/// Bytes ahead that memory is asked for, at least: so many rows are too many streams for hardware to see where they go.
const AHEAD: usize = 4096;

/// A set of instructions: adds in each lane four products to a sum.
///
/// # Safety
/// Both functions need a processor that has the instructions.
trait Set {
    type Lanes: Lanes;

    /// Adds products of unsigned codes.
    unsafe fn unsigned(sum: Ints<Self>, codes: Ints<Self>, x: Ints<Self>) -> Ints<Self>;

    /// Adds products of signed codes. The sum already accounts for their offset.
    unsafe fn signed(sum: Ints<Self>, codes: Ints<Self>, x: Ints<Self>) -> Ints<Self>;
}

type Ints<S> = <<S as Set>::Lanes as Lanes>::Ints;

struct Avx2;
struct AvxVnni;
struct Avx512;

impl Set for Avx2 {
    type Lanes = Narrow;

    #[inline(always)]
    unsafe fn unsigned(sum: __m256i, codes: __m256i, x: __m256i) -> __m256i {
        // SAFETY: the caller's promise.
        unsafe {
            let pairs = _mm256_maddubs_epi16(codes, x);
            _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)))
        }
    }

    #[inline(always)]
    unsafe fn signed(sum: __m256i, codes: __m256i, x: __m256i) -> __m256i {
        // SAFETY: the caller's promise. Two products of 128 and 127 fit in 16 bits.
        unsafe { Self::unsigned(sum, _mm256_abs_epi8(codes), _mm256_sign_epi8(x, codes)) }
    }
}

impl Set for AvxVnni {
    type Lanes = Narrow;

    #[inline(always)]
    unsafe fn unsigned(sum: __m256i, codes: __m256i, x: __m256i) -> __m256i {
        // SAFETY: the caller's promise.
        unsafe { _mm256_dpbusd_avx_epi32(sum, codes, x) }
    }

    #[inline(always)]
    unsafe fn signed(sum: __m256i, codes: __m256i, x: __m256i) -> __m256i {
        // SAFETY: the caller's promise.
        unsafe { Self::unsigned(sum, _mm256_xor_si256(codes, _mm256_set1_epi8(-128)), x) }
    }
}

impl Set for Avx512 {
    type Lanes = Wide;

    #[inline(always)]
    unsafe fn unsigned(sum: __m512i, codes: __m512i, x: __m512i) -> __m512i {
        // SAFETY: the caller's promise.
        unsafe { _mm512_dpbusd_epi32(sum, codes, x) }
    }

    #[inline(always)]
    unsafe fn signed(sum: __m512i, codes: __m512i, x: __m512i) -> __m512i {
        // SAFETY: the caller's promise.
        unsafe { Self::unsigned(sum, _mm512_xor_si512(codes, _mm512_set1_epi8(-128)), x) }
    }
}

macro_rules! compiled_for {
    ($($name:ident, $set:ident, $features:literal;)*) => {
        $(
            pub(super) mod $name {
                use super::*;

                /// Products of all rows with the rounded rows `first..first + N`, for `out`.
                #[target_feature(enable = $features)]
                pub(in crate::eight_bits) fn products<T: Rows, const N: usize>(
                    x: &Rounded<'_>,
                    rows: &[u8],
                    row_bytes: usize,
                    first: usize,
                    out: &mut impl FnMut(usize, usize, &[f32]),
                ) {
                    // SAFETY: the processor has the instructions that this function is compiled for.
                    unsafe { super::products::<$set, T, N>(x, rows, row_bytes, first, out) }
                }

                /// Products of all rows with the rounded rows `first..first + n`, whole [`AT_ONCE`], for `out`.
                #[target_feature(enable = $features)]
                pub(in crate::eight_bits) fn products_of_many<T: Rows>(
                    x: &Rounded<'_>,
                    panel: &mut Panel,
                    rows: &[u8],
                    row_bytes: usize,
                    (first, n): (usize, usize),
                    out: &mut impl FnMut(usize, usize, &[f32]),
                ) {
                    // SAFETY: the processor has the instructions that this function is compiled for.
                    unsafe { super::products_of_many::<$set, T>(x, panel, rows, row_bytes, first, n, out) }
                }
            }
        )*
    };
}

compiled_for!(
    avx2, Avx2, "avx2,fma,f16c";
    avx_vnni, AvxVnni, "avx2,fma,f16c,avxvnni";
    avx512, Avx512, "avx2,fma,f16c,avx512f,avx512bw,avx512vnni";
);

/// Rows of weights as blocks, where fewer are left than lanes with the last one in place of those that are missing; how many
/// are left.
#[inline(always)]
fn blocks_of<T: Rows>(rows: &[u8], row_bytes: usize, n_blocks: usize) -> ([&[T::Block]; MOST], usize) {
    let n_rows = rows.len() / row_bytes;
    let blocks: [&[T::Block]; MOST] =
        std::array::from_fn(|row| T::blocks(&rows[row.min(n_rows - 1) * row_bytes..][..row_bytes]));
    assert!(blocks.iter().all(|row| row.len() == n_blocks));
    (blocks, n_rows)
}

/// # Safety
/// The processor has the instructions of the set.
#[inline(always)]
unsafe fn products<S: Set, T: Rows, const N: usize>(
    x: &Rounded<'_>,
    rows: &[u8],
    row_bytes: usize,
    first: usize,
    out: &mut impl FnMut(usize, usize, &[f32]),
) {
    let floats = Floats::new(x, first, N, x.layout.width);
    let n_blocks = x.layout.n_blocks() / T::PARTS;
    let bytes_of_rows = S::Lanes::N * row_bytes;
    let ahead = AHEAD.next_multiple_of(bytes_of_rows);
    for (at, rows) in rows.chunks(bytes_of_rows).enumerate() {
        let (blocks, n_rows) = blocks_of::<T>(rows, row_bytes, n_blocks);
        // SAFETY: the caller's promise; blocks are counted up to those that all rows have.
        let totals = unsafe {
            let mut totals = [S::Lanes::none(); N];
            for at in 0..n_blocks {
                let next = rows.as_ptr().wrapping_add(ahead + at * S::Lanes::N * size_of::<T::Block>());
                each_part::<S, T>(
                    blocks.map(|row| row.get_unchecked(at)),
                    next,
                    |part, codes, factor, added| {
                        let part = at * T::N_FACTORS + part;
                        add_part::<S, T, N>(codes, factor, added, &floats, part, &mut totals);
                    },
                );
            }
            totals
        };
        // SAFETY: the caller's promise.
        unsafe { give::<S, N>(totals, n_rows, at * S::Lanes::N, first, out) }
    }
}

/// # Safety
/// The processor has the instructions of the set.
#[inline(always)]
unsafe fn products_of_many<S: Set, T: Rows>(
    x: &Rounded<'_>,
    panel: &mut Panel,
    rows: &[u8],
    row_bytes: usize,
    first: usize,
    n: usize,
    out: &mut impl FnMut(usize, usize, &[f32]),
) {
    let n_blocks = x.layout.n_blocks() / T::PARTS;
    let (n_parts, n_lanes) = (n_blocks * T::N_FACTORS, S::Lanes::N);
    let n_quads = if T::HALVES { 4 } else { 8 };
    panel.codes.resize(n_parts * n_quads * n_lanes);
    panel.factors.resize(n_parts * 2 * n_lanes);
    let bytes_of_rows = n_lanes * row_bytes;
    for (at, rows) in rows.chunks(bytes_of_rows).enumerate() {
        let (blocks, n_rows) = blocks_of::<T>(rows, row_bytes, n_blocks);
        let (codes_at, factors_at) = (panel.codes.as_mut_ptr(), panel.factors.as_mut_ptr());
        // SAFETY: the caller's promise; blocks are counted up to those that all rows have, and there is room for the codes and
        // factors of so many parts.
        unsafe {
            for at in 0..n_blocks {
                let next = rows.as_ptr().wrapping_add(bytes_of_rows + at * n_lanes * size_of::<T::Block>());
                each_part::<S, T>(
                    blocks.map(|row| row.get_unchecked(at)),
                    next,
                    |part, codes, factor, added| {
                        let part = at * T::N_FACTORS + part;
                        for (quad, codes) in codes[..n_quads].iter().enumerate() {
                            S::Lanes::store(*codes, codes_at.add((part * n_quads + quad) * n_lanes));
                        }
                        S::Lanes::store(S::Lanes::as_ints(factor), factors_at.add(part * 2 * n_lanes));
                        S::Lanes::store(S::Lanes::as_ints(added), factors_at.add((part * 2 + 1) * n_lanes));
                    },
                );
            }
            for first in (first..first + n).step_by(AT_ONCE) {
                let floats = Floats::new(x, first, AT_ONCE, AT_ONCE);
                let mut totals = [S::Lanes::none(); AT_ONCE];
                // In the order of products with fewer floats: sums are the same to the last bit.
                for i in 0..n_parts {
                    let (block, i) = (i / T::N_FACTORS, i % T::N_FACTORS);
                    let part = block * T::N_FACTORS + T::part(i / T::IN_GROUP, i % T::IN_GROUP);
                    let mut codes = [S::Lanes::all(0); 8];
                    for (quad, codes) in codes[..n_quads].iter_mut().enumerate() {
                        *codes = S::Lanes::load(codes_at.add((part * n_quads + quad) * n_lanes));
                    }
                    let both = factors_at.add(part * 2 * n_lanes);
                    let factor = S::Lanes::as_floats(S::Lanes::load(both));
                    let added = S::Lanes::as_floats(S::Lanes::load(both.add(n_lanes)));
                    add_part::<S, T, AT_ONCE>(&codes, factor, added, &floats, part, &mut totals);
                }
                give::<S, AT_ONCE>(totals, n_rows, at * n_lanes, first, out);
            }
        }
    }
}

/// Gives `out` the products of each rounded row.
///
/// # Safety
/// The processor has the instructions of the set.
#[inline(always)]
unsafe fn give<S: Set, const N: usize>(
    totals: [<S::Lanes as Lanes>::Floats; N],
    n_rows: usize,
    row: usize,
    first: usize,
    out: &mut impl FnMut(usize, usize, &[f32]),
) {
    for (t, total) in totals.into_iter().enumerate() {
        let mut products = [0.0; MOST];
        // SAFETY: the caller's promise; there is room for the widest register.
        unsafe { S::Lanes::store(S::Lanes::as_ints(total), products.as_mut_ptr().cast()) }
        out(row, first + t, &products[..n_rows.min(S::Lanes::N)]);
    }
}

/// Calls `each` with the codes of each part of a block of each row, its factors and what is added. Asks for as much memory from
/// `next` on: a little at a time, for what is read meanwhile waits behind it.
///
/// # Safety
/// The processor has the instructions of the set.
#[inline(always)]
unsafe fn each_part<S: Set, T: Rows>(
    blocks: Blocks<T>,
    next: *const u8,
    mut each: impl FnMut(usize, &[Ints<S>; 8], <S::Lanes as Lanes>::Floats, <S::Lanes as Lanes>::Floats),
) {
    let n_lines = (S::Lanes::N * size_of::<T::Block>()).div_ceil(64).div_ceil(T::GROUPS);
    // SAFETY: the caller's promise; a prefetch has no effect that could be seen, whatever the address.
    unsafe {
        let [factors, added] = T::factors::<S::Lanes>(blocks);
        let shared = T::shared::<S::Lanes>(blocks);
        for group in 0..T::GROUPS {
            for line in group * n_lines..(group + 1) * n_lines {
                _mm_prefetch::<_MM_HINT_T0>(next.wrapping_add(64 * line).cast());
            }
            let bytes = T::group::<S::Lanes>(blocks, group);
            for i in 0..T::IN_GROUP {
                let part = T::part(group, i);
                let codes = T::part_codes::<S::Lanes>(&shared, &bytes, group, i);
                each(part, &codes, factors[part], added[part]);
            }
        }
    }
}

/// Adds the products of a part of each row with its values of rounded rows.
///
/// # Safety
/// There are N rows of them, with such a part, which are in the group behind one another; the processor has the instructions of the
/// set.
#[inline(always)]
unsafe fn add_part<S: Set, T: Rows, const N: usize>(
    codes: &[Ints<S>; 8],
    factor: <S::Lanes as Lanes>::Floats,
    added: <S::Lanes as Lanes>::Floats,
    x: &Floats,
    part: usize,
    totals: &mut [<S::Lanes as Lanes>::Floats; N],
) {
    let n_quads = if T::HALVES { 4 } else { 8 };
    for (t, total) in totals.iter_mut().enumerate() {
        // SAFETY: the caller's promise.
        unsafe {
            let (block, half) = if T::HALVES { (part / 2, part % 2) } else { (part, 0) };
            let (values, scale, known) = x.block(t, block);
            let values = values.add(half * n_quads);
            let known = *known.add(half * x.next_sum());
            // Two sums, so that fewer products wait for one another.
            let mut sums = [S::Lanes::all(if T::ADDS { 0 } else { known }), S::Lanes::all(0)];
            for (quad, codes) in codes[..n_quads].iter().enumerate() {
                let four = S::Lanes::all(*values.add(quad));
                let sum = &mut sums[quad % 2];
                *sum =
                    if T::SIGNED { S::signed(*sum, *codes, four) } else { S::unsigned(*sum, *codes, four) };
            }
            let sum = S::Lanes::floats(S::Lanes::add(sums[0], sums[1]));
            *total = S::Lanes::plus(sum, S::Lanes::times(factor, S::Lanes::every(scale)), *total);
            if T::ADDS {
                *total = S::Lanes::plus(added, S::Lanes::as_floats(S::Lanes::all(known)), *total);
            }
        }
    }
}
