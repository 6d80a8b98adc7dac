//! Checks of a file's tokenizer keys before libllama reads them.
//!
//! libllama throws on many bad keys, and loading turns that into an error. But it aborts the process on some
//! keys (duplicate tokens, byte tokens in a BERT vocabulary), and throws for others only when a text is
//! tokenized, where nothing catches. Those are refused here. The reference is `src/llama-vocab.cpp` of the
//! libllama in use.
//!
//! Tokenizers of models that ropewalk does not run (T5's unigram, RWKV, PLaMo-2) are refused by name: each
//! would need separate checks.
#![forbid(unsafe_code)]

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::path::Path;

use crate::{Error, Result, Token};
use gguf::{Array, Value};

/// Tokens a vocabulary may have; the largest published ones have about a million.
const MAX_TOKENS: usize = 1 << 22;
/// BPE merges a vocabulary may have.
const MAX_MERGES: usize = 1 << 24;
/// Bytes of one token. Published vocabularies stay below a few hundred.
const MAX_TOKEN_BYTES: usize = 1 << 16;
/// Bytes that the readable forms of broken BPE tokens may take: each bad character repeats its whole token.
const MAX_BROKEN_BYTES: usize = 1 << 28;

/// Tokens that may end a text.
const MAX_ENDS: usize = 1 << 10;

/// `tokenizer.ggml.token_type` numbers that matter here.
const TYPE_NORMAL: i32 = 1;
const TYPE_USER_DEFINED: i32 = 4;
const TYPE_UNUSED: i32 = 5;
const TYPE_BYTE: i32 = 6;
/// Unknown, control and user-defined tokens are searched for in the text itself.
const TYPES_SPECIAL: std::ops::RangeInclusive<i32> = 2..=4;

/// The algorithm of a tokenizer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Tokenizer {
    /// No vocabulary: a model that is fed token numbers.
    None,
    Spm,
    Wpm,
    Bpe,
    Test,
}

const PRE: &str = "tokenizer.ggml.pre";

/// The values of `tokenizer.ggml.model` that are accepted.
const TOKENIZERS: &[(&str, Tokenizer)] = &[
    ("no_vocab", Tokenizer::None),
    ("none", Tokenizer::None),
    ("llama", Tokenizer::Spm),
    ("bert", Tokenizer::Wpm),
    ("gpt2", Tokenizer::Bpe),
    ("hybriddna", Tokenizer::Bpe),
    ("whitespace", Tokenizer::Bpe),
    ("gemma4", Tokenizer::Bpe),
    ("test", Tokenizer::Test),
];

/// Facts about a vocabulary that passed its checks, which tokenizing with it relies on.
#[derive(Debug)]
pub(super) struct Facts {
    pub kind: Tokenizer,
    pub n_tokens: usize,
    /// Characters a SentencePiece vocabulary cannot express, if there are any: libllama throws on meeting
    /// one.
    pub gaps: Option<Gaps>,
    /// The token that ends a turn, going by its text.
    pub eot: Option<Token>,
    /// Tokens that end a text, in addition to those that libllama knows.
    pub ends: Vec<Token>,
    /// Tokens reserved for uses of one's own, ascending.
    pub unused: Vec<Token>,
    /// True if a space is put before texts.
    pub adds_blank: bool,
    /// True if the pre-tokenizer matches several words of a line at once.
    pub joins_words: bool,
    /// Runs that take the pre-tokenizer the square of their length, if there are any.
    pub slow_runs: Option<&'static SlowRuns>,
    /// Tokens cut out of every text by their names.
    pub user_defined: HashSet<Token>,
}

/// Characters in runs that an expression of a pre-tokenizer tries to match from each of them, to the end of the run.
#[derive(Debug)]
pub(super) struct SlowRuns {
    /// The characters, for errors.
    pub name: &'static str,
    pub has: fn(char) -> bool,
    /// Characters of a run that takes about 2 s.
    pub longest: u64,
}

