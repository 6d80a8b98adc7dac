//! The tokenizer of a folder, run: which kind it is by what it makes of llama.cpp's probe text, and the texts of added
//! tokens as llama.cpp's converter writes them.
//!
//! The crate `tokenizers` is not written for hostile files: its readers and its components panic, or take any amount of
//! memory. It never sees the file. Components are read here, those that llama.cpp has a word for, with bounds on each
//! and on all together; the crate gets values that were checked, and unknown keys nowhere.

mod after;
mod before;
mod part;
mod pattern;

use std::collections::HashSet;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest, Sha256};
use tokenizers::models::bpe::{Vocab, BPE};
use tokenizers::{
    AddedToken, DecoderWrapper, NormalizedString, Normalizer, PostProcessorWrapper, TokenizerImpl,
};

use crate::error::shown;
use crate::{Error, Result};

use super::probe::{KNOWN, PROBE};
use super::tokenizer::Tokenizer;
use after::{Around, Decoders};
use before::{Growth, Normalizers, PreTokenizers};
use part::{Budget, Part};

/// Added tokens; the most known are some 30,000, of speech.
const MAX_ADDED: usize = 1 << 17;
/// Bytes of an added token, also after normalizers.
const MAX_ADDED_BYTES: usize = 512;
/// Bytes of all added tokens, for an automaton of them is made.
const MAX_ADDED_SUM: usize = 2 << 20;
/// Bytes of added tokens that are cut and encoded like texts, all together.
const MAX_ENCODED: usize = 64 << 10;
/// Bytes of the tokens of an added token before decoders, and of its text behind them.
const MAX_DECODED: usize = 4096;
/// Bytes of the texts of all added tokens.
const MAX_DECODED_SUM: usize = 16 << 20;

/// Question to a tokenizer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Question {
    /// The kind, where the caller says it.
    pub(super) pre: Option<String>,
    /// Texts of added tokens.
    pub(super) texts: Vec<String>,
}

/// Answer of a tokenizer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Answer {
    /// The kind, for `tokenizer.ggml.pre`; the hash of its ids for the probe text where none is known for it.
    pub(super) pre: Result<String, String>,
    /// The texts, encoded and decoded.
    pub(super) texts: Vec<String>,
}

/// Builds the tokenizer of a file and answers.
///
/// # Errors
/// Components that are not known or exceed a bound.
pub(super) fn answer(file: &Tokenizer, question: Question) -> Result<Answer> {
    let engine = Engine::new(file)?;
    let (mut encoded, mut sum) = (0, 0);
    let mut texts = Vec::with_capacity(question.texts.len());
    for text in &question.texts {
        let text = engine.round_trip(text, &mut encoded)?;
        sum += text.len();
        if sum > MAX_DECODED_SUM {
            let what =
                format!("found texts of more than {MAX_DECODED_SUM} bytes after decoding, expected fewer");
            return Err(file.object.error("added_tokens", what));
        }
        texts.push(text);
    }
    let pre = match question.pre {
        Some(pre) => Ok(pre),
        None => engine.kind()?,
    };
    Ok(Answer { pre, texts })
}

/// The crate's tokenizer with components read here. It neither adds special tokens nor decodes.
type Inner = TokenizerImpl<BPE, Normalizers, PreTokenizers, PostProcessorWrapper, DecoderWrapper>;

struct Engine<'a> {
    file: &'a Tokenizer,
    inner: Inner,
    around: Around,
    decoders: Decoders,
    /// Added tokens that are found in texts as they are.
    plain: HashSet<String>,
}

