//! Methods of Python's str, list and dict, where pycompat has none or another one.

use minijinja::value::{Value, ValueKind};
use minijinja::{Error, ErrorKind, State};

use super::args::Args;
use super::print;

/// Characters that a text may be padded to.
pub(super) const MAX_WIDTH: usize = 1 << 20;

pub(super) fn call(state: &State<'_, '_>, value: &Value, name: &str, args: &[Value]) -> Result<Value, Error> {
    let more = Args::of(args.to_vec())?;
    let found = match (value.kind(), value.as_str()) {
        (_, Some(text)) => of_str(text, name, more)?,
        (ValueKind::Seq, _) => of_list(value, name, more)?,
        (ValueKind::Map, _) if name == "copy" => {
            more.end()?;
            Some(value.clone())
        }
        _ => None,
    };
    match found {
        Some(found) => Ok(found),
        None => minijinja_contrib::pycompat::unknown_method_callback(state, value, name, args),
    }
}

fn of_list(list: &Value, name: &str, mut args: Args) -> Result<Option<Value>, Error> {
    Ok(Some(match name {
        "copy" => list.clone(),
        "index" => {
            let what: Value = args.need("value")?;
            let at = list.try_iter()?.position(|item| item == what);
            let at = at
                .ok_or_else(|| failed(format!("{} is not in list", print::str(&what).unwrap_or_default())))?;
            Value::from(at)
        }
        _ => return Ok(None),
    }))
}

fn failed(what: impl Into<std::borrow::Cow<'static, str>>) -> Error {
    Error::new(ErrorKind::InvalidOperation, what)
}

fn of_str(text: &str, name: &str, mut args: Args) -> Result<Option<Value>, Error> {
    let found = match name {
        "removeprefix" => {
            let prefix: String = args.need("prefix")?;
            Value::from(text.strip_prefix(prefix.as_str()).unwrap_or(text))
        }
        "removesuffix" => {
            let suffix: String = args.need("suffix")?;
            Value::from(text.strip_suffix(suffix.as_str()).unwrap_or(text))
        }
        "swapcase" => text.chars().map(swapped).collect::<String>().into(),
        "title" => title(text).into(),
        "isspace" => all(text, char::is_whitespace).into(),
        "isdigit" | "isdecimal" | "isnumeric" => all(text, char::is_numeric).into(),
        "isalpha" => all(text, char::is_alphabetic).into(),
        "isalnum" => all(text, char::is_alphanumeric).into(),
        "islower" => cased(text, char::is_lowercase, char::is_uppercase).into(),
        "isupper" => cased(text, char::is_uppercase, char::is_lowercase).into(),
        "find" | "index" | "rfind" | "rindex" | "count" => {
            let what: String = args.need("sub")?;
            let (start, end): (Option<i64>, Option<i64>) = (args.take("start")?, args.take("end")?);
            let (part, before) = part(text, start, end);
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
            let (part, _) = part(text, start, end);
            let fits = |what: &Value| -> Result<bool, Error> {
                let what = what.as_str().ok_or_else(|| {
                    failed(format!("{name}: expected a string or strings, found {}", what.kind()))
                })?;
                Ok(if name == "endswith" { part.ends_with(what) } else { part.starts_with(what) })
            };
            let mut any = false;
            match what.as_str() {
                Some(_) => any = fits(&what)?,
                None => {
                    for what in what.try_iter()? {
                        any |= fits(&what)?;
                    }
                }
            }
            Value::from(any)
        }
        "split" | "rsplit" => {
            let sep: Option<Option<String>> = args.take("sep")?;
            let most: Option<i64> = args.take("maxsplit")?;
            let most = most.and_then(|n| usize::try_from(n).ok()).unwrap_or(usize::MAX);
            let parts = split(text, sep.flatten().as_deref(), most, name == "rsplit")?;
            parts.into_iter().map(Value::from).collect()
        }
        "splitlines" => {
            let keep = args.take::<bool>("keepends")? == Some(true);
            lines(text, keep).into_iter().map(Value::from).collect()
        }
        "partition" | "rpartition" => {
            let sep: String = args.need("sep")?;
            if sep.is_empty() {
                return Err(failed("empty separator"));
            }
            let parts = match name {
                "partition" => text.split_once(&sep).map_or([text, "", ""], |(a, b)| [a, &sep, b]),
                _ => text.rsplit_once(&sep).map_or(["", "", text], |(a, b)| [a, &sep, b]),
            };
            parts.into_iter().map(Value::from).collect()
        }
        "center" | "ljust" | "rjust" | "zfill" => {
            let width: i64 = args.need("width")?;
            let width = usize::try_from(width).unwrap_or(0);
            if width > MAX_WIDTH {
                return Err(failed(format!("{name}: width: at most {MAX_WIDTH}")));
            }
            let fill: Option<String> = if name == "zfill" { None } else { args.take("fillchar")? };
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
            for (i, item) in items.try_iter()?.enumerate() {
                out.push_str(if i > 0 { text } else { "" });
                let item = item.as_str().map(str::to_owned);
                out.push_str(&item.ok_or_else(|| failed(format!("join: item {i}: expected a string")))?);
            }
            out.into()
        }
        "strip" | "lstrip" | "rstrip" => {
            let chars: Option<Option<String>> = args.take("chars")?;
            let chars = chars.flatten();
            let cut = |c: char| chars.as_ref().map_or_else(|| is_space(c), |chars| chars.contains(c));
            let text = if name == "rstrip" { text } else { text.trim_start_matches(cut) };
            Value::from(if name == "lstrip" { text } else { text.trim_end_matches(cut) })
        }
        "replace" => {
            let (old, new): (String, String) = (args.need("old")?, args.need("new")?);
            let count: Option<i64> = args.take("count")?;
            let count = count.and_then(|n| usize::try_from(n).ok()).unwrap_or(usize::MAX);
            text.replacen(&old, &new, count).into()
        }
        "casefold" => text.to_lowercase().into(),
        _ => return Ok(None),
    };
    args.end()?;
    Ok(Some(found))
}

