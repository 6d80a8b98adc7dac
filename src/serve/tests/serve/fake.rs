//! A model over bytes that answers with the last text of its prompt, backwards.

mod job;

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};

use ropewalk_core::rope::{BranchView, ReachView};
use ropewalk_serve::{
    Backend, Bit, Card, ChatPrompt, Event, Fault, FaultKind, Job, Passkey, PlanCard, Rule, Sampling, Scored,
    Shape, Slot, SlotFile, Split, Status, Ticket,
};
use serde_json::{Map, Value};
use tokio::sync::mpsc::UnboundedSender;

use crate::client::LONG;

pub(crate) const BOS: i32 = 256;
pub(crate) const EOS: i32 = 257;
const OPEN: i32 = 258;
const CLOSE: i32 = 259;
const THINK: i32 = 260;
const ANSWER: i32 = 261;
/// Special tokens, from 256.
const NAMES: [&str; 6] = ["<s>", "</s>", "<|open|>", "<|close|>", "<think>", "</think>"];
const N_VOCAB: usize = 256 + NAMES.len();

/// Settings of a test, and the events it waits for.
#[derive(Default)]
pub(crate) struct State {
    /// Tokens that may still be made; none is without end.
    pub(crate) allowed: Option<usize>,
    /// Why jobs are refused.
    pub(crate) refuses: Option<FaultKind>,
    /// Jobs fail after so many tokens.
    pub(crate) fails: Option<usize>,
    pub(crate) stopping: bool,
    /// The model's answer, instead of its rule.
    pub(crate) script: Option<String>,
    /// Text comes with every so many tokens; 0 is each.
    pub(crate) pace: usize,
    /// The messages and the variables of chats.
    pub(crate) chats: Vec<(Vec<Value>, Map<String, Value>)>,
    /// The forms of answers.
    pub(crate) shapes: Vec<Shape>,
    pub(crate) jobs: Vec<Job>,
    /// Salts, slots, and names of texts that were saved.
    pub(crate) saved: Vec<(Vec<u8>, usize, String)>,
    pub(crate) saves_wait: bool,
    pub(crate) erased: Vec<usize>,
    /// Tickets dropped early.
    pub(crate) cancelled: usize,
    pub(crate) running: usize,
    /// Names of the threads that asked for the bytes of tokens.
    pub(crate) threads: BTreeSet<String>,
}

pub(crate) struct Fake {
    card: Card,
    shared: Arc<(Mutex<State>, Condvar)>,
}

impl Fake {
    pub(crate) fn new() -> Fake {
        let plan = |name: &str, spec: &str, n_max| PlanCard {
            name: name.into(),
            spec: spec.into(),
            n_max,
            beyond_trained: n_max > 64,
            evicts: n_max > 256,
            n_answer: (n_max > 256).then_some(50),
            notes: Vec::new(),
        };
        let card = Card {
            id: "bytes".into(),
            created: 1,
            fingerprint: "fp".into(),
            n_ctx_train: 64,
            n_vocab: N_VOCAB,
            bos: Some(NAMES[0].into()),
            eos: Some(NAMES[1].into()),
            chat_template: Some("{{ messages }}".into()),
            file: "bytes.gguf".into(),
            build: "fake 1".into(),
            sampling: Sampling { temperature: Some(0.7), top_k: Some(40), ..Sampling::default() },
            n_running: 2,
            plans: vec![
                plan("plain", "plain", 64),
                plan("yarn:factor=4", "yarn:factor=4,beta=32", 256),
                plan("streaming", "streaming", 1 << 24),
            ],
            ..Card::default()
        };
        Fake { card, shared: Arc::default() }
    }

    /// One with two adapters.
    pub(crate) fn adapted() -> Fake {
        let mut fake = Fake::new();
        (fake.card.adapters, fake.card.scales) = (vec!["novels".into(), "laws".into()], vec![1.0, 0.5]);
        fake.card.plans = vec![fake.card.plans; 3].concat();
        fake
    }

    /// One that can save texts.
    pub(crate) fn saving() -> Fake {
        let mut fake = Fake::new();
        fake.card.saves = true;
        fake
    }

