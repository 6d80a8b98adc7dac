//! `ntk`: NTK-aware scaling of the base.

use super::value::approx;
use super::{Args, Axis, Geometry, LayerPlan, Method, Param, RopeError};

/// Base b * s^(d/(d-2)): the fastest pair is kept, the slowest interpolated s times. Recomputed from the
/// base; `rope_freqs` factors stay divided in.
pub(super) static METHOD: Method = Method {
    name: "ntk",
    about: "NTK-aware: a larger base, which interpolates the slowest pair by factor",
    axis: Axis::Frequency,
    params: &[Param::FACTOR, Param::ORIGINAL],
    apply,
};

fn apply(geo: &Geometry<'_>, args: &mut Args<'_>, plan: &mut LayerPlan) -> Result<(), RopeError> {
    let base = geo.ntk_base(args.factor(geo)?)?;
    plan.freqs.theta = geo.table(base)?;
    args.note(format!("base {}.", approx(base)));
    Ok(())
}
