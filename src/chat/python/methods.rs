//! Methods of Python's str, list and dict, where pycompat has none or another one.

use minijinja::value::{Value, ValueKind};
use minijinja::{Error, ErrorKind, State};
use ropewalk_tasks::metrics::python;

use super::args::Args;
use super::compare::{entry, equal};
use super::letters::{all, cased, is_lower, is_numeric, is_space, is_title, swapped, title, titled};
use super::ops::like;
use super::values::{self, View};
use super::{format, print};

/// Characters that a text may be padded to.
pub(super) const MAX_WIDTH: usize = 1 << 20;

/// Methods of Python's types, without those that change a value.
const METHODS: [(&str, &str); 4] = [
    (
        "str",
        "capitalize casefold center count encode endswith expandtabs find format format_map index isalnum isalpha \
         isascii isdecimal isdigit isidentifier islower isnumeric isprintable isspace istitle isupper join ljust lower \
         lstrip maketrans partition removeprefix removesuffix replace rfind rindex rjust rpartition rsplit rstrip split \
         splitlines startswith strip swapcase title translate upper zfill",
    ),
    ("dict", "copy fromkeys get items keys values"),
    ("list", "copy count index"),
    ("tuple", "count index"),
];
const CHANGES: [(&str, &str); 2] = [
    ("dict", "clear pop popitem setdefault update"),
    ("list", "append clear extend insert pop remove reverse sort"),
];
const OF_NUMBERS: &str =
    "as_integer_ratio bit_count bit_length conjugate denominator from_bytes fromhex hex imag \
                          is_integer numerator real to_bytes";
/// Methods whose result keeps the mark of a safe text, as in Python.
const SAFE: &str = "strip lstrip rstrip upper lower capitalize title swapcase";

fn among(names: &str, name: &str) -> bool {
    names.split(' ').any(|n| n == name)
}

pub(super) fn is_method(of: &str, name: &str) -> bool {
    let of = if of == "Markup" { "str" } else { of };
    METHODS.iter().any(|(kind, names)| *kind == of && among(names, name))
}

/// Returns true if this method changes a value, which the sandbox of transformers forbids.
pub(super) fn changes(of: &str, name: &str) -> bool {
    CHANGES.iter().any(|(kind, names)| *kind == of && among(names, name))
}

pub(super) fn is_of_number(name: &str) -> bool {
    among(OF_NUMBERS, name)
}

pub(super) fn call(state: &State<'_, '_>, value: &Value, name: &str, args: &[Value]) -> Result<Value, Error> {
    let of = values::name(value);
    if changes(of, name) {
        return Err(failed(format!("{of}.{name} changes a value, which is not allowed")));
    }
    let more = Args::of(args.to_vec())?;
    if let ("str", "format", Some(text)) = (of, name, value.as_str()) {
        return format::braces(state, text, args);
    }
    let found = match (of, value.as_str()) {
        ("Markup", Some(text)) if among(SAFE, name) => {
            of_str(text, name, more)?.map(|found| like(value, print::str(&found).unwrap_or_default()))
        }
        (_, Some(text)) => {
            let found = of_str(text, name, more)?;
            if of == "Markup"
                && found.as_ref().is_none_or(|f| !matches!(f.kind(), ValueKind::Bool | ValueKind::Number))
            {
                return Err(failed(format!("{name} of a text marked as safe is not supported")));
            }
            found
        }
        ("list" | "tuple", _) => of_list(value, name, more)?,
        ("dict", _) => of_dict(value, name, more)?,
        _ => None,
    };
    match found {
        Some(found) => Ok(found),
        None if of == "str" => minijinja_contrib::pycompat::unknown_method_callback(state, value, name, args),
        None => Err(Error::new(minijinja::ErrorKind::UnknownMethod, format!("{of} has no method {name}"))),
    }
}

