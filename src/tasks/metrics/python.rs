//! Text as Python's `str` and `re` see it, as far as official metrics depend on it.

use unicode_properties::{GeneralCategory, GeneralCategoryGroup, UnicodeGeneralCategory};

pub(crate) use crate::text::is_python_space as is_space;

/// The ASCII punctuation of Python's `string.punctuation`.
pub fn is_punctuation(c: char) -> bool {
    c.is_ascii_punctuation()
}

/// `\w` of `re`: letters, numbers and `_`. Unlike [`char::is_alphanumeric`], vowel signs do not count.
pub fn is_word(c: char) -> bool {
    if c.is_ascii() {
        return c.is_ascii_alphanumeric() || c == '_';
    }
    matches!(c.general_category_group(), GeneralCategoryGroup::Letter | GeneralCategoryGroup::Number)
}

/// `\d` of `re`: decimal digits of any script.
pub fn is_digit(c: char) -> bool {
    if c.is_ascii() {
        return c.is_ascii_digit();
    }
    c.general_category() == GeneralCategory::DecimalNumber
}

/// `str.isprintable` for one character.
fn is_printable(c: char) -> bool {
    let group = c.general_category_group();
    c == ' ' || !matches!(group, GeneralCategoryGroup::Other | GeneralCategoryGroup::Separator)
}

/// Appends `repr(text)`.
pub fn repr(text: &str, out: &mut String) {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    out.push(quote);
    for c in text.chars() {
        match c {
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if c == quote || c == '\\' => out.extend(['\\', c]),
            c if is_printable(c) => out.push(c),
            c => match u32::from(c) {
                n @ ..=0xff => out.push_str(&format!("\\x{n:02x}")),
                n @ ..=0xffff => out.push_str(&format!("\\u{n:04x}")),
                n => out.push_str(&format!("\\U{n:08x}")),
            },
        }
    }
    out.push(quote);
}

/// `str.split()`: words between white space.
pub fn split(text: &str) -> impl Iterator<Item = &str> {
    text.split(is_space).filter(|word| !word.is_empty())
}

/// `" ".join(text.split())`.
pub fn join_words(text: &str) -> String {
    split(text).collect::<Vec<_>>().join(" ")
}

/// `re.findall(r"\d+", text)`.
pub fn numbers(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c| !is_digit(c)).filter(|number| !number.is_empty())
}
