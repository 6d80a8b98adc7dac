//! Text as published protocols cut it.

mod punkt;

pub(crate) use punkt::Punkt;

/// Whether Python takes the character for white space (`str.isspace`, `\s` of `re`): four separators of ASCII more
/// than Unicode's property White_Space.
pub(crate) fn is_python_space(c: char) -> bool {
    c.is_whitespace() || ('\x1c'..='\x1f').contains(&c)
}
