//! Python's operators, attributes and items. The functions whose names begin with `__` are what [`super::tree`] calls.

use minijinja::value::{Rest, Value, ValueKind};
use minijinja::{Environment, Error, ErrorKind};

use super::compare::{compare, compare_all, entry, equal};
use super::values::{self, items, name, Absent, Method};
use super::{format, methods, print};

/// Items or bytes of what is repeated, at most.
const MAX_REPEATED: usize = 1 << 24;

pub(super) fn add(env: &mut Environment<'_>) {
    env.add_function("__iter", |value: Value| items(&value));
    env.add_function("__tuple", |items: Rest<Value>| values::tuple(items.0));
    env.add_function("__dict", dict);
    env.add_function("__same", |value: Value| value);
    env.add_function("__passed", |value: Value| match value.is_undefined() {
        true => Value::from_object(Absent),
        false => value,
    });
    env.add_function("__given", values::given);
    env.add_function("__attr", |value: Value, name: &str| attr(&value, name));
    env.add_function("__item", |value: Value, key: Value| item(&value, &key));
    env.add_function("__slice", |value: Value, start: Value, stop: Value, step: Value| {
        slice(&value, &start, &stop, &step)
    });
    env.add_function("__op", operate);
    env.add_function("__neg", |a: Value| match number(&a) {
        Some(Number::Whole(n)) => {
            n.checked_neg().map(whole).ok_or_else(|| wrong("-: the number is too large"))
        }
        Some(Number::Real(x)) => Ok(Value::from(-x)),
        None => Err(wrong(format!("- of a value of type {}", name(&a)))),
    });
    env.add_function("__compare", compare_all);
    for (op, names) in [
        ("==", "== eq equalto"),
        ("!=", "!= ne"),
        ("<", "< lt lessthan"),
        ("<=", "<= le"),
        (">", "> gt greaterthan"),
        (">=", ">= ge"),
        ("in", "in"),
    ] {
        for name in names.split(' ') {
            env.add_test(name, move |a: &Value, b: &Value| compare(a, op, b));
        }
    }
}

/// `a op b op c ..`
fn operate(op: &str, operands: Rest<Value>) -> Result<Value, Error> {
    if op == "~" {
        return operands.0.iter().map(print::str).collect::<Result<String, _>>().map(Value::from);
    }
    let mut operands = operands.0.into_iter();
    let first = operands.next().unwrap_or_default();
    operands.try_fold(first, |a, b| match op {
        "+" => plus(&a, &b),
        "*" => times(&a, &b),
        "%" if a.as_str().is_some() => format::percent(&a, &b),
        "-" | "/" | "//" | "%" | "**" => arithmetic(op, &a, &b),
        _ => compare(&a, op, &b).map(Value::from),
    })
}

pub(super) fn wrong(what: impl Into<std::borrow::Cow<'static, str>>) -> Error {
    Error::new(ErrorKind::InvalidOperation, what)
}

pub(super) enum Number {
    Whole(i128),
    Real(f64),
}

pub(super) fn number(value: &Value) -> Option<Number> {
    match value.kind() {
        ValueKind::Bool => Some(Number::Whole(value.is_true().into())),
        ValueKind::Number if value.is_integer() => i128::try_from(value.clone()).ok().map(Number::Whole),
        ValueKind::Number => f64::try_from(value.clone()).ok().map(Number::Real),
        _ => None,
    }
}

pub(super) fn whole(n: i128) -> Value {
    i64::try_from(n).map_or_else(|_| Value::from(n), Value::from)
}

fn real(n: &Number) -> f64 {
    match *n {
        Number::Real(x) => x,
        Number::Whole(n) => n as f64,
    }
}

fn arithmetic(op: &str, a: &Value, b: &Value) -> Result<Value, Error> {
    let (Some(x), Some(y)) = (number(a), number(b)) else {
        return Err(wrong(format!("{op} of values of types {} and {}", name(a), name(b))));
    };
    let zero = || wrong(format!("{op}: division by zero"));
    if let (&Number::Whole(x), &Number::Whole(y)) = (&x, &y) {
        let found = match op {
            "+" => x.checked_add(y),
            "-" => x.checked_sub(y),
            "*" => x.checked_mul(y),
            "//" | "%" if y == 0 => return Err(zero()),
            "//" => x.checked_div(y).map(|q| q - i128::from(x % y != 0 && (x < 0) != (y < 0))),
            "%" => x.checked_rem(y).map(|r| if r != 0 && (r < 0) != (y < 0) { r + y } else { r }),
            "**" if y >= 0 => u32::try_from(y).ok().and_then(|y| x.checked_pow(y)),
            // Rounded once, as Python does, only where both are exact.
            _ if [x, y].iter().any(|n| n.unsigned_abs() > 1 << 53) => None,
            _ => return reals(op, x as f64, y as f64),
        };
        return found.map(whole).ok_or_else(|| wrong(format!("{x} {op} {y}: the number is too large")));
    }
    reals(op, real(&x), real(&y))
}

