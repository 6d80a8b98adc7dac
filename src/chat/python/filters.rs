//! Filters, tests and functions of Jinja2.

use minijinja::value::{Rest, Value, ValueKind};
use minijinja::{Environment, Error, ErrorKind};

use super::args::Args;
use super::print;

pub(super) fn add(env: &mut Environment<'_>) {
    env.add_filter("string", |value: &Value| print::str(value));
    env.add_filter("join", join);
    env.add_filter("replace", replace);
    env.add_filter("indent", indent);
    env.add_filter("sum", sum);
    env.add_filter("int", int);
    env.add_filter("round", round);
    env.add_filter("attr", attr);
    env.add_filter("wordcount", wordcount);
    env.add_filter("center", center);
    env.add_filter("length", length);
    env.add_filter("count", length);
    env.add_filter("trim", trim);
    env.add_filter("upper", |value: &Value| Ok(text(value)?.to_uppercase()));
    env.add_filter("lower", |value: &Value| Ok(text(value)?.to_lowercase()));
    env.add_filter("capitalize", capitalize);
    // Of the values over which a loop may go, Python's None is none.
    env.add_test("iterable", |value: &Value| !value.is_none() && value.try_iter().is_ok());
    env.add_test("number", |value: &Value| matches!(value.kind(), ValueKind::Number | ValueKind::Bool));
    env.add_test("sequence", |value: &Value| {
        matches!(value.kind(), ValueKind::Seq | ValueKind::Map | ValueKind::String)
    });
    env.add_test("callable", |value: &Value| {
        value.as_object().is_some_and(|o| o.repr() == minijinja::value::ObjectRepr::Plain)
    });
    env.add_function("cycler", |items: Rest<Value>| minijinja_contrib::globals::cycler(items.0));
    env.add_function("joiner", minijinja_contrib::globals::joiner);
    env.add_function("dict", dict);
}

fn text(value: &Value) -> Result<String, Error> {
    print::str(value)
}

fn join(value: &Value, args: Rest<Value>) -> Result<String, Error> {
    let mut args = Args::of(args.0)?;
    let between: Option<String> = args.take("d")?;
    let attribute: Option<Value> = args.take("attribute")?;
    args.end()?;
    let mut out = String::new();
    if value.is_undefined() {
        return Ok(out);
    }
    for (i, item) in value.try_iter()?.enumerate() {
        let item = match &attribute {
            Some(name) => path(&item, name)?,
            None => item,
        };
        if i > 0 {
            out.push_str(between.as_deref().unwrap_or_default());
        }
        out.push_str(&text(&item)?);
    }
    Ok(out)
}

/// `value.a.b` for "a.b".
fn path(value: &Value, name: &Value) -> Result<Value, Error> {
    match name.as_str() {
        Some(names) => names.split('.').try_fold(value.clone(), |value, name| value.get_attr(name)),
        None => value.get_item(name),
    }
}

fn replace(value: &Value, args: Rest<Value>) -> Result<String, Error> {
    let mut args = Args::of(args.0)?;
    let (old, new): (Value, Value) = (args.need("old")?, args.need("new")?);
    let count: Option<i64> = args.take("count")?;
    args.end()?;
    let count = count.and_then(|n| usize::try_from(n).ok()).unwrap_or(usize::MAX);
    Ok(text(value)?.replacen(&text(&old)?, &text(&new)?, count))
}

fn indent(value: &Value, args: Rest<Value>) -> Result<String, Error> {
    let mut args = Args::of(args.0)?;
    let width: Option<Value> = args.take("width")?;
    let first = args.take::<bool>("first")? == Some(true);
    let blank = args.take::<bool>("blank")? == Some(true);
    args.end()?;
    let by = match width {
        Some(width) => match width.as_str() {
            Some(text) => text.to_owned(),
            None => {
                let width = i64::try_from(width)?.max(0) as usize;
                if width > super::methods::MAX_WIDTH {
                    let what = format!("indent: width: at most {}", super::methods::MAX_WIDTH);
                    return Err(Error::new(ErrorKind::InvalidOperation, what));
                }
                " ".repeat(width)
            }
        },
        None => "    ".to_owned(),
    };
    let mut out = String::new();
    for (i, line) in text(value)?.split('\n').enumerate() {
        if i > 0 {
            out.push('\n');
        }
        if (i > 0 || first) && (blank || !line.is_empty() || i == 0) {
            out.push_str(&by);
        }
        out.push_str(line);
    }
    Ok(out)
}

fn sum(value: &Value, args: Rest<Value>) -> Result<Value, Error> {
    let mut args = Args::of(args.0)?;
    let attribute: Option<Option<Value>> = args.take("attribute")?;
    let start: Option<Value> = args.take("start")?;
    args.end()?;
    let (mut whole, mut real) = (0i64, None::<f64>);
    let items = value.try_iter()?.map(|item| match attribute.as_ref().and_then(Option::as_ref) {
        Some(name) => path(&item, name),
        None => Ok(item),
    });
    for item in start.into_iter().map(Ok).chain(items) {
        let item = item?;
        if item.kind() != ValueKind::Number {
            return Err(Error::new(
                ErrorKind::InvalidOperation,
                format!("sum: expected numbers, found {}", item.kind()),
            ));
        }
        match (real, i64::try_from(item.clone()).ok().filter(|_| item.is_integer())) {
            (None, Some(n)) => {
                whole = whole
                    .checked_add(n)
                    .ok_or_else(|| Error::new(ErrorKind::InvalidOperation, "sum: the number is too large"))?;
            }
            _ => real = Some(real.unwrap_or(whole as f64) + f64::try_from(item)?),
        }
    }
    Ok(real.map_or_else(|| Value::from(whole), Value::from))
}

