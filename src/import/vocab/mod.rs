//! The tokenizer of a folder as `tokenizer.*` keys.

mod apart;
mod bpe;
mod engine;
mod pieces;
mod probe;
mod sentencepiece;
mod special;
mod tokenizer;

use std::path::PathBuf;

use gguf::{Array, Value};

use crate::config::Config;
use crate::json::{Object, SMALL};
use crate::keys::Keys;
use crate::{Error, Result};

use pieces::Prefix;
use special::Special;
use tokenizer::Tokenizer;

pub use apart::{serve, Tokenizing, LIMITS};

/// Tokenizer kinds that a family can have. The files show which of them it is.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Kinds {
    /// BPE of bytes as a rule.
    Bpe,
    /// Pieces as a rule, without a space before a text.
    Gemma,
    /// Pieces, including the added tokens of tokenizer.json.
    Phi3,
    /// Pieces or BPE of bytes, and tokens of CodeLlama.
    Llama,
}

/// Numbers of token types in GGUF.
const NORMAL: i32 = 1;
const UNKNOWN: i32 = 2;
const CONTROL: i32 = 3;
const USER_DEFINED: i32 = 4;
const UNUSED: i32 = 5;
const BYTE: i32 = 6;
/// The score of tokens that no text has.
const UNUSED_SCORE: f32 = -10000.0;

/// A vocabulary under way: `vocab_size` entries, all unused at first.
struct Tokens {
    texts: Vec<Vec<u8>>,
    scores: Vec<f32>,
    types: Vec<i32>,
}

/// The files of a tokenizer, read once.
struct Files {
    config: Option<Object>,
    tokenizer: Option<Tokenizer>,
    folder: PathBuf,
}

/// Reads the tokenizer and sets its keys. `pre` is the kind of BPE if the caller forces one; a tokenizer
/// that has to be run is an error without `tokenizing`.
pub(crate) fn write(
    c: &Config,
    kinds: Kinds,
    pre: Option<&str>,
    tokenizing: Option<&Tokenizing>,
    keys: &mut Keys,
) -> Result<()> {
    if let Some(pre) = pre.filter(|pre| !probe::KINDS.contains(pre)) {
        let what = format!("pre: unknown kind of tokenizer {pre:?}; known: {}", probe::KINDS.join(" "));
        return Err(Error::Argument(what));
    }
    let files = Files {
        config: Object::read(&c.folder.join("tokenizer_config.json"), SMALL)?,
        tokenizer: Tokenizer::read(&c.folder)?,
        folder: c.folder.clone(),
    };
    let n = c.u32("vocab_size")?;
    let source = source(&files, kinds)?;
    if kinds == Kinds::Llama && source != Source::Pieces {
        let prefix = files.config.as_ref().map(|o| o.bool("add_prefix_space")).transpose()?.flatten();
        if let Some(prefix) = prefix {
            keys.plain("tokenizer.ggml.add_space_prefix", prefix);
        }
    }
    if let (Source::Model | Source::Pieces, Some(pre)) = (source, pre) {
        let what = format!("pre {pre}: this tokenizer is not byte-level BPE, so the setting does not apply");
        return Err(Error::Argument(what));
    }
    let n_tokens;
    if source == Source::Bytes {
        // What is wrong with the files is an error before the tokenizer runs.
        let special = Special::read(&files, None)?;
        let (tokens, pre) = bpe::read(&files, n, pre, tokenizing)?;
        n_tokens = tokens.texts.len();
        keys.plain("tokenizer.ggml.model", "gpt2");
        keys.plain("tokenizer.ggml.pre", pre.as_str());
        set(tokens, false, keys);
        special.write(keys);
    } else {
        let tokens = match (source, &files.tokenizer) {
            (Source::Pieces, Some(tokenizer)) => {
                let prefix = pieces::prefix(tokenizer)?;
                if prefix == Prefix::Never {
                    keys.plain("tokenizer.ggml.add_space_prefix", false);
                }
                if prefix == Prefix::First {
                    keys.notes.push(FIRST.into());
                }
                pieces::read(tokenizer, &files, n)?
            }
            _ => sentencepiece::read(&files, n, kinds == Kinds::Phi3)?,
        };
        n_tokens = tokens.texts.len();
        keys.plain("tokenizer.ggml.model", "llama");
        keys.plain("tokenizer.ggml.pre", "default");
        set(tokens, true, keys);
        Special::read(&files, Some(n_tokens))?.write(keys);
        if kinds == Kinds::Gemma {
            keys.plain("tokenizer.ggml.add_space_prefix", false);
        }
    }
    // CodeLlama, and SmolLM and small Granites (`LlamaModel.set_vocab`).
    match (kinds, n) {
        (Kinds::Llama, 32016) => keys.plain("tokenizer.ggml.eot_token_id", 32010u32),
        (Kinds::Llama, 49152) => keys.plain("tokenizer.ggml.add_bos_token", false),
        _ => {}
    }
    more_ends(c, n_tokens as u64, keys)
}

