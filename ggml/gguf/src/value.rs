//! Metadata values, and the Rust types they can be read as.
#![forbid(unsafe_code)]

/// A metadata value. Strings are bytes: GGUF does not promise UTF-8 everywhere.
#[derive(Debug, Clone, PartialEq)]
#[allow(missing_docs)]
pub enum Value {
    U8(u8),
    I8(i8),
    U16(u16),
    I16(i16),
    U32(u32),
    I32(i32),
    F32(f32),
    Bool(bool),
    String(Vec<u8>),
    Array(Array),
    U64(u64),
    I64(i64),
    F64(f64),
}

/// A metadata array: one type for all elements; arrays may nest.
#[derive(Debug, Clone, PartialEq)]
#[allow(missing_docs)]
pub enum Array {
    U8(Vec<u8>),
    I8(Vec<i8>),
    U16(Vec<u16>),
    I16(Vec<i16>),
    U32(Vec<u32>),
    I32(Vec<i32>),
    F32(Vec<f32>),
    Bool(Vec<bool>),
    String(Vec<Vec<u8>>),
    U64(Vec<u64>),
    I64(Vec<i64>),
    F64(Vec<f64>),
    /// Arrays of arrays.
    Array(Vec<Array>),
}

/// Runs `$body` with `$v` bound to the vector inside an [`Array`], whatever its type.
macro_rules! with_elements {
    ($array:expr, $v:ident => $body:expr) => {
        match $array {
            Array::U8($v) => $body,
            Array::I8($v) => $body,
            Array::U16($v) => $body,
            Array::I16($v) => $body,
            Array::U32($v) => $body,
            Array::I32($v) => $body,
            Array::F32($v) => $body,
            Array::Bool($v) => $body,
            Array::String($v) => $body,
            Array::U64($v) => $body,
            Array::I64($v) => $body,
            Array::F64($v) => $body,
            Array::Array($v) => $body,
        }
    };
}

impl Array {
    /// Number of elements.
    pub fn len(&self) -> usize {
        with_elements!(self, v => v.len())
    }
    /// True without elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// The first `n` elements, or all if there are fewer.
    pub fn first(&self, n: usize) -> Vec<Value> {
        with_elements!(self, v => v.iter().take(n).cloned().map(Value::from).collect())
    }
    /// Name of the element type, as in the GGUF specification but shorter (`u32`, `string`, `array`).
    pub fn element_name(&self) -> &'static str {
        TYPE_NAMES[self.element_type() as usize]
    }
    /// Number of the element type in a file.
    pub(crate) fn element_type(&self) -> u32 {
        match self {
            Array::U8(_) => 0,
            Array::I8(_) => 1,
            Array::U16(_) => 2,
            Array::I16(_) => 3,
            Array::U32(_) => 4,
            Array::I32(_) => 5,
            Array::F32(_) => 6,
            Array::Bool(_) => 7,
            Array::String(_) => 8,
            Array::Array(_) => 9,
            Array::U64(_) => 10,
            Array::I64(_) => 11,
            Array::F64(_) => 12,
        }
    }
    /// Nesting: 1 for an array of scalars.
    pub(crate) fn depth(&self) -> usize {
        match self {
            Array::Array(inner) => 1 + inner.iter().map(Array::depth).max().unwrap_or(0),
            _ => 1,
        }
    }
}

/// Names of the value types by their number in a file.
const TYPE_NAMES: [&str; 13] =
    ["u8", "i8", "u16", "i16", "u32", "i32", "f32", "bool", "string", "array", "u64", "i64", "f64"];

