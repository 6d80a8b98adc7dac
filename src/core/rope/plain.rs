//! `plain`: the frequencies of the model's base, without any scaling.

use super::{Args, Axis, Geometry, LayerPlan, Method, Param, RopeError};

/// theta_j = b^(-2j/d) / f_j, with b the file's `rope.freq_base` and f its `rope_freqs.weight` (Llama 3), 1
/// when it has none. A scaling that the file declares is left out; [`Spec::DECLARED`](super::Spec::DECLARED) names the
/// model with it.
pub(super) static METHOD: Method = Method {
    name: "plain",
    about: "no scaling: the frequencies of the model's base (`declared` keeps the file's scaling)",
    axis: Axis::Frequency,
    params: &[Param::ORIGINAL],
    apply,
};

fn apply(geo: &Geometry<'_>, args: &mut Args<'_>, plan: &mut LayerPlan) -> Result<(), RopeError> {
    if !args.is_given("original") {
        args.absorb("original");
    }
    plan.freqs.theta = geo.table(geo.freq_base)?;
    if geo.n_ctx > geo.n_ctx_orig {
        args.note(format!(
            "the context of {} tokens is longer than the original context of {}.",
            geo.n_ctx, geo.n_ctx_orig
        ));
    }
    Ok(())
}