/// Source of a vocabulary.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Source {
    /// tokenizer.json with BPE of bytes.
    Bytes,
    /// tokenizer.json with BPE of characters.
    Pieces,
    /// tokenizer.model.
    Model,
}

/// llama.cpp has no word for this setting of transformers.
const FIRST: &str = "tokenizer.json puts a space before the first word of a text alone, and none before a text that begins \
                     with one. llama.cpp puts one before every text and after every special token, as SentencePiece does: \
                     such texts may have one token more than in transformers.";

/// Chooses by what the files hold. Some models have a tokenizer.model of another program next to a BPE of bytes.
fn source(files: &Files, kinds: Kinds) -> Result<Source> {
    let folder = &files.folder;
    match files.tokenizer.as_ref().map(pieces::content).transpose()? {
        Some(Some(Source::Bytes)) => return Ok(Source::Bytes),
        _ if folder.join(sentencepiece::FILE).is_file() => return Ok(Source::Model),
        // Bytes say what is wrong with it.
        Some(content) => return Ok(content.unwrap_or(Source::Bytes)),
        None => {}
    }
    let old = ["vocab.json", "merges.txt"].iter().all(|name| folder.join(name).is_file());
    let wanted =
        if matches!(kinds, Kinds::Gemma | Kinds::Phi3) { sentencepiece::FILE } else { tokenizer::FILE };
    let more = match old {
        true => "; it has vocab.json and merges.txt, of which transformers makes one (`AutoTokenizer`, then `save_pretrained`)",
        false => "",
    };
    Err(Error::of(folder, format!("has no {wanted}, expected one{more}")))
}

fn set(tokens: Tokens, scores: bool, keys: &mut Keys) {
    keys.plain("tokenizer.ggml.tokens", Value::Array(Array::String(tokens.texts)));
    if scores {
        keys.plain("tokenizer.ggml.scores", tokens.scores);
    }
    keys.plain("tokenizer.ggml.token_type", tokens.types);
}

/// Adds unused tokens up to `n`, and gives the number of tokens that there were.
pub(crate) fn fit(keys: &mut Keys, n: usize) -> usize {
    let mut found = 0;
    for (key, value) in &mut keys.list {
        match (key.strip_prefix("tokenizer.ggml."), value) {
            (Some("tokens"), Value::Array(Array::String(texts))) => {
                found = texts.len();
                texts.extend((found..n).map(unused));
            }
            (Some("scores"), Value::Array(Array::F32(scores))) => {
                scores.resize(n.max(scores.len()), UNUSED_SCORE);
            }
            (Some("token_type"), Value::Array(Array::I32(types))) => types.resize(n.max(types.len()), UNUSED),
            _ => {}
        }
    }
    found
}

/// The text of a token that no text has.
fn unused(id: usize) -> Vec<u8> {
    format!("[PAD{id}]").into_bytes()
}

