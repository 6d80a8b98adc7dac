//! tokenizer.json, read as it streams by: the vocabulary and merges, of which there may be half a million, never
//! become JSON values.

use std::collections::HashSet;
use std::fmt;
use std::path::Path;

use serde::de::{
    DeserializeSeed, Deserializer, Error as _, IgnoredAny, MapAccess, SeqAccess, Unexpected, Visitor,
};
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use crate::error::shown;
use crate::json::{bytes, Object, LARGE};
use crate::{Error, Result};

pub(super) const FILE: &str = "tokenizer.json";

/// A tokenizer.json.
#[derive(Debug)]
pub(super) struct Tokenizer {
    /// The file without `model.vocab` and `model.merges`.
    pub(super) object: Object,
    /// `model.vocab` where that is an object; no token is there twice.
    pub(super) vocab: Option<Vec<(String, u64)>>,
    /// `model.merges`.
    pub(super) merges: Merges,
    /// JSON values that may still be read into `object`.
    nodes: usize,
}

/// Keys of the file that are read besides `model`; others may hold any amount of JSON.
const KEYS: &[&str] = &["added_tokens", "normalizer", "pre_tokenizer", "post_processor", "decoder"];

/// Values of JSON under these keys, and of `model` without vocabulary and merges: seven for each added token.
const MAX_NODES: usize = 2 << 20;
/// Tokens; the most known are 262,144.
const MAX_TOKENS: usize = 2 << 20;
/// Merges; the most known are 514,906.
const MAX_MERGES: usize = 4 << 20;

/// Pairs of texts to be joined, the first learned first, in one piece of memory.
#[derive(Debug, Default)]
pub(super) struct Merges {
    text: String,
    /// Where the two texts of a pair end.
    ends: Vec<(usize, usize)>,
}

impl Merges {
    /// The pairs, in order.
    pub(super) fn pairs(&self) -> impl Iterator<Item = (&str, &str)> {
        let mut start = 0;
        self.ends.iter().map(move |&(middle, end)| {
            let pair = (&self.text[start..middle], &self.text[middle..end]);
            start = end;
            pair
        })
    }
    fn push(&mut self, first: &str, second: &str) {
        self.text.push_str(first);
        let middle = self.text.len();
        self.text.push_str(second);
        self.ends.push((middle, self.text.len()));
    }
}

impl Tokenizer {
    /// Reads the file of a folder; `None` where there is none.
    pub(super) fn read(folder: &Path) -> Result<Option<Tokenizer>> {
        let path = folder.join(FILE);
        let Some(bytes) = bytes(&path, LARGE)? else { return Ok(None) };
        Tokenizer::parse(&path, &bytes).map(Some)
    }
    /// Reads the bytes of the file at `path`.
    pub(super) fn parse(path: &Path, bytes: &[u8]) -> Result<Tokenizer> {
        let mut out = Tokenizer {
            object: Object { path: path.to_owned(), map: Map::new() },
            nodes: MAX_NODES,
            vocab: None,
            merges: Merges::default(),
        };
        let mut json = serde_json::Deserializer::from_slice(bytes);
        let read = Reader(&mut out, Place::Root).deserialize(&mut json).and_then(|()| json.end());
        read.map_err(|e| match e.classify() {
            serde_json::error::Category::Data => Error::of(path, shown(&e.to_string())),
            _ => Error::of(path, format!("is not JSON: {e}")),
        })?;
        if let Some(vocab) = &out.vocab {
            let mut seen = HashSet::with_capacity(vocab.len());
            if let Some((twice, _)) = vocab.iter().find(|(text, _)| !seen.insert(text)) {
                let what = format!("token \"{}\": found twice, expected once", shown(twice));
                return Err(out.object.error("model.vocab", what));
            }
        }
        Ok(out)
    }
    /// Reads a value, unless it and those before have too many values in them: each takes many times the room that it has
    /// in the file.
    fn bounded<E: serde::de::Error>(&mut self, json: &RawValue) -> Result<Value, E> {
        let n = json.get().bytes().filter(|b| b",[{".contains(b)).count();
        let many = || E::custom("found too many values in arrays and objects, expected fewer");
        self.nodes = self.nodes.checked_sub(n + 1).ok_or_else(many)?;
        serde_json::from_str(json.get()).map_err(|e| E::custom(format!("is not JSON: {e}")))
    }
    /// The vocabulary, which there has to be.
    pub(super) fn vocab(&self) -> Result<&[(String, u64)]> {
        let none = || self.object.error("model.vocab", "found none, expected an object of tokens and ids");
        self.vocab.as_deref().ok_or_else(none)
    }
    /// `model` without vocabulary and merges.
    pub(super) fn model(&self) -> Result<Option<Object>> {
        Ok(self.object.object("model")?.map(|model| self.object.inside(model.clone())))
    }
}

