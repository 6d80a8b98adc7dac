//! Products of eight rows at a time, for types whose codes are halves of bytes: a lane is a row, so that four codes of each of
//! eight rows are multiplied by one instruction with the same four values. Scales are multiplied for eight rows at once, and no
//! lanes are summed up.

/// Bytes ahead that memory is asked for, at least: eight rows are too many streams for hardware to see where they go.
const AHEAD: usize = 4096;

/// The loops for one set of instructions.
macro_rules! loops {
    ($name:ident, $features:literal, unsigned: $unsigned:expr, signed: $signed:expr) => {
        pub(in crate::few) mod $name {
            use std::arch::x86_64::*;

            use super::AHEAD;
            use crate::codes::x86::Small;
            use crate::few::{Floats, BLOCK, ROWS};

            /// Products of the first rows, whole eights of them, with rounded rows, for `out`; how many rows these are.
            #[target_feature(enable = $features)]
            pub(in crate::few) fn products<T: Small, const N: usize>(
                x: &Floats<N>,
                rows: &[u8],
                row_bytes: usize,
                out: &mut impl FnMut(usize, [f32; N]),
            ) -> usize {
                let eights = rows.chunks_exact(ROWS * row_bytes);
                let n = eights.len() * ROWS;
                let ahead = AHEAD.next_multiple_of(ROWS * row_bytes);
                for (first, eight) in eights.enumerate() {
                    let mut totals = [_mm256_setzero_ps(); N];
                    let mut blocks: [&[T::Block]; ROWS] = [&[]; ROWS];
                    for (blocks, row) in blocks.iter_mut().zip(eight.chunks_exact(row_bytes)) {
                        *blocks = T::blocks(row);
                        assert!(blocks.len() == x.n_blocks);
                    }
                    for at in 0..x.n_blocks {
                        // SAFETY: blocks are counted up to those that all rows, by the assertion, have; a prefetch has no effect
                        // that could be seen, whatever the address.
                        unsafe {
                            let next =
                                eight.as_ptr().wrapping_add(ahead + at * size_of::<[T::Block; ROWS]>());
                            for line in 0..size_of::<[T::Block; ROWS]>().div_ceil(64) {
                                _mm_prefetch::<_MM_HINT_T0>(next.wrapping_add(64 * line).cast());
                            }
                            block::<T, N>(blocks.map(|row| row.get_unchecked(at)), x, at, &mut totals);
                        }
                    }
                    let mut products = [[0.0f32; ROWS]; N];
                    for (products, total) in products.iter_mut().zip(totals) {
                        // SAFETY: eight floats are written to eight.
                        unsafe { _mm256_storeu_ps(products.as_mut_ptr(), total) }
                    }
                    for row in 0..ROWS {
                        let mut of_row = [0.0; N];
                        of_row.iter_mut().zip(&products).for_each(|(to, from)| *to = from[row]);
                        out(first * ROWS + row, of_row);
                    }
                }
                n
            }

            /// Adds products of a block of each of eight rows with block `at` of rounded rows.
            ///
            /// # Safety
            /// These have the block.
            #[inline]
            #[target_feature(enable = $features)]
            unsafe fn block<T: Small, const N: usize>(
                blocks: [&T::Block; ROWS],
                x: &Floats<N>,
                at: usize,
                totals: &mut [__m256; N],
            ) {
                // SAFETY: the processor has AVX2; the caller's promise: 32 bytes, a sum and a scale for each block.
                unsafe {
                    let [factors, added] = T::heads_of_eight(blocks);
                    let quads = T::quads_of_eight(blocks);
                    let low_bits = _mm256_set1_epi8(15);
                    let mut codes = [low_bits; ROWS];
                    for i in 0..4 {
                        codes[i] = T::value(_mm256_and_si256(quads[i], low_bits));
                        codes[4 + i] = T::value(_mm256_and_si256(_mm256_srli_epi16::<4>(quads[i]), low_bits));
                    }
                    for (t, total) in totals.iter_mut().enumerate() {
                        let known = _mm256_set1_epi32(*x.totals[t].add(at));
                        let values = x.bytes[t].add(at * BLOCK).cast::<i32>();
                        let zero = _mm256_setzero_si256();
                        // Two sums, so that fewer products wait for one another.
                        let mut sums = [if T::ADDS { zero } else { known }, zero];
                        for i in 0..8 {
                            let four = _mm256_set1_epi32(values.add(i).read_unaligned());
                            let sum = &mut sums[i % 2];
                            *sum = if T::SIGNED {
                                $signed(*sum, codes[i], four)
                            } else {
                                $unsigned(*sum, codes[i], four)
                            };
                        }
                        let sum = _mm256_cvtepi32_ps(_mm256_add_epi32(sums[0], sums[1]));
                        let factors = _mm256_mul_ps(factors, _mm256_set1_ps(*x.scales[t].add(at)));
                        *total = _mm256_fmadd_ps(sum, factors, *total);
                        if T::ADDS {
                            *total = _mm256_fmadd_ps(added, _mm256_castsi256_ps(known), *total);
                        }
                    }
                }
            }
        }
    };
}

for_each_set!(loops);
