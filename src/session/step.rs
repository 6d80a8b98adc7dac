//! One call that extends several sequences, and returns what the caller asked for about each.

use std::ops::Range;

use ggml::loss::{row_loss, row_losses};
use rayon::prelude::*;

use super::batch::Item;
use super::{no_such_sequence, Generation, Piece, SeqId, Session};
use crate::model::{Error, Result};
use crate::sampler::Sampler;
use crate::Token;

/// The results that the caller of [`Session::step`] wants for a sequence.
#[derive(Debug)]
pub enum Want<'a> {
    /// Nothing: the tokens are read.
    Nothing,
    /// The logits after the last token.
    Logits,
    /// A token, sampled from the logits after the last token.
    Token(&'a mut Sampler),
    /// `-ln p` of each token but the first, in nats.
    Nll,
    /// The log-probability of each token but the first, and of the token that will follow the last, if given.
    Scores {
        /// Number of most likely tokens to return for each.
        n_top: usize,
        /// The token that will follow the last one. It is not appended.
        next: Option<Token>,
    },
}

/// Tokens to append to a sequence.
#[derive(Debug)]
pub struct Step<'a> {
    /// The sequence.
    pub seq: SeqId,
    /// Its next tokens; at least one, and two for [`Want::Nll`] and for [`Want::Scores`] without a next token.
    pub tokens: &'a [Token],
    /// The answer to return.
    pub want: Want<'a>,
}

/// The answer to a [`Step`].
#[derive(Debug, Clone, PartialEq)]
pub enum Stepped {
    /// The tokens were read.
    Nothing,
    /// `n_vocab` logits.
    Logits(Vec<f32>),
    /// The sampled token, which is not appended.
    Token(Token),
    /// `-ln p` of each token but the first, in nats.
    Nll(Vec<f32>),
    /// The scores, in order.
    Scores(Vec<Scored>),
}

/// The probability of a token, as the model has it before any sampler.
#[derive(Debug, Clone, PartialEq)]
pub struct Scored {
    /// The token.
    pub token: Token,
    /// `ln p` of the token, given all before it.
    pub logprob: f32,
    /// The most likely tokens with their `ln p`, best first; of equals, the lower number.
    pub top: Vec<(Token, f32)>,
}

impl Scored {
    /// Scores a token by its row of logits.
    pub(crate) fn of(row: &[f32], token: Token, n_top: usize) -> Scored {
        let mut best: Vec<usize> = Vec::new();
        for (i, &x) in row.iter().enumerate() {
            if best.len() < n_top || best.last().is_some_and(|&last| x > row[last]) {
                best.truncate(n_top.saturating_sub(1));
                best.insert(best.partition_point(|&other| row[other] >= x), i);
            }
        }
        best.push(token as usize);
        let losses = row_losses(row, &best);
        let mut top: Vec<(Token, f32)> =
            best.iter().zip(&losses).map(|(&i, loss)| (i as Token, -loss)).collect();
        let logprob = top.pop().map_or(f32::NAN, |own| own.1);
        Scored { token, logprob, top }
    }
}

/// The value that a row of logits is reduced to.
#[derive(Clone, Copy)]
enum Asked {
    Row,
    Loss(Token),
    Score(Token, usize),
}

impl Step<'_> {
    fn rows(&self) -> Range<usize> {
        let n = self.tokens.len();
        match self.want {
            Want::Nothing => 0..0,
            Want::Logits | Want::Token(_) => n - 1..n,
            Want::Nll | Want::Scores { next: None, .. } => 0..n - 1,
            Want::Scores { next: Some(_), .. } => 0..n,
        }
    }

    /// The value to compute from the row after the token at `at`.
    fn asked(&self, at: usize) -> Asked {
        let following = self.tokens.get(at + 1).copied();
        match self.want {
            Want::Nll => following.map_or(Asked::Row, Asked::Loss),
            Want::Scores { n_top, next } => {
                following.or(next).map_or(Asked::Row, |token| Asked::Score(token, n_top))
            }
            Want::Nothing | Want::Logits | Want::Token(_) => Asked::Row,
        }
    }
}

