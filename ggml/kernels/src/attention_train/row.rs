//! The parts of the backward pass that differ by kind of attention: weights of a row of scores, and their gradients.

use std::f32::consts::LOG2_E;
use std::ops::Range;

use super::KEYS;
use crate::attention::{exp2, tanh};

pub trait Row: Send + Sync + 'static {
    /// Keys of a tile.
    fn tile(&self) -> usize;

    /// Turns the scores of a row, exponents of two, and the gradients of its weights into the weights and the gradients of
    /// the scores (in natural units). Columns are keys from `start` on; the query sees `seen` of them, not empty, and none
    /// from `end` on. `lse` is the row's log-sum-exp, base 2, and `dot` the sum of weights times their gradients. Nothing
    /// is read or written outside `seen`.
    fn differentiate(
        &self,
        scores_and_grads: [&mut [f32]; 2],
        start: usize,
        seen: Range<usize>,
        end: usize,
        lse_and_dot: [f32; 2],
    );
}

/// One softmax over all keys.
#[derive(Debug)]
pub struct Plain {
    /// Scores `s` become `softcap * tanh(s / softcap)`.
    pub softcap: Option<f32>,
}

impl Row for Plain {
    fn tile(&self) -> usize {
        KEYS
    }

    fn differentiate(
        &self,
        [p, ds]: [&mut [f32]; 2],
        start: usize,
        seen: Range<usize>,
        _: usize,
        [lse, dot]: [f32; 2],
    ) {
        let seen = seen.start - start..seen.end - start;
        let pairs = p[seen.clone()].iter_mut().zip(&mut ds[seen]);
        if let Some(cap) = self.softcap {
            let cap = cap * LOG2_E;
            for (p, ds) in pairs {
                let part = tanh(*p / cap);
                *p = exp2(cap * part - lse);
                *ds = *p * (*ds - dot) * (1.0 - part * part);
            }
        } else {
            for (p, ds) in pairs {
                *p = exp2(*p - lse);
                *ds = *p * (*ds - dot);
            }
        }
    }
}
