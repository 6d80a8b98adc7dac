//! Python's ways to format a text: `%`, the filter `format` and `str.format`.

use minijinja::value::{Rest, Value};
use minijinja::{format_filter, Error, FormatStyle};

use super::args::split;
use super::ops::{attr, item, wrong};
use super::{methods::MAX_WIDTH, print, values};

/// `text % args`: the items of a tuple, the keys of a dict, or one value.
pub(super) fn percent(text: &Value, args: &Value) -> Result<Value, Error> {
    match values::name(args) {
        "tuple" => printf(text, &values::items(args)?, None),
        "dict" => printf(text, &[], Some(args)),
        _ => printf(text, std::slice::from_ref(args), None),
    }
}

/// The filter `format`: arguments by place, or by name.
pub(super) fn filter(text: &Value, given: Rest<Value>) -> Result<Value, Error> {
    match split(&given) {
        ([], Some(names)) => printf(text, &[], Some(names)),
        (places, None) => printf(text, places, None),
        _ => Err(wrong("format: expected arguments by place or by name, found both")),
    }
}

/// A width or a precision takes memory, so it has a limit.
fn limited(spec: &str) -> Result<(), Error> {
    let mut numbers = spec.split(|c: char| !c.is_ascii_digit()).filter(|n| !n.is_empty());
    match numbers.find(|n| n.parse::<usize>().map_or(true, |n| n > MAX_WIDTH)) {
        Some(n) => Err(wrong(format!("format: a width or a precision of {n}: at most {MAX_WIDTH}"))),
        None => Ok(()),
    }
}

fn printf(text: &Value, args: &[Value], names: Option<&Value>) -> Result<Value, Error> {
    if text.is_safe() {
        return Err(wrong("formatting of a text marked as safe is not supported"));
    }
    let text = print::str(text)?;
    let (mut out, mut rest, mut args) = (String::new(), text.as_str(), args.iter());
    while let Some(at) = rest.find('%') {
        out.push_str(&rest[..at]);
        rest = &rest[at + 1..];
        if let Some(behind) = rest.strip_prefix('%') {
            out.push('%');
            rest = behind;
            continue;
        }
        let mut key = None;
        if let Some((name, behind)) = rest.strip_prefix('(').and_then(|rest| rest.split_once(')')) {
            (key, rest) = (Some(name), behind);
        }
        let end = rest.find(|c: char| !c.is_ascii_digit() && !"#0- +.".contains(c));
        let end = end.ok_or_else(|| wrong("format: a text ends in a conversion"))?;
        let (flags, kind) = (&rest[..end], rest[end..].chars().next().unwrap_or_default());
        limited(flags)?;
        rest = &rest[end + kind.len_utf8()..];
        let value = match (key, names) {
            (Some(key), Some(names)) => names.get_item(&Value::from(key)).ok().filter(|v| !v.is_undefined()),
            (None, None) => args.next().cloned(),
            _ => None,
        };
        let value = value.ok_or_else(|| wrong(format!("format: %{flags}{kind}: the argument is missing")))?;
        let (value, kind) = match kind {
            's' => (Value::from(print::str(&value)?), 's'),
            'r' => (Value::from(print::repr(&value)?), 's'),
            'd' | 'i' | 'u' | 'x' | 'X' | 'o' | 'e' | 'E' | 'f' | 'F' | 'g' | 'G' | 'c' => (value, kind),
            other => return Err(wrong(format!("format: %{other} is not supported"))),
        };
        out.push_str(&format_filter(FormatStyle::Printf, &format!("%{flags}{kind}"), &[value])?);
    }
    if args.next().is_some() {
        return Err(wrong("format: not all arguments were used"));
    }
    out.push_str(rest);
    Ok(Value::from(out))
}

/// `text.format(..)`: `{}`, `{0}`, `{name}`, `{a.b[c]!r:>5}`.
pub(super) fn braces(text: &str, given: &[Value]) -> Result<Value, Error> {
    let (places, names) = split(given);
    let (mut out, mut rest, mut next) = (String::new(), text, 0);
    while let Some(at) = rest.find(['{', '}']) {
        out.push_str(&rest[..at]);
        let brace = &rest[at..at + 1];
        rest = &rest[at + 1..];
        if let Some(behind) = rest.strip_prefix(brace) {
            out.push_str(brace);
            rest = behind;
            continue;
        }
        let (field, behind) = match (brace, rest.split_once('}')) {
            ("{", Some(found)) => found,
            _ => return Err(wrong("str.format: an unmatched brace")),
        };
        rest = behind;
        if field.contains('{') {
            return Err(wrong("str.format: a field in a field is not supported"));
        }
        let (field, spec) = field.split_once(':').unwrap_or((field, ""));
        let (field, conversion) = field.split_once('!').unwrap_or((field, "s"));
        let end = field.find(['.', '[']).unwrap_or(field.len());
        let (name, mut path) = field.split_at(end);
        let index = if name.is_empty() { Some(next) } else { name.parse::<usize>().ok() };
        next += usize::from(name.is_empty());
        let value = match index {
            Some(index) => places.get(index).cloned(),
            None => {
                names.and_then(|names| names.get_item(&Value::from(name)).ok()).filter(|v| !v.is_undefined())
            }
        };
        let mut value = value.ok_or_else(|| wrong(format!("str.format: no argument for {{{field}}}")))?;
        while !path.is_empty() {
            if let Some(behind) = path.strip_prefix('.') {
                let (name, behind) = behind.split_at(behind.find(['.', '[']).unwrap_or(behind.len()));
                (value, path) = (attr(&value, name)?, behind);
            } else {
                let inner = path.strip_prefix('[').and_then(|path| path.split_once(']'));
                let (key, behind) = inner.ok_or_else(|| wrong("str.format: an unmatched bracket"))?;
                let key = key.parse::<u32>().map_or_else(|_| Value::from(key), Value::from);
                (value, path) = (item(&value, &key)?, behind);
            }
        }
        match conversion {
            "r" => value = Value::from(print::repr(&value)?),
            "s" => {}
            _ => return Err(wrong(format!("str.format: the conversion !{conversion} is not supported"))),
        }
        limited(spec)?;
        match values::name(&value) {
            _ if spec.is_empty() => out.push_str(&print::str(&value)?),
            "str" | "int" | "float" | "bool" => {
                out.push_str(&format_filter(FormatStyle::StrFormat, &format!("{{:{spec}}}"), &[value])?);
            }
            of => return Err(wrong(format!("str.format: the format {spec:?} of a value of type {of}"))),
        }
    }
    out.push_str(rest);
    Ok(Value::from(out))
}
