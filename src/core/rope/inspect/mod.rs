//! A plan laid open, pair by pair: what `ropewalk rope` prints and draws.

mod reach;
mod text;

use std::f64::consts::TAU;

pub use reach::{BranchView, ReachView};

use super::method::Geometry;
use super::value::approx;
use super::{LayerPlan, Plan, RopeError, Spec};
use crate::hparams::{BaseFrom, Hparams};

/// A plan against the file's own frequencies.
#[derive(Debug, Clone, PartialEq)]
pub struct Inspection {
    /// The spec with defaults filled in.
    pub rope: Spec,
    /// Trained window, tokens.
    pub n_ctx_orig: usize,
    /// Target context, tokens.
    pub n_ctx: usize,
    /// Tokens that the cache holds at most, however long the text, when keys are evicted.
    pub n_held: Option<usize>,
    /// Each kind of layer with attention, in the order of the first layer of each.
    pub kinds: Vec<KindView>,
    /// The layers without attention (gated delta-nets), which no method acts on.
    pub recurrent: Vec<usize>,
    /// The plan's notes.
    pub notes: Vec<String>,
}

/// A plan as it applies to the layers of one kind.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub struct KindView {
    /// Base of the model's own frequencies; `None` in layers without rotation.
    pub base: Option<f64>,
    /// Where that is from.
    pub base_from: Option<BaseFrom>,
    /// Key-value heads.
    pub n_head_kv: usize,
    /// Rotary dimensions, 0 in layers without rotation.
    pub n_rot: usize,
    /// Factor on rotated q and k.
    pub mscale: f64,
    /// Factor on queries at position i, as a formula; `None` where there is none.
    pub temperature: Option<String>,
    /// Bases of the KV heads, for methods that have one per head.
    pub bases: Option<Vec<f64>>,
    /// Radians per position: the numbers of each table.
    pub freqs: Vec<Vec<f64>>,
    /// One for all heads, or one per KV head; none in layers without rotation.
    pub tables: Vec<Table>,
    /// Which keys queries see, and how far away they seem.
    #[serde(flatten)]
    pub reach: ReachView,
    /// The layers, ascending.
    pub layers: Vec<usize>,
    /// True if the spec acts on these layers; if not, they are as the file has them.
    pub applies: bool,
    /// The model's own sliding window, tokens.
    pub window: Option<usize>,
}

/// The frequencies of one KV head, or of all.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub struct Table {
    /// KV head; `None` is all of them.
    pub head: Option<usize>,
    /// Base of the head, for methods that have one per head.
    pub base: Option<f64>,
    /// `[n_rot/2]`.
    pub pairs: Vec<Pair>,
}

/// One pair of rotary dimensions.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize)]
pub struct Pair {
    /// Index, 0 the fastest.
    pub index: usize,
    /// Radians per position.
    pub theta: f64,
    /// The file's own, radians per position.
    pub theta_file: f64,
    /// Tokens for a full turn; `None` when the pair is not rotated.
    pub wavelength: Option<f64>,
    /// Full turns in training: at the file's own frequency, within the trained window.
    pub turns_trained: f64,
    /// Full turns under the plan over the distances it shows within the target context.
    pub turns_target: f64,
    /// Against the file's own table.
    pub kind: PairKind,
    /// Distances shown within the target context turn it to angles that training never showed: it did not
    /// complete a turn there, and goes further here.
    pub unseen: bool,
}

/// How a plan changes the frequency of a pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum PairKind {
    /// Same as in the file, and no distance is longer than the original context.
    Unchanged,
    /// Slower than in the file.
    Interpolated,
    /// Same as in the file or faster, over more angle than in training.
    Extrapolated,
}

impl Plan {
    /// Lays the plan open. `hp` is the model it was made for.
    pub fn inspect(&self, hp: &Hparams) -> Result<Inspection, RopeError> {
        let kinds = self.kinds().iter().enumerate().map(|(k, plan)| self.inspect_kind(hp, k, plan));
        Ok(Inspection {
            rope: self.spec.clone(),
            n_ctx_orig: self.n_ctx_orig(hp),
            n_ctx: self.n_ctx,
            n_held: self.n_held(),
            kinds: kinds.collect::<Result<_, _>>()?,
            recurrent: hp.recurrent_layers().collect(),
            notes: self.notes.clone(),
        })
    }

