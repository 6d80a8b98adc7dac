//! Several continuations at once: greedy answers to several prompts, and log-likelihoods of several continuations of
//! one prompt.

use super::{Batch, SeqId, Session};
use crate::kv::MAX_SEQS;
use crate::model::{Error, Result};
use crate::Token;

/// Limits of greedy answers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Greedy {
    /// Maximum number of tokens.
    pub n_predict: usize,
    /// Minimum number of tokens before an end-of-generation token, or a token that completes a text of `stop`.
    pub n_min: usize,
    /// Texts that end an answer. The token that completes one is the last token.
    pub stop: Vec<String>,
}

/// Log-likelihoods of the tokens of a continuation.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Ending {
    /// `ln p` of each token, given all before it.
    pub logprobs: Vec<f32>,
    /// True if every token is the top token.
    pub greedy: bool,
}

/// A beginning of a prompt that a sequence holds.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Prefix {
    pub(crate) seq: SeqId,
    /// Tokens that a text can continue from.
    pub(crate) n: usize,
    /// Tokens that some sequence shares with the prompt at most. More than `n` if no recurrent state is after them.
    pub(crate) departed: usize,
    /// True if that sequence has another token after these.
    pub(crate) differs: bool,
}

/// An answer that is being made.
struct Growing {
    made: Vec<Token>,
    bytes: Vec<u8>,
    live: bool,
}

impl Session {
    /// Continues up to [`SessionParams::n_seq_max`](super::SessionParams) prompts greedily, the first in the first of the
    /// sequences `seqs`, and decodes the answers together. Prefixes that prompts share with each other, or with any
    /// sequence of the session, are computed once. If there is not enough room, sequences of `seqs` are dropped, the next
    /// first; the tokens of all other sequences stay. End-of-generation tokens are not part of the answers.
    ///
    /// Afterwards the sequences hold the prompts and answers, for the next call to reuse. Truncate them to free room.
    /// If the device fails, space runs out, or the call is interrupted, the sequences of the prompts are empty.
    ///
    /// # Errors
    /// Returns an error if there are too many prompts or too few sequences, if a prompt is empty, or if a prompt and
    /// `n_predict` tokens are longer than a sequence may be; [`Error::ContextFull`] if the other sequences leave no room
    /// for all of them; and the errors of [`Session::decode`].
    pub fn continue_all(
        &mut self,
        seqs: &[SeqId],
        prompts: &[Vec<Token>],
        how: &Greedy,
    ) -> Result<Vec<Vec<Token>>> {
        check_seqs(seqs)?;
        let (n, most) = (prompts.len(), self.params.n_seq_max.min(seqs.len()));
        if n > most {
            return Err(Error::argument("prompts", format_args!("at most {most}"), n));
        }
        for prompt in prompts {
            let (len, n_max) = (prompt.len(), self.n_max());
            if len == 0 || len.saturating_add(how.n_predict) > n_max {
                let (most, more) = (n_max.saturating_sub(how.n_predict), how.n_predict);
                let expected = format!("1 to {most} tokens, so that {more} more fit into ctx {n_max}");
                return Err(Error::argument("prompt", expected, len));
            }
        }
        let answers = self.answer(seqs, prompts, how);
        self.empty_unless_ok(&seqs[..n], answers)
    }

    /// [`Session::continue_all`] of valid prompts.
    fn answer(&mut self, seqs: &[SeqId], prompts: &[Vec<Token>], how: &Greedy) -> Result<Vec<Vec<Token>>> {
        let n = prompts.len();
        let mut next = Vec::with_capacity(n);
        for (i, prompt) in prompts.iter().enumerate() {
            let extra = n.saturating_mul(self.cells_at_most(how.n_predict));
            // Each sequence needs its state and the next one. Those before have the first.
            let (shared, departed) = self.begin(&seqs[i..], prompt, extra, 2 * n - i)?;
            let row = self.extend_prompt(seqs[i], prompt, shared, departed)?;
            let row = row.to_vec();
            next.push(self.likeliest(&row, 0, how)?);
        }
        // The last token of an answer is not decoded.
        let more = how.n_predict.saturating_sub(1);
        let cells = |p: &Vec<Token>| self.model.n_positions(p.len() + more) - self.model.n_positions(p.len());
        if !self.plan.evict && prompts.iter().map(cells).sum::<usize>() > self.kv.n_free() {
            return Err(self.full(n * more, self.n_free_tokens()));
        }
        let mut answers: Vec<Growing> = (0..n)
            .map(|_| Growing { made: Vec::new(), bytes: Vec::new(), live: how.n_predict > 0 })
            .collect();
        loop {
            for (answer, &token) in answers.iter_mut().zip(&next).filter(|(a, _)| a.live) {
                self.take(answer, token, how)?;
            }
            let mut batch = Batch::new();
            let live: Vec<usize> = (0..n).filter(|&i| answers[i].live).collect();
            for &i in &live {
                batch.push(next[i], seqs[i], true);
            }
            if live.is_empty() {
                break;
            }
            let rows = self.logits_of(&batch.items)?.to_vec();
            for (&i, row) in live.iter().zip(rows.chunks_exact(self.model.hparams().n_vocab)) {
                next[i] = self.likeliest(row, answers[i].made.len(), how)?;
            }
        }
        Ok(answers.into_iter().map(|a| a.made).collect())
    }

