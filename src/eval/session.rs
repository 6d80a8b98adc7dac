//! Adapts sessions of a model to the traits of evaluations.

use std::sync::atomic::AtomicBool;
use std::sync::Arc;

use sha2::{Digest, Sha256};

use super::{Lm, LmSource};
use crate::kv::MAX_SEQS;
use crate::math::Math;
use crate::model::{Model, Result};
use crate::rope::Spec;
use crate::session::{Attention, Ending, Greedy, SeqId, Session, SessionParams};
use crate::Token;

/// Called with each session that was opened.
type Opened = dyn Fn(&Session) + Send + Sync;

/// Opens sessions of a model with one set of parameters, each at the context length that a task needs.
pub struct SessionSource {
    model: Model,
    params: SessionParams,
    opened: Option<Arc<Opened>>,
}

impl SessionSource {
    /// A source of sessions with these parameters. The requested length replaces `n_ctx`.
    pub fn new(model: &Model, params: SessionParams) -> Self {
        SessionSource { model: model.clone(), params, opened: None }
    }

    /// Identifies everything that determines a model's answers except the prompt and the context: weights,
    /// metadata, adapters, method spec, KV cache type, rounding of matrix products (unless it is the default), and the selection of
    /// landmark blocks (unless it is all blocks).
    ///
    /// # Errors
    /// Returns an error if the method spec in the model's file cannot be read.
    pub fn identity(&self) -> Result<String> {
        let spec = match &self.params.rope {
            Some(spec) if spec.is_declared() => Spec::declared(self.model.hparams())?,
            Some(spec) => spec.clone(),
            None => self.model.default_rope()?,
        };
        let adapters: String = self.model.adapters().iter().map(|a| format!(" + {}", a.digest())).collect();
        let weights = ropewalk_core::adapter::fingerprint(self.model.file());
        let declared = ropewalk_core::adapter::metadata_fingerprint(self.model.file());
        let rounding = rounding(&self.params);
        let template = self.model.other_template();
        let template = template.map_or(String::new(), |text| format!(" template {:x}", Sha256::digest(text)));
        let kv = self.params.kv_type.name();
        Ok(format!("{weights} {declared}{adapters} {spec} {kv}{rounding}{template}"))
    }

    /// Calls this function with each session after it has been opened.
    pub fn on_open(self, opened: impl Fn(&Session) + Send + Sync + 'static) -> Self {
        SessionSource { opened: Some(Arc::new(opened)), ..self }
    }
}

/// What a session's settings change in the answers, in addition to the KV cache's type; nothing for the defaults.
pub(crate) fn rounding(params: &SessionParams) -> String {
    let math = match params.math {
        Math::Auto => String::new(),
        math => format!(" math {math}"),
    };
    match params.attention {
        Attention::Landmark(top) => format!("{math} {top}"),
        // They differ as far as rounding goes.
        Attention::Auto | Attention::Explicit => math,
    }
}

impl std::fmt::Debug for SessionSource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SessionSource").field("params", &self.params).finish_non_exhaustive()
    }
}

impl LmSource for SessionSource {
    fn open(&self, n_ctx: usize, n_seq: usize) -> Result<Box<dyn Lm + '_>> {
        let params = SessionParams { n_ctx, ..self.params.clone() };
        let n_seq_max = Session::n_seq_fitting(&self.model, &params, n_seq)?;
        let session = Session::new(&self.model, &SessionParams { n_seq_max, ..params })?;
        if let Some(opened) = &self.opened {
            opened(&session);
        }
        Ok(Box::new(SessionLm { session, seqs: (0..MAX_SEQS).collect() }))
    }

    fn check(&self, n_ctx: usize) -> Result<()> {
        Session::check_params(&self.model, &SessionParams { n_ctx, ..self.params.clone() })
    }

    fn rope_at(&self, n_ctx: usize) -> Result<String> {
        Ok(Session::plan_of(&self.model, &SessionParams { n_ctx, ..self.params.clone() })?.spec.to_string())
    }

    fn encode(&self, text: &str) -> Result<Vec<Token>> {
        Ok(self.model.vocab().tokenize(text, false, true)?)
    }

    fn decode(&self, tokens: &[Token]) -> Result<String> {
        Ok(self.model.vocab().detokenize(tokens, false)?)
    }

    fn bos_first(&self) -> Option<Token> {
        self.model.vocab().bos().filter(|_| self.model.vocab().add_bos())
    }
}

/// A session in which every call starts from an empty context; `Session::nll` itself appends.
struct SessionLm {
    session: Session,
    /// All of the session's sequences.
    seqs: Vec<SeqId>,
}

impl Lm for SessionLm {
    fn n_ctx(&self) -> usize {
        self.session.params().n_ctx
    }

    fn rope(&self) -> String {
        self.session.plan().spec.to_string()
    }

    fn tokenize(&self, text: &str, add_special: bool) -> Result<Vec<Token>> {
        Ok(self.session.model().vocab().tokenize(text, add_special, false)?)
    }

    fn piece(&self, token: Token) -> Result<Vec<u8>> {
        Ok(self.session.model().vocab().piece(token, false)?)
    }

    fn n_vocab(&self) -> usize {
        // The table of embeddings may be longer than the vocabulary, and a file may have no tokenizer.
        match self.session.model().vocab().n_tokens() {
            0 => self.session.model().hparams().n_vocab,
            n => n.min(self.session.model().hparams().n_vocab),
        }
    }

    fn bos(&self) -> Option<Token> {
        self.session.model().vocab().bos()
    }

    fn add_bos(&self) -> bool {
        self.session.model().vocab().add_bos()
    }

    fn nll(&mut self, tokens: &[Token], from: usize, read: &mut dyn FnMut(usize)) -> Result<Vec<f32>> {
        let from = from.max(1);
        if from >= tokens.len() {
            return Ok(Vec::new());
        }
        // The token before the first scored one is computed in any case: its logits are wanted.
        let shared = self.session.reuse_prefix(tokens, from - 1)?;
        let scored = from - shared..tokens.len() - shared;
        self.session.sequence(0).nll_watched(&tokens[shared..], scored, &mut |n| read(shared + n))
    }

    fn n_seq(&self) -> usize {
        self.session.params().n_seq_max
    }

    fn answers(&mut self, prompts: &[Vec<Token>], how: &Greedy) -> Result<Vec<Vec<Token>>> {
        self.session.continue_all(&self.seqs, prompts, how)
    }

    fn endings(&mut self, text: &[Token], endings: &[Vec<Token>]) -> Result<Vec<Ending>> {
        self.session.endings(&self.seqs, text, endings)
    }

    fn cancel_flag(&self) -> Option<Arc<AtomicBool>> {
        Some(self.session.cancel_flag())
    }
}
