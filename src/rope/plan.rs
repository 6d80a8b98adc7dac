//! A plan: frequencies x reach, worked out for one model and one context length.

use super::method::{Args, Draft, Geometry};
use super::{Part, RopeError, Spec};
use crate::hparams::Hparams;

/// Angle per unit of position.
#[derive(Debug, Clone, PartialEq)]
pub struct Freqs {
    /// Tables: 1 for all heads, or one per KV head.
    pub n_tables: usize,
    /// Radians per position, `[n_tables][n_rot/2]`; 0 leaves a pair unrotated.
    pub theta: Vec<f64>,
}
impl Freqs {
    /// Pairs of rotary dimensions in a table.
    pub fn n_pairs(&self) -> usize {
        self.theta.len() / self.n_tables.max(1)
    }
    /// The tables in order, each `[n_rot/2]`.
    pub fn tables(&self) -> impl ExactSizeIterator<Item = &[f64]> {
        self.theta.chunks_exact(self.n_pairs().max(1))
    }
}

/// An integer map of positions (a closed set: ggml positions are i32).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum PosMap {
    /// The position itself.
    Identity,
}

/// Which query-key pairs a branch lets see each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Reach {
    /// Every key at or before the query.
    Causal,
}

/// One attention branch: pairs in `reach`, rotated at `q_pos(i)` and `k_pos(j)`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Branch {
    /// Query positions.
    pub q_pos: PosMap,
    /// Key positions.
    pub k_pos: PosMap,
    /// Pairs covered.
    pub reach: Reach,
}

/// A rope method worked out for one model and one context length. Fixed for the life of a session.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    /// The spec with every default filled in; parsing it again gives this plan, notes aside, at any context length.
    pub spec: Spec,
    /// Tokens the plan was made for.
    pub n_ctx: usize,
    /// Frequencies.
    pub freqs: Freqs,
    /// Factor on the rotated q and on the rotated k (YaRN, LongRoPE); logits get its square.
    pub mscale: f64,
    /// Reach; covers each causal pair at most once.
    pub branches: Vec<Branch>,
    /// One base per KV head, for methods that have them (HARPE).
    pub bases: Option<Vec<f64>>,
    /// Facts and warnings a user should see, whole sentences.
    pub notes: Vec<String>,
}
impl Plan {
    /// Works a spec out. The scaling that the file declares is replaced, not added to: only its trained window stays, as the default of `original`.
    pub fn new(spec: &Spec, hp: &Hparams, n_ctx: usize) -> Result<Plan, RopeError> {
        let geo = Geometry::new(hp, n_ctx, None)?;
        let mut draft = Draft {
            freqs: Freqs { n_tables: 1, theta: geo.table(geo.freq_base)? },
            mscale: 1.0,
            branches: vec![Branch { q_pos: PosMap::Identity, k_pos: PosMap::Identity, reach: Reach::Causal }],
            bases: None,
            notes: Vec::new(),
        };
        let mut parts = Vec::with_capacity(spec.parts().len());
        for part in spec.parts() {
            parts.push(apply(part, hp, n_ctx, &mut draft)?);
        }
        let spec = Spec::from_parts(parts);
        match Spec::declared(hp) {
            Ok(own) if own == Spec::plain() || spec.contains(&own) => {}
            Ok(own) => draft.notes.push(format!("The file declares {own}; {spec} replaces it.")),
            Err(e) => draft.notes.push(format!("{spec} replaces what the file declares ({e}).")),
        }
        check(&draft, &geo, &spec)?;
        let Draft { freqs, mscale, branches, bases, notes } = draft;
        Ok(Plan { spec, n_ctx, freqs, mscale, branches, bases, notes })
    }

    /// The trained window this plan counts from, tokens: `original` of its spec, else the file's.
    pub fn n_ctx_orig(&self, hp: &Hparams) -> usize {
        original(self.spec.parts()).unwrap_or_else(|| hp.n_ctx_orig())
    }
}

fn original(parts: &[Part]) -> Option<usize> {
    parts.iter().find_map(|p| p.get("original")).and_then(|v| v.parse().ok())
}

fn apply(part: &Part, hp: &Hparams, n_ctx: usize, draft: &mut Draft) -> Result<Part, RopeError> {
    let method = part.method()?;
    let mut args = Args::new(method, part);
    let geo = Geometry::new(hp, n_ctx, original(std::slice::from_ref(part)))?;
    args.count("original", || geo.n_ctx_orig as u64)?;
    method.apply(&geo, &mut args, draft)?;
    args.settled()
}

/// What every consumer of a plan relies on, checked for every method alike.
fn check(draft: &Draft, geo: &Geometry<'_>, spec: &Spec) -> Result<(), RopeError> {
    let Freqs { n_tables, theta } = &draft.freqs;
    if (*n_tables != 1 && *n_tables != geo.n_head_kv) || theta.len() != n_tables * geo.n_pairs() {
        return Err(RopeError(format!(
            "rope spec {spec}: expected 1 or {} tables of {} frequencies, found {n_tables} with {} in all",
            geo.n_head_kv,
            geo.n_pairs(),
            theta.len()
        )));
    }
    if let Some(i) = theta.iter().position(|t| !t.is_finite() || *t < 0.0) {
        return Err(RopeError(format!(
            "rope spec {spec}: expected finite frequencies, found {} for pair {}",
            theta[i],
            i % geo.n_pairs()
        )));
    }
    if !(draft.mscale.is_finite() && draft.mscale > 0.0) {
        return Err(RopeError(format!(
            "rope spec {spec}: expected a positive magnitude, found {}",
            draft.mscale
        )));
    }
    Ok(())
}
