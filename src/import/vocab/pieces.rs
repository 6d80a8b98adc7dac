//! SentencePiece's BPE from tokenizer.json, where tokenizer.model is missing: what transformers makes of that file, written
//! back as the vocabulary that llama.cpp runs (types as `LlamaHfVocab` of `gguf-py/gguf/vocab.py` has them).
//!
//! There a vocabulary has a score for each token, and any two neighbors whose text together is a token are joined, the
//! best score first. A list of merges says that if the merges that make one token stand together, and all of them are
//! there: then the place in the list is the score.

use std::collections::{HashMap, HashSet};

use serde_json::Value;

use crate::error::shown;
use crate::Result;

use super::tokenizer::Tokenizer;
use super::{Added, Files, Source, Tokens, BYTE, CONTROL, NORMAL, USER_DEFINED};

/// True if a component, or one of those in it, is of a type. Readers have bounds on the depth of JSON.
fn has(component: Option<&Value>, wanted: &str) -> bool {
    let Some(component) = component else { return false };
    let inside = ["normalizers", "pretokenizers", "decoders"].iter().filter_map(|key| component.get(key));
    component.get("type").and_then(Value::as_str) == Some(wanted)
        || inside.filter_map(Value::as_array).flatten().any(|part| has(Some(part), wanted))
}

/// The kind of a tokenizer.json by its components: BPE of bytes, or BPE of characters that falls back to bytes. `None` for
/// any other kind.
pub(super) fn content(file: &Tokenizer) -> Result<Option<Source>> {
    let part = |key: &str| file.object.get(key);
    let Some(model) = file.model()? else { return Ok(None) };
    let bytes = ["pre_tokenizer", "normalizer", "decoder"].iter().any(|key| has(part(key), "ByteLevel"));
    Ok(match model.string("type")? {
        Some(other) if other != "BPE" => None,
        _ if bytes => Some(Source::Bytes),
        _ => (model.bool("byte_fallback")? == Some(true)).then_some(Source::Pieces),
    })
}

/// Spaces that are put before a text, as components say it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Prefix {
    Never,
    Always,
    /// Before the first piece of a text alone, unless that begins with a space.
    First,
}

/// Checks the components around the model, and says what is put before a text.
pub(super) fn prefix(file: &Tokenizer) -> Result<Prefix> {
    let json = &file.object;
    let (normalizer, cuts) = (json.get("normalizer"), json.get("pre_tokenizer"));
    let refused = |key: &str, found: &str| {
        Err(json.error(key, format!("found {found}, which a vocabulary of pieces in a GGUF file cannot say")))
    };
    for (key, part, kinds) in [
        (
            "normalizer",
            normalizer,
            "NFC NFD NFKC NFKD Lowercase StripAccents BertNormalizer Precompiled Strip Nmt",
        ),
        ("pre_tokenizer", cuts, "Digits Whitespace WhitespaceSplit Punctuation UnicodeScripts"),
    ] {
        if let Some(kind) = kinds.split(' ').find(|kind| has(part, kind)) {
            return refused(key, kind);
        }
    }
    let metaspace = component(cuts, "Metaspace");
    let flag = |key: &str| metaspace.and_then(|m| m.get(key)).and_then(Value::as_bool);
    // Words are cut apart: no piece may hold a space inside.
    if metaspace.is_some() && flag("split") != Some(false) {
        return refused("pre_tokenizer", "Metaspace with split");
    }
    if has(normalizer, "Prepend") {
        return Ok(Prefix::Always);
    }
    let Some(metaspace) = metaspace else { return Ok(Prefix::Never) };
    Ok(match metaspace.get("prepend_scheme").and_then(Value::as_str) {
        Some("never") => Prefix::Never,
        Some("first") => Prefix::First,
        // Files of before schemes were written have a flag.
        None if flag("add_prefix_space") == Some(false) => Prefix::Never,
        _ => Prefix::Always,
    })
}

/// The first component of a type.
fn component<'a>(part: Option<&'a Value>, wanted: &str) -> Option<&'a Value> {
    let part = part?;
    if part.get("type").and_then(Value::as_str) == Some(wanted) {
        return Some(part);
    }
    part.get("pretokenizers")?.as_array()?.iter().find_map(|inner| component(Some(inner), wanted))
}

/// The tokens: those of the model, then the added ones, each at its id, and unused ones up to `n`, without
/// which llama.cpp would refuse the file.
pub(super) fn read(file: &Tokenizer, files: &Files, n: u32) -> Result<Tokens> {
    let (json, vocab) = (&file.object, file.vocab()?);
    let n_base = vocab.len();
    let roles = specials(files)?;
    let all = files.added()?;
    let of_base: HashMap<&str, &Added> =
        all.iter().filter(|a| a.id < n_base as u64).map(|a| (a.text.as_str(), a)).collect();
    let mut added: Vec<_> = all.iter().filter(|a| a.id >= n_base as u64).collect();
    added.sort_by_key(|a| a.id);
    added.dedup_by(|a, b| a.id == b.id && a.text == b.text);
    let mut texts: Vec<Option<&str>> = vec![None; n_base + added.len()];
    let base = vocab.iter().map(|(text, id)| (text.as_str(), *id));
    for (text, id) in base.chain(added.iter().map(|a| (a.text.as_str(), a.id))) {
        let slot = usize::try_from(id).ok().and_then(|id| texts.get_mut(id));
        match slot {
            Some(slot) if slot.is_none() => *slot = Some(text),
            _ => {
                let what = format!(
                    "token \"{}\": found id {id}, expected each id below {} once",
                    shown(text),
                    n_base + added.len()
                );
                return Err(json.error("model.vocab", what));
            }
        }
    }
    let scores = scores(file, &of_base)?;
    let special: HashSet<&str> = all.iter().filter(|a| a.special).map(|a| a.text.as_str()).collect();
    let mut tokens = Tokens::new(n.max(texts.len() as u32));
    // As many texts as places, each with its own: none is empty.
    for (id, text) in texts.into_iter().flatten().enumerate() {
        let kind = match text {
            _ if id < n_base && is_byte(text) => BYTE,
            _ if roles.contains(text) || special.contains(text) => CONTROL,
            _ if id < n_base && !of_base.contains_key(text) => NORMAL,
            // Spaces are found in texts once they are written so, which is when llama.cpp joins pieces.
            _ if text.contains('▁') && scores.contains_key(text) => NORMAL,
            _ => USER_DEFINED,
        };
        let score = scores.get(text).copied().unwrap_or(-(scores.len() as f32));
        tokens.set(id as u64, text.as_bytes(), score, kind);
    }
    Ok(tokens)
}