/// Tokens that end a text, in addition to the tokenizer's one: generation_config.json gives them, or where there is
/// none of these config.json, as one id or as a list, below `n`. llama.cpp knows of two more by id.
fn more_ends(c: &Config, n: u64, keys: &mut Keys) -> Result<()> {
    let key = "eos_token_id";
    let generation = Object::read(&c.folder.join("generation_config.json"), SMALL)?;
    let from = generation.as_ref().unwrap_or(&c.object);
    let list = match from.get(key) {
        None => return Ok(()),
        Some(serde_json::Value::Array(list)) => list.as_slice(),
        Some(one) => std::slice::from_ref(one),
    };
    let keys_of_ends = ["eos", "eot", "eom"].map(|kind| format!("tokenizer.ggml.{kind}_token_id"));
    let (known, free): (Vec<&String>, Vec<&String>) =
        keys_of_ends.iter().partition(|key| keys.get(key).is_some());
    let mut more: Vec<u32> = Vec::new();
    for id in list {
        // Some write -1 for none.
        if id.as_i64().is_some_and(|id| id < 0) && list.len() == 1 {
            continue;
        }
        let wrong = || from.error(key, format!("found {}, expected ids below {n}", crate::json::kind(id)));
        let id = id.as_u64().filter(|&id| id < n).ok_or_else(wrong)? as u32;
        if !known.iter().any(|key| keys.get(key) == Some(&Value::U32(id))) && !more.contains(&id) {
            more.push(id);
        }
    }
    let left: Vec<String> = more.iter().skip(free.len()).map(u32::to_string).collect();
    if !left.is_empty() {
        let left = left.join(", ");
        keys.notes.push(format!("{key}: a GGUF file names three tokens that end a text; left out: {left}."));
    }
    for (key, id) in free.into_iter().zip(more) {
        keys.plain(key, id);
    }
    Ok(())
}

impl Tokens {
    fn new(n: u32) -> Tokens {
        let n = n as usize;
        Tokens { texts: (0..n).map(unused).collect(), scores: vec![UNUSED_SCORE; n], types: vec![UNUSED; n] }
    }
    /// Sets a token; false beyond the end.
    fn set(&mut self, id: u64, text: &[u8], score: f32, kind: i32) -> bool {
        if id >= self.texts.len() as u64 {
            return false;
        }
        let id = id as usize;
        self.texts[id] = text.to_vec();
        (self.scores[id], self.types[id]) = (score, kind);
        true
    }
}

/// True for texts that some models fail to mark as special (`does_token_look_special`).
fn looks_special(text: &str) -> bool {
    matches!(text, "<pad>" | "<mask>" | "<2mass>" | "[@BOS@]")
        || text.starts_with("<|") && text.ends_with("|>")
        || text.starts_with("<｜") && text.ends_with("｜>")
        || text.starts_with("<unused") && text.ends_with('>')
}

/// A token added to the vocabulary.
struct Added {
    id: u64,
    text: String,
    special: bool,
    normalized: bool,
}

impl Files {
    /// `added_tokens_decoder` of tokenizer_config.json.
    fn decoder(&self) -> Result<Vec<Added>> {
        let Some(config) = &self.config else { return Ok(Vec::new()) };
        let Some(map) = config.object("added_tokens_decoder")? else { return Ok(Vec::new()) };
        let mut out = Vec::new();
        for (id, entry) in map {
            let wrong = || config.error("added_tokens_decoder", "expected ids and objects with `content`");
            let id: u64 = id.parse().map_err(|_| wrong())?;
            out.push(added(entry, Some(id)).ok_or_else(wrong)?);
        }
        Ok(out)
    }
    /// `added_tokens` of tokenizer.json.
    fn added(&self) -> Result<Vec<Added>> {
        let Some(tokenizer) = &self.tokenizer else { return Ok(Vec::new()) };
        let tokenizer = &tokenizer.object;
        let list = tokenizer.array("added_tokens")?.map_or(&[][..], Vec::as_slice);
        let wrong = || tokenizer.error("added_tokens", "expected objects with `id` and `content`");
        list.iter().map(|entry| added(entry, None).ok_or_else(wrong)).collect()
    }
}

fn added(entry: &serde_json::Value, id: Option<u64>) -> Option<Added> {
    let is =
        |key: &str, default: bool| entry.get(key).and_then(serde_json::Value::as_bool).unwrap_or(default);
    let special = is("special", false);
    Some(Added {
        id: id.or_else(|| entry.get("id")?.as_u64())?,
        text: entry.get("content")?.as_str()?.to_owned(),
        special,
        normalized: is("normalized", !special),
    })
}
