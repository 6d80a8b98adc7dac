//! Text generation as an iterator over tokens and their text, with stop strings, complete characters, and
//! cancellation.

use std::collections::VecDeque;

use serde::Serialize;

use super::{SeqId, SequenceMut, Session};
use crate::model::{Error, Model, Result};
use crate::sampler::{Sampler, SamplerParams};
use crate::Token;

ropewalk_core::setters! {
    /// Limits and sampling of a generation.
    #[derive(Debug, Clone)]
    pub struct GenerateParams {
        /// Maximum number of tokens. A generation also ends when the context is full.
        pub n_predict: usize,
        /// Sampler settings.
        pub sampler: SamplerParams,
        /// Texts that end the generation; they are not part of the returned text.
        pub stop: Vec<String>,
        /// Continue past end-of-generation tokens.
        pub ignore_eos: bool,
        /// Render special tokens.
        pub special: bool,
    }
}

impl GenerateParams {
    /// Greedy generation of at most `n_predict` tokens.
    pub fn greedy(n_predict: usize) -> Self {
        GenerateParams {
            n_predict,
            sampler: SamplerParams::greedy(),
            stop: Vec::new(),
            ignore_eos: false,
            special: false,
        }
    }
}

/// The reason why a generation ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum StopReason {
    /// The model ended its text or turn.
    #[serde(rename = "end")]
    EndOfGeneration,
    /// The model generated a stop string.
    #[serde(rename = "stop")]
    StopString,
    /// `n_predict` tokens were generated.
    Length,
    /// The context is full.
    #[serde(rename = "context")]
    ContextFull,
    /// The cancel flag was set.
    Cancelled,
}

/// A generated token and the text that is ready with it. Text is complete UTF-8. The bytes of an unfinished
/// character, or of the possible start of a stop string, come with a later piece.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Piece {
    /// The token; `None` for text released at the end.
    pub token: Option<Token>,
    /// Text ready to show; can be empty.
    pub text: String,
}

/// A generation in one sequence of a session. It does not borrow the session, so many can be held at a time, one for each
/// sequence: pass the session that it was started in to each call of [`Generation::next`].
#[derive(Debug)]
pub struct Generation {
    model: Model,
    seq: SeqId,
    params: GenerateParams,
    sampler: Sampler,
    next: Option<Token>,
    made: usize,
    /// The tokens that the sequence holds.
    held: Vec<Token>,
    text: Text,
    out: VecDeque<Piece>,
    reason: Option<StopReason>,
}

/// Iterator over the pieces of a generation, with its session.
#[derive(Debug)]
pub struct Pieces<'s> {
    session: &'s mut Session,
    generation: Generation,
}

impl Session {
    /// [`SequenceMut::generate`] in sequence 0.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let path = dir.path().join("model.gguf");
    /// # convert::random::write(&convert::random::Shape::named("llama-tiny")?, ropewalk::DType::Q8_0, 1, &path)?;
    /// use std::sync::atomic::Ordering;
    /// use ropewalk::model::{Model, ModelParams};
    /// use ropewalk::session::{GenerateParams, Session, SessionParams, StopReason};
    ///
    /// let model = Model::load(&path, &ModelParams::cpu())?;
    /// let mut params = SessionParams::new(1024);
    /// params.rope = Some("harpe".parse()?);
    /// # params.n_threads = 1;
    /// let mut session = Session::new(&model, &params)?;
    /// let cancel = session.cancel_flag(); // for another thread, or a handler of Ctrl-C
    ///
    /// let prompt = model.vocab().tokenize("Once upon a time", true, false)?;
    /// let mut how = GenerateParams::greedy(64).ignore_eos(true);
    /// how.stop.push("The end".into());
    /// let mut pieces = session.generate(&prompt, &how)?;
    /// for piece in pieces.by_ref() {
    ///     print!("{}", piece?.text);
    ///     cancel.store(true, Ordering::Relaxed); // enough: this stops it
    /// }
    /// assert_eq!(pieces.stop_reason(), Some(StopReason::Cancelled));
    ///
    /// // The session is as good as before; the prompt is still in its cache.
    /// cancel.store(false, Ordering::Relaxed);
    /// assert!(session.tokens(0).starts_with(&prompt));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn generate(&mut self, prompt: &[Token], params: &GenerateParams) -> Result<Pieces<'_>> {
        self.sequence(0).generate(prompt, params)
    }
}

