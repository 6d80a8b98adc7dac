//! Prompts: the prefix that is in the cache already is reused, and only the tokens after it are computed.

use super::Session;
use crate::control::Control;
use crate::model::{Error, Result};
use crate::Token;

impl Session<'_> {
    /// Cuts sequence 0 back to the beginning it shares with `tokens`, of at most `most` tokens, and returns
    /// its length. What follows it in `tokens` is then to be appended.
    ///
    /// Under a plan that evicts keys, those that the next token would see may be gone; then the sequence is
    /// emptied, and the length is 0.
    ///
    /// # Errors
    /// None that a caller can cause; the sequence is as it was then.
    pub fn reuse_prefix(&mut self, tokens: &[Token], most: usize) -> Result<usize> {
        let shared = self.tokens(0).iter().zip(tokens).take_while(|(a, b)| a == b).count().min(most);
        let shared = if self.holds(0, shared) { shared } else { 0 };
        self.truncate(0, shared)?;
        Ok(shared)
    }

    /// Makes sequence 0 hold exactly `tokens`, using again the cached prefix they share. Returns the logits
    /// of the last token, `n_vocab` of them, and how many tokens were used again: all but the last one at
    /// most, since its logits are wanted. On an error only the shared prefix is held.
    ///
    /// # Errors
    /// No tokens; those of [`Session::append`].
    pub fn prompt(&mut self, tokens: &[Token]) -> Result<(&[f32], usize)> {
        let Some(most) = tokens.len().checked_sub(1) else {
            return Err(Error::Invalid("prompt: expected at least one token, found none".into()));
        };
        let shared = self.reuse_prefix(tokens, most)?;
        Ok((self.append(&tokens[shared..])?, shared))
    }

    /// As [`Session::prompt`], for long prompts: batch by batch, with the number of tokens held reported
    /// after each. Returns how many tokens were used again. On an error the batches before it are held.
    ///
    /// # Errors
    /// Those of [`Session::append`]: [`Error::Interrupted`] when `control` stops it.
    pub fn prefill(&mut self, tokens: &[Token], control: &Control<'_>) -> Result<usize> {
        control.bind(&self.cancel_flag());
        let shared = self.reuse_prefix(tokens, tokens.len())?;
        let (mut done, n) = (shared, tokens.len());
        control.report(format_args!("reading"), done as u64, n as u64);
        for batch in tokens[shared..].chunks(self.params.n_batch) {
            self.append(batch)?;
            done += batch.len();
            control.report(format_args!("reading"), done as u64, n as u64);
        }
        Ok(shared)
    }
}
