//! Requests to a scheduler, and its answers.

use std::ops::ControlFlow;
use std::time::Duration;

use crate::model::{Error, Result};
use crate::sampler::SamplerParams;
use crate::session::{Scored, StopReason};
use crate::Token;

/// Takes the events of a request, on the scheduler's thread: it must not wait. The request is canceled when it breaks.
pub type Sink = Box<dyn FnMut(Event) -> ControlFlow<()> + Send>;

/// The tokens that may come next, for a request whose text has a form. Runs on the scheduler's thread, once for each token.
pub trait Mask: std::fmt::Debug + Send {
    /// Sets the logits of tokens that must not come next to minus infinity.
    ///
    /// # Errors
    /// Returns an error if no token may come next, or if that takes too long to find out.
    fn apply(&mut self, logits: &mut [f32]) -> Result<()>;
    /// Takes the token that comes next. True if nothing may follow it.
    ///
    /// # Errors
    /// Returns an error for a token that may not come next.
    fn accept(&mut self, token: Token) -> Result<bool>;
    /// The same, as far as it has come.
    fn copy(&self) -> Box<dyn Mask>;
}

impl Clone for Box<dyn Mask> {
    fn clone(&self) -> Box<dyn Mask> {
        self.copy()
    }
}

ropewalk_core::setters! {
    /// A text to continue, or to score.
    #[derive(Debug, Clone)]
    pub struct Request {
        /// The tokens of the text; at least one.
        pub prompt: Vec<Token>,
        /// The model, by its place among those that the scheduler has, if `plan` is `None`.
        pub model: usize,
        /// The plan, by its place among [`Scheduler::plans`](super::Scheduler::plans). `None` takes the first plan of the
        /// model under which the prompt and `n_predict` tokens fit. Without `n_predict`, a plan with room for
        /// [`SchedulerParams::reserve`](super::SchedulerParams) tokens goes before one with room for a single token.
        pub plan: Option<usize>,
        /// Maximum number of tokens to make; 0 only reads the prompt. `None`: as many as fit, or [`PlanInfo::n_answer`].
        pub n_predict: Option<usize>,
        /// Minimum number of tokens before an end-of-generation token, and before a text of `stop` ends the text.
        pub n_min: usize,
        /// Sampler settings. Penalties look back at most as far as the plan's context.
        pub sampler: SamplerParams,
        /// Numbers added to the logits of tokens before they are sampled. Scores are without them.
        pub bias: Vec<(Token, f32)>,
        /// The form of the text. Scores are without it.
        pub mask: Option<Box<dyn Mask>>,
        /// Texts that end the generation; they are not part of the returned text.
        pub stop: Vec<String>,
        /// Continue past end-of-generation tokens.
        pub ignore_eos: bool,
        /// Render special tokens.
        pub special: bool,
        /// Score each made token, with so many of the most likely ones.
        pub n_top: Option<usize>,
        /// Score each token of the prompt but the first, with so many of the most likely ones. With 0 or 1 of them, the
        /// scores of a beginning come from the cache if an earlier request that asked for scores has read it. Otherwise
        /// the prompt is read from where they end; with more than 1, from its start.
        pub echo: Option<usize>,
        /// Continue from what other requests have read.
        pub reuse: bool,
        /// Leave nothing in the cache for later requests.
        pub forget: bool,
        /// Requests share what they have read only if this is equal.
        pub salt: Vec<u8>,
        /// Who asks, by any number. Waiting requests of different callers are admitted in turns.
        pub caller: usize,
    }
}

impl Request {
    /// A greedy continuation of any length.
    pub fn new(prompt: Vec<Token>) -> Request {
        Request {
            prompt,
            model: 0,
            plan: None,
            n_predict: None,
            n_min: 0,
            sampler: SamplerParams::greedy(),
            bias: Vec::new(),
            mask: None,
            stop: Vec::new(),
            ignore_eos: false,
            special: false,
            n_top: None,
            echo: None,
            reuse: true,
            forget: false,
            salt: Vec::new(),
            caller: 0,
        }
    }
}

