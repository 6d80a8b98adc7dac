//! One sequence of a session, and its operations. Methods of [`Session`] apply them to sequence 0.

use std::ops::Range;

use ggml::loss::row_loss;
use rayon::prelude::*;

use super::batch::Item;
use super::{SeqId, Session};
use crate::control::Control;
use crate::model::{Error, Result};
use crate::Token;

/// A sequence of a session, from [`Session::sequence`]. Sequences share only the slots of the cache. To work on
/// several sequences at once, put them into one [`Batch`](super::Batch).
#[derive(Debug)]
pub struct SequenceMut<'s> {
    pub(super) session: &'s mut Session,
    pub(super) id: SeqId,
}

impl SequenceMut<'_> {
    /// The number of the sequence.
    pub fn id(&self) -> SeqId {
        self.id
    }

    /// The tokens of the sequence, in order; empty if it does not exist.
    pub fn tokens(&self) -> &[Token] {
        self.session.tokens(self.id)
    }

    /// Drops all tokens from position `n` on.
    ///
    /// # Errors
    /// Returns an error if the plan has evicted keys that later tokens would see, or if recurrent layers have kept no
    /// state after `n` tokens. Nothing is dropped then. Dropping all tokens is always possible.
    pub fn truncate(&mut self, n: usize) -> Result<()> {
        let (session, seq) = (&mut *self.session, self.id);
        let len = session.tokens_mut(seq)?.len();
        if n < len {
            if session.resumable(seq, n) != n {
                return Err(session.cannot_truncate(seq, n));
            }
            session.tokens_mut(seq)?.truncate(n);
            session.kv.remove(seq, session.model.n_positions(n) as i32);
            session.states.iter_mut().for_each(|states| states.truncate(seq, n));
        }
        Ok(())
    }

    /// Truncates the sequence to the prefix that it shares with `tokens`, of at most `most` tokens, and returns its
    /// length. Append the rest of `tokens` afterwards.
    ///
    /// If the plan has evicted keys that the next token would see, the sequence is emptied, and the length is 0. With
    /// recurrent layers, the sequence is truncated to the last kept state within that prefix.
    ///
    /// # Errors
    /// Returns an error if the sequence does not exist. Nothing changes then.
    pub fn reuse_prefix(&mut self, tokens: &[Token], most: usize) -> Result<usize> {
        self.session.tokens_mut(self.id)?;
        let shared = self.session.shared(self.id, tokens).min(most);
        let held = self.session.resumable(self.id, shared);
        self.truncate(held)?;
        Ok(held)
    }

    /// Makes the sequence hold exactly `tokens`, and reuses the cached prefix that they share. Returns the `n_vocab`
    /// logits of the last token, and the number of tokens reused. The last token is never reused, because its logits
    /// are needed. On an error, the sequence holds only the shared prefix.
    ///
    /// # Errors
    /// Returns an error if there are no tokens; and the errors of [`SequenceMut::append`].
    pub fn prompt(&mut self, tokens: &[Token]) -> Result<(&[f32], usize)> {
        let Some(most) = tokens.len().checked_sub(1) else {
            return Err(Error::argument("prompt", "at least one token", "none"));
        };
        let departed = self.session.shared(self.id, tokens);
        let shared = self.reuse_prefix(tokens, most)?;
        Ok((self.session.extend_prompt(self.id, tokens, shared, departed)?, shared))
    }

    /// Like [`SequenceMut::prompt`], for long prompts: it works batch by batch, and reports the number of tokens held
    /// after each. Returns the number of tokens reused. On an error, the sequence holds the batches before it.
    ///
    /// # Errors
    /// Returns the errors of [`SequenceMut::append`], with [`Error::Interrupted`] if `control` stops it.
    pub fn prefill(&mut self, tokens: &[Token], control: &Control<'_>) -> Result<usize> {
        control.bind(&self.session.cancel_flag());
        let (departed, n) = (self.session.shared(self.id, tokens), tokens.len());
        let shared = self.reuse_prefix(tokens, n)?;
        let (mut done, kept) = (shared, self.session.kept_places(shared, departed, n));
        control.report(format_args!("reading"), done as u64, n as u64);
        while done < n {
            let next = kept.iter().copied().find(|&at| at > done).unwrap_or(n);
            let end = next.min(done + self.session.params.n_batch);
            self.append(&tokens[done..end])?;
            done = end;
            if kept.contains(&done) {
                self.session.keep_state(self.id);
            }
            control.report(format_args!("reading"), done as u64, n as u64);
        }
        Ok(shared)
    }

    /// Appends any number of tokens, and returns the logits of the last one.
    ///
    /// # Errors
    /// Returns [`Error::ContextFull`], [`Error::Interrupted`], or an error if there are no tokens, if a token is
    /// outside the vocabulary, or if the sequence does not exist. The session is unchanged then (for plans that evict
    /// keys, see [`Session::cancel_flag`]).
    pub fn append(&mut self, tokens: &[Token]) -> Result<&[f32]> {
        let Some(last) = tokens.len().checked_sub(1) else {
            return Err(Error::argument("append", "at least one token", "none"));
        };
        self.session.logits_of(&self.items(tokens, &(last..tokens.len())))
    }

    /// Appends tokens and calls `f` with the index and the logits, `[n_vocab]`, of each token in `wanted` (indices
    /// into `tokens`).
    ///
    /// # Errors
    /// Returns the errors of [`SequenceMut::append`].
    pub fn score(
        &mut self,
        tokens: &[Token],
        wanted: Range<usize>,
        f: &mut dyn FnMut(usize, &[f32]),
    ) -> Result<()> {
        let n_vocab = self.session.model.hparams().n_vocab;
        self.session.run(&self.items(tokens, &wanted), &mut |indices, rows| {
            indices.iter().zip(rows.chunks_exact(n_vocab)).for_each(|(&i, row)| f(i, row));
            Ok(())
        })
    }

    /// Appends tokens and returns `-ln p(tokens[i])`, in nats, for each `i` in `scored` (from 1 on).
    ///
    /// # Errors
    /// Returns an error if an index is outside the tokens; and the errors of [`SequenceMut::append`].
    pub fn nll(&mut self, tokens: &[Token], scored: Range<usize>) -> Result<Vec<f32>> {
        self.nll_watched(tokens, scored, &mut |_| {})
    }

    /// [`SequenceMut::nll`] that calls `read` with the number of tokens read, as soon as some of them are scored.
    pub(crate) fn nll_watched(
        &mut self,
        tokens: &[Token],
        scored: Range<usize>,
        read: &mut dyn FnMut(usize),
    ) -> Result<Vec<f32>> {
        if scored.start == 0 || scored.end > tokens.len() || scored.is_empty() {
            let expected = format!("token indices inside 1..{}", tokens.len());
            return Err(Error::argument("nll", expected, format_args!("{scored:?}")));
        }
        let n_vocab = self.session.model.hparams().n_vocab;
        let mut out = vec![0f32; scored.len()];
        let wanted = scored.start - 1..scored.end - 1;
        let first = wanted.start;
        self.session.run(&self.items(tokens, &wanted), &mut |indices, rows| {
            let Some(&at) = indices.first() else { return Ok(()) };
            let out = &mut out[at - first..at - first + indices.len()];
            out.par_iter_mut().zip(rows.par_chunks_exact(n_vocab)).zip(indices).for_each(
                |((out, row), &i)| {
                    *out = row_loss(row, tokens[i + 1] as usize);
                },
            );
            read(at + indices.len());
            Ok(())
        })?;
        Ok(out)
    }

    fn items(&self, tokens: &[Token], wanted: &Range<usize>) -> Vec<Item> {
        let item = |(i, &token)| Item { token, seq: self.id, logits: wanted.contains(&i) };
        tokens.iter().enumerate().map(item).collect()
    }
}

