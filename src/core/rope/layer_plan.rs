//! The plan of one kind of layer: frequencies x reach.

use std::borrow::Cow;

use super::method::Geometry;
use super::reach::{same_within, Branch, PosMap, Reach, MAX_BRANCHES};
use super::{RopeError, Spec};
use crate::hparams::{AttentionTemperature, LayerAttention};

/// Angle per unit of position.
#[derive(Debug, Clone, PartialEq)]
pub struct Freqs {
    /// Tables: 1 for all heads, or one per KV head.
    pub n_tables: usize,
    /// Radians per position, `[n_tables][n_rot/2]`; 0 leaves a pair unrotated. Empty in layers without
    /// rotation.
    pub theta: Vec<f64>,
}

impl Freqs {
    /// Pairs of rotary dimensions in a table.
    pub fn n_pairs(&self) -> usize {
        self.theta.len() / self.n_tables.max(1)
    }

    /// Rotary dimensions of a head.
    pub fn n_rot(&self) -> usize {
        2 * self.n_pairs()
    }

    /// The tables in order, each `[n_rot/2]`.
    pub fn tables(&self) -> impl ExactSizeIterator<Item = &[f64]> {
        self.theta.chunks_exact(self.n_pairs().max(1))
    }

    /// Angle per part of a position, where `unit` parts are one.
    pub fn over(&self, unit: i32) -> Cow<'_, Freqs> {
        match unit {
            1 => Cow::Borrowed(self),
            _ => {
                let theta = self.theta.iter().map(|t| t / f64::from(unit)).collect();
                Cow::Owned(Freqs { n_tables: self.n_tables, theta })
            }
        }
    }

    /// Returns true if every head turns as in `other`. A factor of 1 can still round.
    pub(super) fn same_angles(&self, other: &Freqs) -> bool {
        let pairs = self.n_pairs();
        let head = |of: &'_ Freqs, h: usize| (h % of.n_tables.max(1)) * pairs;
        let same = |h: usize| {
            let (own, others) =
                (&self.theta[head(self, h)..][..pairs], &other.theta[head(other, h)..][..pairs]);
            own.iter().zip(others).all(|(a, b)| (a - b).abs() <= 1e-12 * b)
        };
        pairs == other.n_pairs() && (0..self.n_tables.max(other.n_tables)).all(same)
    }
}

/// How the layers of one kind rotate positions, and which keys their queries see.
#[derive(Debug, Clone, PartialEq)]
pub struct LayerPlan {
    /// True if the spec acts on these layers; if not, they are as the file has them.
    pub applies: bool,
    /// Frequencies.
    pub freqs: Freqs,
    /// Factor on the rotated q and on the rotated k (YaRN, LongRoPE); logits get its square. Methods multiply
    /// it: both axes may have one, in either order.
    pub mscale: f64,
    /// Queries at position i are multiplied by max(1, ln(i+1) / ln of this), if anything.
    pub q_log_base: Option<f64>,
    /// Factor on queries by position: the model's own, or one that was asked for in its place.
    pub temperature: Option<AttentionTemperature>,
    /// Factor on queries at every position.
    pub q_factor: f64,
    /// Reach, one to three branches; each causal pair is covered by at most one.
    pub branches: Vec<Branch>,
    /// One base per KV head, for methods that have them (HARPE).
    pub bases: Option<Vec<f64>>,
}

impl LayerPlan {
    /// Layers as the model has them: one table of frequencies for all heads, `[n_rot/2]` or empty, and one
    /// branch.
    pub(super) fn new(layer: &LayerAttention, theta: Vec<f64>) -> LayerPlan {
        LayerPlan {
            applies: false,
            freqs: Freqs { n_tables: 1, theta },
            mscale: 1.0,
            q_log_base: None,
            temperature: layer.temperature,
            q_factor: 1.0,
            branches: vec![own_branch(layer)],
            bases: None,
        }
    }

    /// Returns true if tokens are rotated and see each other as under another plan of the same layers.
    pub fn same_positions(&self, other: &LayerPlan) -> bool {
        let scales = |p: &LayerPlan| (p.mscale, p.q_log_base, p.temperature, p.q_factor);
        self.freqs == other.freqs && scales(self) == scales(other) && self.branches == other.branches
    }

