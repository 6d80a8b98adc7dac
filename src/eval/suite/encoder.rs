//! Adapts the model's tokenizer and chat template to tasks.

use ropewalk_tasks::{Encoder, Error, Template};

use super::super::{unsupported, LmSource};
use crate::model::Result;
use crate::Token;

/// Renders a user message in the chat template, up to the start of the answer.
pub type Frame<'a> = &'a dyn Fn(&str) -> Result<String>;

/// The tokenizer of a model source, and the chat template of its prompts.
pub struct TaskEncoder<'a> {
    pub(super) source: &'a dyn LmSource,
    frame: Option<Frame<'a>>,
}

impl std::fmt::Debug for TaskEncoder<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TaskEncoder").finish_non_exhaustive()
    }
}

impl<'a> TaskEncoder<'a> {
    /// # Errors
    /// Returns an error if a chat template is requested and `frame` is `None`.
    pub fn new(source: &'a dyn LmSource, template: Template, frame: Option<Frame<'a>>) -> Result<Self> {
        let frame = match (template, frame) {
            (Template::Base, _) => None,
            (Template::Chat, Some(frame)) => Some(frame),
            (Template::Chat, None) => {
                return Err(unsupported("template chat: the model has no chat template"))
            }
        };
        Ok(TaskEncoder { source, frame })
    }

    /// Tokens of a complete prompt. BOS comes first if the model asks for it and the text does not begin with it.
    pub(super) fn prompt(&self, text: &str) -> Result<Vec<Token>> {
        let mut tokens = self.source.encode(text)?;
        if let Some(bos) = self.source.bos_first().filter(|bos| tokens.first() != Some(bos)) {
            tokens.insert(0, bos);
        }
        Ok(tokens)
    }
}

impl Encoder for TaskEncoder<'_> {
    fn encode(&self, text: &str) -> Result<Vec<Token>, Error> {
        self.source.encode(text).map_err(|e| Error::Encoder(Box::new(e)))
    }

    fn decode(&self, tokens: &[Token]) -> Result<String, Error> {
        self.source.decode(tokens).map_err(|e| Error::Encoder(Box::new(e)))
    }

    fn n_bos(&self) -> usize {
        usize::from(self.source.bos_first().is_some())
    }

    fn frame(&self, message: &str) -> Result<String, Error> {
        match self.frame {
            Some(frame) => frame(message).map_err(|e| Error::Encoder(Box::new(e))),
            None => Ok(message.to_owned()),
        }
    }
}