/// Why a request was not accepted.
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    /// The prompt and the tokens to be made are more than a plan can hold.
    #[error("{}", too_long(*n_prompt, *n_predict, *n_max))]
    TooLong {
        /// Tokens of the prompt.
        n_prompt: usize,
        /// Tokens to be made, if the request says.
        n_predict: Option<usize>,
        /// Tokens that one request may have under the largest of the plans.
        n_max: usize,
        /// That plan.
        plan: usize,
    },
    /// Too many requests of this caller wait.
    #[error("too many requests wait")]
    Busy,
    /// The scheduler stops.
    #[error("stopping")]
    Stopping,
    /// A setting of the request is out of range.
    #[error(transparent)]
    Invalid(Error),
}

fn too_long(n_prompt: usize, n_predict: Option<usize>, n_max: usize) -> String {
    // LangChain and others know the error by its first words, as the package `openai` shows them no code.
    let more = n_predict.map_or(String::new(), |n| format!(" and {n} to be made"));
    format!("prompt is too long: expected at most {n_max} tokens in all, found {n_prompt}{more}")
}

/// Events of a request, in order. [`Event::Done`] or [`Event::Failed`] is the last.
#[derive(Debug)]
pub enum Event {
    /// The request is admitted.
    Started {
        /// Its plan.
        plan: usize,
        /// Tokens of the prompt that were in the cache.
        n_cached: usize,
        /// The first token at which the prompt differs from the text in the cache that shares most with it; `None` if that
        /// text or the prompt ends there, or if they share nothing.
        differs_at: Option<usize>,
        /// Why tokens of the prompt have to be read that might have been in the cache. `None` if all but the last one were, or
        /// if the others are new: they go on where a cached text ends.
        because: Option<Recomputed>,
    },
    /// A part of the prompt was read.
    Progress {
        /// Tokens of the prompt that are in the cache.
        done: usize,
        /// Tokens of the prompt.
        total: usize,
    },
    /// Scores of the next tokens of the prompt, from the second one on.
    Scores(Vec<Scored>),
    /// A token was made.
    Token(Made),
    /// Text that was held back, at the end.
    Text(String),
    /// The end.
    Done(Done),
    /// An error ended the request.
    Failed(Error),
}

/// Why tokens of a prompt are read that might have been in the cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Recomputed {
    /// The request is not to continue from what others have read.
    Forbidden,
    /// They are to be scored, and their scores were not kept.
    Unscored,
    /// The cache has them, but cannot be continued from there: recurrent layers had no state, or keys had left it.
    Stateless,
    /// They were read under this plan, and have left its cache.
    Evicted,
    /// They were read under another plan of this model.
    OtherPlan,
    /// They were read under another model, as with another adapter.
    OtherModel,
    /// The text in the cache that shares most with the prompt has other tokens there.
    Differs,
    /// No text that begins like the prompt is known.
    Unknown,
}

/// A made token, and the text that is ready with it: see [`Piece`](crate::session::Piece).
#[derive(Debug, Clone, PartialEq)]
pub struct Made {
    /// The token.
    pub token: Token,
    /// Text ready to show; can be empty.
    pub text: String,
    /// Its score, if asked for.
    pub score: Option<Scored>,
}

/// How a request ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Done {
    /// The reason.
    pub reason: StopReason,
    /// Tokens of the prompt.
    pub n_prompt: usize,
    /// Tokens of the prompt that were in the cache.
    pub n_cached: usize,
    /// Those of them that were read from disk for this request.
    pub n_restored: usize,
    /// Tokens made.
    pub n_made: usize,
    /// Time until it was admitted.
    pub queue: Duration,
    /// Time until the prompt was read.
    pub prefill: Duration,
    /// Time of making tokens.
    pub decode: Duration,
    /// How often it gave its room to older requests, and continued later.
    pub preempted: usize,
}

/// A plan that requests can have.
#[derive(Debug, Clone, PartialEq)]
pub struct PlanInfo {
    /// The RoPE method, with every default filled in.
    pub spec: String,
    /// Maximum tokens of one request.
    pub n_max: usize,
    /// The context that the session was opened with.
    pub n_ctx: usize,
    /// True if a request can be longer than the trained context.
    pub beyond_trained: bool,
    /// Facts and warnings about the method, whole sentences.
    pub notes: Vec<String>,
    /// True if keys that no later token sees leave the cache.
    pub evicts: bool,
    /// Maximum tokens of an answer whose request has no number. Without it, a plan that evicts keys would never end one:
    /// there it is the context. `None`: as many as fit.
    pub n_answer: Option<usize>,
    /// The session in one line.
    pub summary: String,
}

