//! Products of several rows at a time: a lane of a register is a row, so one instruction multiplies four codes of each
//! row by the same four values. Scales are multiplied for all rows at once, and no lanes are summed up.

use std::arch::x86_64::*;
use std::sync::atomic::{compiler_fence, Ordering};

use super::rounded::{Floats, Rounded};
use super::{Panel, MOST as AT_ONCE, PANEL_FROM};
use crate::quants::format::{Blocks, Format};
use crate::simd::lanes::{Lanes, Narrow, Wide};
use crate::simd::{FloatLanes, MOST};

/// Bytes ahead that memory is asked for, at least: so many rows are too many streams for hardware to see where they go.
const AHEAD: usize = 4096;

/// A set of instructions: adds in each lane four products to a sum. A value stands for a processor that has them.
trait Set: Copy {
    type Lanes: Lanes;

    /// # Safety
    /// The processor has the instructions.
    unsafe fn new() -> Self;

    fn lanes(self) -> Self::Lanes;

    fn unsigned(self, sum: Ints<Self>, codes: Ints<Self>, x: Ints<Self>) -> Ints<Self>;

    /// Adds products of signed codes. The sum already accounts for their offset.
    fn signed(self, sum: Ints<Self>, codes: Ints<Self>, x: Ints<Self>) -> Ints<Self>;
}

type Ints<S> = <<S as Set>::Lanes as Lanes>::Ints;

macro_rules! sets {
    ($($name:ident($lanes:ident, $ints:ident, $sum:ident, $codes:ident, $x:ident): $unsigned:expr, $signed:expr;)*) => {$(
        #[derive(Clone, Copy)]
        struct $name($lanes);

        impl Set for $name {
            type Lanes = $lanes;

            #[inline(always)]
            unsafe fn new() -> Self {
                // SAFETY: the caller's promise.
                $name(unsafe { $lanes::new() })
            }

            #[inline(always)]
            fn lanes(self) -> $lanes {
                self.0
            }

            #[inline(always)]
            fn unsigned(self, $sum: $ints, $codes: $ints, $x: $ints) -> $ints {
                // SAFETY: the processor has the instructions (`new`).
                unsafe { $unsigned }
            }

            #[inline(always)]
            fn signed(self, $sum: $ints, $codes: $ints, $x: $ints) -> $ints {
                // SAFETY: the processor has the instructions (`new`).
                let ($codes, $x) = unsafe { $signed };
                self.unsigned($sum, $codes, $x)
            }
        }
    )*};
}

sets! {
    Avx2(Narrow, __m256i, sum, codes, x):
        _mm256_add_epi32(sum, _mm256_madd_epi16(_mm256_maddubs_epi16(codes, x), _mm256_set1_epi16(1))),
        // Two products of 128 and 127 fit in 16 bits.
        (_mm256_abs_epi8(codes), _mm256_sign_epi8(x, codes));
    AvxVnni(Narrow, __m256i, sum, codes, x):
        _mm256_dpbusd_avx_epi32(sum, codes, x),
        (_mm256_xor_si256(codes, _mm256_set1_epi8(-128)), x);
    Avx512(Wide, __m512i, sum, codes, x):
        _mm512_dpbusd_epi32(sum, codes, x),
        (_mm512_xor_si512(codes, _mm512_set1_epi8(-128)), x);
}

