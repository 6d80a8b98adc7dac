//! Which bytes of a text each of its tokens stands for, found by walking through text and tokens together.

use std::ops::Range;

/// SentencePiece's sign for a blank, which texts may hold as well.
const BLANK: &[u8] = "\u{2581}".as_bytes();

/// Finds the places of a text's tokens, one after another.
///
/// A token stands for the bytes that it is decoded to. Three things are in one and not in the other: the blank that a
/// SentencePiece vocabulary puts before a text, and before what follows a special token; white space that some special
/// tokens take away on their sides; and bytes for which a byte-level vocabulary has no token.
#[derive(Debug)]
pub struct Places<'t> {
    text: &'t [u8],
    at: usize,
    /// True if the next token begins a text: none came before it, or a special one.
    begins: bool,
    adds_blank: bool,
    drops_bytes: bool,
}

impl<'t> Places<'t> {
    /// Begins at the start of `text`. `adds_blank`: the vocabulary puts a blank before texts. `drops_bytes`: it is
    /// byte-level and may lack bytes.
    pub fn new(text: &'t str, adds_blank: bool, drops_bytes: bool) -> Self {
        Places { text: text.as_bytes(), at: 0, begins: true, adds_blank, drops_bytes }
    }

    /// The place of the next token: empty for one that is the added blank alone. `special`: it was cut out of the text
    /// by its name. `None` when the text does not go on with this token.
    pub fn next(&mut self, piece: &[u8], special: bool) -> Option<Range<usize>> {
        let added = self.begins && self.adds_blank && !special;
        let piece = if added { piece.strip_prefix(b" ").unwrap_or(piece) } else { piece };
        let mut from = self.at;
        let place = loop {
            match self.matched(from, piece) {
                Some(place) => break place,
                // Only around special tokens white space goes missing.
                None if (self.begins || special) && self.text.get(from).is_some_and(is_space) => from += 1,
                None => return None,
            }
        };
        self.at = place.end;
        self.begins = special;
        Some(place)
    }

    /// Returns true if nothing is left except bytes that the tokenizer can drop.
    pub fn at_end(&self) -> bool {
        self.text[self.at..].iter().all(|b| is_space(b) && self.begins || self.drops(*b))
    }

    /// Printable ASCII is a token in every vocabulary.
    fn drops(&self, byte: u8) -> bool {
        self.drops_bytes && !byte.is_ascii_graphic()
    }

    fn matched(&self, from: usize, piece: &[u8]) -> Option<Range<usize>> {
        let (mut at, mut start) = (from, from);
        for (i, &byte) in piece.iter().enumerate() {
            let n = loop {
                match self.text.get(at) {
                    Some(&found) if found == byte => break 1,
                    Some(_) if byte == b' ' && self.text[at..].starts_with(BLANK) => break BLANK.len(),
                    Some(&found) if self.drops(found) => at += 1,
                    _ => return None,
                }
            };
            if i == 0 {
                start = at;
            }
            at += n;
        }
        Some(start..at)
    }
}

/// C's `isspace`.
fn is_space(byte: &u8) -> bool {
    byte.is_ascii_whitespace() || *byte == 0x0b
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Places as `start-end`, of pieces of which special ones have a `!` before them.
    fn of(text: &str, pieces: &[&str], adds_blank: bool, drops_bytes: bool) -> Option<Vec<(usize, usize)>> {
        let mut places = Places::new(text, adds_blank, drops_bytes);
        let found: Option<Vec<_>> = pieces
            .iter()
            .map(|piece| match piece.strip_prefix('!') {
                Some(special) => places.next(special.as_bytes(), true),
                None => places.next(piece.as_bytes(), false),
            })
            .map(|place| place.map(|p| (p.start, p.end)))
            .collect();
        found.filter(|_| places.at_end())
    }

    #[test]
    fn tokens_are_found_in_their_text() {
        type Case<'a> = (&'a str, &'a [&'a str], bool, bool, Option<&'a [(usize, usize)]>);
        let cases: &[Case<'_>] = &[
            ("", &[], true, false, Some(&[])),
            ("ab c", &["a", "b", " c"], false, true, Some(&[(0, 1), (1, 2), (2, 4)])),
            // The added blank, alone or with the first letters; a text that has one itself.
            ("hi", &[" hi"], true, false, Some(&[(0, 2)])),
            ("hi", &[" ", "hi"], true, false, Some(&[(0, 0), (0, 2)])),
            (" hi", &["  ", "hi"], true, false, Some(&[(0, 1), (1, 3)])),
            (" hi", &[" ", " hi"], true, false, Some(&[(0, 0), (0, 3)])),
            (" hi", &[" hi"], false, false, Some(&[(0, 3)])),
            // Again after a special token, and only there.
            (
                "<s>a b</s>c",
                &["!<s>", " a", " b", "!</s>", " c"],
                true,
                false,
                Some(&[(0, 3), (3, 4), (4, 6), (6, 10), (10, 11)]),
            ),
            ("<s><s>", &["!<s>", "!<s>"], true, false, Some(&[(0, 3), (3, 6)])),
            // The sign for a blank, written out.
            ("a\u{2581}b", &[" a", " b"], true, false, Some(&[(0, 1), (1, 5)])),
            // White space that a special token takes away.
            ("<e>\n\nhi", &["!<e>", "hi"], false, true, Some(&[(0, 3), (5, 7)])),
            ("<e>\n hi", &["!<e>", " hi"], true, false, Some(&[(0, 3), (5, 7)])),
            ("a \n<m>", &["a", "!<m>"], false, true, Some(&[(0, 1), (3, 6)])),
            ("<e>\n", &["!<e>"], false, false, Some(&[(0, 3)])),
            // Bytes without a token; one before the end, one within what a token covers.
            ("a\u{1}b", &["a", "b"], false, true, Some(&[(0, 1), (2, 3)])),
            ("a\u{1}b\u{2}", &["a", "b"], false, true, Some(&[(0, 1), (2, 3)])),
            ("a\u{1}b", &["a", "b"], false, false, None),
            // Other texts.
            ("ab", &["a"], false, true, None),
            ("ab", &["a", "c"], false, true, None),
            ("a", &["a", "b"], false, true, None),
            ("a b", &["a", "b"], true, false, None),
        ];
        for &(text, pieces, adds_blank, drops_bytes, expected) in cases {
            let found = of(text, pieces, adds_blank, drops_bytes);
            assert_eq!(found.as_deref(), expected, "{text:?} {pieces:?}");
        }
    }

    #[test]
    fn a_token_may_be_a_part_of_a_character() {
        let mut places = Places::new("é!", false, true);
        let found: Vec<_> =
            [&b"\xc3"[..], b"\xa9", b"!"].iter().map(|p| places.next(p, false).unwrap()).collect();
        assert_eq!(found, [0..1, 1..2, 2..3]);
        assert!(places.at_end());
    }
}
