//! The vocabulary inside libllama: built from checked keys, and called within what was checked.

use std::ffi::{CStr, CString};
use std::ops::Range;
use std::path::Path;
use std::ptr::NonNull;

use ropewalk_core::tokenizer::Places;

use super::check::{Facts, SlowRuns, Tokenizer};
use super::specials::{Special, Specials};
use crate::{sys, Error, Result, Token};
use ggml::logging;
use ggml::machine::memory_available;
use gguf::{Array, Value};

/// Texts up to this many bytes are tokenized on the caller's stack; see `on_deep_stack`.
const SHALLOW: usize = 1 << 10;
/// Stack that libllama's pre-tokenizers may need per character of an unbroken run: `std::regex` recurses for
/// each, and was seen to take 327 bytes.
const STACK_PER_CHAR: usize = 1 << 10;
/// Most characters of an unbroken run. The stack is address space, but what is used of it becomes memory: a
/// third of a GiB for such a run.
const MAX_RUN: usize = 1 << 20;
/// Most memory that libllama takes for each byte of a text: copies of it, and tokens.
const MEMORY_PER_BYTE: u64 = 1 << 5;
/// Most memory for each character that may begin a word (two strings, in vectors that grow to twice their size), and for
/// each byte of the longest line, which is one word to some pre-tokenizers (symbols, and pairs of them to merge).
const MEMORY_PER_WORD: u64 = 1 << 8;
/// Memory that is there, so that most texts are tokenized without a look at what is free.
const LITTLE: u64 = 1 << 26;

/// An owned libllama model that holds nothing but a vocabulary.
#[derive(Debug)]
pub(super) struct Model(NonNull<sys::llama_model>);

// SAFETY: the model is only freed (once, in drop) and read through `Handle`; libllama keeps no thread-local
// state in it.
unsafe impl Send for Model {}
// SAFETY: see `Handle`: all calls on the vocabulary are const.
unsafe impl Sync for Model {}

impl Drop for Model {
    fn drop(&mut self) {
        // SAFETY: the pointer came from llama_model_init_from_user and is freed nowhere else.
        unsafe { sys::llama_model_free(self.0.as_ptr()) };
    }
}

/// A gguf_context being filled.
struct Context(NonNull<sys::gguf_context>);

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: the pointer came from gguf_init_empty and is freed nowhere else.
        unsafe { sys::gguf_free(self.0.as_ptr()) };
    }
}

impl Context {
    fn set(&mut self, key: &CStr, value: &Value) {
        let (ctx, k) = (self.0.as_ptr(), key.as_ptr());
        macro_rules! set {
            ($set:ident, $value:expr) => {
                // SAFETY: the context is valid, the key is NUL-terminated and none of the reserved ones
                // (`general.alignment`), texts are NUL-terminated, and the setters copy what they are given.
                unsafe { sys::$set(ctx, k, $value) }
            };
        }
        match value {
            Value::U8(v) => set!(gguf_set_val_u8, *v),
            Value::I8(v) => set!(gguf_set_val_i8, *v),
            Value::U16(v) => set!(gguf_set_val_u16, *v),
            Value::I16(v) => set!(gguf_set_val_i16, *v),
            Value::U32(v) => set!(gguf_set_val_u32, *v),
            Value::I32(v) => set!(gguf_set_val_i32, *v),
            Value::F32(v) => set!(gguf_set_val_f32, *v),
            Value::U64(v) => set!(gguf_set_val_u64, *v),
            Value::I64(v) => set!(gguf_set_val_i64, *v),
            Value::F64(v) => set!(gguf_set_val_f64, *v),
            Value::Bool(v) => set!(gguf_set_val_bool, *v),
            Value::String(v) => {
                let v = c_string(v);
                set!(gguf_set_val_str, v.as_ptr())
            }
            Value::Array(Array::String(v)) => {
                let strings: Vec<CString> = v.iter().map(|s| c_string(s)).collect();
                let mut ptrs: Vec<_> = strings.iter().map(|s| s.as_ptr()).collect();
                // SAFETY: as above; every pointer is a NUL-terminated string that outlives the call.
                unsafe { sys::gguf_set_arr_str(ctx, k, ptrs.as_mut_ptr(), ptrs.len()) }
            }
            Value::Array(Array::I32(v)) => self.array(key, sys::GGUF_TYPE_INT32, v),
            Value::Array(Array::U32(v)) => self.array(key, sys::GGUF_TYPE_UINT32, v),
            Value::Array(Array::F32(v)) => self.array(key, sys::GGUF_TYPE_FLOAT32, v),
            Value::Array(Array::U8(v)) => self.array(key, sys::GGUF_TYPE_UINT8, v),
            Value::Array(Array::I8(v)) => self.array(key, sys::GGUF_TYPE_INT8, v),
            // No tokenizer of libllama reads arrays of other types.
            Value::Array(_) => {}
        }
    }

