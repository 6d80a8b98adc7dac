//! Values of method parameters: which are allowed, how they are read and printed.

use crate::settings::quoted;

use super::RopeError;

/// The values that a parameter accepts.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub enum Kind {
    /// A real number from the first to the second, both included.
    Number(f64, f64),
    /// A whole number from the first to the second, both included.
    Count(u64, u64),
    /// One of these words.
    Choice(&'static [&'static str]),
    /// One of these words, or a real number from the first to the second, both included.
    ChoiceOrNumber(&'static [&'static str], f64, f64),
    /// One of these words, or numbers from the first to the second joined by `/`.
    ChoiceOrList(&'static [&'static str], f64, f64),
}

/// A value that its [`Kind`] accepted.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Value {
    /// Value of [`Kind::Number`] or [`Kind::ChoiceOrNumber`].
    Number(f64),
    /// Value of [`Kind::Count`].
    Count(u64),
    /// Value of [`Kind::Choice`], [`Kind::ChoiceOrNumber`] or [`Kind::ChoiceOrList`].
    Word(String),
    /// Value of [`Kind::ChoiceOrList`].
    List(Vec<f64>),
}

impl Kind {
    /// The words among the values allowed.
    fn words(&self) -> &'static [&'static str] {
        match *self {
            Kind::Choice(words) => words,
            Kind::ChoiceOrNumber(words, ..) | Kind::ChoiceOrList(words, ..) => words,
            Kind::Number(..) | Kind::Count(..) => &[],
        }
    }

    /// The values allowed, in words, for help and errors.
    pub fn allowed(&self) -> String {
        let words = self.words().join(", ");
        let range = |min: f64, max: f64| format!("from {} to {}", number(min), number(max));
        match *self {
            Kind::Number(min, max) => format!("a number {}", range(min, max)),
            Kind::Count(min, max) => format!("a whole number from {min} to {max}"),
            Kind::Choice(_) => words,
            Kind::ChoiceOrNumber(_, min, max) => format!("{words}, or a number {}", range(min, max)),
            Kind::ChoiceOrList(_, min, max) => {
                format!("{words}, or numbers {} joined by `/`", range(min, max))
            }
        }
    }

    /// Reads a value; the error names `method`, `key`, the values allowed and the text found.
    pub fn parse(&self, method: &str, key: &str, text: &str) -> Result<Value, RopeError> {
        let value = match self {
            _ if self.words().contains(&text) => Some(Value::Word(text.into())),
            Kind::Choice(_) => None,
            Kind::Number(..) | Kind::ChoiceOrNumber(..) => {
                text.parse().ok().map(|x: f64| Value::Number(x + 0.0))
            }
            Kind::Count(..) => text.parse().ok().map(Value::Count).or_else(|| {
                let x = text.parse::<f64>().ok()?;
                (x.fract() == 0.0 && (0.0..=9e15).contains(&x)).then_some(Value::Count(x as u64))
            }),
            Kind::ChoiceOrList(..) => {
                text.split('/').map(|x| x.parse().ok()).collect::<Option<_>>().map(Value::List)
            }
        };
        value.filter(|v| self.accepts(v)).ok_or_else(|| self.refusal(method, key, &quoted(text)))
    }

    /// Returns true if the value has this kind and lies in its range.
    pub fn accepts(&self, value: &Value) -> bool {
        match (self, value) {
            (_, Value::Word(w)) => self.words().contains(&w.as_str()),
            (Kind::Number(min, max) | Kind::ChoiceOrNumber(_, min, max), Value::Number(x)) => {
                (*min..=*max).contains(x)
            }
            (Kind::Count(min, max), Value::Count(n)) => (min..=max).contains(&n),
            (Kind::ChoiceOrList(_, min, max), Value::List(xs)) => {
                !xs.is_empty() && xs.iter().all(|x| (*min..=*max).contains(x))
            }
            _ => false,
        }
    }

    pub(super) fn refusal(&self, method: &str, key: &str, found: &str) -> RopeError {
        RopeError::of_value(method, key, self.allowed(), found)
    }
}

impl Value {
    /// A single number, whole or not; `None` for words and lists.
    pub fn as_f64(&self) -> Option<f64> {
        match self {
            Value::Number(x) => Some(*x),
            Value::Count(n) => Some(*n as f64),
            Value::Word(_) | Value::List(_) => None,
        }
    }
}

impl std::fmt::Display for Value {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Value::Number(x) => f.write_str(&number(*x)),
            Value::Count(n) => write!(f, "{n}"),
            Value::Word(w) => f.write_str(w),
            Value::List(xs) => f.write_str(&xs.iter().map(|x| number(*x)).collect::<Vec<_>>().join("/")),
        }
    }
}

/// Shortest text that reads back as the same number; never contains `+`, which joins methods.
pub(super) fn number(x: f64) -> String {
    let a = x.abs();
    if a == 0.0 {
        "0".into()
    } else if (1e-4..1e15).contains(&a) {
        format!("{x}")
    } else {
        format!("{x:e}")
    }
}

/// Rounded to six significant digits: for derived parameters and notes, which claim no more.
pub(super) fn rounded(x: f64) -> f64 {
    format!("{x:.5e}").parse().unwrap_or(x)
}

/// [`rounded`], as text.
pub(super) fn approx(x: f64) -> String {
    number(rounded(x))
}
