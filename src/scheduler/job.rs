//! One request: its tokens, its sampler, and what its caller is told.

use std::ops::ControlFlow;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::request::{Done, Event, Made, Recomputed, Request, Sink};
use super::scores::Scores;
use crate::model::{Error, Model, Result};
use crate::sampler::Sampler;
use crate::session::{Scored, StopReason, Text};
use crate::Token;

/// Most that may be added to a logit.
const MAX_BIAS: f32 = 1000.0;

/// Most tokens that a score can have with it.
const MAX_TOP: usize = 100;

/// Most tokens that a short request has to read. Others are long, and leave room for short ones.
pub(super) const SHORT: usize = 512;

/// How a request ends.
#[derive(Debug)]
pub(super) enum Ended {
    Done(StopReason),
    Failed(Error),
}

pub(super) struct Job {
    /// The number of the request: younger ones have larger numbers.
    pub(super) id: u64,
    /// Its place in the order in which callers take turns.
    pub(super) turn: u64,
    /// The request, without its prompt.
    pub(super) request: Request,
    /// The prompt, and the tokens made so far.
    pub(super) tokens: Vec<Token>,
    pub(super) n_prompt: usize,
    /// Scores of the tokens. Those of a request that asks for them were sent.
    pub(super) scores: Scores,
    pub(super) n_cached: usize,
    /// Tokens that were read from disk for it; `None` if nothing was looked for there.
    pub(super) n_restored: Option<usize>,
    pub(super) preempted: usize,
    /// Tokens that it held when it gave its room to older requests.
    pub(super) held: usize,
    /// Whether it had much to read when it was first looked at.
    pub(super) long: bool,
    /// Younger requests that were admitted while this one waited.
    pub(super) passed: usize,
    model: Model,
    sink: Sink,
    broken: bool,
    cancelled: Arc<AtomicBool>,
    sampler: Sampler,
    text: Text,
    submitted: Instant,
    admitted: Option<Instant>,
    read: Option<Instant>,
}

impl Job {
    /// A request under a plan of `n_ctx` tokens.
    ///
    /// # Errors
    /// Returns an error if a setting of the request is out of range.
    pub(super) fn new(model: &Model, mut request: Request, n_ctx: usize, sink: Sink) -> Result<Job> {
        let (vocab, n_vocab) = (model.vocab(), model.hparams().n_vocab);
        let tokens = std::mem::take(&mut request.prompt);
        if tokens.is_empty() {
            return Err(Error::argument("prompt", "at least one token", "none"));
        }
        let mut known = tokens.iter().chain(request.bias.iter().map(|(token, _)| token));
        if let Some(token) = known.find(|&&token| token < 0 || token as usize >= n_vocab) {
            return Err(Error::argument("token", format_args!("0 to {}", n_vocab - 1), token));
        }
        if let Some((_, bias)) = request.bias.iter().find(|(_, bias)| bias.is_nan() || *bias > MAX_BIAS) {
            return Err(Error::argument("bias", format_args!("at most {MAX_BIAS}"), bias));
        }
        if let Some(n) = request.n_top.max(request.echo).filter(|&n| n > MAX_TOP) {
            return Err(Error::argument("top", format_args!("0 to {MAX_TOP}"), n));
        }
        request.sampler.check()?;
        // A sampler takes memory for as many tokens as it may look back at, whether they come or not.
        let most = i32::try_from(n_ctx).unwrap_or(i32::MAX);
        for n in [&mut request.sampler.penalty_last_n, &mut request.sampler.dry_penalty_last_n] {
            *n = most.min(*n);
        }
        let mut sampler = Sampler::new(&request.sampler, vocab, n_ctx)?;
        tokens.iter().for_each(|&token| sampler.accept(token));
        let text = Text::new(std::mem::take(&mut request.stop))?;
        Ok(Job {
            id: 0,
            turn: 0,
            request,
            n_prompt: tokens.len(),
            tokens,
            scores: Scores::default(),
            n_cached: 0,
            n_restored: None,
            preempted: 0,
            held: 0,
            long: false,
            passed: 0,
            model: model.clone(),
            sink,
            broken: false,
            cancelled: Arc::default(),
            sampler,
            text,
            submitted: Instant::now(),
            admitted: None,
            read: None,
        })
    }

