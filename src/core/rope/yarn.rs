//! `yarn`: NTK by parts with attention scaling.

use std::f64::consts::PI;

use super::{Args, Axis, Geometry, Kind, LayerPlan, Method, Param, RopeError};

const fn beta(key: &'static str, default: &'static str, about: &'static str) -> Param {
    Param { key, kind: Kind::Number(1e-3, 1e6), default, unit: "turns", about }
}

/// YaRN (Peng et al. 2023, arXiv:2309.00071) as jquesnelle/yarn and ggml compute it.
///
/// Pair j goes from theta_j/s to theta_j by the mask `(1 - ramp(j)) * ext`, the ramp running between the
/// pairs that turn `beta-fast` and `beta-slow` times in the trained window, floored and ceiled; both bounds
/// are clamped in units of d, not d/2, as in both codes. Magnitude 0.1 ln s + 1 on q and on k. With
/// `ext-factor=0` ggml leaves the magnitude alone, and so does this. `rope_freqs` factors stay divided in, as
/// ggml divides the angle before mixing.
///
/// Models whose weights were trained under another magnitude say so by `log-multiplier`, m (`mscale_all_dim` of
/// transformers, `rope.scaling.yarn_log_multiplier` of GGUF files): it is divided by 0.1 m ln s + 1, so m = 1 leaves
/// none. It belongs to the weights, so a spec that does not give it takes the file's.
///
/// The papers print another form: YaRN's own and LCEG's equations 10 and 11 let the ramp run over the
/// frequency of a pair, and LCEG's divide the frequencies by sqrt(T), where T is the attention temperature.
/// Every published code lets it run over the index of the pair and scales q and k instead; the code is
/// followed.
pub(super) static METHOD: Method = Method {
    name: "yarn",
    about: "YaRN: keeps fast pairs, interpolates slow ones, and scales attention",
    axis: Axis::Frequency,
    params: &[
        Param::FACTOR,
        beta("beta-fast", "32", "pairs that turn more often in the original context are kept"),
        beta("beta-slow", "1", "pairs that turn less often in the original context are interpolated"),
        param! { "ext-factor", Number(0.0, 1.0), "1", "",
            "how much of the ramp is applied; 0 is Position Interpolation"
        },
        param! { "attn-factor", Number(1e-6, 1e6), "1", "",
            "multiplies the magnitude 0.1 ln(factor) + 1"
        },
        param! { "log-multiplier", Number(0.0, 1e6),
            "the file's yarn_log_multiplier, else 0", "",
            "m; the magnitude is divided by 0.1 m ln(factor) + 1"
        },
        Param::ORIGINAL,
    ],
    apply,
};

fn apply(geo: &Geometry<'_>, args: &mut Args<'_>, plan: &mut LayerPlan) -> Result<(), RopeError> {
    let s = args.factor(geo)?;
    let fast = args.number("beta-fast", || 32.0)?;
    let slow = args.number("beta-slow", || 1.0)?;
    let ext = args.number("ext-factor", || 1.0)?;
    let attn = args.number("attn-factor", || 1.0)?;
    if fast < slow {
        return Err(args.refuse("beta-fast", format_args!("at least beta-slow = {slow}"), fast));
    }
    let d = geo.n_rot as f64;
    let corr_dim =
        |turns: f64| d * (geo.n_ctx_orig as f64 / (turns * 2.0 * PI)).ln() / (2.0 * geo.freq_base.ln());
    let low = corr_dim(fast).floor().max(0.0);
    let high = corr_dim(slow).ceil().min(d - 1.0);
    plan.freqs.theta = geo
        .table(geo.freq_base)?
        .iter()
        .enumerate()
        .map(|(j, theta)| {
            let ramp = ((j as f64 - low) / (high - low).max(1e-3)).clamp(0.0, 1.0);
            let mask = (1.0 - ramp) * ext;
            theta / s * (1.0 - mask) + theta * mask
        })
        .collect();
    // Not named in plans for the many models without it.
    let own = geo.scaling.and_then(|scaling| scaling.yarn_log_mul);
    let multiplier = match args.is_given("log-multiplier") || own.is_some() {
        true => args.number("log-multiplier", || own.unwrap_or(0.0))?,
        false => 0.0,
    };
    let magnitude = |m: f64| 0.1 * m * s.ln() + 1.0;
    plan.mscale *= if ext == 0.0 { attn } else { magnitude(1.0) / magnitude(multiplier) * attn };
    Ok(())
}
