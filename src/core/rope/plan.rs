//! The plan of a rope spec for one model and one context length, by kind of layer.

use super::layer_plan::LayerPlan;
use super::method::{check_contexts, check_size, Resolved};
use super::own::{self, Own};
use super::{settings, Axis, Part, Reach, RopeError, Spec, Value};
use crate::hparams::{Hparams, LayerAttention};
use crate::text::count;

/// A rope method worked out for one model and one context length. Fixed for the life of a session.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    /// The spec with every default filled in, and with the frequencies that were kept. Parsing it again gives this
    /// plan, notes aside: at any context length, but for `keep-short`, `dynamic-ntk` with `trained`, `clex` without
    /// `factor` and `factors=auto` of `longrope`, which are to follow the context and give it at the same one.
    pub spec: Spec,
    /// Tokens the plan was made for.
    pub n_ctx: usize,
    /// Keys that no later query of any layer sees leave the cache.
    pub evict: bool,
    /// Facts and warnings a user should see, whole sentences.
    pub notes: Vec<String>,
    kinds: Vec<LayerPlan>,
    /// Index into `kinds` for each layer; `None` in layers without attention.
    layers: Vec<Option<usize>>,
}

impl Plan {
    /// Works a spec out. [`Spec::DECLARED`] is what the file declares.
    ///
    /// A spec that names frequencies replaces those that the file declares, and is never added to them: only the
    /// trained window stays, as the default of `original`, and the declared factor, below which no default goes. A spec
    /// of a reach method alone keeps them, as the model was trained with them, and the plan's spec names them. Its
    /// `original` is then the context that they were made for. Where `keep-short` applies, the layers are as declared.
    ///
    /// A method acts on the kinds of layer that are rotated and see further than the trained window. The
    /// others keep the rotation that the file declares for them and their own sliding window.
    ///
    /// Methods of both axes work their defaults out alone, each for the whole context: `yarn+self-extend` at
    /// twice the trained window has factor 2 and the group that reaches it without yarn. No distance leaves
    /// the trained range, but positions are told apart less well than they need be: give `factor` and `group`
    /// to share the work.
    pub fn new(spec: &Spec, hp: &Hparams, n_ctx: usize) -> Result<Plan, RopeError> {
        Plan::within(spec, hp, n_ctx, false)
    }

    /// [`Plan::new`] for a spec out of a file, such as an adapter or a saved session: it may not ask for a search that
    /// takes long. What the model's file declares is held to the same limit in every plan.
    ///
    /// # Errors
    /// Returns the errors of [`Plan::new`], and an error if the search is too large.
    pub fn of_file(spec: &Spec, hp: &Hparams, n_ctx: usize) -> Result<Plan, RopeError> {
        Plan::within(spec, hp, n_ctx, true)
    }

