//! `dynamic-ntk`: NTK-aware scaling by the length at hand, fixed when a session opens.

use super::method::MAX_CTX;
use super::value::approx;
use super::{Args, Axis, Geometry, LayerPlan, Method, Param, RopeError};

/// Base b * t^(d/(d-2)) with t = s*l/L - (s-1) and l = max(context, trained, L).
///
/// The published code recomputes t as text grows, which rotates cached keys under another base than the
/// query. Here l counts the context a session was opened for, so the base never moves while it is open.
///
/// `trained` is the length C' a model was fine-tuned at under this method (the controlled study, LCEG,
/// arXiv:2409.12181, appendix 9.2). Up to that length it keeps the base it was trained with, and beyond it
/// the base grows. The paper's s is then C'/(2L); its code rounds that up to a whole number, and the code is
/// followed. The resolved spec keeps `factor` and `trained` in place of t, so that one spec, and an adapter
/// trained under it, has the right base at every length: t = 29, 29, 29, 29, 61 at 4k, 8k, 16k, 32k, 64k for
/// `trained=32768` and L = 4096. Without `trained` the resolved spec states t itself.
///
/// Tables and code of the study disagree on its NTK-64K: t = 57 in the tables, while the formula gives 121.
/// Hence `t` can be given outright, and the value in force is noted.
pub(super) static METHOD: Method = Method {
    name: "dynamic-ntk",
    about: "NTK-aware, with the base computed from the context size when the session opens",
    axis: Axis::Frequency,
    params: &[
        Param::FACTOR,
        param! { "t", Number(1.0, 1e13),
            "factor * max(context, trained, original) / original - (factor - 1)", "",
            "NTK factor of the base, instead of the one from factor and context"
        },
        param! { "trained", Count(1, MAX_CTX),
            "none; given, factor is trained / (2 * original), rounded up", "tokens",
            "context of fine-tuning with this method; the base does not change up to it"
        },
        Param::ORIGINAL,
    ],
    apply,
};

fn apply(geo: &Geometry<'_>, args: &mut Args<'_>, plan: &mut LayerPlan) -> Result<(), RopeError> {
    let original = geo.n_ctx_orig as f64;
    let scale = |s: f64, length: usize| s * length.max(geo.n_ctx_orig) as f64 / original - (s - 1.0);
    let t = if args.is_given("t") {
        args.number("t", || 1.0)?
    } else if args.is_given("trained") {
        let trained = args.count("trained", || geo.n_ctx_orig as u64)? as usize;
        let s = args.number("factor", || (trained as f64 / (2.0 * original)).ceil())?;
        let t = args.number("t", || scale(s, geo.n_ctx.max(trained)))?;
        args.absorb("t");
        t
    } else {
        let s = args.factor(geo)?;
        args.absorb("factor");
        args.number("t", || scale(s, geo.n_ctx))?
    };
    let base = geo.ntk_base(t)?;
    plan.freqs.theta = geo.table(base)?;
    args.note(format!("t = {}, base {}, fixed for the session.", approx(t), approx(base)));
    Ok(())
}
