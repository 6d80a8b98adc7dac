//! BPE of bytes from tokenizer.json (`get_vocab_base` of llama.cpp's `conversion/base.py`).

use std::path::Path;

use serde_json::{Map, Value};
use sha2::{Digest, Sha256};
use tokenizers::Tokenizer;

use crate::error::shown;
use crate::json::{Object, LARGE};
use crate::{Error, Result};

use super::probe::{KNOWN, PROBE};
use super::{looks_special, Files, Tokens, CONTROL, NORMAL, USER_DEFINED};

pub(super) const FILE: &str = "tokenizer.json";

/// The `vocab` of a tokenizer.json's model.
pub(super) fn vocab(tokenizer: &Object) -> Result<&Map<String, Value>> {
    let model = tokenizer.object("model")?;
    let vocab = model.and_then(|m| m.get("vocab")).and_then(Value::as_object);
    vocab.ok_or_else(|| tokenizer.error("model.vocab", "found none, expected an object of tokens and ids"))
}

/// Tokens of a folder's tokenizer.json, added ones included.
pub(crate) fn n_in_tokenizer_json(folder: &Path) -> Result<usize> {
    let path = folder.join(FILE);
    let missing = || Error::of(folder, format!("has no {FILE}, expected one"));
    let tokenizer = Object::read(&path, LARGE)?.ok_or_else(missing)?;
    let added = tokenizer.array("added_tokens")?.map_or(0, Vec::len);
    Ok(vocab(&tokenizer)?.len() + added)
}

/// The tokens, and the kind of pre-tokenizer for `tokenizer.ggml.pre`: `pre`, or what the probe shows.
pub(super) fn read(files: &Files, n: u32, pre: Option<&str>) -> Result<(Tokens, String)> {
    let missing = || Error::of(&files.folder, format!("has no {FILE}, expected one"));
    let json = files.tokenizer.as_ref().ok_or_else(missing)?;
    let kind = json.object("model")?.and_then(|m| m.get("type")).and_then(Value::as_str);
    // Files of before types were written have BPE.
    if let Some(other) = kind.filter(|k| *k != "BPE") {
        return Err(json.error("model.type", format!("found {}, expected BPE", shown(other))));
    }
    let tokenizer = engine(json)?;
    let wrong = |e: tokenizers::Error| Error::of(&json.path, shown(&e.to_string()));
    let pre = match pre {
        Some(pre) => pre.to_owned(),
        None => detect(&tokenizer, json)?,
    };
    let mut tokens = Tokens::new(n);
    let mut taken: Vec<Option<&str>> = vec![None; n as usize];
    for (text, id) in vocab(json)? {
        let slot = id.as_u64().and_then(|id| taken.get_mut(usize::try_from(id).ok()?));
        let slot = slot.ok_or_else(|| {
            let what = format!("token \"{}\": found id {id}, expected below vocab_size {n}", shown(text));
            json.error("model.vocab", what)
        })?;
        if let Some(other) = slot.replace(text) {
            let what = format!("id {id}: found \"{}\" and \"{}\", expected one", shown(other), shown(text));
            return Err(json.error("model.vocab", what));
        }
        tokens.set(id.as_u64().unwrap_or(0) as usize, text.as_bytes(), 0.0, NORMAL);
    }
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

/// The tokenizer itself, which neither cuts nor pads.
fn engine(json: &Object) -> Result<Tokenizer> {
    let wrong = |e: tokenizers::Error| Error::of(&json.path, shown(&e.to_string()));
    let text = serde_json::to_vec(&json.map).map_err(|e| Error::of(&json.path, e))?;
    let mut tokenizer = Tokenizer::from_bytes(text).map_err(wrong)?;
    tokenizer.with_padding(None).with_truncation(None).map_err(wrong)?;
    Ok(tokenizer)
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