impl Session {
    /// Appends tokens to several sequences, decoded together. The results are in the order of the steps. An error among
    /// them concerns that sequence alone, which is as it was: a sequence that has no room, does not exist, or is named
    /// twice, and tokens outside the vocabulary. Sequences are admitted in order, while there is room.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let path = dir.path().join("model.gguf");
    /// # convert::random::write(&convert::random::Shape::named("llama-tiny")?, ropewalk::DType::Q8_0, 1, &path)?;
    /// use ropewalk::session::{Session, SessionParams, Step, Stepped, Want};
    /// use ropewalk::{Model, ModelParams};
    ///
    /// let model = Model::load(&path, &ModelParams::cpu())?;
    /// let params = SessionParams::new(64).n_seq_max(2).n_threads(1);
    /// let mut session = Session::new(&model, &params)?;
    /// let text = model.vocab().tokenize("Two texts at once", true, false)?;
    /// let endless = vec![text[0]; 1000];
    /// let results = session.step(&mut [
    ///     Step { seq: 0, tokens: &text, want: Want::Nll },
    ///     Step { seq: 1, tokens: &endless, want: Want::Logits },
    ///     Step { seq: 2, tokens: &text, want: Want::Logits },
    /// ])?;
    /// assert!(matches!(&results[0], Ok(Stepped::Nll(nll)) if nll.len() == text.len() - 1));
    /// assert!(matches!(results[1], Err(ropewalk::Error::ContextFull { needed: 1000, .. })));
    /// assert!(matches!(&results[2], Ok(Stepped::Logits(row)) if row.len() == model.hparams().n_vocab));
    /// assert!(session.tokens(1).is_empty());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Returns an error if the device fails. [`Error::Interrupted`] is among the results, for each sequence that the
    /// [cancel flag](Session::cancel_flag) stopped.
    pub fn step(&mut self, steps: &mut [Step<'_>]) -> Result<Vec<Result<Stepped>>> {
        let mut results: Vec<Option<Result<Stepped>>> = steps.iter().map(|_| None).collect();
        let mut admitted: Vec<usize> = Vec::new();
        let mut free = self.kv.n_free();
        for (i, step) in steps.iter().enumerate() {
            let others = steps[..i].iter().map(|step| step.seq);
            match self.admit(step, others, &mut free) {
                Ok(()) => admitted.push(i),
                Err(e) => results[i] = Some(Err(e)),
            }
        }
        // A cache that evicts keys is as large as `n_seq_max` sequences need. With more of them, one may fail.
        let apart =
            self.plan.evict && self.n_live(admitted.iter().map(|&i| steps[i].seq)) > self.params.n_seq_max;
        let mut groups = vec![admitted];
        if apart {
            groups = groups.concat().into_iter().map(|i| vec![i]).collect();
        }
        while let Some(group) = groups.pop() {
            if group.is_empty() {
                continue;
            }
            match self.run_group(steps, &group) {
                Ok(answers) => {
                    for (&i, answer) in group.iter().zip(answers) {
                        results[i] = Some(answer);
                    }
                }
                Err(Error::Interrupted) => {
                    group.iter().for_each(|&i| results[i] = Some(Err(Error::Interrupted)))
                }
                Err(
                    e @ (Error::ContextFull { .. }
                    | Error::Argument { .. }
                    | Error::Unsupported(_)
                    | Error::Invalid(_)),
                ) => match group[..] {
                    [i] => results[i] = Some(Err(e)),
                    // One of them does not fit, and nothing was done.
                    _ => groups.extend(group.into_iter().rev().map(|i| vec![i])),
                },
                Err(e) => return Err(e),
            }
        }
        Ok(results.into_iter().map(|result| result.unwrap_or(Ok(Stepped::Nothing))).collect())
    }

    /// The next piece of each generation of this session, with their tokens decoded together: as [`Generation::next`] of
    /// each, in the time of about one.
    ///
    /// # Errors
    /// Returns an error if the device fails.
    pub fn advance(&mut self, generations: &mut [&mut Generation]) -> Result<Vec<Option<Result<Piece>>>> {
        let mut failed: Vec<Option<Error>> = generations.iter().map(|_| None).collect();
        let mut running: Vec<(usize, [Token; 1])> = Vec::new();
        for (i, generation) in generations.iter_mut().enumerate() {
            match generation.emit(self) {
                Ok(token) => running.extend(token.map(|token| (i, [token]))),
                Err(e) => failed[i] = Some(e),
            }
        }
        let step =
            running.iter().map(|(i, tokens)| Step { seq: generations[*i].seq(), tokens, want: Want::Logits });
        let answers = self.step(&mut step.collect::<Vec<_>>())?;
        for (&(i, _), answer) in running.iter().zip(answers) {
            let accepted = match answer {
                Ok(Stepped::Logits(row)) => generations[i].accept(Ok(&row)),
                Ok(_) => Ok(()),
                Err(e) => generations[i].accept(Err(e)),
            };
            failed[i] = accepted.err();
        }
        let piece = |(generation, failed): (&mut &mut Generation, Option<Error>)| match failed {
            Some(e) => Some(Err(generation.fail(e))),
            None => generation.pop().map(Ok),
        };
        Ok(generations.iter_mut().zip(failed).map(piece).collect())
    }

    /// Checks a step by itself, and takes its cells from those that are free.
    fn admit(
        &self,
        step: &Step<'_>,
        mut others: impl Iterator<Item = SeqId>,
        free: &mut usize,
    ) -> Result<()> {
        let Step { seq, tokens, want } = step;
        let held = self.tokens.get(*seq as usize).ok_or_else(|| no_such_sequence(*seq))?.len();
        if others.any(|other| other == *seq) {
            return Err(Error::argument(format!("sequence {seq}"), "one step of it", "two"));
        }
        let least = if matches!(want, Want::Nll | Want::Scores { next: None, .. }) { 2 } else { 1 };
        if tokens.len() < least {
            return Err(Error::argument("step", format_args!("at least {least} tokens"), tokens.len()));
        }
        self.check_tokens(tokens)?;
        if let Want::Scores { next: Some(next), .. } = want {
            self.check_tokens(&[*next])?;
        }
        let n = tokens.len();
        let room = self.n_max() - held;
        if n > room {
            return Err(self.full(n, room));
        }
        if !self.plan.evict {
            let cells = self.cells_at_most(n);
            if cells > *free {
                return Err(self.full(n, *free));
            }
            *free -= cells;
        }
        Ok(())
    }

    /// Sequences that hold tokens, or will.
    fn n_live(&self, more: impl Iterator<Item = SeqId>) -> usize {
        let more: Vec<SeqId> = more.collect();
        let live =
            |(seq, tokens): &(usize, &Vec<Token>)| !tokens.is_empty() || more.contains(&(*seq as SeqId));
        self.tokens.iter().enumerate().filter(live).count()
    }

    /// Runs steps together, all or none.
    fn run_group(&mut self, steps: &mut [Step<'_>], group: &[usize]) -> Result<Vec<Result<Stepped>>> {
        let n_vocab = self.model.hparams().n_vocab;
        let mut items = Vec::new();
        // For each item its step among these, and what its row is reduced to.
        let mut owners: Vec<(usize, Asked)> = Vec::new();
        for (g, &i) in group.iter().enumerate() {
            let step = &steps[i];
            let wanted = step.rows();
            for (at, &token) in step.tokens.iter().enumerate() {
                items.push(Item { token, seq: step.seq, logits: wanted.contains(&at) });
                owners.push((g, step.asked(at)));
            }
        }
        let mut rows: Vec<Vec<f32>> = group.iter().map(|_| Vec::new()).collect();
        let mut scores: Vec<Vec<Scored>> = group.iter().map(|_| Vec::new()).collect();
        self.run(&items, &mut |indices, logits| {
            let reduced: Vec<(Option<f32>, Option<Scored>)> = indices
                .par_iter()
                .zip(logits.par_chunks_exact(n_vocab))
                .map(|(&index, row)| match owners[index].1 {
                    Asked::Row => (None, None),
                    Asked::Loss(token) => (Some(row_loss(row, token as usize)), None),
                    Asked::Score(token, n_top) => (None, Some(Scored::of(row, token, n_top))),
                })
                .collect();
            for ((&index, row), reduced) in indices.iter().zip(logits.chunks_exact(n_vocab)).zip(reduced) {
                let g = owners[index].0;
                match reduced {
                    (Some(loss), _) => rows[g].push(loss),
                    (_, Some(score)) => scores[g].push(score),
                    (None, None) => rows[g].extend_from_slice(row),
                }
            }
            Ok(())
        })?;
        let answers = group.iter().zip(rows.into_iter().zip(scores)).map(|(&i, (row, scores))| {
            Ok(match &mut steps[i].want {
                Want::Nothing => Stepped::Nothing,
                Want::Logits => Stepped::Logits(row),
                Want::Token(sampler) => Stepped::Token(sampler.sample(&row)?),
                Want::Nll => Stepped::Nll(row),
                Want::Scores { .. } => Stepped::Scores(scores),
            })
        });
        Ok(answers.collect())
    }
}