impl<'s> SequenceMut<'s> {
    /// Makes the sequence hold `prompt` (see [`SequenceMut::prompt`]), then generates after it.
    ///
    /// # Errors
    /// Returns an error if a stop text is empty, or if sampler settings are out of range; and the errors of
    /// [`SequenceMut::prompt`].
    pub fn generate(self, prompt: &[Token], params: &GenerateParams) -> Result<Pieces<'s>> {
        let generation = Generation::new(self.session, self.id, prompt, params)?;
        Ok(Pieces { session: self.session, generation })
    }
}

impl Generation {
    /// Makes sequence `seq` hold `prompt` (see [`SequenceMut::prompt`]), and samples the first token after it.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let path = dir.path().join("model.gguf");
    /// # convert::random::write(&convert::random::Shape::named("llama-tiny")?, ropewalk::DType::Q8_0, 1, &path)?;
    /// use ropewalk::session::{GenerateParams, Generation, Session, SessionParams};
    /// use ropewalk::{Model, ModelParams};
    ///
    /// let model = Model::load(&path, &ModelParams::cpu())?;
    /// let mut params = SessionParams::new(512);
    /// params.n_seq_max = 2;
    /// # params.n_threads = 1;
    /// let mut session = Session::new(&model, &params)?;
    /// let how = GenerateParams::greedy(8).ignore_eos(true);
    /// let mut running = Vec::new();
    /// for (seq, text) in (0..).zip(["Once upon a time", "The rope walk"]) {
    ///     let prompt = model.vocab().tokenize(text, true, false)?;
    ///     running.push((Generation::new(&mut session, seq, &prompt, &how)?, String::new()));
    /// }
    /// // In turns, until both have ended.
    /// let mut more = true;
    /// while std::mem::take(&mut more) {
    ///     for (generation, text) in &mut running {
    ///         if let Some(piece) = generation.next(&mut session) {
    ///             text.push_str(&piece?.text);
    ///             more = true;
    ///         }
    ///     }
    /// }
    /// assert!(running.iter().all(|(_, text)| !text.is_empty()));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Returns an error if a stop text is empty, or if sampler settings are out of range; and the errors of
    /// [`SequenceMut::prompt`].
    pub fn new(session: &mut Session, seq: SeqId, prompt: &[Token], params: &GenerateParams) -> Result<Self> {
        let model = session.model.clone();
        let mut sampler = Sampler::new(&params.sampler, model.vocab(), session.params.n_ctx)?;
        let text = Text::new(params.stop.clone())?;
        prompt.iter().for_each(|&t| sampler.accept(t));
        let mut sequence = session.sequence(seq);
        let (logits, _) = sequence.prompt(prompt)?;
        let next = (params.n_predict > 0).then(|| sampler.sample(logits)).transpose()?;
        let reason = next.is_none().then_some(StopReason::Length);
        Ok(Generation {
            model,
            seq,
            params: params.clone(),
            sampler,
            next,
            made: 0,
            held: session.tokens(seq).to_vec(),
            text,
            out: VecDeque::new(),
            reason,
        })
    }

    /// The sequence that the generation extends.
    pub fn seq(&self) -> SeqId {
        self.seq
    }

    /// The reason, once the generation has ended.
    pub fn stop_reason(&self) -> Option<StopReason> {
        self.reason
    }

    /// The next token and its text; `None` once the generation has ended. The token is decoded before it is returned, unless
    /// it is the last one. [`Session::advance`] decodes for several generations at once.
    ///
    /// # Errors
    /// Returns an error if the sequence was changed since the last call, or if decoding fails. The generation ends there.
    pub fn next(&mut self, session: &mut Session) -> Option<Result<Piece>> {
        let done = self.emit(session).and_then(|token| match token {
            Some(token) => self.accept(session.sequence(self.seq).append(&[token])),
            None => Ok(()),
        });
        match done {
            Ok(()) => self.pop().map(Ok),
            Err(e) => Some(Err(self.fail(e))),
        }
    }

    /// Makes the next piece, unless one is ready. Returns its token if that is to be decoded.
    pub(super) fn emit(&mut self, session: &Session) -> Result<Option<Token>> {
        if !self.out.is_empty() || self.reason.is_some() {
            return Ok(None);
        }
        let found = session.tokens(self.seq);
        if found != self.held {
            let (seq, held, n) = (self.seq, self.held.len(), found.len());
            let found = if n == held { "others".to_owned() } else { n.to_string() };
            let what = format!("generation: expected sequence {seq} to hold {held} tokens, found {found}");
            return Err(Error::Invalid(what));
        }
        let Some(token) = self.next.take() else {
            self.reason.get_or_insert(StopReason::Length);
            return Ok(None);
        };
        if !self.params.ignore_eos && self.model.vocab().is_eog(token) {
            self.end(StopReason::EndOfGeneration);
            return Ok(None);
        }
        self.made += 1;
        let (text, stopped) = self.text.push(&self.model.vocab().piece(token, self.params.special)?, true);
        self.out.push_back(Piece { token: Some(token), text });
        if stopped {
            self.end(StopReason::StopString);
        } else if self.made >= self.params.n_predict {
            self.end(StopReason::Length);
        } else if session.n_room() == 0 || self.held.len() >= session.n_max() {
            self.end(StopReason::ContextFull);
        } else {
            self.held.push(token);
            return Ok(Some(token));
        }
        Ok(None)
    }

