//! Many requests at once on one model: continuous batching over sessions, which share what they have read.
//!
//! A [`Scheduler`] is a handle to a thread that owns a session for each plan. Requests of a plan are decoded together: a step
//! takes one token of every sequence that makes text, then parts of the prompts that are being read, as many tokens as fit
//! in the time aimed at. A request begins with the longest prefix that any sequence holds, also those of ended requests.
//! These make room when it is needed, and then the youngest requests, which continue later. What leaves the cache can be kept
//! on disk, from where a later request, also of another process, takes it.

mod budget;
pub(crate) mod disk;
mod engine;
mod job;
mod past;
mod prefixes;
mod request;
mod rounds;
mod saved;
mod scores;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{mpsc, Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use ropewalk_core::remedy::Remedy;
use ropewalk_core::text::bytes;

use crate::kv::MAX_SEQS;
use crate::model::{Error, Model, Result};
use crate::rope::Spec;
use crate::session::{Packed, SeqId, Session, SessionParams};
use disk::Disk;
use engine::Engine;
use job::Job;
use past::Past;

pub use crate::session::Scored;
pub use disk::DiskParams;
pub use request::{
    Done, Event, Made, Mask, PlanInfo, PlanStatus, Recomputed, Refusal, Request, Reread, Sink, Slot,
    SlotFile, Status, StepTimes,
};

ropewalk_core::setters! {
    /// Settings of a scheduler.
    #[derive(Debug, Clone, PartialEq)]
    pub struct SchedulerParams {
        /// One session for each, of each model. A request that names none takes the first that has room for it.
        pub plans: Vec<SessionParams>,
        /// Most requests that run at once in each session; others wait. Next to requests that have more than 512 tokens to
        /// read, one more may run that has fewer. Under a plan that evicts keys, and with recurrent layers, all of them
        /// are at most [`SessionParams::n_seq_max`].
        pub n_running: usize,
        /// Most requests of one caller that wait. More are refused.
        pub n_waiting: usize,
        /// Time that a step should take while sequences decode, in milliseconds. The tokens of prompts in it are chosen by the
        /// time that each took in earlier steps at their depth, and are at least 16. While none decodes, and no prompt could be
        /// read in such a step next to longer ones, a step reads a micro-batch, or what it can in 16 times this time.
        pub step_ms: u64,
        /// Tokens of prompts in every step, instead of a number learned from time.
        pub step_tokens: Option<usize>,
        /// Tokens that a request without `n_predict` is given room for when it is admitted.
        pub reserve: usize,
        /// Whether requests may have `echo`. Each session then takes memory for the logits of a micro-batch.
        pub scores: bool,
        /// Keeps texts on disk that leave the cache, and those in it when the scheduler stops.
        pub disk: Option<DiskParams>,
    }
}

impl SchedulerParams {
    /// Four requests at once in each of these sessions, and steps of 150 ms.
    pub fn new(plans: Vec<SessionParams>) -> SchedulerParams {
        SchedulerParams {
            plans,
            n_running: 4,
            n_waiting: 64,
            step_ms: 150,
            step_tokens: None,
            reserve: 512,
            scores: true,
            disk: None,
        }
    }
}

/// A handle to a thread that answers requests. Dropping it stops the thread.
///
/// ```
/// # let dir = tempfile::tempdir()?;
/// # let path = dir.path().join("model.gguf");
/// # convert::random::write(&convert::random::Shape::named("llama-tiny")?, ropewalk::DType::Q8_0, 1, &path)?;
/// use std::ops::ControlFlow;
/// use std::sync::mpsc;
///
/// use ropewalk::scheduler::{Event, Request, Scheduler, SchedulerParams};
/// use ropewalk::{Model, ModelParams, SessionParams};
///
/// let model = Model::load(&path, &ModelParams::cpu())?;
/// let session = SessionParams::new(256).n_seq_max(2);
/// # let session = session.n_threads(1);
/// let scheduler = Scheduler::new(&model, SchedulerParams::new(vec![session]))?;
/// let (sender, events) = mpsc::channel();
/// let mut tickets = Vec::new();
/// for text in ["Once upon a time", "The rope walk"] {
///     let prompt = model.vocab().tokenize(text, true, false)?;
///     let sender = sender.clone();
///     let sink = move |event| match sender.send(event) {
///         Ok(()) => ControlFlow::Continue(()),
///         Err(_) => ControlFlow::Break(()),
///     };
///     let request = Request::new(prompt).n_predict(Some(8)).ignore_eos(true);
///     tickets.push(scheduler.submit(request, Box::new(sink))?);
/// }
/// let mut ended = 0;
/// while ended < tickets.len() {
///     match events.recv()? {
///         Event::Token(made) => print!("{}", made.text),
///         Event::Done(done) => {
///             assert_eq!(done.n_made, 8);
///             ended += 1;
///         }
///         Event::Failed(e) => panic!("{e}"),
///         _ => {}
///     }
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Scheduler {
    model: Model,
    n_models: usize,
    params: SchedulerParams,
    plans: Vec<PlanInfo>,
    shared: Arc<Shared>,
    /// The cancel flags of the sessions.
    flags: Vec<Arc<AtomicBool>>,
    disk: Option<Arc<Disk>>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// A request that was accepted. Dropping it cancels the request, whether it waits or runs. What a running request holds
/// is free after the step that is being computed.
#[derive(Debug)]
#[must_use = "dropping it cancels the request"]
pub struct Ticket {
    plan: usize,
    cancelled: Arc<AtomicBool>,
}

struct Shared {
    state: Mutex<State>,
    /// Wakes the thread.
    work: Condvar,
    /// Wakes those who wait for its end.
    end: Condvar,
}

/// Work for the thread between two steps.
type Ask = Box<dyn FnOnce(&mut [Engine]) + Send>;

#[derive(Default)]
struct State {
    /// Accepted requests that the thread has not seen, with their plans.
    new: Vec<(usize, Job)>,
    asked: Vec<Ask>,
    /// Texts read from disk, with the plan and the number of the request.
    read: Vec<(usize, u64, Option<Packed>)>,
    /// How many requests of each caller wait, as of the last step, with those that came since.
    waiting: BTreeMap<usize, usize>,
    n_requests: usize,
    status: Status,
    /// When running requests end.
    deadline: Option<Instant>,
    ended: bool,
}

impl Scheduler {
    /// Opens a session for each plan, and starts the thread.
    ///
    /// # Errors
    /// Returns an error if there is no plan, if a number is out of range, or if the caches of all plans do not fit in memory;
    /// the errors of [`Session::new`]; and if the directory for texts cannot be used, or another process uses it.
    pub fn new(model: &Model, params: SchedulerParams) -> Result<Scheduler> {
        Scheduler::with_models(std::slice::from_ref(model), params)
    }

    /// The same for one model under different adapters, as [`Model::with_adapters`] makes them. Each of them has sessions of
    /// its own, because keys belong to the adapters under which they were computed.
    ///
    /// # Errors
    /// Returns an error if there is no model; and the errors of [`Scheduler::new`].
    pub fn with_models(models: &[Model], params: SchedulerParams) -> Result<Scheduler> {
        let Some(first) = models.first() else { return Err(Error::argument("models", "at least 1", 0)) };
        if params.plans.is_empty() {
            return Err(Error::argument("plans", "at least 1", 0));
        }
        if params.n_running == 0 || params.n_running > MAX_SEQS as usize {
            return Err(Error::argument("running", format_args!("1 to {MAX_SEQS}"), params.n_running));
        }
        if params.step_tokens == Some(0) {
            return Err(Error::argument("step tokens", "at least 1", 0));
        }
        check_memory(first, models, &params.plans)?;
        let all = models.iter().flat_map(|model| params.plans.iter().map(move |plan| (model, plan)));
        let open = |(model, plan): (&Model, &SessionParams)| {
            let n_logits = if params.scores { plan.n_ubatch } else { 1 };
            Session::new(model, &plan.clone().n_logits(n_logits))
        };
        let sessions = all.map(open).collect::<Result<Vec<Session>>>()?;
        let plans = sessions.iter().map(info).collect();
        let flags = sessions.iter().map(Session::cancel_flag).collect();
        let mut stores = Vec::new();
        let mut disk = None;
        if let Some(params) = &params.disk {
            let all: Vec<&Session> = sessions.iter().collect();
            let opened = Disk::open(params, &all)?;
            (disk, stores) = (Some(opened.0), opened.1);
        }
        let mut stores = stores.into_iter();
        let past = Past::new(sessions.len(), params.plans.len());
        let engine = |(plan, session)| Engine::new(session, plan, &params, stores.next(), past.under(plan));
        let engines: Vec<Engine> = sessions.into_iter().enumerate().map(engine).collect();
        let mut state = State::default();
        engines.iter().for_each(|engine| engine.report(&mut state.status));
        let shared = Arc::new(Shared { state: Mutex::new(state), work: Condvar::new(), end: Condvar::new() });
        let (own, aim) = (Arc::clone(&shared), Duration::from_millis(params.step_ms));
        let files = disk.clone();
        let work = move || rounds::work(&own, engines, aim, files.as_deref());
        let thread = thread::Builder::new().name("scheduler".into()).spawn(work);
        let thread = thread.map_err(|e| Error::Invalid(format!("scheduler: no thread: {e}")))?;
        let (model, n_models, thread) = (first.clone(), models.len(), Mutex::new(Some(thread)));
        Ok(Scheduler { model, n_models, params, plans, shared, flags, disk, thread })
    }

    /// The plans of the first model, in the order of [`SchedulerParams::plans`], then those of the next.
    pub fn plans(&self) -> &[PlanInfo] {
        &self.plans
    }

    /// Accepts a request. Its events go to `sink`, on the scheduler's thread.
    ///
    /// # Errors
    /// Returns a [`Refusal`]; then nothing goes to `sink`.
    pub fn submit(&self, mut request: Request, sink: Sink) -> Result<Ticket, Refusal> {
        let plan = self.choose(&request)?;
        if request.echo.is_some() && !self.params.scores {
            let what = "scores of a prompt: this scheduler takes no memory for them".to_owned();
            return Err(Refusal::Invalid(Error::Unsupported(what)));
        }
        let n_ctx = self.plans[plan].n_ctx;
        request.n_predict = request.n_predict.or(self.plans[plan].n_answer);
        let mut job = Job::new(&self.model, request, n_ctx, sink).map_err(Refusal::Invalid)?;
        let (cancelled, caller) = (job.cancel_flag(), job.request.caller);
        let mut state = self.shared.lock();
        // Nobody would answer it.
        if state.deadline.is_some() || state.ended {
            return Err(Refusal::Stopping);
        }
        let running = state.status.plans.get(plan).map_or(0, |plan| plan.running);
        let free = self.params.n_running.saturating_sub(running);
        let waiting = state.waiting.entry(caller).or_default();
        if *waiting >= self.params.n_waiting.saturating_add(free) {
            return Err(Refusal::Busy);
        }
        *waiting += 1;
        state.n_requests += 1;
        job.id = state.n_requests as u64;
        state.new.push((plan, job));
        self.shared.work.notify_all();
        Ok(Ticket { plan, cancelled })
    }

    /// The plan of a request.
    fn choose(&self, request: &Request) -> Result<usize, Refusal> {
        let n_prompt = request.prompt.len();
        let (n_models, each) = (self.n_models, self.params.plans.len());
        let tried = match request.plan {
            None if request.model < n_models => request.model * each..(request.model + 1) * each,
            None => {
                let expected = format!("0 to {}", n_models - 1);
                return Err(Refusal::Invalid(Error::argument("model", expected, request.model)));
            }
            Some(plan) if plan < self.plans.len() => plan..plan + 1,
            Some(plan) => {
                let expected = format!("0 to {}", self.plans.len() - 1);
                return Err(Refusal::Invalid(Error::argument("plan", expected, plan)));
            }
        };
        let n_max = |plan: usize| self.plans[plan].n_max;
        let fitting = |n: usize| tried.clone().find(|&plan| n_prompt.saturating_add(n) <= n_max(plan));
        let found = match request.n_predict {
            Some(n) => fitting(n),
            None => fitting(self.params.reserve).or_else(|| fitting(1)),
        };
        let largest = tried.clone().max_by_key(|&plan| n_max(plan)).unwrap_or(0);
        let n_predict = request.n_predict;
        found.ok_or(Refusal::TooLong { n_prompt, n_predict, n_max: n_max(largest), plan: largest })
    }

    /// Bytes of a cache for one request of `n` tokens under a plan.
    ///
    /// # Errors
    /// Returns an error if there is no such plan, or if its method does not support that length.
    pub fn bytes_needed(&self, plan: usize, n: usize) -> Result<usize> {
        let Some(info) = self.plans.get(plan) else {
            return Err(Error::argument("plan", format_args!("0 to {}", self.plans.len() - 1), plan));
        };
        let params = &self.params.plans[plan % self.params.plans.len()];
        // What was searched for when the plan was made is in its spec.
        let params = params.clone().n_ctx(n).n_seq_max(1).rope(Some(info.spec.parse::<Spec>()?));
        Ok(Session::bytes_needed(&self.model, &params)?.saturating_sub(self.model.n_bytes()))
    }

    /// The scheduler's state as of its last step.
    pub fn status(&self) -> Status {
        let state = self.shared.lock();
        let (n_requests, waiting) = (state.n_requests, state.waiting.values().sum());
        let mut status = Status { n_requests, waiting, ..state.status.clone() };
        drop(state);
        self.disk.iter().for_each(|disk| disk.report(&mut status));
        status
    }

    /// Texts on disk that could not be used or written since the last call, and why: each is one line that names the file or
    /// the directory. No request fails because of them.
    pub fn warnings(&self) -> Vec<String> {
        self.disk.as_ref().map_or(Vec::new(), |disk| disk.warnings())
    }

    /// The sequences that hold tokens of requests whose salt begins with `owner`. Waits for the step that is being computed.
    pub fn slots(&self, owner: &[u8]) -> Vec<Slot> {
        let owner = owner.to_vec();
        let list = self.ask(move |engines| {
            engines.iter().flat_map(|engine| engine.slots(&owner)).collect::<Vec<Slot>>()
        });
        list.unwrap_or_default()
    }

    /// Empties one of [`Scheduler::slots`] in which no request runs, and removes its text from disk; returns how many tokens
    /// it held.
    ///
    /// # Errors
    /// Returns an error if there is no such sequence of this owner, or if a request runs in it; and [`Error::Interrupted`]
    /// if the scheduler has stopped.
    pub fn erase(&self, owner: &[u8], slot: usize) -> Result<usize> {
        let owner = owner.to_vec();
        self.with_slot(slot, move |engine, seq| engine.erase(&owner, seq))
    }

    /// Has the thread do something with the sequence of a slot.
    fn with_slot<T: Send + 'static>(
        &self,
        slot: usize,
        what: impl FnOnce(&mut Engine, SeqId) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let (plan, seq) = (slot / MAX_SEQS as usize, (slot % MAX_SEQS as usize) as SeqId);
        let n_plans = self.plans.len();
        let done = self.ask(move |engines| match engines.get_mut(plan) {
            Some(engine) => what(engine, seq),
            None => {
                let expected = format!("below {}", n_plans * MAX_SEQS as usize);
                Err(Error::argument("slot", expected, slot))
            }
        });
        done.unwrap_or(Err(Error::Interrupted))
    }

    /// Has the thread do something between two steps; `None` if it has ended.
    fn ask<T: Send + 'static>(&self, what: impl FnOnce(&mut [Engine]) -> T + Send + 'static) -> Option<T> {
        let (sender, answer) = mpsc::channel();
        let mut state = self.shared.lock();
        if state.ended {
            return None;
        }
        state.asked.push(Box::new(move |engines: &mut [Engine]| {
            let _ = sender.send(what(engines));
        }));
        self.shared.work.notify_all();
        drop(state);
        answer.recv().ok()
    }

