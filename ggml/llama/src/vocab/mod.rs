//! The tokenizer of a GGUF file, through libllama (loaded vocab-only): SentencePiece, byte-level BPE and
//! WordPiece.

mod check;
mod native;
mod specials;

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ropewalk_core::tokenizer::{Failure, Tokenizer};
use sha2::{Digest, Sha256};

use crate::{sys, Error, Result, Token};
use gguf::Value;

pub(crate) use native::Handle;

/// A loaded vocabulary. Cheap to clone and to share: it is immutable and `Send + Sync`.
///
/// A file may say that it has none (`tokenizer.ggml.model` is `no_vocab` or `none`): then there is a `Vocab`
/// all the same, which knows how many tokens there are when the file does ([`Vocab::n_tokens`], from
/// `{arch}.vocab_size`), has no special tokens, and answers everything about text with an error that says so.
#[derive(Debug, Clone)]
pub struct Vocab(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    origin: PathBuf,
    n_tokens: usize,
    fingerprint: [u8; 32],
    /// Absent when the file has no vocabulary. Declared before the model it points into, so dropped first.
    handle: Option<Handle>,
    _model: Option<native::Model>,
}

impl Vocab {
    /// Loads the vocabulary of an already validated file. Tokenizer keys are checked here first (libllama
    /// aborts on some of them).
    pub fn load(file: &gguf::File) -> Result<Vocab> {
        Vocab::from_metadata(file.path(), file.metadata())
    }

    /// Loads a vocabulary from the `tokenizer.ggml.*` keys of `metadata`; `origin` is named in errors. Other
    /// keys are not looked at, but for `general.name` and `general.architecture`, to which libllama ties the
    /// quirks of a few models.
    pub fn from_metadata(origin: &Path, metadata: &[(String, Value)]) -> Result<Vocab> {
        let facts = check::inspect(origin, metadata)?;
        let n_tokens = facts.n_tokens;
        let fingerprint = fingerprint(metadata);
        let origin = origin.to_path_buf();
        if facts.kind == check::Tokenizer::None {
            return Ok(Vocab(Arc::new(Inner { origin, n_tokens, fingerprint, handle: None, _model: None })));
        }
        let model = native::load(&origin, metadata)?;
        let vocab =
            Handle::of(&model).ok_or_else(|| Error::Vocab(format!("{}: no vocabulary", origin.display())))?;
        // SAFETY: `Inner` keeps the model as long as the handle, and `facts` are of the keys it was loaded
        // from.
        let handle = unsafe { Handle::new(vocab, facts) };
        Ok(Vocab(Arc::new(Inner {
            origin,
            n_tokens,
            fingerprint,
            handle: Some(handle),
            _model: Some(model),
        })))
    }

    /// Calls on the same keys' vocabulary inside another model of libllama; `None` when there is none.
    ///
    /// # Safety
    /// `vocab` must stay valid as long as the handle, and belong to a model loaded from the keys of
    /// `metadata`.
    pub(crate) unsafe fn handle_on(
        origin: &Path,
        metadata: &[(String, Value)],
        vocab: std::ptr::NonNull<sys::llama_vocab>,
    ) -> Result<Option<Handle>> {
        let facts = check::inspect(origin, metadata)?;
        if facts.kind == check::Tokenizer::None {
            return Ok(None);
        }
        // SAFETY: the caller's promise.
        Ok(Some(unsafe { Handle::new(vocab, facts) }))
    }

    pub(crate) fn handle(&self) -> Result<&Handle> {
        self.0.handle.as_ref().ok_or_else(|| {
            Error::Vocab(format!(
                "{}: the file has no vocabulary, so it cannot read or write text",
                self.0.origin.display()
            ))
        })
    }

    /// Number of tokens; 0 when the file has no vocabulary and does not say.
    pub fn n_tokens(&self) -> usize {
        self.0.n_tokens
    }

    /// SHA-256 of the keys the tokenizer was made from: vocabularies of the same one cut every text alike.
    pub fn fingerprint(&self) -> [u8; 32] {
        self.0.fingerprint
    }

    /// Text to tokens. `add_special`: BOS/EOS as the model's flags say. `parse_special`: text such as
    /// `<|im_start|>` becomes its token.
    ///
    /// Drops bytes for which a byte-level vocabulary has no token, as libllama does (SmolLM2 lacks six control
    /// characters and the first byte of unassigned planes). Errors: a text over 2 GiB, or one that may need more
    /// memory than is free (about 80 bytes for each byte of prose, 300 of digits), for BPE more than 1,048,576 characters
    /// without a break, or runs of blanks or digits that a pre-tokenizer takes seconds for, a character the
    /// vocabulary cannot express, BOS or EOS wanted and missing.
    pub fn tokenize(&self, text: &str, add_special: bool, parse_special: bool) -> Result<Vec<Token>> {
        self.handle()?.tokenize(text, add_special, parse_special)
    }

