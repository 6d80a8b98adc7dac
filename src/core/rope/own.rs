//! The scaling that a file declares, as the plans of other specs keep it, restore it or replace it; and the step
//! that both share, a method applied to one kind of layer.

use std::cell::Cell;

use super::method::{Args, Geometry, Resolved, MAX_CTX};
use super::{settings, Axis, LayerPlan, Part, RopeError, Spec, Value};
use crate::hparams::{Hparams, LayerAttention};

/// Declared scaling of a file, for a plan of one spec at one context.
///
/// A conversion declares a whole spec (`ropewalk.rope.spec`) on top of the standard keys, which say what the model was
/// trained under. Layers that no part of that spec acts on are rotated by the keys.
pub(super) struct Own<'a> {
    hp: &'a Hparams,
    n_ctx: usize,
    pub(super) spec: Result<Spec, RopeError>,
    /// The scaling of the standard keys, if they have any.
    keys: Result<Option<Part>, RopeError>,
    /// The same as specs may spell it: as declared, with its defaults, and as plans show it with a reach method.
    spellings: Vec<Part>,
    /// True if the planned spec has the declared frequencies: it names none, or the same.
    kept: bool,
    /// True if the planned spec stands in a file.
    of_file: bool,
    /// The remainder of the work that files may ask for in this plan.
    left: Cell<f64>,
}

/// Work that the specs of a file may ask for in one plan, in multiplications: one or two seconds of one core, four times
/// HARPE's search at the size of the paper's. A name and a few numbers in a file can ask for minutes, at each kind of layer
/// and at each plan. What users type has a larger limit.
const MAX_OF_FILE: f64 = 6e9;