impl Session {
    /// A sequence of this session, from 0 to 63. If it does not exist, its operations return an error.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let path = dir.path().join("model.gguf");
    /// # convert::random::write(&convert::random::Shape::named("llama-tiny")?, ropewalk::DType::Q8_0, 1, &path)?;
    /// use ropewalk::{GenerateParams, Model, ModelParams, Session, SessionParams};
    ///
    /// let model = Model::load(&path, &ModelParams::cpu())?;
    /// let params = SessionParams::new(256).n_seq_max(2).n_threads(1);
    /// let mut session = Session::new(&model, &params)?;
    /// let (one, two) = (model.vocab().tokenize("One", true, false)?, model.vocab().tokenize("Two", true, false)?);
    /// session.sequence(1).prompt(&one)?;
    /// for piece in session.sequence(2).generate(&two, &GenerateParams::greedy(8))? {
    ///     print!("{}", piece?.text);
    /// }
    /// assert_eq!(session.tokens(1), one);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn sequence(&mut self, seq: SeqId) -> SequenceMut<'_> {
        SequenceMut { session: self, id: seq }
    }

    /// [`SequenceMut::truncate`] of a sequence.
    pub fn truncate(&mut self, seq: SeqId, n: usize) -> Result<()> {
        self.sequence(seq).truncate(n)
    }

    /// [`SequenceMut::reuse_prefix`] of sequence 0.
    pub fn reuse_prefix(&mut self, tokens: &[Token], most: usize) -> Result<usize> {
        self.sequence(0).reuse_prefix(tokens, most)
    }

    /// [`SequenceMut::prompt`] of sequence 0.
    pub fn prompt(&mut self, tokens: &[Token]) -> Result<(&[f32], usize)> {
        let (_, shared) = self.sequence(0).prompt(tokens)?;
        Ok((&self.logits, shared))
    }

    /// [`SequenceMut::prefill`] of sequence 0.
    pub fn prefill(&mut self, tokens: &[Token], control: &Control<'_>) -> Result<usize> {
        self.sequence(0).prefill(tokens, control)
    }

    /// [`SequenceMut::append`] to sequence 0.
    pub fn append(&mut self, tokens: &[Token]) -> Result<&[f32]> {
        self.sequence(0).append(tokens)?;
        Ok(&self.logits)
    }

    /// [`SequenceMut::score`] of sequence 0.
    pub fn score(
        &mut self,
        tokens: &[Token],
        wanted: Range<usize>,
        f: &mut dyn FnMut(usize, &[f32]),
    ) -> Result<()> {
        self.sequence(0).score(tokens, wanted, f)
    }

    /// [`SequenceMut::nll`] of sequence 0.
    pub fn nll(&mut self, tokens: &[Token], scored: Range<usize>) -> Result<Vec<f32>> {
        self.sequence(0).nll(tokens, scored)
    }

    /// Tokens at the beginning of a sequence that are those at the beginning of `tokens`.
    pub(super) fn shared(&self, seq: SeqId, tokens: &[Token]) -> usize {
        n_shared(self.tokens(seq), tokens)
    }
}

/// Tokens that two texts share at their beginning. Most are compared by the block, which is much faster: a long prompt is
/// compared with every text in the cache.
pub fn n_shared(a: &[Token], b: &[Token]) -> usize {
    const BLOCK: usize = 64;
    let blocks = a.chunks_exact(BLOCK).zip(b.chunks_exact(BLOCK));
    let n = blocks.take_while(|(a, b)| a == b).count() * BLOCK;
    n + a[n..].iter().zip(&b[n..]).take_while(|(a, b)| a == b).count()
}
