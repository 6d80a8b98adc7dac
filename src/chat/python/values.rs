//! Python's values that minijinja has none of: tuples, ranges, views of dicts, generators and bound methods.

use std::sync::{Arc, Mutex};

use minijinja::value::{Enumerator, Object, ObjectRepr, Value, ValueKind};
use minijinja::{Error, ErrorKind, State};

/// A tuple; those of `groupby` have names for their items.
#[derive(Debug)]
pub(super) struct Tuple {
    pub(super) items: Vec<Value>,
    names: &'static [&'static str],
}

pub(super) fn tuple(items: Vec<Value>) -> Value {
    Value::from_object(Tuple { items, names: &[] })
}

pub(super) fn group(items: Vec<Value>) -> Value {
    Value::from_object(Tuple { items, names: &["grouper", "list"] })
}

impl Object for Tuple {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Seq
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        let at = match key.as_str() {
            Some(name) => self.names.iter().position(|n| *n == name)?,
            None => key.as_usize()?,
        };
        self.items.get(at).cloned()
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Seq(self.items.len())
    }
}

#[derive(Debug)]
pub(super) struct Range {
    pub(super) start: i64,
    pub(super) stop: i64,
    pub(super) step: i64,
    pub(super) len: usize,
}

impl Object for Range {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Seq
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        let at = key.as_usize().filter(|&at| at < self.len)?;
        Some(Value::from(self.start + at as i64 * self.step))
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Seq(self.len)
    }
}

/// `dict.keys()`, `dict.values()` and `dict.items()`.
#[derive(Debug)]
pub(super) struct View {
    pub(super) name: &'static str,
    pub(super) items: Vec<Value>,
}

impl Object for View {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Iterable
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Values(self.items.clone())
    }
}

/// Generator that gives its items once.
#[derive(Debug)]
pub(super) struct Generator(Mutex<Vec<Value>>);

pub(super) fn generator(items: Vec<Value>) -> Value {
    Value::from_object(Generator(Mutex::new(items)))
}

impl Object for Generator {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Iterable
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Values(self.0.lock().map(|mut items| std::mem::take(&mut *items)).unwrap_or_default())
    }

    fn enumerator_len(self: &Arc<Self>) -> Option<usize> {
        None
    }

    fn is_true(self: &Arc<Self>) -> bool {
        true
    }
}

impl Generator {
    pub(super) fn next(&self) -> Option<Value> {
        let mut items = self.0.lock().ok()?;
        (!items.is_empty()).then(|| items.remove(0))
    }
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
        self.of.call_method(state, &self.name, args)
    }
}

/// Stands for what is undefined where a macro gets it, to be told from an argument that is missing.
#[derive(Debug)]
pub(super) struct Absent;

impl Object for Absent {}

/// The name of a value's type in Python.
pub(super) fn name(value: &Value) -> &'static str {
    if value.is_safe() {
        return "Markup";
    }
    match value.kind() {
        ValueKind::Undefined => "Undefined",
        ValueKind::None => "NoneType",
        ValueKind::Bool => "bool",
        ValueKind::Number if value.is_integer() => "int",
        ValueKind::Number => "float",
        ValueKind::String => "str",
        ValueKind::Bytes => "bytes",
        _ if value.downcast_object_ref::<Tuple>().is_some() => "tuple",
        _ if value.downcast_object_ref::<Range>().is_some() => "range",
        _ if value.downcast_object_ref::<Generator>().is_some() => "generator",
        _ if value.downcast_object_ref::<Method>().is_some() => "method",
        kind => match (value.downcast_object_ref::<View>(), kind) {
            (Some(view), _) => view.name,
            (None, ValueKind::Seq | ValueKind::Iterable) => "list",
            (None, ValueKind::Map) => match value.as_object().map_or("", |o| o.type_name()) {
                name if name.ends_with("::Namespace") => "Namespace",
                name if name.ends_with("::Loop") => "LoopContext",
                name if name.ends_with("::Macro") => "Macro",
                _ => "dict",
            },
            _ => "object",
        },
    }
}

pub(super) fn is_dict(value: &Value) -> bool {
    value.kind() == ValueKind::Map && name(value) == "dict"
}

/// Returns true if these are the items of a list, and of nothing else.
pub(super) fn is_list(value: &Value) -> bool {
    name(value) == "list"
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
