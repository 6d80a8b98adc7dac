//! Requests that run together: each is answered as alone, and room is shared, given up and found again. Here is how requests
//! are made, and what they are told.

mod adapters;
mod answers;
mod because;
mod disk;
mod full;
mod parts;
mod places;
mod room;
mod saved;
mod scores;
mod slots;
mod together;
mod turns;

use std::ops::ControlFlow;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use ropewalk::model::Model;
use ropewalk::scheduler::{
    Done, Event, Recomputed, Request, Scheduler, SchedulerParams, Scored, Sink, Status, Ticket,
};
use ropewalk::session::{GenerateParams, SessionParams};
use ropewalk::{DType, Token};

use super::open;
use crate::common::{params, some_tokens};

/// Shapes and methods: attention to all, recurrent layers, sliding windows, and a cache that evicts.
const PLANS: [(&str, &str); 4] = [
    ("llama-tiny", "plain"),
    ("qwen35-tiny", "plain"),
    ("gemma3-tiny", "plain"),
    ("llama-tiny", "lm-infinite:window=64,evict=true"),
];

/// A wait that no test needs.
const END: Duration = Duration::from_secs(300);

fn session(n_ctx: usize, n_seq_max: usize, rope: &str) -> SessionParams {
    params(n_ctx).n_seq_max(n_seq_max).kv_type(DType::F32).rope(Some(rope.parse().unwrap()))
}

fn start(m: &Model, how: SchedulerParams) -> Scheduler {
    Scheduler::new(m, how).unwrap_or_else(|e| panic!("{e}"))
}

fn one_plan(m: &Model, session: SessionParams) -> Scheduler {
    start(m, SchedulerParams::new(vec![session]).step_tokens(Some(40)))
}

fn request(prompt: &[Token], n: usize) -> Request {
    Request::new(prompt.to_vec()).n_predict(Some(n)).ignore_eos(true)
}

/// The events of all requests in their order, each with its request's number.
struct Log {
    sender: Sender<(usize, Event)>,
    events: Receiver<(usize, Event)>,
}

/// Holds the scheduler's thread at an event until it is opened.
struct Gate {
    reached: Receiver<()>,
    open: Sender<()>,
}

impl Gate {
    /// Waits until the thread is there.
    fn wait(&self) {
        self.reached.recv_timeout(END).expect("the event that is waited for");
    }

    fn open(self) {
        self.open.send(()).unwrap();
    }
}

/// What one request was told.
#[derive(Debug, Default)]
struct Told {
    started: Option<(usize, usize, Option<usize>)>,
    because: Option<Recomputed>,
    progress: Vec<(usize, usize)>,
    echo: Vec<Scored>,
    tokens: Vec<Token>,
    scores: Vec<Scored>,
    text: String,
    done: Option<Done>,
    failed: Option<String>,
}

impl Told {
    fn done(&self) -> &Done {
        self.done.as_ref().unwrap_or_else(|| panic!("it failed: {:?}", self.failed))
    }

    fn n_cached(&self) -> usize {
        self.started.expect("a start").1
    }

    /// Takes an event; returns true if it is the last.
    fn take(&mut self, event: Event) -> bool {
        assert!(self.done.is_none() && self.failed.is_none(), "nothing follows the end: {event:?}");
        match event {
            Event::Started { plan, n_cached, differs_at, because } => {
                self.because = because;
                assert_eq!(self.started.replace((plan, n_cached, differs_at)), None);
            }
            Event::Progress { done, total } => self.progress.push((done, total)),
            Event::Scores(scores) => self.echo.extend(scores),
            Event::Token(made) => {
                self.tokens.push(made.token);
                self.text.push_str(&made.text);
                self.scores.extend(made.score);
            }
            Event::Text(text) => self.text.push_str(&text),
            Event::Done(done) => self.done = Some(done),
            Event::Failed(e) => self.failed = Some(e.to_string()),
        }
        self.done.is_some() || self.failed.is_some()
    }
}

impl Log {
    fn new() -> Log {
        let (sender, events) = mpsc::channel();
        Log { sender, events }
    }

    fn sink(&self, id: usize) -> Sink {
        let sender = self.sender.clone();
        Box::new(move |event| {
            // A test that needs no more events has dropped its log.
            let _ = sender.send((id, event));
            ControlFlow::Continue(())
        })
    }

    /// A sink that holds the thread at the first event like this.
    fn gated(&self, id: usize, at: impl Fn(&Event) -> bool + Send + 'static) -> (Sink, Gate) {
        let ((report, reached), (open, opened)) = (mpsc::channel(), mpsc::channel::<()>());
        let (mut sink, mut held) = (self.sink(id), false);
        let gated: Sink = Box::new(move |event| {
            if !held && at(&event) {
                held = true;
                let _ = report.send(());
                assert_ne!(opened.recv_timeout(END), Err(RecvTimeoutError::Timeout));
            }
            sink(event)
        });
        (gated, Gate { reached, open })
    }

    fn next(&self) -> (usize, Event) {
        self.events.recv_timeout(END).expect("an event")
    }

    /// What `n` requests are told, until all have ended.
    fn told(&self, n: usize) -> Vec<Told> {
        let mut all: Vec<Told> = (0..n).map(|_| Told::default()).collect();
        let mut left = n;
        while left > 0 {
            let (id, event) = self.next();
            left -= usize::from(all[id].take(event));
        }
        all
    }
}

/// Runs requests, and returns what they were told.
fn run(scheduler: &Scheduler, requests: Vec<Request>) -> Vec<Told> {
    let (log, n) = (Log::new(), requests.len());
    let tickets: Vec<Ticket> = (0..)
        .zip(requests)
        .map(|(id, request)| scheduler.submit(request, log.sink(id)).unwrap_or_else(|e| panic!("{e}")))
        .collect();
    let told = log.told(n);
    drop(tickets);
    told
}

fn run_one(scheduler: &Scheduler, request: Request) -> Told {
    run(scheduler, vec![request]).remove(0)
}

/// Waits until the status is like this: it is of the last step, so a little behind events.
#[track_caller]
fn settles(scheduler: &Scheduler, like: impl Fn(&Status) -> bool) -> Status {
    let begun = Instant::now();
    loop {
        let status = scheduler.status();
        if like(&status) {
            return status;
        }
        assert!(begun.elapsed() < END, "{status:?}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The tokens and the text that a separate session makes.
fn alone(m: &Model, session: &SessionParams, prompt: &[Token], n: usize) -> (Vec<Token>, String) {
    let mut s = open(m, &session.clone().n_seq_max(1));
    let made = s.generate(prompt, &GenerateParams::greedy(n).ignore_eos(true)).unwrap();
    let (mut tokens, mut text) = (Vec::new(), String::new());
    for piece in made {
        let piece = piece.unwrap();
        tokens.extend(piece.token);
        text.push_str(&piece.text);
    }
    (tokens, text)
}

/// Prompts that share beginnings of different lengths.
fn prompts(m: &Model) -> Vec<Vec<Token>> {
    let text = some_tokens(1000, m.hparams().n_vocab);
    let after = |shared: usize, from: usize, n: usize| [&text[..shared], &text[from..from + n]].concat();
    vec![
        after(120, 400, 30),
        after(120, 500, 1),
        after(0, 600, 77),
        after(50, 700, 90),
        after(120, 800, 3),
        after(1, 900, 2),
        text[..1].to_vec(),
        text[..121].to_vec(),
    ]
}
