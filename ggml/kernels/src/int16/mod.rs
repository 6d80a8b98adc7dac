//! Products of quantized weights with floats in 16-bit integers.
//!
//! Weights in the file are integers with a factor for each block, and are not rounded. Floats are rounded to 15 bits of
//! the largest of each 32 ([`Shape::pack`]), where ggml keeps 8; sums of products are exact within a block.
//! Instructions for 16-bit integers do twice as many products in the same time as those for floats (`product`).
//!
//! A panel of weights is converted and laid out so that a register holds numbers of different rows. With few tokens,
//! that takes longer than the products, so those use 8 bits (`int8`).

mod product;

use std::ops::Range;

use gguf::DType;
use product::{Half, Panel, MOST_ROWS, PANEL_TOKENS};

use crate::aligned::Aligned;
use crate::output::Output;
use crate::quants;
use crate::simd::Instructions;

/// Elements that share a factor.
pub const BLOCK: usize = 32;
/// The largest size of a float's number: with 4096, the largest of a weight's, 32 products fit in 32 bits.
const LARGEST: f32 = 16_383.0;
/// Adding 1.5 * 2^23 leaves the nearest integer in the low bits of the sum.
const ROUND: f32 = 12_582_912.0;
/// Elements of a row that a panel has, at most: a panel stays in the first cache.
const CHUNK: usize = 512;
/// Panels converted before they are multiplied, so that tokens are fetched once for all of them.
const PANELS: usize = 4;

/// The shape of packed floats: `n` rows of `k`, whole blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// Elements of a row.
    pub k: usize,
    pub n: usize,
}

impl Shape {
    fn n_blocks(self) -> usize {
        self.k / BLOCK
    }

    /// Words of a row: two numbers in each, then a scale for each block, then sums of both its halves.
    pub fn row_words(self) -> usize {
        self.k / 2 + 3 * self.n_blocks()
    }

    /// Words of all; `None` where they are too many to count.
    pub fn n_words(self) -> Option<usize> {
        self.k.checked_mul(2)?;
        self.n.checked_mul(self.row_words())
    }

    /// Rounds a row of floats into its words.
    pub fn pack(self, row: &[f32], words: &mut [u32]) {
        assert!(row.len() == self.k && self.k.is_multiple_of(BLOCK) && words.len() == self.row_words());
        let (numbers, rest) = words.split_at_mut(self.k / 2);
        let (scales, halves) = rest.split_at_mut(self.n_blocks());
        let heads = scales.iter_mut().zip(halves.as_chunks_mut::<2>().0);
        let blocks = row.as_chunks::<BLOCK>().0.iter().zip(numbers.as_chunks_mut().0);
        for ((x, numbers), (scale, halves)) in blocks.zip(heads) {
            let (factor, sums) = round(x, numbers);
            *scale = factor.to_bits();
            *halves = sums.map(f32::to_bits);
        }
    }
}

/// Rounds a block; returns its scale, and the sums of its halves.
#[inline(always)]
fn round(x: &[f32; BLOCK], numbers: &mut [u32; BLOCK / 2]) -> (f32, [f32; 2]) {
    let largest = x.iter().fold(0.0f32, |m, x| if x.abs() > m { x.abs() } else { m });
    let inverse = if largest > 0.0 { LARGEST / largest } else { 0.0 };
    let mut rounded = [0i32; BLOCK];
    rounded.iter_mut().zip(x).for_each(|(r, x)| *r = (x * inverse + ROUND).to_bits() as i16 as i32);
    // Each next to the one after the next, like the bytes of a word of codes when every other one is taken.
    for (numbers, four) in numbers.as_chunks_mut::<2>().0.iter_mut().zip(rounded.as_chunks::<4>().0) {
        *numbers = [0, 1].map(|i| (four[i] as u32 & 0xffff) | (four[i + 2] as u32) << 16);
    }
    // What is no number, or has no end, stays so.
    let scale = if x.iter().any(|x| !x.is_finite()) { f32::NAN } else { largest / LARGEST };
    let sum = |half: &[i32]| half.iter().sum::<i32>() as f32 * scale;
    (scale, [sum(&rounded[..BLOCK / 2]), sum(&rounded[BLOCK / 2..])])
}

#[derive(Clone, Copy)]
struct Tokens<'a> {
    words: &'a [u32],
    shape: Shape,
}

impl<'a> Tokens<'a> {
    fn new(words: &'a [u32], shape: Shape, tokens: Range<usize>) -> Tokens<'a> {
        let row = shape.row_words();
        let n = tokens.len();
        Tokens { words: &words[tokens.start * row..tokens.end * row], shape: Shape { n, ..shape } }
    }

    fn len(self) -> usize {
        self.shape.n
    }

    /// Words from a row to the next.
    fn stride(self) -> usize {
        self.shape.row_words()
    }

    /// Returns true if rows have blocks `from..from + n`, and there are rows.
    fn holds(self, from: usize, n: usize) -> bool {
        self.shape.n > 0
            && from + n <= self.shape.n_blocks()
            && self.words.len() == self.shape.n * self.shape.row_words()
    }

    /// The numbers of the first row from a block on, two in a word.
    fn numbers(self, from: usize) -> *const u32 {
        self.words[from * BLOCK / 2..].as_ptr()
    }

    /// The scales of the first row from a block on.
    fn scales(self, from: usize) -> *const f32 {
        self.words[self.shape.k / 2 + from..].as_ptr().cast()
    }

    /// The sums of halves of the first row from a block on.
    fn halves(self, from: usize) -> *const f32 {
        self.words[self.shape.k / 2 + self.shape.n_blocks() + 2 * from..].as_ptr().cast()
    }
}

/// A product of weights with packed floats.
#[derive(Clone, Copy)]
pub struct Product<'a, R> {
    pub dtype: DType,
    /// Gives the bytes of a row of the weights.
    pub row: R,
    /// The floats, `shape` of them.
    pub packed: &'a [u32],
    /// How many rows of how many.
    pub shape: Shape,
}

