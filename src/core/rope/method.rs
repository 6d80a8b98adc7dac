//! The record of a rope method, the numbers it works from, and the parameters it resolves.

use std::cell::Cell;

use super::value::{approx, number, rounded};
use super::{Kind, LayerPlan, Part, RopeError, Value};
use crate::hparams::{check_factors, ClexNet, Hparams, LayerAttention, LayerRotation, RopeScaling};

/// The half of a plan that a method decides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Axis {
    /// The angle that one unit of position means.
    Frequency,
    /// The pairs of query and key that see each other, and at which positions.
    Reach,
}
impl std::fmt::Display for Axis {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Axis::Frequency => "frequency",
            Axis::Reach => "attention",
        })
    }
}

/// A parameter of a method.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize)]
pub struct Param {
    /// Name in a spec.
    pub key: &'static str,
    /// The values it accepts.
    #[serde(skip)]
    pub kind: Kind,
    /// Default of the parameter and its origin, for help.
    pub default: &'static str,
    /// Unit, empty for plain numbers.
    pub unit: &'static str,
    /// One line.
    pub about: &'static str,
}
impl Param {
    /// `original`: every method takes it.
    pub const ORIGINAL: Param = Param {
        key: "original",
        kind: Kind::Count(1, MAX_CTX),
        default:
            "the file's original_context_length, else its context_length (over a linear factor it declares)",
        unit: "tokens",
        about: "original context",
    };
    /// `factor`: every method that scales takes it.
    pub const FACTOR: Param = Param {
        key: "factor",
        kind: Kind::Number(1.0, 1e6),
        default: "context / original, at least 1 and what the file declares",
        unit: "",
        about: "target context / original context",
    };
}

/// Longest context and window: ggml's positions are 32-bit.
pub(super) const MAX_CTX: u64 = i32::MAX as u64;
/// Bases this large make the slowest pair's factor overflow the f32 that ggml takes.
pub(super) const MAX_BASE: f64 = 1e30;
/// Frequencies a plan may hold, over all heads.
const MAX_FREQS: usize = 1 << 22;
/// Multiplications (or cosines, which take as long) of one search or solution, at most: some ten seconds of one core.
const MAX_WORK: f64 = 2e10;

/// A rope method: one file, one line of the registry [`METHODS`](super::METHODS).
#[derive(Debug)]
#[non_exhaustive]
pub struct Method {
    /// Name in a spec.
    pub name: &'static str,
    /// One line for help.
    pub about: &'static str,
    /// The half of the plan it decides.
    pub axis: Axis,
    /// Parameters of the method, in printing order; `original` last. [`Method::settings`] come after them.
    pub params: &'static [Param],
    /// Resolves its parameters through `args` and changes the plan of one kind of layer, which starts as the
    /// model's own frequencies and attention to every key.
    pub(super) apply: fn(&Geometry<'_>, &mut Args<'_>, &mut LayerPlan) -> Result<(), RopeError>,
}

impl Method {
    /// Settings, which every method of its axis takes in addition to its parameters.
    pub fn settings(&self) -> &'static [Param] {
        super::settings::of(self.axis)
    }

    /// Parameters and settings, in printing order.
    pub(super) fn keys(&self) -> impl Iterator<Item = &'static Param> {
        self.params.iter().chain(self.settings())
    }
}

impl PartialEq for Method {
    fn eq(&self, other: &Method) -> bool {
        self.name == other.name
    }
}

/// The numbers of a model, of one kind of its layers and of the target that methods work from; checked once.
#[derive(Debug, Clone, Copy)]
pub(super) struct Geometry<'a> {
    /// Rotary dimensions `d`: even, at least 2.
    pub n_rot: usize,
    pub n_head_kv: usize,
    /// The file's base.
    pub freq_base: f64,
    /// The file's `rope_freqs.weight`: angles are divided by it, `[n_rot/2]`.
    pub freq_factors: Option<&'a [f32]>,
    /// The scaling that the file declares for these layers; methods use only its factor tensors and what
    /// belongs to them.
    pub scaling: Option<&'a RopeScaling>,
    /// The network of `clex` that an adapter brings.
    pub clex: Option<&'a ClexNet>,
    /// `context_length` of the file.
    pub n_ctx_train: usize,
    /// Trained window, tokens: `original` of the spec, else the file's.
    pub n_ctx_orig: usize,
    /// Target context, tokens.
    pub n_ctx: usize,
    /// How many times the trained window the scaling of the file itself reaches: no default factor is less. 1 where it
    /// declares none.
    pub own_factor: f64,
    /// The remainder of the work that a spec from a file may ask for; `None` for a spec that somebody typed.
    pub left: Option<&'a Cell<f64>>,
}

