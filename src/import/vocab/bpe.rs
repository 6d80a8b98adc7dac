//! BPE of bytes from tokenizer.json (`get_vocab_base` of llama.cpp's `conversion/base.py`).

use std::collections::HashMap;

use crate::error::shown;
use crate::{Error, Result};

use super::engine::Question;
use super::tokenizer::FILE;
use super::{apart, engine, looks_special, Added, Files, Tokenizing, Tokens, CONTROL, NORMAL, USER_DEFINED};

/// The tokens, and the kind of pre-tokenizer for `tokenizer.ggml.pre`: `pre`, or what the probe shows. Without
/// `tokenizing` nobody runs the tokenizer, which is an error.
pub(super) fn read(
    files: &Files,
    n: u32,
    pre: Option<&str>,
    tokenizing: Option<&Tokenizing>,
) -> Result<(Tokens, String)> {
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
        let slot = usize::try_from(*id).ok().and_then(|id| taken.get_mut(id));
        let slot = slot.ok_or_else(|| {
            let what = format!("token \"{}\": found id {id}, expected below vocab_size {n}", shown(text));
            json.error("model.vocab", what)
        })?;
        if let Some(other) = slot.replace(text) {
            let what = format!("id {id}: found \"{}\" and \"{}\", expected one", shown(other), shown(text));
            return Err(json.error("model.vocab", what));
        }
        tokens.set(*id, text.as_bytes(), 0.0, NORMAL);
    }
    let added = added(files)?;
    let mut ids = HashMap::new();
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
    }
    // llama.cpp compares such tokens with text as it is, so they are written as that.
    let texts = added.iter().filter(|a| !a.normalized).map(|a| a.text.clone()).collect();
    let question = Question { pre: pre.map(str::to_owned), texts };
    let answer = match tokenizing {
        Some(Tokenizing::Apart(process)) => apart::answer(&files.folder, process, question)?,
        Some(Tokenizing::Trusted) => engine::answer(file, question)?,
        None => {
            let path = json.path.display();
            let what =
                format!("tokenizing: found none, expected a helper to run {path} apart, or trust in it");
            return Err(Error::Argument(what));
        }
    };
    let pre = answer.pre.map_err(|hash| Error::PreTokenizer {
        path: json.path.clone(),
        what: format!(
            "found a tokenizer that llama.cpp's converter does not know (hash {hash:.16}), expected one of its list; \
             name its pre-tokenizer"
        ),
    })?;
    let mut decoded = answer.texts.into_iter();
    for token in added {
        let text = if token.normalized { token.text } else { decoded.next().unwrap_or(token.text) };
        let (text, kind) = match token.special || looks_special(&text) {
            true => (text, CONTROL),
            false => (text.replace('▁', " "), USER_DEFINED),
        };
        tokens.set(token.id, text.as_bytes(), 0.0, kind);
    }
    Ok((tokens, pre))
}

/// The added tokens of both files; where both have an id, that of tokenizer_config.json if the text is the same.
fn added(files: &Files) -> Result<Vec<Added>> {
    let mut added = files.added()?;
    let mut places = HashMap::with_capacity(added.len());
    for (place, token) in added.iter().enumerate() {
        places.entry(token.id).or_insert(place);
    }
    for later in files.decoder()? {
        match places.get(&later.id) {
            Some(&place) if added[place].text == later.text => added[place] = later,
            Some(_) => {}
            None => {
                places.insert(later.id, added.len());
                added.push(later);
            }
        }
    }
    Ok(added)
}
