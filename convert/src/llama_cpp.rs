//! A plan in the terms of stock llama.cpp: the standard keys, or which `rope_freqs.weight`, make it compute
//! the same angles.
//!
//! Methods are not looked up by name. Candidates are tried in turn, each is worked out the way llama.cpp
//! would read it ([`Stock::reads_as`]), and the first that gives the plan's own angles and magnitude is
//! taken.

use std::collections::BTreeMap;
use std::path::Path;

use gguf::File;
use ropewalk_core::hparams::{keys, Hparams, LayerRotation};
use ropewalk_core::remedy::Remedy;
use ropewalk_core::rope::{Plan, Spec};
use ropewalk_import::architectures;

use crate::RopeReport;

/// Architectures whose llama.cpp graph both loads and passes on `rope_freqs.weight` (`src/models/*.cpp` of
/// the version this build contains: those that create LLM_TENSOR_ROPE_FREQS and call `get_rope_factors`).
/// Elsewhere the tensor is ignored or refused.
pub const READS_ROPE_FREQS: &[&str] = &[
    "llama",
    "llama4",
    "mistral3",
    "deci",
    "granite",
    "granitehybrid",
    "exaone",
    "exaone4",
    "exaone-moe",
    "arcee",
    "apertus",
];

/// Architectures whose llama.cpp graph loads `rope_factors_long.weight` and `rope_factors_short.weight` and passes on either
/// by the context that is opened: those that create LLM_TENSOR_ROPE_FACTORS_LONG, of the ones that run here.
const READS_LONG_FACTORS: &[&str] = &["llama", "mistral3", "granite", "phi3"];

/// Architectures whose graph in llama.cpp takes the embedding for the output: it refuses a file with an output matrix.
const HAS_NO_OUTPUT: &[&str] = &["gemma2", "cohere2"];

/// Architectures whose graph in llama.cpp requires an output matrix.
const NEEDS_OUTPUT: &[&str] = &["olmo2", "gptneox", "phi2", "gpt-oss"];

/// Architectures that llama.cpp does not rotate (`llama_model_rope_type`).
const NOT_ROTATED: &[&str] = &[
    "clip",
    "gpt2",
    "gptj",
    "mpt",
    "refact",
    "bloom",
    "mamba",
    "mamba2",
    "jamba",
    "jina-bert-v2",
    "t5",
    "t5encoder",
    "jais",
    "rwkv6",
    "rwkv6qwen2",
    "rwkv7",
    "arwkv7",
    "nemotron_h",
    "nemotron_h_moe",
    "kimi-linear",
];

/// Returns true if positions of this architecture are not rotated, so that no RoPE method applies.
pub(crate) fn is_not_rotated(arch: &str) -> bool {
    NOT_ROTATED.contains(&arch)
}

/// Returns the reason why llama.cpp cannot load a file of this architecture with or without an output matrix.
pub(crate) fn refuses_output(arch: &str, has_output: bool) -> Option<String> {
    let list = if has_output { HAS_NO_OUTPUT } else { NEEDS_OUTPUT };
    let what = if has_output { "has no output.weight" } else { "needs an output.weight" };
    list.contains(&arch).then(|| format!("its {arch} graph {what}"))
}

/// [`refuses_output`] as an error of the file that is converted.
pub(crate) fn check_output(file: &File, has_output: bool) -> crate::Result<()> {
    let why = refuses_output(&file.get::<String>("general.architecture")?, has_output);
    let what = |why| format!("{}: stock llama.cpp cannot run it: {why}", file.path().display());
    why.map_or(Ok(()), |why| Err(crate::Error::Invalid(what(why))))
}

/// Largest relative difference of an angle that counts as the same: that of f32 numbers.
pub(crate) const SAME: f64 = 2e-6;

/// The factor of a pair that is not rotated, as in the files of Gemma 4. Infinity would do for its angle, but
/// llama.cpp refuses it where it is asked to check tensors.
pub(crate) const UNROTATED: f32 = 1e30;

/// Radians per position that are none at any length.
const NO_ANGLE: f64 = 1e-20;