    /// The top token of a row of logits after `made` tokens of an answer. A token that ends the answer is chosen only
    /// if the answer may end.
    fn likeliest(&self, row: &[f32], made: usize, how: &Greedy) -> Result<Token> {
        let vocab = self.model.vocab();
        let mut refused: Vec<Token> = Vec::new();
        loop {
            let mut best = (f32::NEG_INFINITY, 0);
            for (token, &x) in row.iter().enumerate() {
                if x > best.0 && !refused.contains(&(token as Token)) {
                    best = (x, token);
                }
            }
            let token = best.1 as Token;
            let ends = made < how.n_min && {
                let piece = vocab.piece(token, false)?;
                vocab.is_eog(token) || how.stop.iter().any(|stop| holds(&piece, stop))
            };
            if !ends || refused.len() == row.len() {
                return Ok(token);
            }
            refused.push(token);
        }
    }

    fn take(&self, answer: &mut Growing, token: Token, how: &Greedy) -> Result<()> {
        let vocab = self.model.vocab();
        if vocab.is_eog(token) {
            answer.live = false;
            return Ok(());
        }
        answer.made.push(token);
        answer.live = answer.made.len() < how.n_predict;
        if !how.stop.is_empty() {
            let piece = vocab.piece(token, false)?;
            let longest = how.stop.iter().map(String::len).max().unwrap_or(0);
            let from = answer.bytes.len().saturating_sub(longest);
            answer.bytes.extend(piece);
            let stops = how.stop.iter().any(|stop| holds(&answer.bytes[from..], stop));
            answer.live &= !stops || answer.made.len() < how.n_min;
        }
        Ok(())
    }

    /// Makes the first of `seqs` hold the longest prefix of a prompt that any sequence has, without the last token,
    /// whose logits are needed. Returns the length of that prefix, and the maximum number of tokens that any sequence
    /// shares with the prompt. The second number is larger if recurrent layers have no state after those tokens.
    /// The other sequences of `seqs` are dropped if the prompt and `extra` slots need their room, or recurrent layers
    /// do for `n_states` states.
    fn begin(
        &mut self,
        seqs: &[SeqId],
        prompt: &[Token],
        extra: usize,
        n_states: usize,
    ) -> Result<(usize, usize)> {
        let (seq, others) = (seqs[0], &seqs[1..]);
        // Of equals, the sequence itself.
        let all = (0..MAX_SEQS).filter(|&s| s != seq).chain([seq]);
        let Prefix { seq: from, n, departed, .. } =
            self.longest_prefix(prompt, |_, shared| shared.min(prompt.len() - 1), all);
        if from != seq && n > 0 {
            self.copy_seq(from, seq)?;
        }
        self.truncate(seq, n)?;
        for &other in others {
            let n_cells = self.cells_at_most(prompt.len() - n).saturating_add(extra);
            if self.kv.n_free() >= n_cells && self.n_free_states() >= n_states {
                break;
            }
            self.truncate(other, 0)?;
        }
        Ok((n, departed))
    }

    /// The longest beginning of a prompt that a text can continue from in one of `seqs`; of equals, in the last. `most`
    /// says how many tokens of a sequence are of use, of so many that it shares with the prompt.
    pub(crate) fn longest_prefix(
        &self,
        prompt: &[Token],
        most: impl Fn(SeqId, usize) -> usize,
        seqs: impl Iterator<Item = SeqId>,
    ) -> Prefix {
        let mut best = Prefix::default();
        for seq in seqs {
            let shared = self.shared(seq, prompt);
            let n = self.resumable(seq, most(seq, shared));
            if n >= best.n {
                (best.seq, best.n) = (seq, n);
            }
            if shared > best.departed {
                best.departed = shared;
                best.differs = shared < prompt.len().min(self.tokens(seq).len());
            }
        }
        best
    }

    /// Log-likelihoods of several continuations of one text, in a context that holds the text and all continuations.
    /// The text is computed once, in the first of the sequences `seqs`, whose prefix is reused. The others are
    /// emptied and hold continuations, as many at once as there are sequences. The tokens of all other sequences stay.
    /// If the device fails, space runs out, or the call is interrupted, all of `seqs` are empty.
    ///
    /// # Errors
    /// Returns an error if the text or a continuation is empty, or if there is no sequence; and the errors of
    /// [`Session::decode`].
    pub fn endings(&mut self, seqs: &[SeqId], text: &[Token], endings: &[Vec<Token>]) -> Result<Vec<Ending>> {
        check_seqs(seqs)?;
        if text.is_empty() || endings.iter().any(Vec::is_empty) {
            return Err(Error::Invalid("endings: expected a text and endings of at least one token".into()));
        }
        let Some((&of_text, copies)) = seqs.split_first() else {
            return Err(Error::argument("sequences", "at least 1", 0));
        };
        // Not all of them are decoded.
        endings.iter().try_for_each(|ending| self.check_tokens(ending))?;
        let scored = self.score_endings(of_text, copies, text, endings);
        self.empty_unless_ok(seqs, scored)
    }