    fn array<T: Copy>(&mut self, key: &CStr, ty: sys::gguf_type, values: &[T]) {
        // SAFETY: called with the Rust type of the same size as `ty`; the call copies `len` elements of it.
        unsafe {
            sys::gguf_set_arr_data(self.0.as_ptr(), key.as_ptr(), ty, values.as_ptr().cast(), values.len())
        };
    }
}

/// The bytes up to the first NUL, which is where libllama ends its strings.
fn c_string(s: &[u8]) -> CString {
    let end = s.iter().position(|&b| b == 0).unwrap_or(s.len());
    CString::new(&s[..end]).unwrap_or_default()
}

/// Hands the tokenizer keys (and no others) to libllama.
pub(super) fn load(origin: &Path, metadata: &[(String, Value)]) -> Result<Model> {
    logging::install();
    let error = |what: &str| Error::Vocab(format!("{}: tokenizer: {what}", origin.display()));
    // SAFETY: no preconditions.
    let ctx = NonNull::new(unsafe { sys::gguf_init_empty() }).ok_or_else(|| error("out of memory"))?;
    let mut ctx = Context(ctx);
    for (key, value) in metadata {
        let wanted = key.starts_with("tokenizer.ggml.") || key == "general.name";
        if let (true, Ok(key)) = (wanted, CString::new(key.as_bytes())) {
            ctx.set(&key, value);
        }
    }
    // A vocabulary does not depend on the architecture, but for two encoders whose mask token eats blanks;
    // libllama's not knowing one is no reason to refuse its tokenizer.
    let arch = metadata.iter().find(|(k, _)| k == "general.architecture").map(|(_, v)| v);
    let special = matches!(arch, Some(Value::String(a)) if a == b"nomic-bert-moe" || a == b"jina-bert-v3");
    let llama = Value::String(b"llama".to_vec());
    ctx.set(c"general.architecture", arch.filter(|_| special).unwrap_or(&llama));

    // SAFETY: no preconditions.
    let mut params = unsafe { sys::llama_model_default_params() };
    // No devices: otherwise every GPU would be initialized to read a list of words.
    let mut devices = [std::ptr::null_mut()];
    params.devices = devices.as_mut_ptr();
    params.n_gpu_layers = 0;
    params.vocab_only = true;
    logging::clear_errors();
    // SAFETY: the context is valid for the call and holds no tensors, so the tensor callback is never used
    // (vocab_only); `devices` is null-terminated and copied. Keys that would make it abort were refused by
    // `check::inspect`.
    let model =
        unsafe { sys::llama_model_init_from_user(ctx.0.as_ptr(), None, std::ptr::null_mut(), params) };
    NonNull::new(model).map(Model).ok_or_else(|| error(&logging::errors_or("libllama refused it")))
}

/// Calls on a vocabulary, each guarded by what was learned when its keys were checked.
#[derive(Debug)]
pub(crate) struct Handle {
    vocab: NonNull<sys::llama_vocab>,
    pub(super) facts: Facts,
    specials: Specials,
}

// SAFETY: the vocabulary is never written after loading: libllama's tokenizers build a session on the stack
// per call and read `id_to_token`, `token_to_id`, `bpe_ranks` and the piece cache through const methods;
// function-local statics are initialized once under the language's lock. The log callback is ours and
// thread-safe.
unsafe impl Send for Handle {}
// SAFETY: as above.
unsafe impl Sync for Handle {}

impl Handle {
    /// # Safety
    /// `vocab` must stay valid as long as the handle, and come from keys that `check::inspect` passed as
    /// `facts`.
    pub(super) unsafe fn new(vocab: NonNull<sys::llama_vocab>, facts: Facts) -> Handle {
        let specials = Specials::new(Vec::new());
        let handle = Handle { vocab, facts, specials };
        let specials = Specials::new(handle.find_specials());
        Handle { specials, ..handle }
    }