macro_rules! compiled_for {
    ($($name:ident, $set:ident, $features:literal;)*) => {
        $(
            pub(super) mod $name {
                use super::*;

                /// Products of all rows with the rounded rows `first..first + n`, for `out`.
                #[target_feature(enable = $features)]
                pub(in crate::int8) fn all<T: Format>(
                    x: &Rounded<'_>,
                    panel: &mut Panel,
                    rows: &[u8],
                    row_bytes: usize,
                    (first, n): (usize, usize),
                    out: &mut dyn FnMut(usize, usize, &[f32]),
                ) {
                    let (mut at, end) = (first, first + n);
                    while at < end {
                        // What is left of the rows that lie side by side.
                        let beside = (end - at).min(x.layout.width - at % x.layout.width);
                        at += match beside {
                            1 => few::<T, 1>(x, rows, row_bytes, at, out),
                            2..4 => few::<T, 2>(x, rows, row_bytes, at, out),
                            4..AT_ONCE => few::<T, 4>(x, rows, row_bytes, at, out),
                            _ if end - at < PANEL_FROM => few::<T, AT_ONCE>(x, rows, row_bytes, at, out),
                            _ => {
                                let whole = (end - at) / AT_ONCE * AT_ONCE;
                                many::<T>(x, panel, rows, row_bytes, (at, whole), out)
                            }
                        };
                    }
                }

                /// Products with N rounded rows from `first` on; returns N.
                // Inlined into one function, all these loops compete for registers: decode loses 5 %.
                #[inline(never)]
                #[target_feature(enable = $features)]
                fn few<T: Format, const N: usize>(
                    x: &Rounded<'_>,
                    rows: &[u8],
                    row_bytes: usize,
                    first: usize,
                    out: &mut dyn FnMut(usize, usize, &[f32]),
                ) -> usize {
                    // SAFETY: the processor has the instructions that this function is compiled for.
                    let set = unsafe { $set::new() };
                    products_of_few::<$set, T, N>(set, x, rows, row_bytes, first, out);
                    N
                }

                /// Products with `n` rounded rows from `first` on, whole [`AT_ONCE`]; returns `n`.
                #[inline(never)]
                #[target_feature(enable = $features)]
                fn many<T: Format>(
                    x: &Rounded<'_>,
                    panel: &mut Panel,
                    rows: &[u8],
                    row_bytes: usize,
                    (first, n): (usize, usize),
                    out: &mut dyn FnMut(usize, usize, &[f32]),
                ) -> usize {
                    // SAFETY: the processor has the instructions that this function is compiled for.
                    let set = unsafe { $set::new() };
                    products_of_many::<$set, T>(set, x, panel, rows, row_bytes, (first, n), out);
                    n
                }
            }
        )*
    };
}

compiled_for!(
    avx2, Avx2, "avx2,fma,f16c";
    avx_vnni, AvxVnni, "avx2,fma,f16c,avxvnni";
    avx512, Avx512, "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni";
);

/// The first block of the rows; the bytes from it to that of each row, the last one again for rows that are missing; the number of
/// rows. In bytes, so that a block's address is one sum.
#[inline(always)]
fn blocks_of<T: Format>(
    rows: &[u8],
    row_bytes: usize,
    n_blocks: usize,
) -> (*const T::Block, [usize; MOST], usize) {
    let n_rows = rows.len() / row_bytes;
    assert!(n_rows > 0 && row_bytes == n_blocks * size_of::<T::Block>());
    let mut starts = [0; MOST];
    starts.iter_mut().zip(0..).for_each(|(start, row)| *start = row_bytes * (n_rows - 1).min(row));
    (T::blocks(rows).as_ptr(), starts, n_rows)
}

#[inline(always)]
fn products_of_few<S: Set, T: Format, const N: usize>(
    set: S,
    x: &Rounded<'_>,
    rows: &[u8],
    row_bytes: usize,
    first: usize,
    out: &mut dyn FnMut(usize, usize, &[f32]),
) {
    let floats = Floats::new(x, first, N, x.layout.width);
    let n_blocks = x.layout.n_blocks() / T::PARTS;
    let bytes_of_rows = S::Lanes::N * row_bytes;
    let ahead = AHEAD.next_multiple_of(bytes_of_rows);
    for (at, rows) in rows.chunks(bytes_of_rows).enumerate() {
        let (block, starts, n_rows) = blocks_of::<T>(rows, row_bytes, n_blocks);
        let mut totals = [set.lanes().none(); N];
        for at in 0..n_blocks {
            let next = rows.as_ptr().wrapping_add(ahead + at * S::Lanes::N * size_of::<T::Block>());
            // SAFETY: blocks are counted up to those that all rows have.
            let blocks = starts.map(|start| unsafe { &*block.add(at).byte_add(start) });
            each_part::<S, T>(set, blocks, next, |part, codes, factor, added| {
                let part = at * T::N_FACTORS + part;
                // SAFETY: the floats have N rows after one another, and as many parts as the blocks of a row of weights.
                unsafe { add_part::<S, T, N>(set, codes, factor, added, &floats, part, &mut totals) };
            });
        }
        give(set, totals, n_rows, at * S::Lanes::N, first, out);
    }
}