fn reals(op: &str, x: f64, y: f64) -> Result<Value, Error> {
    let zero = || Err(wrong(format!("{op}: division by zero")));
    Ok(Value::from(match op {
        "+" => x + y,
        "-" => x - y,
        "*" => x * y,
        "/" | "//" | "%" if y == 0.0 => return zero(),
        "/" => x / y,
        "//" | "%" => {
            // CPython's float_divmod.
            let mut rest = x % y;
            let mut quotient = (x - rest) / y;
            if rest != 0.0 {
                if (y < 0.0) != (rest < 0.0) {
                    rest += y;
                    quotient -= 1.0;
                }
            } else {
                rest = 0f64.copysign(y);
            }
            let floor = quotient.floor();
            let floor = if quotient - floor > 0.5 { floor + 1.0 } else { floor };
            match op {
                "%" => rest,
                _ if quotient == 0.0 => 0f64.copysign(x / y),
                _ => floor,
            }
        }
        "**" if x == 0.0 && y < 0.0 => return zero(),
        "**" if x < 0.0 && y.fract() != 0.0 => return Err(wrong("**: complex numbers are not supported")),
        _ => {
            let power = x.powf(y);
            if power.is_infinite() && x.is_finite() && y.is_finite() {
                return Err(wrong("**: the number is too large"));
            }
            power
        }
    }))
}

/// Returns true if `value % by` is `rest`.
pub(super) fn divided(value: &Value, by: i64, rest: i64) -> Result<bool, Error> {
    equal(&arithmetic("%", value, &Value::from(by))?, &Value::from(rest), 0)
}

pub(super) fn plus(a: &Value, b: &Value) -> Result<Value, Error> {
    if let (Some(x), Some(y)) = (a.as_str(), b.as_str()) {
        if !a.is_safe() && !b.is_safe() {
            return Ok(Value::from([x, y].concat()));
        }
        // Markup escapes the other text.
        let part = |value: &Value, text: &str| if value.is_safe() { text.to_owned() } else { escaped(text) };
        return Ok(Value::from_safe_string(part(a, x) + &part(b, y)));
    }
    match (name(a), name(b)) {
        ("list", "list") | ("tuple", "tuple") => Ok(made(a, [items(a)?, items(b)?].concat())),
        _ => arithmetic("+", a, b),
    }
}

/// Escapes a text as markupsafe does.
pub(super) fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '\'' => out.push_str("&#39;"),
            '"' => out.push_str("&#34;"),
            c => out.push(c),
        }
    }
    out
}

fn times(a: &Value, b: &Value) -> Result<Value, Error> {
    let (of, by) = match (number(a), number(b)) {
        (None, Some(Number::Whole(n))) => (a, n),
        (Some(Number::Whole(n)), None) => (b, n),
        _ => return arithmetic("*", a, b),
    };
    let by = usize::try_from(by.max(0)).unwrap_or(usize::MAX);
    let within = |len: usize| match len.saturating_mul(by) <= MAX_REPEATED {
        true => Ok(by),
        false => Err(wrong("*: what is repeated gets too large")),
    };
    match (of.as_str(), name(of)) {
        (Some(text), _) => Ok(like(of, text.repeat(within(text.len())?))),
        (_, "list" | "tuple") => {
            let all = items(of)?;
            within(all.len()).map(|by| made(of, vec![all; by].concat()))
        }
        _ => arithmetic("*", a, b),
    }
}

pub(super) fn dict(args: Rest<Value>) -> Result<Value, Error> {
    let mut pairs: Vec<(Value, Value)> = Vec::new();
    for pair in args.0.chunks_exact(2) {
        if matches!(name(&pair[0]), "list" | "dict") {
            return Err(wrong(format!("a value of type {} cannot be a key of a dict", name(&pair[0]))));
        }
        let mut found = None;
        for (at, (key, _)) in pairs.iter().enumerate() {
            if equal(key, &pair[0], 0)? {
                found = Some(at);
            }
        }
        match found {
            Some(at) => pairs[at].1 = pair[1].clone(),
            None => pairs.push((pair[0].clone(), pair[1].clone())),
        }
    }
    Ok(pairs.into_iter().collect())
}