    /// Samples the token after the one that was decoded, from its logits.
    pub(super) fn accept(&mut self, logits: Result<&[f32]>) -> Result<()> {
        match logits {
            Ok(logits) => {
                self.next = Some(self.sampler.sample(logits)?);
            }
            Err(Error::Interrupted) => self.end(StopReason::Cancelled),
            // Other sequences have taken the last cells.
            Err(Error::ContextFull { .. }) => self.end(StopReason::ContextFull),
            Err(e) => return Err(e),
        }
        Ok(())
    }

    /// A piece that is ready; at the end, the text that was held back.
    pub(super) fn pop(&mut self) -> Option<Piece> {
        if let Some(piece) = self.out.pop_front() {
            return Some(piece);
        }
        self.reason?;
        let text = self.text.finish();
        (!text.is_empty()).then_some(Piece { token: None, text })
    }

    pub(super) fn fail(&mut self, error: Error) -> Error {
        self.end(StopReason::Cancelled);
        self.text.finish();
        self.out.clear();
        error
    }

    fn end(&mut self, reason: StopReason) {
        self.reason = Some(reason);
        self.next = None;
    }
}

/// The text of a generation as it gets ready: whole characters that cannot become part of a stop string.
#[derive(Debug)]
pub(crate) struct Text {
    stop: Vec<String>,
    pending: Vec<u8>,
}

impl Text {
    /// # Errors
    /// Returns an error if a stop text is empty.
    pub(crate) fn new(stop: Vec<String>) -> Result<Text> {
        if stop.iter().any(String::is_empty) {
            return Err(Error::argument("stop", "a text", "an empty one"));
        }
        Ok(Text { stop, pending: Vec::new() })
    }

    /// Adds the bytes of a token. Returns the text that is ready, and whether a stop string ended it, which only
    /// happens where the text `may_stop`.
    pub(crate) fn push(&mut self, bytes: &[u8], may_stop: bool) -> (String, bool) {
        self.pending.extend(bytes);
        let stop: &[String] = if may_stop { &self.stop } else { &[] };
        let found = stop.iter().filter_map(|s| find(&self.pending, s.as_bytes())).min();
        if let Some(at) = found {
            self.pending.truncate(at);
            return (self.finish(), true);
        }
        let held = stop.iter().map(|s| longest_start(&self.pending, s.as_bytes())).max().unwrap_or(0);
        let ready = whole_characters(&self.pending[..self.pending.len() - held]);
        let rest = self.pending.split_off(ready);
        let shown = std::mem::replace(&mut self.pending, rest);
        (String::from_utf8_lossy(&shown).into_owned(), false)
    }

    /// The text that was held back.
    pub(crate) fn finish(&mut self) -> String {
        String::from_utf8_lossy(&std::mem::take(&mut self.pending)).into_owned()
    }
}

impl Pieces<'_> {
    /// The reason, once the iterator has ended.
    pub fn stop_reason(&self) -> Option<StopReason> {
        self.generation.reason
    }
}

impl Iterator for Pieces<'_> {
    type Item = Result<Piece>;

    fn next(&mut self) -> Option<Self::Item> {
        self.generation.next(self.session)
    }
}

/// The first place of `what` in a text.
pub fn find(text: &[u8], what: &[u8]) -> Option<usize> {
    text.windows(what.len()).position(|w| w == what)
}

/// Length of the longest suffix of `text` that is a proper prefix of `what`.
pub fn longest_start(text: &[u8], what: &[u8]) -> usize {
    (1..what.len().min(text.len() + 1)).rev().find(|&n| text.ends_with(&what[..n])).unwrap_or(0)
}

/// Length of `bytes` without an unfinished character at its end.
pub fn whole_characters(bytes: &[u8]) -> usize {
    let last = bytes.utf8_chunks().last().map_or(&[][..], |chunk| chunk.invalid());
    let unfinished = std::str::from_utf8(last).is_err_and(|e| e.error_len().is_none());
    bytes.len() - if unfinished { last.len() } else { 0 }
}
