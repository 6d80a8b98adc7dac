//! Filters of Jinja2 over sequences. Those that are generators in Python give their items once.

use std::cmp::Ordering;

use minijinja::value::{Rest, Value};
use minijinja::{Environment, Error, ErrorKind, State};

use super::args::{args, flag, int, need, split};
use super::compare::{equal, order};
use super::ops::{item, made, plus, wrong};
use super::print;
use super::values::{self, generator, items, name};

pub(super) fn add(env: &mut Environment<'_>) {
    env.add_filter("list", |value: &Value| items(value));
    env.add_filter("items", |value: &Value| match name(value) {
        "Undefined" => Ok(generator(Vec::new())),
        "dict" => Ok(generator(values::pairs(value)?)),
        name => Err(wrong(format!("items: expected a dict, found {name}"))),
    });
    env.add_filter("reverse", reverse);
    env.add_filter("first", |value: &Value| values::first(value).map(Option::unwrap_or_default));
    env.add_filter("last", |value: &Value| match name(value) {
        "generator" => Err(wrong("last: a generator is not reversible")),
        _ => Ok(items(value)?.pop().unwrap_or_default()),
    });
    env.add_filter("join", join);
    env.add_filter("sum", sum);
    env.add_filter("sort", sort);
    env.add_filter("unique", unique);
    env.add_filter("batch", batch);
    env.add_filter("slice", slice);
    env.add_filter("groupby", groupby);
    env.add_filter("dictsort", dictsort);
    env.add_filter("map", map);
    env.add_filter("min", |value: &Value, given: Rest<Value>| extreme(value, given, false));
    env.add_filter("max", |value: &Value, given: Rest<Value>| extreme(value, given, true));
    for (name, of_attribute, keep) in [
        ("select", false, true),
        ("reject", false, false),
        ("selectattr", true, true),
        ("rejectattr", true, false),
    ] {
        env.add_filter(name, move |state: &State, value: &Value, given: Rest<Value>| {
            select(state, value, &given, of_attribute, keep)
        });
    }
}

fn reverse(value: &Value) -> Result<Value, Error> {
    let mut all = items(value)?;
    all.reverse();
    Ok(match name(value) {
        "str" | "Markup" => made(value, all),
        "generator" => Value::from(all),
        _ => generator(all),
    })
}

/// The part of an item that a filter uses, also to sort and group: an attribute.
struct Key {
    attribute: Option<Value>,
    default: Option<Value>,
    case_sensitive: bool,
}

impl Key {
    fn new(attribute: Option<Value>, default: Option<Value>, case_sensitive: Option<Value>) -> Key {
        let given = |value: Option<Value>| value.filter(|v| !v.is_none());
        Key { attribute: given(attribute), default: given(default), case_sensitive: flag(case_sensitive) }
    }

    /// `value.a.0` for "a.0"; a number is an index.
    fn of(&self, value: &Value) -> Result<Value, Error> {
        let step = |value: Value, key: &Value| -> Result<Value, Error> {
            let found = item(&value, key)?;
            Ok(self.default.as_ref().filter(|_| found.is_undefined()).cloned().unwrap_or(found))
        };
        let Some(attribute) = &self.attribute else { return Ok(value.clone()) };
        match attribute.as_str() {
            Some(names) => {
                names.split('.').try_fold(value.clone(), |value, name| match name.parse::<u32>() {
                    Ok(index) => step(value, &Value::from(index)),
                    Err(_) => step(value, &Value::from(name)),
                })
            }
            None => step(value.clone(), attribute),
        }
    }

    /// [`Key::of`] an item, by which it is compared with others.
    fn folded(&self, value: &Value) -> Result<Value, Error> {
        let key = self.of(value)?;
        Ok(match key.as_str() {
            Some(text) if !self.case_sensitive => Value::from(text.to_lowercase()),
            _ => key,
        })
    }
}