/// `str.isspace`.
fn is_space(c: char) -> bool {
    c.is_whitespace() || ('\x1c'..='\x1f').contains(&c)
}

fn all(text: &str, is: fn(char) -> bool) -> bool {
    !text.is_empty() && text.chars().all(is)
}

fn cased(text: &str, is: fn(char) -> bool, other: fn(char) -> bool) -> bool {
    text.chars().any(is) && !text.chars().any(other)
}

fn swapped(c: char) -> String {
    if c.is_uppercase() {
        c.to_lowercase().collect()
    } else {
        c.to_uppercase().collect()
    }
}

/// A capital begins each run of letters.
fn title(text: &str) -> String {
    let (mut out, mut inside) = (String::with_capacity(text.len()), false);
    for c in text.chars() {
        if inside {
            out.extend(c.to_lowercase());
        } else {
            out.extend(c.to_uppercase());
        }
        inside = c.is_lowercase() || c.is_uppercase();
    }
    out
}

/// `text[start:end]` in characters, and the number of those before it.
fn part(text: &str, start: Option<i64>, end: Option<i64>) -> (&str, usize) {
    if start.is_none() && end.is_none() {
        return (text, 0);
    }
    let n = text.chars().count() as i64;
    let at = |i: i64| if i < 0 { (n + i).max(0) } else { i.min(n) } as usize;
    let (start, end) = (at(start.unwrap_or(0)), at(end.unwrap_or(n)));
    let byte = |i: usize| text.char_indices().nth(i).map_or(text.len(), |(at, _)| at);
    (text.get(byte(start)..byte(end)).unwrap_or_default(), start)
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

fn lines(text: &str, keep: bool) -> Vec<&str> {
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