    fn inspect_kind(&self, hp: &Hparams, kind: usize, plan: &LayerPlan) -> Result<KindView, RopeError> {
        let n_ctx_orig = self.n_ctx_orig(hp);
        let unlike = |expected: usize, found: usize, what: &str| {
            let spec = &self.spec;
            RopeError::new(format!(
                "plan {spec}: expected {expected} {what}, found {found}: it was made for another model"
            ))
        };
        let n_kinds = self.kinds().len();
        let layer =
            hp.attention.get(kind).ok_or_else(|| unlike(hp.attention.len(), n_kinds, "kinds of layer"))?;
        let file = match Geometry::new(hp, layer, self.n_ctx, Some(n_ctx_orig))? {
            Some(geo) => geo.table(geo.freq_base)?,
            None => Vec::new(),
        };
        if plan.freqs.n_pairs() != file.len() {
            return Err(unlike(file.len(), plan.freqs.n_pairs(), "frequencies a table"));
        }
        let reach = ReachView::new(plan, self.n_ctx);
        // A distance of the whole trained window, one more than it has, counts as seen: lm-infinite is made
        // of it.
        let trained = n_ctx_orig as f64;
        let largest = reach.largest_distance.map_or(self.n_ctx as f64 - 1.0, f64::from);
        let pair = |(index, (theta, own)): (usize, (&f64, &f64))| {
            // Relative, as a factor of 1 may still round.
            let same = (theta - own).abs() <= 1e-12 * own;
            let kind = if !same && theta < own {
                PairKind::Interpolated
            } else if same && largest <= trained {
                PairKind::Unchanged
            } else {
                PairKind::Extrapolated
            };
            let most_seen = (trained - 1.0) * own;
            Pair {
                index,
                theta: *theta,
                theta_file: *own,
                wavelength: (*theta > 0.0).then(|| TAU / theta),
                turns_trained: own * trained / TAU,
                turns_target: theta * (largest + 1.0) / TAU,
                kind,
                unseen: most_seen < TAU && largest * theta > trained * own * (1.0 + 1e-9),
            }
        };
        let tables = plan.freqs.tables().enumerate().map(|(h, table)| Table {
            head: (plan.freqs.n_tables > 1).then_some(h),
            base: plan.bases.as_ref().and_then(|b| b.get(h).copied()),
            pairs: table.iter().zip(&file).enumerate().map(pair).collect(),
        });
        Ok(KindView {
            layers: hp.layers_of(kind).collect(),
            applies: plan.applies,
            base: layer.rotation.map(|r| r.freq_base),
            base_from: hp.base_from(kind),
            bases: plan.bases.clone(),
            freqs: plan.freqs.tables().map(<[f64]>::to_vec).collect(),
            n_rot: plan.freqs.n_rot(),
            n_head_kv: layer.n_head_kv,
            window: layer.window,
            mscale: plan.mscale,
            temperature: temperature(plan),
            tables: tables.collect(),
            reach,
        })
    }
}

/// The factor on queries in words.
fn temperature(plan: &LayerPlan) -> Option<String> {
    let by_log = plan.q_log_base.map(|base| format!("max(1, ln(i+1) / ln {})", approx(base)));
    let grows = plan.temperature.map(|t| {
        let i = if t.offset == 0.0 { "i".to_owned() } else { format!("(i + {})", approx(t.offset)) };
        format!("(1 + {} ln(1 + floor({i} / {})))", approx(t.scale), approx(t.length))
    });
    let constant = (plan.q_factor != 1.0).then(|| approx(plan.q_factor));
    let all: Vec<String> = [by_log, grows, constant].into_iter().flatten().collect();
    (!all.is_empty()).then(|| all.join(" x "))
}
