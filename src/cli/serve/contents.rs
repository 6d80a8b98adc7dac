//! Texts of clients within a chat template's text: names of special tokens in them stay text.
//!
//! Before a template is rendered, each such name in a message is replaced by a placeholder that nobody can guess. In the
//! rendered text, what stands between placeholders is read with special tokens, and what they stand for is read without.
//! Messages without such names have the tokens that they have in other programs.

use ropewalk::vocab::Vocab;
use ropewalk::{chat, Token};
use serde_json::Value;

/// The names of a vocabulary's control tokens.
#[derive(Debug)]
pub(super) struct Special {
    /// Sorted.
    names: Vec<String>,
    /// Their first characters.
    first: Vec<char>,
    /// Bytes of the longest.
    longest: usize,
}

impl Special {
    pub(super) fn of(vocab: &Vocab) -> ropewalk::Result<Special> {
        let mut names = Vec::new();
        for token in 0..vocab.n_tokens() as Token {
            if vocab.piece(token, false)?.is_empty() {
                names.extend(
                    String::from_utf8(vocab.piece(token, true)?).ok().filter(|name| !name.is_empty()),
                );
            }
        }
        names.sort_unstable();
        let mut first: Vec<char> = names.iter().filter_map(|name| name.chars().next()).collect();
        first.dedup();
        let longest = names.iter().map(String::len).max().unwrap_or(0);
        Ok(Special { names, first, longest })
    }

    /// The longest name that a text begins with.
    fn at(&self, text: &str) -> Option<usize> {
        let mut key = text.as_bytes();
        loop {
            // No name between this one and the text is a beginning of the text.
            let i = self.names.partition_point(|name| name.as_bytes() <= key).checked_sub(1)?;
            let name = self.names[i].as_bytes();
            let common = name.iter().zip(key).take_while(|(a, b)| a == b).count();
            if common == name.len() {
                return Some(i);
            }
            key = &key[..common];
        }
    }

    /// Whether a name begins with a text.
    fn begins(&self, text: &str) -> bool {
        let i = self.names.partition_point(|name| name.as_str() < text);
        self.names.get(i).is_some_and(|name| name.starts_with(text))
    }
}

/// The placeholders of one prompt.
pub(super) struct Hidden<'a> {
    special: &'a Special,
    /// The prefix of all placeholders.
    mark: String,
    /// Parts of names; whole ones are known by their places in the list.
    parts: Vec<String>,
}

impl<'a> Hidden<'a> {
    pub(super) fn new(special: &'a Special) -> Hidden<'a> {
        Hidden { special, mark: format!("q{:032x}n", rand::random::<u128>()), parts: Vec::new() }
    }

    /// A message with placeholders in all texts. Its role stays, which templates compare.
    pub(super) fn fields(&mut self, message: &Value) -> Value {
        let Value::Object(fields) = message else { return self.value(message) };
        let hide = |(name, value): (&String, &Value)| {
            (name.clone(), if name == "role" { value.clone() } else { self.value(value) })
        };
        fields.iter().map(hide).collect()
    }

    /// A value with placeholders in all texts.
    pub(super) fn value(&mut self, value: &Value) -> Value {
        match value {
            Value::String(text) => self.text(text).into(),
            Value::Array(list) => list.iter().map(|value| self.value(value)).collect(),
            Value::Object(map) => {
                map.iter().map(|(key, value)| (self.text(key), self.value(value))).collect()
            }
            other => other.clone(),
        }
    }

    fn text(&mut self, text: &str) -> String {
        let (mut out, mut rest, mut plain) = (String::with_capacity(text.len()), text, 0);
        while let Some(at) = rest.find(&self.special.first[..]) {
            out.push_str(&rest[..at]);
            rest = &rest[at..];
            match self.special.at(rest) {
                Some(i) => {
                    out.push_str(&self.placeholder(i));
                    plain = out.len();
                    rest = &rest[self.special.names[i].len()..];
                }
                None => {
                    let n = rest.chars().next().map_or(0, char::len_utf8);
                    out.push_str(&rest[..n]);
                    rest = &rest[n..];
                }
            }
        }
        out.push_str(rest);
        // The end may be the beginning of a name that goes on in the next text. Templates remove white space there.
        let end = out.trim_end().len();
        let start = end.saturating_sub(self.special.longest).max(plain);
        let open = (start..end).find(|&at| out.is_char_boundary(at) && self.special.begins(&out[at..end]));
        if let Some(at) = open {
            self.parts.push(out[at..end].to_owned());
            let placeholder = self.placeholder(self.special.names.len() + self.parts.len() - 1);
            out.replace_range(at..end, &placeholder);
        }
        out
    }

    fn placeholder(&self, i: usize) -> String {
        format!("{}{i}q", self.mark)
    }

    /// The text that a placeholder stands for, by the digits in it.
    fn hidden(&self, digits: &str) -> Option<&str> {
        let i: usize = digits.parse().ok()?;
        let parts = || self.parts.get(i - self.special.names.len());
        self.special.names.get(i).or_else(parts).map(String::as_str)
    }

    /// The tokens of a rendered text.
    pub(super) fn tokens(&self, vocab: &Vocab, text: &str) -> ropewalk::Result<Vec<Token>> {
        let mut pieces = text.split(self.mark.as_str());
        // With the token that begins a text.
        let mut tokens = chat::tokens(vocab, pieces.next().unwrap_or_default())?;
        for piece in pieces {
            let whole = piece.split_once('q').and_then(|(digits, rest)| Some((self.hidden(digits)?, rest)));
            // Of one that the template has cut, the rest is text.
            let (name, rest) = whole.unwrap_or(("", piece));
            tokens.extend(vocab.tokenize(name, false, false)?);
            tokens.extend(vocab.tokenize(rest, false, true)?);
        }
        Ok(tokens)
    }
}
