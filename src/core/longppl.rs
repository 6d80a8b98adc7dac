//! The tokens of a text that need a long context (Fang et al., arXiv 2410.23771), as the package `longppl` 0.3.0 of its
//! authors finds them.
//!
//! A key token is one that the model predicts well from everything before it, and much worse from a short context alone.
//! The package passes key tokens from the model that finds them to the one that is measured as spans of text, so all tokens of
//! a character are key tokens if one of them is.

use std::ops::Range;

crate::setters! {
    /// Criteria of a key token; the names are the package's.
    #[derive(Debug, Clone, Copy, PartialEq)]
    pub struct Params {
        /// Minimum size of a short context, in tokens: the first token that it scores sees this many.
        pub trunc_len: usize,
        /// Tokens that share a short context.
        pub sliding_window: usize,
        /// A key token loses more than this in a short context, in nats (long-short difference, LSD).
        pub alpha: f64,
        /// A key token has more than this log-likelihood in the long context, in nats (LCL).
        pub beta: f64,
    }
}

impl Default for Params {
    fn default() -> Params {
        Params { trunc_len: 4096, sliding_window: 1024, alpha: 2.0, beta: -2.0 }
    }
}

impl Params {
    /// The short contexts of `n` tokens; the first `trunc_len` tokens of each are not scored. The one at the very start is
    /// left out: what it would score sees the same tokens in the long context. `sliding_window` must not be 0.
    pub fn short_contexts(&self, n: usize) -> impl Iterator<Item = Range<usize>> + '_ {
        let last = n.saturating_sub(self.trunc_len);
        (self.sliding_window..last).step_by(self.sliding_window).map(move |start| {
            start..start.saturating_add(self.trunc_len).saturating_add(self.sliding_window).min(n)
        })
    }

    /// Tokens that are read again if `n` were read: the short contexts, and if BOS is the first one, the text without it.
    pub fn n_more(&self, n: usize, bos: bool) -> usize {
        let again = if bos { n.saturating_sub(1) } else { 0 };
        again + self.short_contexts(n).map(|range| range.len()).sum::<usize>()
    }

    /// Returns true if a token with these negative log-likelihoods, in nats, is a key token.
    pub fn is_key(&self, short: f64, full: f64) -> bool {
        short - full > self.alpha && full < -self.beta
    }
}

/// The tokens of a text that are inside of what its key tokens spell, in order. `is_key` says of each token whether the model
/// finds it to be one, and `pieces` are their bytes.
///
/// # Errors
/// Returns the first error among the pieces.
pub fn key_tokens<E>(
    is_key: &[bool],
    pieces: impl IntoIterator<Item = Result<Vec<u8>, E>>,
) -> Result<Vec<usize>, E> {
    let offsets = offsets(pieces)?;
    let keys = is_key.iter().zip(&offsets).filter(|(&key, _)| key);
    let found: Vec<Range<usize>> = keys.map(|(_, offset)| offset.clone()).collect();
    let stretches = joined(&found);
    Ok(inside(&offsets, &stretches).collect())
}

/// The characters of the text that each token has a part in.
fn offsets<E>(pieces: impl IntoIterator<Item = Result<Vec<u8>, E>>) -> Result<Vec<Range<usize>>, E> {
    // Characters begun so far.
    let mut begun = 0usize;
    let mut offset = |piece: Result<Vec<u8>, E>| {
        let bytes = piece?;
        let begins = |byte: &u8| byte & 0xc0 != 0x80;
        let start = match bytes.first() {
            Some(byte) if !begins(byte) => begun.saturating_sub(1),
            _ => begun,
        };
        begun += bytes.iter().filter(|byte| begins(byte)).count();
        Ok(start..begun.max(start))
    };
    pieces.into_iter().map(&mut offset).collect()
}

/// Stretches where each begins at the end of the one before, as one.
fn joined(stretches: &[Range<usize>]) -> Vec<Range<usize>> {
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
fn inside<'a>(
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stretches_join_and_hold_tokens() {
        assert_eq!(joined(&[0..2, 2..3, 5..6, 6..6, 7..8]), [0..3, 5..6, 7..8]);
        let held = |offsets: &[Range<usize>], stretches: &[Range<usize>]| {
            inside(offsets, stretches).collect::<Vec<_>>()
        };
        assert_eq!(held(&[0..1, 1..3, 3..4, 4..6, 6..7], &[1..4, 6..7]), [1, 2, 4]);
        // A token that is longer than its stretch is none of its tokens; three of one character are.
        assert_eq!(held(&[0..2, 2..3, 2..3, 2..3, 3..5], &[0..1, 2..3, 3..4]), [1, 2, 3]);
        assert_eq!(held(std::slice::from_ref(&(0..1)), &[]), [0usize; 0]);
    }

    #[test]
    fn all_tokens_of_a_character_are_keys() {
        let pieces = || [&b"a"[..], b"\xe2", b"\x82", b"\xac", b"b"].map(|piece| Ok::<_, ()>(piece.to_vec()));
        assert_eq!(key_tokens(&[false, false, true, false, false], pieces()), Ok(vec![1, 2, 3]));
        assert_eq!(key_tokens(&[true, false, false, false, true], pieces()), Ok(vec![0, 4]));
        assert_eq!(key_tokens(&[false; 5], pieces()), Ok(vec![]));
        assert_eq!(key_tokens(&[true], [Err("no token")]), Err("no token"));
    }
}