/// Bytes of a token, at most. The longest of published vocabularies have a few hundred.
const MAX_TOKEN: usize = 1024;

/// The score of each token that merges make: less the later the first of them is.
fn scores<'a>(file: &'a Tokenizer, added: &HashMap<&str, &Added>) -> Result<HashMap<&'a str, f32>> {
    let json = &file.object;
    let wrong = |text: &str, what: &str| {
        let what = format!(
            "token \"{}\": {what}: llama.cpp's vocabulary of pieces has a score for each token and none for merges, so that \
             texts would be cut otherwise; add tokenizer.model to the folder",
            shown(text)
        );
        json.error("model.merges", what)
    };
    let vocab: HashMap<&str, ()> = file.vocab()?.iter().map(|(text, _)| (text.as_str(), ())).collect();
    // Each token is looked up at every cut.
    if let Some(long) = vocab.keys().find(|text| text.len() > MAX_TOKEN) {
        let what = format!(
            "token \"{}\": found {} bytes, expected at most {MAX_TOKEN}; add tokenizer.model to the folder",
            shown(long),
            long.len()
        );
        return Err(json.error("model.vocab", what));
    }
    // Of each token the merges that make it, and its place.
    let mut made: HashMap<&str, (usize, f32)> = HashMap::new();
    let mut before: &str = "";
    let mut whole = String::new();
    for (first, second) in file.merges.pairs() {
        whole.clear();
        whole.extend([first, second]);
        let Some((&token, ())) = vocab.get_key_value(whole.as_str()) else {
            return Err(json.error("model.merges", format!("found \"{}\", not a token", shown(&whole))));
        };
        let place = -(made.len() as f32);
        let (n, _) = made.entry(token).or_insert((0, place));
        // Added tokens are found whole, in whatever order they would be joined. One character again and again joins to
        // the same pieces whatever the order of merges of one length.
        let is_run = || token.chars().all(|c| token.starts_with(c));
        if *n > 0 && before != token && !added.contains_key(token) && !is_run() {
            return Err(wrong(token, "merges that make it stand apart from each other"));
        }
        *n += 1;
        before = token;
    }
    for (&token, &(n, _)) in made.iter().filter(|(token, _)| !added.contains_key(**token)) {
        let cuts = token.char_indices().skip(1).map(|(at, _)| token.split_at(at));
        let possible = cuts.filter(|(a, b)| vocab.contains_key(a) && vocab.contains_key(b)).count();
        if n < possible {
            let what =
                format!("found {n} merges that make it, expected {possible}, one for each pair of tokens");
            return Err(wrong(token, &what));
        }
    }
    // A token that no merge makes, and that neighbors would be joined to all the same.
    for &token in vocab.keys().filter(|t| !made.contains_key(**t) && !added.contains_key(**t) && !is_byte(t))
    {
        let mut cuts = token.char_indices().skip(1).map(|(at, _)| token.split_at(at));
        if cuts.any(|(a, b)| vocab.contains_key(a) && vocab.contains_key(b)) {
            return Err(wrong(token, "found no merge that makes it, expected one for each pair of tokens"));
        }
    }
    Ok(made.into_iter().map(|(token, (_, score))| (token, score)).collect())
}

fn is_byte(text: &str) -> bool {
    let hex = text.strip_prefix("<0x").and_then(|t| t.strip_suffix('>'));
    hex.is_some_and(|h| h.len() == 2 && h.bytes().all(|b| b.is_ascii_hexdigit()))
}

/// Texts of special tokens by their roles in tokenizer_config.json.
fn specials(files: &Files) -> Result<HashSet<String>> {
    let Some(config) = &files.config else { return Ok(HashSet::new()) };
    let roles = ["bos", "eos", "unk", "sep", "pad", "cls", "mask"];
    let keys = roles.iter().map(|role| format!("{role}_token"));
    let mut out: HashSet<String> = keys.filter_map(|k| super::special::content(config.get(&k)?)).collect();
    for key in ["additional_special_tokens", "extra_special_tokens"] {
        match config.get(key) {
            Some(Value::Array(list)) => out.extend(list.iter().filter_map(super::special::content)),
            // Those with names.
            Some(Value::Object(map)) => out.extend(map.values().filter_map(super::special::content)),
            _ => {}
        }
    }
    Ok(out)
}