    /// The bytes of one token; special tokens render only when `special`. A token may hold a part of a
    /// character.
    pub fn piece(&self, token: Token, special: bool) -> Result<Vec<u8>> {
        let mut out = Vec::new();
        self.handle()?.piece(token, special, &mut out)?;
        Ok(out)
    }

    /// Tokens to text, invalid UTF-8 replaced. Unlike pieces in a row it drops the blank SentencePiece models
    /// put in front, and the ones some older models put before punctuation.
    pub fn detokenize(&self, tokens: &[Token], special: bool) -> Result<String> {
        let bytes = self.handle()?.detokenize(tokens, special)?;
        Ok(String::from_utf8(bytes).unwrap_or_else(|e| String::from_utf8_lossy(e.as_bytes()).into_owned()))
    }

    fn special(&self, which: unsafe extern "C" fn(*const sys::llama_vocab) -> Token) -> Option<Token> {
        self.0.handle.as_ref()?.special(which)
    }

    fn flag(&self, which: unsafe extern "C" fn(*const sys::llama_vocab) -> bool) -> bool {
        self.0.handle.as_ref().is_some_and(|h| h.flag(which))
    }

    /// Beginning-of-text token.
    pub fn bos(&self) -> Option<Token> {
        self.special(sys::llama_vocab_bos)
    }

    /// End-of-text token.
    pub fn eos(&self) -> Option<Token> {
        self.special(sys::llama_vocab_eos)
    }

    /// End-of-turn token: the file's, else the one whose text is known to mean that, else what libllama
    /// finds.
    pub fn eot(&self) -> Option<Token> {
        let handle = self.0.handle.as_ref()?;
        handle.facts.eot.or_else(|| handle.special(sys::llama_vocab_eot))
    }

    /// Tokens that no text has and that the vocabulary reserves for uses of one's own, ascending: those of the
    /// type for unused ones (Qwen 2), and reserved special tokens (Llama 3, Mistral).
    pub fn unused(&self) -> &[Token] {
        self.0.handle.as_ref().map_or(&[], |handle| handle.facts.unused.as_slice())
    }

    /// Returns true if generation ends at this token.
    pub fn is_eog(&self, token: Token) -> bool {
        self.0.handle.as_ref().is_some_and(|h| h.is_eog(token))
    }

    /// Returns true if the model wants BOS before a text.
    pub fn add_bos(&self) -> bool {
        self.flag(sys::llama_vocab_get_add_bos)
    }

    /// Returns true if the model wants EOS after a text.
    pub fn add_eos(&self) -> bool {
        self.flag(sys::llama_vocab_get_add_eos)
    }
}

/// Methods of the trait that [`Vocab`] has under the same names.
macro_rules! own {
    ($($name:ident: $type:ty),*) => {
        $(fn $name(&self) -> $type {
            Vocab::$name(self)
        })*
    };
}

impl Tokenizer for Vocab {
    fn tokenize(&self, text: &str, special: bool) -> Result<Vec<Token>, Failure> {
        Ok(Vocab::tokenize(self, text, false, special)?)
    }

    fn places(&self, text: &str, tokens: &[Token]) -> Result<Vec<Range<usize>>, Failure> {
        Ok(self.handle()?.places(text, tokens)?)
    }

    fn unused(&self) -> Vec<Token> {
        Vocab::unused(self).to_vec()
    }

    own! {
        n_tokens: usize, fingerprint: [u8; 32], bos: Option<Token>, eos: Option<Token>, eot: Option<Token>,
        add_bos: bool, add_eos: bool
    }
}

/// SHA-256 of the keys that libllama is given (see [`Vocab::from_metadata`]), sorted by name, so that files
/// listing the same keys in another order have the same fingerprint.
fn fingerprint(metadata: &[(String, Value)]) -> [u8; 32] {
    let named = |k: &str| k == "general.name" || k == "general.architecture";
    let mut keys: Vec<&(String, Value)> =
        metadata.iter().filter(|(k, _)| k.starts_with("tokenizer.ggml.") || named(k)).collect();
    keys.sort_by(|a, b| a.0.cmp(&b.0));
    let mut hash = Sha256::new();
    keys.iter().for_each(|(key, value)| hash.update(gguf::encoded(key, value)));
    hash.finalize().into()
}
