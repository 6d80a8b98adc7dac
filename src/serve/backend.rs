//! The trait [`Backend`], which answers requests, and the plain types that cross it. The rest of the crate turns HTTP
//! into a [`Job`] and its [`Event`]s into answers.

use std::any::Any;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use ropewalk_core::rope::ReachView;
use serde_json::{Map, Value};
use tokio::sync::mpsc::UnboundedSender;

/// A model under its plans, with a vocabulary and a chat template. Every function may be called from several threads.
/// Those that may take long are called on threads that may block.
pub trait Backend: Send + Sync + 'static {
    /// The models and plans served.
    fn card(&self) -> &Card;
    /// The tokens of a text: with the tokens that the model wants around it, and with the names of special tokens read
    /// as these tokens.
    fn tokenize(&self, text: &str, add_special: bool, parse_special: bool) -> Result<Vec<i32>, Fault>;
    /// The bytes of a token, special ones by name; none outside the vocabulary.
    fn piece(&self, token: i32) -> Vec<u8>;
    /// The chat template's text of a conversation, with the assistant's turn opened at its end if `open`.
    fn render(&self, messages: &[Value], variables: &Map<String, Value>, open: bool)
        -> Result<String, Fault>;
    /// The prompt of a conversation as tokens. Names of special tokens in the messages are text, unless the server trusts
    /// the messages.
    fn chat_tokens(
        &self,
        messages: &[Value],
        variables: &Map<String, Value>,
        open: bool,
    ) -> Result<ChatPrompt, Fault>;
    /// Prepares a form of answers, or says why it cannot be.
    fn rule(&self, shape: &Shape) -> Result<Rule, Fault>;
    /// Queues a job, without waiting. Its events go into the channel. A closed channel cancels it too.
    fn submit(&self, job: Job, events: UnboundedSender<Event>) -> Result<Ticket, Fault>;
    /// Bytes of a cache for one request of so many tokens under a plan.
    fn bytes(&self, plan: usize, n: usize) -> Result<usize, Fault>;
    /// For each kind of layer, its layers, and which keys they see at which distances within `n` tokens under a plan.
    fn reach(&self, plan: usize, n: usize) -> Result<Vec<(Vec<usize>, ReachView)>, Fault>;
    /// Prompts with numbers to be found, of at most `n` tokens with the answer.
    fn passkeys(&self, n: usize, count: usize) -> Result<Vec<Passkey>, Fault>;
    /// The cached texts of jobs whose salt begins with `owner`. May wait for a step.
    fn slots(&self, owner: &[u8]) -> Vec<Slot>;
    /// Empties one of them that no job has; returns how many tokens it held. May wait for a step.
    fn erase(&self, owner: &[u8], slot: usize) -> Result<usize, Fault>;
    /// Saves the text of one of them that no job has under a name of its owner's. May wait for a step and the disk.
    fn save(&self, owner: &[u8], slot: usize, name: &str) -> Result<SlotFile, Fault>;
    /// Puts a saved text into one of them, for jobs with this salt, and says where it is. May wait for a step and the disk.
    fn restore(&self, owner: &[u8], salt: &[u8], slot: usize, name: &str) -> Result<SlotFile, Fault>;
    /// Counts of now.
    fn status(&self) -> Status;
    /// An image as SVG: at which distance each of `n` tokens sees each earlier one under a plan. A plan where all are seen
    /// at their own distances has none.
    fn map(&self, plan: usize, n: usize) -> Result<String, Fault>;
}

/// The models and plans served, and the limits of requests.
#[derive(Debug, Clone, Default)]
pub struct Card {
    /// The model's name in requests and answers.
    pub id: String,
    /// When the model was loaded, in seconds since 1970.
    pub created: u64,
    /// `system_fingerprint`: what the model's answers depend on.
    pub fingerprint: String,
    /// The context that the model was trained with.
    pub n_ctx_train: usize,
    /// Parameters.
    pub n_params: u64,
    /// Bytes of the tensors.
    pub n_bytes: u64,
    /// Tokens of the vocabulary.
    pub n_vocab: usize,
    /// Width of the embeddings.
    pub n_embd: usize,
    /// The text of the token that begins a text, if texts are begun by one.
    pub bos: Option<String>,
    /// The text of the token that ends a text.
    pub eos: Option<String>,
    /// The chat template.
    pub chat_template: Option<String>,
    /// The name of the model's file, without directories.
    pub file: String,
    /// The program and its version.
    pub build: String,
    /// How tokens are chosen for requests that do not say.
    pub sampling: Sampling,
    /// Most jobs that run at once under each plan.
    pub n_running: usize,
    /// Whether texts of slots can be saved.
    pub saves: bool,
    /// The names of adapters, which requests choose in place of the model.
    pub adapters: Vec<String>,
    /// The scales that they were loaded with.
    pub scales: Vec<f32>,
    /// The plans of the model, in the order in which `auto` tries them; at least one. Then as many for each adapter.
    pub plans: Vec<PlanCard>,
}

