//! `pi`: Position Interpolation.

use super::{Args, Axis, Geometry, LayerPlan, Method, Param, RopeError};

/// theta_j / s: every position counts as 1/s (Chen et al. 2023, arXiv:2306.15595). Acts on the file's table, `rope_freqs` included, as ggml's `freq_scale` does.
pub(super) struct Pi;

impl Method for Pi {
    fn name(&self) -> &'static str {
        "pi"
    }
    fn about(&self) -> &'static str {
        "Position Interpolation: every frequency divided by factor"
    }
    fn axis(&self) -> Axis {
        Axis::Frequency
    }
    fn params(&self) -> &'static [Param] {
        &[Param::FACTOR, Param::ORIGINAL]
    }
    fn apply(&self, geo: &Geometry<'_>, args: &mut Args<'_>, plan: &mut LayerPlan) -> Result<(), RopeError> {
        let s = args.factor(geo)?;
        plan.freqs.theta = geo.table(geo.freq_base)?.iter().map(|t| t / s).collect();
        Ok(())
    }
}
