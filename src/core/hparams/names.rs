//! Names of metadata keys: those of other writers for a key of llama.cpp, and those that nobody reads.

use std::cell::RefCell;
use std::collections::BTreeSet;

use gguf::{File, FromValue, Value};

use super::KeyReader;
use crate::terminal::inline;

/// Keys of llama.cpp, each with the name that a file of ollama's converter may have for it. llama.cpp's name goes first.
/// `rope.scaling.mscale` means no key alone: [`super::RopeScaling`] reads it.
const OTHERS: &[(&str, &str)] = &[
    ("rope.scaling.yarn_beta_fast", "rope.scaling.beta_fast"),
    ("rope.scaling.yarn_beta_slow", "rope.scaling.beta_slow"),
    ("rope.scaling.yarn_ext_factor", "rope.scaling.extrapolation_factor"),
    ("rope.scaling.yarn_log_multiplier", "rope.scaling.mscale_all_dim"),
    ("attention.temperature_scale", "rope.scaling_beta"),
    ("rope.freq_base", "rope.global.freq_base"),
    ("rope.freq_base_swa", "rope.local.freq_base"),
    ("rope.dimension_sections", "rope.mrope_section"),
    ("attention.key_length", "attention.head_dim"),
    ("attention.value_length", "attention.head_dim"),
];

/// Keys that change nothing that is computed here, whatever they say: what they state follows from other keys, or is for
/// images.
const IDLE: &[&str] = &[
    "attention.layer_norm_epsilon",
    "attention.layer_norm_rms_epsilon",
    "rope.scaling.finetuned",
    "rope.dimension_sections",
    "rope.mrope_section",
    "rope.mrope_interleaved",
];

/// Characters of a value in a note.
const MAX_SHOWN: usize = 80;

/// llama.cpp's name for a key of another writer, both without the architecture. A key that has several is not renamed.
pub fn standard_name(name: &str) -> Option<&'static str> {
    let mut found = OTHERS.iter().filter(|(_, other)| *other == name);
    let first = found.next()?;
    found.next().is_none().then_some(first.0)
}

/// The name under which a file has a key: llama.cpp's, unless only another writer's is there.
pub(super) fn found(file: &File, prefix: &str, name: &str) -> String {
    let standard = format!("{prefix}.{name}");
    if file.value(&standard).is_some() {
        return standard;
    }
    let others = OTHERS.iter().filter(|(of, _)| *of == name).map(|(_, other)| format!("{prefix}.{other}"));
    others.into_iter().find(|key| file.value(key).is_some()).unwrap_or(standard)
}

/// The names that were asked for, less the prefix.
#[derive(Debug, Default)]
pub(super) struct Seen(RefCell<BTreeSet<String>>);

impl Seen {
    pub(super) fn add(&self, name: &str) {
        // Few names are asked for, and most again in each layer.
        let known = self.0.borrow().contains(name);
        if !known {
            self.0.borrow_mut().insert(name.to_owned());
        }
    }
}

/// The keys of rotation and attention that nothing asked for and that may change what a model computes, with their values.
pub(super) fn unread(keys: &KeyReader<'_>) -> Vec<String> {
    let seen = keys.seen.0.borrow();
    let mut out = Vec::new();
    for (key, value) in keys.file.metadata() {
        let Some(name) = key.strip_prefix(keys.prefix).and_then(|k| k.strip_prefix('.')) else { continue };
        let concerned = ["rope.", "attention."].iter().any(|start| name.starts_with(start));
        if concerned && !seen.contains(name) && !IDLE.contains(&name) && !is_neutral(keys, name, value) {
            let shown: String = value.describe().chars().take(MAX_SHOWN).collect();
            out.push(format!("{} ({})", inline(key), inline(&shown)));
        }
    }
    out
}

/// Returns true if a key only confirms the behavior without it.
fn is_neutral(keys: &KeyReader<'_>, name: &str, value: &Value) -> bool {
    let of = |name: &str| keys.file.value(&found(keys.file, keys.prefix, name));
    let number = |value: &Value| f64::from_value(value).or_else(|| u32::from_value(value).map(f64::from));
    if let Some((standard, _)) = OTHERS.iter().find(|(_, other)| *other == name) {
        // Said twice.
        return of(standard) == Some(value) || number(value) == Some(0.0);
    }
    match name {
        "attention.causal" => *value == Value::Bool(true),
        // A window is read where an architecture has windows, and else no wider than the whole context means none.
        "attention.sliding_window" => {
            let context = of("context_length").and_then(number);
            let whole = number(value).zip(context).is_some_and(|(n, context)| n >= context);
            whole || number(value) == Some(0.0) || keys.file.value(super::keys::WINDOWS).is_some()
        }
        "attention.sliding_window_pattern" => of("attention.sliding_window").is_none(),
        "rope.scaling.mscale" => number(value).is_some_and(|m| m == 0.0 || m == 1.0),
        _ => {
            let base = name.strip_suffix("_swa").and_then(of);
            base == Some(value) || number(value) == Some(0.0)
        }
    }
}