    /// Accepts no more requests and cancels those that wait. Requests that run may end within `grace`, and are canceled
    /// then. What stays in the cache is written to disk, if that is kept. Returns when the thread has ended, unless a sink calls this.
    pub fn stop(&self, grace: Duration) {
        let own = lock(&self.thread).as_ref().is_some_and(|own| own.thread().id() == thread::current().id());
        let mut state = self.shared.lock();
        let now = Instant::now();
        let deadline = now.checked_add(grace).unwrap_or(now + Duration::from_secs(1 << 30));
        let deadline = state.deadline.map_or(deadline, |earlier| earlier.min(deadline));
        state.deadline = Some(deadline);
        self.shared.work.notify_all();
        while !own && !state.ended {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            let waited = self.shared.end.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        if own {
            return;
        }
        // A step that is being computed ends early.
        self.flags.iter().for_each(|flag| flag.store(true, Ordering::Relaxed));
        while !state.ended {
            state = self.shared.end.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        drop(state);
        if let Some(thread) = lock(&self.thread).take() {
            // It has caught its panics.
            let _ = thread.join();
        }
    }
}

impl Drop for Scheduler {
    fn drop(&mut self) {
        self.stop(Duration::ZERO);
    }
}

impl std::fmt::Debug for Scheduler {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Scheduler")
            .field("params", &self.params)
            .field("plans", &self.plans)
            .finish_non_exhaustive()
    }
}

impl Ticket {
    /// The plan of the request.
    pub fn plan(&self) -> usize {
        self.plan
    }

