//! The spec grammar: `name[:key=value[,key=value]...]` joined by `+`.

use std::fmt;
use std::str::FromStr;

use super::value::{shown, suggestion};
use super::{Method, RopeError, Value, METHODS, PLANNED};

/// Longest spec read; 128 HARPE bases written in full take about 3 kB.
const MAX_LEN: usize = 1 << 16;

/// What the user wrote: `name[:key=value[,key=value]...]` joined by `+`. `parse(print(s)) == s`.
///
/// Held in canonical form: known names, valid values, parameters in the method's own order, numbers in their shortest spelling.
///
/// ```
/// use ropewalk_core::rope::Spec;
/// let spec: Spec = "yarn:original=8192,factor=4.0".parse()?;
/// assert_eq!(spec.to_string(), "yarn:factor=4,original=8192");
/// # Ok::<(), ropewalk_core::rope::RopeError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Spec {
    parts: Vec<Part>,
}

/// One method of a spec with the parameters given for it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Part {
    name: &'static str,
    args: Vec<(&'static str, String)>,
}

impl Part {
    /// The method's name.
    pub fn name(&self) -> &'static str {
        self.name
    }
    /// Keys and canonical values, in the method's own order.
    pub fn args(&self) -> &[(&'static str, String)] {
        &self.args
    }
    /// A parameter's canonical text, if given.
    pub fn get(&self, key: &str) -> Option<&str> {
        self.args.iter().find(|(k, _)| *k == key).map(|(_, v)| v.as_str())
    }
    /// The registered method.
    pub(super) fn method(&self) -> Result<&'static dyn Method, RopeError> {
        find(self.name)
    }
    /// A part from checked values, put into the method's order.
    pub(super) fn new(method: &'static dyn Method, values: &[(&'static str, Value)]) -> Part {
        let args = method
            .params()
            .iter()
            .filter_map(|p| {
                values.iter().find(|(k, _)| *k == p.key).map(|(_, value)| (p.key, value.to_string()))
            })
            .collect();
        Part { name: method.name(), args }
    }
}

impl Spec {
    /// The model's own frequencies and plain causal attention.
    pub fn plain() -> Spec {
        Spec { parts: vec![Part { name: super::plain::NAME, args: Vec::new() }] }
    }
    /// Its methods, at most one per axis, in the order written.
    pub fn parts(&self) -> &[Part] {
        &self.parts
    }
    /// The part of that method, if the spec has it.
    pub fn part(&self, name: &str) -> Option<&Part> {
        self.parts.iter().find(|p| p.name == name)
    }
    pub(super) fn from_parts(parts: Vec<Part>) -> Spec {
        Spec { parts }
    }
    /// Whether every method and parameter of `other` is here with the same value.
    pub(super) fn contains(&self, other: &Spec) -> bool {
        self.parts.len() == other.parts.len()
            && other.parts.iter().all(|o| {
                self.part(o.name).is_some_and(|p| o.args.iter().all(|(k, v)| p.get(k) == Some(v.as_str())))
            })
    }
}

impl FromStr for Spec {
    type Err = RopeError;
    fn from_str(s: &str) -> Result<Self, RopeError> {
        if s.len() > MAX_LEN {
            return Err(RopeError(format!("rope spec: expected at most {MAX_LEN} bytes, found {}", s.len())));
        }
        let mut parts: Vec<Part> = Vec::new();
        for text in s.split('+') {
            let part = parse_part(text.trim())?;
            let axis = part.method()?.axis();
            for other in &parts {
                if other.method()?.axis() == axis {
                    return Err(RopeError(format!(
                        "rope spec: {} and {} are both {axis} methods; a spec takes one of each axis",
                        other.name, part.name
                    )));
                }
            }
            parts.push(part);
        }
        Ok(Spec { parts })
    }
}

fn parse_part(text: &str) -> Result<Part, RopeError> {
    let (name, rest) = text.split_once(':').map_or((text, None), |(n, r)| (n.trim(), Some(r)));
    let method = find(name)?;
    let mut values: Vec<(&'static str, Value)> = Vec::new();
    for pair in rest.into_iter().flat_map(|r| r.split(',')) {
        let Some((key, value)) = pair.split_once('=') else {
            return Err(RopeError(format!("rope method {name}: expected key=value, found {}", shown(pair))));
        };
        let key = key.trim();
        let Some(param) = method.params().iter().find(|p| p.key == key) else {
            let known = || method.params().iter().map(|p| p.key);
            return Err(RopeError(format!(
                "rope method {name}: unknown parameter {}{}; known: {}",
                shown(key),
                suggestion(key, known()),
                known().collect::<Vec<_>>().join(", ")
            )));
        };
        if values.iter().any(|(k, _)| *k == key) {
            return Err(RopeError(format!("rope method {name}: {key} is given twice")));
        }
        values.push((param.key, param.kind.parse(name, key, value.trim())?));
    }
    Ok(Part::new(method, &values))
}

fn find(name: &str) -> Result<&'static dyn Method, RopeError> {
    if let Some(m) = METHODS.iter().find(|m| m.name() == name) {
        return Ok(*m);
    }
    let known = METHODS.iter().map(|m| m.name()).collect::<Vec<_>>();
    if PLANNED.contains(&name) {
        return Err(RopeError(format!(
            "rope method {name}: this build does not have it yet; it has: {}",
            known.join(", ")
        )));
    }
    Err(RopeError(format!(
        "unknown rope method {}{}; known: {}",
        shown(name),
        suggestion(name, known.iter().copied()),
        known.join(", ")
    )))
}

impl fmt::Display for Spec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, part) in self.parts.iter().enumerate() {
            write!(f, "{}{part}", if i == 0 { "" } else { "+" })?;
        }
        Ok(())
    }
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)?;
        for (i, (key, value)) in self.args.iter().enumerate() {
            write!(f, "{}{key}={value}", if i == 0 { ':' } else { ',' })?;
        }
        Ok(())
    }
}

impl serde::Serialize for Spec {
    fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}