/// The standard keys (less the architecture's prefix) and tensor that say a method; `None` is left out of the
/// file.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Stock {
    /// `rope.freq_base`, when it is not the model's own.
    pub freq_base: Option<f32>,
    /// `rope.scaling.type`.
    pub kind: Option<&'static str>,
    /// `rope.scaling.factor`.
    pub factor: Option<f32>,
    /// `rope.scaling.attn_factor`.
    pub attn_factor: Option<f32>,
    /// `rope.scaling.original_context_length`, tokens.
    pub n_ctx_orig: Option<u32>,
    /// `rope_freqs.weight` in place of the model's, `[n_rot/2]`.
    pub rope_freqs: Option<Vec<f32>>,
    /// `rope_factors_long.weight` of a model that has none, `[n_rot/2]`: for contexts above `n_ctx_orig`. Shorter ones run
    /// under the model's own frequencies.
    pub long_factors: Option<Vec<f32>>,
}

/// Returns the reason why llama.cpp cannot run a file: a key of ropewalk's own that llama.cpp does not read, and that
/// changes the logits in contexts of up to `n_ctx`; and the way past it. `hp` is the model as trained.
pub(crate) fn not_read(
    file: &File,
    hp: &Hparams,
    n_ctx: usize,
) -> gguf::Result<Option<(String, Option<Remedy>)>> {
    if file.get_opt(keys::EXPERT_WEIGHTS_NORM)? == Some(false) {
        let key = keys::EXPERT_WEIGHTS_NORM;
        let why =
            format!("it scales the weights of chosen experts to a sum of 1, contrary to the file's {key}");
        return Ok(Some((why, None)));
    }
    let windows = file.value(keys::WINDOWS).map(|_| hp.attention.iter().filter_map(|layer| layer.window));
    let least = windows.and_then(Iterator::min).filter(|&window| window < n_ctx);
    Ok(least.map(|n| {
        let key = keys::WINDOWS;
        let why = format!(
            "it has no window in this architecture, and the file's {key} is {n} tokens; a context of {n} \
             tokens stays within it"
        );
        (why, Some(Remedy::Window))
    }))
}

