//! Methods of Python's str, list and dict.

use minijinja::value::{Value, ValueKind};
use minijinja::{Error, ErrorKind};
use ropewalk_tasks::metrics::python;

use super::args::{args, by_place, flag, int, need, need_text, text as texts};
use super::compare::{entry, equal};
use super::letters::{all, cased, is_lower, is_numeric, is_space, is_title, swapped, title, titled};
use super::ops::{like, wrong as failed};
use super::{format, print, values};

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

pub(super) fn among(names: &str, name: &str) -> bool {
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

pub(super) fn call(value: &Value, name: &str, given: &[Value]) -> Result<Value, Error> {
    let of = values::name(value);
    if changes(of, name) {
        return Err(failed(format!("{of}.{name} changes a value, which is not allowed")));
    }
    let found = match (of, value.as_str()) {
        ("str", Some(text)) if name == "format" => return format::braces(text, given),
        ("Markup", Some(text)) if among(SAFE, name) => {
            of_str(text, name, given)?.map(|found| like(value, print::str(&found).unwrap_or_default()))
        }
        (_, Some(text)) => {
            let found = of_str(text, name, given)?;
            if of == "Markup"
                && found.as_ref().is_none_or(|f| !matches!(f.kind(), ValueKind::Bool | ValueKind::Number))
            {
                return Err(failed(format!("{name} of a text marked as safe is not supported")));
            }
            found
        }
        ("list" | "tuple", _) => of_list(value, of, name, given)?,
        ("dict", _) => of_dict(value, name, given)?,
        _ => None,
    };
    found.ok_or_else(|| Error::new(ErrorKind::UnknownMethod, format!("{of} has no method {name}")))
}

fn of_list(list: &Value, of: &str, name: &str, given: &[Value]) -> Result<Option<Value>, Error> {
    match name {
        "copy" if of == "list" => args(given, []).map(|[]| Some(list.clone())),
        "index" | "count" => {
            let [what] = args(given, ["value"])?;
            let what = need(what, "a value")?;
            let (mut at, mut n) = (None, 0);
            for (i, item) in values::items(list)?.iter().enumerate() {
                if equal(item, &what, 0)? {
                    at = at.or(Some(i));
                    n += 1;
                }
            }
            match at {
                _ if name == "count" => Ok(Some(Value::from(n))),
                Some(at) => Ok(Some(Value::from(at))),
                None => Err(failed(format!("{} is not in list", print::str(&what).unwrap_or_default()))),
            }
        }
        _ => Ok(None),
    }
}

fn of_dict(dict: &Value, name: &str, given: &[Value]) -> Result<Option<Value>, Error> {
    if name == "get" {
        by_place(name, given)?;
        let [key, default] = args(given, ["key", "default"])?;
        return Ok(entry(dict, &need(key, "a key")?)?.or(default).or(Some(Value::from(()))));
    }
    let keys = values::items(dict)?;
    let found = match name {
        "copy" => dict.clone(),
        "keys" => values::make("dict_keys", keys),
        "values" => {
            let all = keys.iter().map(|key| dict.get_item(key)).collect::<Result<Vec<_>, _>>()?;
            values::make("dict_values", all)
        }
        "items" => values::make("dict_items", values::pairs(dict)?),
        _ => return Ok(None),
    };
    args(given, []).map(|[]| Some(found))
}

/// Methods of str without arguments.
fn of_str_alone(text: &str, name: &str) -> Result<Option<Value>, Error> {
    Ok(Some(match name {
        "upper" => text.to_uppercase().into(),
        "lower" => text.to_lowercase().into(),
        "capitalize" => {
            let mut chars = text.chars();
            let first = chars.next().map_or(Ok(String::new()), titled)?;
            (first + &chars.as_str().to_lowercase()).into()
        }
        "swapcase" => text.chars().map(swapped).collect::<String>().into(),
        "title" => title(text)?.into(),
        "isascii" => text.is_ascii().into(),
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
        "casefold" if text.chars().all(|c| c < '\u{250}' && !"ßŉµſǰİ".contains(c)) => {
            text.to_lowercase().into()
        }
        _ => return Ok(None),
    }))
}

fn of_str(text: &str, name: &str, given: &[Value]) -> Result<Option<Value>, Error> {
    if let Some(found) = of_str_alone(text, name)? {
        return args(given, []).map(|[]| Some(found));
    }
    if !matches!(name, "split" | "rsplit" | "splitlines" | "expandtabs") {
        by_place(name, given)?;
    }
    let found = match name {
        "removeprefix" | "removesuffix" => {
            let [affix] = args(given, ["affix"])?;
            let affix = need_text(affix, name)?;
            let cut = match name {
                "removeprefix" => text.strip_prefix(affix.as_str()),
                _ => text.strip_suffix(affix.as_str()),
            };
            Value::from(cut.unwrap_or(text))
        }
        "find" | "index" | "rfind" | "rindex" | "count" => {
            let [what, start, end] = args(given, ["sub", "start", "end"])?;
            let what = need_text(what, name)?;
            let found =
                part(text, int(start, name)?, int(end, name)?).and_then(|(part, before)| match name {
                    "count" if what.is_empty() => Some(part.chars().count() + 1),
                    "count" => Some(part.matches(&what).count()),
                    _ => {
                        let at = if name.starts_with('r') { part.rfind(&what) } else { part.find(&what) };
                        at.map(|at| before + part[..at].chars().count())
                    }
                });
            match (found, name) {
                (Some(found), _) => Value::from(found),
                (None, "count") => Value::from(0),
                (None, "find" | "rfind") => Value::from(-1),
                _ => return Err(failed("substring not found")),
            }
        }
        "startswith" | "endswith" => {
            let [what, start, end] = args(given, ["prefix", "start", "end"])?;
            let what = need(what, "a text")?;
            let Some((part, _)) = part(text, int(start, name)?, int(end, name)?) else {
                return Ok(Some(Value::from(false)));
            };
            let all = if values::name(&what) == "tuple" { values::items(&what)? } else { vec![what] };
            let mut any = false;
            for what in all {
                let what = need_text(Some(what), name)?;
                any |= if name == "endswith" { part.ends_with(&what) } else { part.starts_with(&what) };
            }
            Value::from(any)
        }
        "split" | "rsplit" => {
            let [sep, most] = args(given, ["sep", "maxsplit"])?;
            let sep = texts(sep, name)?;
            let most = int(most, name)?.and_then(|n| usize::try_from(n).ok()).unwrap_or(usize::MAX);
            let backwards = |text: &str| text.chars().rev().collect::<String>();
            let parts = match name {
                "split" => split(text, sep.as_deref(), most)?,
                // From the right, a text is split as its mirror image is from the left.
                _ => {
                    let sep = sep.as_deref().map(backwards);
                    let parts = split(&backwards(text), sep.as_deref(), most)?;
                    parts.iter().rev().map(|part| backwards(part)).collect()
                }
            };
            parts.into_iter().map(Value::from).collect()
        }
        "splitlines" => {
            let [keep] = args(given, ["keepends"])?;
            lines(text, flag(keep)).into_iter().map(Value::from).collect()
        }
        "partition" | "rpartition" => {
            let [sep] = args(given, ["sep"])?;
            let sep = need_text(sep, name)?;
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
            let [width, fill] = args(given, ["width", "fillchar"])?;
            let width = size(need(int(width, name)?, "a width")?, name)?;
            padded(text, name, width, &texts(fill, name)?.unwrap_or_else(|| " ".to_owned()))?.into()
        }
        "expandtabs" => {
            let [size_of_tab] = args(given, ["tabsize"])?;
            expanded(text, size(int(size_of_tab, name)?.unwrap_or(8), name)?)?.into()
        }
        "join" => {
            let [all] = args(given, ["iterable"])?;
            let mut out = String::new();
            for (i, item) in values::items(&need(all, "an iterable")?)?.iter().enumerate() {
                out.push_str(if i > 0 { text } else { "" });
                let item = item.as_str();
                out.push_str(item.ok_or_else(|| failed(format!("join: item {i}: expected a string")))?);
            }
            out.into()
        }
        "strip" | "lstrip" | "rstrip" => {
            let [chars] = args(given, ["chars"])?;
            let chars = texts(chars, name)?;
            let cut = |c: char| chars.as_ref().map_or_else(|| is_space(c), |chars| chars.contains(c));
            let text = if name == "rstrip" { text } else { text.trim_start_matches(cut) };
            Value::from(if name == "lstrip" { text } else { text.trim_end_matches(cut) })
        }
        "replace" => {
            let [old, new, count] = args(given, ["old", "new", "count"])?;
            let (old, new) = (need_text(old, name)?, need_text(new, name)?);
            let count = int(count, name)?.and_then(|n| usize::try_from(n).ok()).unwrap_or(usize::MAX);
            text.replacen(&old, &new, count).into()
        }
        _ => return Ok(None),
    };
    Ok(Some(found))
}

/// A width, within its limit.
fn size(n: i64, of: &str) -> Result<usize, Error> {
    let n = usize::try_from(n).unwrap_or(0);
    if n > MAX_WIDTH {
        return Err(failed(format!("{of}: width: at most {MAX_WIDTH}")));
    }
    Ok(n)
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

fn split(text: &str, sep: Option<&str>, most: usize) -> Result<Vec<String>, Error> {
    if let Some(sep) = sep {
        if sep.is_empty() {
            return Err(failed("empty separator"));
        }
        return Ok(text.splitn(most.saturating_add(1), sep).map(str::to_owned).collect());
    }
    let (mut parts, mut rest) = (Vec::new(), text.trim_start_matches(is_space));
    while !rest.is_empty() {
        let end = rest.find(is_space).filter(|_| parts.len() < most).unwrap_or(rest.len());
        parts.push(rest[..end].to_owned());
        rest = rest[end..].trim_start_matches(is_space);
    }
    Ok(parts)
}

pub(super) fn lines(text: &str, keep: bool) -> Vec<&str> {
    let ends = ['\n', '\r', '\x0b', '\x0c', '\x1c', '\x1d', '\x1e', '\u{85}', '\u{2028}', '\u{2029}'];
    let (mut lines, mut rest) = (Vec::new(), text);
    while !rest.is_empty() {
        let (line, end) = rest.split_at(rest.find(ends).unwrap_or(rest.len()));
        let n = if end.starts_with("\r\n") { 2 } else { end.chars().next().map_or(0, char::len_utf8) };
        lines.push(if keep { &rest[..line.len() + n] } else { line });
        rest = &end[n..];
    }
    lines
}

fn padded(text: &str, how: &str, width: usize, fill: &str) -> Result<String, Error> {
    if fill.chars().count() != 1 {
        return Err(failed(format!("{how}: expected one character to fill with, found {fill:?}")));
    }
    let n = width.saturating_sub(text.chars().count());
    let sign = usize::from(text.starts_with(['+', '-']));
    Ok(match how {
        "zfill" => format!("{}{}{}", &text[..sign], "0".repeat(n), &text[sign..]),
        "rjust" => fill.repeat(n) + text,
        "ljust" => text.to_owned() + &fill.repeat(n),
        _ => {
            // CPython's rule for what is odd.
            let left = n / 2 + (n & width & 1);
            format!("{}{text}{}", fill.repeat(left), fill.repeat(n - left))
        }
    })
}

fn expanded(text: &str, size: usize) -> Result<String, Error> {
    let (mut out, mut column) = (String::new(), 0);
    for c in text.chars() {
        if c == '\t' {
            let n = if size == 0 { 0 } else { size - column % size };
            out.push_str(&" ".repeat(n));
            column += n;
        } else {
            out.push(c);
            column = if matches!(c, '\n' | '\r') { 0 } else { column + 1 };
        }
        if out.len() > 32 << 20 {
            return Err(failed("expandtabs: the text gets too long"));
        }
    }
    Ok(out)
}