impl<'a> Own<'a> {
    pub(super) fn new(hp: &'a Hparams, n_ctx: usize, planned: &Spec, of_file: bool) -> Own<'a> {
        let keys = Spec::of_keys(hp).map(|spec| spec.parts().iter().find(|p| !p.asks_for_nothing()).cloned());
        let spec = Spec::declared(hp);
        let left = Cell::new(MAX_OF_FILE);
        let mut own = Own { hp, n_ctx, spec, keys, spellings: Vec::new(), kept: false, of_file, left };
        if let Ok(Some(part)) = own.keys.clone() {
            let scaled = hp.attention.iter().find(|a| a.rotation.is_some_and(|r| r.scaled));
            let resolved = scaled.and_then(|layer| {
                let (mut plan, _) = own.unscaled(layer).ok()??;
                own.apply(&part, layer, &mut plan).ok()
            });
            if let Some(Resolved { part: resolved, .. }) = resolved {
                own.spellings = vec![shown(&part, &resolved), resolved];
            }
            own.spellings.push(part);
        }
        own.kept =
            planned.of_axis(Axis::Frequency).is_none_or(|part| own.is_keys(part) || own.is_declared(part));
        own
    }

    /// Returns true if nothing is declared: the model runs as `plain`.
    pub(super) fn is_nothing(&self) -> bool {
        self.spec.as_ref().is_ok_and(|spec| spec.parts().iter().all(Part::asks_for_nothing))
    }

    /// Returns true if the standard keys scale nothing.
    pub(super) fn no_keys(&self) -> bool {
        matches!(self.keys, Ok(None))
    }

    /// Returns true if a part is the scaling of the standard keys.
    pub(super) fn is_keys(&self, part: &Part) -> bool {
        let alike = self.spellings.first().is_some_and(|keys| keys.method() == part.method());
        let mut args = part.args().to_vec();
        if alike && part.original().is_none() {
            args.push(("original", Value::Count(self.original(part) as u64)));
        }
        alike && (self.spellings.contains(part) || self.spellings.contains(&Part::new(part.method(), args)))
    }

    fn is_declared(&self, part: &Part) -> bool {
        self.spec.as_ref().is_ok_and(|spec| spec.of_axis(part.method().axis) == Some(part))
    }

    /// Returns true if a method acts on layers: they see further than in training, and in some models the standard keys
    /// do not apply to all layers.
    pub(super) fn acts(&self, part: &Part, layer: &LayerAttention) -> bool {
        let scaled = layer.rotation.is_some_and(|r| r.scaled);
        (scaled || !self.is_keys(part)) && layer.window.is_none_or(|window| window > self.window(part))
    }

    /// The declared part of an axis for these layers.
    pub(super) fn part(&self, axis: Axis, layer: &LayerAttention) -> Result<Option<&Part>, RopeError> {
        if self.hp.rope_scaling.spec.is_some() {
            let spec = self.spec.as_ref().map_err(Clone::clone)?;
            if let Some(part) = spec.of_axis(axis).filter(|part| self.acts(part, layer)) {
                return Ok(Some(part));
            }
        }
        match axis {
            Axis::Frequency => self.of_keys(layer),
            Axis::Reach => Ok(None),
        }
    }

    fn of_keys(&self, layer: &LayerAttention) -> Result<Option<&Part>, RopeError> {
        match layer.rotation.is_some_and(|r| r.scaled) {
            true => self.keys.as_ref().map(Option::as_ref).map_err(Clone::clone),
            false => Ok(None),
        }
    }

    /// The declared frequencies of layers that see everything.
    fn frequencies(&self) -> Option<&Part> {
        let of_spec = self.spec.as_ref().ok().filter(|_| self.hp.rope_scaling.spec.is_some());
        let of_keys = || self.keys.as_ref().ok().and_then(Option::as_ref);
        of_spec.and_then(|spec| spec.of_axis(Axis::Frequency)).or_else(of_keys)
    }

    /// The window that a linear scaling without one counts from: files with such a scaling give the context that it
    /// reaches.
    fn linear_window(&self) -> Option<usize> {
        let scaling = &self.hp.rope_scaling;
        let named = scaling.n_ctx_orig.is_some() && !scaling.n_ctx_orig_kept;
        let linear = matches!(scaling.kind.as_deref(), None | Some("linear"));
        let factor = self.keys.as_ref().ok()?.as_ref()?.get("factor")?.as_f64()?;
        (linear && !named).then(|| ((self.hp.n_ctx_orig() as f64 / factor).round() as usize).max(1))
    }

    /// The trained window that a part counts from: for frequencies that of the model without any scaling, for a reach
    /// over the declared frequencies the context that these were made for.
    fn original(&self, part: &Part) -> usize {
        part.original().unwrap_or_else(|| match part.method().axis {
            Axis::Frequency => self.linear_window().unwrap_or_else(|| self.hp.n_ctx_orig()),
            Axis::Reach if self.kept => self.reached(),
            Axis::Reach => self.hp.n_ctx_orig(),
        })
    }

    /// The window within which a part has nothing to do: `original`, or the whole context of a linear scaling.
    fn window(&self, part: &Part) -> usize {
        let whole = match part.method().axis {
            Axis::Frequency => self.linear_window().map(|_| self.hp.n_ctx_orig()),
            Axis::Reach => None,
        };
        self.original(part).max(whole.unwrap_or(0))
    }

    /// The context that the declared frequencies were made for, tokens.
    fn reached(&self) -> usize {
        match self.frequencies() {
            Some(own) if !own.asks_for_nothing() && *own.method() != super::plain::METHOD => {
                let original = self.original(own) as f64;
                let reached = (original * self.factor_over(original)).round().min(MAX_CTX as f64);
                self.hp.n_ctx_train.max(reached as usize)
            }
            _ => self.hp.n_ctx_orig(),
        }
    }

    /// The declared scaling as a factor over a window of `original` tokens, 1 without any.
    fn factor_over(&self, original: f64) -> f64 {
        let Some(own) = self.frequencies() else { return 1.0 };
        let from = self.original(own);
        let factor = match own.get("factor").and_then(Value::as_f64) {
            Some(factor) => factor,
            // Factors of single pairs, which no number stands for, are in use beyond the window alone.
            None if self.is_keys(own) && self.n_ctx > from => self.hp.n_ctx_train as f64 / from as f64,
            None => 1.0,
        };
        (factor * from as f64 / original).max(1.0)
    }

    /// Layers without any scaling, with the numbers that methods work from; `None` for those that are not rotated.
    pub(super) fn unscaled(
        &self,
        layer: &LayerAttention,
    ) -> Result<Option<(LayerPlan, Geometry<'a>)>, RopeError> {
        let Some(geo) = Geometry::new(self.hp, layer, self.n_ctx, None)? else { return Ok(None) };
        Ok(Some((LayerPlan::new(layer, geo.table(geo.freq_base)?), geo)))
    }

    /// Lets a method change the plan of one kind of rotated layer.
    pub(super) fn apply(
        &self,
        part: &Part,
        layer: &LayerAttention,
        plan: &mut LayerPlan,
    ) -> Result<Resolved, RopeError> {
        let (method, n_ctx) = (part.method(), self.n_ctx);
        let mut args = Args::new(method, part);
        let geo = Geometry::new(self.hp, layer, n_ctx, Some(self.original(part)))?.ok_or_else(|| {
            RopeError::new(format!("rope method {}: the layer has no rotation", method.name))
        })?;
        let left = (self.of_file || self.is_declared(part)).then_some(&self.left);
        let geo = Geometry { own_factor: self.factor_over(geo.n_ctx_orig as f64), left, ..geo };
        let original = args.count("original", || geo.n_ctx_orig as u64)?;
        let before = plan.clone();
        (method.apply)(&geo, &mut args, plan)?;
        let method_idle = plan.same_within(&before, geo.n_ctx);
        let mut idle = settings::apply(&geo, &mut args, plan)?;
        idle.extend(method_idle.then_some(method.name));
        let window = self.window(part);
        let short = settings::keeps_short(window, n_ctx, &mut args)?;
        let resolved = args.resolved(idle)?;
        if !short {
            return Ok(resolved);
        }
        // Defaults depend on the context: what was given stands for itself at every one.
        let mut given = part.args().to_vec();
        given.retain(|(key, _)| *key != "original");
        given.push(("original", Value::Count(original)));
        *plan = before;
        // A declared part that leaves short contexts alone leaves them as the model was trained.
        let below = match (self.is_declared(part), method.axis) {
            (false, axis) => self.part(axis, layer)?,
            (true, Axis::Frequency) => self.of_keys(layer)?,
            (true, Axis::Reach) => None,
        };
        let evict = below.map(|own| self.apply(own, layer, plan)).transpose()?.is_some_and(|own| own.evict);
        let how = match below.filter(|own| !own.asks_for_nothing()) {
            Some(own) => format!("as the file declares it ({own})"),
            None => "as it is".into(),
        };
        let note = format!(
            "{part} leaves the model {how}: the context of {n_ctx} tokens is within the original context of \
             {window}."
        );
        Ok(Resolved { part: Part::new(method, given), notes: vec![note], evict, idle: Vec::new(), short })
    }

    /// Returns true if a resolved attention method differs from the one that the file declares for these layers, if it
    /// declares any.
    pub(super) fn is_other_reach(&self, part: &Part, layer: &LayerAttention) -> bool {
        let Ok(Some(own)) = self.part(Axis::Reach, layer) else { return false };
        let resolved =
            self.unscaled(layer).ok().flatten().map(|(mut plan, _)| self.apply(own, layer, &mut plan));
        !matches!(resolved, Some(Ok(own)) if own.part == *part)
    }

    /// Returns true if layers turn under `plan` as the file declares; `before` is the plan before its frequency method.
    pub(super) fn turns_as(
        &self,
        plan: &LayerPlan,
        before: &LayerPlan,
        layer: &LayerAttention,
    ) -> Result<bool, RopeError> {
        let Some((mut own, _)) = self.unscaled(layer)? else { return Ok(true) };
        if let Some(part) = self.part(Axis::Frequency, layer)? {
            self.apply(part, layer, &mut own)?;
        }
        // A reach method before it may also have scaled queries and keys.
        let same_scale = (plan.mscale / before.mscale - own.mscale).abs() <= 1e-12 * own.mscale;
        let q_scale = |p: &LayerPlan| (p.q_log_base, p.temperature, p.q_factor);
        let same_queries = before.scales_queries() || q_scale(plan) == q_scale(&own);
        Ok(plan.freqs.same_angles(&own.freqs) && same_scale && same_queries)
    }
}

impl Spec {
    /// The trained window that it counts from on a model, tokens: `original`, where it gives one, else that of the
    /// model without any scaling.
    pub fn n_ctx_orig(&self, hp: &Hparams) -> usize {
        let own = Own::new(hp, hp.n_ctx_train, self, false);
        let first = self.of_axis(Axis::Frequency).or(own.frequencies()).or(self.parts().first());
        let given = self.parts().iter().find_map(Part::original);
        given.or(first.map(|part| own.original(part))).unwrap_or_else(|| hp.n_ctx_orig())
    }
}

/// A declared part as the spec of a plan shows it: with its defaults, but for those that are chosen by the context,
/// which go on following it.
pub(super) fn shown(given: &Part, resolved: &Part) -> Part {
    let auto = Value::Word("auto".into());
    let args = resolved.args().iter().map(|(key, value)| {
        let chosen = given.get(key).is_none_or(|value| *value == auto);
        let accepts = resolved.method().keys().any(|p| p.key == *key && p.kind.accepts(&auto));
        (*key, if chosen && accepts { auto.clone() } else { value.clone() })
    });
    Part::new(resolved.method(), args.collect())
}