/// Finds what llama.cpp understands; with `bake` also a `rope_freqs.weight`. `hp` is the model as trained.
///
/// # Errors
/// The reason it cannot be said, as the end of a sentence.
pub fn say(plan: &Plan, hp: &Hparams, bake: bool) -> Result<Stock, String> {
    let freq_base = one_table(plan, hp)?;
    let positions = plan.main();
    let tables = &positions.freqs;
    let n_ctx_orig = u32::try_from(plan.n_ctx_orig(hp)).ok();
    // A magnitude alone is a YaRN that scales by 1: llama.cpp multiplies by attn_factor under any type, other
    // readers under this one.
    let magnitude = |attn_factor| Stock {
        kind: Some("yarn"),
        factor: Some(1.0),
        attn_factor: Some(attn_factor),
        n_ctx_orig,
        ..Stock::default()
    };
    let attn_factor = (positions.mscale != 1.0).then_some(positions.mscale as f32);
    let stock = attn_factor.map_or_else(Stock::default, magnitude);
    let bakes = READS_ROPE_FREQS.contains(&hp.arch.as_str());

    // A graph with an attention temperature takes the length for that from the key of the scaling.
    let floor = hp.attention[0].temperature.map(|t| t.length as u32);
    let keeps_temperature = |mut stock: Stock| {
        let Some(floor) = floor else { return Some(stock) };
        let counts = match stock.kind {
            Some("yarn") => stock.factor != Some(1.0),
            kind => kind == Some("longrope"),
        };
        if counts && stock.n_ctx_orig != Some(floor) {
            return None;
        }
        stock.n_ctx_orig = Some(floor);
        Some(stock)
    };

    let mut candidates = vec![stock.clone()];
    let plain = stock.angles(hp);
    if let (Some(a), Some(b), true) = (plain.first(), tables.theta.first(), attn_factor.is_none() || !bakes) {
        let factor = Some((a / b) as f32);
        candidates.push(Stock { kind: Some("linear"), factor, attn_factor, n_ctx_orig, ..Stock::default() });
    }
    candidates.extend(base_of(plan, hp).map(|b| Stock { freq_base: Some(b as f32), ..stock.clone() }));
    if let Some(yarn) = plan.spec.part("yarn") {
        let number = |key: &str| yarn.get(key)?.as_f64().map(|x| x as f32);
        // Conversions write no rope.scaling.yarn_log_multiplier: what it divides by is in this factor.
        let divisor = match (yarn.get("log-multiplier"), yarn.get("factor").and_then(|s| s.as_f64())) {
            (Some(m), Some(s)) => 0.1 * m.as_f64().unwrap_or(0.0) * s.ln() + 1.0,
            _ => 1.0,
        };
        let attn_factor = yarn.get("attn-factor").and_then(|a| a.as_f64()).unwrap_or(1.0) / divisor;
        let attn_factor = Some(attn_factor as f32).filter(|a| *a != 1.0);
        candidates.push(Stock {
            kind: Some("yarn"),
            factor: number("factor"),
            attn_factor,
            n_ctx_orig,
            ..Stock::default()
        });
    }
    if plan.spec.part("longrope").is_some() {
        candidates.push(Stock { kind: Some("longrope"), attn_factor, n_ctx_orig, ..Stock::default() });
    }
    // A file that keeps such tensors is refused, or read by them, under any other type.
    if !bake && hp.rope_scaling.long_factors.is_some() {
        candidates.retain(|candidate| candidate.kind == Some("longrope"));
    }
    if let Some(found) = candidates.into_iter().filter_map(keeps_temperature).find(|c| c.reads_as(plan, hp)) {
        return Ok(found);
    }
    let factor = |(p, t): (f64, &f64)| if *t == 0.0 { UNROTATED } else { (p / t) as f32 };
    let factors: Vec<f32> = powers(hp, freq_base).zip(&tables.theta).map(factor).collect();
    if bake && plan.spec.part("longrope").is_some() && READS_LONG_FACTORS.contains(&hp.arch.as_str()) {
        let kind = Some("longrope");
        let long =
            Stock { kind, n_ctx_orig, attn_factor, long_factors: Some(factors.clone()), ..Stock::default() };
        if let Some(long) = keeps_temperature(long).filter(|long| long.reads_as(plan, hp)) {
            return Ok(long);
        }
    }
    if !bakes {
        return Err(format!(
            "no scaling key gives these frequencies, and its {} graph does not read rope_freqs.weight (those \
             that do: {})",
            hp.arch,
            READS_ROPE_FREQS.join(" ")
        ));
    }
    if !bake {
        return Err("no scaling key gives these frequencies".into());
    }
    let baked = keeps_temperature(Stock { rope_freqs: Some(factors), ..stock });
    let baked = baked.filter(|baked| baked.reads_as(plan, hp));
    baked.ok_or_else(|| "the frequencies do not fit rope_freqs.weight".into())
}

