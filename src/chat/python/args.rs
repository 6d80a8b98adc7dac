//! Arguments of a Python function: by place, then by name.

use minijinja::value::{Kwargs, Value};
use minijinja::{Error, ErrorKind};

use super::ops::{number, wrong, Number};
use super::values;

/// Arguments by place, and the dict of those by name.
pub(super) fn split(given: &[Value]) -> (&[Value], Option<&Value>) {
    match given.split_last() {
        Some((names, places)) if names.is_kwargs() => (places, Some(names)),
        _ => (given, None),
    }
}

/// The arguments of these names, where they are given, and an error where others are.
pub(super) fn args<const N: usize>(given: &[Value], names: [&str; N]) -> Result<[Option<Value>; N], Error> {
    let (places, by_name) = split(given);
    let by_name = Kwargs::try_from(by_name.cloned().unwrap_or_default())?;
    if places.len() > N {
        return Err(Error::from(ErrorKind::TooManyArguments));
    }
    let mut found: [Option<Value>; N] = [const { None }; N];
    for (i, name) in names.iter().enumerate() {
        found[i] = match places.get(i) {
            None if by_name.has(name) => Some(by_name.get::<Value>(name)?),
            place => place.cloned(),
        };
    }
    by_name.assert_all_used()?;
    Ok(found)
}

/// An error where there are arguments by name.
pub(super) fn by_place(of: &str, given: &[Value]) -> Result<(), Error> {
    match split(given).1 {
        Some(_) => Err(Error::new(ErrorKind::TooManyArguments, format!("{of} takes no arguments by name"))),
        None => Ok(()),
    }
}

pub(super) fn need<T>(found: Option<T>, what: &str) -> Result<T, Error> {
    found.ok_or_else(|| Error::new(ErrorKind::MissingArgument, format!("expected {what}")))
}

/// A text, where the argument is given and is not none.
pub(super) fn text(found: Option<Value>, what: &str) -> Result<Option<String>, Error> {
    let text = |value: Value| match value.as_str() {
        Some(text) => Ok(text.to_owned()),
        None => {
            Err(wrong(format!("{what}: expected a text, found a value of type {}", values::name(&value))))
        }
    };
    found.filter(|value| !value.is_none()).map(text).transpose()
}

pub(super) fn need_text(found: Option<Value>, what: &str) -> Result<String, Error> {
    need(text(found, what)?, what)
}

/// An integer, where the argument is given and is not none.
pub(super) fn int(found: Option<Value>, what: &str) -> Result<Option<i64>, Error> {
    let int = |value: Value| match number(&value) {
        Some(Number::Whole(n)) => Ok(n.clamp(i64::MIN.into(), i64::MAX.into()) as i64),
        _ => {
            let found = values::name(&value);
            Err(wrong(format!("{what}: expected an integer, found a value of type {found}")))
        }
    };
    found.filter(|value| !value.is_none()).map(int).transpose()
}

pub(super) fn flag(found: Option<Value>) -> bool {
    found.is_some_and(|value| value.is_true())
}