    /// The tokens that libllama cuts out of texts; none where a text may not be cut at them.
    fn find_specials(&self) -> Vec<Special> {
        let mut found = Vec::new();
        if !matches!(self.facts.kind, Tokenizer::Spm | Tokenizer::Bpe) {
            return found;
        }
        let parsed = sys::LLAMA_TOKEN_ATTR_CONTROL | sys::LLAMA_TOKEN_ATTR_UNKNOWN;
        let mut all: sys::llama_token_attr = 0;
        for token in 0..self.facts.n_tokens as Token {
            // SAFETY: the vocabulary is valid, and has this token.
            let attr = unsafe { sys::llama_vocab_get_attr(self.raw(), token) };
            if attr & (parsed | sys::LLAMA_TOKEN_ATTR_USER_DEFINED) == 0 {
                continue;
            }
            // SAFETY: as above; the text ends in NUL, and lives as long as the vocabulary.
            let text = unsafe { CStr::from_ptr(sys::llama_vocab_get_text(self.raw(), token)) };
            found.push(Special { text: text.to_bytes().to_vec(), always: attr & parsed == 0 });
            all |= attr;
        }
        // Some take the white space before or after them out of the text, and with it the start of others.
        let blank = |s: &Special| s.text.iter().any(|b| matches!(b, b'\t'..=b'\r' | b' '));
        let strips = |side: sys::llama_token_attr| all & side != 0;
        if strips(sys::LLAMA_TOKEN_ATTR_LSTRIP)
            || (strips(sys::LLAMA_TOKEN_ATTR_RSTRIP) && found.iter().any(blank))
        {
            found.clear();
        }
        found
    }

    /// The vocabulary of a loaded model.
    pub(super) fn of(model: &Model) -> Option<NonNull<sys::llama_vocab>> {
        // SAFETY: the model is valid; its vocabulary lives as long.
        NonNull::new(unsafe { sys::llama_model_get_vocab(model.0.as_ptr()) }.cast_mut())
    }

    pub(crate) fn raw(&self) -> *const sys::llama_vocab {
        self.vocab.as_ptr()
    }

    fn is_token(&self, token: Token) -> bool {
        usize::try_from(token).is_ok_and(|t| t < self.facts.n_tokens)
    }

    fn check_token(&self, token: Token) -> Result<()> {
        if self.is_token(token) {
            return Ok(());
        }
        Err(Error::Argument(format!("token {token} is not in the vocabulary of {}", self.facts.n_tokens)))
    }

    /// A special token; libllama answers -1 for none.
    pub(super) fn special(
        &self,
        which: unsafe extern "C" fn(*const sys::llama_vocab) -> Token,
    ) -> Option<Token> {
        // SAFETY: the vocabulary is valid; callers pass libllama's own accessors, which read one field.
        Some(unsafe { which(self.raw()) }).filter(|&t| self.is_token(t))
    }

    /// A yes or no about the vocabulary.
    pub(super) fn flag(&self, which: unsafe extern "C" fn(*const sys::llama_vocab) -> bool) -> bool {
        // SAFETY: as in `special`.
        unsafe { which(self.raw()) }
    }

    pub(super) fn is_eog(&self, token: Token) -> bool {
        // SAFETY: the vocabulary is valid; any number may be asked about (a set lookup).
        let known = || unsafe { sys::llama_vocab_is_eog(self.raw(), token) };
        self.is_token(token) && (self.facts.ends.contains(&token) || known())
    }