/// By the names of pre-tokenizers. The expressions are `\s+$`, where a run does not end its line; a lookahead for
/// digits in threes; and `\s*[\r\n]+`, tried again after every 512 blanks. All others of libllama take a run once.
const SLOW_RUNS: &[(&str, SlowRuns)] = &[
    ("deepseek-llm", SlowRuns { name: "blanks", has: is_blank, longest: 1 << 13 }),
    ("superbpe", SlowRuns { name: "digits", has: |c| c.is_ascii_digit(), longest: 1 << 13 }),
    ("jais-2", SlowRuns { name: "blanks", has: is_blank, longest: 1 << 17 }),
];

fn is_blank(c: char) -> bool {
    c.is_whitespace() && c != '\n' && c != '\r'
}

/// A SentencePiece vocabulary without a token for every byte.
#[derive(Debug)]
pub(super) struct Gaps {
    byte_known: Box<[bool; 256]>,
    chars: HashSet<char>,
}

impl Gaps {
    /// The first character of the text that has neither a token nor tokens for its bytes.
    pub(super) fn first_unknown(&self, text: &str) -> Option<char> {
        // A blank is looked up as U+2581, and one may be put in front.
        std::iter::once(' ').chain(text.chars()).map(|c| if c == ' ' { '\u{2581}' } else { c }).find(|c| {
            let mut buf = [0; 4];
            !self.chars.contains(c) && !c.encode_utf8(&mut buf).bytes().all(|b| self.byte_known[b as usize])
        })
    }
}

/// The metadata of one file, read with errors that name the file and the key.
struct Metadata<'a> {
    origin: &'a Path,
    metadata: &'a [(String, Value)],
}

impl<'a> Metadata<'a> {
    fn get(&self, key: &str) -> Option<&'a Value> {
        self.metadata.iter().find(|(k, _)| k == key).map(|(_, v)| v)
    }
    fn error(&self, key: &str, what: impl std::fmt::Display) -> Error {
        Error::Vocab(format!("{}: {key}: {what}", self.origin.display()))
    }
    fn string(&self, key: &str) -> Result<Option<&'a [u8]>> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::String(s)) => Ok(Some(until_nul(s))),
            Some(v) => Err(self.error(key, format_args!("expected a string, found {}", v.describe()))),
        }
    }
    fn strings(&self, key: &str, max: usize) -> Result<Option<&'a [Vec<u8>]>> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Array(Array::String(a))) if a.len() <= max => Ok(Some(a)),
            Some(Value::Array(Array::String(a))) => {
                Err(self.error(key, format_args!("expected at most {max} entries, found {}", a.len())))
            }
            Some(v) => {
                Err(self.error(key, format_args!("expected an array of strings, found {}", v.describe())))
            }
        }
    }
    /// Refuses an array shorter than the list of tokens it describes.
    fn long_enough(&self, key: &str, n: usize, n_tokens: usize) -> Result<()> {
        if n < n_tokens {
            return Err(
                self.error(key, format_args!("expected {n_tokens} entries, one per token, found {n}"))
            );
        }
        Ok(())
    }
}