/// The base of a model whose layers all rotate positions by one table, and differ from the model in nothing else than that
/// and a magnitude.
///
/// # Errors
/// Returns the other difference, as the end of a sentence about another program.
pub(crate) fn one_table(plan: &Plan, hp: &Hparams) -> Result<f64, String> {
    let ([layer], [positions]) = (&hp.attention[..], plan.kinds()) else {
        return Err(
            "the model's layers see positions in different ways, and its keys apply to all layers".into()
        );
    };
    let Some(LayerRotation { freq_base, .. }) = layer.rotation else {
        return Err("the model has no rotation".into());
    };
    if !positions.is_own_reach(layer) {
        return Err("it has no attention over changed positions or a limited reach".into());
    }
    let own_scale = positions.temperature == layer.temperature && positions.q_factor == 1.0;
    if positions.q_log_base.is_some() || !own_scale {
        return Err("it has no attention temperature but the model's own".into());
    }
    let tables = &positions.freqs;
    if tables.tables().skip(1).any(|t| Some(t) != tables.tables().next()) {
        let why = "the frequencies differ from head to head, and it has one table for all heads";
        return Err(why.into());
    }
    Ok(freq_base)
}
/// The command that runs a converted file in stock llama.cpp as it was converted, or why there is none. `rope` is the
/// method that was written, if one was; otherwise what `file` declares counts. `has_output` is of the converted file.
pub(crate) fn serve(
    file: &File,
    rope: Option<&RopeReport>,
    has_output: bool,
    output: &Path,
) -> (Option<String>, Option<String>) {
    // A file that does not run here says nothing of llama.cpp.
    let hp = Hparams::as_trained(file).ok().filter(|hp| architectures().any(|arch| arch == hp.arch));
    let Some(hp) = hp else { return (None, None) };
    let found = match rope {
        Some(RopeReport { why: Some(why), rope, .. }) => Err(format!("{rope}: {why}")),
        Some(RopeReport { n_ctx, .. }) => Ok(*n_ctx),
        None => declared(file),
    };
    let reads_all = |n_ctx| match not_read(file, &hp, n_ctx) {
        Ok(None) => Ok(n_ctx),
        Ok(Some((why, _))) => Err(why),
        Err(e) => Err(e.to_string()),
    };
    let loads = |n_ctx| refuses_output(&hp.arch, has_output).map_or(Ok(n_ctx), Err);
    match found.and_then(reads_all).and_then(loads) {
        Ok(n_ctx) => {
            (Some(format!("llama-server -m {} -c {n_ctx}", quoted(&output.to_string_lossy()))), None)
        }
        Err(why) => (None, Some(why)),
    }
}

/// The context of a file that llama.cpp runs as it declares.
fn declared(file: &File) -> Result<usize, String> {
    let hp = Hparams::from_gguf(file).map_err(|e| e.to_string())?;
    // Keys for several kinds of layers are read as they are.
    if file.value(keys::SPEC).is_some() || hp.attention.len() == 1 {
        let trained = Hparams::as_trained(file).map_err(|e| e.to_string())?;
        let spec = Spec::declared(&hp).map_err(|e| e.to_string())?;
        let plan = Plan::new(&spec, &trained, hp.n_ctx_train).map_err(|e| e.to_string())?;
        say(&plan, &trained, false).map_err(|why| format!("{spec}: {why}"))?;
    }
    Ok(hp.n_ctx_train)
}

/// An argument as a shell takes it.
fn quoted(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-+=:,@%".contains(c);
    match text.chars().all(plain) && !text.is_empty() {
        true => text.to_owned(),
        false => format!("'{}'", text.replace('\'', r"'\''")),
    }
}

fn own_base(hp: &Hparams) -> f64 {
    hp.attention[0].rotation.map_or(1.0, |r| r.freq_base)
}

/// `base^(-2j/d)`.
pub(crate) fn powers(hp: &Hparams, base: f64) -> impl Iterator<Item = f64> {
    let n_rot = hp.attention[0].n_rot();
    let d = n_rot as f64;
    (0..n_rot / 2).map(move |j| base.powf(-2.0 * j as f64 / d))
}

/// The base whose slowest pair is the plan's, if there is more than one pair.
pub(crate) fn base_of(plan: &Plan, hp: &Hparams) -> Option<f64> {
    let n_rot = hp.attention[0].n_rot();
    let j = (n_rot / 2).checked_sub(1).filter(|&j| j > 0)?;
    let factor = hp.rope_scaling.freq_factors.as_ref().map_or(1.0, |f| f64::from(f[j]));
    let base = (plan.kinds()[0].freqs.theta.get(j)? * factor).powf(-(n_rot as f64) / (2.0 * j as f64));
    (base > 1.0 && base < f64::from(f32::MAX)).then_some(base)
}

