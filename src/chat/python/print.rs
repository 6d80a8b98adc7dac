//! Values as Python prints them.

use std::fmt::Write;

use minijinja::value::{Value, ValueKind};
use minijinja::{Error, ErrorKind};
use ropewalk_tasks::metrics::python;

use super::values::{self, Range};

/// Values within values, at most.
const MAX_DEPTH: usize = 100;

/// `str(value)`; nothing for what is undefined.
pub(super) fn str(value: &Value) -> Result<String, Error> {
    let mut out = String::new();
    match value.kind() {
        ValueKind::Undefined => {}
        ValueKind::String => out.push_str(value.as_str().unwrap_or_default()),
        _ => repr(value, &mut out, 0)?,
    }
    Ok(out)
}

/// Appends `repr(value)`.
pub(super) fn repr(value: &Value, out: &mut String, depth: usize) -> Result<(), Error> {
    if depth > MAX_DEPTH {
        return Err(Error::new(ErrorKind::InvalidOperation, "a value is nested too deep to be printed"));
    }
    match values::name(value) {
        "NoneType" => out.push_str("None"),
        "bool" => out.push_str(if value.is_true() { "True" } else { "False" }),
        "int" => write!(out, "{value}").map_err(|_| Error::from(ErrorKind::WriteFailure))?,
        "float" => out.push_str(&float(f64::try_from(value.clone())?)),
        "str" => python::repr(value.as_str().unwrap_or_default(), out),
        "Markup" => {
            out.push_str("Markup(");
            python::repr(value.as_str().unwrap_or_default(), out);
            out.push(')');
        }
        "Undefined" => out.push_str("Undefined"),
        "list" => list("[", value, "]", out, depth)?,
        "tuple" => list("(", value, if value.len() == Some(1) { ",)" } else { ")" }, out, depth)?,
        "range" => {
            let range = value.downcast_object_ref::<Range>();
            let (start, stop, step) = range.map_or((0, 0, 1), |r| (r.start, r.stop, r.step));
            let step = if step == 1 { String::new() } else { format!(", {step}") };
            let _ = write!(out, "range({start}, {stop}{step})");
        }
        "dict" => {
            out.push('{');
            for (i, key) in value.try_iter()?.enumerate() {
                out.push_str(if i > 0 { ", " } else { "" });
                repr(&key, out, depth + 1)?;
                out.push_str(": ");
                repr(&value.get_item(&key)?, out, depth + 1)?;
            }
            out.push('}');
        }
        name if name.starts_with("dict_") => {
            out.push_str(name);
            list("([", value, "])", out, depth)?;
        }
        name => {
            let what = format!("printing a value of type {name} is not supported");
            return Err(Error::new(ErrorKind::InvalidOperation, what));
        }
    }
    Ok(())
}

fn list(open: &str, value: &Value, close: &str, out: &mut String, depth: usize) -> Result<(), Error> {
    out.push_str(open);
    for (i, item) in value.try_iter()?.enumerate() {
        out.push_str(if i > 0 { ", " } else { "" });
        repr(&item, out, depth + 1)?;
    }
    out.push_str(close);
    Ok(())
}

/// `repr` of a float: the shortest digits that give it back, with an exponent where it is below -4 or above 15.
pub(super) fn float(x: f64) -> String {
    if !x.is_finite() {
        return if x.is_nan() {
            "nan"
        } else if x > 0.0 {
            "inf"
        } else {
            "-inf"
        }
        .to_owned();
    }
    let scientific = format!("{x:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if (-4..16).contains(&exponent) {
        return format!("{x:?}");
    }
    format!("{digits}e{}{:02}", if exponent < 0 { '-' } else { '+' }, exponent.abs())
}
