//! Python's kinds of characters and its capitals.

use minijinja::Error;
use ropewalk_tasks::metrics::python;

use super::ops::wrong as failed;

/// `str.isspace`.
pub(super) fn is_space(c: char) -> bool {
    c.is_whitespace() || ('\x1c'..='\x1f').contains(&c)
}

pub(super) fn all(text: &str, is: fn(char) -> bool) -> bool {
    !text.is_empty() && text.chars().all(is)
}

pub(super) fn cased(text: &str, is: fn(char) -> bool, other: fn(char) -> bool) -> bool {
    text.chars().any(is) && !text.chars().any(other)
}

pub(super) fn swapped(c: char) -> String {
    if c.is_uppercase() {
        c.to_lowercase().collect()
    } else {
        c.to_uppercase().collect()
    }
}

pub(super) fn is_lower(text: &str) -> bool {
    cased(text, char::is_lowercase, |c| c.is_uppercase() || is_title(c))
}

/// Letters that are a capital and a small one.
pub(super) fn is_title(c: char) -> bool {
    matches!(c, 'ǅ' | 'ǈ' | 'ǋ' | 'ǲ' | '\u{1f88}'..='\u{1f8f}' | '\u{1f98}'..='\u{1f9f}' | '\u{1fa8}'..='\u{1faf}')
        || matches!(c, '\u{1fbc}' | '\u{1fcc}' | '\u{1ffc}')
}

/// The character at the beginning of a word.
pub(super) fn titled(c: char) -> Result<String, Error> {
    let upper = c.to_uppercase();
    Ok(match c {
        'Ǆ'..='ǆ' => "ǅ".to_owned(),
        'Ǉ'..='ǉ' => "ǈ".to_owned(),
        'Ǌ'..='ǌ' => "ǋ".to_owned(),
        'Ǳ'..='ǳ' => "ǲ".to_owned(),
        // Georgian has capitals for whole words alone.
        'ა'..='ჿ' => c.to_string(),
        'ß' => "Ss".to_owned(),
        _ if upper.len() == 1 && !is_title(c) && !('\u{1f80}'..'\u{2000}').contains(&c) => upper.to_string(),
        'ﬀ'..='ﬆ' => {
            let upper = upper.to_string();
            upper[..1].to_owned() + &upper[1..].to_lowercase()
        }
        c => return Err(failed(format!("the capital of {c:?} at the beginning of a word is not supported"))),
    })
}

pub(super) fn is_numeric(c: char, method: &str) -> Result<bool, Error> {
    match (method, c) {
        _ if python::is_digit(c) => Ok(true),
        ("isdigit", '²' | '³' | '¹') | ("isnumeric", '〇') => Ok(true),
        // Their properties are in no table here.
        ("isdigit", c) if c.is_numeric() && !matches!(c, '¼'..='¾' | '\u{2150}'..='\u{218f}') => {
            Err(failed(format!("{method} of {c:?} is not supported")))
        }
        ("isnumeric", '\u{3400}'..='\u{9fff}' | '\u{f900}'..='\u{faff}' | '\u{20000}'..) => {
            Err(failed(format!("{method} of {c:?} is not supported")))
        }
        ("isnumeric", c) => Ok(c.is_numeric()),
        _ => Ok(false),
    }
}

/// A capital begins each run of letters.
pub(super) fn title(text: &str) -> Result<String, Error> {
    let (mut out, mut inside) = (String::with_capacity(text.len()), false);
    for c in text.chars() {
        if inside {
            out.extend(c.to_lowercase());
        } else {
            out.push_str(&titled(c)?);
        }
        inside = c.is_lowercase() || c.is_uppercase() || is_title(c);
    }
    Ok(out)
}

/// The filter `title`: a capital begins each word, and words begin after white space, `-` and opening brackets.
pub(super) fn words(text: &str) -> String {
    let begins = |c: char| is_space(c) || "-({[<".contains(c);
    let mut out = String::with_capacity(text.len());
    for word in text.split_inclusive(begins) {
        let mut chars = word.chars();
        out.extend(chars.next().into_iter().flat_map(char::to_uppercase));
        out.push_str(&chars.as_str().to_lowercase());
    }
    out
}