#[inline(always)]
fn products_of_many<S: Set, T: Format>(
    set: S,
    x: &Rounded<'_>,
    panel: &mut Panel,
    rows: &[u8],
    row_bytes: usize,
    (first, n): (usize, usize),
    out: &mut dyn FnMut(usize, usize, &[f32]),
) {
    let (n_blocks, l) = (x.layout.n_blocks() / T::PARTS, set.lanes());
    let (n_parts, n_lanes) = (n_blocks * T::N_FACTORS, S::Lanes::N);
    panel.codes.resize(n_parts * T::QUADS * n_lanes);
    panel.factors.resize(n_parts * 2 * n_lanes);
    let bytes_of_rows = n_lanes * row_bytes;
    for (at, rows) in rows.chunks(bytes_of_rows).enumerate() {
        let (block, starts, n_rows) = blocks_of::<T>(rows, row_bytes, n_blocks);
        let (codes_at, factors_at) = (panel.codes.as_mut_ptr(), panel.factors.as_mut_ptr());
        // SAFETY: blocks are counted up to those that all rows have, and there is room for the codes and factors of so many
        // parts.
        unsafe {
            for at in 0..n_blocks {
                let next = rows.as_ptr().wrapping_add(bytes_of_rows + at * n_lanes * size_of::<T::Block>());
                let blocks = starts.map(|start| &*block.add(at).byte_add(start));
                each_part::<S, T>(set, blocks, next, |part, codes, factor, added| {
                    let part = at * T::N_FACTORS + part;
                    for (quad, codes) in codes[..T::QUADS].iter().enumerate() {
                        l.store(*codes, codes_at.add((part * T::QUADS + quad) * n_lanes));
                    }
                    l.store(l.as_ints(factor), factors_at.add(part * 2 * n_lanes));
                    l.store(l.as_ints(added), factors_at.add((part * 2 + 1) * n_lanes));
                });
            }
            for first in (first..first + n).step_by(AT_ONCE) {
                let floats = Floats::new(x, first, AT_ONCE, AT_ONCE);
                let mut totals = [l.none(); AT_ONCE];
                // In the order of products with fewer floats: sums are the same to the last bit.
                for i in 0..n_parts {
                    let (block, i) = (i / T::N_FACTORS, i % T::N_FACTORS);
                    let part = block * T::N_FACTORS + T::part(i / T::IN_GROUP, i % T::IN_GROUP);
                    let mut codes = [l.all(0); 8];
                    for (quad, codes) in codes[..T::QUADS].iter_mut().enumerate() {
                        *codes = l.load(codes_at.add((part * T::QUADS + quad) * n_lanes));
                    }
                    let both = factors_at.add(part * 2 * n_lanes);
                    let (factor, added) = (l.as_floats(l.load(both)), l.as_floats(l.load(both.add(n_lanes))));
                    add_part::<S, T, AT_ONCE>(set, &codes, factor, added, &floats, part, &mut totals);
                }
                give(set, totals, n_rows, at * n_lanes, first, out);
            }
        }
    }
}

