//! Python's values that minijinja has none of: tuples, ranges, views of dicts, generators and bound methods.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use minijinja::value::{Enumerator, Object, ObjectRepr, Value, ValueKind};
use minijinja::{Error, ErrorKind, State};

/// Items of a type that minijinja has none of: a tuple, a range, a view of a dict, or a generator, which gives them once.
#[derive(Debug)]
pub(super) struct Items {
    of: &'static str,
    /// A range as it is printed, and its first item, step, and number of items, which are made when they are read.
    pub(super) text: String,
    range: (i128, i128, usize),
    items: Mutex<Vec<Value>>,
}

/// The items of a `tuple`, of a `group`, whose two have names, of a `generator`, or of a `dict_keys` and the like.
pub(super) fn make(of: &'static str, items: Vec<Value>) -> Value {
    Value::from_object(Items { of, text: String::new(), range: (0, 0, 0), items: Mutex::new(items) })
}

pub(super) fn tuple(items: Vec<Value>) -> Value {
    make("tuple", items)
}

pub(super) fn generator(items: Vec<Value>) -> Value {
    make("generator", items)
}

pub(super) fn range(text: String, range: (i128, i128, usize)) -> Value {
    Value::from_object(Items { of: "range", text, range, items: Mutex::default() })
}

impl Items {
    fn all(&self) -> MutexGuard<'_, Vec<Value>> {
        let mut all = self.items.lock().unwrap_or_else(PoisonError::into_inner);
        let (start, step, len) = self.range;
        if all.len() < len {
            *all = (0..len as i128).map(|i| super::ops::whole(start + i * step)).collect();
        }
        all
    }
}

impl Object for Items {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        match self.of {
            "tuple" | "group" | "range" => ObjectRepr::Seq,
            _ => ObjectRepr::Iterable,
        }
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        let at = match (self.of, key.as_str()) {
            ("group", Some("grouper")) => 0,
            ("group", Some("list")) => 1,
            _ => key.as_usize()?,
        };
        self.all().get(at).cloned()
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        match (self.of, self.repr()) {
            ("generator", _) => Enumerator::Values(std::mem::take(&mut *self.all())),
            (_, ObjectRepr::Seq) => Enumerator::Seq(self.all().len()),
            _ => Enumerator::Values(self.all().clone()),
        }
    }

    fn enumerator_len(self: &Arc<Self>) -> Option<usize> {
        (self.of != "generator").then(|| self.all().len())
    }
}

/// The first item, which a generator then has given.
pub(super) fn first(value: &Value) -> Result<Option<Value>, Error> {
    if let Some(generator) = value.downcast_object_ref::<Items>().filter(|items| items.of == "generator") {
        let mut all = generator.all();
        return Ok((!all.is_empty()).then(|| all.remove(0)));
    }
    Ok(items(value)?.into_iter().next())
}

/// `value.name` without a call.
#[derive(Debug)]
pub(super) struct Method {
    pub(super) of: Value,
    pub(super) name: String,
}

impl Object for Method {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn call(self: &Arc<Self>, state: &State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
        let args: Vec<Value> = args.iter().cloned().map(given).collect();
        self.of.call_method(state, &self.name, &args)
    }
}

/// Stands for what is undefined where a macro gets it, to be told from an argument that is missing.
#[derive(Debug)]
pub(super) struct Absent;

impl Object for Absent {}

pub(super) fn given(value: Value) -> Value {
    match value.downcast_object_ref::<Absent>() {
        Some(_) => Value::UNDEFINED,
        None => value,
    }
}

/// The name of a value's type in Python.
pub(super) fn name(value: &Value) -> &'static str {
    if value.is_safe() {
        return "Markup";
    }
    if let Some(items) = value.downcast_object_ref::<Items>() {
        return if items.of == "group" { "tuple" } else { items.of };
    }
    match value.kind() {
        ValueKind::Undefined => "Undefined",
        ValueKind::None => "NoneType",
        ValueKind::Bool => "bool",
        ValueKind::Number if value.is_integer() => "int",
        ValueKind::Number => "float",
        ValueKind::String => "str",
        ValueKind::Bytes => "bytes",
        ValueKind::Seq | ValueKind::Iterable => "list",
        ValueKind::Map => match value.as_object().map_or("", |o| o.type_name()) {
            name if name.ends_with("::Namespace") => "Namespace",
            name if name.ends_with("::Loop") => "LoopContext",
            name if name.ends_with("::Macro") => "Macro",
            _ => "dict",
        },
        _ if value.downcast_object_ref::<Method>().is_some() => "method",
        _ => "object",
    }
}

pub(super) fn is_dict(value: &Value) -> bool {
    value.kind() == ValueKind::Map && name(value) == "dict"
}

pub(super) fn is_iterable(value: &Value) -> bool {
    match name(value) {
        "Undefined" | "str" | "Markup" | "tuple" | "range" | "generator" | "list" | "dict" => true,
        name => name.starts_with("dict_"),
    }
}

/// Python's `iter`. Nothing for what is undefined.
pub(super) fn items(value: &Value) -> Result<Vec<Value>, Error> {
    if !is_iterable(value) {
        let what = format!("a value of type {} is not iterable", name(value));
        return Err(Error::new(ErrorKind::InvalidOperation, what));
    }
    Ok(value.try_iter()?.collect())
}

/// `dict.items()`.
pub(super) fn pairs(dict: &Value) -> Result<Vec<Value>, Error> {
    items(dict)?.into_iter().map(|key| Ok(tuple(vec![key.clone(), dict.get_item(&key)?]))).collect()
}
