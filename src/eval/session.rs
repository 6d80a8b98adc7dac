//! Sessions of a model, as evaluations see them.

use std::sync::atomic::AtomicBool;
use std::sync::Arc;

use super::{Lm, LmSource};
use crate::model::{Model, Result};
use crate::session::{GenerateParams, Session, SessionParams};
use crate::Token;

/// Opens sessions of a model under one set of parameters, each at the context length a task asks for.
pub struct SessionSource<'a> {
    model: &'a Model,
    params: SessionParams,
    opened: Option<&'a dyn Fn(&Session<'_>)>,
}

impl<'a> SessionSource<'a> {
    /// Sessions under these parameters; `n_ctx` among them is replaced by the length asked for.
    pub fn new(model: &'a Model, params: SessionParams) -> Self {
        SessionSource { model, params, opened: None }
    }

    /// Calls this function with each session when it has been opened.
    pub fn on_open(self, opened: &'a dyn Fn(&Session<'_>)) -> Self {
        SessionSource { opened: Some(opened), ..self }
    }
}

impl std::fmt::Debug for SessionSource<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SessionSource").field("params", &self.params).finish_non_exhaustive()
    }
}

impl LmSource for SessionSource<'_> {
    fn open(&self, n_ctx: usize) -> Result<Box<dyn Lm + '_>> {
        let session = Session::new(self.model, &SessionParams { n_ctx, ..self.params.clone() })?;
        if let Some(opened) = self.opened {
            opened(&session);
        }
        Ok(Box::new(SessionLm { session }))
    }
}

/// A session in which every call starts from an empty context; `Session::nll` itself appends.
struct SessionLm<'m> {
    session: Session<'m>,
}

impl Lm for SessionLm<'_> {
    fn n_ctx(&self) -> usize {
        self.session.params().n_ctx
    }

    fn rope(&self) -> String {
        self.session.plan().spec.to_string()
    }

    fn tokenize(&self, text: &str, add_special: bool) -> Result<Vec<Token>> {
        Ok(self.session.model().vocab().tokenize(text, add_special, false)?)
    }

    fn detokenize(&self, tokens: &[Token]) -> Result<String> {
        Ok(self.session.model().vocab().detokenize(tokens, false)?)
    }

    fn bos(&self) -> Option<Token> {
        self.session.model().vocab().bos()
    }

    fn add_bos(&self) -> bool {
        self.session.model().vocab().add_bos()
    }

    fn nll(&mut self, tokens: &[Token], from: usize) -> Result<Vec<f32>> {
        let from = from.max(1);
        if from >= tokens.len() {
            return Ok(Vec::new());
        }
        // The token before the first scored one is computed in any case: its logits are wanted.
        let shared = self.session.reuse_prefix(tokens, from - 1)?;
        self.session.nll(&tokens[shared..], from - shared..tokens.len() - shared)
    }

    fn generate(&mut self, prompt: &[Token], n: usize) -> Result<Vec<Token>> {
        let mut generated = Vec::new();
        for piece in self.session.generate(prompt, &GenerateParams::greedy(n))? {
            generated.extend(piece?.token);
        }
        Ok(generated)
    }

    fn cancel_flag(&self) -> Option<Arc<AtomicBool>> {
        Some(self.session.cancel_flag())
    }
}
