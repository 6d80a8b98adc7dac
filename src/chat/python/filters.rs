//! Filters, tests and functions of Jinja2.

use minijinja::value::{Rest, Value};
use minijinja::{Environment, Error, State};
use ropewalk_tasks::metrics::python;

use super::args::{args, flag, int as integer, need, text as texts};
use super::methods::{among, call, MAX_WIDTH};
use super::ops::{self, like, Number};
use super::print::str as text;
use super::values;

/// Items of a range, at most, as in the sandbox of Jinja2.
const MAX_RANGE: usize = 100_000;
/// Filters of minijinja that Jinja2 does not have, or has in another form.
const FILTERS: [&str; 6] = ["bool", "chain", "lines", "pprint", "split", "zip"];
const UNSUPPORTED: &str = "filesizeformat pprint random striptags truncate urlencode urlize wordwrap xmlattr";
const TESTS: [&str; 4] = ["endingwith", "int", "safe", "startingwith"];

pub(super) fn add(env: &mut Environment<'_>) {
    FILTERS.iter().for_each(|name| env.remove_filter(name));
    TESTS.iter().for_each(|name| env.remove_test(name));
    env.remove_global("debug");
    env.add_filter("string", |value: &Value| Ok(like(value, text(value)?)));
    env.add_filter("replace", replace);
    env.add_filter("indent", indent);
    env.add_filter("int", int);
    env.add_filter("float", float);
    env.add_filter("round", round);
    env.add_filter("abs", abs);
    for name in ["default", "d"] {
        env.add_filter(name, default);
    }
    env.add_filter("format", super::format::filter);
    env.add_filter("title", |value: &Value| Ok(like(value, super::letters::words(&text(value)?))));
    env.add_filter("attr", attr);
    env.add_filter("wordcount", |value: &Value| -> Result<usize, Error> {
        Ok(text(value)?.split(|c| !python::is_word(c)).filter(|w| !w.is_empty()).count())
    });
    env.add_filter("center", |value: &Value, width: Option<i64>| {
        call(&Value::from(text(value)?), "center", &[Value::from(width.unwrap_or(80))])
    });
    env.add_filter("length", length);
    env.add_filter("count", length);
    for name in ["upper", "lower", "capitalize"] {
        env.add_filter(name, move |value: &Value| method(value, name, &[]));
    }
    env.add_filter("trim", |value: &Value, given: Rest<Value>| {
        let [chars] = args(&given, ["chars"])?;
        method(value, "strip", chars.as_slice())
    });
    env.add_filter("safe", |value: &Value| Ok(Value::from_safe_string(text(value)?)));
    for name in ["e", "escape", "forceescape"] {
        env.add_filter(name, move |value: &Value| -> Result<Value, Error> {
            match value.is_safe() && name != "forceescape" {
                true => Ok(value.clone()),
                false => Ok(Value::from_safe_string(ops::escaped(&text(value)?))),
            }
        });
    }
    // Of the values over which a loop may go, Python's None is none.
    env.add_test("iterable", |value: &Value| sequence(value) || values::is_iterable(value));
    env.add_test("number", |value: &Value| ops::number(value).is_some());
    env.add_test("sequence", sequence);
    env.add_test("lower", |value: &Value| Ok(super::letters::is_lower(&text(value)?)));
    env.add_test("odd", |value: &Value| ops::divided(value, 2, 1));
    env.add_test("even", |value: &Value| ops::divided(value, 2, 0));
    env.add_test("divisibleby", |value: &Value, by: i64| ops::divided(value, by, 0));
    env.add_test("sameas", sameas);
    env.add_test("filter", |state: &State, name: &str| match among(UNSUPPORTED, name) {
        true => Err(ops::wrong(format!("the filter {name} is not supported"))),
        false => Ok(minijinja::tests::is_filter(state, name)),
    });
    env.add_test("mapping", values::is_dict);
    env.add_test("callable", callable);
    env.add_function("cycler", |items: Rest<Value>| minijinja_contrib::globals::cycler(items.0));
    env.add_function("joiner", minijinja_contrib::globals::joiner);
    env.add_function("dict", dict);
    env.add_function("range", range);
    env.add_function("namespace", |given: Rest<Value>| minijinja::functions::namespace(Some(dict(given)?)));
}

fn replace(value: &Value, given: Rest<Value>) -> Result<String, Error> {
    let [old, new, count] = args(&given, ["old", "new", "count"])?;
    let (old, new) = (text(&need(old, "old")?)?, text(&need(new, "new")?)?);
    let count = integer(count, "replace: count")?.and_then(|n| usize::try_from(n).ok()).unwrap_or(usize::MAX);
    Ok(text(value)?.replacen(&old, &new, count))
}