impl Stock {
    /// Angle per position before scaling, as ggml forms it: powers of the base divided by the factors the
    /// graph passes.
    fn angles(&self, hp: &Hparams) -> Vec<f64> {
        let s = &hp.rope_scaling;
        let factors = match self.kind {
            Some("longrope") if self.long_factors.is_some() => &self.long_factors,
            Some("longrope") => &s.long_factors,
            _ if self.rope_freqs.is_some() => &self.rope_freqs,
            _ => &s.freq_factors,
        };
        let base = self.freq_base.map_or_else(|| own_base(hp), f64::from);
        powers(hp, base)
            .enumerate()
            .map(|(j, p)| p / factors.as_ref().map_or(1.0, |f| f64::from(f[j])))
            .collect()
    }

    /// Returns true if llama.cpp, reading these keys, computes the plan (`llama_context`'s reading of the keys,
    /// `rope_yarn` in ggml).
    pub fn reads_as(&self, plan: &Plan, hp: &Hparams) -> bool {
        let mut theta = self.angles(hp);
        let mut mscale = f64::from(self.attn_factor.unwrap_or(1.0));
        let s = f64::from(self.factor.unwrap_or(1.0));
        if !(s > 0.0 && s.is_finite()) {
            return false;
        }
        match self.kind {
            Some("linear") => theta.iter_mut().for_each(|t| *t /= s),
            Some("yarn") => {
                let (low, high) = corr_dims(hp, plan.n_ctx_orig(hp));
                for (j, t) in theta.iter_mut().enumerate() {
                    let ramp = 1.0 - ((j as f64 - low) / (high - low).max(1e-3)).clamp(0.0, 1.0);
                    *t = *t / s * (1.0 - ramp) + *t * ramp;
                }
                mscale *= if s > 1.0 { 1.0 + 0.1 * s.ln() } else { 1.0 };
            }
            // Chosen by the allocated context; a model with both tensors loads no rope_freqs.weight, and is
            // refused if it has one.
            Some("longrope") => {
                let f = &hp.rope_scaling;
                let readable = match self.long_factors {
                    Some(_) => f.long_factors.is_none(),
                    None => f.long_factors.is_some() && f.freq_factors.is_none(),
                };
                if !readable || plan.n_ctx <= plan.n_ctx_orig(hp) {
                    return false;
                }
            }
            _ => {}
        }
        let same = |a: f64, b: f64| (a - b).abs() <= SAME * a.abs().max(b.abs()).max(NO_ANGLE);
        let positions = &plan.kinds()[0];
        same(mscale, positions.mscale) && theta.iter().zip(&positions.freqs.theta).all(|(a, b)| same(*a, *b))
    }

    /// The keys in words, for reports.
    pub fn describe(&self) -> BTreeMap<&'static str, String> {
        let mut list = BTreeMap::new();
        let mut add = |key, value: Option<String>| list.extend(value.map(|v| (key, v)));
        add("rope.freq_base", self.freq_base.map(|x| x.to_string()));
        add("rope.scaling.type", self.kind.map(str::to_owned));
        add("rope.scaling.factor", self.factor.map(|x| x.to_string()));
        add("rope.scaling.attn_factor", self.attn_factor.map(|x| x.to_string()));
        add("rope.scaling.original_context_length", self.n_ctx_orig.map(|x| x.to_string()));
        add("rope_freqs.weight", self.rope_freqs.as_ref().map(|f| format!("{} factors", f.len())));
        add("rope_factors_long.weight", self.long_factors.as_ref().map(|f| format!("{} factors", f.len())));
        list
    }
}

/// Where YaRN's ramp begins and ends at 32 and 1 turns, in f32 as ggml does. The graphs of our architectures
/// do not read the keys that would move them.
fn corr_dims(hp: &Hparams, n_ctx_orig: usize) -> (f64, f64) {
    let d = hp.attention[0].n_rot() as f32;
    let dim = |turns: f32| {
        let pi = std::f32::consts::PI;
        d * (n_ctx_orig as f32 / (turns * 2.0 * pi)).ln() / (2.0 * (own_base(hp) as f32).ln())
    };
    (f64::from(dim(32.0).floor().max(0.0)), f64::from(dim(1.0).ceil().min(d - 1.0)))
}