fn of_list(list: &Value, name: &str, mut args: Args) -> Result<Option<Value>, Error> {
    let found = match name {
        "copy" if values::is_list(list) => list.clone(),
        "index" | "count" => {
            let what: Value = args.need("value")?;
            let (mut at, mut n) = (None, 0);
            for (i, item) in values::items(list)?.iter().enumerate() {
                if equal(item, &what, 0)? {
                    at = at.or(Some(i));
                    n += 1;
                }
            }
            match at {
                _ if name == "count" => Value::from(n),
                Some(at) => Value::from(at),
                None => {
                    return Err(failed(format!("{} is not in list", print::str(&what).unwrap_or_default())))
                }
            }
        }
        _ => return Ok(None),
    };
    args.end()?;
    Ok(Some(found))
}

fn of_dict(dict: &Value, name: &str, mut args: Args) -> Result<Option<Value>, Error> {
    let view = |name, items| Value::from_object(View { name, items });
    let found = match name {
        "copy" => dict.clone(),
        "get" => {
            args.by_place(name)?;
            let key: Value = args.need("key")?;
            let default: Option<Value> = args.take("default")?;
            entry(dict, &key)?.or(default).unwrap_or(Value::from(()))
        }
        "keys" => view("dict_keys", values::items(dict)?),
        "values" => view(
            "dict_values",
            values::items(dict)?.iter().map(|key| dict.get_item(key)).collect::<Result<_, _>>()?,
        ),
        "items" => view("dict_items", values::pairs(dict)?),
        _ => return Ok(None),
    };
    args.end()?;
    Ok(Some(found))
}

fn failed(what: impl Into<std::borrow::Cow<'static, str>>) -> Error {
    Error::new(ErrorKind::InvalidOperation, what)
}

