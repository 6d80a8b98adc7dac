//! `rerope`: distances up to a window, and beyond it that one, or steps of less than a position (Su 2023).

use super::method::MAX_CTX;
use super::reach::{Branch, PosMap, Reach};
use super::{Args, Axis, Geometry, LayerPlan, Method, Param, RopeError};

/// ReRoPE: min(d, w). Leaky ReRoPE: distances d below w as they are; beyond, w + (d - w)/k; one softmax over both.
///
/// Source: the author's code, bojone/rerope (kexue.fm/archives/9708), `window` and `scaling_factor`: far keys are
/// not rotated and the query stands at position w, or, with a leak, the query stands at (i + w(k-1))/k and keys at
/// j/k, which are fractions. Self-Extend with W = w and G = k shows the same distances rounded to whole ones. The
/// code also multiplies queries by max(1, ln(i+1) / ln L), which `temperature=logn` gives; its window is 512 at L =
/// 4096, and its README measures 1024.
pub(super) static METHOD: Method = Method {
    name: "rerope",
    about:
        "ReRoPE: caps distances at window; Leaky ReRoPE: grows them by 1/leak per token above it; needs no \
            training",
    axis: Axis::Reach,
    params: &[
        param! { "window", Count(1, 1 << 30), "original / 8", "tokens",
            "distances below it do not change"
        },
        param! { "leak", Count(1, 1 << 20), "none: every far key at distance window", "tokens",
            "far tokens to one step of distance"
        },
        Param::ORIGINAL,
    ],
    apply,
};

fn apply(geo: &Geometry<'_>, args: &mut Args<'_>, plan: &mut LayerPlan) -> Result<(), RopeError> {
    let (l, n) = (geo.n_ctx_orig as u64, geo.n_ctx as u64);
    let w = args.count("window", || (l / 8).max(1))?;
    let leak = args.is_given("leak").then(|| args.count("leak", || 1)).transpose()?;
    let longest = leak.map_or(w, |k| w + n.saturating_sub(1).saturating_sub(w).div_ceil(k));
    if longest >= l {
        args.note(format!("distances go up to {longest}; the largest trained distance is {}.", l - 1));
    }
    let far = Reach { dist_min: w as i32, ..Reach::CAUSAL };
    let far = match leak {
        None => Branch { q_pos: PosMap::constant(w as i32), k_pos: PosMap::constant(0), reach: far },
        Some(k) => {
            // Counted in parts of a position, of which the last query has this many.
            let add = w * (k - 1);
            if n - 1 + add > MAX_CTX {
                let expected = format_args!("window x (leak - 1) + context up to {MAX_CTX}");
                return Err(args.refuse("leak", expected, format_args!("{w} x {} + {n}", k - 1)));
            }
            let k_pos = PosMap { unit: k as i32, ..PosMap::IDENTITY };
            Branch { q_pos: PosMap { add: add as i32, ..k_pos }, k_pos, reach: far }
        }
    };
    plan.branches =
        vec![Branch { reach: Reach { dist_end: w as i32, ..Reach::CAUSAL }, ..Branch::PLAIN }, far];
    Ok(())
}
