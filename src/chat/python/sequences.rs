//! Filters of Jinja2 over sequences. Those that are generators in Python give their items once.

use std::cmp::Ordering;

use minijinja::value::{Kwargs, Rest, Value};
use minijinja::{Environment, Error, ErrorKind, State};

use super::args::Args;
use super::compare::{equal, order};
use super::ops::{item, plus, wrong};
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
    env.add_filter("first", |value: &Value| -> Result<Value, Error> {
        if let Some(generator) = value.downcast_object_ref::<values::Generator>() {
            return Ok(generator.next().unwrap_or_default());
        }
        Ok(items(value)?.into_iter().next().unwrap_or_default())
    });
    env.add_filter("last", |value: &Value| match name(value) {
        "generator" => Err(wrong("last: a generator is not reversible")),
        _ => Ok(items(value)?.pop().unwrap_or_default()),
    });
    env.add_filter("join", join);
    env.add_filter("sum", sum);
    env.add_filter("sort", sort);
    env.add_filter("unique", unique);
    env.add_filter("min", |value: &Value, args: Rest<Value>| extreme(value, args, "<", Ordering::Less));
    env.add_filter("max", |value: &Value, args: Rest<Value>| extreme(value, args, ">", Ordering::Greater));
    env.add_filter("batch", batch);
    env.add_filter("slice", slice);
    env.add_filter("groupby", groupby);
    env.add_filter("dictsort", dictsort);
    env.add_filter("map", map);
    env.add_filter("select", |state: &State, value: &Value, args: Rest<Value>| {
        select(state, value, &args, false, true)
    });
    env.add_filter("reject", |state: &State, value: &Value, args: Rest<Value>| {
        select(state, value, &args, false, false)
    });
    env.add_filter("selectattr", |state: &State, value: &Value, args: Rest<Value>| {
        select(state, value, &args, true, true)
    });
    env.add_filter("rejectattr", |state: &State, value: &Value, args: Rest<Value>| {
        select(state, value, &args, true, false)
    });
}

fn reverse(value: &Value) -> Result<Value, Error> {
    let mut all = items(value)?;
    all.reverse();
    Ok(match name(value) {
        "str" | "Markup" => super::ops::like(value, all.iter().filter_map(Value::as_str).collect()),
        "generator" => Value::from(all),
        _ => generator(all),
    })
}

/// `value.a.0` for "a.0"; a number is an index.
fn path(value: &Value, name: &Value, default: Option<&Value>) -> Result<Value, Error> {
    let step = |value: Value, key: &Value| -> Result<Value, Error> {
        let found = item(&value, key)?;
        Ok(default.filter(|_| found.is_undefined()).cloned().unwrap_or(found))
    };
    match name.as_str() {
        Some(names) => names.split('.').try_fold(value.clone(), |value, name| match name.parse::<u32>() {
            Ok(index) => step(value, &Value::from(index)),
            Err(_) => step(value, &Value::from(name)),
        }),
        None => step(value.clone(), name),
    }
}

/// By what items are sorted and grouped.
struct Key {
    attribute: Option<Value>,
    default: Option<Value>,
    case_sensitive: bool,
}

impl Key {
    fn of(&self, value: &Value) -> Result<Value, Error> {
        match &self.attribute {
            Some(attribute) => path(value, attribute, self.default.as_ref()),
            None => Ok(value.clone()),
        }
    }

    fn folded(&self, key: Value) -> Value {
        match key.as_str() {
            Some(text) if !self.case_sensitive => Value::from(text.to_lowercase()),
            _ => key,
        }
    }
}

fn given(attribute: Option<Value>) -> Option<Value> {
    attribute.filter(|a| !a.is_none())
}