fn int(value: &Value, args: Rest<Value>) -> Result<Value, Error> {
    let mut args = Args::of(args.0)?;
    let default: Option<Value> = args.take("default")?;
    let base: Option<u32> = args.take("base")?;
    args.end()?;
    let default = default.unwrap_or_else(|| Value::from(0));
    Ok(match value.kind() {
        ValueKind::Number if value.is_integer() => value.clone(),
        ValueKind::Number => {
            let x = f64::try_from(value.clone())?;
            if x.is_finite() && x.abs() < 9e18 {
                Value::from(x as i64)
            } else {
                default
            }
        }
        ValueKind::Bool => Value::from(i64::from(value.is_true())),
        ValueKind::String => {
            let text = value.as_str().unwrap_or_default().trim().replace('_', "");
            match base.filter(|b| (2..=36).contains(b) && *b != 10) {
                Some(base) => {
                    let digits = text.trim_start_matches(match base {
                        16 => "0x",
                        8 => "0o",
                        2 => "0b",
                        _ => "\0",
                    });
                    i64::from_str_radix(digits, base).map_or(default, Value::from)
                }
                None => match (text.parse::<i64>(), text.parse::<f64>()) {
                    (Ok(n), _) => Value::from(n),
                    (_, Ok(x)) if x.is_finite() && x.abs() < 9e18 => Value::from(x as i64),
                    _ => default,
                },
            }
        }
        _ => default,
    })
}

/// To an even digit where two are as near.
fn round(value: &Value, args: Rest<Value>) -> Result<Value, Error> {
    let mut args = Args::of(args.0)?;
    let precision: Option<i32> = args.take("precision")?;
    let method: Option<String> = args.take("method")?;
    args.end()?;
    let wrong = |what: String| Error::new(ErrorKind::InvalidOperation, what);
    let precision = precision.unwrap_or(0);
    let digits = usize::try_from(precision).ok().filter(|&n| n <= 300);
    let digits =
        digits.ok_or_else(|| wrong(format!("round: precision: expected 0 to 300, found {precision}")))?;
    let (x, power) = (f64::try_from(value.clone())?, 10f64.powi(precision));
    Ok(match method.as_deref() {
        None | Some("common") if value.is_integer() => value.clone(),
        None | Some("common") => {
            let x: f64 = format!("{x:.digits$}").parse().map_err(|e| wrong(format!("round: {e}")))?;
            x.into()
        }
        Some("ceil") => ((x * power).ceil() / power).into(),
        Some("floor") => ((x * power).floor() / power).into(),
        Some(other) => {
            return Err(wrong(format!("round: method: expected common, ceil or floor, found {other:?}")));
        }
    })
}

/// An attribute; keys of a dict are none.
fn attr(value: &Value, name: &str) -> Result<Value, Error> {
    match value.kind() {
        ValueKind::Map => Ok(Value::UNDEFINED),
        _ => value.get_attr(name),
    }
}

fn wordcount(value: &Value) -> Result<usize, Error> {
    let word = |c: char| c.is_alphanumeric() || c == '_';
    Ok(text(value)?.split(|c| !word(c)).filter(|w| !w.is_empty()).count())
}

fn trim(state: &minijinja::State<'_, '_>, value: &Value, chars: Rest<Value>) -> Result<Value, Error> {
    super::methods::call(state, &Value::from(text(value)?), "strip", &chars.0)
}

fn capitalize(state: &minijinja::State<'_, '_>, value: &Value) -> Result<Value, Error> {
    super::methods::call(state, &Value::from(text(value)?), "capitalize", &[])
}

fn center(state: &minijinja::State<'_, '_>, value: &Value, width: Option<i64>) -> Result<Value, Error> {
    super::methods::call(state, &Value::from(text(value)?), "center", &[Value::from(width.unwrap_or(80))])
}

/// Nothing has no items.
fn length(value: &Value) -> Result<usize, Error> {
    match value.len() {
        Some(n) => Ok(n),
        None if value.is_undefined() => Ok(0),
        None => match value.kind() {
            ValueKind::Iterable => Ok(value.try_iter()?.count()),
            kind => Err(Error::new(ErrorKind::InvalidOperation, format!("length: {kind} has none"))),
        },
    }
}

/// `dict(pairs or dict, name=value..)`.
fn dict(args: Rest<Value>) -> Result<Value, Error> {
    let mut pairs: Vec<(Value, Value)> = Vec::new();
    for arg in args.0 {
        let is_map = arg.kind() == ValueKind::Map;
        for item in arg.try_iter()? {
            let pair = match is_map {
                true => (item.clone(), arg.get_item(&item)?),
                false => (item.get_item_by_index(0)?, item.get_item_by_index(1)?),
            };
            match pairs.iter_mut().find(|(key, _)| *key == pair.0) {
                Some(found) => found.1 = pair.1,
                None => pairs.push(pair),
            }
        }
    }
    Ok(pairs.into_iter().collect())
}
