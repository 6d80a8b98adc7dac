//! Python's comparisons.

use std::cmp::Ordering;

use minijinja::value::{Rest, Value};
use minijinja::Error;

use super::ops::{number, wrong, Number};
use super::values::{self, items, name};

/// Values within values, at most.
const MAX_DEPTH: usize = 100;

pub(super) fn compare_all(all: Rest<Value>) -> Result<bool, Error> {
    let mut rest = &all.0[..];
    while let [a, op, b, ..] = rest {
        if !compare(a, op.as_str().unwrap_or_default(), b)? {
            return Ok(false);
        }
        rest = &rest[2..];
    }
    Ok(true)
}

pub(super) fn compare(a: &Value, op: &str, b: &Value) -> Result<bool, Error> {
    let ordered =
        |is: fn(Ordering) -> bool| -> Result<bool, Error> { Ok(order(a, op, b, 0)?.is_some_and(is)) };
    match op {
        "==" => equal(a, b, 0),
        "!=" => Ok(!equal(a, b, 0)?),
        "<" => ordered(Ordering::is_lt),
        "<=" => ordered(Ordering::is_le),
        ">" => ordered(Ordering::is_gt),
        ">=" => ordered(Ordering::is_ge),
        "in" => contains(b, a),
        _ => Ok(!contains(b, a)?),
    }
}

fn too_deep(depth: usize) -> Result<(), Error> {
    if depth > MAX_DEPTH {
        Err(wrong("a value is nested too deep to be compared"))
    } else {
        Ok(())
    }
}

pub(super) fn equal(a: &Value, b: &Value, depth: usize) -> Result<bool, Error> {
    too_deep(depth)?;
    if let (Some(x), Some(y)) = (number(a), number(b)) {
        return Ok(numbers(&x, &y) == Some(Ordering::Equal));
    }
    if let (Some(x), Some(y)) = (a.as_str(), b.as_str()) {
        return Ok(x == y);
    }
    if name(a) != name(b) {
        return Ok(false);
    }
    match name(a) {
        "list" | "tuple" | "range" => {
            let (x, y) = (items(a)?, items(b)?);
            let mut same = x.len() == y.len();
            for (x, y) in x.iter().zip(&y) {
                same = same && equal(x, y, depth + 1)?;
            }
            Ok(same)
        }
        "dict" => {
            let mut same = a.len() == b.len();
            for key in items(a)? {
                same = same
                    && match entry(b, &key)? {
                        Some(y) => equal(&a.get_item(&key)?, &y, depth + 1)?,
                        None => false,
                    };
            }
            Ok(same)
        }
        name if name.starts_with("dict_") => {
            Err(wrong(format!("== of values of type {name} is not supported")))
        }
        "Undefined" | "NoneType" => Ok(true),
        _ => Ok(a == b),
    }
}

fn numbers(a: &Number, b: &Number) -> Option<Ordering> {
    match (a, b) {
        (Number::Whole(a), Number::Whole(b)) => Some(a.cmp(b)),
        (Number::Real(a), Number::Real(b)) => a.partial_cmp(b),
        (Number::Real(_), Number::Whole(_)) => numbers(b, a).map(Ordering::reverse),
        (Number::Whole(a), &Number::Real(b)) if b.abs() < 1e38 => {
            let fraction = if b.fract() == 0.0 { Ordering::Equal } else { Ordering::Less };
            Some(a.cmp(&(b.floor() as i128)).then(fraction))
        }
        (Number::Whole(_), Number::Real(b)) => 0f64.partial_cmp(b),
    }
}

pub(super) fn order(a: &Value, op: &str, b: &Value, depth: usize) -> Result<Option<Ordering>, Error> {
    too_deep(depth)?;
    if let (Some(x), Some(y)) = (number(a), number(b)) {
        return Ok(numbers(&x, &y));
    }
    if let (Some(x), Some(y)) = (a.as_str(), b.as_str()) {
        return Ok(Some(x.cmp(y)));
    }
    if !matches!((name(a), name(b)), ("list", "list") | ("tuple", "tuple")) {
        return Err(wrong(format!("{op} of values of types {} and {}", name(a), name(b))));
    }
    let (x, y) = (items(a)?, items(b)?);
    for (x, y) in x.iter().zip(&y) {
        if !equal(x, y, depth + 1)? {
            return order(x, op, y, depth + 1);
        }
    }
    Ok(Some(x.len().cmp(&y.len())))
}

/// Returns the value of a dict under this key. As in Python, `1`, `1.0`, and `True` are the same key.
pub(super) fn entry(dict: &Value, key: &Value) -> Result<Option<Value>, Error> {
    if matches!(name(key), "list" | "dict") {
        return Err(wrong(format!("a value of type {} cannot be a key of a dict", name(key))));
    }
    if key.as_str().is_some() {
        return Ok(dict.as_object().and_then(|dict| dict.get_value(key)));
    }
    for found in items(dict)? {
        if equal(&found, key, 0)? {
            return dict.get_item(&found).map(Some);
        }
    }
    Ok(None)
}

fn contains(all: &Value, what: &Value) -> Result<bool, Error> {
    match (all.as_str(), what.as_str()) {
        (Some(all), Some(what)) => return Ok(all.contains(what)),
        (Some(_), None) => return Err(wrong(format!("in a text: expected a text, found {}", name(what)))),
        _ => {}
    }
    if values::is_dict(all) {
        return Ok(entry(all, what)?.is_some());
    }
    for item in items(all)? {
        if equal(&item, what, 0)? {
            return Ok(true);
        }
    }
    Ok(false)
}