impl Value {
    /// Name of the type, as in the GGUF specification but shorter (`u32`, `string`, `array`).
    pub fn type_name(&self) -> &'static str {
        TYPE_NAMES[self.type_number() as usize]
    }
    /// Number of the type in a file.
    pub(crate) fn type_number(&self) -> u32 {
        match self {
            Value::U8(_) => 0,
            Value::I8(_) => 1,
            Value::U16(_) => 2,
            Value::I16(_) => 3,
            Value::U32(_) => 4,
            Value::I32(_) => 5,
            Value::F32(_) => 6,
            Value::Bool(_) => 7,
            Value::String(_) => 8,
            Value::Array(_) => 9,
            Value::U64(_) => 10,
            Value::I64(_) => 11,
            Value::F64(_) => 12,
        }
    }
    /// Type and, where short, content: for error messages.
    pub fn describe(&self) -> String {
        match self {
            Value::U8(v) => format!("u8 {v}"),
            Value::I8(v) => format!("i8 {v}"),
            Value::U16(v) => format!("u16 {v}"),
            Value::I16(v) => format!("i16 {v}"),
            Value::U32(v) => format!("u32 {v}"),
            Value::I32(v) => format!("i32 {v}"),
            Value::U64(v) => format!("u64 {v}"),
            Value::I64(v) => format!("i64 {v}"),
            Value::F32(v) => format!("f32 {v}"),
            Value::F64(v) => format!("f64 {v}"),
            Value::Bool(v) => format!("bool {v}"),
            Value::String(s) => match std::str::from_utf8(s) {
                Ok(s) => format!("string \"{}\"", super::error::shown(s)),
                Err(_) => format!("string of {} bytes, not UTF-8", s.len()),
            },
            Value::Array(a) => format!("array of {} {}", a.len(), a.element_name()),
        }
    }
    /// The value of any integer type.
    fn integer(&self) -> Option<i128> {
        Some(match *self {
            Value::U8(v) => v.into(),
            Value::I8(v) => v.into(),
            Value::U16(v) => v.into(),
            Value::I16(v) => v.into(),
            Value::U32(v) => v.into(),
            Value::I32(v) => v.into(),
            Value::U64(v) => v.into(),
            Value::I64(v) => v.into(),
            _ => return None,
        })
    }
    /// An array of any integer type.
    fn integers<T: TryFrom<i128>>(&self) -> Option<Vec<T>> {
        fn all<S: Copy + Into<i128>, T: TryFrom<i128>>(v: &[S]) -> Option<Vec<T>> {
            v.iter().map(|&x| T::try_from(x.into()).ok()).collect()
        }
        match self {
            Value::Array(Array::U8(v)) => all(v),
            Value::Array(Array::I8(v)) => all(v),
            Value::Array(Array::U16(v)) => all(v),
            Value::Array(Array::I16(v)) => all(v),
            Value::Array(Array::U32(v)) => all(v),
            Value::Array(Array::I32(v)) => all(v),
            Value::Array(Array::U64(v)) => all(v),
            Value::Array(Array::I64(v)) => all(v),
            _ => None,
        }
    }
}

/// A Rust type a metadata value can be read as. Integers convert when the value fits, `f32` and `f64` to each
/// other (unless a finite value would become infinite); nothing else converts.
pub trait FromValue: Sized {
    /// The name of the wanted type in errors.
    const WANTED: &'static str;
    /// The value, when it has this type.
    fn from_value(value: &Value) -> Option<Self>;
}

macro_rules! integers {
    ($($t:ty, $one:literal, $many:literal;)*) => {$(
        impl FromValue for $t {
            const WANTED: &'static str = $one;
            fn from_value(value: &Value) -> Option<Self> {
                value.integer()?.try_into().ok()
            }
        }
        impl FromValue for Vec<$t> {
            const WANTED: &'static str = $many;
            fn from_value(value: &Value) -> Option<Self> {
                value.integers()
            }
        }
    )*};
}
integers! {
    u32, "u32", "array of u32";
    i32, "i32", "array of i32";
    u64, "u64", "array of u64";
    i64, "i64", "array of i64";
    usize, "unsigned integer", "array of unsigned integers";
}