    /// Returns true if a text of `n_ctx` tokens is computed as under the plan `before`, which has the model's own
    /// attention pattern or the same one. Contexts of more than [`LayerPlan::COMPARED`] tokens count as different if
    /// there are branches.
    pub(super) fn same_within(&self, before: &LayerPlan, n_ctx: usize) -> bool {
        let n = i32::try_from(n_ctx).unwrap_or(i32::MAX);
        let scale = |i: i32| (self.q_scale(i) - before.q_scale(i)).abs() <= 1e-12;
        let same_reach = match before.branches[..] {
            _ if self.branches == before.branches => true,
            [own] if n_ctx <= Self::COMPARED => same_within(&own, &self.branches, n),
            _ => false,
        };
        let same_scales = self.mscale == before.mscale && [0, n / 2, n - 1].into_iter().all(scale);
        same_reach && same_scales && self.freqs.same_angles(&before.freqs)
    }

    /// Queries are compared one by one, up to this many.
    pub(super) const COMPARED: usize = 1 << 22;

    /// Returns true if every query sees every key before it, at its own distance.
    pub fn is_plain_reach(&self) -> bool {
        self.branches == [Branch::PLAIN]
    }

    /// Returns true if the keys that queries see, and the distances to them, are those of the model itself.
    pub fn is_own_reach(&self, layer: &LayerAttention) -> bool {
        self.branches == [own_branch(layer)]
    }

    /// The distance the model is shown between query `i` and key `j`; `None` where the query does not see the
    /// key.
    pub fn distance(&self, i: i32, j: i32) -> Option<f64> {
        self.branches.iter().find_map(|b| b.distance(i, j))
    }

    /// The distinct maps of key positions; a cache keeps keys once under each, or those below [`LayerPlan::keys_end`].
    pub fn key_maps(&self) -> Vec<PosMap> {
        let mut maps: Vec<PosMap> = Vec::new();
        for branch in &self.branches {
            if !maps.contains(&branch.k_pos) {
                maps.push(branch.k_pos);
            }
        }
        maps
    }

    /// Keys that any query sees under this map of key positions lie below this position; `None` where they go on with
    /// the text.
    pub fn keys_end(&self, map: PosMap) -> Option<i32> {
        let ends = self.branches.iter().filter(|b| b.k_pos == map).map(|b| b.reach.key_end.max(1));
        ends.max().filter(|end| *end < i32::MAX)
    }

    /// Returns true if queries are multiplied by [`LayerPlan::q_scale`].
    pub fn scales_queries(&self) -> bool {
        self.q_log_base.is_some() || self.temperature.is_some() || self.q_factor != 1.0
    }

    /// The factor on queries at position `i`.
    pub fn q_scale(&self, i: i32) -> f64 {
        let by_log = self.q_log_base.map_or(1.0, |base| (f64::from(i) + 1.0).ln() / base.ln()).max(1.0);
        by_log * self.temperature.map_or(1.0, |t| t.at(i)) * self.q_factor
    }

    /// Checks, for every method alike, the facts that users of a plan rely on.
    pub(super) fn check(
        &self,
        geo: &Geometry<'_>,
        layer: &LayerAttention,
        spec: &Spec,
    ) -> Result<(), RopeError> {
        let error = |what: String| Err(RopeError::new(format!("rope spec {spec}: {what}")));
        let Freqs { n_tables, theta } = &self.freqs;
        if (*n_tables != 1 && *n_tables != geo.n_head_kv) || theta.len() != n_tables * geo.n_pairs() {
            return error(format!(
                "expected 1 or {} tables of {} frequencies, found {n_tables} with {} in all",
                geo.n_head_kv,
                geo.n_pairs(),
                theta.len()
            ));
        }
        if let Some(i) = theta.iter().position(|t| !t.is_finite() || *t < 0.0) {
            let pair = i % geo.n_pairs();
            return error(format!("expected finite frequencies, found {} for pair {pair}", theta[i]));
        }
        if !(self.mscale.is_finite() && self.mscale > 0.0) {
            return error(format!("expected a positive magnitude, found {}", self.mscale));
        }
        if !(self.q_factor.is_finite() && self.q_factor > 0.0) {
            return error(format!("expected a positive factor on queries, found {}", self.q_factor));
        }
        let n = self.branches.len();
        if n == 0 || n > MAX_BRANCHES {
            return error(format!("expected 1 to {MAX_BRANCHES} branches, found {n}"));
        }
        match layer.window {
            Some(window) if !self.is_own_reach(layer) => error(format!(
                "expected layers that see every key, or no more than the original context, found \
                 attention.sliding_window {window}"
            )),
            _ => Ok(()),
        }
    }
}

/// The attention of a layer without any method: every key before the query, or those within its sliding
/// window.
fn own_branch(layer: &LayerAttention) -> Branch {
    let end = layer.window.and_then(|n| i32::try_from(n).ok()).unwrap_or(i32::MAX);
    Branch { reach: Reach { dist_end: end, ..Reach::CAUSAL }, ..Branch::PLAIN }
}