    /// One with this chat template, which says this.
    pub(crate) fn saying(template: &str, script: &str) -> Fake {
        let mut fake = Fake::new();
        fake.card.chat_template = Some(template.to_owned());
        fake.card.plans[0].n_max = 4096;
        fake.set(|state| state.script = Some(script.to_owned()));
        fake
    }

    /// One without a chat template, which says this.
    pub(crate) fn untemplated(script: &str) -> Fake {
        let mut fake = Fake::saying("", script);
        fake.card.chat_template = None;
        fake
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.shared.0.lock().unwrap()
    }

    /// Changes the state and wakes the jobs.
    pub(crate) fn set(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state());
        self.shared.1.notify_all();
    }

    /// Waits until the state is so; fails after a time that is long for any machine.
    #[track_caller]
    pub(crate) fn wait(&self, so: impl Fn(&State) -> bool) {
        let (state, time) = self.shared.1.wait_timeout_while(self.state(), LONG, |s| !so(s)).unwrap();
        let (running, cancelled) = (state.running, state.cancelled);
        assert!(!time.timed_out(), "after five minutes: {running} run, {cancelled} were cancelled");
    }

    fn text(messages: &[Value], variables: &Map<String, Value>, open: bool) -> Vec<(i32, String)> {
        let turn = |m: &Value| {
            let text =
                format!("{}\n{}", m["role"].as_str().unwrap(), m["content"].as_str().unwrap_or_default());
            [(OPEN, text), (CLOSE, String::new())]
        };
        let mut out: Vec<(i32, String)> = messages.iter().flat_map(turn).collect();
        if open {
            out.push((OPEN, "assistant\n".into()));
        }
        if variables.get("enable_thinking") == Some(&Value::Bool(true)) {
            out.push((THINK, String::new()));
        }
        out
    }
}

fn bytes(token: i32) -> Vec<u8> {
    match u8::try_from(token) {
        Ok(byte) => vec![byte],
        Err(_) => NAMES.get((token - 256) as usize).map_or(Vec::new(), |name| name.as_bytes().to_vec()),
    }
}

/// The model's answer to a prompt.
fn answer(prompt: &[i32]) -> Vec<i32> {
    let end = prompt.iter().rposition(|t| *t == CLOSE).unwrap_or(prompt.len());
    let start = prompt[..end].iter().rposition(|t| *t > 255).map_or(0, |at| at + 1);
    let mut last = prompt[start..end].to_vec();
    if end < prompt.len() {
        let role = last.iter().position(|t| *t == 10).unwrap();
        last.drain(..=role);
    }
    let backwards = last.iter().rev().copied().collect::<Vec<_>>();
    let thinks = prompt.last() == Some(&THINK);
    let thought = if thinks { [last, vec![ANSWER]].concat() } else { Vec::new() };
    [thought, backwards, vec![EOS]].concat()
}

/// A log-probability of a token after another, where `best` is the one that the rule says.
pub(crate) fn logprob(before: i32, token: i32, best: i32) -> f32 {
    if token == best {
        -0.1
    } else if token == 0 {
        f32::NEG_INFINITY
    } else {
        -1.3 - ((token * 31 + before * 17) % 97) as f32 / 7.0
    }
}

fn scored(before: i32, token: i32, best: i32, n_top: usize) -> Scored {
    let mut all: Vec<(i32, f32)> = (0..N_VOCAB as i32).map(|t| (t, logprob(before, t, best))).collect();
    all.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    all.truncate(n_top);
    Scored { token, logprob: logprob(before, token, best), top: all }
}

/// The token that the model expects inside of a prompt.
pub(crate) fn expected(before: i32) -> i32 {
    (before + 1) % 256
}

/// Cancels its job.
struct Cut {
    shared: Arc<(Mutex<State>, Condvar)>,
    over: Arc<AtomicBool>,
}

impl Drop for Cut {
    fn drop(&mut self) {
        let mut state = self.shared.0.lock().unwrap();
        state.cancelled += usize::from(!self.over.swap(true, Ordering::SeqCst));
        self.shared.1.notify_all();
    }
}

struct Parted {
    thinks: bool,
}

