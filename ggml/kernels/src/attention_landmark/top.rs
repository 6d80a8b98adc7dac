//! The same attention over a few of the earlier blocks: each query head of each token selects the blocks whose
//! landmarks have the highest scores, and sees them at positions known from training (section 3.3 of the paper; the
//! released code's `llama_mem.py`).
//!
//! A text is cut into pieces of complete blocks. A query sees its own piece unchanged. `n` blocks precede it. If there
//! are more than `top` of them, the newest `top` are scored at their positions, and all others as if they were the
//! block before those, block `n - top - 1`. The landmarks with the highest scores are selected, in the order of the
//! text. The selected block number `r`, from 0, is then shown as block `n - top - 1 + r`, and one further if it is
//! among the newest. So no distance exceeds that of `top + 1` blocks and a piece.
//!
//! In a model's first layer, all landmarks are one token with one embedding, so all that are shown as the same block
//! have the same score. To keep rounding from deciding between them, scores grow slightly with each block, and the
//! newest of equal ones are selected.
//!
//! Keys are cached after rotation by their true positions. A key shown some blocks later is that key rotated by the
//! angle of these blocks; its product with a query is that of the unchanged key with the query rotated back.

use std::ops::Range;

use super::blocks::inner;
use super::forward::Inputs;
use crate::attention::{Rows, Stats};
use crate::attention_train::soften;
use crate::rotate;

/// Added to the score of a landmark for each block before its own, as a part of the largest score that query and key of
/// their lengths could have: more than what rounding to floats does to equal ones.
const NEWER: f32 = 1.0 / 1_048_576.0;

/// How blocks are taken.
#[derive(Clone, Copy)]
pub struct Top<'a> {
    /// Earlier blocks that a query head sees.
    pub top: usize,
    /// Positions of a piece: whole blocks.
    pub piece: usize,
    /// Cosines and then sines of what `0, 1, ...` blocks turn each pair of dimensions by, `[blocks][n_tables][n_rot]`;
    /// for as many blocks as there are positions for. Consecutive groups of KV heads share a table.
    pub turns: &'a [f32],
    /// Dimensions that are rotated; the others are as they are.
    pub n_rot: usize,
    /// Tables, a divisor of the number of KV heads.
    pub n_tables: usize,
    /// True if pairs are `(j, j + n_rot / 2)`, false if they are `(2j, 2j + 1)`.
    pub neox: bool,
}

/// Buffers of a thread for one row.
#[derive(Debug, Default)]
pub struct Scratch {
    /// A query in units that make scores exponents of two, and turned.
    q: Vec<f32>,
    turned: Vec<f32>,
    /// A key or a value.
    row: Vec<f32>,
    /// Scores of landmarks, with the number of their block.
    landmarks: Vec<(f32, usize)>,
    /// The cells that are seen, in order: blocks that were taken, then the query's own piece.
    cells: Vec<i32>,
    scores: Vec<f32>,
    sums: Vec<f32>,
}

impl Top<'_> {
    /// Turns a query back by the angle of so many blocks.
    fn turn_back(&self, head_kv: usize, n_head_kv: usize, blocks: usize, q: &[f32], to: &mut Vec<f32>) {
        to.clear();
        to.extend_from_slice(q);
        if blocks == 0 || self.n_rot == 0 {
            return;
        }
        let table = head_kv * self.n_tables / n_head_kv;
        let angles = &self.turns[(blocks * self.n_tables + table) * self.n_rot..][..self.n_rot];
        let (cos, sin) = angles.split_at(self.n_rot / 2);
        let rotate = if self.neox { rotate::halves } else { rotate::adjacent };
        rotate(&q[..self.n_rot], cos, sin, -1.0, &mut to[..self.n_rot]);
    }
}

impl Scratch {
    /// Computes rows of one KV head; `write` takes head, token, the row's output `[d_v]`, and the logarithm of the sum of
    /// exponentials of its joined scores (-inf where nothing is seen).
    ///
    /// Texts have no borders: of the range of positions that a query sees only the end counts.
    ///
    /// # Panics
    /// For tables, cells and turns that there are not.
    pub fn attend(
        &mut self,
        inputs: &Inputs<'_>,
        top: &Top<'_>,
        head_kv: usize,
        tokens: Range<usize>,
        mut write: impl FnMut(usize, usize, &[f32], f32),
    ) {
        let heads = head_kv * inputs.n_rep..(head_kv + 1) * inputs.n_rep;
        for token in tokens {
            for head in heads.clone() {
                let Stats { max, sum } = self.row(inputs, top, [head_kv, head, token]);
                // A sum of 0 is a row that sees nothing; NaN is not 0 and gets through.
                if sum == 0.0 {
                    write(head, token, &self.sums, f32::NEG_INFINITY);
                    continue;
                }
                self.sums.iter_mut().for_each(|s| *s /= sum);
                write(head, token, &self.sums, max * std::f32::consts::LN_2 + sum.ln());
            }
        }
    }

