//! Operations on texts as Python's `str` and NumPy's arrays of texts do them.

use crate::metrics::python::is_space;

/// `str.strip()`.
pub(super) fn strip(text: &str) -> &str {
    text.trim_matches(is_space)
}

/// `str.capitalize()`: the first character in title case, the others in lower case.
pub fn capitalize(text: &str) -> String {
    let Some(first) = text.chars().next() else { return String::new() };
    let lower = text.to_lowercase();
    // What the first character became is replaced; lower case of the whole keeps the rule of the final sigma.
    let skip: usize = first.to_lowercase().map(char::len_utf8).sum();
    let mut out = title(first);
    out.push_str(lower.get(skip..).unwrap_or_default());
    out
}

/// A character in title case, which differs from upper case for digraphs, ligatures and Georgian letters.
fn title(c: char) -> String {
    match c {
        'Ǆ' | 'ǅ' | 'ǆ' => "ǅ".into(),
        'Ǉ' | 'ǈ' | 'ǉ' => "ǈ".into(),
        'Ǌ' | 'ǋ' | 'ǌ' => "ǋ".into(),
        'Ǳ' | 'ǲ' | 'ǳ' => "ǲ".into(),
        'ა'..='ჿ' => c.into(),
        _ => {
            let mut upper = c.to_uppercase();
            let first = upper.next().into_iter();
            first.chain(upper.flat_map(char::to_lowercase)).collect()
        }
    }
}

/// `numpy.char.lower(array)`: the array keeps its width, so texts that grow beyond its longest are cut there.
pub(super) fn lower(texts: &mut [String]) {
    let width = texts.iter().map(|t| t.chars().count()).max().unwrap_or_default();
    for text in texts {
        *text = text.to_lowercase().chars().take(width).collect();
    }
}

/// Texts as an array of NumPy's gives them back: without zero characters at their ends.
pub(super) fn stored(text: &str) -> &str {
    text.trim_end_matches('\0')
}

/// `numpy.argmax`: the first of the largest; what is not a number counts as the largest.
pub(super) fn argmax(values: impl Iterator<Item = f64>) -> Option<usize> {
    let mut best: Option<(usize, f64)> = None;
    for (i, value) in values.enumerate() {
        if value.is_nan() {
            return Some(i);
        }
        if best.is_none_or(|(_, b)| value > b) {
            best = Some((i, value));
        }
    }
    best.map(|(i, _)| i)
}