    fn within(spec: &Spec, hp: &Hparams, n_ctx: usize, of_file: bool) -> Result<Plan, RopeError> {
        check_contexts(hp, n_ctx, hp.n_ctx_orig())?;
        check_size(hp)?;
        if spec.is_declared() {
            return Plan::within(&Spec::declared(hp)?, hp, n_ctx, true);
        }
        let scales = |p: &Part| p.get("log-scale").is_some_and(|v| v.to_string() == "true");
        let temperature = spec.parts().iter().find_map(|p| p.get("temperature"));
        if let Some(value) = temperature.filter(|_| spec.parts().iter().any(scales)) {
            return Err(RopeError::new(format!(
                "rope setting temperature={value}: queries are already multiplied by log-scale; omit one of the two"
            )));
        }
        let own = Own::new(hp, n_ctx, spec, of_file);
        let mut work = Work::new(hp, spec, &own);
        let kinds = (0..hp.attention.len()).map(|k| work.kind(k)).collect::<Result<Vec<_>, _>>()?;
        work.parts.iter().flatten().for_each(|(_, part, idle)| {
            work.notes.extend(idle_note(part, idle, n_ctx));
        });
        let resolved = work.parts.iter().zip(spec.parts()).map(|(part, given)| match part {
            Some((_, part, _)) => Ok(part.clone()),
            None if given.asks_for_nothing() => Ok(given.clone()),
            None => Err(without_effect(given, hp)),
        });
        let resolved = resolved.collect::<Result<Vec<_>, _>>()?;
        let declared = work.declared_note(&Spec::from_parts(resolved.clone()));
        let Work { mut notes, evict, kept, .. } = work;
        let spec = Spec::from_parts(kept.into_iter().chain(resolved).collect());
        notes.extend(declared);
        // Under `plain` only those that keep a declared scaling are worth a word.
        let is_scaled = |kind: usize, k: &LayerPlan| matches!(own.unscaled(&hp.attention[kind]), Ok(Some((plain, _))) if !plain.same_positions(k));
        let left_alone = kinds
            .iter()
            .enumerate()
            .filter(|(kind, k)| !k.applies && (spec != Spec::plain() || is_scaled(*kind, k)));
        for (kind, _) in left_alone {
            let who = layer_list(hp.layers_of(kind));
            notes.push(match hp.attention[kind].window.filter(|_| hp.attention[kind].rotation.is_some()) {
                Some(n) => format!("Unchanged: {who} (a window of {n} tokens, no longer than in training)."),
                None => format!("Unchanged: {who} (no rotation)."),
            });
        }
        if hp.delta_net.is_some() && spec != Spec::plain() {
            let who = layer_list(hp.recurrent_layers());
            notes.push(format!("Unchanged: {who} (gated delta-net: neither attention nor positions)."));
        }
        let layers = hp.layers.iter().map(|l| l.kind).collect();
        let plan = Plan { spec, n_ctx, evict, notes, kinds, layers };
        if plan.evict && plan.reaches().iter().any(|r| r.most_keys().is_none()) {
            return Err(RopeError::new(format!(
                "rope spec {}: evict: later tokens need every key",
                plan.spec
            )));
        }
        Ok(plan)
    }

    /// The plan of layer `il`; `None` where it has no attention, or is no layer of the model.
    pub fn of_layer(&self, il: usize) -> Option<&LayerPlan> {
        self.kinds.get((*self.layers.get(il)?)?)
    }

    /// The plan of layer `il`, which must be a layer with attention: [`Plan::of_layer`] asks.
    ///
    /// # Panics
    /// For other layers, as slices do.
    pub fn layer(&self, il: usize) -> &LayerPlan {
        &self.kinds[self.layers[il].unwrap_or(usize::MAX)]
    }

    /// A plan for each kind of layer, in the order of [`Hparams::attention`].
    pub fn kinds(&self) -> &[LayerPlan] {
        &self.kinds
    }

    /// The plan of the first kind that the spec acts on, else of the first, for output that shows only
    /// one kind.
    pub fn main(&self) -> &LayerPlan {
        self.kinds.iter().find(|k| k.applies).unwrap_or(&self.kinds[0])
    }

    /// Returns true if tokens are rotated and see each other as under another plan of the same model, even if the specs
    /// have other names.
    pub fn same_positions(&self, other: &Plan) -> bool {
        let same = |(a, b): (&LayerPlan, &LayerPlan)| a.same_positions(b);
        self.evict == other.evict
            && self.layers == other.layers
            && self.kinds.len() == other.kinds.len()
            && self.kinds.iter().zip(&other.kinds).all(same)
    }