fn narrow(v: f64) -> Option<f32> {
    let narrowed = v as f32;
    (narrowed.is_finite() || !v.is_finite()).then_some(narrowed)
}

impl FromValue for f32 {
    const WANTED: &'static str = "f32";
    fn from_value(value: &Value) -> Option<f32> {
        match *value {
            Value::F32(v) => Some(v),
            Value::F64(v) => narrow(v),
            _ => None,
        }
    }
}
impl FromValue for f64 {
    const WANTED: &'static str = "f64";
    fn from_value(value: &Value) -> Option<f64> {
        match *value {
            Value::F32(v) => Some(v.into()),
            Value::F64(v) => Some(v),
            _ => None,
        }
    }
}
impl FromValue for bool {
    const WANTED: &'static str = "bool";
    fn from_value(value: &Value) -> Option<bool> {
        match *value {
            Value::Bool(v) => Some(v),
            _ => None,
        }
    }
}
impl FromValue for String {
    const WANTED: &'static str = "UTF-8 string";
    fn from_value(value: &Value) -> Option<String> {
        match value {
            Value::String(v) => String::from_utf8(v.clone()).ok(),
            _ => None,
        }
    }
}
impl FromValue for Vec<f32> {
    const WANTED: &'static str = "array of f32";
    fn from_value(value: &Value) -> Option<Vec<f32>> {
        match value {
            Value::Array(Array::F32(v)) => Some(v.clone()),
            Value::Array(Array::F64(v)) => v.iter().map(|&x| narrow(x)).collect(),
            _ => None,
        }
    }
}
impl FromValue for Vec<f64> {
    const WANTED: &'static str = "array of f64";
    fn from_value(value: &Value) -> Option<Vec<f64>> {
        match value {
            Value::Array(Array::F32(v)) => Some(v.iter().map(|&x| x.into()).collect()),
            Value::Array(Array::F64(v)) => Some(v.clone()),
            _ => None,
        }
    }
}
impl FromValue for Vec<bool> {
    const WANTED: &'static str = "array of bool";
    fn from_value(value: &Value) -> Option<Vec<bool>> {
        match value {
            Value::Array(Array::Bool(v)) => Some(v.clone()),
            _ => None,
        }
    }
}
impl FromValue for Vec<String> {
    const WANTED: &'static str = "array of UTF-8 strings";
    fn from_value(value: &Value) -> Option<Vec<String>> {
        match value {
            Value::Array(Array::String(v)) => v.iter().map(|s| String::from_utf8(s.clone()).ok()).collect(),
            _ => None,
        }
    }
}
impl FromValue for Vec<Vec<u8>> {
    const WANTED: &'static str = "array of strings";
    fn from_value(value: &Value) -> Option<Vec<Vec<u8>>> {
        match value {
            Value::Array(Array::String(v)) => Some(v.clone()),
            _ => None,
        }
    }
}

macro_rules! into_value {
    ($($t:ty => $variant:ident;)*) => {$(
        impl From<$t> for Value {
            fn from(v: $t) -> Value {
                Value::$variant(v)
            }
        }
        impl From<Vec<$t>> for Value {
            fn from(v: Vec<$t>) -> Value {
                Value::Array(Array::$variant(v))
            }
        }
    )*};
}
into_value! {
    u32 => U32; i32 => I32; u64 => U64; i64 => I64; f32 => F32; f64 => F64; bool => Bool;
}
macro_rules! one_into_value {
    ($($t:ty => $variant:ident;)*) => {$(
        impl From<$t> for Value {
            fn from(v: $t) -> Value {
                Value::$variant(v)
            }
        }
    )*};
}
one_into_value! {
    u8 => U8; i8 => I8; u16 => U16; i16 => I16; Vec<u8> => String; Array => Array;
}
impl From<&str> for Value {
    fn from(v: &str) -> Value {
        Value::String(v.as_bytes().to_vec())
    }
}
