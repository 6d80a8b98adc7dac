//! `plain`: the frequencies the file was trained with.

use super::{Args, Axis, Geometry, LayerPlan, Method, Param, RopeError};

/// theta_j = b^(-2j/d) / f_j, with b the file's `rope.freq_base` and f its `rope_freqs.weight` (Llama 3), 1 when it has none.
pub(super) struct Plain;

/// Also the name of the default spec.
pub(super) const NAME: &str = "plain";

impl Method for Plain {
    fn name(&self) -> &'static str {
        NAME
    }
    fn about(&self) -> &'static str {
        "the model's own frequencies, nothing changed"
    }
    fn axis(&self) -> Axis {
        Axis::Frequency
    }
    fn params(&self) -> &'static [Param] {
        &[Param::ORIGINAL]
    }
    fn apply(&self, geo: &Geometry<'_>, args: &mut Args<'_>, plan: &mut LayerPlan) -> Result<(), RopeError> {
        if !args.is_given("original") {
            args.absorb("original");
        }
        plan.freqs.theta = geo.table(geo.freq_base)?;
        if geo.n_ctx > geo.n_ctx_orig {
            args.note(format!(
                "plain: the context of {} tokens is longer than the trained window of {}.",
                geo.n_ctx, geo.n_ctx_orig
            ));
        }
        Ok(())
    }
}