fn of_str(text: &str, name: &str, mut args: Args) -> Result<Option<Value>, Error> {
    if !matches!(name, "split" | "rsplit" | "splitlines" | "expandtabs") {
        args.by_place(name)?;
    }
    let found = match name {
        "removeprefix" => {
            let prefix = args.need_text("prefix")?;
            Value::from(text.strip_prefix(prefix.as_str()).unwrap_or(text))
        }
        "removesuffix" => {
            let suffix = args.need_text("suffix")?;
            Value::from(text.strip_suffix(suffix.as_str()).unwrap_or(text))
        }
        "upper" => text.to_uppercase().into(),
        "lower" => text.to_lowercase().into(),
        "capitalize" => {
            let mut chars = text.chars();
            let first = chars.next().map_or(Ok(String::new()), titled)?;
            (first + &chars.as_str().to_lowercase()).into()
        }
        "swapcase" => text.chars().map(swapped).collect::<String>().into(),
        "title" => title(text)?.into(),
        "isspace" => all(text, is_space).into(),
        "isdecimal" => all(text, python::is_digit).into(),
        "isdigit" | "isnumeric" => {
            let mut is = !text.is_empty();
            for c in text.chars() {
                is &= is_numeric(c, name)?;
            }
            is.into()
        }
        "isalpha" => all(text, |c| c != '_' && python::is_word(c) && !c.is_numeric()).into(),
        "isalnum" => all(text, |c| c != '_' && python::is_word(c)).into(),
        "islower" => is_lower(text).into(),
        "isupper" => cased(text, char::is_uppercase, |c| c.is_lowercase() || is_title(c)).into(),
        "find" | "index" | "rfind" | "rindex" | "count" => {
            let what = args.need_text("sub")?;
            let (start, end): (Option<i64>, Option<i64>) = (args.take("start")?, args.take("end")?);
            let Some((part, before)) = part(text, start, end) else {
                return match name {
                    "count" => Ok(Some(Value::from(0))),
                    "find" | "rfind" => Ok(Some(Value::from(-1))),
                    _ => Err(failed("substring not found")),
                };
            };
            if name == "count" {
                let n = if what.is_empty() { part.chars().count() + 1 } else { part.matches(&what).count() };
                Value::from(n)
            } else {
                let at = if name.starts_with('r') { part.rfind(&what) } else { part.find(&what) };
                match at {
                    Some(at) => Value::from(before + part[..at].chars().count()),
                    None if name.ends_with("find") => Value::from(-1),
                    None => return Err(failed("substring not found")),
                }
            }
        }
        "startswith" | "endswith" => {
            let what: Value = args.need("prefix")?;
            let (start, end): (Option<i64>, Option<i64>) = (args.take("start")?, args.take("end")?);
            let Some((part, _)) = part(text, start, end) else { return Ok(Some(Value::from(false))) };
            let fits = |what: &Value| -> Result<bool, Error> {
                let what = what.as_str().ok_or_else(|| {
                    failed(format!("{name}: expected a string or strings, found {}", what.kind()))
                })?;
                Ok(if name == "endswith" { part.ends_with(what) } else { part.starts_with(what) })
            };
            let mut any = false;
            match what.as_str() {
                Some(_) => any = fits(&what)?,
                None if values::name(&what) == "tuple" => {
                    for what in values::items(&what)? {
                        any |= fits(&what)?;
                    }
                }
                None => {
                    let found = values::name(&what);
                    return Err(failed(format!(
                        "{name}: expected a text or a tuple of texts, found {found}"
                    )));
                }
            }
            Value::from(any)
        }
        "split" | "rsplit" => {
            let sep = args.text("sep")?;
            let most: Option<i64> = args.take("maxsplit")?;
            let most = most.and_then(|n| usize::try_from(n).ok()).unwrap_or(usize::MAX);
            let parts = split(text, sep.as_deref(), most, name == "rsplit")?;
            parts.into_iter().map(Value::from).collect()
        }
        "splitlines" => {
            let keep = args.take::<bool>("keepends")? == Some(true);
            lines(text, keep).into_iter().map(Value::from).collect()
        }
        "partition" | "rpartition" => {
            let sep = args.need_text("sep")?;
            if sep.is_empty() {
                return Err(failed("empty separator"));
            }
            let parts = match name {
                "partition" => text.split_once(&sep).map_or([text, "", ""], |(a, b)| [a, &sep, b]),
                _ => text.rsplit_once(&sep).map_or(["", "", text], |(a, b)| [a, &sep, b]),
            };
            values::tuple(parts.into_iter().map(Value::from).collect())
        }
        "center" | "ljust" | "rjust" | "zfill" => {
            let width: i64 = args.need("width")?;
            let width = usize::try_from(width).unwrap_or(0);
            if width > MAX_WIDTH {
                return Err(failed(format!("{name}: width: at most {MAX_WIDTH}")));
            }
            let fill = if name == "zfill" { None } else { args.text("fillchar")? };
            padded(text, name, width, fill.as_deref().unwrap_or(" "))?.into()
        }
        "expandtabs" => {
            let size: Option<i64> = args.take("tabsize")?;
            let size = usize::try_from(size.unwrap_or(8)).unwrap_or(0);
            if size > MAX_WIDTH {
                return Err(failed(format!("expandtabs: tabsize: at most {MAX_WIDTH}")));
            }
            expanded(text, size)?.into()
        }
        "join" => {
            let items: Value = args.need("iterable")?;
            let mut out = String::new();
            for (i, item) in values::items(&items)?.iter().enumerate() {
                out.push_str(if i > 0 { text } else { "" });
                let item = item.as_str().map(str::to_owned);
                out.push_str(&item.ok_or_else(|| failed(format!("join: item {i}: expected a string")))?);
            }
            out.into()
        }
        "strip" | "lstrip" | "rstrip" => {
            let chars = args.text("chars")?;
            let cut = |c: char| chars.as_ref().map_or_else(|| is_space(c), |chars| chars.contains(c));
            let text = if name == "rstrip" { text } else { text.trim_start_matches(cut) };
            Value::from(if name == "lstrip" { text } else { text.trim_end_matches(cut) })
        }
        "replace" => {
            let (old, new) = (args.need_text("old")?, args.need_text("new")?);
            let count: Option<i64> = args.take("count")?;
            let count = count.and_then(|n| usize::try_from(n).ok()).unwrap_or(usize::MAX);
            text.replacen(&old, &new, count).into()
        }
        "casefold" if text.chars().all(|c| c < '\u{250}' && !"ßŉµſǰİ".contains(c)) => {
            text.to_lowercase().into()
        }
        _ => return Ok(None),
    };
    args.end()?;
    Ok(Some(found))
}

