//! The grammar of settings: `name[:key=value[,key=value]...]`, or `key=value,...` alone.
//!
//! Rope specs, data transforms, losses and the rare options of commands all use it, so all have the same errors.

use std::fmt::Display;
use std::ops::RangeInclusive;

/// Splits `name:settings` at its first colon. Spaces around the name do not count.
pub fn named(text: &str) -> (&str, Option<&str>) {
    text.split_once(':').map_or((text.trim(), None), |(name, rest)| (name.trim(), Some(rest)))
}

/// Splits `key=value,...`. `what` names the owner in errors, such as `rope method yarn`.
///
/// # Errors
/// A part without `=`, a key that is not in `known`, or one given twice.
pub fn pairs<'t>(
    what: &str,
    text: Option<&'t str>,
    known: &[&'static str],
) -> Result<Vec<(&'static str, &'t str)>, String> {
    let mut out: Vec<(&'static str, &'t str)> = Vec::new();
    for pair in text.into_iter().flat_map(|text| text.split(',')) {
        let Some((key, value)) = pair.split_once('=') else {
            return Err(format!("{what}: expected key=value, found {}", quoted(pair)));
        };
        let key = known_as(what, key.trim(), known)?;
        if out.iter().any(|(k, _)| *k == key) {
            return Err(format!("{what}: {key} is given twice"));
        }
        out.push((key, value.trim()));
    }
    Ok(out)
}

/// The known key of this name.
///
/// # Errors
/// No such key: the error lists those there are, and the nearest one.
pub fn known_as(what: &str, key: &str, known: &[&'static str]) -> Result<&'static str, String> {
    known.iter().find(|k| **k == key).copied().ok_or_else(|| {
        if known.is_empty() {
            return format!("{what}: takes no parameters, found {}", quoted(key));
        }
        let near = suggestion(key, known.iter().copied());
        format!("{what}: unknown parameter {}{near}; known: {}", quoted(key), known.join(", "))
    })
}

/// The number that a setting has.
pub fn number<T: std::str::FromStr>(what: &str, key: &str, text: &str) -> Result<T, String> {
    let whole = std::any::type_name::<T>().starts_with(['u', 'i']);
    let expected = if whole { "a whole number" } else { "a number" };
    text.parse().map_err(|_| format!("{what}: {key}: expected {expected}, found {}", quoted(text)))
}

/// A number of tokens, at least one: `4096`, or `4k` for 4 times 1,024.
///
/// # Errors
/// Something else, or more than there are positions.
pub fn tokens(text: &str) -> Result<usize, String> {
    match tokens_or_zero(text)? {
        0 => Err("must be at least 1".to_owned()),
        n => Ok(n),
    }
}

/// A number of tokens that may be none.
pub fn tokens_or_zero(text: &str) -> Result<usize, String> {
    let (digits, unit) = text.strip_suffix(['k', 'K']).map_or((text, 1), |d| (d, 1024));
    let n: usize = digits.parse().map_err(|_| "expected a number of tokens such as 4096 or 4k".to_owned())?;
    // ggml positions are i32, so no context is longer than that.
    n.checked_mul(unit).filter(|&n| n <= i32::MAX as usize).ok_or_else(|| "too large".to_owned())
}

/// The value of a setting, which a text can replace.
pub trait Setting {
    /// Puts in the value that `text` has. `what` names the owner in errors.
    fn put(&mut self, what: &str, key: &str, text: &str) -> Result<(), String>;
}

macro_rules! numbers {
    ($($t:ty),*) => {$(
        impl Setting for $t {
            fn put(&mut self, what: &str, key: &str, text: &str) -> Result<(), String> {
                *self = number(what, key, text)?;
                Ok(())
            }
        }
    )*};
}
numbers!(i32, usize, f32, f64);

impl Setting for bool {
    fn put(&mut self, what: &str, key: &str, text: &str) -> Result<(), String> {
        let wrong = |_| format!("{what}: {key}: expected true or false, found {}", quoted(text));
        *self = text.parse().map_err(wrong)?;
        Ok(())
    }
}

/// A number within bounds.
pub struct Within<'a, T>(pub &'a mut T, pub RangeInclusive<T>);

impl<T: Setting + PartialOrd + Display> Setting for Within<'_, T> {
    fn put(&mut self, what: &str, key: &str, text: &str) -> Result<(), String> {
        let Within(number, bounds) = self;
        number.put(what, key, text)?;
        if bounds.contains(&**number) {
            return Ok(());
        }
        let (least, most) = (bounds.start(), bounds.end());
        Err(format!("{what}: {key}: expected a number from {least} to {most}, found {number}"))
    }
}

