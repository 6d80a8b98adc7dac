//! Long texts cut where it makes no difference to the tokenizer, so that their pieces can be tokenised side by side.

use crate::vocab::Vocab;
use ggml::Result;

/// Bytes of a piece, or a little less. libllama takes about 30 bytes of memory for each byte of text (measured to 40 MB, where
/// time grows in proportion too) and, under some pre-tokenizers, stack for each byte of a line.
const PIECE: usize = 1 << 18;
/// How far back from its end a piece may be cut.
const REACH: usize = 1 << 14;
/// Text on each side of a cut on which it is tried.
const AROUND: usize = 512;
/// Cuts tried of each kind.
const TRIES: usize = 8;

/// Ranges of the text, in order, whose tokens side by side are the tokens of the whole. Bytes between two ranges, if any, are
/// the blank that a SentencePiece tokenizer puts in front of any text by itself.
///
/// A cut is made only where the text around it has the same tokens with it and without it. Where no such place is found the
/// piece gets longer, at worst the whole text. So no assumption about the tokenizer is made but that it looks no further than
/// 512 bytes.
pub(super) fn cut<'t>(vocab: &Vocab, text: &'t str) -> Result<Vec<&'t str>> {
    let mut pieces = Vec::new();
    let (mut start, mut end) = (0, PIECE);
    while end < text.len() {
        match neutral(vocab, text, start, end)? {
            Some((left, right)) => {
                pieces.push(&text[start..left]);
                (start, end) = (right, right + PIECE);
            }
            None => end += PIECE,
        }
    }
    pieces.push(&text[start..]);
    Ok(pieces)
}

/// A cut in the last bytes before `end`: where the left side ends, where the right one begins.
fn neutral(vocab: &Vocab, text: &str, start: usize, end: usize) -> Result<Option<(usize, usize)>> {
    let from = boundary(text, start.max(end.saturating_sub(REACH)) + 1);
    let end = boundary(text, end);
    let Some(window) = text.get(from..end) else { return Ok(None) };
    let word = |c: Option<char>| c.is_some_and(char::is_alphanumeric);
    let at = |i: usize| (text[..i].chars().next_back(), text[i..].chars().next());
    // Best first: a paragraph's end, a line's, a word's; then anywhere, for scripts without blanks.
    let kinds: [&dyn Fn(usize) -> bool; 4] = [
        &|i| text[i..].starts_with("\n\n") && !text[..i].ends_with('\n'),
        &|i| at(i).1 == Some('\n') && word(at(i).0),
        &|i| at(i).1 == Some(' ') && word(at(i).0),
        &|_| true,
    ];
    for kind in kinds {
        let places = window.char_indices().rev().map(|(i, _)| from + i).filter(|&i| kind(i)).take(TRIES);
        for left in places {
            let blank = text[left..].starts_with(' ');
            for right in [Some(left), blank.then_some(left + 1)].into_iter().flatten() {
                if is_neutral(vocab, text, left, right)? {
                    return Ok(Some((left, right)));
                }
            }
        }
    }
    Ok(None)
}

fn is_neutral(vocab: &Vocab, text: &str, left: usize, right: usize) -> Result<bool> {
    let from = boundary(text, left.saturating_sub(AROUND));
    let to = boundary(text, right.saturating_add(AROUND));
    let tokens = |part: &str| vocab.tokenize(part, false, false);
    let mut apart = tokens(&text[from..left])?;
    apart.extend(tokens(&text[right..to])?);
    Ok(apart == tokens(&text[from..to])?)
}

/// The character that begins at or after `at`.
fn boundary(text: &str, at: usize) -> usize {
    (at..text.len()).find(|&i| text.is_char_boundary(i)).unwrap_or(text.len())
}

#[cfg(test)]
mod tests {
    use ggml::gguf::{Array, Value};

    use super::*;

    /// A SentencePiece vocabulary of bytes, letters and a few words, which puts a blank in front of every text.
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
    fn pieces_are_cut_and_leave_out_only_the_blank_the_tokenizer_adds() {
        let vocab = spm();
        assert_eq!(vocab.tokenize("rope", false, false).unwrap().len(), 1, "a blank is put in front");
        for unit in ["rope ropes. a ropewalk\n", "rope  walk ropes. "] {
            let text = unit.repeat(3 * PIECE / unit.len());
            let pieces = cut(&vocab, &text).unwrap();
            assert!(pieces.len() >= 3, "{} pieces", pieces.len());
            assert!(pieces.iter().all(|p| p.len() <= PIECE));
            let mut at = 0;
            for piece in &pieces {
                let start = piece.as_ptr() as usize - text.as_ptr() as usize;
                assert!([at, at + 1].contains(&start) && text[at..start].trim_matches(' ').is_empty());
                at = start + piece.len();
            }
            assert_eq!(at, text.len());
            let parts = pieces.iter().flat_map(|p| vocab.tokenize(p, false, false).unwrap());
            assert!(parts.eq(vocab.tokenize(&text, false, false).unwrap()));
        }
    }
}