/// An error unless a context, and the windows of the model it is for, can be counted in 32 bits.
pub(super) fn check_contexts(hp: &Hparams, n_ctx: usize, n_ctx_orig: usize) -> Result<(), RopeError> {
    let lengths =
        [("context", n_ctx), ("context_length", hp.n_ctx_train), ("original_context_length", n_ctx_orig)];
    match lengths.into_iter().find(|(_, n)| *n == 0 || *n as u64 > MAX_CTX) {
        Some((key, n)) => Err(RopeError::new(format!("{key}: expected 1 to {MAX_CTX} tokens, found {n}"))),
        None => Ok(()),
    }
}

/// Refuses models whose plans would hold too many frequencies.
pub(super) fn check_size(hp: &Hparams) -> Result<(), RopeError> {
    let of = |layer: &LayerAttention| layer.rotation.map_or(0, |r| r.n_rot.saturating_mul(layer.n_head_kv));
    let n = hp.attention.iter().map(of).fold(0, usize::saturating_add);
    if n > MAX_FREQS {
        return Err(RopeError::new(format!(
            "rope.dimension_count x attention.head_count_kv, of all kinds of layers: expected at most {MAX_FREQS}, found {n}"
        )));
    }
    Ok(())
}

impl<'a> Geometry<'a> {
    /// For the layers of one kind; `None` for those that are not rotated.
    pub(super) fn new(
        hp: &'a Hparams,
        layer: &LayerAttention,
        n_ctx: usize,
        original: Option<usize>,
    ) -> Result<Option<Self>, RopeError> {
        let n_ctx_orig = original.unwrap_or_else(|| hp.n_ctx_orig());
        check_contexts(hp, n_ctx, n_ctx_orig)?;
        let Some(LayerRotation { freq_base, n_rot, scaled }) = layer.rotation else { return Ok(None) };
        layer.check().map_err(|(key, what)| RopeError::new(format!("{key}: {what}")))?;
        let n_head_kv = layer.n_head_kv;
        let scaling = scaled.then_some(&hp.rope_scaling);
        let freq_factors = scaling.and_then(|s| s.freq_factors.as_deref());
        let (n_ctx_train, clex) = (hp.n_ctx_train, hp.clex.as_deref());
        let geo = Geometry {
            n_rot,
            n_head_kv,
            freq_base,
            freq_factors,
            scaling,
            clex,
            n_ctx_train,
            n_ctx_orig,
            n_ctx,
            own_factor: 1.0,
            left: None,
        };
        if let Some(ff) = geo.freq_factors {
            geo.check_factors("rope_freqs.weight", ff)?;
        }
        Ok(Some(geo))
    }

    /// Takes this much work, in multiplications, from what may be asked for.
    ///
    /// # Errors
    /// If less is left: the error says how much is allowed.
    pub(super) fn spend(&self, cost: f64) -> Result<(), String> {
        let most = self.left.map_or(MAX_WORK, |left| left.get().min(MAX_WORK));
        if cost > most {
            let whose = if self.left.is_some() { " for a spec out of a file" } else { "" };
            return Err(format!("a cost of at most {}{whose}", approx(most)));
        }
        if let Some(left) = self.left {
            left.set(left.get() - cost);
        }
        Ok(())
    }

    pub(super) fn n_pairs(&self) -> usize {
        self.n_rot / 2
    }

    /// An error unless `factors` are `n_rot/2` finite numbers above 0.
    pub(super) fn check_factors(&self, tensor: &str, factors: &[f32]) -> Result<(), RopeError> {
        check_factors(factors, self.n_rot).map_err(|what| RopeError::new(format!("{tensor}: {what}")))
    }