/// A place of the file; each takes other JSON.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    Root,
    Model,
    /// `model.vocab`, which other kinds of models have as an array.
    Vocab,
    Merges,
    /// One of them: two texts, or one with a space between two parts.
    Merge,
}

/// Reads a place.
struct Reader<'a>(&'a mut Tokenizer, Place);

impl<'de> DeserializeSeed<'de> for Reader<'_> {
    type Value = ();
    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<(), D::Error> {
        from.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Reader<'_> {
    type Value = ();
    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.1 {
            Place::Root => "an object",
            Place::Model => "an object in model",
            Place::Vocab => "an object of tokens and ids in model.vocab",
            Place::Merges => "an array in model.merges",
            Place::Merge => "strings, or pairs of strings, in model.merges",
        })
    }
    fn visit_unit<E: serde::de::Error>(self) -> Result<(), E> {
        match self.1 {
            Place::Root | Place::Merge => Err(E::invalid_type(Unexpected::Unit, &self)),
            Place::Model | Place::Vocab | Place::Merges => Ok(()),
        }
    }
    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<(), E> {
        if self.1 != Place::Merge {
            return Err(E::invalid_type(Unexpected::Str(text), &self));
        }
        match text.split_once(' ').filter(|(_, second)| !second.contains(' ')) {
            // Older files begin as merges.txt does. The tokenizers library also leaves such lines out.
            _ if text.starts_with("#version") => {}
            Some((first, second)) => self.0.merges.push(first, second),
            None => {
                let what = format!("model.merges: found \"{}\", expected two parts", shown(text));
                return Err(E::custom(what));
            }
        }
        Ok(())
    }
    fn visit_map<A: MapAccess<'de>>(self, mut from: A) -> Result<(), A::Error> {
        match self.1 {
            Place::Root => {
                while let Some(key) = from.next_key::<String>()? {
                    if key == "model" {
                        from.next_value_seed(Reader(self.0, Place::Model))?;
                    } else if KEYS.contains(&key.as_str()) {
                        let value = self.0.bounded::<A::Error>(from.next_value()?)?;
                        self.0.object.map.insert(key, value);
                    } else {
                        from.next_value::<IgnoredAny>()?;
                    }
                }
            }
            Place::Model => {
                let mut rest = Map::new();
                while let Some(key) = from.next_key::<String>()? {
                    match key.as_str() {
                        "vocab" => from.next_value_seed(Reader(self.0, Place::Vocab))?,
                        "merges" => from.next_value_seed(Reader(self.0, Place::Merges))?,
                        _ => {
                            rest.insert(key, self.0.bounded::<A::Error>(from.next_value()?)?);
                        }
                    }
                }
                self.0.object.map.insert("model".to_owned(), Value::Object(rest));
            }
            Place::Vocab => {
                let mut vocab = Vec::new();
                while let Some(pair) = from.next_entry::<String, u64>()? {
                    if vocab.len() == MAX_TOKENS {
                        let what =
                            format!("model.vocab: found more than {MAX_TOKENS} tokens, expected fewer");
                        return Err(A::Error::custom(what));
                    }
                    vocab.push(pair);
                }
                self.0.vocab = Some(vocab);
            }
            Place::Merges | Place::Merge => return Err(A::Error::invalid_type(Unexpected::Map, &self)),
        }
        Ok(())
    }
    fn visit_seq<A: SeqAccess<'de>>(self, mut from: A) -> Result<(), A::Error> {
        match self.1 {
            Place::Root | Place::Model => return Err(A::Error::invalid_type(Unexpected::Seq, &self)),
            Place::Vocab => while from.next_element::<IgnoredAny>()?.is_some() {},
            Place::Merges => {
                self.0.merges = Merges::default();
                while from.next_element_seed(Reader(self.0, Place::Merge))?.is_some() {
                    if self.0.merges.ends.len() > MAX_MERGES {
                        let what = format!("model.merges: found more than {MAX_MERGES}, expected fewer");
                        return Err(A::Error::custom(what));
                    }
                }
            }
            Place::Merge => {
                let pair = (from.next_element::<String>()?, from.next_element::<String>()?);
                match (pair, from.next_element::<IgnoredAny>()?) {
                    ((Some(first), Some(second)), None) => self.0.merges.push(&first, &second),
                    _ => return Err(A::Error::custom("model.merges: expected pairs of strings")),
                }
            }
        }
        Ok(())
    }
}
