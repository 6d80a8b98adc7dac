//! A plan: frequencies x reach, worked out for one model and one context length.

use super::method::{Args, Draft, Geometry};
use super::reach::{Branch, PosMap, MAX_BRANCHES};
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
    /// Queries at position i are multiplied by max(1, ln(i+1) / ln of this), if anything.
    pub q_log_base: Option<f64>,
    /// Reach, one to three branches; each causal pair is covered by at most one.
    pub branches: Vec<Branch>,
    /// Keys that no later query sees leave the cache.
    pub evict: bool,
    /// One base per KV head, for methods that have them (HARPE).
    pub bases: Option<Vec<f64>>,
    /// Facts and warnings a user should see, whole sentences.
    pub notes: Vec<String>,
}
impl Plan {
    /// Works a spec out. The scaling that the file declares is replaced, not added to: only its trained window stays, as the default of `original`.
    ///
    /// Methods of both axes work their defaults out alone, each for the whole context: `yarn+self-extend` at twice the trained window has factor 2 and
    /// the group that reaches it without yarn. No distance leaves the trained range, but positions are told apart less well than they need be:
    /// give `factor` and `group` to share the work.
    pub fn new(spec: &Spec, hp: &Hparams, n_ctx: usize) -> Result<Plan, RopeError> {
        let geo = Geometry::new(hp, n_ctx, None)?;
        let mut draft = Draft {
            freqs: Freqs { n_tables: 1, theta: geo.table(geo.freq_base)? },
            mscale: 1.0,
            q_log_base: None,
            branches: vec![Branch::PLAIN],
            evict: false,
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
        reach(&draft, hp, &spec)?;
        let Draft { freqs, mscale, q_log_base, branches, evict, bases, notes } = draft;
        Ok(Plan { spec, n_ctx, freqs, mscale, q_log_base, branches, evict, bases, notes })
    }

    /// Whether tokens are rotated and see each other as under another plan, whatever the specs are called.
    pub fn same_positions(&self, other: &Plan) -> bool {
        let of = |p: &Plan| (p.freqs.clone(), p.mscale, p.q_log_base, p.branches.clone(), p.evict);
        of(self) == of(other)
    }

    /// The spec with the bases themselves in place of the rule that found them, so that no later version of the rule changes
    /// what a file that declares it means.
    ///
    /// # Errors
    /// When the spec does not give the plan again, which would be a defect of the method.
    pub fn frozen(&self, hp: &Hparams) -> Result<Spec, RopeError> {
        let parts = self.spec.parts().iter().map(|part| match (&self.bases, part.get("bases")) {
            (Some(bases), Some(_)) => {
                let bases: Vec<String> = bases.iter().map(f64::to_string).collect();
                let original = part.get("original").map(|n| format!(",original={n}")).unwrap_or_default();
                format!("{}:bases={}{original}", part.name(), bases.join("/"))
            }
            _ => part.to_string(),
        });
        let spec: Spec = parts.collect::<Vec<_>>().join("+").parse()?;
        match Plan::new(&spec, hp, self.n_ctx)?.same_positions(self) {
            true => Ok(spec),
            false => Err(RopeError(format!("{spec} does not give the plan of {}", self.spec))),
        }
    }

    /// Whether every query sees every key before it, at its own distance.
    pub fn is_plain_reach(&self) -> bool {
        self.branches == [Branch::PLAIN]
    }

    /// The distance the model is shown between query `i` and key `j`; `None` where the query does not see the key.
    pub fn distance(&self, i: i32, j: i32) -> Option<i32> {
        self.branches.iter().find_map(|b| b.distance(i, j))
    }

    /// The distinct maps of key positions; a cache keeps keys once under each.
    pub fn key_maps(&self) -> Vec<PosMap> {
        let mut maps: Vec<PosMap> = Vec::new();
        for branch in &self.branches {
            if !maps.contains(&branch.k_pos) {
                maps.push(branch.k_pos);
            }
        }
        maps
    }

    /// Whether query `from` or any after it may see key `j`.
    pub fn needs(&self, j: i32, from: i32) -> bool {
        self.branches.iter().any(|b| b.reach.needs(j, from))
    }

    /// Tokens a cache must hold for one sequence of any length, when keys are evicted.
    pub fn n_held(&self) -> Option<usize> {
        let counts = self.branches.iter().map(|b| b.reach.most_keys());
        self.evict.then(|| counts.sum::<Option<usize>>()).flatten()
    }

    /// What queries at position `i` are multiplied by.
    pub fn q_scale(&self, i: i32) -> f64 {
        self.q_log_base.map_or(1.0, |base| (f64::from(i) + 1.0).ln() / base.ln()).max(1.0)
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

/// The other half: branches that every consumer can follow, on a model that they can act on.
fn reach(draft: &Draft, hp: &Hparams, spec: &Spec) -> Result<(), RopeError> {
    let n = draft.branches.len();
    if n == 0 || n > MAX_BRANCHES {
        return Err(RopeError(format!("rope spec {spec}: expected 1 to {MAX_BRANCHES} branches, found {n}")));
    }
    if draft.evict && draft.branches.iter().any(|b| b.reach.most_keys().is_none()) {
        return Err(RopeError(format!("rope spec {spec}: evict: later tokens need every key")));
    }
    match hp.n_swa {
        Some(swa) if draft.branches != [Branch::PLAIN] => Err(RopeError(format!(
            "rope spec {spec}: expected a model whose layers all see every key, found attention.sliding_window {swa}"
        ))),
        _ => Ok(()),
    }
}