    /// `base^(-2j/d)`, radians per position, `[n_rot/2]`.
    pub(super) fn powers(&self, base: f64) -> Result<Vec<f64>, RopeError> {
        if !(base > 1.0 && base <= MAX_BASE) {
            return Err(RopeError::new(format!(
                "rope base: expected a number above 1, at most 1e30, found {}",
                number(base)
            )));
        }
        Ok((0..self.n_pairs()).map(|j| base.powf(-2.0 * j as f64 / self.n_rot as f64)).collect())
    }

    /// The table of a base with the file's `rope_freqs.weight` divided in, `[n_rot/2]`.
    ///
    /// Every method but `longrope` keeps those factors: they belong to the trained model, and the methods act
    /// on top of what it was trained with.
    pub(super) fn table(&self, base: f64) -> Result<Vec<f64>, RopeError> {
        Ok(self.divided(self.powers(base)?))
    }

    /// Frequencies `[n_rot/2]` with the file's `rope_freqs.weight` divided in.
    pub(super) fn divided(&self, mut theta: Vec<f64>) -> Vec<f64> {
        if let Some(ff) = self.freq_factors {
            theta.iter_mut().zip(ff).for_each(|(t, f)| *t /= f64::from(*f));
        }
        theta
    }

    /// `base * scale^(d/(d-2))`: the base under which the slowest pair is interpolated `scale` times
    /// (NTK-aware scaling).
    pub(super) fn ntk_base(&self, scale: f64) -> Result<f64, RopeError> {
        if self.n_rot < 4 {
            return Err(RopeError::new(
                "rope.dimension_count: expected at least 4 to change the base for, found 2".into(),
            ));
        }
        let d = self.n_rot as f64;
        Ok(self.freq_base * scale.powf(d / (d - 2.0)))
    }

    /// The base, `ratio` times larger for 32 times the window, at `factor`: b * factor^(ln ratio / ln 32), to
    /// six digits; b itself at 1.
    pub(super) fn scaled_base(&self, ratio: f64, factor: f64) -> f64 {
        if factor == 1.0 {
            self.freq_base
        } else {
            rounded(self.freq_base * factor.powf(ratio.ln() / 32f64.ln()))
        }
    }
}

/// A method's parameters: takes what was given, fills in defaults, and keeps both for the plan's spec. It
/// also gathers the method's notes.
pub(super) struct Args<'a> {
    method: &'static Method,
    given: &'a Part,
    asked: Vec<&'static str>,
    used: Vec<(&'static str, Value)>,
    notes: Vec<String>,
    evict: bool,
}

/// The outcome of a method, in addition to the plan that it changed.
pub(super) struct Resolved {
    /// The method with every default filled in.
    pub part: Part,
    /// Whole sentences for the user.
    pub notes: Vec<String>,
    /// True if keys that no later query sees are to leave the cache.
    pub evict: bool,
    /// Settings that changed nothing in these layers: keys of settings, and the method's own name for the rest of it.
    pub idle: Vec<&'static str>,
    /// True if `keep-short` left the layers as the file declares them.
    pub short: bool,
}

