//! The inner loops: weights laid out in panels, and sums of products of 16-bit integers, for each register width with
//! fast instructions for them.

// Other processors have none of the loops.
#![cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]

use gguf::DType;

use super::{Tokens, BLOCK};
#[cfg(target_arch = "x86_64")]
use crate::quants::{self, format::Format};
#[cfg(target_arch = "x86_64")]
use crate::simd::lanes::{Lanes, Narrow, Wide};
use crate::simd::Instructions;

/// Most tokens that [`Instructions::panel`] takes.
pub(super) const PANEL_TOKENS: usize = 6;
/// Most rows of a panel under any instructions.
pub(super) const MOST_ROWS: usize = 32;

/// Rows of a weight side by side: pairs of numbers `[k / 2][rows][2]` in the order of [`super::round`], factors
/// `[blocks][rows]`, and what is added `[2 * blocks][rows]`, if anything. Numbers are whole, none larger than 4096 in size.
/// Nothing is rounded: `factor * number + added` is what the type says, but for the order of roundings of floats.
pub(super) struct Panel<'a> {
    pub(super) values: &'a [u32],
    pub(super) factors: &'a [f32],
    pub(super) added: Option<&'a [f32]>,
}

/// Half of the rows of a panel, a register of them: what it has from the first of them on, in lines of `side`.
pub(super) struct Half<'a> {
    pub(super) values: &'a mut [u32],
    pub(super) factors: &'a mut [f32],
    pub(super) added: &'a mut [f32],
    pub(super) side: usize,
}

impl Instructions {
    /// Rows of a panel: two registers.
    pub(super) fn rows(self) -> usize {
        match self {
            Instructions::Avx2 | Instructions::AvxVnni => MOST_ROWS / 2,
            Instructions::Avx512 => MOST_ROWS,
        }
    }

    /// Converts whole blocks of rows, of which a half of a panel takes as many of the first as it has.
    ///
    /// # Safety
    /// The processor has the instructions.
    pub(super) unsafe fn fill(self, dtype: DType, rows: [&[u8]; MOST_ROWS / 2], to: Half<'_>) {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the caller's promise.
        unsafe {
            match self {
                Instructions::Avx2 | Instructions::AvxVnni => {
                    quants::with_format!(dtype, avx2::fill, (rows, to))
                }
                Instructions::Avx512 => quants::with_format!(dtype, avx512::fill, (rows, to)),
            }
        }
        #[cfg(not(target_arch = "x86_64"))]
        unreachable!("{dtype} {rows:?} {}: other processors have none of the instructions", to.side);
    }

    /// Products of a panel with blocks `from..` of tokens, `[PANEL_TOKENS]` at most, into rows of floats `stride` apart:
    /// written there, or added to what is there.
    ///
    /// # Safety
    /// The processor has the instructions. From `out` on as many rows as tokens, each of a panel's rows, may be written,
    /// and read if `add`.
    pub(super) unsafe fn panel(
        self,
        panel: &Panel<'_>,
        x: Tokens<'_>,
        from: usize,
        add: bool,
        out: *mut f32,
        stride: usize,
    ) {
        let (n_blocks, rows) = (panel.factors.len() / self.rows(), self.rows());
        assert!(panel.factors.len() == n_blocks * rows && panel.values.len() == n_blocks * BLOCK / 2 * rows);
        assert!(panel.added.is_none_or(|a| a.len() == 2 * n_blocks * rows) && x.holds(from, n_blocks));
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the caller's promises, and by the assertions all that is read is there.
        unsafe {
            let each = match self {
                Instructions::Avx2 | Instructions::AvxVnni => avx2::PANELS,
                Instructions::Avx512 => avx512::PANELS,
            };
            each[x.len() - 1](panel, x, from, add, out, stride);
        }
        #[cfg(not(target_arch = "x86_64"))]
        unreachable!("{add} {out:?} {stride}: other processors have none of the instructions");
    }
}

#[cfg(target_arch = "x86_64")]
macro_rules! compiled_for {
    ($($name:ident, $lanes:ident, $features:literal;)*) => {$(
        mod $name {
            use super::*;

            type PanelLoop = unsafe fn(&Panel<'_>, Tokens<'_>, usize, bool, *mut f32, usize);

            /// The loop for each number of tokens from 1 on.
            pub(super) const PANELS: [PanelLoop; PANEL_TOKENS] =
                [panel::<1>, panel::<2>, panel::<3>, panel::<4>, panel::<5>, panel::<6>];

            /// # Safety
            /// The promise of [`super::panel`].
            #[target_feature(enable = $features)]
            unsafe fn panel<const R: usize>(
                p: &Panel<'_>,
                x: Tokens<'_>,
                from: usize,
                add: bool,
                out: *mut f32,
                stride: usize,
            ) {
                // SAFETY: the caller's promise; the processor has what this function is compiled for.
                unsafe { super::panel::<$lanes, R>($lanes::new(), p, x, from, add, out, stride) }
            }

            #[target_feature(enable = $features)]
            pub(super) fn fill<T: Format>(rows: [&[u8]; MOST_ROWS / 2], to: Half<'_>) {
                // SAFETY: the processor has what this function is compiled for.
                super::fill::<$lanes, T>(unsafe { $lanes::new() }, rows, to)
            }
        }
    )*};
}

#[cfg(target_arch = "x86_64")]
compiled_for!(
    avx2, Narrow, "avx2,fma,f16c";
    avx512, Wide, "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni";
);

