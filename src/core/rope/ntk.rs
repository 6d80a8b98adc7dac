//! `ntk`: NTK-aware scaling of the base.

use super::value::approx;
use super::{Args, Axis, Geometry, LayerPlan, Method, Param, RopeError};

/// Base b * s^(d/(d-2)): the fastest pair is kept, the slowest interpolated s times. Recomputed from the base; `rope_freqs` factors stay divided in.
pub(super) struct Ntk;

impl Method for Ntk {
    fn name(&self) -> &'static str {
        "ntk"
    }
    fn about(&self) -> &'static str {
        "NTK-aware: a larger base that interpolates the slowest pair factor times"
    }
    fn axis(&self) -> Axis {
        Axis::Frequency
    }
    fn params(&self) -> &'static [Param] {
        &[Param::FACTOR, Param::ORIGINAL]
    }
    fn apply(&self, geo: &Geometry<'_>, args: &mut Args<'_>, plan: &mut LayerPlan) -> Result<(), RopeError> {
        let base = geo.ntk_base(args.factor(geo)?)?;
        plan.freqs.theta = geo.table(base)?;
        args.note(format!("ntk: base {}.", approx(base)));
        Ok(())
    }
}