/// Checks the tokenizer keys of `metadata`; `origin` is named in errors.
pub(super) fn inspect(origin: &Path, metadata: &[(String, Value)]) -> Result<Facts> {
    let keys = Metadata { origin, metadata };
    const MODEL: &str = "tokenizer.ggml.model";
    let name = keys.string(MODEL)?.ok_or_else(|| keys.error(MODEL, "missing; the file has no tokenizer"))?;
    let Some(&(name, kind)) = TOKENIZERS.iter().find(|(n, _)| n.as_bytes() == name) else {
        let known: Vec<&str> = TOKENIZERS.iter().map(|(n, _)| *n).collect();
        let found = String::from_utf8_lossy(&name[..name.len().min(40)]);
        return Err(keys.error(
            MODEL,
            format_args!(
                "expected a tokenizer that ropewalk supports ({}), found '{}'",
                known.join(", "),
                found.escape_debug()
            ),
        ));
    };
    if kind == Tokenizer::None {
        return Ok(Facts {
            kind,
            n_tokens: declared_size(&keys)?,
            gaps: None,
            eot: None,
            ends: Vec::new(),
            unused: Vec::new(),
            adds_blank: false,
            joins_words: false,
            slow_runs: None,
            user_defined: HashSet::new(),
        });
    }

    let tokens = check_tokens(&keys)?;
    let types = check_types(&keys, tokens.len())?;
    check_scores(&keys, tokens.len())?;
    check_special_ids(&keys, tokens.len())?;
    let ends = find_ends(&keys, tokens.len())?;
    check_texts(&keys, kind, &tokens, types)?;
    let mut gaps = None;
    match kind {
        Tokenizer::Bpe => check_bpe(&keys, name, &tokens, types)?,
        Tokenizer::Spm => gaps = find_gaps(&tokens),
        Tokenizer::Wpm | Tokenizer::Test | Tokenizer::None => {}
    }
    let (eot, unused) = (find_eot(&keys, &tokens), find_unused(&tokens, types));
    // What is no bool here ended the load.
    let blank = keys.get("tokenizer.ggml.add_space_prefix") != Some(&Value::Bool(false));
    let pre = if kind == Tokenizer::Bpe { keys.string(PRE)? } else { None };
    let own = types.unwrap_or_default().iter().enumerate().filter(|(_, ty)| **ty == TYPE_USER_DEFINED);
    Ok(Facts {
        kind,
        n_tokens: tokens.len(),
        gaps,
        eot,
        ends,
        unused,
        adds_blank: kind == Tokenizer::Spm && blank,
        joins_words: pre == Some(&b"exaone-moe"[..]),
        slow_runs: SLOW_RUNS.iter().find(|(name, _)| pre == Some(name.as_bytes())).map(|(_, runs)| runs),
        user_defined: own.map(|(i, _)| i as Token).collect(),
    })
}

/// Tokens of the type for unused ones, which fill up the vocabularies of Qwen 2, and the reserved special
/// tokens of Llama 3 and Mistral by their texts.
fn find_unused(tokens: &[Cow<'_, [u8]>], types: Option<&[i32]>) -> Vec<Token> {
    let unused = |i: usize| {
        let reserved =
            [&b"<|reserved_special_token_"[..], b"<SPECIAL_"].iter().any(|r| tokens[i].starts_with(r));
        reserved || types.is_some_and(|t| t[i] == TYPE_UNUSED)
    };
    (0..tokens.len()).filter(|&i| unused(i)).map(|i| i as Token).collect()
}

/// Texts of end-of-turn tokens, the more telling first.
const EOT_TEXTS: &[&str] = &[
    "<|eot_id|>",
    "<|im_end|>",
    "<end_of_turn>",
    "<turn|>",
    "<|end|>",
    "<end_of_utterance>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
];

/// libllama, when no key says, takes whichever of a similar list its hash table has first, `<|endoftext|>`
/// included.
fn find_eot(keys: &Metadata, tokens: &[Cow<[u8]>]) -> Option<Token> {
    if keys.get("tokenizer.ggml.eot_token_id").is_some() {
        return None;
    }
    let rank = |t: &[u8]| EOT_TEXTS.iter().position(|e| e.as_bytes() == t);
    let (_, id) = tokens.iter().enumerate().filter_map(|(i, t)| Some((rank(t)?, i))).min()?;
    Token::try_from(id).ok()
}

/// The `vocab_size` a file without a vocabulary declares for its architecture; 0 when it does not say.
fn declared_size(keys: &Metadata) -> Result<usize> {
    let arch = keys.string("general.architecture")?.unwrap_or_default();
    let key = format!("{}.vocab_size", String::from_utf8_lossy(arch));
    match keys.get(&key) {
        None => Ok(0),
        Some(Value::U32(n)) if *n <= i32::MAX as u32 => Ok(*n as usize),
        Some(v) => Err(keys.error(&key, format_args!("expected a u32 below 2^31, found {}", v.describe()))),
    }
}

const TOKENS: &str = "tokenizer.ggml.tokens";

/// The tokens as libllama reads them (C strings; an empty one gets a name), all different.
fn check_tokens<'a>(keys: &Metadata<'a>) -> Result<Vec<Cow<'a, [u8]>>> {
    let raw = keys.strings(TOKENS, MAX_TOKENS)?.ok_or_else(|| keys.error(TOKENS, "missing"))?;
    if raw.is_empty() {
        return Err(keys.error(TOKENS, "the vocabulary is empty"));
    }
    let tokens: Vec<Cow<[u8]>> = raw
        .iter()
        .enumerate()
        .map(|(i, t)| match until_nul(t) {
            [] => Cow::Owned(format!("[EMPTY_{i}]").into_bytes()),
            t => Cow::Borrowed(t),
        })
        .collect();
    let mut seen = HashMap::with_capacity(tokens.len());
    for (i, t) in tokens.iter().enumerate() {
        if t.len() > MAX_TOKEN_BYTES {
            let what = format_args!("token {i} has {} bytes, more than {MAX_TOKEN_BYTES}", t.len());
            return Err(keys.error(TOKENS, what));
        }
        if let Some(first) = seen.insert(&**t, i) {
            return Err(keys.error(TOKENS, format_args!("token {i} repeats token {first} ({})", quoted(t))));
        }
    }
    Ok(tokens)
}

