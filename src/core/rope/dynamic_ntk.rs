//! `dynamic-ntk`: NTK-aware scaling by the length at hand, fixed when a session opens.

use super::value::approx;
use super::{Args, Axis, Geometry, Kind, LayerPlan, Method, Param, RopeError};

/// Base b * t^(d/(d-2)) with t = s*l/L - (s-1), l = the session's length if above L, else L.
///
/// The published code recomputes t as text grows, which rotates cached keys under another base than the query. Here l is the context a session
/// was opened for, so the base never moves.
///
/// In the controlled study (LCEG) tables and code disagree: its NTK-64K is listed with t = 57, while its code floors l at 65536 and gets 121; its
/// NTK-32K runs with t = 29 at every length up to 32768. Hence `t` can be given outright, and the value in force is noted.
pub(super) struct DynamicNtk;

impl Method for DynamicNtk {
    fn name(&self) -> &'static str {
        "dynamic-ntk"
    }
    fn about(&self) -> &'static str {
        "NTK-aware with the base set by the session's length, fixed when it opens"
    }
    fn axis(&self) -> Axis {
        Axis::Frequency
    }
    fn params(&self) -> &'static [Param] {
        &[
            Param::FACTOR,
            Param {
                key: "t",
                kind: Kind::Number { min: 1.0, max: 1e13 },
                default: "factor * max(context, original) / original - (factor - 1)",
                unit: "",
                about: "scale of the base, instead of the one that factor and context give",
            },
            Param::ORIGINAL,
        ]
    }
    fn apply(&self, geo: &Geometry<'_>, args: &mut Args<'_>, plan: &mut LayerPlan) -> Result<(), RopeError> {
        let t = if args.is_given("t") {
            args.number("t", || 1.0)?
        } else {
            let s = args.factor(geo)?;
            let l = geo.n_ctx.max(geo.n_ctx_orig) as f64;
            args.absorb("factor");
            args.number("t", || s * l / geo.n_ctx_orig as f64 - (s - 1.0))?
        };
        let base = geo.ntk_base(t)?;
        plan.freqs.theta = geo.table(base)?;
        args.note(format!("dynamic-ntk: t = {}, base {}, fixed for the session.", approx(t), approx(base)));
        Ok(())
    }
}
