//! Products of 16-bit floating-point weights with floats, by AVX-512. For bfloat16 weights, floats are rounded to
//! bfloat16, and one instruction does twice as many products in the same time. For half precision, nothing is rounded.
//!
//! Weights are laid out again a panel at a time, so that a register holds a word of each of sixteen rows of the result:
//! two bfloat16 numbers, or a float. That does not pay for few rows of floats and weights in bfloat16 (`few`).

#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "x86_64")]
mod few;
#[cfg(target_arch = "x86_64")]
mod floats;
mod matrices;
#[cfg(target_arch = "x86_64")]
mod next;
#[cfg(test)]
mod tests;

use crate::aligned::Aligned;
use crate::output::Output;
#[cfg(target_arch = "x86_64")]
use crate::simd::{allows, Level};

/// Rows of the result that a panel has: two registers.
const ROWS: usize = 32;
/// Words of a row of a panel, which stays in the first cache.
const WORDS: usize = 256;
/// Rows of the result for which a part of all floats stays in a cache; more at a time would be read from too many places.
const BESIDE: usize = 8 * ROWS;
/// Rows of floats up to which bfloat16 weights are multiplied as they lie: so many stay in a cache while all weights pass.
#[cfg(target_arch = "x86_64")]
const FEW_UP_TO: usize = 64;
/// Rows of floats that are multiplied with a panel at once.
const TOKENS: usize = 6;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    Bf16,
    F16,
}

impl Format {
    /// Returns true if this processor has the instructions.
    pub fn available(self) -> bool {
        #[cfg(target_arch = "x86_64")]
        {
            allows(Level::Avx512)
                && is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512bw")
                && is_x86_feature_detected!("avx512vl")
                && (self == Format::F16
                    || is_x86_feature_detected!("avx512bf16")
                        && is_x86_feature_detected!("avx512dq")
                        && is_x86_feature_detected!("avx512vnni"))
        }
        #[cfg(not(target_arch = "x86_64"))]
        false
    }

    fn in_word(self) -> usize {
        match self {
            Format::Bf16 => 2,
            Format::F16 => 1,
        }
    }
}

/// Bits of numbers: `m` rows of `k` terms, or where they are transposed `k` rows of `m`.
#[derive(Debug, Clone, Copy)]
pub struct Weights<'a> {
    format: Format,
    bits: &'a [u16],
    k: usize,
    m: usize,
    transposed: bool,
}

impl<'a> Weights<'a> {
    /// Rows one after the other.
    ///
    /// # Panics
    /// Where there are not so many numbers, or sums have no terms.
    pub fn new(format: Format, bits: &'a [u16], [k, m]: [usize; 2], transposed: bool) -> Weights<'a> {
        assert!(k > 0 && Some(bits.len()) == k.checked_mul(m), "{k} by {m}: {} numbers", bits.len());
        Weights { format, bits, k, m, transposed }
    }
}

/// Buffers a thread keeps between calls.
#[derive(Debug, Default)]
pub struct Scratch {
    /// `[word][ROWS]`
    panel: Aligned<u32>,
    /// `[row][word]`
    x: Aligned<u32>,
}

impl Scratch {
    /// Element `i` of row `j` of the output, which is all or a part of a result of `n` rows, becomes the sum over `k` of weights
    /// `(k, i)` times `x(j)[k]`. No bit depends on which elements are computed in one call.
    ///
    /// # Panics
    /// Where the processor lacks the instructions, the output has columns that the weights have not, or a row of `x` is not as
    /// long as sums have terms.
    pub fn multiply<'x>(
        &mut self,
        w: &Weights<'_>,
        x: impl Fn(usize) -> &'x [f32],
        n: usize,
        out: Output<'_>,
    ) {
        let (columns, rows) = (out.columns(), out.rows());
        assert!(w.format.available() && columns.end <= w.m, "columns {columns:?} of {}", w.m);
        let words = w.k.div_ceil(w.format.in_word());
        self.x.resize(rows.len() * words);
        #[cfg(target_arch = "x86_64")]
        {
            for (j, to) in rows.zip(self.x.chunks_exact_mut(words)) {
                let x = x(j);
                assert_eq!(x.len(), w.k);
                match w.format {
                    // SAFETY: the processor has the instructions.
                    Format::Bf16 => unsafe { avx512::round(x, to) },
                    Format::F16 => to.iter_mut().zip(x).for_each(|(to, x)| *to = x.to_bits()),
                }
            }
            if n <= FEW_UP_TO && w.format == Format::Bf16 && !w.transposed {
                few::multiply(w, &self.x, &out);
            } else {
                self.in_panels(w, &out);
            }
        }
        #[cfg(not(target_arch = "x86_64"))]
        unreachable!("{rows:?} of {n}, {}: no other processor has them", x(0).len());
    }

    /// Products with the words of all rows of the output.
    #[cfg(target_arch = "x86_64")]
    fn in_panels(&mut self, w: &Weights<'_>, out: &Output<'_>) {
        let (columns, rows, words) = (out.columns(), out.rows(), w.k.div_ceil(w.format.in_word()));
        self.panel.resize(WORDS.min(words) * ROWS);
        // SAFETY: the processor has the instructions. All columns and rows that are written are the output's.
        unsafe {
            for beside in columns.clone().step_by(BESIDE) {
                let beside = beside..columns.end.min(beside + BESIDE);
                for from in (0..words).step_by(WORDS) {
                    let part = from..words.min(from + WORDS);
                    for first in beside.clone().step_by(ROWS) {
                        let some = first..beside.end.min(first + ROWS);
                        avx512::pack(w, &some, &part, &mut self.panel);
                        let panel = &self.panel[..part.len() * ROWS];
                        let mut next =
                            next::Next::new(w, some.end..beside.end.min(some.end + ROWS), &part, rows.len());
                        for (at, j) in rows.clone().enumerate().step_by(TOKENS) {
                            next.prefetch();
                            let x = &self.x[at * words..][..TOKENS.min(rows.len() - at) * words];
                            let x = (&x[part.start..], words);
                            let to = (out.at(j, first), out.step());
                            match w.format {
                                Format::Bf16 => avx512::tile_bf16(panel, x, some.len(), to, from > 0),
                                Format::F16 => avx512::tile_f32(panel, x, some.len(), to, from > 0),
                            }
                        }
                    }
                }
            }
        }
    }
}
