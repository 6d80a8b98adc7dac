//! `longrope`: searched factors for each pair, which come with the file or are given.

use super::{Args, Axis, Geometry, LayerPlan, Method, Param, RopeError, Value};
use crate::remedy::Remedy;

/// Factors that may be given: 1e9 is for a pair that hardly turns at any length.
const FACTORS: (f64, f64) = (1e-3, 1e9);

/// theta_j / lambda_j (Ding et al. 2024, arXiv:2402.13753) with lambda from `rope_factors_long.weight` or
/// `rope_factors_short.weight`, or as given: `factors=1/1.02/...`, one for each pair, as `ropewalk advise --search` finds them.
///
/// These stand in place of `rope_freqs.weight`, not on top of it. `factors=auto` takes the long ones when the
/// target context is above the trained window, once for the session, as llama.cpp does by the allocated
/// context (the original code decides by the length of each prompt). Magnitude: the file's
/// `scaling.attn_factor`, else sqrt(1 + ln s / ln L), with either set of factors, as the published model code
/// has it. The s in it belongs to the trained factors, so it is the file's context_length over its original
/// one when it declares both.
pub(super) static METHOD: Method = Method {
    name: "longrope",
    about: "LongRoPE: one searched factor per pair, from the file or the spec",
    axis: Axis::Frequency,
    params: &[
        param! { "factors",
            ChoiceOrList(&["auto", "long", "short"], FACTORS.0, FACTORS.1),
            "auto: long when the context is above original", "",
            "the factor tensor of the file, or one factor per pair"
        },
        Param { default: "the file's context_length / original, else context / original", ..Param::FACTOR },
        param! { "attn-factor", Number(1e-6, 1e6),
            "the file's attn_factor, else sqrt(1 + ln factor / ln original)", "",
            "magnitude of rotated q and k"
        },
        Param::ORIGINAL,
    ],
    apply,
};

fn apply(geo: &Geometry<'_>, args: &mut Args<'_>, plan: &mut LayerPlan) -> Result<(), RopeError> {
    let factors = match args.value("factors", || Value::Word("auto".into()))? {
        Value::List(factors) => {
            let n = geo.n_pairs();
            if factors.len() != n {
                let expected = format_args!("{n} factors, one for each pair");
                return Err(args.refuse("factors", expected, factors.len()));
            }
            factors
        }
        word => of_file(&word.to_string(), geo, args)?,
    };
    plan.freqs.theta = geo.powers(geo.freq_base)?.iter().zip(&factors).map(|(t, f)| t / f).collect();
    let attn_factor = geo.scaling.and_then(|s| s.attn_factor);
    plan.mscale *= if args.is_given("attn-factor") || attn_factor.is_some() {
        args.number("attn-factor", || attn_factor.unwrap_or(1.0))?
    } else {
        let l = geo.n_ctx_orig as f64;
        let trained = geo.n_ctx_train.max(geo.n_ctx_orig) as f64 / l;
        let derived = if trained > 1.0 { trained } else { (geo.n_ctx as f64 / l).max(1.0) };
        let s = args.number("factor", || derived)?;
        args.absorb("factor");
        args.number("attn-factor", || if s > 1.0 { (1.0 + s.ln() / l.ln()).sqrt() } else { 1.0 })?
    };
    Ok(())
}

fn of_file(word: &str, geo: &Geometry<'_>, args: &mut Args<'_>) -> Result<Vec<f64>, RopeError> {
    let mut which = word;
    if which == "auto" {
        which = if geo.n_ctx > geo.n_ctx_orig { "long" } else { "short" };
        args.note(format!(
            "{which} factors for a context of {} tokens (original context {}).",
            geo.n_ctx, geo.n_ctx_orig
        ));
    }
    args.resolve("factors", Value::Word(which.into()));
    let (tensor, factors) = match which {
        "long" => ("rope_factors_long.weight", geo.scaling.and_then(|s| s.long_factors.as_ref())),
        _ => ("rope_factors_short.weight", geo.scaling.and_then(|s| s.short_factors.as_ref())),
    };
    let Some(factors) = factors else {
        let what = format!(
            "rope method longrope: expected the tensor {tensor} in the file, found none; set factors=.. to the \
             result of a search"
        );
        return Err(RopeError { remedy: Some(Remedy::Search), ..RopeError::new(what) });
    };
    geo.check_factors(tensor, factors)?;
    Ok(factors.iter().map(|f| f64::from(*f)).collect())
}
