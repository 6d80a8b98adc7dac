//! Writing a rope method into a file's metadata, and taking out the one that is there.

use gguf::{Array, DType, File, Value, Writer};
use ropewalk_core::hparams::{keys, standard_name, Hparams};
use ropewalk_core::rope::{Plan, Spec};

use crate::llama_cpp::{self, Stock};
use crate::{Error, Result};

/// Standard keys that say a rope method, less the architecture's prefix; with everything under
/// `rope.scaling.`.
const STANDARD: &[&str] = &["context_length", "rope.freq_base", "rope.scale_linear"];
const SCALING: &str = "rope.scaling.";

fn is_rope_key(name: &str) -> bool {
    STANDARD.contains(&name) || name.starts_with(SCALING)
}

fn clip(n: f64) -> usize {
    n.clamp(1.0, f64::from(i32::MAX)) as usize
}

/// The context that a spec states by `trained` or `factor`, and how. `hp` is the model as trained.
pub(crate) fn stated_ctx(spec: &Spec, hp: &Hparams) -> Option<(usize, String)> {
    let number = |key: &str| spec.parts().iter().find_map(|p| p.get(key)?.as_f64());
    if let Some(trained) = number("trained") {
        return Some((clip(trained), format!("the {trained} tokens of the spec's trained=")));
    }
    let (factor, original) = (number("factor")?, spec.n_ctx_orig(hp));
    let why = format!("factor {factor} times the original context of {original} tokens");
    Some((clip(original as f64 * factor), why))
}

/// The context to convert for when none is given, and why: what the spec's own factor reaches; for `plain`
/// the trained one; what the file says it was extended to; else four times the trained window. `hp` is the
/// model as trained.
pub fn default_ctx(spec: &Spec, hp: &Hparams) -> (usize, String) {
    let trained = spec.n_ctx_orig(hp);
    if let Some(stated) = stated_ctx(spec, hp) {
        stated
    } else if *spec == Spec::plain() {
        (hp.n_ctx_train, "the model's trained context".into())
    } else if hp.n_ctx_train > trained {
        (
            hp.n_ctx_train,
            format!("the length to which the file extends its original context of {trained} tokens"),
        )
    } else {
        (clip(4.0 * trained as f64), format!("4 times the original context of {trained} tokens"))
    }
}

/// Makes a writer's metadata that of the model before any conversion by this program.
pub fn restore(writer: &mut Writer<'_>, file: &File, arch: &str) {
    if file.value(keys::ORIG_CONTEXT_LENGTH).is_some() {
        // Values kept aside go back to their keys; keys that the model never had are removed.
        let kept = |name: &str| file.value(&format!("{}.{name}", keys::ORIG)).is_some();
        remove(writer, |key| own(arch, key).is_some_and(|name| is_rope_key(name) && !kept(name)));
        for (key, value) in file.metadata() {
            let name = key.strip_prefix(keys::ORIG).and_then(|k| k.strip_prefix('.'));
            if let Some(name) = name.filter(|name| is_rope_key(name)) {
                writer.set(&format!("{arch}.{name}"), value.clone());
            }
        }
    }
    remove(writer, |key| {
        key.starts_with("ropewalk.rope.") || key.starts_with(keys::ORIG) || key == keys::VERSION
    });
}

/// Writes a plan into metadata that [`restore`] has made: standard keys as far as `stock` goes (without it the scaling
/// that they declare stays), what they replace, and (unless the file is for llama.cpp alone) the whole plan. `hp` is the model as trained.
pub fn apply(
    writer: &mut Writer<'_>,
    hp: &Hparams,
    plan: &Plan,
    stock: Option<&Stock>,
    for_llama_cpp: bool,
) -> Result<()> {
    let arch = &hp.arch;
    rename(writer, arch);
    let before: Vec<(String, Value)> = writer
        .metadata()
        .iter()
        .filter_map(|(k, v)| own(arch, k).filter(|n| is_rope_key(n)).map(|n| (n.to_owned(), v.clone())))
        .collect();
    // What other programs cannot be told leaves them the model as it ships, with the scaling that it declares.
    if stock.is_some() {
        remove(writer, |key| {
            own(arch, key).is_some_and(|n| n.starts_with(SCALING) || n == "rope.scale_linear")
        });
    }

    let u32_of = |n: usize, what: &str| {
        u32::try_from(n)
            .map_err(|_| Error::Invalid(format!("{what}: expected at most {}, found {n}", u32::MAX)))
    };
    let n_ctx = u32_of(plan.n_ctx, "context")?;
    writer.set(&format!("{arch}.context_length"), Value::U32(n_ctx));
    if let Some(stock) = stock {
        let mut set = |name: &str, value: Option<Value>| {
            if let Some(value) = value {
                writer.set(&format!("{arch}.{name}"), value);
            }
        };
        set("rope.freq_base", stock.freq_base.map(Value::F32));
        set("rope.scaling.type", stock.kind.map(Value::from));
        set("rope.scaling.factor", stock.factor.map(Value::F32));
        set("rope.scaling.attn_factor", stock.attn_factor.map(Value::F32));
        set("rope.scaling.original_context_length", stock.n_ctx_orig.map(Value::U32));
    }
    // Without this key they take the context for the trained window, and it was just changed.
    let counts = matches!(hp.rope_scaling.kind.as_deref(), Some("yarn" | "longrope"));
    if stock.is_none() && counts && hp.rope_scaling.n_ctx_orig.is_none() {
        let n = u32_of(hp.n_ctx_train, "context_length")?;
        writer.set(&format!("{arch}.rope.scaling.original_context_length"), Value::U32(n));
    }
    writer.set(keys::VERSION, env!("CARGO_PKG_VERSION"));
    if !for_llama_cpp {
        let spec = plan.frozen(hp)?;
        writer.set(keys::SPEC, spec.to_string().as_str());
        if spec != plan.spec {
            writer.set(keys::DERIVED_FROM, plan.spec.to_string().as_str());
        }
        if let Some(bases) = plan.bases() {
            writer.set(keys::BASES, Value::Array(Array::F64(bases.to_vec())));
        }
        writer.set(keys::N_CTX, Value::U32(n_ctx));
        writer.set(keys::N_CTX_ORIG, Value::U32(u32_of(plan.n_ctx_orig(hp), "original")?));
    }
    for (name, value) in before {
        writer.set(&format!("{}.{name}", keys::ORIG), value);
    }
    if stock.is_some_and(|s| s.rope_freqs.is_some() || s.long_factors.is_some()) {
        let factors = hp.rope_scaling.freq_factors.clone().unwrap_or_default();
        writer.set(keys::ORIG_ROPE_FREQS, Value::Array(Array::F32(factors)));
    }
    if stock.is_some_and(|s| s.long_factors.is_some()) {
        writer.set(keys::ORIG_ROPE_FACTORS, Value::Bool(false));
    }
    Ok(())
}