fn check_types<'a>(keys: &Metadata<'a>, n_tokens: usize) -> Result<Option<&'a [i32]>> {
    const KEY: &str = "tokenizer.ggml.token_type";
    match keys.get(KEY) {
        None => Ok(None),
        Some(Value::Array(Array::I32(types))) => {
            keys.long_enough(KEY, types.len(), n_tokens)?;
            Ok(Some(&types[..n_tokens]))
        }
        Some(v) => Err(keys.error(KEY, format_args!("expected an array of i32, found {}", v.describe()))),
    }
}

fn check_scores(keys: &Metadata, n_tokens: usize) -> Result<()> {
    const KEY: &str = "tokenizer.ggml.scores";
    match keys.get(KEY) {
        None => Ok(()),
        Some(Value::Array(Array::I32(scores))) => keys.long_enough(KEY, scores.len(), n_tokens),
        Some(Value::Array(Array::F32(scores))) => {
            keys.long_enough(KEY, scores.len(), n_tokens)?;
            match scores.iter().position(|s| s.is_nan()) {
                Some(i) => Err(keys.error(KEY, format_args!("the score of token {i} is not a number"))),
                None => Ok(()),
            }
        }
        Some(v) => {
            Err(keys.error(KEY, format_args!("expected an array of f32 or i32, found {}", v.describe())))
        }
    }
}

/// libllama replaces an id out of range by a default, which would be some other token: for those that start
/// and end a text that is refused. (Padding ids out of range are common and harmless.)
fn check_special_ids(keys: &Metadata, n_tokens: usize) -> Result<()> {
    for key in ["bos", "eos", "eot", "eom"].map(|k| format!("tokenizer.ggml.{k}_token_id")) {
        match keys.get(&key) {
            Some(Value::U32(id)) if *id as usize >= n_tokens => {
                return Err(keys.error(&key, format_args!("expected a token below {n_tokens}, found {id}")));
            }
            Some(Value::U32(_)) | None => {}
            Some(v) => return Err(keys.error(&key, format_args!("expected a u32, found {}", v.describe()))),
        }
    }
    Ok(())
}

/// The list of ollama's converter, which libllama does not read.
fn find_ends(keys: &Metadata, n_tokens: usize) -> Result<Vec<Token>> {
    const ENDS: &str = "tokenizer.ggml.eos_token_ids";
    let ids: Vec<i64> = match keys.get(ENDS) {
        None => return Ok(Vec::new()),
        Some(Value::Array(array)) if array.len() > MAX_ENDS => {
            let found = array.len();
            return Err(keys.error(ENDS, format_args!("expected at most {MAX_ENDS} entries, found {found}")));
        }
        Some(Value::Array(Array::I32(ids))) => ids.iter().map(|&id| id.into()).collect(),
        Some(Value::Array(Array::U32(ids))) => ids.iter().map(|&id| id.into()).collect(),
        Some(v) => {
            let what = format_args!("expected an array of i32 or u32, found {}", v.describe());
            return Err(keys.error(ENDS, what));
        }
    };
    match ids.iter().find(|&&id| id < 0 || id >= n_tokens as i64) {
        Some(id) => Err(keys.error(ENDS, format_args!("expected tokens below {n_tokens}, found {id}"))),
        None => Ok(ids.into_iter().map(|id| id as Token).collect()),
    }
}

