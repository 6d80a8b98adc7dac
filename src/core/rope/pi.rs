//! `pi`: Position Interpolation.

use super::{Args, Axis, Geometry, LayerPlan, Method, Param, RopeError};

/// theta_j / s: every position counts as 1/s (Chen et al. 2023, arXiv:2306.15595). Acts on the file's table,
/// `rope_freqs` included, as ggml's `freq_scale` does.
pub(super) static METHOD: Method = Method {
    name: "pi",
    about: "Position Interpolation: divides every frequency by factor",
    axis: Axis::Frequency,
    params: &[Param::FACTOR, Param::ORIGINAL],
    apply,
};

fn apply(geo: &Geometry<'_>, args: &mut Args<'_>, plan: &mut LayerPlan) -> Result<(), RopeError> {
    let s = args.factor(geo)?;
    plan.freqs.theta = geo.table(geo.freq_base)?.iter().map(|t| t / s).collect();
    Ok(())
}