impl Card {
    /// Names that requests can give as their model, each with its plans.
    pub(crate) fn models(&self) -> impl Iterator<Item = (&str, &[PlanCard])> {
        let each = self.plans.len() / (1 + self.adapters.len());
        let names = std::iter::once(&self.id).chain(&self.adapters).map(String::as_str);
        names.zip(self.plans.chunks(each.max(1)))
    }

    /// The name of a plan among those of all adapters.
    pub(crate) fn label(&self, plan: usize) -> String {
        let of_adapter = |name: &str, plan: &PlanCard| match name == self.id {
            true => plan.name.clone(),
            false => format!("{name}@{}", plan.name),
        };
        let mut labels = self.models().flat_map(|(name, plans)| plans.iter().map(move |plan| (name, plan)));
        labels.nth(plan).map_or_else(String::new, |(name, plan)| of_adapter(name, plan))
    }
}

/// A plan that requests can name.
#[derive(Debug, Clone, Default)]
pub struct PlanCard {
    /// The spec as the user typed it: the name in requests.
    pub name: String,
    /// The spec with its defaults.
    pub spec: String,
    /// Tokens that one request may have, answer included.
    pub n_max: usize,
    /// Whether that is more than the model was trained with.
    pub beyond_trained: bool,
    /// Whether a request needs the same memory at any length.
    pub evicts: bool,
    /// Most tokens of an answer whose request does not say; none for as many as fit.
    pub n_answer: Option<usize>,
    /// Notes about the plan.
    pub notes: Vec<String>,
}

/// A job that was taken.
pub struct Ticket {
    /// Its plan, by number.
    pub plan: usize,
    /// Dropping it cancels the job.
    pub guard: Box<dyn Send>,
}

/// A conversation as a prompt.
pub struct ChatPrompt {
    /// The tokens of the template's text.
    pub tokens: Vec<i32>,
    /// Splits the answer into reasoning and text if the argument is true, and gives control tokens that mark calls as
    /// text; a new one for each answer.
    pub split: Box<dyn Fn(bool) -> Box<dyn Split> + Send>,
    /// Texts that end the answer, in addition to those of the request.
    pub stop: Vec<String>,
    /// The mark that ends the thinking that the prompt begins.
    pub thinks: Option<&'static str>,
    /// The text before an answer that does not think.
    pub header: Vec<Bit>,
}

/// A form that an answer must have: one of some series.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Shape {
    /// Thinking goes before, up to this.
    pub thinks: Option<&'static str>,
    /// Any text goes before, up to this; an answer may also end without it.
    pub trigger: Option<&'static str>,
    /// The series.
    pub any: Vec<Series>,
}

/// A beginning, one item or several, and an end.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Series {
    /// The beginning.
    pub begin: Vec<Bit>,
    /// The forms that an item may have.
    pub one_of: Vec<Vec<Bit>>,
    /// The text between items; none if there is a single one.
    pub between: Option<Vec<Bit>>,
    /// The end.
    pub end: Vec<Bit>,
}