    /// The weighted values of one query head of one token.
    fn row(&mut self, inputs: &Inputs<'_>, top: &Top<'_>, [head_kv, head, token]: [usize; 3]) -> Stats {
        let Inputs { q, k, v, blocks, scale, n_positions, .. } = *inputs;
        let len = blocks.size();
        let end = inputs.key_ranges.seen(head, token, &(0..n_positions)).end;
        let cells = &inputs.cells[inputs.tables[token] as usize * n_positions..][..n_positions];
        let factor = scale * std::f32::consts::LOG2_E;
        self.q.clear();
        self.q.extend(q.row(head, token).iter().map(|x| x * factor));
        self.sums.clear();
        self.sums.resize(v.d, 0.0);
        self.cells.clear();
        self.scores.clear();
        let mut stats = Stats { max: f32::NEG_INFINITY, sum: 0.0 };
        let Some(last) = end.checked_sub(1) else { return stats };
        let piece = last / top.piece * top.piece;
        let earlier = piece / len;
        self.take(&k, top, [head_kv, earlier, len], cells);
        let border = earlier.saturating_sub(top.top + 1);
        for r in 0..self.landmarks.len() {
            let (_, block) = self.landmarks[r];
            // Where there are no more blocks than are taken, all of them lie where they are.
            let shown = if earlier > top.top { border + r + usize::from(block > border) } else { block };
            top.turn_back(head_kv, k.n1, shown - block, &self.q, &mut self.turned);
            self.score(&k, head_kv, &cells[block * len..(block + 1) * len]);
        }
        self.turned.clear();
        self.turned.extend_from_slice(&self.q);
        self.score(&k, head_kv, &cells[piece..end]);
        let n = self.scores.len();
        blocks.join(&mut self.scores, 0, 0..n, n);
        soften(&mut self.scores, 0..n, &mut stats, &mut self.sums);
        self.row.resize(v.d, 0.0);
        for (&cell, &weight) in self.cells.iter().zip(&self.scores) {
            if weight != 0.0 {
                v.read(head_kv, cell as usize, &mut self.row);
                self.sums.iter_mut().zip(&self.row).for_each(|(sum, x)| *sum += weight * x);
            }
        }
        stats
    }

    /// Finds the blocks that the query takes of the `earlier` ones, ascending.
    fn take(&mut self, k: &Rows<'_>, top: &Top<'_>, [head_kv, earlier, len]: [usize; 3], cells: &[i32]) {
        self.landmarks.clear();
        let border = earlier.saturating_sub(top.top + 1);
        self.row.resize(k.d, 0.0);
        let length = inner(&self.q, &self.q).sqrt();
        for block in 0..earlier {
            let mut score = 0.0;
            if earlier > top.top {
                k.read(head_kv, cells[(block + 1) * len - 1] as usize, &mut self.row);
                let later = border.saturating_sub(block);
                top.turn_back(head_kv, k.n1, later, &self.q, &mut self.turned);
                let newer = NEWER * length * inner(&self.row, &self.row).sqrt();
                score = inner(&self.turned, &self.row) + newer * block as f32;
            }
            self.landmarks.push((score, block));
        }
        if earlier > top.top {
            self.landmarks.sort_by(|a, b| b.0.total_cmp(&a.0));
            self.landmarks.truncate(top.top);
            self.landmarks.sort_unstable_by_key(|l| l.1);
        }
    }

    /// Appends the scores of the turned query over the keys in these cells.
    fn score(&mut self, k: &Rows<'_>, head_kv: usize, cells: &[i32]) {
        self.row.resize(k.d, 0.0);
        for &cell in cells {
            k.read(head_kv, cell as usize, &mut self.row);
            self.scores.push(inner(&self.turned, &self.row));
            self.cells.push(cell);
        }
    }
}