    /// Cancels the request.
    pub fn cancel(&self) {
        self.cancelled.store(true, Ordering::Relaxed);
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.cancel();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Checks that the caches of all plans fit together: memory is not taken before it is written to.
fn check_memory(first: &Model, models: &[Model], plans: &[SessionParams]) -> Result<()> {
    let mut needed = 0usize;
    for model in models {
        for params in plans {
            let own = Session::bytes_needed(model, params)?.saturating_sub(model.n_bytes());
            needed = needed.saturating_add(own);
        }
    }
    let (n, free) = (models.len() * plans.len(), first.backend_device().memory_free());
    if n == 1 || needed <= free {
        return Ok(());
    }
    let (need, left) = (bytes(needed as u64), bytes(free as u64));
    let what = format!("{n} plans need {need} for their caches, {left} is free; a smaller ctx needs less");
    Err(Error::OutOfMemory { needed, free: Some(free), what, remedy: Some(Remedy::Cache) })
}

fn info(session: &Session) -> PlanInfo {
    let (plan, n_max) = (session.plan(), session.n_max());
    PlanInfo {
        spec: plan.spec.to_string(),
        n_max,
        n_ctx: session.params().n_ctx,
        beyond_trained: n_max > session.model().hparams().n_ctx_train,
        notes: plan.notes.clone(),
        evicts: plan.evict,
        n_answer: plan.evict.then_some(session.params().n_ctx),
        summary: session.summary(),
    }
}
