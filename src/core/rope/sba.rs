//! `sba`: Segmented Base Adjustment.

use std::f64::consts::TAU;

use super::value::approx;
use super::{Args, Axis, Geometry, LayerPlan, Method, Param, RopeError};

/// SBA-RoPE, equations 7-12, with d the rotary dimension.
///
/// dim* is the first pair that does not turn once within the trained window: (L-1) theta_j < 2 pi. Pairs
/// before it keep the base, the rest take base* = b ((L'-1)/(L-1))^(d/(2 dim*)), with L' = factor * L, so
/// that pair dim* reaches at L'-1 the angle it had at L-1. `rope_freqs` factors stay divided in, and dim* is
/// found on the angles so divided: they are what the model was trained with. Equation 12 switches at dim*,
/// the text above it after dim*; the equation holds.
pub(super) static METHOD: Method = Method {
    name: "sba",
    about: "SBA-RoPE: a larger base for pairs that did not complete a rotation in training",
    axis: Axis::Frequency,
    params: &[Param::FACTOR, Param::ORIGINAL],
    apply,
};

fn apply(geo: &Geometry<'_>, args: &mut Args<'_>, plan: &mut LayerPlan) -> Result<(), RopeError> {
    let factor = args.factor(geo)?;
    let (l, target) = (geo.n_ctx_orig as f64, factor * geo.n_ctx_orig as f64);
    let mut theta = geo.table(geo.freq_base)?;
    match theta.iter().position(|t| (l - 1.0) * t < TAU) {
        None => args.note(format!(
            "every pair turns at least once within the original context of {l} tokens, so nothing changes."
        )),
        Some(0) => {
            let expected = "an original context in which the first pair turns at least once";
            return Err(args.refuse("original", expected, format_args!("{l} tokens")));
        }
        Some(dim) => {
            let base =
                geo.freq_base * ((target - 1.0) / (l - 1.0)).powf(geo.n_rot as f64 / (2.0 * dim as f64));
            theta[dim..].copy_from_slice(&geo.table(base)?[dim..]);
            args.note(format!("base {} from pair {dim} on.", approx(base)));
        }
    }
    plan.freqs.theta = theta;
    Ok(())
}