impl<'a> Args<'a> {
    pub(super) fn new(method: &'static Method, given: &'a Part) -> Args<'a> {
        Args { method, given, asked: Vec::new(), used: Vec::new(), notes: Vec::new(), evict: false }
    }

    /// A whole sentence that the user should see, which follows the method's name.
    pub(super) fn note(&mut self, note: impl std::fmt::Display) {
        self.notes.push(format!("{}: {note}", self.method.name));
    }

    /// A whole sentence on a setting, which no method's name goes before.
    pub(super) fn note_setting(&mut self, note: String) {
        self.notes.push(note);
    }

    /// Keys that no later query sees are to leave the cache.
    pub(super) fn evict(&mut self) {
        self.evict = true;
    }

    pub(super) fn is_given(&self, key: &str) -> bool {
        self.given.get(key).is_some()
    }

    /// The value given, or the default, which must be allowed too.
    pub(super) fn value(&mut self, key: &str, default: impl FnOnce() -> Value) -> Result<Value, RopeError> {
        let name = self.method.name;
        let param = self.method.keys().find(|p| p.key == key).ok_or_else(|| {
            RopeError::new(format!("rope method {name}: {key} is not among its parameters"))
        })?;
        self.asked.push(param.key);
        let (value, source) = match self.given.get(key) {
            Some(value) => (value.clone(), String::new()),
            None => (default(), format!(" (its default: {})", param.default)),
        };
        if !param.kind.accepts(&value) {
            return Err(param.kind.refusal(name, key, &format!("{value}{source}")));
        }
        if !self.used.iter().any(|(k, _)| *k == key) {
            self.used.push((param.key, value.clone()));
        }
        Ok(value)
    }

    pub(super) fn number(&mut self, key: &str, default: impl FnOnce() -> f64) -> Result<f64, RopeError> {
        match self.value(key, || Value::Number(default()))? {
            Value::Number(x) => Ok(x),
            other => Err(self.mismatch(key, &other)),
        }
    }

    pub(super) fn count(&mut self, key: &str, default: impl FnOnce() -> u64) -> Result<u64, RopeError> {
        match self.value(key, || Value::Count(default()))? {
            Value::Count(n) => Ok(n),
            other => Err(self.mismatch(key, &other)),
        }
    }

    pub(super) fn word(&mut self, key: &str, default: &'static str) -> Result<String, RopeError> {
        Ok(self.value(key, || Value::Word(default.into()))?.to_string())
    }

    /// A [`Kind::Choice`] of `false`, the default, and `true`.
    pub(super) fn flag(&mut self, key: &str) -> Result<bool, RopeError> {
        Ok(self.word(key, "false")? == "true")
    }

    pub(super) fn refuse(
        &self,
        key: &str,
        expected: impl std::fmt::Display,
        found: impl std::fmt::Display,
    ) -> RopeError {
        RopeError::of_value(self.method.name, key, expected, found)
    }

    /// `factor`, by default the target context over the trained window, at least 1 and what the scaling of the
    /// file reaches; notes what it covers.
    pub(super) fn factor(&mut self, geo: &Geometry<'_>) -> Result<f64, RopeError> {
        let given = self.is_given("factor");
        let (needed, own) = (geo.n_ctx as f64 / geo.n_ctx_orig as f64, geo.own_factor);
        let factor = self.number("factor", || needed.max(own).max(1.0))?;
        let reach = factor * geo.n_ctx_orig as f64;
        let (factor_text, n_ctx, original) = (number(factor), geo.n_ctx, geo.n_ctx_orig);
        if !given && own > needed.max(1.0) {
            self.note(format!(
                "factor {factor_text} is the file's own, more than context {n_ctx} over the original context of \
                 {original} tokens."
            ));
        } else if !given {
            self.note(format!(
                "factor {factor_text} = context {n_ctx} over the original context of {original} tokens, at least 1."
            ));
        } else if geo.n_ctx as f64 > reach * (1.0 + 1e-9) {
            let reach = reach.floor();
            self.note(format!(
                "the context of {n_ctx} tokens is longer than factor x original = {reach} tokens."
            ));
        }
        if given && factor < own * (1.0 - 1e-9) {
            let own = number(own);
            self.note(format!("factor {factor_text} is less than the {own} that the file declares."));
        }
        Ok(factor)
    }

    /// Replaces the value of a parameter by the one it came to (`auto` by its choice).
    pub(super) fn resolve(&mut self, key: &'static str, value: Value) {
        self.used.retain(|(k, _)| *k != key);
        self.used.push((key, value));
    }

    /// Leaves a parameter that others now stand for out of the plan's spec.
    pub(super) fn absorb(&mut self, key: &str) {
        self.used.retain(|(k, _)| *k != key);
    }

    fn mismatch(&self, key: &str, value: &Value) -> RopeError {
        RopeError::new(format!("rope method {}: {key} has the wrong kind: {value}", self.method.name))
    }

    /// The part with every default filled in; an error when something given had no effect.
    pub(super) fn resolved(self, idle: Vec<&'static str>) -> Result<Resolved, RopeError> {
        match self.given.args().iter().find(|(k, _)| !self.asked.contains(k)) {
            Some((key, _)) => Err(RopeError::new(format!(
                "rope method {}: {key} has no effect together with the other parameters given; leave it out",
                self.method.name
            ))),
            None => {
                let part = Part::new(self.method, self.used);
                Ok(Resolved { part, notes: self.notes, evict: self.evict, idle, short: false })
            }
        }
    }
}