/// Buffers a thread keeps between calls.
#[derive(Default)]
pub struct Scratch {
    /// `[panel][elements / 2][rows]`
    panels: Aligned<u32>,
    /// `[panel][blocks][rows]`
    factors: Aligned<f32>,
    /// `[panel][2 * blocks][rows]`
    added: Aligned<f32>,
    /// A result of which only a part is wanted.
    edge: Aligned<f32>,
}

impl Scratch {
    /// Products of rows of weights with packed rows: element `i` of row `j` of the output is that of row `i` of the weights with row
    /// `j` of the packed ones.
    ///
    /// # Panics
    /// Where the processor lacks the instructions, lengths are not those of the shape, or the output has more rows.
    pub fn multiply<'w>(&mut self, product: &Product<'_, impl Fn(usize) -> &'w [u8]>, out: Output<'_>) {
        self.multiply_with(Instructions::best(), product, out);
    }

    fn multiply_with<'w>(
        &mut self,
        with: Instructions,
        product: &Product<'_, impl Fn(usize) -> &'w [u8]>,
        out: Output<'_>,
    ) {
        let &Product { dtype, ref row, packed, shape } = product;
        let (block, block_bytes) = (dtype.block_size(), dtype.block_bytes());
        assert!(Some(packed.len()) == shape.n_words() && shape.k.is_multiple_of(block));
        assert!(out.rows().end <= shape.n, "rows {:?} of {}", out.rows(), shape.n);
        let rows = out.columns();
        let n_chunks = shape.k.div_ceil(CHUNK).max(1);
        let chunk = shape.k.div_ceil(n_chunks).next_multiple_of(block);
        let (side, n_blocks) = (with.rows(), chunk / BLOCK);
        self.panels.refill(PANELS * side * chunk / 2, 0);
        self.factors.refill(PANELS * side * n_blocks, 0.0);
        self.added.refill(PANELS * side * n_blocks * 2, 0.0);
        self.edge.refill(PANEL_TOKENS * MOST_ROWS, 0.0);
        for first in rows.clone().step_by(PANELS * side) {
            let group = first..rows.end.min(first + PANELS * side);
            for from in (0..shape.k).step_by(chunk) {
                let n = chunk.min(shape.k - from);
                let bytes = from / block * block_bytes..(from + n) / block * block_bytes;
                for (i, first) in group.clone().step_by(side / 2).enumerate() {
                    // A lane past the last row has that one again, and nobody reads it.
                    let rows = std::array::from_fn(|j| &row((first + j).min(group.end - 1))[bytes.clone()]);
                    // The second half of a panel begins in its first line as well.
                    let half =
                        |lines: usize| i / 2 * lines * side + i % 2 * side / 2..(i / 2 + 1) * lines * side;
                    let to = Half {
                        values: &mut self.panels[half(n / 2)],
                        factors: &mut self.factors[half(n / BLOCK)],
                        added: &mut self.added[half(2 * n / BLOCK)],
                        side,
                    };
                    // SAFETY: the processor has the instructions, as whoever gave them has asked.
                    unsafe { with.fill(dtype, rows, to) };
                }
                self.group(with, product, &out, &group, (from / BLOCK, n / BLOCK));
            }
        }
    }

    /// Products of the panels at hand, which have these blocks of rows `rows`, columns of the output.
    fn group<R>(
        &mut self,
        with: Instructions,
        product: &Product<'_, R>,
        out: &Output<'_>,
        rows: &Range<usize>,
        (from, n_blocks): (usize, usize),
    ) {
        let &Product { dtype, packed, shape, .. } = product;
        let (side, tokens) = (with.rows(), out.rows());
        for first in tokens.clone().step_by(PANEL_TOKENS) {
            let part = first..tokens.end.min(first + PANEL_TOKENS);
            let x = Tokens::new(packed, shape, part.clone());
            for (i, row) in rows.clone().step_by(side).enumerate() {
                let of = |words: usize| i * words * side..(i + 1) * words * side;
                let panel = Panel {
                    values: &self.panels[of(n_blocks * BLOCK / 2)],
                    factors: &self.factors[of(n_blocks)],
                    added: quants::facts(dtype).adds.then(|| &self.added[of(2 * n_blocks)]),
                };
                let n = side.min(rows.end - row);
                let (to, step) = (out.at(part.start, row), out.step());
                let add = from > 0;
                if n == side {
                    // SAFETY: the output has these rows and columns; the processor has the instructions.
                    unsafe { with.panel(&panel, x, from, add, to, step) };
                    continue;
                }
                let edge = self.edge.as_mut_ptr();
                // SAFETY: rows and columns that are wanted of a whole result go from and to the output.
                unsafe {
                    let wanted = (0..part.len()).map(|t| (to.add(t * step), edge.add(t * side)));
                    if add {
                        wanted.clone().for_each(|(to, edge)| edge.copy_from_nonoverlapping(to, n));
                    }
                    with.panel(&panel, x, from, add, edge, side);
                    wanted.for_each(|(to, edge)| to.copy_from_nonoverlapping(edge, n));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