/// A sequence that holds tokens: those of a request that runs, or of an ended one, for later requests.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Slot {
    /// Its number among the sequences of all plans.
    pub id: usize,
    /// Its plan.
    pub plan: usize,
    /// The number of the request that runs in it.
    pub request: Option<u64>,
    /// Tokens that it holds.
    pub n_held: usize,
    /// Tokens of the running request's prompt.
    pub n_prompt: usize,
    /// Those of them that were in the cache.
    pub n_cached: usize,
    /// Tokens that the running request has made.
    pub n_made: usize,
}

/// A text that was saved, or restored.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SlotFile {
    /// Its slot.
    pub slot: usize,
    /// Tokens of the text.
    pub n_tokens: usize,
    /// Bytes of the file.
    pub n_bytes: u64,
}

/// The state of a plan.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PlanStatus {
    /// Requests that run.
    pub running: usize,
    /// Requests that wait.
    pub waiting: usize,
    /// Cells of the cache.
    pub cells: usize,
    /// Cells that running requests hold.
    pub cells_used: usize,
    /// Cells that only texts of ended requests hold. They are free for new requests.
    pub cells_kept: usize,
    /// Number of these texts.
    pub n_kept: usize,
    /// Bytes of the scores that are kept with texts, running ones included: 12 for each scored token.
    pub score_bytes: usize,
}

/// The state of a scheduler, and its counts since it started.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Status {
    /// For each plan.
    pub plans: Vec<PlanStatus>,
    /// Requests that run.
    pub running: usize,
    /// Requests that wait.
    pub waiting: usize,
    /// Requests accepted.
    pub n_requests: usize,
    /// Requests ended, for whatever reason.
    pub n_ended: usize,
    /// Requests that failed.
    pub n_failed: usize,
    /// Requests that were canceled.
    pub n_cancelled: usize,
    /// Times that a request gave its room to older ones.
    pub n_preempted: usize,
    /// Tokens of admitted prompts.
    pub n_prompt: usize,
    /// Those of them that were in the cache.
    pub n_cached: usize,
    /// Those of these that were read from disk.
    pub n_restored: usize,
    /// Tokens made.
    pub n_made: usize,
    /// Texts of ended requests that were dropped or cut to make room.
    pub n_dropped: usize,
    /// Steps of all sessions.
    pub n_steps: usize,
    /// How long they took.
    pub steps: StepTimes,
    /// Tokens that were read again.
    pub reread: Reread,
    /// Texts on disk.
    pub n_on_disk: usize,
    /// Bytes of these, if texts are kept there.
    pub disk_bytes: Option<u64>,
    /// Texts read from disk.
    pub n_read: usize,
    /// Texts written there.
    pub n_written: usize,
}

/// How long steps took.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StepTimes {
    /// Steps by the first of [`StepTimes::BOUNDS`] that they did not exceed; longer ones are in none.
    pub counts: [usize; StepTimes::BOUNDS.len()],
    /// The time of all steps.
    pub total: Duration,
}

impl StepTimes {
    /// Seconds, ascending; a step aims at 0.15 of them.
    pub const BOUNDS: [f64; 11] = [0.005, 0.01, 0.025, 0.05, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5, 10.0];

    pub(super) fn add(&mut self, took: Duration) {
        if let Some(at) = StepTimes::BOUNDS.iter().position(|bound| took.as_secs_f64() <= *bound) {
            self.counts[at] += 1;
        }
        self.total += took;
    }

    pub(super) fn merge(&mut self, other: &StepTimes) {
        self.counts.iter_mut().zip(other.counts).for_each(|(n, more)| *n += more);
        self.total += other.total;
    }
}

/// Tokens that were read although a sequence held them, or had held them, by the reason.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Reread {
    /// The request had given its room to older ones.
    pub preempted: usize,
    /// The tokens were to be scored, and their scores were not kept.
    pub unscored: usize,
    /// The sequence could not be continued from there: recurrent layers had no state, or keys had left the cache.
    pub stateless: usize,
}