    /// The spec with the bases themselves in place of the rule that found them, so that no later version of
    /// the rule changes what a file that declares it means.
    ///
    /// # Errors
    /// When the spec does not give the plan again, which would be a defect of the method.
    pub fn frozen(&self, hp: &Hparams) -> Result<Spec, RopeError> {
        let parts = self.spec.parts().iter().map(|part| match (self.bases(), part.get("bases")) {
            (Some(bases), Some(_)) => {
                let kept = part.method().settings().iter().map(|p| p.key).chain(["original"]);
                let mut values: Vec<_> = kept.map(|key| (key, part.get(key).cloned())).collect();
                values.push(("bases", Some(Value::List(bases.to_vec()))));
                Part::from_values(part.name(), &values)
            }
            _ => Ok(part.clone()),
        });
        let spec = Spec::from_parts(parts.collect::<Result<_, _>>()?);
        if Plan::new(&spec, hp, self.n_ctx)?.same_positions(self) {
            Ok(spec)
        } else {
            Err(RopeError::new(format!("{spec} does not give the plan of {}", self.spec)))
        }
    }

    /// One base per KV head, for methods that have them (HARPE), if all layers that are rotated by such bases have the same.
    pub fn bases(&self) -> Option<&[f64]> {
        let mut all = self.kinds.iter().filter_map(|k| k.bases.as_deref());
        let first = all.next()?;
        all.all(|bases| bases == first).then_some(first)
    }

    /// Returns true if in every layer each query sees every key before it, at its own distance.
    pub fn is_plain_reach(&self) -> bool {
        self.kinds.iter().all(LayerPlan::is_plain_reach)
    }

    /// Returns true if query `from` or any later query can see key `j`, in any layer.
    pub fn needs(&self, j: i32, from: i32) -> bool {
        self.kinds.iter().flat_map(|k| &k.branches).any(|b| b.reach.needs(j, from))
    }

    /// Tokens a cache must hold for one sequence of any length, when keys are evicted.
    pub fn n_held(&self) -> Option<usize> {
        let counts = || self.reaches().iter().map(Reach::most_keys).sum::<Option<usize>>();
        self.evict.then(counts).flatten()
    }

    /// The trained window this plan counts from, tokens: `original` of its spec, else the file's.
    pub fn n_ctx_orig(&self, hp: &Hparams) -> usize {
        self.spec.n_ctx_orig(hp)
    }

    /// A context of `n_ctx` tokens next to those of the model, which differ if the file declares a scaling.
    pub fn context_text(&self, n_ctx: usize, hp: &Hparams) -> String {
        let [n_ctx, train, orig] = [n_ctx, hp.n_ctx_train, self.n_ctx_orig(hp)].map(|n| count(n as u64));
        match train == orig {
            true => format!("context {n_ctx} (trained {train})"),
            false => format!("context {n_ctx} (declared {train}, original {orig})"),
        }
    }

    /// The distinct sets of pairs that some layer covers.
    fn reaches(&self) -> Vec<Reach> {
        let mut reaches: Vec<Reach> = Vec::new();
        for branch in self.kinds.iter().flat_map(|k| &k.branches) {
            if !reaches.contains(&branch.reach) {
                reaches.push(branch.reach);
            }
        }
        reaches
    }
}

/// A spec being worked out, kind by kind.
struct Work<'a> {
    hp: &'a Hparams,
    spec: &'a Spec,
    own: &'a Own<'a>,
    notes: Vec<String>,
    evict: bool,
    /// For each part of the spec, the first kind it acted on, what it came to there, and what of it changed
    /// nothing in any.
    parts: Vec<Option<(usize, Part, Vec<&'static str>)>>,
    /// The declared frequencies that a spec of a reach alone keeps, as the plan's spec names them.
    kept: Option<Part>,
    /// True if some layers turn differently from the file's declaration.
    replaced: bool,
    /// True if some layers have another attention pattern than the file declares.
    other_reach: bool,
    /// True if `keep-short` left the frequencies of some layers as the file declares them.
    short: bool,
}

