//! Sessions as evaluations see them: one opened for each context length, keys of a shared beginning reused.

use ropewalk::eval::{Lm, LmSource};
use ropewalk::model::{Model, Result};
use ropewalk::rope::Spec;
use ropewalk::session::{GenerateParams, Session};
use ropewalk::Token;

use super::interrupt::Interrupt;
use super::models;
use super::options::ModelChoice;
use super::output::OutputArgs;

/// Opens sessions of a model under a spec.
#[derive(Debug)]
pub(crate) struct SessionSource<'a> {
    pub(crate) model: &'a Model,
    pub(crate) choice: &'a ModelChoice,
    /// What was asked for; `None` is what the file declares.
    pub(crate) spec: Option<Spec>,
    pub(crate) interrupt: &'a Interrupt,
    pub(crate) out: OutputArgs,
}

impl LmSource for SessionSource<'_> {
    fn open(&self, n_ctx: usize) -> Result<Box<dyn Lm + '_>> {
        let session = Session::new(self.model, &self.choice.session(n_ctx, self.spec.as_ref()))?;
        self.interrupt.watch(&session);
        models::announce(&self.out, self.choice, &session, self.spec.is_some());
        Ok(Box::new(SessionLm { session }))
    }
}

struct SessionLm<'m> {
    session: Session<'m>,
}

impl SessionLm<'_> {
    /// Cuts the session back to what it shares with `tokens`, at most `limit` of them; returns how many that is.
    fn reuse(&mut self, tokens: &[Token], limit: usize) -> Result<usize> {
        let shared = self.session.tokens(0).iter().zip(tokens).take_while(|(a, b)| a == b).count().min(limit);
        self.session.truncate(0, shared)?;
        Ok(shared)
    }
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
        // The token before the first scored one has to be computed: its logits are wanted.
        let shared = self.reuse(tokens, from - 1)?;
        self.session.nll(&tokens[shared..], from - shared..tokens.len() - shared)
    }
    fn generate(&mut self, prompt: &[Token], n: usize) -> Result<Vec<Token>> {
        let mut generated = Vec::new();
        for piece in self.session.generate(prompt, &GenerateParams::greedy(n))? {
            generated.extend(piece?.token);
        }
        Ok(generated)
    }
}