pub(super) fn attr(value: &Value, attribute: &str) -> Result<Value, Error> {
    if value.is_undefined() {
        return Err(Error::new(
            ErrorKind::UndefinedError,
            format!("undefined value: it has no attribute {attribute}"),
        ));
    }
    // What the sandbox keeps from templates is undefined, and so is what changes a value.
    let hidden = attribute.starts_with("__") && attribute.ends_with("__");
    if hidden || methods::changes(name(value), attribute) {
        return Ok(Value::UNDEFINED);
    }
    if methods::is_method(name(value), attribute) {
        return Ok(Value::from_object(Method { of: value.clone(), name: attribute.to_owned() }));
    }
    match name(value) {
        "int" | "float" | "bool" if methods::is_of_number(attribute) => {
            Err(wrong(format!("the attribute {attribute} of a number is not supported")))
        }
        "Macro" if attribute != "name" => {
            Err(wrong(format!("the attribute {attribute} of a macro is not supported")))
        }
        _ => Ok(value.get_attr(attribute).unwrap_or_default()),
    }
}

pub(super) fn item(value: &Value, key: &Value) -> Result<Value, Error> {
    if value.is_undefined() {
        return Err(Error::new(ErrorKind::UndefinedError, "undefined value: it has no items"));
    }
    let found = match name(value) {
        "dict" if !matches!(name(key), "list" | "dict") => entry(value, key)?,
        "list" | "tuple" | "range" | "str" | "Markup" => match number(key) {
            Some(Number::Whole(at)) => at_index(value, at),
            _ => None,
        },
        "Namespace" | "LoopContext" | "object" => Some(value.get_item(key)?),
        _ => None,
    };
    match (found, key.as_str()) {
        (Some(found), _) => Ok(found),
        (None, Some(name)) => attr(value, name),
        (None, None) => Ok(Value::UNDEFINED),
    }
}

fn at_index(value: &Value, at: i128) -> Option<Value> {
    let back = |len: usize| usize::try_from(if at < 0 { at + len as i128 } else { at }).ok();
    match value.as_str() {
        Some(text) => {
            let at = if at < 0 { back(text.chars().count())? } else { usize::try_from(at).ok()? };
            text.chars().nth(at).map(|c| like(value, c.to_string()))
        }
        None => value.get_item_by_index(back(value.len()?)?).ok(),
    }
}

/// A text that is safe where the one it is made of is.
pub(super) fn like(of: &Value, text: String) -> Value {
    if of.is_safe() {
        Value::from_safe_string(text)
    } else {
        Value::from(text)
    }
}

/// A tuple, list, or text of these items, as `of` is one.
pub(super) fn made(of: &Value, items: Vec<Value>) -> Value {
    match name(of) {
        "tuple" => values::tuple(items),
        "list" => Value::from(items),
        _ => like(of, items.iter().filter_map(Value::as_str).collect()),
    }
}

fn slice(value: &Value, start: &Value, stop: &Value, step: &Value) -> Result<Value, Error> {
    let index = |part: &Value| -> Result<Option<i128>, Error> {
        match number(part) {
            _ if part.is_none() => Ok(None),
            Some(Number::Whole(n)) => Ok(Some(n)),
            _ => Err(wrong(format!("a slice: expected integers, found {}", name(part)))),
        }
    };
    let (start, stop, step) = (index(start)?, index(stop)?, index(step)?.unwrap_or(1));
    if step == 0 {
        return Err(wrong("a slice: its step is 0"));
    }
    let all: Vec<Value> = match name(value) {
        "str" | "Markup" | "list" | "tuple" => items(value)?,
        name => return Err(wrong(format!("a slice of a value of type {name}"))),
    };
    let len = all.len() as i128;
    let (low, high) = if step > 0 { (0, len) } else { (-1, len - 1) };
    let at = |i: i128| (if i < 0 { i + len } else { i }).clamp(low, high);
    let mut i = start.map_or(if step > 0 { 0 } else { len - 1 }, at);
    let end = stop.map_or(if step > 0 { len } else { -1 }, at);
    let mut out = Vec::new();
    while if step > 0 { i < end } else { i > end } {
        out.push(all[i as usize].clone());
        i = i.saturating_add(step);
    }
    Ok(made(value, out))
}
