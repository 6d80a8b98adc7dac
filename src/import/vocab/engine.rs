//! The tokenizer of a folder, run: which kind it is by what it makes of llama.cpp's probe text, and the texts of added
//! tokens as llama.cpp's converter writes them.
//!
//! The crate `tokenizers` is not written for hostile files: its readers and its components panic, or take any amount of
//! memory and time. So this runs in a process under limits (`apart`), unless the caller trusts the file. Vocabulary and
//! merges do not go through the crate's reader, which holds them as JSON several times over.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use tokenizers::models::bpe::{Vocab, BPE};
use tokenizers::normalizers::Replace;
use tokenizers::{AddedToken, DecoderWrapper, NormalizerWrapper, PostProcessorWrapper, PreTokenizerWrapper};

use crate::error::shown;
use crate::{Error, Result};

use super::probe::{KNOWN, PROBE};
use super::tokenizer::Tokenizer;

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

/// Builds the tokenizer of a file and answers. A hostile file can make it panic, or take all memory.
pub(super) fn answer(file: &Tokenizer, question: Question) -> Result<Answer> {
    let tokenizer = build(file)?;
    // What the probe shows is a kind together with its normalizers. A kind that the caller names has those of llama.cpp alone.
    let normalizer = tokenizer.get_normalizer().filter(|_| question.pre.is_some());
    if let Some(found) = normalizer.and_then(foreign) {
        let what = format!(
            "found {found}, for which llama.cpp has no equivalent, expected NFC, NFD, NFKC, NFKD, Lowercase, StripAccents, \
             ByteLevel, Prepend of \"▁\", Replace of \" \" by \"▁\", or a Sequence of these"
        );
        return Err(file.object.error("normalizer", what));
    }
    let wrong = |e: tokenizers::Error| Error::of(&file.object.path, shown(&e.to_string()));
    let round_trip = |text: &String| {
        let encoded = tokenizer.encode_fast(text.as_str(), false)?;
        tokenizer.decode(encoded.get_ids(), false)
    };
    let texts = question.texts.iter().map(round_trip).collect::<tokenizers::Result<_>>().map_err(wrong)?;
    let pre = match question.pre {
        Some(pre) => Ok(pre),
        None => kind(&tokenizer).map_err(wrong)?,
    };
    Ok(Answer { pre, texts })
}

/// The type of the first normalizer that neither a key of a GGUF file nor a kind of pre-tokenizer stands for.
fn foreign(normalizer: &NormalizerWrapper) -> Option<&'static str> {
    use NormalizerWrapper as N;
    match normalizer {
        N::Sequence(sequence) => {
            let inside: &[N] = sequence.as_ref();
            inside.iter().find_map(foreign)
        }
        N::BertNormalizer(_) => Some("BertNormalizer"),
        N::StripNormalizer(_) => Some("Strip"),
        N::Nmt(_) => Some("Nmt"),
        N::Precompiled(_) => Some("Precompiled"),
        N::Prepend(front) => (front.prepend != "▁").then_some("Prepend of another text"),
        N::Replace(replace) => {
            let spaces = Replace::new(" ", "▁").is_ok_and(|spaces| spaces == *replace);
            (!spaces).then_some("Replace of another text")
        }
        N::NFC(_) | N::NFD(_) | N::NFKC(_) | N::NFKD(_) => None,
        N::Lowercase(_) | N::StripAccents(_) | N::ByteLevel(_) => None,
    }
}

/// The kind whose ids for the probe text these are; their hash if no kind has them.
fn kind(tokenizer: &tokenizers::Tokenizer) -> tokenizers::Result<Result<String, String>> {
    let encoded = tokenizer.encode_fast(PROBE, true)?;
    let ids: Vec<String> = encoded.get_ids().iter().map(u32::to_string).collect();
    let hash = format!("{:x}", Sha256::digest(format!("[{}]", ids.join(", "))));
    let known = KNOWN.iter().find(|(start, _)| hash.starts_with(start)).map(|(_, name)| (*name).to_owned());
    Ok(known.ok_or(hash))
}

fn build(file: &Tokenizer) -> Result<tokenizers::Tokenizer> {
    let mut out = tokenizers::Tokenizer::new(model(file)?);
    out.with_normalizer(part::<NormalizerWrapper>(file, "normalizer")?);
    out.with_pre_tokenizer(part::<PreTokenizerWrapper>(file, "pre_tokenizer")?);
    out.with_post_processor(part::<PostProcessorWrapper>(file, "post_processor")?);
    out.with_decoder(part::<DecoderWrapper>(file, "decoder")?);
    // Last: they get ids after those of the model, and go through the normalizer.
    out.add_tokens(&part::<Vec<AddedToken>>(file, "added_tokens")?.unwrap_or_default());
    Ok(out)
}

/// A part of the file as the crate reads it.
fn part<T: DeserializeOwned>(file: &Tokenizer, key: &str) -> Result<Option<T>> {
    let value = file.object.get(key).cloned().unwrap_or_default();
    serde_json::from_value(value).map_err(|e| file.object.error(key, shown(&e.to_string())))
}

/// The model of the tokenizer, without the chance of training (`dropout`).
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
        if let Some(unknown) = model.string("unk_token")? {
            builder = builder.unk_token(unknown.to_owned());
        }
    }
    builder.build().map_err(|e| Error::of(&json.path, shown(&e.to_string())))
}