fn sorted(mut keyed: Vec<(Vec<Value>, Value)>, reverse: bool) -> Result<Vec<(Vec<Value>, Value)>, Error> {
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

fn sort(value: &Value, args: Rest<Value>) -> Result<Vec<Value>, Error> {
    let mut args = Args::of(args.0)?;
    let reverse = args.take::<bool>("reverse")? == Some(true);
    let case_sensitive = args.take::<bool>("case_sensitive")? == Some(true);
    let attribute = given(args.take("attribute")?);
    args.end()?;
    let attributes: Vec<Option<Value>> = match attribute.as_ref().and_then(Value::as_str) {
        Some(names) => names.split(',').map(|name| Some(Value::from(name))).collect(),
        None => vec![attribute],
    };
    let keys: Vec<Key> =
        attributes.into_iter().map(|attribute| Key { attribute, default: None, case_sensitive }).collect();
    let keyed = items(value)?.into_iter().map(|item| {
        let of = keys.iter().map(|key| Ok(key.folded(key.of(&item)?))).collect::<Result<Vec<_>, Error>>()?;
        Ok((of, item))
    });
    let keyed = keyed.collect::<Result<Vec<_>, Error>>()?;
    Ok(sorted(keyed, reverse)?.into_iter().map(|(_, item)| item).collect())
}

fn unique(value: &Value, args: Rest<Value>) -> Result<Value, Error> {
    let mut args = Args::of(args.0)?;
    let case_sensitive = args.take::<bool>("case_sensitive")? == Some(true);
    let key = Key { attribute: given(args.take("attribute")?), default: None, case_sensitive };
    args.end()?;
    let (mut seen, mut out) = (Vec::<Value>::new(), Vec::new());
    'items: for item in items(value)? {
        let of = key.folded(key.of(&item)?);
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

fn extreme(value: &Value, args: Rest<Value>, op: &str, better: Ordering) -> Result<Value, Error> {
    let mut args = Args::of(args.0)?;
    let case_sensitive = args.take::<bool>("case_sensitive")? == Some(true);
    let key = Key { attribute: given(args.take("attribute")?), default: None, case_sensitive };
    args.end()?;
    let mut best: Option<(Value, Value)> = None;
    for item in items(value)? {
        let of = key.folded(key.of(&item)?);
        let wins = match &best {
            Some((so_far, _)) => order(&of, op, so_far, 0)? == Some(better),
            None => true,
        };
        if wins {
            best = Some((of, item));
        }
    }
    Ok(best.map(|(_, item)| item).unwrap_or_default())
}

fn count(args: &mut Args, of: &str, what: &str) -> Result<usize, Error> {
    const MOST: usize = 1 << 20;
    let n: i64 = args.need(what)?;
    let found = usize::try_from(n).ok().filter(|n| (1..=MOST).contains(n));
    found.ok_or_else(|| wrong(format!("{of}: {what}: expected 1 to {MOST}, found {n}")))
}

fn batch(value: &Value, args: Rest<Value>) -> Result<Value, Error> {
    let mut args = Args::of(args.0)?;
    let n = count(&mut args, "batch", "linecount")?;
    let fill = given(args.take("fill_with")?);
    args.end()?;
    let all = items(value)?;
    let batches = all.chunks(n).map(|part| {
        let mut part = part.to_vec();
        if let Some(fill) = &fill {
            part.resize(n, fill.clone());
        }
        Value::from(part)
    });
    Ok(generator(batches.collect()))
}

fn slice(value: &Value, args: Rest<Value>) -> Result<Value, Error> {
    let mut args = Args::of(args.0)?;
    let n = count(&mut args, "slice", "slices")?;
    let fill = given(args.take("fill_with")?);
    args.end()?;
    let all = items(value)?;
    let (each, longer) = (all.len() / n, all.len() % n);
    let slices = (0..n).map(|i| {
        let start = i * each + i.min(longer);
        let mut part = all[start..start + each + usize::from(i < longer)].to_vec();
        part.extend(fill.clone().filter(|_| i >= longer));
        Value::from(part)
    });
    Ok(generator(slices.collect()))
}

fn groupby(value: &Value, args: Rest<Value>) -> Result<Vec<Value>, Error> {
    let mut args = Args::of(args.0)?;
    let attribute: Value = args.need("attribute")?;
    let default = given(args.take("default")?);
    let case_sensitive = args.take::<bool>("case_sensitive")? == Some(true);
    args.end()?;
    let key = Key { attribute: Some(attribute), default, case_sensitive };
    let keyed = items(value)?.into_iter().map(|item| Ok((vec![key.folded(key.of(&item)?)], item)));
    let mut groups: Vec<(Value, Vec<Value>)> = Vec::new();
    for (of, item) in sorted(keyed.collect::<Result<Vec<_>, Error>>()?, false)? {
        match groups.last_mut() {
            Some((key, group)) if equal(key, &of[0], 0)? => group.push(item),
            _ => groups.push((of[0].clone(), vec![item])),
        }
    }
    let named =
        groups.into_iter().map(|(_, group)| Ok(values::group(vec![key.of(&group[0])?, Value::from(group)])));
    named.collect()
}

fn dictsort(value: &Value, args: Rest<Value>) -> Result<Vec<Value>, Error> {
    let mut args = Args::of(args.0)?;
    let case_sensitive = args.take::<bool>("case_sensitive")? == Some(true);
    let by: Option<String> = args.take("by")?;
    let reverse = args.take::<bool>("reverse")? == Some(true);
    args.end()?;
    let at = match by.as_deref() {
        None | Some("key") => 0,
        Some("value") => 1,
        Some(other) => return Err(wrong(format!("dictsort: by: expected key or value, found {other:?}"))),
    };
    if !values::is_dict(value) {
        return Err(wrong(format!("dictsort: expected a dict, found {}", name(value))));
    }
    let key = Key { attribute: Some(Value::from(at)), default: None, case_sensitive };
    let keyed = values::pairs(value)?.into_iter().map(|pair| Ok((vec![key.folded(key.of(&pair)?)], pair)));
    let all = sorted(keyed.collect::<Result<Vec<_>, Error>>()?, reverse)?;
    Ok(all.into_iter().map(|(_, pair)| pair).collect())
}

fn join(value: &Value, args: Rest<Value>) -> Result<String, Error> {
    let mut args = Args::of(args.0)?;
    let between: Option<Value> = args.take("d")?;
    let attribute = given(args.take("attribute")?);
    args.end()?;
    let between = between.as_ref().map_or(Ok(String::new()), print::str)?;
    let mut out = String::new();
    for (i, item) in items(value)?.iter().enumerate() {
        out.push_str(if i > 0 { &between } else { "" });
        match &attribute {
            Some(name) => out.push_str(&print::str(&path(item, name, None)?)?),
            None => out.push_str(&print::str(item)?),
        }
    }
    Ok(out)
}

fn sum(value: &Value, args: Rest<Value>) -> Result<Value, Error> {
    let mut args = Args::of(args.0)?;
    let attribute = given(args.take("attribute")?);
    let start: Option<Value> = args.take("start")?;
    args.end()?;
    let start = start.unwrap_or(Value::from(0));
    if start.as_str().is_some() {
        return Err(wrong("sum: start is a text"));
    }
    items(value)?.iter().try_fold(start, |sum, item| match &attribute {
        Some(name) => plus(&sum, &path(item, name, None)?),
        None => plus(&sum, item),
    })
}

fn map(state: &State, value: &Value, args: Rest<Value>) -> Result<Value, Error> {
    // So does Jinja2.
    if !value.is_true() {
        return Ok(generator(Vec::new()));
    }
    let mut all = args.0;
    let named = all.last().is_some_and(Value::is_kwargs);
    let names = if all.len() == 1 && named { all.pop().map(Kwargs::try_from).transpose()? } else { None };
    let out = match names {
        Some(names) => {
            let attribute: Value = names.get("attribute")?;
            let default: Option<Value> = names.get("default")?;
            names.assert_all_used()?;
            let default = given(default);
            items(value)?
                .iter()
                .map(|item| path(item, &attribute, default.as_ref()))
                .collect::<Result<Vec<_>, _>>()?
        }
        None => {
            let filter = all.first().and_then(Value::as_str).map(str::to_owned);
            let filter = filter.ok_or_else(|| {
                Error::new(ErrorKind::MissingArgument, "map: expected the name of a filter")
            })?;
            let with = |item: Value| -> Result<Value, Error> {
                let mut args = all.clone();
                args[0] = item;
                state.apply_filter(&filter, &args)
            };
            items(value)?.into_iter().map(with).collect::<Result<Vec<_>, _>>()?
        }
    };
    Ok(generator(out))
}

fn select(
    state: &State,
    value: &Value,
    args: &[Value],
    of_attribute: bool,
    keep: bool,
) -> Result<Value, Error> {
    let (attribute, args) = match args.split_first() {
        _ if !of_attribute => (None, args),
        Some((first, rest)) => (Some(first), rest),
        None => {
            return Err(Error::new(
                ErrorKind::MissingArgument,
                "selectattr: expected the name of an attribute",
            ))
        }
    };
    let mut out = Vec::new();
    for item in if value.is_true() { items(value)? } else { Vec::new() } {
        let of = match attribute {
            Some(attribute) => path(&item, attribute, None)?,
            None => item.clone(),
        };
        let passed = match args.split_first() {
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
