//! Metadata values, and the Rust types they can be read as.
#![forbid(unsafe_code)]

/// The types of values: enums, numbers in files, names as in the GGUF specification but shorter.
macro_rules! types {
    (integers { $($int:ident($i:ty) = $i_number:literal $i_name:literal;)* }
     others { $($other:ident($o:ty) = $o_number:literal $o_name:literal;)* }) => {
        /// A metadata value. Strings are bytes: GGUF does not promise UTF-8 everywhere.
        #[derive(Debug, Clone, PartialEq)]
        #[allow(missing_docs)]
        pub enum Value {
            $($int($i),)*
            $($other($o),)*
        }

        /// A metadata array: one type for all elements; arrays may nest.
        #[derive(Debug, Clone, PartialEq)]
        #[allow(missing_docs)]
        pub enum Array {
            $($int(Vec<$i>),)*
            $($other(Vec<$o>),)*
        }

        impl Value {
            /// Name of the type (`u32`, `string`, `array`).
            pub fn type_name(&self) -> &'static str {
                match self {
                    $(Value::$int(_) => $i_name,)*
                    $(Value::$other(_) => $o_name,)*
                }
            }
            /// Number of the type in a file.
            pub(crate) fn type_number(&self) -> u32 {
                match self {
                    $(Value::$int(_) => $i_number,)*
                    $(Value::$other(_) => $o_number,)*
                }
            }
            /// The value of any integer type.
            fn integer(&self) -> Option<i128> {
                match *self {
                    $(Value::$int(v) => Some(v.into()),)*
                    _ => None,
                }
            }
        }

        impl Array {
            /// Number of elements.
            pub fn len(&self) -> usize {
                match self {
                    $(Array::$int(v) => v.len(),)*
                    $(Array::$other(v) => v.len(),)*
                }
            }
            /// The first `n` elements, or all if there are fewer.
            pub fn first(&self, n: usize) -> Vec<Value> {
                match self {
                    $(Array::$int(v) => v.iter().take(n).cloned().map(Value::$int).collect(),)*
                    $(Array::$other(v) => v.iter().take(n).cloned().map(Value::$other).collect(),)*
                }
            }
            /// Name of the element type (`u32`, `string`, `array`).
            pub fn element_name(&self) -> &'static str {
                match self {
                    $(Array::$int(_) => $i_name,)*
                    $(Array::$other(_) => $o_name,)*
                }
            }
            /// Number of the element type in a file.
            pub(crate) fn element_type(&self) -> u32 {
                match self {
                    $(Array::$int(_) => $i_number,)*
                    $(Array::$other(_) => $o_number,)*
                }
            }
            /// The elements of an array of any integer type.
            pub fn integers(&self) -> Option<Box<dyn ExactSizeIterator<Item = i128> + '_>> {
                match self {
                    $(Array::$int(v) => Some(Box::new(v.iter().map(|&x| i128::from(x)))),)*
                    _ => None,
                }
            }
        }
    };
}

types! {
    integers {
        U8(u8) = 0 "u8";
        I8(i8) = 1 "i8";
        U16(u16) = 2 "u16";
        I16(i16) = 3 "i16";
        U32(u32) = 4 "u32";
        I32(i32) = 5 "i32";
        U64(u64) = 10 "u64";
        I64(i64) = 11 "i64";
    }
    others {
        F32(f32) = 6 "f32";
        Bool(bool) = 7 "bool";
        String(Vec<u8>) = 8 "string";
        Array(Array) = 9 "array";
        F64(f64) = 12 "f64";
    }
}

impl Array {
    /// True without elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// Nesting: 1 for an array of scalars.
    pub(crate) fn depth(&self) -> usize {
        match self {
            Array::Array(inner) => 1 + inner.iter().map(Array::depth).max().unwrap_or(0),
            _ => 1,
        }
    }
}

impl Value {
    /// Type and, where short, content: for error messages.
    pub fn describe(&self) -> String {
        match self {
            Value::F32(v) => format!("f32 {v}"),
            Value::F64(v) => format!("f64 {v}"),
            Value::Bool(v) => format!("bool {v}"),
            Value::String(s) => match std::str::from_utf8(s) {
                Ok(s) => format!("string \"{}\"", super::error::shown(s)),
                Err(_) => format!("string of {} bytes, not UTF-8", s.len()),
            },
            Value::Array(a) => format!("array of {} {}", a.len(), a.element_name()),
            _ => format!("{} {}", self.type_name(), self.integer().unwrap_or_default()),
        }
    }
    /// An array of any integer type.
    fn integers<T: TryFrom<i128>>(&self) -> Option<Vec<T>> {
        let Value::Array(array) = self else { return None };
        array.integers()?.map(|x| T::try_from(x).ok()).collect()
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

macro_rules! from_value {
    ($($t:ty, $wanted:literal: $($pattern:pat => $value:expr),*;)*) => {$(
        impl FromValue for $t {
            const WANTED: &'static str = $wanted;
            fn from_value(value: &Value) -> Option<Self> {
                match value {
                    $($pattern => $value,)*
                    _ => None,
                }
            }
        }
    )*};
}
from_value! {
    f32, "f32": Value::F32(v) => Some(*v), Value::F64(v) => narrow(*v);
    f64, "f64": Value::F32(v) => Some(f64::from(*v)), Value::F64(v) => Some(*v);
    bool, "bool": Value::Bool(v) => Some(*v);
    String, "UTF-8 string": Value::String(v) => String::from_utf8(v.clone()).ok();
    Vec<f32>, "array of f32": Value::Array(Array::F32(v)) => Some(v.clone()),
        Value::Array(Array::F64(v)) => v.iter().map(|&x| narrow(x)).collect();
    Vec<f64>, "array of f64": Value::Array(Array::F32(v)) => Some(v.iter().map(|&x| f64::from(x)).collect()),
        Value::Array(Array::F64(v)) => Some(v.clone());
    Vec<bool>, "array of bool": Value::Array(Array::Bool(v)) => Some(v.clone());
    Vec<String>, "array of UTF-8 strings": Value::Array(Array::String(v)) =>
        v.iter().map(|s| String::from_utf8(s.clone()).ok()).collect();
    Vec<Vec<u8>>, "array of strings": Value::Array(Array::String(v)) => Some(v.clone());
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
impl From<&str> for Value {
    fn from(v: &str) -> Value {
        Value::String(v.as_bytes().to_vec())
    }
}