/// A part of a [`Series`].
#[derive(Debug, Clone, PartialEq)]
pub enum Bit {
    /// A text.
    Text(String),
    /// A text that the vocabulary may have as a special token.
    Mark(&'static str),
    /// A little white space, or none.
    Space,
    /// Any text that does not begin with this character, nor with white space.
    Free(char),
    /// JSON of a schema. Words of the schema that are not known are errors if it is strict, else they are left out.
    Json {
        /// The schema: an object.
        schema: Value,
        /// Whether all of it holds.
        strict: bool,
    },
}

/// A [`Shape`] that a backend has prepared.
#[derive(Debug, Clone)]
pub struct Rule(pub Arc<dyn Any + Send + Sync>);

/// Splits an answer that comes in pieces.
pub trait Split: Send {
    /// Takes the text that came with a token (none at the end); returns the parts that are ready, true for reasoning.
    fn push(&mut self, token: Option<i32>, text: &str) -> Vec<(bool, String)>;
    /// The parts that were held back.
    fn finish(&mut self) -> Vec<(bool, String)>;
}

/// A prompt with a number to be found.
pub struct Passkey {
    /// The tokens.
    pub prompt: Vec<i32>,
    /// Most tokens of the answer.
    pub max_tokens: usize,
    /// Whether an answer has the number.
    pub is_found: Box<dyn Fn(&str) -> bool + Send>,
}

/// One prompt to be answered once.
#[derive(Debug, Clone, Default)]
pub struct Job {
    /// The tokens; at least one.
    pub prompt: Vec<i32>,
    /// The model asked: 0 for the model itself, then the adapters in their order.
    pub model: usize,
    /// The plan by its number among all; none for the first of the model's that fits.
    pub plan: Option<usize>,
    /// Most tokens to generate; 0 reads the prompt only. None is the plan's own number.
    pub max_tokens: Option<usize>,
    /// How tokens are chosen.
    pub sampling: Sampling,
    /// Added to the logits of tokens, -100 to 100.
    pub bias: Vec<(i32, f32)>,
    /// The form of the answer. Log-probabilities are without it.
    pub rule: Option<Rule>,
    /// Texts that end the answer and are not part of it.
    pub stop: Vec<String>,
    /// Generates on after the model has ended its text.
    pub ignore_eos: bool,
    /// Shows special tokens by name in the text.
    pub special: bool,
    /// Asks for log-probabilities of the generated tokens, with so many of the most likely ones.
    pub n_top: Option<usize>,
    /// The same of the prompt's tokens, from the second on.
    pub echo: Option<usize>,
    /// Whether the beginning of the prompt may come from the cache.
    pub reuse: bool,
    /// Whether the job leaves nothing in the cache.
    pub forget: bool,
    /// Only jobs with equal salts share beginnings.
    pub salt: Vec<u8>,
    /// Who asks, by the number of the key. Callers take turns.
    pub caller: usize,
}

/// How tokens are chosen. What is `None` is the server's own setting.
#[derive(Debug, Clone, Default, PartialEq)]
#[allow(missing_docs)] // The names of the request, which docs/guide/serving.md describes.
pub struct Sampling {
    pub temperature: Option<f32>,
    pub top_p: Option<f32>,
    pub top_k: Option<i32>,
    pub min_p: Option<f32>,
    pub typical_p: Option<f32>,
    pub repeat_penalty: Option<f32>,
    pub repeat_last_n: Option<i32>,
    pub frequency_penalty: Option<f32>,
    pub presence_penalty: Option<f32>,
    pub dry_multiplier: Option<f32>,
    pub dry_base: Option<f32>,
    pub dry_allowed_length: Option<i32>,
    pub dry_penalty_last_n: Option<i32>,
    pub seed: Option<u32>,
    /// The end of the text is not chosen before so many tokens.
    pub min_tokens: Option<usize>,
}

/// Events of a job, in order. `Done` or `Failed` comes last.
#[derive(Debug, Clone)]
pub enum Event {
    /// The job runs.
    Started {
        /// Tokens of the prompt that were cached.
        n_cached: usize,
        /// The first token of the prompt at which the most similar cached text differs.
        differs_at: Option<usize>,
        /// Why tokens are read that might have been cached, in a word for clients.
        because: Option<&'static str>,
    },
    /// A step of the prompt is done.
    Progress {
        /// Tokens of the prompt that are held.
        done: usize,
        /// Tokens of the prompt.
        total: usize,
    },
    /// Log-probabilities of the prompt's tokens from the second on, in parts.
    Scores(Vec<Scored>),
    /// A generated token.
    Token {
        /// The token.
        token: i32,
        /// The text that is ready with it; may be empty.
        text: String,
        /// Its log-probability, if the job asks for it.
        score: Option<Scored>,
    },
    /// Text that was held back, at the end.
    Text(String),
    /// The job is done.
    Done(Done),
    /// The job failed: why, in one line.
    Failed(String),
}

/// A token's log-probability, before any sampler.
#[derive(Debug, Clone, PartialEq)]
pub struct Scored {
    /// The token.
    pub token: i32,
    /// The natural logarithm of its probability.
    pub logprob: f32,
    /// The most likely tokens, best first.
    pub top: Vec<(i32, f32)>,
}

/// How a job went.
#[derive(Debug, Clone)]
pub struct Done {
    /// Why it ended.
    pub reason: Reason,
    /// Tokens of the prompt.
    pub n_prompt: usize,
    /// Of these, from the cache.
    pub n_cached: usize,
    /// Of these, read from disk.
    pub n_restored: usize,
    /// Generated tokens.
    pub n_made: usize,
    /// Time in the queue.
    pub queue: Duration,
    /// Time from the start to the end of the prompt.
    pub prefill: Duration,
    /// Time from the end of the prompt to the end.
    pub decode: Duration,
    /// How often it was put back and read again.
    pub preempted: usize,
}

/// Why a job ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// The model ended its text or turn.
    End,
    /// A stop text.
    Stop,
    /// `max_tokens`.
    Length,
    /// The plan's context is full.
    Context,
    /// The client went, or the server stops.
    Cancelled,
}