    pub(crate) fn tokenize(&self, text: &str, add_special: bool, parse_special: bool) -> Result<Vec<Token>> {
        if i32::try_from(text.len()).is_err() {
            let what = format!("text of {} bytes; at most 2 GiB can be tokenized at once", text.len());
            return Err(Error::Vocab(what));
        }
        if add_special {
            self.check_ends()?;
        }
        if let Some(c) = self.facts.gaps.as_ref().and_then(|g| g.first_unknown(text)) {
            return Err(Error::Vocab(format!("the vocabulary has no tokens for the character {c:?}")));
        }
        let call = |text: &str, add_special: bool| {
            let len = text.len() as i32;
            // A token per three bytes fits most texts; libllama answers with the size needed when it does
            // not.
            let mut tokens: Vec<Token> = vec![0; text.len() / 3 + 16];
            for _ in 0..2 {
                let room = tokens.len() as i32;
                // SAFETY: `len` and `room` are the lengths of the two buffers (room < 2^31 as text.len() is).
                // What makes this throw (unknown bytes, a broken normalization map, missing BOS) was excluded
                // above or on loading.
                let n = unsafe {
                    let (text, out) = (text.as_ptr().cast(), tokens.as_mut_ptr());
                    sys::llama_tokenize(self.raw(), text, len, out, room, add_special, parse_special)
                };
                if n >= 0 {
                    tokens.truncate(n as usize);
                    return Ok(tokens);
                }
                if n == i32::MIN {
                    break;
                }
                tokens.resize(n.unsigned_abs() as usize, 0);
            }
            Err(Error::Vocab(format!("a text of {} bytes makes too many tokens", text.len())))
        };
        let all = || {
            let cuts = self.specials.cuts(text, parse_special);
            let Some(&first) = cuts.first() else { return call(text, add_special) };
            let mut tokens = call(&text[..first], add_special)?;
            // The end of the whole text.
            let ends = add_special && self.flag(sys::llama_vocab_get_add_eos);
            let end = if ends { tokens.pop() } else { None };
            for (i, &from) in cuts.iter().enumerate() {
                let to = cuts.get(i + 1).copied().unwrap_or(text.len());
                tokens.extend(call(&text[from..to], false)?);
            }
            tokens.extend(end);
            Ok(tokens)
        };
        let tokens = match self.facts.kind {
            Tokenizer::Bpe => on_deep_stack(text, &self.facts, all)?,
            _ => {
                check_memory(text, 0)?;
                all()?
            }
        };
        // A vocabulary without an unknown token answers -1 for what it does not know.
        if let Some(at) = tokens.iter().position(|&t| !self.is_token(t)) {
            return Err(Error::Vocab(format!(
                "the vocabulary has no token for a part of the text (token {at} of it)"
            )));
        }
        Ok(tokens)
    }

    /// libllama asserts that the tokens it is to put around a text exist.
    fn check_ends(&self) -> Result<()> {
        let bos = self.special(sys::llama_vocab_bos).is_some();
        let eos = self.special(sys::llama_vocab_eos).is_some();
        let (need_bos, need_eos) =
            (self.flag(sys::llama_vocab_get_add_bos), self.flag(sys::llama_vocab_get_add_eos));
        let missing = match self.facts.kind {
            Tokenizer::Wpm if !bos => "a beginning-of-text token",
            Tokenizer::Wpm if self.special(sys::llama_vocab_sep).is_none() => "a separator token",
            Tokenizer::Wpm | Tokenizer::Test | Tokenizer::None => return Ok(()),
            _ if need_bos && !bos => "a beginning-of-text token",
            _ if need_eos && !eos => "an end-of-text token",
            _ => return Ok(()),
        };
        Err(Error::Vocab(format!("the vocabulary is to add {missing} and has none")))
    }

    /// Appends the bytes of a token to `out`.
    pub(super) fn piece(&self, token: Token, special: bool, out: &mut Vec<u8>) -> Result<()> {
        self.check_token(token)?;
        let start = out.len();
        let mut room = 32;
        for _ in 0..2 {
            out.resize(start + room, 0);
            let buf = out[start..].as_mut_ptr().cast();
            // SAFETY: the token is in the vocabulary, and `buf` has room for `room` bytes.
            let n = unsafe { sys::llama_token_to_piece(self.raw(), token, buf, room as i32, 0, special) };
            if n >= 0 {
                out.truncate(start + n as usize);
                return Ok(());
            }
            room = n.unsigned_abs() as usize;
        }
        out.truncate(start);
        Err(Error::Vocab(format!("token {token} has no text")))
    }

    /// The bytes of `text` that each of its tokens stands for.
    pub(super) fn places(&self, text: &str, tokens: &[Token]) -> Result<Vec<Range<usize>>> {
        let mut places = Places::new(text, self.facts.adds_blank, self.facts.kind == Tokenizer::Bpe);
        let (mut piece, mut found) = (Vec::new(), Vec::with_capacity(tokens.len()));
        for &token in tokens {
            // Control tokens show their names where they are asked to alone.
            piece.clear();
            self.piece(token, false, &mut piece)?;
            let mut special = self.facts.user_defined.contains(&token);
            if piece.is_empty() {
                self.piece(token, true, &mut piece)?;
                special |= !piece.is_empty();
            }
            match places.next(&piece, special) {
                Some(place) => found.push(place),
                None => break,
            }
        }
        if found.len() < tokens.len() || !places.at_end() {
            return Err(Error::Vocab(format!(
                "token {} of {} is not found in the text it was made of: the vocabulary changes texts",
                found.len(),
                tokens.len()
            )));
        }
        Ok(found)
    }