/// Items in the order of their keys, with these.
fn sorted(items: Vec<Value>, keys: &[Key], reverse: bool) -> Result<Vec<(Vec<Value>, Value)>, Error> {
    let keyed = items.into_iter().map(|item| {
        let of = keys.iter().map(|key| key.folded(&item)).collect::<Result<Vec<_>, Error>>()?;
        Ok((of, item))
    });
    let mut keyed = keyed.collect::<Result<Vec<_>, Error>>()?;
    let mut failed = None;
    keyed.sort_by(|a, b| {
        for (x, y) in a.0.iter().zip(&b.0) {
            match equal(x, y, 0).and_then(|same| if same { Ok(None) } else { order(x, "<", y, 0) }) {
                Ok(None | Some(Ordering::Equal)) => {}
                Ok(Some(found)) => return if reverse { found.reverse() } else { found },
                Err(e) => {
                    failed = Some(e);
                    return Ordering::Equal;
                }
            }
        }
        Ordering::Equal
    });
    failed.map_or(Ok(keyed), Err)
}

pub(super) fn in_order(all: Vec<Value>) -> Result<Vec<Value>, Error> {
    let whole = Key { attribute: None, default: None, case_sensitive: true };
    Ok(sorted(all, &[whole], false)?.into_iter().map(|(_, value)| value).collect())
}

fn sort(value: &Value, given: Rest<Value>) -> Result<Vec<Value>, Error> {
    let [reverse, case_sensitive, attribute] = args(&given, ["reverse", "case_sensitive", "attribute"])?;
    let key = |attribute| Key::new(attribute, None, case_sensitive.clone());
    let keys: Vec<Key> = match attribute.as_ref().and_then(Value::as_str) {
        Some(names) => names.split(',').map(|name| key(Some(Value::from(name)))).collect(),
        None => vec![key(attribute)],
    };
    Ok(sorted(items(value)?, &keys, flag(reverse))?.into_iter().map(|(_, item)| item).collect())
}

fn unique(value: &Value, given: Rest<Value>) -> Result<Value, Error> {
    let [case_sensitive, attribute] = args(&given, ["case_sensitive", "attribute"])?;
    let key = Key::new(attribute, None, case_sensitive);
    let (mut seen, mut out) = (Vec::<Value>::new(), Vec::new());
    'items: for item in items(value)? {
        let of = key.folded(&item)?;
        if matches!(name(&of), "list" | "dict") {
            return Err(wrong(format!("unique: a value of type {}", name(&of))));
        }
        for before in &seen {
            if equal(before, &of, 0)? {
                continue 'items;
            }
        }
        seen.push(of);
        out.push(item);
    }
    Ok(generator(out))
}

/// The first of the least, or of the greatest.
fn extreme(value: &Value, given: Rest<Value>, greatest: bool) -> Result<Value, Error> {
    let [case_sensitive, attribute] = args(&given, ["case_sensitive", "attribute"])?;
    let key = Key::new(attribute, None, case_sensitive);
    let all = sorted(items(value)?, &[key], greatest)?;
    Ok(all.into_iter().next().map(|(_, item)| item).unwrap_or_default())
}

fn count(found: Option<Value>, of: &str) -> Result<usize, Error> {
    const MOST: usize = 1 << 20;
    let n = need(int(found, of)?, of)?;
    let found = usize::try_from(n).ok().filter(|n| (1..=MOST).contains(n));
    found.ok_or_else(|| wrong(format!("{of}: expected 1 to {MOST}, found {n}")))
}

fn batch(value: &Value, given: Rest<Value>) -> Result<Value, Error> {
    let [n, fill] = args(&given, ["linecount", "fill_with"])?;
    let n = count(n, "batch: linecount")?;
    let all = items(value)?;
    let batches = all.chunks(n).map(|part| {
        let mut part = part.to_vec();
        if let Some(fill) = fill.as_ref().filter(|v| !v.is_none()) {
            part.resize(n, fill.clone());
        }
        Value::from(part)
    });
    Ok(generator(batches.collect()))
}

fn slice(value: &Value, given: Rest<Value>) -> Result<Value, Error> {
    let [n, fill] = args(&given, ["slices", "fill_with"])?;
    let n = count(n, "slice: slices")?;
    let all = items(value)?;
    let (each, longer) = (all.len() / n, all.len() % n);
    let slices = (0..n).map(|i| {
        let start = i * each + i.min(longer);
        let mut part = all[start..start + each + usize::from(i < longer)].to_vec();
        part.extend(fill.clone().filter(|v| !v.is_none() && i >= longer));
        Value::from(part)
    });
    Ok(generator(slices.collect()))
}

