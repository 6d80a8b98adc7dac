//! `string`: large distances, which training showed too rarely, overwritten by smaller ones (An et al. 2024).

use super::reach::{Branch, PosMap, Reach};
use super::{Args, Axis, Geometry, LayerPlan, Method, Param, RopeError};

/// Distances d below S as they are; beyond, d - S + W; one softmax over both (arXiv:2410.18745, section 4).
///
/// It is made for contexts within the trained window: of its distances the largest S - W are never shown.
/// Source: the authors' code, `replace_with_string(max_test_length, shifted_offset, small_local_value)`. Its
/// prefill gives keys at distance S twice, once at S and once at W, its decoding once, at W; that and the
/// paper's formula are followed. Both codes differ from the paper in multiplying rotated queries and keys by
/// 0.1 ln 2 + 1, the way YaRN does at 2 times: `mscale` gives it, 1 by default. S is L/3 in the paper, 0.33 L in the code, which
/// also says that 0.25 L to 0.4 L, and W of 128 to 512, are reasonable.
pub(super) static METHOD: Method = Method {
    name: "string",
    about: "STRING: shifts rarely trained distances to smaller ones; needs no training",
    axis: Axis::Reach,
    params: &[
        param! { "shifted-offset", Count(1, 1 << 30), "original / 3", "tokens",
            "distances below it do not change; larger ones are reduced by it"
        },
        param! { "local-value", Count(0, 1 << 30),
            "128, or what is below shifted-offset", "tokens",
            "added to the reduced distances"
        },
        param! { "mscale", Number(0.1, 10.0),
            "1; the authors' code has 0.1 ln 2 + 1 = 1.0693", "",
            "factor on rotated q and on rotated k"
        },
        Param::ORIGINAL,
    ],
    apply,
};

fn apply(geo: &Geometry<'_>, args: &mut Args<'_>, plan: &mut LayerPlan) -> Result<(), RopeError> {
    let (l, n) = (geo.n_ctx_orig as u64, geo.n_ctx as u64);
    let shift = args.count("shifted-offset", || (l / 3).max(1))?;
    let local = args.count("local-value", || 128.min(shift - 1))?;
    plan.mscale *= args.number("mscale", || 1.0)?;
    if local >= shift {
        return Err(args.refuse("local-value", format_args!("below shifted-offset {shift}"), local));
    }
    if n > shift {
        let longest = (n - 1 + local - shift).max(shift - 1);
        args.note(format!(
            "within the context, distances go up to {longest}; the largest trained distance is {}.",
            l - 1
        ));
        if longest >= l {
            args.note(
                "it is designed for contexts within the original context; a spec can join it with a frequency method.",
            );
        }
    }
    let (s, w) = (shift as i32, local as i32);
    plan.branches = vec![
        Branch { reach: Reach { dist_end: s, ..Reach::CAUSAL }, ..Branch::PLAIN },
        Branch {
            q_pos: PosMap { add: w - s, ..PosMap::IDENTITY },
            reach: Reach { dist_min: s, ..Reach::CAUSAL },
            ..Branch::PLAIN
        },
    ];
    Ok(())
}
