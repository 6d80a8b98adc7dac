//! Stretches of a text, and the tokens inside them.

use std::ops::Range;

/// Stretches where each begins at the end of the one before, as one.
pub(super) fn joined(stretches: &[Range<usize>]) -> Vec<Range<usize>> {
    let mut out: Vec<Range<usize>> = Vec::new();
    for stretch in stretches {
        match out.last_mut().filter(|last| last.end == stretch.start) {
            Some(last) => last.end = stretch.end,
            None => out.push(stretch.clone()),
        }
    }
    out
}

/// The tokens that lie inside one of the stretches, both in the order of the text.
pub(super) fn inside<'a>(
    offsets: &'a [Range<usize>],
    stretches: &'a [Range<usize>],
) -> impl Iterator<Item = usize> + 'a {
    let mut at = 0;
    offsets.iter().enumerate().filter_map(move |(i, token)| {
        // A token that starts before a stretch waits for no other: the next token may lie inside it.
        while let Some(stretch) = stretches.get(at).filter(|stretch| token.start >= stretch.start) {
            if token.end <= stretch.end {
                return Some(i);
            }
            at += 1;
        }
        None
    })
}
