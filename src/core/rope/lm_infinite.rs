//! `lm-infinite`: a window, and the first tokens at one fixed distance (Han et al. 2024).

use super::reach::{Branch, PosMap, Reach};
use super::{Args, Axis, Geometry, LayerPlan, Method, Param, RopeError};

/// Distances 0..M-1 as they are, the first G tokens beyond them at distance exactly M, all else unseen; one
/// softmax.
///
/// Source: the authors' code, `convert_llama_model(local_branch, global_branch)`: global keys are not rotated
/// and the query is rotated at position min(M, keys - 1). The controlled study (LCEG) writes min(distance, L)
/// for them, which is the same where M = L, the default here. With another M the two differ; the code is
/// followed, and the other reading's figure is in `tests/reference/README.md`. The code repeats keys for
/// every head and so knows no grouped queries; here they are as everywhere. Its default G is 10.
pub(super) static METHOD: Method = Method {
    name: "lm-infinite",
    about: "LM-Infinite: a window, and the first tokens at a fixed distance; needs no training",
    axis: Axis::Reach,
    params: &[
        param! { "window", Count(1, 1 << 30), "original", "tokens",
            "distances below it do not change"
        },
        param! { "global", Count(0, 1 << 20), "10", "tokens",
            "number of first tokens that every query sees, at distance window"
        },
        EVICT,
        Param::ORIGINAL,
    ],
    apply,
};

fn apply(geo: &Geometry<'_>, args: &mut Args<'_>, plan: &mut LayerPlan) -> Result<(), RopeError> {
    let m = args.count("window", || geo.n_ctx_orig as u64)? as i32;
    let g = args.count("global", || 10)? as i32;
    if args.flag("evict")? {
        args.evict();
    }
    plan.branches = vec![Branch { reach: Reach { dist_end: m, ..Reach::CAUSAL }, ..Branch::PLAIN }];
    if g > 0 {
        plan.branches.push(Branch {
            q_pos: PosMap::constant(m),
            k_pos: PosMap::constant(0),
            reach: Reach { dist_min: m, key_end: g, ..Reach::CAUSAL },
        });
    }
    if m as usize > geo.n_ctx_orig {
        args.note(format!("window {m} is longer than the original context of {} tokens.", geo.n_ctx_orig));
    }
    Ok(())
}

/// `evict`: drop what no later token sees.
pub(super) const EVICT: Param = param! { "evict", Choice(&["false", "true"]), "false", "",
    "evict keys that no later token sees, to generate past any context in constant memory"
};