impl Split for Parted {
    fn push(&mut self, token: Option<i32>, text: &str) -> Vec<(bool, String)> {
        if token == Some(ANSWER) {
            self.thinks = false;
            return Vec::new();
        }
        vec![(self.thinks, text.to_owned())]
    }

    fn finish(&mut self) -> Vec<(bool, String)> {
        Vec::new()
    }
}

impl Backend for Fake {
    fn card(&self) -> &Card {
        &self.card
    }

    fn tokenize(&self, text: &str, add_special: bool, parse_special: bool) -> Result<Vec<i32>, Fault> {
        let mut out = if add_special { vec![BOS] } else { Vec::new() };
        let mut rest = text;
        while let Some(next) = rest.chars().next() {
            let special = NAMES.iter().position(|name| parse_special && rest.starts_with(name));
            match special {
                Some(i) => {
                    out.push(256 + i as i32);
                    rest = &rest[NAMES[i].len()..];
                }
                None => {
                    let (now, later) = rest.split_at(next.len_utf8());
                    out.extend(now.bytes().map(i32::from));
                    rest = later;
                }
            }
        }
        Ok(out)
    }

    fn piece(&self, token: i32) -> Vec<u8> {
        let thread = std::thread::current();
        self.state().threads.insert(thread.name().unwrap_or("none").to_owned());
        bytes(token)
    }

    fn render(
        &self,
        messages: &[Value],
        variables: &Map<String, Value>,
        open: bool,
    ) -> Result<String, Fault> {
        let parts = Fake::text(messages, variables, open);
        Ok(parts.into_iter().map(|(token, text)| NAMES[(token - 256) as usize].to_owned() + &text).collect())
    }

    fn chat_tokens(
        &self,
        messages: &[Value],
        variables: &Map<String, Value>,
        open: bool,
    ) -> Result<ChatPrompt, Fault> {
        if variables.contains_key("panic") {
            panic!("as the test asked");
        }
        self.set(|state| state.chats.push((messages.to_vec(), variables.clone())));
        let mut tokens = vec![BOS];
        for (token, text) in Fake::text(messages, variables, open) {
            tokens.push(token);
            tokens.extend(text.bytes().map(i32::from));
        }
        let thinks = tokens.last() == Some(&THINK);
        let split = Box::new(move |apart| Box::new(Parted { thinks: thinks && apart }) as Box<dyn Split>);
        let thinks = thinks.then_some(NAMES[5]);
        let header = vec![Bit::Mark("<|answer|>")];
        Ok(ChatPrompt { tokens, split, stop: vec!["<|close|>".into()], thinks, header })
    }

    fn rule(&self, shape: &Shape) -> Result<Rule, Fault> {
        if self.state().refuses.is_some() {
            return Err(Fault::new(FaultKind::Invalid, "schema: as the test asked"));
        }
        self.set(|state| state.shapes.push(shape.clone()));
        Ok(Rule(Arc::new(())))
    }

    fn submit(&self, job: Job, events: UnboundedSender<Event>) -> Result<Ticket, Fault> {
        let mut state = self.state();
        if let Some(kind) = state.refuses.clone() {
            return Err(Fault::new(kind, "as the test asked"));
        }
        let n = job.prompt.len() + job.max_tokens.unwrap_or(1);
        let fits = |i: &usize| self.card.plans[*i].n_max >= n;
        let tried = job.plan.map_or(0..self.card.plans.len(), |plan| plan..plan + 1);
        let Some(plan) = tried.clone().find(fits) else {
            let (plan, n_prompt) = (tried.end - 1, job.prompt.len());
            let n_max = self.card.plans[plan].n_max;
            let kind = FaultKind::TooLong { n_prompt, n_predict: job.max_tokens, n_max, plan };
            return Err(Fault::new(kind, format_args!("expected at most {n_max} tokens, found {n}")));
        };
        state.jobs.push(job.clone());
        state.running += 1;
        let over = Arc::new(AtomicBool::new(false));
        let (shared, room) = (Arc::clone(&self.shared), self.card.plans[plan].n_max);
        let guard = Box::new(Cut { shared: Arc::clone(&self.shared), over: Arc::clone(&over) });
        self.shared.1.notify_all();
        std::thread::spawn(move || job::run(&job, room, &events, &shared, &over));
        Ok(Ticket { plan, guard })
    }