/// A text in a cache: that of a job that runs, or of an ended one, for later jobs.
#[derive(Debug, Clone, Default)]
pub struct Slot {
    /// Its number.
    pub id: usize,
    /// Its plan, by number.
    pub plan: usize,
    /// The number of the job that runs in it.
    pub job: Option<u64>,
    /// Tokens that are held.
    pub n_held: usize,
    /// Tokens of the job's prompt.
    pub n_prompt: usize,
    /// Of these, from the cache.
    pub n_cached: usize,
    /// Tokens that the job has made.
    pub n_made: usize,
}

/// A text that was saved, or restored.
#[derive(Debug, Clone, Copy, Default)]
pub struct SlotFile {
    /// Its slot.
    pub slot: usize,
    /// Its tokens.
    pub n_tokens: usize,
    /// Bytes of its file.
    pub n_bytes: u64,
}

/// Counts of a backend: of now, and since it started.
#[derive(Debug, Clone, Default)]
pub struct Status {
    /// Jobs that run.
    pub running: usize,
    /// Jobs that wait.
    pub waiting: usize,
    /// Whether no new jobs are taken.
    pub stopping: bool,
    /// Cells in use and in all, for each plan.
    pub cells: Vec<(usize, usize)>,
    /// Jobs that were put back so far.
    pub preempted: u64,
    /// Cached beginnings that were dropped so far.
    pub evicted: u64,
    /// Bytes of the scores that are kept with cached texts.
    pub score_bytes: u64,
    /// Tokens that were read again so far, by why.
    pub reread: Vec<(&'static str, u64)>,
    /// Steps so far.
    pub steps: u64,
    /// Seconds of all steps.
    pub step_seconds: f64,
    /// Steps by how many seconds they took at most, ascending: each counts where it fits first.
    pub step_buckets: Vec<(f64, u64)>,
    /// Bytes of beginnings on disk, if any are kept there.
    pub on_disk: Option<u64>,
}

/// Why a request is not answered.
#[derive(Debug, Clone)]
pub struct Fault {
    /// Which kind; decides the status.
    pub kind: FaultKind,
    /// The expected and the found value, in one line.
    pub message: String,
    /// The field of the request.
    pub param: Option<String>,
}

/// The kinds of [`Fault`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FaultKind {
    /// The request is wrong.
    Invalid,
    /// The prompt, or the prompt and the answer, are longer than the plan allows.
    TooLong {
        /// Tokens of the prompt.
        n_prompt: usize,
        /// Tokens of the answer that the request asks for.
        n_predict: Option<usize>,
        /// Tokens that one request may have.
        n_max: usize,
        /// The plan, by number: the largest that was tried.
        plan: usize,
    },
    /// No model or plan of this name.
    NotFound,
    /// Too many jobs of this caller wait.
    Busy,
    /// The server stops.
    Stopping,
    /// A fault of the server.
    Server,
}

impl Fault {
    /// A fault of this kind.
    pub fn new(kind: FaultKind, message: impl fmt::Display) -> Fault {
        Fault { kind, message: message.to_string(), param: None }
    }

    /// A wrong request, with the field that is wrong.
    pub fn invalid(param: &str, message: impl fmt::Display) -> Fault {
        Fault { kind: FaultKind::Invalid, message: message.to_string(), param: Some(param.to_owned()) }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}