    /// [`Session::endings`] of valid texts.
    fn score_endings(
        &mut self,
        of_text: SeqId,
        copies: &[SeqId],
        text: &[Token],
        endings: &[Vec<Token>],
    ) -> Result<Vec<Ending>> {
        copies.iter().try_for_each(|&seq| self.truncate(seq, 0))?;
        if self.plan.evict || copies.is_empty() {
            return endings.iter().map(|ending| self.ending(of_text, text, ending)).collect();
        }
        let first = self.sequence(of_text).prompt(text)?.0.to_vec();
        let mut out = vec![Ending { logprobs: Vec::new(), greedy: true }; endings.len()];
        for (out, ending) in out.iter_mut().zip(endings) {
            out.push(&first, ending[0]);
        }
        // The last token of an ending need not be decoded.
        let mut rest: Vec<usize> = (0..endings.len()).filter(|&i| endings[i].len() > 1).collect();
        while !rest.is_empty() {
            let (mut batch, mut owners) = (Batch::new(), Vec::new());
            let mut free = copies.iter().take(self.n_free_states().max(1));
            let (room, mut cells) = (self.kv.n_free(), 0);
            while let Some(&i) = rest.first() {
                let tokens = &endings[i][..endings[i].len() - 1];
                cells += self.cells_at_most(tokens.len());
                let full = cells > room || batch.len() + tokens.len() > self.params.n_batch;
                if full && !batch.is_empty() {
                    break;
                }
                let Some(&seq) = free.next() else { break };
                rest.remove(0);
                self.copy_seq(of_text, seq)?;
                for (at, &token) in tokens.iter().enumerate() {
                    batch.push(token, seq, true);
                    owners.push((i, at + 1));
                }
            }
            let n_vocab = self.model.hparams().n_vocab;
            self.run(&batch.items, &mut |rows_of, rows| {
                for (&row, logits) in rows_of.iter().zip(rows.chunks_exact(n_vocab)) {
                    let (i, at) = owners[row];
                    out[i].push(logits, endings[i][at]);
                }
                Ok(())
            })?;
            copies.iter().try_for_each(|&seq| self.truncate(seq, 0))?;
        }
        Ok(out)
    }

    /// One ending, for plans under which sequences cannot share what they have read.
    fn ending(&mut self, seq: SeqId, text: &[Token], ending: &[Token]) -> Result<Ending> {
        let (tokens, has_states) = ([text, ending].concat(), self.states.is_some());
        let mut sequence = self.sequence(seq);
        let mut shared = sequence.reuse_prefix(&tokens, text.len() - 1)?;
        if has_states && shared < text.len() - 1 {
            // The next ending continues from here.
            sequence.append(&text[shared..text.len() - 1])?;
            self.keep_state(seq);
            sequence = self.sequence(seq);
            shared = text.len() - 1;
        }
        let mut out = Ending { logprobs: Vec::new(), greedy: true };
        let wanted = text.len() - 1 - shared..tokens.len() - 1 - shared;
        sequence.score(&tokens[shared..], wanted, &mut |i, row| out.push(row, tokens[shared + i + 1]))?;
        Ok(out)
    }

    /// Frees the room of a call's sequences if it failed.
    fn empty_unless_ok<T>(&mut self, seqs: &[SeqId], result: Result<T>) -> Result<T> {
        if result.is_err() {
            seqs.iter().try_for_each(|&seq| self.truncate(seq, 0))?;
        }
        result
    }
}

/// Checks for sequences that do not exist or are given twice.
fn check_seqs(seqs: &[SeqId]) -> Result<()> {
    for (i, &seq) in seqs.iter().enumerate() {
        if seq >= MAX_SEQS || seqs[..i].contains(&seq) {
            return Err(Error::argument("sequences", format_args!("different ones below {MAX_SEQS}"), seq));
        }
    }
    Ok(())
}

fn holds(bytes: &[u8], stop: &str) -> bool {
    !stop.is_empty() && bytes.windows(stop.len()).any(|w| w == stop.as_bytes())
}

impl Ending {
    fn push(&mut self, row: &[f32], token: Token) {
        self.logprobs.push(-ggml::loss::row_loss(row, token as usize));
        // As `argmax` has it: the first of equals is the likeliest.
        let x = row[token as usize];
        let beaten = row.iter().enumerate().any(|(i, &y)| y > x || (y == x && i < token as usize));
        self.greedy &= !beaten;
    }
}