/// See [`Instructions::fill`].
#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn fill<L: Lanes, T: Format>(l: L, rows: [&[u8]; MOST_ROWS / 2], to: Half<'_>) {
    let Half { values, factors, added, side } = to;
    let rows = rows.map(T::blocks);
    let (n_blocks, n) = (rows[0].len(), rows[0].len() * T::PARTS);
    let holds = |len: usize, lines: usize| lines == 0 || len >= (lines - 1) * side + L::N;
    assert!(rows.iter().all(|row| row.len() == n_blocks) && side >= L::N);
    assert!(holds(values.len(), n * BLOCK / 2) && holds(factors.len(), n) && holds(added.len(), 2 * n));
    let values = values.as_mut_ptr().cast::<i32>();
    let (factors, added) = (factors.as_mut_ptr().cast::<i32>(), added.as_mut_ptr().cast::<i32>());
    let offset = l.all(i32::from(T::OFFSET) * 0x0001_0001);
    for at in 0..n_blocks {
        // SAFETY: blocks are counted up to those that all rows have, and there is room for what they are converted to.
        unsafe {
            let blocks = rows.map(|row| row.get_unchecked(at));
            let [factor, unit] = T::units(l, blocks);
            let [multiples, times] = T::multiples_of_rows(l, blocks);
            for part in at * T::PARTS..(at + 1) * T::PARTS {
                l.store(l.as_ints(factor), factors.add(part * side));
            }
            if T::ADDS {
                let unit = l.times(unit, l.splat(T::SIGN));
                for half in 0..2 * T::PARTS {
                    let part = if T::HALVES { half } else { half / 2 };
                    let times = l.floats(l.signed_byte(times[part / 4], part % 4));
                    l.store(l.as_ints(l.times(times, unit)), added.add((2 * at * T::PARTS + half) * side));
                }
            }
            let shared = T::shared(l, blocks);
            for group in 0..T::GROUPS {
                let bytes = T::group(l, blocks, group);
                for i in 0..T::IN_GROUP {
                    let part = T::part(group, i);
                    let multiple = l.signed_byte(multiples[part / 4], part % 4);
                    let multiple = l.or(l.and(multiple, l.all(0xffff)), l.left(multiple, 16));
                    let codes = T::part_codes(l, &shared, &bytes, group, i);
                    for (quad, codes) in codes[..T::QUADS].iter().enumerate() {
                        for (pair, codes) in l.byte_pairs(*codes).into_iter().enumerate() {
                            let numbers = l.sub_pairs(codes, offset);
                            let numbers = if T::PARTS > 1 { l.mul_pairs(numbers, multiple) } else { numbers };
                            let line = 2 * ((at * T::N_FACTORS + part) * T::QUADS + quad) + pair;
                            l.store(numbers, values.add(line * side));
                        }
                    }
                }
            }
        }
    }
}

/// A float for each row of a panel, in two registers.
///
/// # Safety
/// So many floats can be read.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn line<L: Lanes>(l: L, from: *const f32) -> [L::Floats; 2] {
    // SAFETY: the caller's promise.
    unsafe { [l.as_floats(l.load(from.cast())), l.as_floats(l.load(from.add(L::N).cast()))] }
}

/// Products with R tokens: see [`Instructions::panel`].
///
/// # Safety
/// R tokens have as many blocks from `from` on as the panel; from `out` on R rows of the panel's rows, `stride` apart, may
/// be written, and read if `add`.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn panel<L: Lanes, const R: usize>(
    l: L,
    p: &Panel<'_>,
    x: Tokens<'_>,
    from: usize,
    add: bool,
    out: *mut f32,
    stride: usize,
) {
    let rows = 2 * L::N;
    let (numbers, scales, halves) = (x.numbers(from), x.scales(from), x.halves(from));
    let mut totals = [[l.none(); 2]; R];
    for b in 0..p.factors.len() / rows {
        let mut sums = [[l.all(0); 2]; R];
        // SAFETY: the caller's promise: the panel has so many blocks, and so have the tokens.
        unsafe {
            let w = p.values.as_ptr().cast::<i32>().add(b * BLOCK / 2 * rows);
            for i in 0..BLOCK / 2 {
                let w = [l.load(w.add(i * rows)), l.load(w.add(i * rows + L::N))];
                for (r, sums) in sums.iter_mut().enumerate() {
                    let x = l.all(*numbers.add(r * x.stride() + b * BLOCK / 2 + i) as i32);
                    *sums = [l.add_products(sums[0], w[0], x), l.add_products(sums[1], w[1], x)];
                }
            }
            let factors = line(l, p.factors.as_ptr().add(b * rows));
            for (r, (totals, sums)) in totals.iter_mut().zip(sums).enumerate() {
                let scale = l.splat(*scales.add(r * x.stride() + b));
                for ((total, sum), factor) in totals.iter_mut().zip(sums).zip(factors) {
                    *total = l.mul_add(l.floats(sum), l.times(factor, scale), *total);
                }
            }
            if let Some(added) = p.added {
                for half in [2 * b, 2 * b + 1] {
                    let added = line(l, added.as_ptr().add(half * rows));
                    for (r, totals) in totals.iter_mut().enumerate() {
                        let x = l.splat(*halves.add(r * x.stride() + half));
                        *totals = [l.mul_add(added[0], x, totals[0]), l.mul_add(added[1], x, totals[1])];
                    }
                }
            }
        }
    }
    for (r, totals) in totals.into_iter().enumerate() {
        for (i, total) in totals.into_iter().enumerate() {
            // SAFETY: the caller's promise, of R rows of two registers of floats.
            unsafe {
                let out = out.add(r * stride + i * L::N).cast::<i32>();
                let total = if add { l.sum(total, l.as_floats(l.load(out))) } else { total };
                l.store(l.as_ints(total), out);
            }
        }
    }
}