impl<'a> Engine<'a> {
    fn new(file: &'a Tokenizer) -> Result<Engine<'a>> {
        let part = |key: &str| file.object.get(key).map(|value| Part::new(&file.object.path, key, value));
        let (mut budget, mut growth) = (Budget::default(), Growth::default());
        let normalizers =
            part("normalizer").map(|p| Normalizers::read(p, &mut budget, &mut growth)).transpose()?;
        let cuts =
            part("pre_tokenizer").map(|p| PreTokenizers::read(p, &mut budget, &mut growth)).transpose()?;
        let around =
            part("post_processor").map(|p| Around::read(p, &mut budget)).transpose()?.unwrap_or_default();
        let decoders =
            part("decoder").map(|p| Decoders::read(p, &mut budget)).transpose()?.unwrap_or_default();
        let added = match part("added_tokens") {
            Some(part) => added(&part, normalizers.as_ref())?,
            None => Vec::new(),
        };
        let plain = added.iter().filter(|t| !t.normalized).map(|t| t.content.clone()).collect();
        let mut inner = Inner::new(model(file)?);
        inner.with_normalizer(normalizers);
        inner.with_pre_tokenizer(cuts);
        inner.add_tokens(&added);
        Ok(Engine { file, inner, around, decoders, plain })
    }

    fn wrong(&self, e: &tokenizers::Error) -> Error {
        Error::of(&self.file.object.path, shown(&e.to_string()))
    }

    fn ids(&self, text: &str) -> Result<Vec<u32>> {
        let encoded = self.inner.encode_fast(text, false).map_err(|e| self.wrong(&e))?;
        Ok(encoded.get_ids().to_vec())
    }

    /// The kind whose ids for the probe text these are; their hash if no kind has them.
    fn kind(&self) -> Result<Result<String, String>> {
        let ids = self.ids(PROBE)?;
        let ids = self.around.before.iter().chain(&ids).chain(&self.around.behind);
        let ids: Vec<String> = ids.map(u32::to_string).collect();
        let hash = format!("{:x}", Sha256::digest(format!("[{}]", ids.join(", "))));
        let known = KNOWN.iter().find(|(h, _)| *h == hash).map(|(_, name)| (*name).to_owned());
        Ok(known.ok_or(hash))
    }

    /// The text of an added token, encoded and decoded. `encoded` counts the bytes that were encoded like a text.
    fn round_trip(&self, text: &str, encoded: &mut usize) -> Result<String> {
        let found = || self.inner.token_to_id(text).filter(|_| self.plain.contains(text));
        let ids = match found() {
            // It is the longest that can be found at its beginning.
            Some(id) => vec![id],
            None => {
                *encoded += text.len();
                if text.len() > MAX_ADDED_BYTES || *encoded > MAX_ENCODED {
                    let what = format!(
                        "found tokens that are not in {} of {} bytes, expected at most {MAX_ADDED_BYTES} for one and {MAX_ENCODED} for all",
                        super::tokenizer::FILE, encoded
                    );
                    return Err(self.file.object.error("added_tokens", what));
                }
                self.ids(text)?
            }
        };
        let tokens: Vec<String> = ids.iter().filter_map(|&id| self.inner.id_to_token(id)).collect();
        let fits = |n: usize| match n > MAX_DECODED {
            true => {
                let what = format!("found {n} bytes in decoding, expected at most {MAX_DECODED}");
                Err(self.file.object.error(&format!("added token \"{}\"", shown(text)), what))
            }
            false => Ok(()),
        };
        fits(tokens.iter().map(String::len).sum())?;
        let text = self.decoders.text(tokens).map_err(|e| self.wrong(&e))?;
        fits(text.len())?;
        Ok(text)
    }
}

/// The added tokens of the file.
fn added(part: &Part<'_>, normalizers: Option<&Normalizers>) -> Result<Vec<AddedToken>> {
    let mut out = Vec::new();
    let mut sum = 0;
    for part in part.items(MAX_ADDED)? {
        let content = part.needs("content", "a string")?;
        if content.text()?.is_empty() {
            // The crate leaves it out as well.
            continue;
        }
        let text = content.short(MAX_ADDED_BYTES)?;
        let flag = |key: &str, default: bool| {
            Ok::<bool, Error>(part.get(key)?.map(|p| p.flag()).transpose()?.unwrap_or(default))
        };
        let special = flag("special", false)?;
        let (lstrip, rstrip) = (flag("lstrip", false)?, flag("rstrip", false)?);
        let token = AddedToken::from(text, special)
            .single_word(flag("single_word", false)?)
            .lstrip(lstrip)
            .rstrip(rstrip)
            .normalized(flag("normalized", !special)?);
        let mut searched = NormalizedString::from(text);
        if let (true, Some(normalizers)) = (token.normalized, normalizers) {
            normalizers.normalize(&mut searched).map_err(|e| content.error(shown(&e.to_string())))?;
        }
        let searched = searched.get();
        if searched.is_empty() || searched.len() > MAX_ADDED_BYTES {
            let what =
                format!("found {} bytes after normalizing, expected 1 to {MAX_ADDED_BYTES}", searched.len());
            return Err(content.error(what));
        }
        // Another token may have taken the spaces already, and the crate would cut the text backwards.
        if lstrip && [text, searched].iter().any(|t| t.chars().all(char::is_whitespace)) {
            return Err(content.error(
                "found white space alone that takes white space before it (lstrip), expected a text",
            ));
        }
        sum += text.len() + searched.len();
        if sum > MAX_ADDED_SUM {
            return Err(content.error(format!(
                "found added tokens of more than {MAX_ADDED_SUM} bytes up to here, expected fewer"
            )));
        }
        out.push(token);
    }
    Ok(out)
}

/// The model of the tokenizer, as the crate's own reader makes it, without the chance of training (`dropout`).
fn model(file: &Tokenizer) -> Result<BPE> {
    let json = &file.object;
    let mut vocab: Vocab = Vocab::default();
    for (text, id) in file.vocab()? {
        let id = u32::try_from(*id).map_err(|_| json.error("model.vocab", format!("found id {id}")))?;
        vocab.insert(text.clone(), id);
    }
    let merges = file.merges.pairs().map(|(a, b)| (a.to_owned(), b.to_owned())).collect();
    let mut builder = BPE::builder().vocab_and_merges(vocab, merges);
    if let Some(model) = file.model()? {
        // llama.cpp has neither, and the crate takes a prefix off what may be shorter.
        for key in ["continuing_subword_prefix", "end_of_word_suffix"] {
            if model.string(key)?.is_some_and(|text| !text.is_empty()) {
                return Err(json.error(&format!("model.{key}"), "found a text, expected none"));
            }
        }
        let is = |key| Ok::<bool, Error>(model.bool(key)?.unwrap_or(false));
        builder = builder
            .fuse_unk(is("fuse_unk")?)
            .byte_fallback(is("byte_fallback")?)
            .ignore_merges(is("ignore_merges")?);
        if let Some(unknown) = model.get("unk_token") {
            // It may be copied for each character of a text.
            let part = Part::new(&json.path, "model.unk_token", unknown);
            if let Value::String(unknown) = unknown {
                if !unknown.is_empty() {
                    part.short(MAX_ADDED_BYTES)?;
                }
                builder = builder.unk_token(unknown.clone());
            } else {
                return Err(part.wrong("a string"));
            }
        }
    }
    builder.build().map_err(|e| Error::of(&json.path, shown(&e.to_string())))
}
