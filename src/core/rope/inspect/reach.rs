//! The reach of one kind of layer in words and numbers.

use crate::rope::{Branch, LayerPlan, PosMap, Reach};

/// The attention that the branches of a kind of layer give within its context.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct ReachView {
    /// Each branch.
    pub branches: Vec<BranchView>,
    /// Largest distance the model is shown within the context, rounded up; `None` above [`ReachView::COUNTED`] tokens,
    /// unless plain.
    pub largest_distance: Option<i32>,
    /// Keys that one query sees within the context, at most; `None` as above.
    pub most_keys: Option<usize>,
}

/// One branch.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct BranchView {
    /// The pairs it covers: `distance 0..1023`, `keys 0..3`. Ends are included.
    pub pairs: String,
    /// The distance they are shown at, of query i and key j: `floor(i/8) + 896 - floor(j/8)`.
    pub shown: String,
    /// The largest that comes to within the context; `None` where no pair is covered, or above
    /// [`ReachView::COUNTED`] tokens.
    pub largest: Option<i32>,
}

impl ReachView {
    /// Queries are gone through one by one, up to this many.
    pub const COUNTED: usize = LayerPlan::COMPARED;

    /// The attention under a plan within so many tokens.
    pub fn new(plan: &LayerPlan, n_ctx: usize) -> ReachView {
        let n = i32::try_from(n_ctx).unwrap_or(i32::MAX);
        let mut largest: Vec<Option<i32>> = vec![None; plan.branches.len()];
        let mut most_keys = None;
        if plan.is_plain_reach() {
            (largest[0], most_keys) = (Some(n - 1), Some(n_ctx));
        } else if n_ctx <= Self::COUNTED {
            for i in 0..n {
                let mut seen = 0;
                for (branch, largest) in plan.branches.iter().zip(&mut largest) {
                    let keys = branch.reach.keys(i);
                    seen += keys.len();
                    *largest = (*largest).max(branch.largest(i, keys));
                }
                most_keys = most_keys.max(Some(seen));
            }
        }
        let view = |(b, largest): (&Branch, &Option<i32>)| BranchView {
            pairs: pairs(&b.reach),
            shown: shown(b),
            largest: *largest,
        };
        ReachView {
            branches: plan.branches.iter().zip(&largest).map(view).collect(),
            largest_distance: largest.iter().copied().max().flatten(),
            most_keys,
        }
    }
}

/// `what a..b` with both ends included; nothing where neither end says anything.
fn range(what: &str, from: i32, end: i32) -> Option<String> {
    match (from, end) {
        (0, i32::MAX) => None,
        (_, i32::MAX) => Some(format!("{what} {from}..")),
        (_, end) if end - 1 == from => Some(format!("{what} {from}")),
        _ => Some(format!("{what} {from}..{}", i64::from(end) - 1)),
    }
}

fn pairs(reach: &Reach) -> String {
    let keys = range("keys", reach.key_min, reach.key_end);
    let distance = range("distance", reach.dist_min, reach.dist_end);
    let chunks = reach.chunks.map(|c| match (c.min, c.max) {
        (0, 0) => format!("keys of the query's own chunk of {}", c.len),
        (1, 1) => format!("keys of the chunk of {} before", c.len),
        (min, i32::MAX) => format!("keys {min} or more chunks of {} back", c.len),
        (min, max) => format!("keys {min} to {max} chunks of {} back", c.len),
    });
    let all: Vec<String> = [keys, distance, chunks].into_iter().flatten().collect();
    if all.is_empty() {
        "all keys".into()
    } else {
        all.join(", ")
    }
}

fn shown(branch: &Branch) -> String {
    let (q, k) = (branch.q_pos, branch.k_pos);
    let own_chunk = branch.reach.chunks.is_some_and(|c| c.max == 0 && c.len == q.modulo);
    if q == k && q.div == 1 && q.unit == 1 && q.max == i32::MAX && (q.modulo == i32::MAX || own_chunk) {
        return "as it is".into();
    }
    if q.modulo == 1 && k.modulo == 1 {
        return format!("always {}", q.at(0) - k.at(0));
    }
    if q.add < 0 && k == (PosMap { add: 0, ..q }) && q.div == 1 && q.max == i32::MAX && q.modulo == i32::MAX {
        return format!("i - j - {}", -q.add);
    }
    let (q, k) = (term(&q, 'i'), term(&k, 'j'));
    if k.contains(" + ") && !k.starts_with("min") {
        format!("{q} - ({k})")
    } else {
        format!("{q} - {k}")
    }
}

fn term(map: &PosMap, name: char) -> String {
    if map.modulo == 1 {
        return map.at(0).to_string();
    }
    let mut s = match map.modulo {
        i32::MAX => name.to_string(),
        m => format!("({name} mod {m})"),
    };
    if map.div != 1 {
        s = format!("floor({s}/{})", map.div);
    }
    if map.add != 0 {
        s = format!("{s} + {}", map.add);
    }
    if map.max != i32::MAX {
        s = format!("min({s}, {})", map.max);
    }
    if map.unit != 1 {
        s = if map.add == 0 { format!("{s}/{}", map.unit) } else { format!("({s})/{}", map.unit) };
    }
    s
}
