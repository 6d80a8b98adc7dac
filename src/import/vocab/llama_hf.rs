//! BPE of characters with bytes to fall back on, from tokenizer.json where tokenizer.model is missing
//! (`LlamaHfVocab` of llama.cpp's `gguf-py/gguf/vocab.py`).

use std::collections::HashSet;

use serde_json::Value;

use crate::error::shown;
use crate::Result;

use super::{Files, Tokens, BYTE, CONTROL, NORMAL, USER_DEFINED};

/// True where tokenizer.json has such a tokenizer.
pub(super) fn fits(files: &Files) -> Result<bool> {
    let Some(file) = &files.tokenizer else { return Ok(false) };
    let Some(model) = file.model()? else { return Ok(false) };
    let decoder = file.object.object("decoder")?.and_then(|d| d.get("type")).and_then(Value::as_str);
    let falls_back = model.get("byte_fallback").and_then(Value::as_bool).unwrap_or(false);
    let kind = model.get("type").and_then(Value::as_str);
    Ok(kind == Some("BPE") && falls_back && decoder == Some("Sequence"))
}

/// The tokens: those of the model, then the added ones, each at its id, and unused ones up to `n`, without
/// which llama.cpp would refuse the file.
pub(super) fn read(files: &Files, n: u32) -> Result<Tokens> {
    let Some(file) = &files.tokenizer else { return Ok(Tokens::new(0)) };
    let (json, vocab) = (&file.object, file.vocab()?);
    let n_base = vocab.len();
    let specials = specials(files)?;
    let mut added: Vec<_> = files.added()?.into_iter().filter(|a| a.id >= n_base as u64).collect();
    added.sort_by_key(|a| a.id);
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
    let mut tokens = Tokens::new(n.max(texts.len() as u32));
    // As many texts as places, each with its own: none is empty.
    for (id, text) in texts.into_iter().flatten().enumerate() {
        let kind = match text {
            _ if id < n_base && is_byte(text) => BYTE,
            _ if specials.contains(text) => CONTROL,
            _ if id < n_base => NORMAL,
            _ => USER_DEFINED,
        };
        tokens.set(id, text.as_bytes(), -1000.0, kind);
    }
    Ok(tokens)
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
        if let Some(Value::Array(list)) = config.get(key) {
            out.extend(list.iter().filter_map(super::special::content));
        }
    }
    Ok(out)
}
