//! Text as published protocols cut it.

mod punkt;

use crate::{Encoder, Result};

pub use punkt::Punkt;

/// Returns true if Python takes the character for white space (`str.isspace`, `\s` of `re`): four separators of ASCII
/// more than Unicode's property White_Space.
pub(crate) fn is_python_space(c: char) -> bool {
    c.is_whitespace() || ('\x1c'..='\x1f').contains(&c)
}

/// The answer up to its first line's end; newlines before it are passed over.
pub(crate) fn first_line(answer: &str) -> &str {
    let answer = answer.trim_start_matches('\n');
    answer.split('\n').next().unwrap_or(answer)
}

/// A template with values in the places of names, such as `{context}`. Braces in the values stay as they are.
pub(crate) fn fill(template: &str, values: &[(&str, &str)]) -> String {
    let (mut out, mut rest) = (String::new(), template);
    while let Some(at) = rest.find('{') {
        out.push_str(&rest[..at]);
        rest = &rest[at..];
        let (value, n) = match values.iter().find(|(name, _)| rest.starts_with(name)) {
            Some((name, value)) => (*value, name.len()),
            None => ("{", 1),
        };
        out.push_str(value);
        rest = &rest[n..];
    }
    out + rest
}

/// A length as protocols count it that have 32,000 tokens for a model of 32k: a multiple of 1024 is as many thousands.
pub(crate) fn thousands(length: usize) -> usize {
    if length.is_multiple_of(1024) {
        length / 1024 * 1000
    } else {
        length
    }
}

/// Tokens more, at most, that a prompt has once its two halves are joined: those at the seam are others.
pub(crate) const SEAM: usize = 16;

/// The prompt, cut in its middle where it has more than `max` tokens: the text of the first and of the last
/// `max / 2` tokens, made of both together (`joined`) or of one after the other.
///
/// BOS counts among the first ones. The runner makes tokens of the text again: up to 16 more.
pub fn cut_middle(encoder: &dyn Encoder, prompt: String, max: usize, joined: bool) -> Result<String> {
    let (tokens, bos) = (encoder.encode(&prompt)?, encoder.n_bos());
    if tokens.len().saturating_add(bos) <= max {
        return Ok(prompt);
    }
    let half = max / 2;
    let first = &tokens[..half.saturating_sub(bos).min(tokens.len())];
    let last = &tokens[tokens.len().saturating_sub(half)..];
    match joined {
        true => encoder.decode(&[first, last].concat()),
        false => Ok(encoder.decode(first)? + &encoder.decode(last)?),
    }
}
