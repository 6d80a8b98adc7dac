//! `abf`: Adjusted Base Frequency.

use super::method::MAX_BASE;
use super::value::approx;
use super::{Args, Axis, Geometry, LayerPlan, Method, Param, RopeError};

/// A new base, usually followed by fine-tuning (Xiong et al. 2023, arXiv:2309.16039). `rope_freqs` factors
/// stay divided in.
///
/// The default base is b * s^(ln 500 / ln 32): the power law through the single-stage ABF baseline of the
/// HARPE paper (section 4.1: 1e4 to 5e6 for 4096 to 131072 tokens). At 8 times the window it gives 42 times
/// the base, where Xiong et al. took 50. For a base of 1e4 it comes to 4.16e5 at 8 times and 1.44e6 at 16
/// times, while the multi-stage baseline of the HARPE paper takes 1e6 and 2e6 there: give the bases of stages
/// with `base`.
pub(super) static METHOD: Method = Method {
    name: "abf",
    about: "Adjusted Base Frequency: another base for all pairs",
    axis: Axis::Frequency,
    params: &[
        param! { "base", Number(1.0 + 1e-6, MAX_BASE), "freq_base * factor^(ln 500 / ln 32)", "",
            "the new base"
        },
        Param::FACTOR,
        Param::ORIGINAL,
    ],
    apply,
};

fn apply(geo: &Geometry<'_>, args: &mut Args<'_>, plan: &mut LayerPlan) -> Result<(), RopeError> {
    let base = if args.is_given("base") {
        args.number("base", || geo.freq_base)?
    } else {
        let s = args.factor(geo)?;
        args.absorb("factor");
        args.number("base", || geo.scaled_base(500.0, s))?
    };
    plan.freqs.theta = geo.table(base)?;
    args.note(format!("base {}, {} times the model's.", approx(base), approx(base / geo.freq_base)));
    Ok(())
}