fn indent(value: &Value, given: Rest<Value>) -> Result<Value, Error> {
    let [width, first, blank] = args(&given, ["width", "first", "blank"])?;
    let (first, blank) = (flag(first), flag(blank));
    let Some(text) = value.as_str() else {
        return Err(ops::wrong(format!("indent: expected a text, found {}", values::name(value))));
    };
    let by = match width.as_ref().map(|width| (width.as_str(), ops::number(width))) {
        Some((Some(text), _)) => text.to_owned(),
        Some((_, Some(Number::Whole(n)))) if n <= MAX_WIDTH as i128 => " ".repeat(n.max(0) as usize),
        Some(_) => {
            return Err(ops::wrong(format!("indent: width: expected a text, or a number up to {MAX_WIDTH}")))
        }
        None => "    ".to_owned(),
    };
    let mut out = String::new();
    for (i, line) in super::methods::lines(&format!("{text}\n"), false).into_iter().enumerate() {
        out.push_str(if i > 0 { "\n" } else { "" });
        if if i > 0 { blank || !line.is_empty() } else { first } {
            out.push_str(&by);
        }
        out.push_str(line);
    }
    Ok(like(value, out))
}

fn default(value: &Value, given: Rest<Value>) -> Result<Value, Error> {
    let [default, boolean] = args(&given, ["default_value", "boolean"])?;
    let missing = value.is_undefined() || flag(boolean) && !value.is_true();
    Ok(if missing { default.unwrap_or_else(|| Value::from("")) } else { value.clone() })
}

fn abs(value: &Value) -> Result<Value, Error> {
    match ops::number(value) {
        Some(Number::Whole(n)) => Ok(ops::whole(n.saturating_abs())),
        Some(Number::Real(x)) => Ok(Value::from(x.abs())),
        None => Err(ops::wrong(format!("abs: expected a number, found {}", values::name(value)))),
    }
}

fn int(value: &Value, given: Rest<Value>) -> Result<Value, Error> {
    let [default, base] = args(&given, ["default", "base"])?;
    let base = integer(base, "int: base")?;
    let default = default.unwrap_or_else(|| Value::from(0));
    let whole = |x: f64| match x {
        x if x.is_nan() => Ok(default.clone()),
        x if x.abs() < 1e38 => Ok(ops::whole(x as i128)),
        x => Err(ops::wrong(format!("int: the number {x} is too large"))),
    };
    if let Some(text) = value.as_str() {
        let text = digits(text)?;
        if let Some(base) = base.filter(|b| (2..=36).contains(b) && *b != 10) {
            let (sign, rest) = text.split_at(usize::from(text.starts_with(['-', '+'])));
            let lower = rest.to_lowercase();
            let rest = match base {
                16 => lower.strip_prefix("0x"),
                8 => lower.strip_prefix("0o"),
                2 => lower.strip_prefix("0b"),
                _ => None,
            };
            if let Ok(n) = i128::from_str_radix(&format!("{sign}{}", rest.unwrap_or(&lower)), base as u32) {
                return Ok(ops::whole(n));
            }
        }
        return match (text.parse::<i128>(), text.parse::<f64>()) {
            (Ok(n), _) => Ok(ops::whole(n)),
            (_, Ok(x)) if x.is_finite() => whole(x),
            _ => Ok(default),
        };
    }
    match ops::number(value) {
        Some(Number::Whole(n)) => Ok(ops::whole(n)),
        Some(Number::Real(x)) => whole(x),
        None => Ok(default),
    }
}

fn float(value: &Value, given: Rest<Value>) -> Result<Value, Error> {
    let [default] = args(&given, ["default"])?;
    let default = default.unwrap_or_else(|| Value::from(0.0));
    Ok(match (value.as_str(), ops::number(value)) {
        (Some(text), _) => digits(text)?.parse::<f64>().map_or(default, Value::from),
        (_, Some(Number::Whole(n))) => Value::from(n as f64),
        (_, Some(Number::Real(x))) => Value::from(x),
        _ => default,
    })
}

/// The text of a number, without the underscores that Python allows between digits.
fn digits(text: &str) -> Result<String, Error> {
    let text = text.trim();
    if text.chars().any(|c| !c.is_ascii() && c.is_numeric()) {
        return Err(ops::wrong(format!("the digits of {text:?} are not supported")));
    }
    let digit = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric());
    let parts: Vec<&str> = text.split('_').collect();
    let between = |two: &[&str]| digit(two[0].chars().next_back()) && digit(two[1].chars().next());
    Ok(if parts.windows(2).all(between) { parts.concat() } else { text.to_owned() })
}