fn groupby(value: &Value, given: Rest<Value>) -> Result<Vec<Value>, Error> {
    let [attribute, default, case_sensitive] = args(&given, ["attribute", "default", "case_sensitive"])?;
    let key = Key::new(Some(need(attribute, "attribute")?), default, case_sensitive);
    let mut groups: Vec<(Value, Vec<Value>)> = Vec::new();
    for (of, item) in sorted(items(value)?, std::slice::from_ref(&key), false)? {
        match groups.last_mut() {
            Some((key, group)) if equal(key, &of[0], 0)? => group.push(item),
            _ => groups.push((of[0].clone(), vec![item])),
        }
    }
    let named = groups
        .into_iter()
        .map(|(_, group)| Ok(values::make("group", vec![key.of(&group[0])?, Value::from(group)])));
    named.collect()
}

fn dictsort(value: &Value, given: Rest<Value>) -> Result<Vec<Value>, Error> {
    let [case_sensitive, by, reverse] = args(&given, ["case_sensitive", "by", "reverse"])?;
    let at = match by.as_ref().map_or(Some("key"), Value::as_str) {
        Some("key") => 0,
        Some("value") => 1,
        _ => return Err(wrong("dictsort: by: expected key or value")),
    };
    if !values::is_dict(value) {
        return Err(wrong(format!("dictsort: expected a dict, found {}", name(value))));
    }
    let key = Key::new(Some(Value::from(at)), None, case_sensitive);
    let all = sorted(values::pairs(value)?, &[key], flag(reverse))?;
    Ok(all.into_iter().map(|(_, pair)| pair).collect())
}

fn join(value: &Value, given: Rest<Value>) -> Result<String, Error> {
    let [between, attribute] = args(&given, ["d", "attribute"])?;
    let between = between.as_ref().map_or(Ok(String::new()), print::str)?;
    let key = Key::new(attribute, None, None);
    let mut out = String::new();
    for (i, item) in items(value)?.iter().enumerate() {
        out.push_str(if i > 0 { &between } else { "" });
        out.push_str(&print::str(&key.of(item)?)?);
    }
    Ok(out)
}

fn sum(value: &Value, given: Rest<Value>) -> Result<Value, Error> {
    let [attribute, start] = args(&given, ["attribute", "start"])?;
    let start = start.unwrap_or(Value::from(0));
    if start.as_str().is_some() {
        return Err(wrong("sum: start is a text"));
    }
    let key = Key::new(attribute, None, None);
    items(value)?.iter().try_fold(start, |sum, item| plus(&sum, &key.of(item)?))
}

fn map(state: &State, value: &Value, given: Rest<Value>) -> Result<Value, Error> {
    // So does Jinja2.
    if !value.is_true() {
        return Ok(generator(Vec::new()));
    }
    let (places, names) = split(&given);
    let out = if places.is_empty() && names.is_some() {
        let [attribute, default] = args(&given, ["attribute", "default"])?;
        let key = Key::new(Some(need(attribute, "attribute")?), default, None);
        items(value)?.iter().map(|item| key.of(item)).collect::<Result<Vec<_>, Error>>()?
    } else {
        let filter = need(places.first().and_then(Value::as_str), "the name of a filter")?;
        let with = |item: Value| -> Result<Value, Error> {
            let mut args = given.0.clone();
            args[0] = item;
            state.apply_filter(filter, &args)
        };
        items(value)?.into_iter().map(with).collect::<Result<Vec<_>, Error>>()?
    };
    Ok(generator(out))
}

fn select(
    state: &State,
    value: &Value,
    given: &[Value],
    of_attribute: bool,
    keep: bool,
) -> Result<Value, Error> {
    let (attribute, given) = given.split_at(usize::from(of_attribute).min(given.len()));
    if of_attribute && attribute.is_empty() {
        return Err(Error::new(ErrorKind::MissingArgument, "selectattr: expected the name of an attribute"));
    }
    let key = Key::new(attribute.first().cloned(), None, None);
    let mut out = Vec::new();
    for item in if value.is_true() { items(value)? } else { Vec::new() } {
        let of = key.of(&item)?;
        let passed = match given.split_first() {
            None => of.is_true(),
            Some((test, rest)) => {
                let test = test.as_str().ok_or_else(|| wrong("select: expected the name of a test"))?;
                let all: Vec<Value> = std::iter::once(of).chain(rest.iter().cloned()).collect();
                state.perform_test(test, &all)?
            }
        };
        if passed == keep {
            out.push(item);
        }
    }
    Ok(generator(out))
}