impl<T: Setting + Default> Setting for Option<T> {
    fn put(&mut self, what: &str, key: &str, text: &str) -> Result<(), String> {
        self.insert(T::default()).put(what, key, text)
    }
}

/// Puts the values of `key=value,...` into the settings of these names.
pub fn read(
    what: &str,
    text: Option<&str>,
    settings: &mut [(&'static str, &mut dyn Setting)],
) -> Result<(), String> {
    let known: Vec<&'static str> = settings.iter().map(|(name, _)| *name).collect();
    for (key, value) in pairs(what, text, &known)? {
        if let Some((_, setting)) = settings.iter_mut().find(|(name, _)| *name == key) {
            setting.put(what, key, value)?;
        }
    }
    Ok(())
}

/// Text from a user for an error: in backquotes, escaped, at most 48 characters.
pub fn quoted(text: &str) -> String {
    let mut cut: String = text.chars().take(48).flat_map(char::escape_debug).collect();
    if text.chars().nth(48).is_some() {
        cut.push_str("...");
    }
    format!("`{cut}`")
}

/// ` (did you mean ...?)` when a known name is close to `name`, else nothing.
pub fn suggestion<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> String {
    let name: String = name.chars().take(64).collect();
    known
        .map(|k| (strsim::levenshtein(&name, k), k))
        .min()
        .filter(|(n, k)| *n <= 1 + k.len() / 3)
        .map(|(_, k)| format!(" (did you mean `{k}`?)"))
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn token_counts() {
        assert_eq!(tokens("4096"), Ok(4096));
        assert_eq!(tokens("4k"), Ok(4096));
        assert_eq!(tokens_or_zero("0"), Ok(0));
        for bad in ["0", "", "k", "-1", "4.5", "99999999999", "9999999k", "18446744073709551615k"] {
            assert!(tokens(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn pairs_are_split_and_mistakes_are_named() {
        let known = ["top", "piece"];
        let read = |text| pairs("attention landmark", Some(text), &known);
        assert_eq!(named(" landmark :top=3"), ("landmark", Some("top=3")));
        assert_eq!(pairs("x", None, &known), Ok(vec![]));
        assert_eq!(read("piece=64, top = 3"), Ok(vec![("piece", "64"), ("top", "3")]));
        for (text, error) in [
            ("", "attention landmark: expected key=value, found ``"),
            ("top", "attention landmark: expected key=value, found `top`"),
            ("top=1,top=2", "attention landmark: top is given twice"),
            ("tip=1", "attention landmark: unknown parameter `tip` (did you mean `top`?); known: top, piece"),
            ("\u{1b}=1", "attention landmark: unknown parameter `\\u{1b}`; known: top, piece"),
        ] {
            assert_eq!(read(text), Err(error.to_owned()), "{text}");
        }
        let e = pairs("upsampling none", Some("length=3"), &[]).unwrap_err();
        assert_eq!(e, "upsampling none: takes no parameters, found `length`");
        assert_eq!((number("x", "k", "-3"), number("x", "k", "0.5")), (Ok(-3i64), Ok(0.5f64)));
        let e = number::<usize>("--longppl", "trunc-len", "-3");
        assert_eq!(e, Err("--longppl: trunc-len: expected a whole number, found `-3`".to_owned()));
    }

    #[test]
    fn settings_are_read_by_name() {
        let (mut n, mut x, mut is) = (1usize, None::<f64>, false);
        let mut put = |text| {
            let n = &mut Within(&mut n, 1..=9);
            read("x", Some(text), &mut [("n", n), ("x", &mut x), ("is", &mut is)])
        };
        for (text, error) in [
            ("n=-3", "x: n: expected a whole number, found `-3`"),
            ("n=0", "x: n: expected a number from 1 to 9, found 0"),
            ("is=no", "x: is: expected true or false, found `no`"),
            ("y=1", "x: unknown parameter `y` (did you mean `n`?); known: n, x, is"),
        ] {
            assert_eq!(put(text), Err(error.to_owned()));
        }
        assert_eq!(put("x=0.5, n=3, is=true"), Ok(()));
        assert_eq!((n, x, is), (3, Some(0.5), true));
    }
}
