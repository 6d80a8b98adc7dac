//! The spec grammar: `name[:key=value[,key=value]...]` joined by `+`.

use std::fmt;
use std::str::FromStr;

use crate::settings::{self, quoted, suggestion};

use super::{Axis, Method, Param, RopeError, Value, METHODS};

/// Longest spec read; 128 HARPE bases written in full take about 3 kB.
const MAX_LEN: usize = 1 << 16;

/// A rope spec as a user writes it: `name[:key=value,...]` joined by `+`. `parse(print(s)) == s`.
///
/// `declared` alone is the model as its file declares it.
///
/// It holds known names, checked values, and parameters in the method's own order; printed, numbers have
/// their shortest spelling.
///
/// ```
/// use ropewalk_core::rope::Spec;
/// let spec: Spec = "yarn:original=8192,factor=4.0".parse()?;
/// assert_eq!(spec.to_string(), "yarn:factor=4,original=8192");
/// # Ok::<(), ropewalk_core::rope::RopeError>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct Spec {
    parts: Vec<Part>,
}

/// One method of a spec with the parameters given for it.
#[derive(Debug, Clone, PartialEq)]
pub struct Part {
    method: &'static Method,
    args: Vec<(&'static str, Value)>,
}

impl Part {
    /// The method's name.
    pub fn name(&self) -> &'static str {
        self.method.name
    }
    /// Keys and values, in the method's own order.
    pub fn args(&self) -> &[(&'static str, Value)] {
        &self.args
    }
    /// The value of a parameter, if given.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.args.iter().find(|(k, _)| *k == key).map(|(_, v)| v)
    }
    /// Returns true if it is `plain` without settings, so that no note on a missing effect is needed.
    pub(super) fn asks_for_nothing(&self) -> bool {
        *self.method == super::plain::METHOD && self.args.iter().all(|(key, _)| *key == "original")
    }
    pub(super) fn method(&self) -> &'static Method {
        self.method
    }
    /// The trained window in tokens, if given.
    pub(super) fn original(&self) -> Option<usize> {
        self.get("original").and_then(Value::as_f64).map(|n| n as usize)
    }
    /// A part from checked values, which are put into the method's order.
    pub(super) fn new(method: &'static Method, mut args: Vec<(&'static str, Value)>) -> Part {
        args.sort_by_key(|(key, _)| method.keys().position(|p| p.key == *key));
        Part { method, args }
    }
    /// The part of the method of that name, with the values that are there.
    pub(super) fn from_values(name: &str, args: &[(&str, Option<Value>)]) -> Result<Part, RopeError> {
        let method = find(name)?;
        let given = args.iter().filter_map(|(key, value)| Some((*key, value.clone()?)));
        let checked = given.map(|(key, value)| {
            let param = param(method, key)?;
            if !param.kind.accepts(&value) {
                return Err(param.kind.refusal(name, key, &value.to_string()));
            }
            Ok((param.key, value))
        });
        Ok(Part::new(method, checked.collect::<Result<_, _>>()?))
    }
}

impl Spec {
    /// The name of the spec without a method: the model as its file declares it, which is how it opens without a spec.
    pub const DECLARED: &str = "declared";

    /// Returns true if the spec is [`Spec::DECLARED`]. Its plan's spec names the methods.
    pub fn is_declared(&self) -> bool {
        self.parts.is_empty()
    }
    /// The frequencies of the model's base without any scaling, and plain causal attention.
    pub fn plain() -> Spec {
        Spec::from_parts(vec![Part::new(&super::plain::METHOD, Vec::new())])
    }
    /// Methods of the spec, at most one per axis, in the order written.
    pub fn parts(&self) -> &[Part] {
        &self.parts
    }
    /// The part of that method, if the spec has it.
    pub fn part(&self, name: &str) -> Option<&Part> {
        self.parts.iter().find(|p| p.name() == name)
    }
    /// The part of that axis, if the spec has one.
    pub fn of_axis(&self, axis: Axis) -> Option<&Part> {
        self.parts.iter().find(|p| p.method.axis == axis)
    }
    pub(super) fn from_parts(parts: Vec<Part>) -> Spec {
        Spec { parts }
    }
}

impl FromStr for Spec {
    type Err = RopeError;
    fn from_str(s: &str) -> Result<Self, RopeError> {
        let refuse = |what: String| Err(RopeError::new(format!("rope spec: {what}")));
        if s.len() > MAX_LEN {
            return refuse(format!("expected at most {MAX_LEN} bytes, found {}", s.len()));
        }
        let mut parts: Vec<Part> = Vec::new();
        if s.trim() == Spec::DECLARED {
            return Ok(Spec { parts });
        }
        for text in s.split('+') {
            if text.trim() == Spec::DECLARED {
                return refuse(format!(
                    "{} stands alone; attention methods alone keep the frequencies that a file declares",
                    Spec::DECLARED
                ));
            }
            let part = parse_part(text.trim())?;
            let axis = part.method.axis;
            if let Some(other) = parts.iter().find(|other| other.method.axis == axis) {
                let (one, two) = (other.name(), part.name());
                return refuse(format!(
                    "{one} and {two} are both {axis} methods; a spec takes one of each axis"
                ));
            }
            let both = |(key, _): &&(&str, Value)| super::settings::once(key) && part.get(key).is_some();
            if let Some((key, _)) = parts.iter().flat_map(|other| &other.args).find(both) {
                return refuse(format!("{key} is given twice; it applies to all methods of a spec"));
            }
            parts.push(part);
        }
        Ok(Spec { parts })
    }
}

fn parse_part(text: &str) -> Result<Part, RopeError> {
    let (name, rest) = settings::named(text);
    let method = find(name)?;
    let pairs = settings::pairs(&owner(method), rest, &keys(method)).map_err(RopeError::new)?;
    let read = |(key, value)| {
        let param = param(method, key)?;
        let value = param.kind.parse(name, key, value).map_err(|e| super::harpe::explain(e, key, value))?;
        Ok((param.key, value))
    };
    Ok(Part::new(method, pairs.into_iter().map(read).collect::<Result<_, _>>()?))
}

/// The parameter of this name; the error lists those there are.
fn param(method: &'static Method, key: &str) -> Result<&'static Param, RopeError> {
    let known = settings::known_as(&owner(method), key, &keys(method));
    method.keys().find(|p| p.key == key).ok_or_else(|| RopeError::new(known.err().unwrap_or_default()))
}

fn owner(method: &Method) -> String {
    format!("rope method {}", method.name)
}

fn keys(method: &'static Method) -> Vec<&'static str> {
    method.keys().map(|p| p.key).collect()
}

fn find(name: &str) -> Result<&'static Method, RopeError> {
    if let Some(m) = METHODS.iter().find(|m| m.name == name) {
        return Ok(*m);
    }
    let known = METHODS.iter().map(|m| m.name).collect::<Vec<_>>();
    Err(RopeError::new(format!(
        "unknown rope method {}{}; known: {}",
        quoted(name),
        suggestion(name, known.iter().copied()),
        known.join(", ")
    )))
}

impl fmt::Display for Spec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_declared() {
            return f.write_str(Spec::DECLARED);
        }
        for (i, part) in self.parts.iter().enumerate() {
            write!(f, "{}{part}", if i == 0 { "" } else { "+" })?;
        }
        Ok(())
    }
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())?;
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