    /// A flag that cancels the request.
    pub(super) fn cancel_flag(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.cancelled)
    }

    pub(super) fn is_cancelled(&self) -> bool {
        self.broken || self.cancelled.load(Ordering::Relaxed)
    }

    /// Whether the request runs, or ran until it was preempted.
    pub(super) fn is_admitted(&self) -> bool {
        self.admitted.is_some()
    }

    /// Whether it is long, if so many of its tokens come from the cache. What was long stays so until it ends.
    pub(super) fn is_long(&self, n_cached: usize) -> bool {
        self.long || self.tokens.len().saturating_sub(n_cached) > SHORT
    }

    pub(super) fn n_made(&self) -> usize {
        self.tokens.len() - self.n_prompt
    }

    /// Tokens that can be taken from a text that shares so many with this one, and has so many scores. The logits of the
    /// last one are needed, and those of all that are to be scored and whose scores are not known.
    pub(super) fn most_cached(&self, shared: usize, n_scores: usize) -> usize {
        let most = shared.min(self.tokens.len() - 1);
        match self.request.echo {
            Some(n_top) if self.scores.len() + 1 < self.n_prompt => {
                // The next token was scored as well, if it is the same one.
                let known = if n_top > 1 { 0 } else { n_scores.min(shared.saturating_sub(1)) };
                most.min(known.max(self.scores.len()))
            }
            _ => most,
        }
    }

    /// Scores that a text has for this one, if so many tokens are taken from it.
    pub(super) fn most_scored(&self, n: usize) -> usize {
        self.request.echo.map_or(n.saturating_sub(1), |_| n.min(self.n_prompt - 1))
    }

    pub(super) fn send(&mut self, event: Event) {
        if !self.broken {
            let sent = catch_unwind(AssertUnwindSafe(|| (self.sink)(event)));
            self.broken = !matches!(sent, Ok(ControlFlow::Continue(())));
        }
    }

    /// Tells the caller that the request was admitted. Returns false if it was so before.
    pub(super) fn start(
        &mut self,
        plan: usize,
        n_cached: usize,
        differs_at: Option<usize>,
        because: Option<Recomputed>,
    ) -> bool {
        if self.admitted.is_some() {
            return false;
        }
        self.admitted = Some(Instant::now());
        self.n_cached = n_cached;
        self.send(Event::Started { plan, n_cached, differs_at, because });
        true
    }

    /// Tells the caller that the cache holds so many tokens of the prompt.
    pub(super) fn progress(&mut self, held: usize) {
        if self.n_made() == 0 {
            let total = self.n_prompt;
            self.send(Event::Progress { done: held.min(total), total });
        }
    }

    /// The next tokens of the prompt were scored, with one top token at least.
    pub(super) fn scored(&mut self, mut scores: Vec<Scored>) {
        scores.iter().for_each(|score| self.scores.push(score));
        if self.request.echo == Some(0) {
            scores.iter_mut().for_each(|score| score.top.clear());
        }
        self.send(Event::Scores(scores));
    }

    /// Takes the scores that came with tokens of a cache.
    pub(super) fn take_scores(&mut self, scores: Scores) {
        let known = self.scores.len();
        if scores.len() <= known {
            return;
        }
        if let Some(n_top) = self.request.echo {
            let new = scores.of(&self.tokens[known + 1..], known, n_top);
            self.send(Event::Scores(new));
        }
        self.scores = scores;
    }

    /// Makes a token from the logits after the last one. `held`: tokens that the cache holds, of at most `n_max`.
    pub(super) fn sample(
        &mut self,
        mut row: Vec<f32>,
        ends: &[Token],
        held: usize,
        n_max: usize,
    ) -> Option<Ended> {
        self.read.get_or_insert_with(Instant::now);
        match self.make(&mut row, ends) {
            Err(e) => Some(Ended::Failed(e)),
            Ok(Some(reason)) => Some(Ended::Done(reason)),
            Ok(None) if self.request.n_predict.is_some_and(|n| self.n_made() >= n) => {
                Some(Ended::Done(StopReason::Length))
            }
            Ok(None) if held >= n_max => Some(Ended::Done(StopReason::ContextFull)),
            Ok(None) => None,
        }
    }

    fn make(&mut self, row: &mut [f32], ends: &[Token]) -> Result<Option<StopReason>> {
        let too_early = self.n_made() < self.request.n_min && !self.request.ignore_eos;
        let refused: &[Token] = if too_early { ends } else { &[] };
        let plain = self.request.n_top.map(|n_top| (n_top, row.to_vec()));
        let added = self.request.bias.iter().copied();
        for (token, bias) in added.chain(refused.iter().map(|&token| (token, f32::NEG_INFINITY))) {
            row[token as usize] += bias;
        }
        if let Some(mask) = &mut self.request.mask {
            mask.apply(row)?;
        }
        let token = self.sampler.sample(row)?;
        if !self.request.ignore_eos && self.model.vocab().is_eog(token) {
            return Ok(Some(StopReason::EndOfGeneration));
        }
        let last = self.request.mask.as_mut().map_or(Ok(false), |mask| mask.accept(token))?;
        let score = plain.map(|(n_top, row)| Scored::of(&row, token, n_top));
        self.tokens.push(token);
        let bytes = self.model.vocab().piece(token, self.request.special)?;
        let (text, stopped) = self.text.push(&bytes, self.n_made() >= self.request.n_min);
        self.send(Event::Token(Made { token, text, score }));
        let reason = if stopped { StopReason::StopString } else { StopReason::EndOfGeneration };
        Ok((stopped || last).then_some(reason))
    }

    /// Ends the request.
    pub(super) fn end(mut self, ended: Ended) {
        match ended {
            Ended::Failed(e) => self.send(Event::Failed(e)),
            Ended::Done(reason) => self.done(reason),
        }
        // What a sink and a mask own is the caller's too, and so are its panics.
        let _ = catch_unwind(AssertUnwindSafe(move || drop(self.sink)));
        let _ = catch_unwind(AssertUnwindSafe(move || drop(self.request)));
    }

    fn done(&mut self, reason: StopReason) {
        let text = self.text.finish();
        if !text.is_empty() {
            self.send(Event::Text(text));
        }
        let now = Instant::now();
        let admitted = self.admitted.unwrap_or(now);
        let read = self.read.unwrap_or(now);
        let done = Done {
            reason,
            n_prompt: self.n_prompt,
            n_cached: self.n_cached,
            n_restored: self.n_restored.unwrap_or(0).min(self.n_cached),
            n_made: self.n_made(),
            queue: admitted.duration_since(self.submitted),
            prefill: self.admitted.map_or(Duration::ZERO, |admitted| read.duration_since(admitted)),
            decode: now.duration_since(read),
            preempted: self.preempted,
        };
        self.send(Event::Done(done));
    }
}