/// To an even digit where two are as near.
fn round(value: &Value, given: Rest<Value>) -> Result<Value, Error> {
    let [precision, method] = args(&given, ["precision", "method"])?;
    let precision = integer(precision, "round: precision")?.unwrap_or(0);
    let digits = usize::try_from(precision).ok().filter(|&n| n <= 300);
    let digits = digits
        .ok_or_else(|| ops::wrong(format!("round: precision: expected 0 to 300, found {precision}")))?;
    let (x, n) = match ops::number(value) {
        Some(Number::Real(x)) => (x, None),
        Some(Number::Whole(n)) => (n as f64, Some(n)),
        None => return Err(ops::wrong(format!("round: expected a number, found {}", values::name(value)))),
    };
    let power = 10f64.powi(digits as i32);
    Ok(match texts(method, "round: method")?.as_deref() {
        None | Some("common") => match n {
            Some(n) => ops::whole(n),
            None => format!("{x:.digits$}").parse().map_or(Value::from(x), |x: f64| x.into()),
        },
        Some("ceil") => ((x * power).ceil() / power).into(),
        Some("floor") => ((x * power).floor() / power).into(),
        Some(other) => {
            let what = format!("round: method: expected common, ceil or floor, found {other:?}");
            return Err(ops::wrong(what));
        }
    })
}

/// An attribute; keys of a dict are none.
fn attr(value: &Value, name: &str) -> Result<Value, Error> {
    match values::name(value) {
        "Undefined" => Ok(Value::UNDEFINED),
        of if of == "dict" && !super::methods::is_method(of, name) => Ok(Value::UNDEFINED),
        _ => ops::attr(value, name),
    }
}

fn method(value: &Value, name: &str, given: &[Value]) -> Result<Value, Error> {
    call(&like(value, text(value)?), name, given)
}

/// Nothing has no items.
fn length(value: &Value) -> Result<usize, Error> {
    match (value.as_str(), values::name(value)) {
        (Some(text), _) => Ok(text.chars().count()),
        (None, name) if name != "generator" && values::is_iterable(value) => Ok(values::items(value)?.len()),
        (None, name) => Err(ops::wrong(format!("length: a value of type {name} has none"))),
    }
}

/// `dict(pairs or dict, name=value..)`.
fn dict(args: Rest<Value>) -> Result<Value, Error> {
    let mut pairs = Vec::new();
    for arg in args.0 {
        let all = if values::is_dict(&arg) { values::pairs(&arg)? } else { values::items(&arg)? };
        for pair in all {
            let pair = values::items(&pair)?;
            if pair.len() != 2 {
                return Err(ops::wrong(format!("dict: expected pairs, found {} items", pair.len())));
            }
            pairs.extend(pair);
        }
    }
    ops::dict(Rest(pairs))
}

fn range(args: Rest<Value>) -> Result<Value, Error> {
    let numbers = args.0.iter().map(|arg| match ops::number(arg) {
        Some(Number::Whole(n)) => i64::try_from(n).map_err(|_| ops::wrong("range: the number is too large")),
        _ => Err(ops::wrong(format!("range: expected integers, found {}", values::name(arg)))),
    });
    let (start, stop, step) = match numbers.collect::<Result<Vec<_>, _>>()?[..] {
        [stop] => (0, stop, 1),
        [start, stop] => (start, stop, 1),
        [start, stop, step] if step != 0 => (start, stop, step),
        _ => return Err(ops::wrong("range: expected a stop, or a start, a stop and a step that is not 0")),
    };
    let (from, by) = (i128::from(start), i128::from(step));
    let distance = i128::from(stop) - from;
    let len = if (distance > 0) == (by > 0) { (distance.abs() + by.abs() - 1) / by.abs() } else { 0 };
    let len = usize::try_from(len).ok().filter(|&len| len <= MAX_RANGE);
    let len = len.ok_or_else(|| ops::wrong(format!("range: at most {MAX_RANGE} items")))?;
    let by_step = if step == 1 { String::new() } else { format!(", {step}") };
    Ok(values::range(format!("range({start}, {stop}{by_step})"), (from, by, len)))
}

fn sequence(value: &Value) -> bool {
    matches!(values::name(value), "Undefined" | "str" | "Markup" | "list" | "tuple" | "range" | "dict")
}

/// Returns true if these are one object, in the cases in which Python is sure about it.
fn sameas(a: &Value, b: &Value) -> Result<bool, Error> {
    let (x, y) = (values::name(a), values::name(b));
    let unsure = || Err(ops::wrong(format!("sameas of values of type {x} is not supported")));
    match x {
        _ if x != y => Ok(false),
        "int" if !ops::number(a).is_some_and(|n| matches!(n, Number::Whole(-5..=256))) => unsure(),
        "str" | "Markup" | "float" | "Undefined" => unsure(),
        _ => Ok(minijinja::tests::is_sameas(a, b)),
    }
}

fn callable(value: &Value) -> bool {
    matches!(values::name(value), "method" | "Macro" | "Undefined" | "LoopContext")
        || value.as_object().is_some_and(|o| o.repr() == minijinja::value::ObjectRepr::Plain)
}
