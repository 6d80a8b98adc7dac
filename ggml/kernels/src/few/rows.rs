//! Products row by row.

/// Sums of a row under way at once: blocks take turns, so that none waits for the one before.
const SUMS: usize = 4;

/// The loops for one set of instructions.
macro_rules! loops {
    ($name:ident, $features:literal, unsigned: $unsigned:expr, signed: $signed:expr) => {
        pub(in crate::few) mod $name {
            use std::arch::x86_64::*;

            use super::SUMS;
            use crate::codes::x86::Small;
            use crate::few::{eights, Floats, Rounded, BLOCK};

            /// Products of all rows with the rounded rows `first..first + N`, for `out`.
            #[target_feature(enable = $features)]
            pub(in crate::few) fn products<T: Small, const N: usize>(
                x: &Rounded,
                rows: &[u8],
                row_bytes: usize,
                first: usize,
                out: &mut impl FnMut(usize, [f32; N]),
            ) {
                let x = Floats::new(x, first);
                let done = if T::NIBBLES.is_some() {
                    eights::$name::products::<T, N>(&x, rows, row_bytes, out)
                } else {
                    0
                };
                for (i, row) in rows.chunks_exact(row_bytes).enumerate().skip(done) {
                    let row = T::blocks(row);
                    assert!(row.len() == x.n_blocks);
                    let mut totals = [[_mm256_setzero_ps(); N]; SUMS];
                    // SAFETY: the processor has the instructions, and blocks are counted up to those that the row and, by
                    // the assertion, rounded rows have.
                    unsafe {
                        let (fours, rest) = row.as_chunks::<SUMS>();
                        for (at, four) in fours.iter().enumerate() {
                            for i in 0..SUMS {
                                block::<T, N>(&four[i], &x, at * SUMS + i, &mut totals[i]);
                            }
                        }
                        for (i, b) in rest.iter().enumerate() {
                            block::<T, N>(b, &x, fours.len() * SUMS + i, &mut totals[0]);
                        }
                    }
                    let mut products = [0.0; N];
                    for (t, product) in products.iter_mut().enumerate() {
                        let all = _mm256_add_ps(
                            _mm256_add_ps(totals[0][t], totals[1][t]),
                            _mm256_add_ps(totals[2][t], totals[3][t]),
                        );
                        let half = _mm_add_ps(_mm256_castps256_ps128(all), _mm256_extractf128_ps::<1>(all));
                        let pair = _mm_add_ps(half, _mm_movehl_ps(half, half));
                        *product = _mm_cvtss_f32(_mm_add_ss(pair, _mm_movehdup_ps(pair)));
                    }
                    out(i, products);
                }
            }

            /// Adds products of a block with block `at` of rounded rows.
            ///
            /// # Safety
            /// These have the block.
            #[inline]
            #[target_feature(enable = $features)]
            unsafe fn block<T: Small, const N: usize>(
                b: &T::Block,
                x: &Floats<N>,
                at: usize,
                totals: &mut [__m256; N],
            ) {
                let head = T::head(b);
                let [factors, added] = if T::ADDS {
                    let both = _mm256_cvtph_ps(_mm_set1_epi32(head));
                    [_mm256_moveldup_ps(both), _mm256_movehdup_ps(both)]
                } else {
                    [_mm256_cvtph_ps(_mm_set1_epi16(head as i16)); 2]
                };
                // SAFETY: this function has AVX2.
                let codes = unsafe { T::codes(b, 0) };
                for (t, total) in totals.iter_mut().enumerate() {
                    // SAFETY: the caller's promise: 32 bytes, eight sums and a scale for each block.
                    let (values, known, scale) = unsafe {
                        (
                            _mm256_loadu_si256(x.bytes[t].add(at * BLOCK).cast()),
                            _mm256_loadu_si256(x.sums[t].add(at * 8).cast()),
                            *x.scales[t].add(at),
                        )
                    };
                    let sum = if T::ADDS { _mm256_setzero_si256() } else { known };
                    let sum =
                        if T::SIGNED { $signed(sum, codes, values) } else { $unsigned(sum, codes, values) };
                    let factors = _mm256_mul_ps(factors, _mm256_set1_ps(scale));
                    *total = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum), factors, *total);
                    if T::ADDS {
                        *total = _mm256_fmadd_ps(added, _mm256_castsi256_ps(known), *total);
                    }
                }
            }
        }
    };
}

for_each_set!(loops);
