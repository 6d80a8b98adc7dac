//! A plan laid open, pair by pair: what `ropewalk rope` prints and draws.

mod reach;

use std::f64::consts::TAU;

pub use reach::{BranchView, ReachView};

use super::method::Geometry;
use super::{Plan, RopeError, Spec};
use crate::hparams::Hparams;

/// A plan against the file's own frequencies.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub struct Inspection {
    /// The spec with defaults filled in.
    pub rope: Spec,
    /// Rotary dimensions.
    pub n_rot: usize,
    /// Key-value heads.
    pub n_head_kv: usize,
    /// Trained window, tokens.
    pub n_ctx_orig: usize,
    /// Target context, tokens.
    pub n_ctx: usize,
    /// Factor on rotated q and k.
    pub mscale: f64,
    /// One for all heads, or one per KV head.
    pub tables: Vec<Table>,
    /// Which keys queries see, and how far away they seem.
    pub reach: ReachView,
    /// The plan's notes.
    pub notes: Vec<String>,
}

/// The frequencies of one KV head, or of all.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub struct Table {
    /// KV head; `None` is all of them.
    pub head: Option<usize>,
    /// Its base, for methods that have one per head.
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
    /// Distances shown within the target context turn it to angles that training never showed: it did not complete a turn there, and goes further here.
    pub unseen: bool,
}

/// What a plan does to a pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum PairKind {
    /// As in the file, and no distance is longer than the trained window.
    Unchanged,
    /// Slower than in the file.
    Interpolated,
    /// As fast as in the file, or faster, over more angle than in training.
    Extrapolated,
}

impl Plan {
    /// Lays the plan open. `hp` is the model it was made for.
    pub fn inspect(&self, hp: &Hparams) -> Result<Inspection, RopeError> {
        let n_ctx_orig = self.n_ctx_orig(hp);
        let geo = Geometry::new(hp, self.n_ctx, Some(n_ctx_orig))?;
        let file = geo.table(geo.freq_base)?;
        if self.freqs.n_pairs() != file.len() {
            return Err(RopeError(format!(
                "plan {}: expected {} frequencies a table, found {}: it was made for another model",
                self.spec,
                file.len(),
                self.freqs.n_pairs()
            )));
        }
        let reach = ReachView::new(self);
        // A distance of the whole trained window, one more than it has, counts as seen: lm-infinite is made of it.
        let trained = n_ctx_orig as f64;
        let largest = reach.largest_distance.map_or(self.n_ctx as f64 - 1.0, f64::from);
        let pair = |(index, (theta, own)): (usize, (&f64, &f64))| {
            // Relative, as a factor of 1 may still round.
            let same = (theta - own).abs() <= 1e-12 * own;
            let kind = match () {
                () if !same && theta < own => PairKind::Interpolated,
                () if same && largest <= trained => PairKind::Unchanged,
                () => PairKind::Extrapolated,
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
        let tables = self.freqs.tables().enumerate().map(|(h, table)| Table {
            head: (self.freqs.n_tables > 1).then_some(h),
            base: self.bases.as_ref().and_then(|b| b.get(h).copied()),
            pairs: table.iter().zip(&file).enumerate().map(pair).collect(),
        });
        Ok(Inspection {
            rope: self.spec.clone(),
            n_rot: geo.n_rot,
            n_head_kv: geo.n_head_kv,
            n_ctx_orig,
            n_ctx: self.n_ctx,
            mscale: self.mscale,
            tables: tables.collect(),
            reach,
            notes: self.notes.clone(),
        })
    }
}