    pub(super) fn detokenize(&self, mut tokens: &[Token], special: bool) -> Result<Vec<u8>> {
        // A BOS that is not to be shown would take the place of the first word, whose blank is dropped.
        if let (false, Some((first, rest))) = (special, tokens.split_first()) {
            if self.special(sys::llama_vocab_bos) == Some(*first) {
                tokens = rest;
            }
        }
        let mut size = 0usize;
        for &t in tokens {
            self.check_token(t)?;
            // SAFETY: the token is in the vocabulary; with no room nothing is written and the size comes back
            // negated.
            let n = unsafe { sys::llama_token_to_piece(self.raw(), t, std::ptr::null_mut(), 0, 0, special) };
            size = size.saturating_add(n.unsigned_abs() as usize);
        }
        // libllama adds sizes up in an i32.
        let (Ok(n_tokens), Ok(room)) = (i32::try_from(tokens.len()), i32::try_from(size)) else {
            return Err(Error::Vocab(format!(
                "a text of {size} bytes is too long to be put together at once"
            )));
        };
        let mut out = vec![0u8; size];
        // SAFETY: all tokens are in the vocabulary; both lengths are those of the buffers.
        let n = unsafe {
            let (ids, buf) = (tokens.as_ptr(), out.as_mut_ptr().cast());
            sys::llama_detokenize(self.raw(), ids, n_tokens, buf, room, false, special)
        };
        let n = usize::try_from(n).ok().filter(|&n| n <= size);
        out.truncate(n.ok_or_else(|| Error::Vocab("the tokens could not be put together".into()))?);
        Ok(out)
    }
}

/// Runs `call` where an unbroken run of the text cannot overflow the stack: libllama splits texts for BPE by
/// `std::regex` for most pre-tokenizers, which recurses once per matched character. Matches end at the end of
/// a word (of a line, for one of them) or of a run of white space, so the longest of those, and what it touches,
/// bounds the depth. Outside of ASCII, not every expression knows white space.
fn on_deep_stack<T: Send>(text: &str, facts: &Facts, call: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    if text.len() <= SHALLOW {
        return call();
    }
    let line = text.as_bytes().split(|&b| b == b'\n').map(<[u8]>::len).max().unwrap_or(0);
    if let Some(runs) = facts.slow_runs {
        check_runs(text, runs)?;
    }
    let longest = |ends: fn(char) -> bool| text.split(ends).map(|run| run.chars().count()).max().unwrap_or(0);
    let word = if facts.joins_words { line } else { longest(|c| c.is_ascii_whitespace()) };
    let run = word + longest(|c| !c.is_whitespace());
    if run > MAX_RUN {
        let what = format!("text: expected at most {MAX_RUN} characters without a break, found {run}");
        return Err(Error::Vocab(what));
    }
    check_memory(text, line)?;
    if run <= SHALLOW {
        return call();
    }
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().stack_size(run * STACK_PER_CHAR + (1 << 20));
        let thread = thread.spawn_scoped(scope, call);
        match thread.map_err(|e| Error::Vocab(format!("no thread to tokenize with: {e}")))?.join() {
            Ok(result) => result,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })
}

/// Refuses runs that take a pre-tokenizer longer than one run of the greatest length.
fn check_runs(text: &str, slow: &SlowRuns) -> Result<()> {
    let lengths = text.split(|c: char| !(slow.has)(c)).map(|run| run.chars().count() as u64);
    // Shorter runs take time in proportion to the text, however many there are.
    let squares: u64 = lengths.filter(|&n| n > slow.longest / 32).map(|n| n * n).sum();
    if squares <= slow.longest * slow.longest {
        return Ok(());
    }
    let (name, longest, found) = (slow.name, slow.longest, squares.isqrt());
    Err(Error::Vocab(format!(
        "text: expected runs of {name} that take no longer than one of {longest}, found those that take as long as \
         one of {found}"
    )))
}

/// libllama ends the program where it gets no memory.
fn check_memory(text: &str, line: usize) -> Result<()> {
    let needed = |words: usize| MEMORY_PER_BYTE * text.len() as u64 + MEMORY_PER_WORD * (words + line) as u64;
    if needed(text.len()) <= LITTLE {
        return Ok(());
    }
    let needed = needed(text.chars().filter(|c| !c.is_lowercase()).count());
    match memory_available().filter(|&free| needed > free) {
        None => Ok(()),
        Some(free) => Err(Error::Vocab(format!(
            "text: {} bytes may need {} MiB of memory to tokenize, {} MiB is free",
            text.len(),
            needed >> 20,
            free >> 20
        ))),
    }
}
