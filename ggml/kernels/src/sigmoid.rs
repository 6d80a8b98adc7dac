//! The logistic function.

use std::f32::consts::LOG2_E;

use crate::attention::exp2;

/// `1 / (1 + exp(-x))`, within a few units in the last place.
#[inline(always)]
pub fn sigmoid(x: f32) -> f32 {
    let z = exp2(-x.abs() * LOG2_E);
    let near = if x < 0.0 { z } else { 1.0 };
    near / (1.0 + z)
}