    fn bytes(&self, plan: usize, n: usize) -> Result<usize, Fault> {
        if n == 1000 {
            return Err(Fault::invalid("n", "n: expected another, found 1000"));
        }
        Ok(n * 100 + plan)
    }

    fn reach(&self, _: usize, n: usize) -> Result<Vec<(Vec<usize>, ReachView)>, Fault> {
        let largest = i32::try_from(n - 1).ok();
        let branch = BranchView { pairs: "all keys".into(), shown: "as it is".into(), largest };
        let reach = ReachView { branches: vec![branch], largest_distance: largest, most_keys: Some(n) };
        Ok(vec![(vec![0, 1], reach)])
    }

    fn passkeys(&self, n: usize, count: usize) -> Result<Vec<Passkey>, Fault> {
        if n < 16 {
            return Err(Fault::invalid("n", "n: expected more"));
        }
        let passkey = |_| {
            let mut prompt = vec![BOS];
            prompt.resize(n - 8, i32::from(b'.'));
            prompt.extend(b"1234".map(i32::from));
            Passkey { prompt, max_tokens: 4, is_found: Box::new(|text: &str| text == "4321") }
        };
        Ok((0..count).map(passkey).collect())
    }

    fn slots(&self, owner: &[u8]) -> Vec<Slot> {
        let state = self.state();
        let own = state.jobs.iter().enumerate().filter(|(_, job)| job.salt.starts_with(owner));
        let left = own.filter(|(id, _)| !state.erased.contains(id));
        // The last one runs, if any does.
        let runs = |id: usize| state.running > 0 && id + 1 == state.jobs.len();
        let slot = |(id, job): (usize, &Job)| Slot {
            id,
            plan: job.plan.unwrap_or(0),
            job: runs(id).then_some(7),
            n_held: job.prompt.len() + 2,
            n_prompt: job.prompt.len(),
            n_cached: 1,
            n_made: 3,
        };
        left.map(slot).collect()
    }

    fn erase(&self, owner: &[u8], slot: usize) -> Result<usize, Fault> {
        let found = self.slots(owner).into_iter().find(|known| known.id == slot && known.job.is_none());
        let Some(found) = found else { return Err(Fault::invalid("id", "slot: expected another")) };
        self.state().erased.push(slot);
        Ok(found.n_held)
    }

    fn save(&self, owner: &[u8], slot: usize, name: &str) -> Result<SlotFile, Fault> {
        let found = self.slots(owner).into_iter().find(|known| known.id == slot && known.job.is_none());
        let Some(found) = found else { return Err(Fault::invalid("id", "slot: expected another")) };
        self.set(|state| state.saved.push((state.jobs[slot].salt.clone(), slot, name.to_owned())));
        drop(self.shared.1.wait_while(self.state(), |state| state.saves_wait).unwrap());
        Ok(SlotFile { slot, n_tokens: found.n_held, n_bytes: 1000 })
    }

    fn restore(&self, owner: &[u8], salt: &[u8], slot: usize, name: &str) -> Result<SlotFile, Fault> {
        assert!(salt.starts_with(owner));
        let state = self.state();
        let own = |(of, _, known): &&(Vec<u8>, usize, String)| of == salt && known == name;
        let found = state.saved.iter().find(own);
        let Some((_, n, _)) = found else {
            return Err(Fault::invalid("filename", "filename: expected another"));
        };
        Ok(SlotFile { slot: slot + 1, n_tokens: *n, n_bytes: 1000 })
    }

    fn status(&self) -> Status {
        let state = self.state();
        Status { running: state.running, stopping: state.stopping, cells: vec![(3, 64)], ..Status::default() }
    }

    fn map(&self, plan: usize, n: usize) -> Result<String, Fault> {
        if plan == 0 {
            return Err(Fault::invalid("rope", "rope: a plan without a map"));
        }
        Ok(format!("<svg>{plan} {n}</svg>"))
    }
}
