//! Splits a long text into chunks that can be tokenized in parallel: their tokens, joined, are those of the
//! whole text.

use ropewalk_core::tokenizer::{Failure, Tokenizer};

/// Largest length of a chunk in bytes, where a place to cut is found. libllama takes about 30 bytes of memory
/// for each byte of text (measured to 40 MB, where time grows in proportion too) and, under some
/// pre-tokenizers, stack for each byte of a line.
const CHUNK: usize = 1 << 18;
/// Bytes at the end of a chunk within which it may be cut.
const CUT_RANGE: usize = 1 << 14;
/// Bytes of text on each side of a cut that are tokenized to compare.
const AROUND: usize = 512;
/// Cuts tried of each kind.
const TRIES: usize = 8;

/// Splits `text` into chunks, in order, whose tokens joined are the tokens of the whole. Two chunks are
/// adjacent, or have one space between them: the one that a SentencePiece tokenizer puts in front of any text
/// by itself.
///
/// A cut is made only where the text around it has the same tokens with the cut and without it. Where no such
/// place is found the chunk grows, at worst to the whole text. The only assumption about the tokenizer is
/// that it looks no further than 512 bytes.
pub(super) fn split<'t>(vocab: &dyn Tokenizer, text: &'t str) -> Result<Vec<&'t str>, Failure> {
    let mut chunks = Vec::new();
    let (mut start, mut end) = (0, CHUNK);
    while end < text.len() {
        match find_cut(vocab, text, start, end)? {
            Some((left, right)) => {
                chunks.push(&text[start..left]);
                (start, end) = (right, right + CHUNK);
            }
            None => end += CHUNK,
        }
    }
    chunks.push(&text[start..]);
    Ok(chunks)
}

/// A cut in the last bytes before `end`, as the end of the left chunk and the start of the right one.
fn find_cut(
    vocab: &dyn Tokenizer,
    text: &str,
    start: usize,
    end: usize,
) -> Result<Option<(usize, usize)>, Failure> {
    let from = boundary(text, start.max(end.saturating_sub(CUT_RANGE)) + 1);
    let end = boundary(text, end);
    let Some(window) = text.get(from..end) else { return Ok(None) };
    let word = |c: Option<char>| c.is_some_and(char::is_alphanumeric);
    let at = |i: usize| (text[..i].chars().next_back(), text[i..].chars().next());
    // Best first: the end of a paragraph, of a line, of a word; then anywhere, for scripts without spaces.
    let kinds: [&dyn Fn(usize) -> bool; 4] = [
        &|i| text[i..].starts_with("\n\n") && !text[..i].ends_with('\n'),
        &|i| at(i).1 == Some('\n') && word(at(i).0),
        &|i| at(i).1 == Some(' ') && word(at(i).0),
        &|_| true,
    ];
    for kind in kinds {
        let places = window.char_indices().rev().map(|(i, _)| from + i).filter(|&i| kind(i)).take(TRIES);
        for left in places {
            let space = text[left..].starts_with(' ');
            for right in [Some(left), space.then_some(left + 1)].into_iter().flatten() {
                if keeps_tokens(vocab, text, left, right)? {
                    return Ok(Some((left, right)));
                }
            }
        }
    }
    Ok(None)
}

/// Returns true if the text around a cut has the same tokens with and without the cut.
fn keeps_tokens(vocab: &dyn Tokenizer, text: &str, left: usize, right: usize) -> Result<bool, Failure> {
    let from = boundary(text, left.saturating_sub(AROUND));
    let to = boundary(text, right.saturating_add(AROUND));
    let tokens = |part: &str| vocab.tokenize(part, false);
    let mut apart = tokens(&text[from..left])?;
    apart.extend(tokens(&text[right..to])?);
    Ok(apart == tokens(&text[from..to])?)
}

/// The first character boundary at or after byte `at`.
fn boundary(text: &str, at: usize) -> usize {
    (at..text.len()).find(|&i| text.is_char_boundary(i)).unwrap_or(text.len())
}
