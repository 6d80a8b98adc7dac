//! `streaming`: attention sinks and a window, positions counted inside the cache (Xiao et al. 2024,
//! StreamingLLM).

use super::reach::{Branch, PosMap, Reach};
use super::{Args, Axis, Geometry, LayerPlan, Method, Param, RopeError};

/// The first S tokens and the last M are seen, all else is dropped from the cache; a query stands at position
/// min(i, S+M-1), as if the cache were all the text.
///
/// Source: the authors' code, `StartRecentKVCache(start_size, recent_size)`, whose cache keeps keys unrotated
/// and rotates them at their place in it. Near keys are then at their true distance, and sink j is at min(i,
/// S+M-1) - j, which is what is done here without rotating a cached key again. The cache is bounded, so text
/// may go on for ever.
pub(super) static METHOD: Method = Method {
    name: "streaming",
    about: "attention sinks and a window: generates past any context in constant memory",
    axis: Axis::Reach,
    params: &[
        param! { "sinks", Count(0, 1 << 20), "4", "tokens",
            "number of first tokens to keep (attention sinks)"
        },
        param! { "window", Count(1, 1 << 30), "original - sinks", "tokens",
            "number of last tokens to attend to, including the query's own"
        },
        Param::ORIGINAL,
    ],
    apply,
};

fn apply(geo: &Geometry<'_>, args: &mut Args<'_>, plan: &mut LayerPlan) -> Result<(), RopeError> {
    let sinks = args.count("sinks", || 4)?;
    let window = args.count("window", || (geo.n_ctx_orig as u64).saturating_sub(sinks).max(1))?;
    let (s, m) = (sinks as i32, window as i32);
    args.evict();
    plan.branches =
        vec![Branch { reach: Reach { dist_end: m, key_min: s, ..Reach::CAUSAL }, ..Branch::PLAIN }];
    if s > 0 {
        plan.branches.push(Branch {
            q_pos: PosMap { max: s + m - 1, ..PosMap::IDENTITY },
            reach: Reach { key_end: s, ..Reach::CAUSAL },
            ..Branch::PLAIN
        });
    }
    if sinks + window > geo.n_ctx_orig as u64 {
        args.note(format!(
            "sinks + window = {} tokens are more than the original context of {}.",
            sinks + window,
            geo.n_ctx_orig
        ));
    }
    Ok(())
}