/// Declares, in metadata copied from a file, the method that its weights were trained under at a context of `n_ctx`
/// tokens, as [`convert`](crate::convert) would. Returns the fate of the file's tensors of factors.
///
/// # Errors
/// Returns an error if the method does not support the model or the context.
pub fn declare(writer: &mut Writer<'_>, file: &File, spec: &Spec, n_ctx: usize) -> Result<FactorTensors> {
    let hp = Hparams::as_trained(file)?;
    let stated = stated_ctx(spec, &hp).map_or(0, |(stated, _)| stated);
    let plan = Plan::new(spec, &hp, n_ctx.max(stated).max(hp.n_ctx_train))?;
    let stock = llama_cpp::say(&plan, &hp, false).ok();
    restore(writer, file, &hp.arch);
    apply(writer, &hp, &plan, stock.as_ref(), false)?;
    Ok(factors(file, &hp, stock.as_ref()))
}

/// Gives keys of other writers llama.cpp's names. Those of the scaling are kept as they are, all together.
fn rename(writer: &mut Writer<'_>, arch: &str) {
    let found: Vec<(String, &str, Value)> = writer
        .metadata()
        .iter()
        .filter_map(|(key, value)| {
            let name = own(arch, key).filter(|name| !name.starts_with(SCALING))?;
            Some((key.clone(), standard_name(name)?, value.clone()))
        })
        .collect();
    for (key, name, value) in found {
        let standard = format!("{arch}.{name}");
        if !writer.metadata().iter().any(|(key, _)| *key == standard) {
            writer.set(&standard, value);
        }
        writer.remove(&key);
    }
}

/// The fate of one factor tensor.
#[derive(Debug, Clone, PartialEq)]
pub enum Factors {
    /// Copied with the others, or absent as before.
    Same,
    /// Left out.
    Dropped,
    /// Written with these values, F32.
    New(Vec<f32>),
}

impl Factors {
    /// Adds the tensor, if it is a new one.
    pub fn add(&self, writer: &mut Writer<'_>, name: &str) -> Result<()> {
        if let Factors::New(values) = self {
            let bytes: Vec<u8> = values.iter().flat_map(|x| x.to_le_bytes()).collect();
            writer.tensor_bytes(name, DType::F32, &[values.len() as u64], bytes)?;
        }
        Ok(())
    }
}

/// Names of tensors of factors, and the fate of each.
pub type FactorTensors = Vec<(&'static str, Factors)>;

/// The fate of each tensor of factors: it has those of `stock`, else the model's own from before a method was baked into
/// it. `rope_freqs.weight` and the factors of longrope stand in each other's place.
pub fn factors(file: &File, hp: &Hparams, stock: Option<&Stock>) -> FactorTensors {
    let own = &hp.rope_scaling;
    let long = stock.and_then(|s| s.long_factors.clone());
    let freqs = match stock.and_then(|s| s.rope_freqs.clone()) {
        Some(factors) => Factors::New(factors),
        None if long.is_some() => Factors::Dropped,
        None if file.value(keys::ORIG_ROPE_FREQS).is_none() => Factors::Same,
        None => own.freq_factors.clone().map_or(Factors::Dropped, Factors::New),
    };
    let baked = file.value(keys::ORIG_ROPE_FACTORS).is_some();
    let (long, short) = match long {
        Some(long) => {
            let short = own.freq_factors.clone().unwrap_or_else(|| vec![1.0; long.len()]);
            (Factors::New(long), Factors::New(short))
        }
        None if baked => (Factors::Dropped, Factors::Dropped),
        None => (Factors::Same, Factors::Same),
    };
    vec![
        ("rope_freqs.weight", freqs),
        ("rope_factors_long.weight", long),
        ("rope_factors_short.weight", short),
    ]
}

/// A key's name less the architecture's prefix.
fn own<'k>(arch: &str, key: &'k str) -> Option<&'k str> {
    key.strip_prefix(arch)?.strip_prefix('.')
}

fn remove(writer: &mut Writer<'_>, gone: impl Fn(&str) -> bool) {
    let keys: Vec<String> =
        writer.metadata().iter().filter(|(k, _)| gone(k)).map(|(k, _)| k.clone()).collect();
    for key in keys {
        writer.remove(&key);
    }
}