/// Tokens against their types.
fn check_texts(keys: &Metadata, kind: Tokenizer, tokens: &[Cow<[u8]>], types: Option<&[i32]>) -> Result<()> {
    for (i, (t, ty)) in tokens.iter().zip(types.unwrap_or_default()).enumerate() {
        if TYPES_SPECIAL.contains(ty) && std::str::from_utf8(t).is_err() {
            // It is cut out of texts, and would cut them inside a character.
            return Err(
                keys.error(TOKENS, format_args!("special token {i} ({}) is not valid UTF-8", quoted(t)))
            );
        }
        let is_byte_text = t.len() >= 5;
        if *ty == TYPE_BYTE && (kind == Tokenizer::Wpm || !is_byte_text) {
            return Err(
                keys.error(TOKENS, format_args!("byte token {i} ({}) is not of the form <0xHH>", quoted(t)))
            );
        }
    }
    Ok(())
}

fn check_bpe(keys: &Metadata, model: &str, tokens: &[Cow<[u8]>], types: Option<&[i32]>) -> Result<()> {
    const MERGES: &str = "tokenizer.ggml.merges";
    let pre = keys.string(PRE)?.unwrap_or_default();
    match keys.strings(MERGES, MAX_MERGES)? {
        None if pre == b"kimi-k2" && model != "gemma4" => {}
        None => return Err(keys.error(MERGES, "missing")),
        Some(merges) => {
            for (i, m) in merges.iter().enumerate() {
                if !until_nul(m).iter().skip(1).any(|&b| b == b' ') {
                    let what =
                        format_args!("merge {i} ({}) is not two tokens with a blank between", quoted(m));
                    return Err(keys.error(MERGES, what));
                }
            }
        }
    }
    if pre == b"whitespace" && model != "whitespace" {
        // libllama would look up blanks as BPE symbols, which it asserts not to do.
        let what = format_args!("'whitespace' goes with the tokenizer 'whitespace', not '{model}'");
        return Err(keys.error(PRE, what));
    }
    let mut broken = 0usize;
    for (i, t) in tokens.iter().enumerate() {
        if types.is_some_and(|ty| ty[i] != TYPE_NORMAL) {
            continue;
        }
        let bad = match std::str::from_utf8(t) {
            // The alphabet byte-level BPE writes the 256 bytes in.
            Ok(s) => s.chars().filter(|&c| !matches!(c, '!'..='~' | '¡'..='¬' | '®'..='\u{143}')).count(),
            Err(_) => t.len(),
        };
        broken = broken.saturating_add(bad * (t.len() + 20));
        if broken > MAX_BROKEN_BYTES {
            return Err(keys
                .error(TOKENS, format_args!("token {i} ({}) and others are not byte-level BPE", quoted(t))));
        }
    }
    Ok(())
}

fn find_gaps(tokens: &[Cow<[u8]>]) -> Option<Gaps> {
    let known: HashSet<&[u8]> = tokens.iter().map(|t| &**t).filter(|t| t.len() <= 6).collect();
    let mut byte_known = Box::new([false; 256]);
    for b in 0..=255u8 {
        byte_known[b as usize] =
            known.contains(format!("<0x{b:02X}>").as_bytes()) || known.contains(&[b][..]);
    }
    let in_utf8 = |b: usize| !matches!(b, 0xC0 | 0xC1 | 0xF5..=0xFF);
    if (0..256).all(|b| byte_known[b] || !in_utf8(b)) {
        return None;
    }
    let one_char = |t: &&[u8]| {
        let mut chars = std::str::from_utf8(t).ok()?.chars();
        chars.next().filter(|_| chars.next().is_none())
    };
    Some(Gaps { byte_known, chars: known.iter().filter_map(one_char).collect() })
}

/// The bytes before the first NUL, which is where libllama ends its strings.
fn until_nul(s: &[u8]) -> &[u8] {
    &s[..s.iter().position(|&b| b == 0).unwrap_or(s.len())]
}

fn quoted(token: &[u8]) -> String {
    format!("{:?}", String::from_utf8_lossy(&token[..token.len().min(40)]))
}
