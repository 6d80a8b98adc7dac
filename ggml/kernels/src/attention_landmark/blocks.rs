//! The places of landmarks, and the row of scores that results from them.

use std::ops::Range;

use crate::attention::exp2;
use crate::attention_train::{largest, Row, KEYS, LANES};

/// Most positions of a block: a tile of keys holds whole blocks.
pub const MAX_BLOCK: usize = KEYS;

/// Blocks of so many positions, from position 0 on; the last position of each is its landmark.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Blocks {
    len: usize,
}

/// The keys of one block that a query sees, as columns of a row of scores.
struct Part {
    /// Keys that are not landmarks.
    ordinary: Range<usize>,
    /// That of the landmark, if it is there.
    landmark: Option<usize>,
    /// True if it is the query's own block.
    own: bool,
}

impl Blocks {
    /// Blocks of `len` positions, landmark included; `None` if that is not 2 to [`MAX_BLOCK`].
    pub fn new(len: usize) -> Option<Blocks> {
        (2..=MAX_BLOCK).contains(&len).then_some(Blocks { len })
    }

    /// Positions of a block, landmark included.
    pub fn size(&self) -> usize {
        self.len
    }

    /// The parts of a row whose columns are the positions from `start` on, of which the query at `end - 1` sees
    /// `seen`. The row begins at a tile's border, or where nothing before is seen, and ends likewise.
    fn parts(&self, start: usize, seen: Range<usize>, end: usize) -> impl Iterator<Item = Part> {
        let (len, own) = (self.len, end.saturating_sub(1) / self.len);
        let blocks = seen.start / len..seen.end.div_ceil(len);
        let of_block = move |block: usize| {
            let landmark = (block + 1) * len - 1;
            let (from, to) = (seen.start.max(block * len), seen.end.min(landmark));
            Part {
                ordinary: from - start..to.max(from) - start,
                landmark: seen.contains(&landmark).then(|| landmark - start),
                own: block == own,
            }
        };
        blocks.map(of_block)
    }

    /// Makes the scores of a row, exponents of two, those of one softmax over all keys: see the
    /// [module](super). Columns are positions from `start` on; the query at `end - 1` sees `seen`, not empty.
    pub(super) fn join(&self, row: &mut [f32], start: usize, seen: Range<usize>, end: usize) {
        for Part { ordinary, landmark, own } in self.parts(start, seen, end) {
            let Some(landmark) = landmark else { continue };
            let of_block = std::mem::replace(&mut row[landmark], f32::NEG_INFINITY);
            // The landmark of a block of which nothing else is seen stands for nothing.
            if !own && !ordinary.is_empty() {
                let keys = &mut row[ordinary];
                let shift = of_block - log_sum(keys);
                keys.iter_mut().for_each(|s| *s += shift);
            }
        }
    }
}

impl Row for Blocks {
    /// Whole blocks.
    fn tile(&self) -> usize {
        KEYS / self.len * self.len
    }

    fn differentiate(
        &self,
        [scores, grads]: [&mut [f32]; 2],
        start: usize,
        seen: Range<usize>,
        end: usize,
        [lse, dot]: [f32; 2],
    ) {
        for Part { ordinary, landmark, own } in self.parts(start, seen, end) {
            let p = &mut scores[ordinary.clone()];
            // A block that is closed divides the weight of its landmark among its keys.
            let closed = !own && !p.is_empty();
            let sum = if closed { log_sum(p) } else { lse };
            p.iter_mut().for_each(|p| *p = exp2(*p - sum));
            let (mut weight, mut mean) = (1.0, dot);
            if let Some(landmark) = landmark {
                let score = std::mem::replace(&mut scores[landmark], 0.0);
                grads[landmark] = 0.0;
                if closed {
                    let (p, g) = (&scores[ordinary.clone()], &grads[ordinary.clone()]);
                    (weight, mean) = (exp2(score - lse), inner(p, g));
                    grads[landmark] = weight * (mean - dot);
                }
            }
            for (p, g) in scores[ordinary.clone()].iter_mut().zip(&mut grads[ordinary]) {
                *p *= weight;
                *g = *p * (*g - mean);
            }
        }
    }
}

/// The logarithm, base 2, of the sum of powers of two.
fn log_sum(x: &[f32]) -> f32 {
    let max = largest(x);
    let mut sum = [0.0; LANES];
    let (whole, rest) = x.as_chunks::<LANES>();
    for x in whole {
        sum.iter_mut().zip(x).for_each(|(s, x)| *s += exp2(x - max));
    }
    let rest = rest.iter().map(|x| exp2(x - max));
    max + sum.into_iter().chain(rest).sum::<f32>().log2()
}

/// In lanes, which the compiler makes vectors of.
#[inline]
pub(super) fn inner(a: &[f32], b: &[f32]) -> f32 {
    let mut sum = [0.0; LANES];
    let ((a, a_rest), (b, b_rest)) = (a.as_chunks::<LANES>(), b.as_chunks::<LANES>());
    for (a, b) in a.iter().zip(b) {
        sum.iter_mut().zip(a.iter().zip(b)).for_each(|(s, (a, b))| *s += a * b);
    }
    sum.into_iter().chain(a_rest.iter().zip(b_rest).map(|(a, b)| a * b)).sum()
}