impl<'a> Work<'a> {
    fn new(hp: &'a Hparams, spec: &'a Spec, own: &'a Own<'a>) -> Work<'a> {
        let parts = vec![None; spec.parts().len()];
        let (notes, kept) = (Vec::new(), None);
        let (evict, replaced, other_reach, short) = (false, false, false, false);
        Work { hp, spec, own, notes, evict, parts, kept, replaced, other_reach, short }
    }

    fn kind(&mut self, kind: usize) -> Result<LayerPlan, RopeError> {
        let (hp, spec, own) = (self.hp, self.spec, self.own);
        let layer = &hp.attention[kind];
        let Some((mut plan, geo)) = own.unscaled(layer)? else {
            return Ok(LayerPlan::new(layer, Vec::new()));
        };
        let acts = |axis| spec.of_axis(axis).is_some_and(|part| own.acts(part, layer));
        let (turns, reaches) = (acts(Axis::Frequency), acts(Axis::Reach));
        plan.applies = turns || reaches;
        if !turns {
            self.keep(layer, &mut plan)?;
        }
        let mut short = false;
        for (i, given) in spec.parts().iter().enumerate().filter(|(_, part)| own.acts(part, layer)) {
            let before = plan.clone();
            let mut resolved = own.apply(given, layer, &mut plan)?;
            if given.method().axis == Axis::Frequency {
                short = resolved.short;
                let compared = !short && !own.is_nothing();
                self.replaced |= compared && !own.turns_as(&plan, &before, layer).unwrap_or(false);
                if spec.parts().len() > 1 && own.is_keys(given) {
                    resolved.part = own::shown(given, &resolved.part);
                }
            } else if !resolved.short {
                self.other_reach |= own.is_other_reach(&resolved.part, layer);
            }
            let Resolved { part, notes, evict, idle, .. } = resolved;
            self.evict |= evict;
            self.note_all(notes);
            match &mut self.parts[i] {
                None => self.parts[i] = Some((kind, part, idle)),
                Some((_, other, all)) if *other == part => all.retain(|key| idle.contains(key)),
                Some((k, other, _)) => {
                    let (a, b) = (layer_list(hp.layers_of(*k)), layer_list(hp.layers_of(kind)));
                    return Err(RopeError::new(format!(
                        "rope spec {spec}: its defaults are {other} in {a} and {part} in {b}; set the \
                         parameters that differ"
                    )));
                }
            }
        }
        self.short |= short;
        let whole = (short && spec.of_axis(Axis::Reach).is_none()) || !plan.applies;
        if let Some(part) = if whole { own.part(Axis::Reach, layer)? } else { None } {
            self.evict |= own.apply(part, layer, &mut plan)?.evict;
        }
        plan.check(&geo, layer, spec)?;
        Ok(plan)
    }

    /// The declared frequencies, in layers whose frequencies the spec does not change.
    fn keep(&mut self, layer: &LayerAttention, plan: &mut LayerPlan) -> Result<(), RopeError> {
        let (spec, own) = (self.spec, self.own);
        let alone = plan.applies && spec.of_axis(Axis::Frequency).is_none();
        let part = match own.part(Axis::Frequency, layer) {
            // The spec names frequencies, and what the file says of these layers cannot be used: they have the model's base.
            Err(_) if spec.of_axis(Axis::Frequency).is_some() => {
                self.replaced = true;
                return Ok(());
            }
            part => part,
        };
        let part = part.map_err(|e| match alone {
            true => RopeError::new(format!(
                "rope spec {spec} keeps the frequencies that the file declares: {e} (plain+{spec} leaves them out)"
            )),
            false => e,
        })?;
        let Some(part) = part else { return Ok(()) };
        // A spec has one temperature: the one given takes the place of the declared one.
        let mut args = part.args().to_vec();
        if alone && spec.parts().iter().any(|given| given.args().iter().any(|(key, _)| settings::once(key))) {
            args.retain(|(key, _)| !settings::of_temperature(key) && *key != "log-scale");
        }
        let part = Part::new(part.method(), args);
        let resolved = own.apply(&part, layer, plan)?;
        if alone && !(part.asks_for_nothing() && own.no_keys()) {
            self.kept.get_or_insert_with(|| own::shown(&part, &resolved.part));
            if !part.asks_for_nothing() {
                self.note_all(resolved.notes);
            }
        }
        Ok(())
    }

    fn note_all(&mut self, notes: Vec<String>) {
        for note in notes {
            if !self.notes.contains(&note) {
                self.notes.push(note);
            }
        }
    }

    /// Note on the declared scaling under the spec, which was resolved to `resolved`.
    fn declared_note(&self, resolved: &Spec) -> Option<String> {
        let own = match &self.own.spec {
            Ok(_) if self.own.is_nothing() => return None,
            Ok(own) => own,
            Err(e) => {
                return self.replaced.then(|| format!("{resolved} replaces what the file declares ({e})."))
            }
        };
        let reach = resolved.of_axis(Axis::Reach);
        let same_reach = match reach {
            None => self.short || own.of_axis(Axis::Reach).is_none(),
            Some(_) => !self.other_reach,
        };
        match (&self.kept, reach) {
            (Some(_), Some(part)) if same_reach => {
                Some(format!("The file declares {own}: {} keeps it and acts on top.", part.name()))
            }
            (Some(kept), Some(_)) => {
                Some(format!("The file declares {own}; {resolved} keeps {kept} and replaces the rest."))
            }
            _ if !self.replaced && same_reach => None,
            _ if resolved.parts().iter().any(Part::asks_for_nothing) => Some(format!(
                "The file declares {own}; {resolved} replaces it: `{}` is the model as it ships.",
                Spec::DECLARED
            )),
            _ => Some(format!("The file declares {own}; {resolved} replaces it.")),
        }
    }
}

