//! Which modules an adapter is of: PEFT makes pairs for these, and drops tensors of others.

use std::collections::BTreeSet;
use std::path::Path;

use regex::Regex;
use serde_json::{Map, Value};

use super::{patterns, refuse, shown};
use crate::Result;

/// Most names in a list. Some tools write one for each module, of which the largest models have some thousand.
const MAX_NAMES: usize = 1 << 14;
/// Most of `layers_pattern`, each of which is compiled.
const MAX_LAYERS_PATTERNS: usize = 16;
/// Longest regular expression, bytes.
const MAX_BYTES: usize = 4096;

/// `target_modules`, `exclude_modules` and `layers_to_transform`.
pub(super) struct Targets {
    targets: Modules,
    excluded: Modules,
    layers: Option<BTreeSet<u64>>,
    /// How a layer's number is found: the first group.
    layer: Vec<Regex>,
    saved: Vec<String>,
}

/// Modules, as a key of the file says them.
enum Modules {
    /// The key is not there.
    Unsaid,
    /// Ends of names.
    Names(Vec<String>),
    /// The whole name.
    Regex(Box<Regex>),
    /// Every linear map but the output.
    AllLinear,
}

impl Targets {
    /// Reads the targets from a file's keys. Adds a note for an expression that only Python reads.
    pub(super) fn read(
        path: &Path,
        config: &Map<String, Value>,
        saved: &[String],
        notes: &mut Vec<String>,
    ) -> Result<Targets> {
        let targets = Modules::read(path, config, "target_modules", notes)?;
        let excluded = Modules::read(path, config, "exclude_modules", notes)?;
        let key = "layers_to_transform";
        let wrong = |v: &Value| {
            refuse(
                path,
                key,
                format!("expected a number or a list of numbers, found {}", shown(&v.to_string())),
            )
        };
        let layers = match config.get(key) {
            None | Some(Value::Null) => None,
            Some(Value::Array(list)) if list.is_empty() => None,
            // PEFT refuses layers along with an expression.
            _ if !matches!(targets, Modules::Names(_)) => None,
            Some(Value::Array(list)) => {
                let list = list.iter().map(Value::as_u64).collect::<Option<BTreeSet<_>>>();
                Some(list.ok_or_else(|| wrong(&config[key]))?)
            }
            Some(one) => Some(BTreeSet::from([one.as_u64().ok_or_else(|| wrong(one))?])),
        };
        let key = "layers_pattern";
        let mut layer = Vec::new();
        if layers.is_some() {
            let patterns = strings(path, config, key)?.unwrap_or_default();
            if patterns.len() > MAX_LAYERS_PATTERNS {
                let what =
                    format!("expected at most {MAX_LAYERS_PATTERNS} patterns, found {}", patterns.len());
                return Err(refuse(path, key, what));
            }
            for pattern in patterns {
                let found = compiled(&format!(r"^(?:|.*?\.){pattern}\.(?P<idx>\d+)\."), &pattern);
                layer.push(found.map_err(|what| refuse(path, key, what))?);
            }
            if layer.is_empty() {
                let any = compiled(r"^.*?\.[^.]*\.(?P<idx>\d+)\.", "");
                layer.push(any.map_err(|what| refuse(path, key, what))?);
            }
        }
        Ok(Targets { targets, excluded, layers, layer, saved: saved.to_vec() })
    }

    /// Returns true if PEFT makes a pair for a module.
    pub(super) fn has(&self, module: &str) -> bool {
        let is_saved = |name: &String| {
            let inside = format!(".{module}.").contains(&format!(".{name}."));
            !name.is_empty() && inside
        };
        if self.excluded.has(module) || self.saved.iter().any(is_saved) {
            return false;
        }
        if matches!(self.targets, Modules::Unsaid) {
            return true;
        }
        // A whole name is of a layer already.
        if matches!(&self.targets, Modules::Names(names) if names.iter().any(|name| name == module)) {
            return true;
        }
        self.targets.has(module)
            && self.layers.as_ref().is_none_or(|layers| {
                let found = self.layer.iter().find_map(|layer| layer.captures(module));
                let number = found.and_then(|found| found.name("idx")?.as_str().parse().ok());
                number.is_some_and(|number| layers.contains(&number))
            })
    }
}

impl Modules {
    fn read(path: &Path, config: &Map<String, Value>, key: &str, notes: &mut Vec<String>) -> Result<Modules> {
        let text = match config.get(key) {
            Some(Value::String(text)) if text.is_empty() => return Ok(Modules::Unsaid),
            Some(Value::String(text)) => text,
            _ => return Ok(strings(path, config, key)?.map_or(Modules::Unsaid, Modules::Names)),
        };
        if key == "target_modules" && text.eq_ignore_ascii_case("all-linear") {
            return Ok(Modules::AllLinear);
        }
        match compiled(&format!("^(?:{text})$"), text) {
            Ok(regex) => Ok(Modules::Regex(Box::new(regex))),
            Err(what) if key == "target_modules" => {
                // PEFT writes tensors of targets alone.
                notes.push(format!("{key}: {what}: every pair of the file is taken."));
                Ok(Modules::Unsaid)
            }
            Err(what) => Err(refuse(path, key, what)),
        }
    }

    fn has(&self, module: &str) -> bool {
        match self {
            Modules::Unsaid => false,
            Modules::Names(names) => names.iter().any(|name| ends(module, name)),
            Modules::Regex(regex) => regex.is_match(module),
            Modules::AllLinear => !ends(module, "lm_head"),
        }
    }
}

/// Returns true if a name is another one, or its end after a dot.
fn ends(module: &str, name: &str) -> bool {
    module.strip_suffix(name).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
}

/// A name or a list of names; `None` where there is none.
fn strings(path: &Path, config: &Map<String, Value>, key: &str) -> Result<Option<Vec<String>>> {
    let wrong = |found: &Value| {
        refuse(path, key, format!("expected a list of names, found {}", shown(&found.to_string())))
    };
    match config.get(key) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(one)) if one.is_empty() => Ok(None),
        Some(Value::String(one)) => Ok(Some(vec![one.clone()])),
        Some(Value::Array(list)) if list.len() > MAX_NAMES => {
            Err(refuse(path, key, format!("expected at most {MAX_NAMES} names, found {}", list.len())))
        }
        Some(found @ Value::Array(list)) => {
            let names = list.iter().map(|v| v.as_str().map(str::to_owned)).collect::<Option<Vec<_>>>();
            names.map(Some).ok_or_else(|| wrong(found))
        }
        Some(other) => Err(wrong(other)),
    }
}

/// A regular expression, as large as a stranger's may be.
fn compiled(regex: &str, given: &str) -> std::result::Result<Regex, String> {
    let found = shown(given);
    if given.len() > MAX_BYTES {
        return Err(format!("expected an expression of at most {MAX_BYTES} bytes, found {}", given.len()));
    }
    patterns::compiled(regex).map_err(|expected| format!("expected {expected}, found {found}"))
}