/// Gives `out` the products of each rounded row.
#[inline(always)]
fn give<S: Set, const N: usize>(
    set: S,
    totals: [<S::Lanes as FloatLanes>::Floats; N],
    n_rows: usize,
    row: usize,
    first: usize,
    out: &mut dyn FnMut(usize, usize, &[f32]),
) {
    /// Starts on a cache line. An array that spans two lines, which depends on the address of the stack, is not forwarded from the
    /// store to the load in `out`, and prefill takes 6 % longer.
    #[repr(align(64))]
    struct Line([f32; MOST]);

    let mut products = Line([0.0; MOST]);
    for (t, total) in totals.into_iter().enumerate() {
        // SAFETY: there is room for the widest register.
        unsafe { set.lanes().store(set.lanes().as_ints(total), products.0.as_mut_ptr().cast()) }
        out(row, first + t, &products.0[..n_rows.min(S::Lanes::N)]);
    }
}

/// Calls `each` with the codes of each part of a block of each row, its factors and what is added. Asks for as much memory from
/// `next` on: a little at a time, for what is read meanwhile waits behind it.
#[inline(always)]
fn each_part<S: Set, T: Format>(
    set: S,
    blocks: Blocks<T>,
    next: *const u8,
    mut each: impl FnMut(usize, &[Ints<S>; 8], <S::Lanes as FloatLanes>::Floats, <S::Lanes as FloatLanes>::Floats),
) {
    let n_lines = (S::Lanes::N * size_of::<T::Block>()).div_ceil(64).div_ceil(T::GROUPS);
    let ask = |group: usize| {
        for line in group * n_lines..(group + 1) * n_lines {
            // SAFETY: a prefetch has no effect that could be seen, whatever the address.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(next.wrapping_add(64 * line).cast()) };
        }
        // The compiler would move loads before these requests, and so wait for memory before it asks for more.
        compiler_fence(Ordering::SeqCst);
    };
    let l = set.lanes();
    ask(0);
    let [factors, added] = T::factors(l, blocks);
    let shared = T::shared(l, blocks);
    for group in 0..T::GROUPS {
        if group > 0 {
            ask(group);
        }
        let bytes = T::group(l, blocks, group);
        for i in 0..T::IN_GROUP {
            let part = T::part(group, i);
            each(part, &T::part_codes(l, &shared, &bytes, group, i), factors[part], added[part]);
        }
    }
}

/// Adds the products of a part of each row with its values of rounded rows.
///
/// # Safety
/// There are N rows of them, with such a part, which are in the group after one another.
#[inline(always)]
unsafe fn add_part<S: Set, T: Format, const N: usize>(
    set: S,
    codes: &[Ints<S>; 8],
    factor: <S::Lanes as FloatLanes>::Floats,
    added: <S::Lanes as FloatLanes>::Floats,
    x: &Floats,
    part: usize,
    totals: &mut [<S::Lanes as FloatLanes>::Floats; N],
) {
    let l = set.lanes();
    for (t, total) in totals.iter_mut().enumerate() {
        // SAFETY: the caller's promise.
        unsafe {
            let (block, half) = if T::HALVES { (part / 2, part % 2) } else { (part, 0) };
            let (values, scale, known) = x.block(t, block, half);
            let values = values.add(half * T::QUADS);
            // Two sums, so that fewer products wait for one another.
            let mut sums = [l.all(if T::ADDS { 0 } else { known }), l.all(0)];
            for (quad, codes) in codes[..T::QUADS].iter().enumerate() {
                let four = l.all(*values.add(quad));
                let sum = &mut sums[quad % 2];
                *sum =
                    if T::SIGNED { set.signed(*sum, *codes, four) } else { set.unsigned(*sum, *codes, four) };
            }
            let sum = l.floats(l.add(sums[0], sums[1]));
            *total = l.mul_add(sum, l.times(factor, l.splat(scale)), *total);
            if T::ADDS {
                *total = l.mul_add(added, l.as_floats(l.all(known)), *total);
            }
        }
    }
}
