//! Prompts: the prefix that is in the cache already is reused, and only the tokens after it are computed.

use super::{SeqId, Session};
use crate::control::Control;
use crate::model::{Error, Result};
use crate::Token;

impl Session<'_> {
    /// Cuts sequence 0 back to the beginning it shares with `tokens`, of at most `most` tokens, and returns
    /// its length. What follows it in `tokens` is then to be appended.
    ///
    /// Under a plan that evicts keys, those that the next token would see may be gone; then the sequence is
    /// emptied, and the length is 0. Where there are recurrent layers, it is cut back to the last of their states within
    /// that beginning.
    ///
    /// # Errors
    /// None that a caller can cause; the sequence is as it was then.
    pub fn reuse_prefix(&mut self, tokens: &[Token], most: usize) -> Result<usize> {
        let shared = self.shared(0, tokens).min(most);
        let held = self.resumable(0, shared);
        self.truncate(0, held)?;
        Ok(held)
    }

    /// Tokens at the beginning of a sequence that are those at the beginning of `tokens`.
    pub(super) fn shared(&self, seq: SeqId, tokens: &[Token]) -> usize {
        self.tokens(seq).iter().zip(tokens).take_while(|(a, b)| a == b).count()
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
        let departed = self.shared(0, tokens);
        let shared = self.reuse_prefix(tokens, most)?;
        Ok((self.extend_prompt(0, tokens, shared, departed)?, shared))
    }

    /// As [`Session::prompt`], for long prompts: batch by batch, with the number of tokens held reported
    /// after each. Returns how many tokens were used again. On an error the batches before it are held.
    ///
    /// # Errors
    /// Those of [`Session::append`]: [`Error::Interrupted`] when `control` stops it.
    pub fn prefill(&mut self, tokens: &[Token], control: &Control<'_>) -> Result<usize> {
        control.bind(&self.cancel_flag());
        let (departed, n) = (self.shared(0, tokens), tokens.len());
        let shared = self.reuse_prefix(tokens, n)?;
        let (mut done, kept) = (shared, self.kept_places(shared, departed, n));
        control.report(format_args!("reading"), done as u64, n as u64);
        while done < n {
            let end = kept.iter().copied().find(|&at| at > done).unwrap_or(n).min(done + self.params.n_batch);
            self.append(&tokens[done..end])?;
            done = end;
            if kept.contains(&done) {
                self.keep_state(0);
            }
            control.report(format_args!("reading"), done as u64, n as u64);
        }
        Ok(shared)
    }
}
