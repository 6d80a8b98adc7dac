//! BPE of bytes from tokenizer.json (`get_vocab_base` of llama.cpp's `conversion/base.py`).

use std::path::Path;

use sha2::{Digest, Sha256};
use tokenizers::models::bpe::{Vocab, BPE};
use tokenizers::{AddedToken, Tokenizer};

use crate::error::shown;
use crate::json::Object;
use crate::{Error, Result};

use super::probe::{KNOWN, PROBE};
use super::tokenizer::{self, FILE};
use super::{looks_special, Files, Tokens, CONTROL, NORMAL, USER_DEFINED};

/// Tokens of a folder's tokenizer.json, added ones included.
pub(crate) fn n_in_tokenizer_json(folder: &Path) -> Result<usize> {
    let missing = || Error::of(folder, format!("has no {FILE}, expected one"));
    let tokenizer = tokenizer::Tokenizer::read(folder)?.ok_or_else(missing)?;
    let added = tokenizer.object.array("added_tokens")?.map_or(0, Vec::len);
    Ok(tokenizer.vocab()?.len() + added)
}

/// The tokens, and the kind of pre-tokenizer for `tokenizer.ggml.pre`: `pre`, or what the probe shows.
pub(super) fn read(files: &Files, n: u32, pre: Option<&str>) -> Result<(Tokens, String)> {
    let missing = || Error::of(&files.folder, format!("has no {FILE}, expected one"));
    let file = files.tokenizer.as_ref().ok_or_else(missing)?;
    let json = &file.object;
    let model = file.model()?;
    let kind = model.as_ref().map(|m| m.string("type")).transpose()?.flatten();
    // Files of before types were written have BPE.
    if let Some(other) = kind.filter(|k| *k != "BPE") {
        return Err(json.error("model.type", format!("found {}, expected BPE", shown(other))));
    }
    let vocab = file.vocab()?;
    let mut tokens = Tokens::new(n);
    let mut taken: Vec<Option<&str>> = vec![None; n as usize];
    for (text, id) in vocab {
        let slot = usize::try_from(*id).ok().and_then(|id| Some((id, taken.get_mut(id)?)));
        let (at, slot) = slot.ok_or_else(|| {
            let what = format!("token \"{}\": found id {id}, expected below vocab_size {n}", shown(text));
            json.error("model.vocab", what)
        })?;
        if let Some(other) = slot.replace(text) {
            let what = format!("id {id}: found \"{}\" and \"{}\", expected one", shown(other), shown(text));
            return Err(json.error("model.vocab", what));
        }
        tokens.set(at, text.as_bytes(), 0.0, NORMAL);
    }
    let tokenizer = engine(file)?;
    let wrong = |e: tokenizers::Error| Error::of(&json.path, shown(&e.to_string()));
    let pre = match pre {
        Some(pre) => pre.to_owned(),
        None => detect(&tokenizer, json)?,
    };
    let mut added = files.added()?;
    for later in files.decoder()? {
        match added.iter_mut().find(|a| a.id == later.id) {
            Some(earlier) if earlier.text == later.text => *earlier = later,
            Some(_) => {}
            None => added.push(later),
        }
    }
    let mut ids = std::collections::HashMap::new();
    for token in &added {
        let place = format!("added token \"{}\"", shown(&token.text));
        if token.id >= u64::from(n) {
            return Err(json.error(&place, format!("found id {}, expected below vocab_size {n}", token.id)));
        }
        let other = taken[token.id as usize].or_else(|| ids.get(&token.id).copied());
        if let Some(other) = other.filter(|other| *other != token.text) {
            let what = format!("found id {}, which is \"{}\"", token.id, shown(other));
            return Err(json.error(&place, what));
        }
        ids.insert(token.id, token.text.as_str());
        // llama.cpp compares such tokens with text as it is, so they are written as that.
        let text = match token.normalized {
            true => token.text.clone(),
            false => {
                let encoded = tokenizer.encode(token.text.as_str(), false).map_err(wrong)?;
                tokenizer.decode(encoded.get_ids(), false).map_err(wrong)?
            }
        };
        let (text, kind) = match token.special || looks_special(&text) {
            true => (text, CONTROL),
            false => (text.replace('▁', " "), USER_DEFINED),
        };
        tokens.set(token.id as usize, text.as_bytes(), 0.0, kind);
    }
    Ok((tokens, pre))
}

/// The tokenizer itself, which neither cuts nor pads. Vocabulary and merges go to it as they are: in its own reader of
/// JSON they stand in memory several times.
fn engine(file: &tokenizer::Tokenizer) -> Result<Tokenizer> {
    let json = &file.object;
    let wrong = |e: tokenizers::Error| Error::of(&json.path, shown(&e.to_string()));
    let mut rest = json.map.clone();
    for key in ["truncation", "padding", "added_tokens"] {
        rest.remove(key);
    }
    rest.insert("model".into(), serde_json::json!({"type": "BPE", "vocab": {}, "merges": []}));
    let rest = serde_json::to_vec(&rest).map_err(|e| Error::of(&json.path, e))?;
    let mut tokenizer = Tokenizer::from_bytes(rest).map_err(wrong)?;
    tokenizer.with_model(model(file)?);
    let added = json.array("added_tokens")?.map_or(&[][..], Vec::as_slice);
    let added = added.iter().map(|entry| serde_json::from_value(entry.clone()));
    let added: Vec<AddedToken> =
        added.collect::<Result<_, _>>().map_err(|e| json.error("added_tokens", shown(&e.to_string())))?;
    tokenizer.add_tokens(&added);
    Ok(tokenizer)
}

/// The model of the tokenizer, as the crate's own reader makes it, without the chance of training (`dropout`).
fn model(file: &tokenizer::Tokenizer) -> Result<BPE> {
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

/// The kind whose ids for the probe text these are.
fn detect(tokenizer: &Tokenizer, json: &Object) -> Result<String> {
    let encoded = tokenizer.encode(PROBE, true);
    let encoded = encoded.map_err(|e| Error::of(&json.path, shown(&e.to_string())))?;
    let ids: Vec<String> = encoded.get_ids().iter().map(u32::to_string).collect();
    let hash: String =
        Sha256::digest(format!("[{}]", ids.join(", "))).iter().map(|byte| format!("{byte:02x}")).collect();
    let known = KNOWN.iter().find(|(h, _)| *h == hash).map(|(_, name)| (*name).to_owned());
    known.ok_or_else(|| {
        let what = format!(
            "found a tokenizer that llama.cpp's converter does not know (hash {}), expected one of its list; \
             --pre NAME says which kind it is",
            &hash[..16]
        );
        Error::of(&json.path, what)
    })
}