/// The settings of a part that have no effect in any layer it acts on, as a sentence.
fn idle_note(part: &Part, idle: &[&str], n_ctx: usize) -> Option<String> {
    let name = part.name();
    let settings = part.args().iter().filter(|(key, _)| settings::changes(key));
    let (without, with): (Vec<_>, Vec<_>) = settings.partition(|(key, _)| idle.contains(key));
    let list = |settings: &[&(&str, Value)]| {
        settings.iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>().join(" and ")
    };
    let is_plain = *part.method() == super::plain::METHOD;
    let what = match (idle.contains(&name), with.is_empty()) {
        (true, true) if part.asks_for_nothing() => return None,
        (true, true) => part.to_string(),
        (true, false) if !is_plain => format!("{name}, together with {},", list(&with)),
        _ if without.is_empty() => return None,
        _ => format!("{name}: {}", list(&without)),
    };
    Some(format!("{what} changes nothing within the context of {n_ctx} tokens."))
}

/// The refusal of a method that would act on no layer.
fn without_effect(part: &Part, hp: &Hparams) -> RopeError {
    let n = part.original().unwrap_or_else(|| hp.n_ctx_orig());
    let widest = hp.attention.iter().filter(|a| a.rotation.is_some()).filter_map(|a| a.window).max();
    RopeError::new(match widest {
        None => format!("rope method {}: it would change nothing: the model has no rotation", part.name()),
        Some(window) => format!(
            "rope method {}: it would change nothing: rotated layers see attention.sliding_window {window} \
             tokens, no more than the original context of {n}",
            part.name()
        ),
    })
}

/// `layers 0, 1, 2 and 9 more`.
pub(super) fn layer_list(layers: impl Iterator<Item = usize>) -> String {
    let all: Vec<usize> = layers.collect();
    let shown: Vec<String> = all.iter().take(8).map(usize::to_string).collect();
    let more = all.len() - shown.len();
    let rest = if more > 0 { format!(" and {more} more") } else { String::new() };
    format!("layer{} {}{rest}", if all.len() == 1 { "" } else { "s" }, shown.join(", "))
}
