//! Splits a long text into chunks that can be tokenised in parallel: their tokens, joined, are those of the
//! whole text.

use crate::vocab::Vocab;
use ggml::Result;

/// Largest length of a chunk in bytes, where a place to cut is found. libllama takes about 30 bytes of memory
/// for each byte of text (measured to 40 MB, where time grows in proportion too) and, under some
/// pre-tokenizers, stack for each byte of a line.
const CHUNK: usize = 1 << 18;
/// Bytes at the end of a chunk within which it may be cut.
const CUT_RANGE: usize = 1 << 14;
/// Bytes of text on each side of a cut that are tokenised to compare.
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
///
/// # Errors
/// Those of the tokenizer.
pub(super) fn split<'t>(vocab: &Vocab, text: &'t str) -> Result<Vec<&'t str>> {
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
fn find_cut(vocab: &Vocab, text: &str, start: usize, end: usize) -> Result<Option<(usize, usize)>> {
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

/// Whether the text around a cut has the same tokens with the cut and without it.
fn keeps_tokens(vocab: &Vocab, text: &str, left: usize, right: usize) -> Result<bool> {
    let from = boundary(text, left.saturating_sub(AROUND));
    let to = boundary(text, right.saturating_add(AROUND));
    let tokens = |part: &str| vocab.tokenize(part, false, false);
    let mut apart = tokens(&text[from..left])?;
    apart.extend(tokens(&text[right..to])?);
    Ok(apart == tokens(&text[from..to])?)
}

/// The first character boundary at or after byte `at`.
fn boundary(text: &str, at: usize) -> usize {
    (at..text.len()).find(|&i| text.is_char_boundary(i)).unwrap_or(text.len())
}

#[cfg(test)]
mod tests {
    use gguf::{Array, Value};

    use super::*;

    /// A SentencePiece vocabulary of bytes, letters and a few words, which puts a space in front of every
    /// text.
    fn spm() -> Vocab {
        let mut tokens: Vec<(String, f32, i32)> =
            vec![("<unk>".into(), 0.0, 2), ("<s>".into(), 0.0, 3), ("</s>".into(), 0.0, 3)];
        tokens.extend((0..256).map(|b| (format!("<0x{b:02X}>"), 0.0, 6)));
        tokens.extend(('a'..='z').chain(['\u{2581}', '.']).map(|c| (c.to_string(), -9.0, 1)));
        for (i, word) in
            ["ro", "pe", "rope", "\u{2581}r", "\u{2581}rope", "s.", "\u{2581}\u{2581}"].iter().enumerate()
        {
            tokens.push(((*word).into(), -(i as f32) / 4.0, 1));
        }
        let strings = tokens.iter().map(|t| t.0.clone().into_bytes()).collect();
        let metadata = [
            ("model", Value::String(b"llama".to_vec())),
            ("tokens", Value::Array(Array::String(strings))),
            ("scores", Value::Array(Array::F32(tokens.iter().map(|t| t.1).collect()))),
            ("token_type", Value::Array(Array::I32(tokens.iter().map(|t| t.2).collect()))),
        ]
        .map(|(key, value)| (format!("tokenizer.ggml.{key}"), value));
        Vocab::from_metadata(std::path::Path::new("spm.gguf"), &metadata).unwrap()
    }

    #[test]
    fn chunks_leave_out_only_the_space_that_the_tokenizer_adds() {
        let vocab = spm();
        assert_eq!(vocab.tokenize("rope", false, false).unwrap().len(), 1, "a space is put in front");
        for unit in ["rope ropes. a ropewalk\n", "rope  walk ropes. "] {
            let text = unit.repeat(3 * CHUNK / unit.len());
            let chunks = split(&vocab, &text).unwrap();
            assert!(chunks.len() >= 3, "{} chunks", chunks.len());
            assert!(chunks.iter().all(|c| c.len() <= CHUNK));
            let mut at = 0;
            for chunk in &chunks {
                let start = chunk.as_ptr() as usize - text.as_ptr() as usize;
                assert!([at, at + 1].contains(&start) && text[at..start].trim_matches(' ').is_empty());
                at = start + chunk.len();
            }
            assert_eq!(at, text.len());
            let tokens = chunks.iter().flat_map(|c| vocab.tokenize(c, false, false).unwrap());
            assert!(tokens.eq(vocab.tokenize(&text, false, false).unwrap()));
        }
    }
}