/// `text[start:end]` in characters, and the number of those before it. None where it ends before it starts.
fn part(text: &str, start: Option<i64>, end: Option<i64>) -> Option<(&str, usize)> {
    if start.is_none() && end.is_none() {
        return Some((text, 0));
    }
    let n = text.chars().count() as i64;
    let at = |i: i64| if i < 0 { (n.saturating_add(i)).max(0) } else { i };
    let (start, end) = (at(start.unwrap_or(0)), at(end.unwrap_or(n)).min(n));
    if start > end {
        return None;
    }
    let byte = |i: i64| text.char_indices().nth(i as usize).map_or(text.len(), |(at, _)| at);
    Some((&text[byte(start)..byte(end)], start as usize))
}

fn split(text: &str, sep: Option<&str>, most: usize, from_right: bool) -> Result<Vec<String>, Error> {
    let own = |parts: Vec<&str>| parts.into_iter().map(str::to_owned).collect::<Vec<_>>();
    let Some(sep) = sep else {
        let (mut parts, mut rest) = (Vec::new(), text);
        loop {
            rest =
                if from_right { rest.trim_end_matches(is_space) } else { rest.trim_start_matches(is_space) };
            if rest.is_empty() {
                break;
            }
            let at = match from_right {
                _ if parts.len() == most => None,
                true => {
                    rest.char_indices().rfind(|(_, c)| is_space(*c)).map(|(at, c)| (at + c.len_utf8(), at))
                }
                false => rest.find(is_space).map(|at| (at, at)),
            };
            let Some((cut, left)) = at else {
                parts.push(rest);
                break;
            };
            if from_right {
                parts.push(&rest[cut..]);
                rest = &rest[..left];
            } else {
                parts.push(&rest[..cut]);
                rest = &rest[cut..];
            }
        }
        if from_right {
            parts.reverse();
        }
        return Ok(own(parts));
    };
    if sep.is_empty() {
        return Err(failed("empty separator"));
    }
    Ok(if from_right {
        let mut parts: Vec<&str> = text.rsplitn(most.saturating_add(1), sep).collect();
        parts.reverse();
        own(parts)
    } else {
        own(text.splitn(most.saturating_add(1), sep).collect())
    })
}

pub(super) fn lines(text: &str, keep: bool) -> Vec<&str> {
    let (mut lines, mut rest) = (Vec::new(), text);
    let ends = ['\n', '\r', '\x0b', '\x0c', '\x1c', '\x1d', '\x1e', '\u{85}', '\u{2028}', '\u{2029}'];
    while let Some(at) = rest.find(ends) {
        let end = if rest[at..].starts_with("\r\n") {
            at + 2
        } else {
            at + rest[at..].chars().next().map_or(1, char::len_utf8)
        };
        lines.push(&rest[..if keep { end } else { at }]);
        rest = &rest[end..];
    }
    if !rest.is_empty() {
        lines.push(rest);
    }
    lines
}

fn padded(text: &str, how: &str, width: usize, fill: &str) -> Result<String, Error> {
    if fill.chars().count() != 1 {
        return Err(failed(format!("{how}: expected one character to fill with, found {fill:?}")));
    }
    let n = width.saturating_sub(text.chars().count());
    let left = match how {
        "rjust" => n,
        // CPython's rule for what is odd.
        "center" => n / 2 + (n & width & 1),
        _ => 0,
    };
    if how == "zfill" {
        let sign = if text.starts_with(['+', '-']) { 1 } else { 0 };
        return Ok(format!("{}{}{}", &text[..sign], "0".repeat(n), &text[sign..]));
    }
    Ok(format!("{}{text}{}", fill.repeat(left), fill.repeat(n - left)))
}

fn expanded(text: &str, size: usize) -> Result<String, Error> {
    let (mut out, mut column) = (String::new(), 0);
    for c in text.chars() {
        match c {
            '\t' => {
                let n = if size == 0 { 0 } else { size - column % size };
                out.push_str(&" ".repeat(n));
                column += n;
            }
            '\n' | '\r' => {
                out.push(c);
                column = 0;
            }
            c => {
                out.push(c);
                column += 1;
            }
        }
        if out.len() > 32 << 20 {
            return Err(failed("expandtabs: the text gets too long"));
        }
    }
    Ok(out)
}
