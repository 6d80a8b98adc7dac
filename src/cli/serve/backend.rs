//! The backend of `serve`: the scheduler, the vocabulary, and the chat template, as HTTP sees them.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt::Display;
use std::ops::ControlFlow;
use std::sync::{Arc, OnceLock};

use ropewalk::chat::answer::{hidden_marks, Form, Part, Parts};
use ropewalk::chat::{tokens, Template};
use ropewalk::rope::{Plan, ReachView, Spec};
use ropewalk::sampler::SamplerParams;
use ropewalk::scheduler::{self, Recomputed, Refusal, Request, Scheduler, StepTimes};
use ropewalk::session::StopReason;
use ropewalk::{plot, tasks, Error, Model, Token};
use ropewalk_serve as http;
use ropewalk_serve::{Bit, Card, ChatPrompt, Fault, FaultKind, Job, Sampling, Shape};
use serde_json::{Map, Value};
use tokio::sync::mpsc::UnboundedSender;

use super::arguments::{as_objects, takes_objects};
use super::contents::{Hidden, Special};
use super::passkeys::passkeys;
use super::rules::{Rule, Rules};
use crate::cli::interrupt::Interrupt;

/// Bytes of a prompt's end, which says whether it has begun the thinking.
const TAIL: usize = 256;

pub(super) struct Backend {
    card: Card,
    model: Model,
    pub(super) scheduler: Scheduler,
    template: Template,
    interrupt: Interrupt,
    /// None where the contents of messages are trusted.
    special: Option<Special>,
    form: Form,
    marks: Arc<HashMap<Token, &'static str>>,
    sampler: SamplerParams,
    /// Whether the template takes the arguments of calls as objects.
    takes_objects: OnceLock<bool>,
    /// Makes grammar rules; an error if the vocabulary cannot.
    rules: OnceLock<Result<Rules, String>>,
}

impl Backend {
    pub(super) fn new(
        mut card: Card,
        model: Model,
        scheduler: Scheduler,
        template: Template,
        interrupt: &Interrupt,
        trust_contents: bool,
    ) -> anyhow::Result<Backend> {
        let form = Form::of(template.source());
        let sampler = sampler(&model)?;
        card.sampling = shown(&sampler);
        let marks = [form.marks(), http::call_marks(template.source())].concat();
        Ok(Backend {
            card,
            special: if trust_contents { None } else { Some(Special::of(model.vocab())?) },
            marks: Arc::new(hidden_marks(model.vocab(), &marks)?),
            form,
            sampler,
            takes_objects: OnceLock::new(),
            rules: OnceLock::new(),
            model,
            scheduler,
            template,
            interrupt: interrupt.clone(),
        })
    }

    /// A plan as its session has it.
    fn plan(&self, plan: usize) -> Result<Plan, Fault> {
        let info = &self.scheduler.plans()[plan];
        let spec = info.spec.parse::<Spec>().map_err(failed)?;
        // Without a search that takes long.
        Plan::of_file(&spec, self.model.hparams(), info.n_ctx).map_err(failed)
    }

    /// Messages with the arguments of calls as the template takes them.
    fn as_taken<'a>(&self, messages: &'a [Value]) -> Cow<'a, [Value]> {
        let has_calls = messages.iter().any(|message| message.get("tool_calls").is_some());
        if has_calls && *self.takes_objects.get_or_init(|| takes_objects(&self.template)) {
            return as_objects(messages).into();
        }
        messages.into()
    }

    fn rendered(
        &self,
        messages: &[Value],
        variables: &Map<String, Value>,
        open: bool,
    ) -> Result<String, Fault> {
        self.template.render_json(messages, variables, open).map_err(|e| match e {
            Error::Interrupted => stopping(),
            // It names a path of this machine.
            Error::During { .. } => failed("chat template: cannot start a process for it"),
            e => Fault::invalid("messages", e),
        })
    }
}

/// The sampler of requests that say nothing: the one that the model's file recommends, else OpenAI's.
fn sampler(model: &Model) -> ropewalk::Result<SamplerParams> {
    let file = model.file();
    let float = |key: &str| file.get_opt::<f32>(&format!("general.sampling.{key}"));
    let int = |key: &str| file.get_opt::<i32>(&format!("general.sampling.{key}"));
    let params = SamplerParams::greedy()
        .temp(usable(float("temp")?.unwrap_or(1.0)))
        .top_k(int("top_k")?.unwrap_or(0).max(0))
        .top_p(float("top_p")?.unwrap_or(1.0))
        .min_p(float("min_p")?.unwrap_or(0.0))
        .penalty_last_n(int("penalty_last_n")?.unwrap_or(64))
        .penalty_repeat(float("penalty_repeat")?.unwrap_or(1.0));
    params
        .check()
        .map_err(|e| Error::Invalid(format!("{}: general.sampling: {e}", file.path().display())))?;
    Ok(params)
}

impl http::Backend for Backend {
    fn card(&self) -> &Card {
        &self.card
    }

    fn tokenize(&self, text: &str, add_special: bool, parse_special: bool) -> Result<Vec<i32>, Fault> {
        self.model.vocab().tokenize(text, add_special, parse_special).map_err(invalid)
    }

    fn piece(&self, token: i32) -> Vec<u8> {
        self.model.vocab().piece(token, true).unwrap_or_default()
    }

    fn render(
        &self,
        messages: &[Value],
        variables: &Map<String, Value>,
        open: bool,
    ) -> Result<String, Fault> {
        self.rendered(&self.as_taken(messages), variables, open)
    }

    fn chat_tokens(
        &self,
        messages: &[Value],
        variables: &Map<String, Value>,
        open: bool,
    ) -> Result<ChatPrompt, Fault> {
        let vocab = self.model.vocab();
        // Before names of special tokens are hidden, which JSON can spell in other ways.
        let messages = self.as_taken(messages);
        let (text, tokens) = match &self.special {
            None => {
                let text = self.rendered(&messages, variables, open)?;
                let tokens = tokens(vocab, &text);
                (text, tokens)
            }
            Some(special) => {
                let mut hidden = Hidden::new(special);
                let messages: Vec<Value> = messages.iter().map(|message| hidden.fields(message)).collect();
                let variables = variables.iter().map(|(name, value)| (name.clone(), hidden.value(value)));
                let variables: Map<String, Value> = variables.collect();
                let text = self.rendered(&messages, &variables, open)?;
                let tokens = hidden.tokens(vocab, &text);
                (text, tokens)
            }
        };
        let start = (text.len().saturating_sub(TAIL)..=text.len()).find(|&at| text.is_char_boundary(at));
        let tail = text[start.unwrap_or(0)..].to_owned();
        let (form, marks) = (self.form, Arc::clone(&self.marks));
        let (channels, calls) = (form == Form::Channels, variables.contains_key("tools"));
        let opens = |mark: &&str| !channels && tail.trim_end().ends_with(*mark);
        let thinks = form.marks().first().filter(|mark| opens(mark)).and(form.marks().get(1)).copied();
        let header = match channels && !tail.ends_with("<|message|>") {
            true => vec![Bit::Mark("<|channel|>"), Bit::Text("final".to_owned()), Bit::Mark("<|message|>")],
            false => Vec::new(),
        };
        let split = move |apart: bool| -> Box<dyn http::Split> {
            let parts = apart.then(|| Parts::new(form, &tail).with_calls(calls));
            Box::new(Split::new(parts, Arc::clone(&marks)))
        };
        Ok(ChatPrompt {
            tokens: tokens.map_err(|e| Fault::invalid("messages", e))?,
            split: Box::new(split),
            stop: self.template.stop(),
            thinks,
            header,
        })
    }

    fn rule(&self, shape: &Shape) -> Result<http::Rule, Fault> {
        let rules = self.rules.get_or_init(|| Rules::new(&self.model));
        let rule = rules.as_ref().map_err(String::clone).and_then(|rules| rules.compile(shape));
        rule.map(|rule| http::Rule(Arc::new(rule))).map_err(|e| invalid(format_args!("schema: {e}")))
    }

    fn submit(&self, job: Job, events: UnboundedSender<http::Event>) -> Result<http::Ticket, Fault> {
        let request = Request::new(job.prompt)
            .model(job.model)
            .plan(job.plan)
            .n_predict(job.max_tokens)
            .n_min(job.sampling.min_tokens.unwrap_or(0))
            .sampler(with(&self.sampler, &job.sampling))
            .bias(job.bias)
            .mask(job.rule.and_then(|rule| Some(rule.0.downcast_ref::<Rule>()?.mask())))
            .stop(job.stop)
            .ignore_eos(job.ignore_eos)
            .special(job.special)
            .n_top(job.n_top)
            .echo(job.echo)
            .reuse(job.reuse)
            .forget(job.forget)
            .salt(job.salt)
            .caller(job.caller);
        let sink = move |event| match events.send(told(event)) {
            Ok(()) => ControlFlow::Continue(()),
            Err(_) => ControlFlow::Break(()),
        };
        let ticket = self.scheduler.submit(request, Box::new(sink)).map_err(refused)?;
        Ok(http::Ticket { plan: ticket.plan(), guard: Box::new(ticket) })
    }

    fn bytes(&self, plan: usize, n: usize) -> Result<usize, Fault> {
        self.scheduler.bytes_needed(plan, n).map_err(|e| Fault::invalid("n", e))
    }

    fn reach(&self, plan: usize, n: usize) -> Result<Vec<(Vec<usize>, ReachView)>, Fault> {
        let (plan, hp) = (self.plan(plan)?, self.model.hparams());
        let kinds = plan.kinds().iter().enumerate();
        Ok(kinds.map(|(kind, own)| (hp.layers_of(kind).collect(), ReachView::new(own, n))).collect())
    }

    fn passkeys(&self, n: usize, count: usize) -> Result<Vec<http::Passkey>, Fault> {
        passkeys(&self.model, n, count, self.interrupt.control()).map_err(|e| match e {
            tasks::Error::Interrupted => stopping(),
            e => Fault::invalid("n", e),
        })
    }

    fn slots(&self, owner: &[u8]) -> Vec<http::Slot> {
        let told = |slot: scheduler::Slot| http::Slot {
            id: slot.id,
            plan: slot.plan,
            job: slot.request,
            n_held: slot.n_held,
            n_prompt: slot.n_prompt,
            n_cached: slot.n_cached,
            n_made: slot.n_made,
        };
        self.scheduler.slots(owner).into_iter().map(told).collect()
    }

    fn erase(&self, owner: &[u8], slot: usize) -> Result<usize, Fault> {
        self.scheduler.erase(owner, slot).map_err(unfiled)
    }

    fn save(&self, owner: &[u8], slot: usize, name: &str) -> Result<http::SlotFile, Fault> {
        self.scheduler.save(owner, slot, name).map(filed).map_err(unfiled)
    }

    fn restore(&self, owner: &[u8], salt: &[u8], slot: usize, name: &str) -> Result<http::SlotFile, Fault> {
        self.scheduler.restore(owner, salt, slot, name).map(filed).map_err(unfiled)
    }

    fn status(&self) -> http::Status {
        let status = self.scheduler.status();
        let counts = status.steps.counts.map(|n| n as u64);
        let buckets = StepTimes::BOUNDS.into_iter().zip(counts);
        http::Status {
            running: status.running,
            waiting: status.waiting,
            stopping: self.interrupt.requested(),
            cells: status.plans.iter().map(|plan| (plan.cells_used + plan.cells_kept, plan.cells)).collect(),
            preempted: status.n_preempted as u64,
            evicted: status.n_dropped as u64,
            score_bytes: status.plans.iter().map(|plan| plan.score_bytes as u64).sum(),
            reread: vec![
                ("preempted", status.reread.preempted as u64),
                ("scores", status.reread.unscored as u64),
                ("states", status.reread.stateless as u64),
            ],
            steps: status.n_steps as u64,
            step_seconds: status.steps.total.as_secs_f64(),
            step_buckets: buckets.collect(),
            on_disk: status.disk_bytes,
        }
    }

    fn map(&self, plan: usize, n: usize) -> Result<String, Fault> {
        let mut plan = self.plan(plan)?;
        if plan.is_plain_reach() {
            let spec = &plan.spec;
            let what = format!("rope: under {spec} every token sees all earlier ones at their own distances");
            return Err(Fault::invalid("rope", what));
        }
        plan.n_ctx = n;
        plot::Map::new(&[&plan], self.model.hparams()).and_then(|map| map.to_svg()).map_err(failed)
    }
}

fn failed(e: impl Display) -> Fault {
    Fault::new(FaultKind::Server, e)
}

fn stopping() -> Fault {
    Fault::new(FaultKind::Stopping, "the server stops")
}

fn invalid(e: impl Display) -> Fault {
    Fault::new(FaultKind::Invalid, e)
}

fn filed(file: scheduler::SlotFile) -> http::SlotFile {
    http::SlotFile { slot: file.slot, n_tokens: file.n_tokens, n_bytes: file.n_bytes }
}

fn unfiled(e: Error) -> Fault {
    match &e {
        Error::Argument { name, .. } if name == "slot" => Fault::invalid("id", e),
        Error::Argument { .. } | Error::Invalid(_) => Fault::invalid("filename", e),
        Error::Interrupted => stopping(),
        _ => failed(e),
    }
}

/// The server's sampler as requests would ask for it.
fn shown(own: &SamplerParams) -> Sampling {
    Sampling {
        temperature: Some(own.temp),
        top_p: Some(own.top_p),
        top_k: Some(own.top_k),
        min_p: Some(own.min_p),
        typical_p: Some(own.typical_p),
        repeat_penalty: Some(own.penalty_repeat),
        repeat_last_n: Some(own.penalty_last_n),
        frequency_penalty: Some(own.penalty_freq),
        presence_penalty: Some(own.penalty_present),
        dry_multiplier: Some(own.dry_multiplier),
        dry_base: Some(own.dry_base),
        dry_allowed_length: Some(own.dry_allowed_length),
        dry_penalty_last_n: Some(own.dry_penalty_last_n),
        seed: None,
        min_tokens: None,
    }
}

/// A temperature of a client or a file. Those that no sampler takes mean 0.
fn usable(temp: f32) -> f32 {
    Some(temp).filter(|temp| *temp >= 1e-4).unwrap_or(0.0)
}

/// The server's sampler with what a request asks for.
fn with(own: &SamplerParams, asked: &Sampling) -> SamplerParams {
    SamplerParams::greedy()
        .temp(asked.temperature.map_or(own.temp, usable))
        .top_k(asked.top_k.unwrap_or(own.top_k))
        .top_p(asked.top_p.unwrap_or(own.top_p))
        .min_p(asked.min_p.unwrap_or(own.min_p))
        .typical_p(asked.typical_p.unwrap_or(own.typical_p))
        .penalty_last_n(asked.repeat_last_n.unwrap_or(own.penalty_last_n))
        .penalty_repeat(asked.repeat_penalty.unwrap_or(own.penalty_repeat))
        .penalty_freq(asked.frequency_penalty.unwrap_or(own.penalty_freq))
        .penalty_present(asked.presence_penalty.unwrap_or(own.penalty_present))
        .dry_multiplier(asked.dry_multiplier.unwrap_or(own.dry_multiplier))
        .dry_base(asked.dry_base.unwrap_or(own.dry_base))
        .dry_allowed_length(asked.dry_allowed_length.unwrap_or(own.dry_allowed_length))
        .dry_penalty_last_n(asked.dry_penalty_last_n.unwrap_or(own.dry_penalty_last_n))
        .seed(asked.seed.unwrap_or_else(rand::random))
}

fn refused(refusal: Refusal) -> Fault {
    let kind = match &refusal {
        Refusal::TooLong { n_prompt, n_predict, n_max, plan } => {
            FaultKind::TooLong { n_prompt: *n_prompt, n_predict: *n_predict, n_max: *n_max, plan: *plan }
        }
        Refusal::Busy => FaultKind::Busy,
        Refusal::Stopping => FaultKind::Stopping,
        Refusal::Invalid(_) => FaultKind::Invalid,
    };
    Fault::new(kind, refusal)
}

fn told(event: scheduler::Event) -> http::Event {
    match event {
        scheduler::Event::Started { n_cached, differs_at, because, .. } => {
            http::Event::Started { n_cached, differs_at, because: because.map(word) }
        }
        scheduler::Event::Progress { done, total } => http::Event::Progress { done, total },
        scheduler::Event::Scores(scores) => http::Event::Scores(scores.into_iter().map(scored).collect()),
        scheduler::Event::Token(made) => {
            http::Event::Token { token: made.token, text: made.text, score: made.score.map(scored) }
        }
        scheduler::Event::Text(text) => http::Event::Text(text),
        scheduler::Event::Done(done) => http::Event::Done(http::Done {
            reason: match done.reason {
                StopReason::EndOfGeneration => http::Reason::End,
                StopReason::StopString => http::Reason::Stop,
                StopReason::Length => http::Reason::Length,
                StopReason::ContextFull => http::Reason::Context,
                StopReason::Cancelled => http::Reason::Cancelled,
            },
            n_prompt: done.n_prompt,
            n_cached: done.n_cached,
            n_restored: done.n_restored,
            n_made: done.n_made,
            queue: done.queue,
            prefill: done.prefill,
            decode: done.decode,
            preempted: done.preempted,
        }),
        scheduler::Event::Failed(e) => http::Event::Failed(e.to_string()),
    }
}

/// A reason as clients read it.
fn word(why: Recomputed) -> &'static str {
    match why {
        Recomputed::Forbidden => "cache_prompt",
        Recomputed::Unscored => "scores",
        Recomputed::Stateless => "states",
        Recomputed::Evicted => "evicted",
        Recomputed::OtherPlan => "other_rope",
        Recomputed::OtherModel => "other_adapter",
        Recomputed::Differs => "differs",
        Recomputed::Unknown => "unknown",
    }
}

fn scored(score: ropewalk::session::Scored) -> http::Scored {
    http::Scored { token: score.token, logprob: score.logprob, top: score.top }
}

/// An answer that comes in pieces, as [`Parts`] splits it.
struct Split {
    /// Where reasoning is split off.
    parts: Option<Parts>,
    marks: Arc<HashMap<Token, &'static str>>,
    /// Where the last text went: true for the thinking.
    at: Option<bool>,
    /// Empty lines at the start of what is shown of this part belong to the marks.
    fresh: bool,
    /// Whether something was shown of the content, and of the thinking.
    told: [bool; 2],
    /// Ends of lines that the thinking may end with.
    held: String,
}

impl Split {
    fn new(parts: Option<Parts>, marks: Arc<HashMap<Token, &'static str>>) -> Split {
        Split { parts, marks, at: None, fresh: false, told: [false; 2], held: String::new() }
    }

    fn shown(&mut self, parts: Vec<(Part, String)>) -> Vec<(bool, String)> {
        let mut out = Vec::new();
        for (part, text) in parts {
            let thinks = part == Part::Thinking;
            if self.at != Some(thinks) {
                self.fresh = (thinks || self.at.is_some()) && !self.told[usize::from(thinks)];
                self.held.clear();
                self.at = Some(thinks);
            }
            let mut text = std::mem::take(&mut self.held) + &text;
            if self.fresh {
                text = text.trim_start_matches('\n').to_owned();
            }
            if thinks {
                self.held = text.split_off(text.trim_end_matches('\n').len());
            }
            if !text.is_empty() {
                self.fresh = false;
                self.told[usize::from(thinks)] = true;
                out.push((thinks, text));
            }
        }
        out
    }
}

impl http::Split for Split {
    fn push(&mut self, token: Option<i32>, text: &str) -> Vec<(bool, String)> {
        // A job with special tokens has the mark in its text.
        let mark = token.and_then(|token| self.marks.get(&token)).filter(|mark| !text.ends_with(**mark));
        let Some(parts) = &mut self.parts else {
            let text = mark.map_or(text.to_owned(), |mark| text.to_owned() + mark);
            return if text.is_empty() { Vec::new() } else { vec![(false, text)] };
        };
        let mut found = parts.push(text);
        found.extend(mark.into_iter().flat_map(|mark| parts.push(mark)));
        self.shown(found)
    }

    fn finish(&mut self) -> Vec<(bool, String)> {
        let rest = self.parts.as_mut().map_or_else(Vec::new, Parts::rest);
        self.shown(rest)
    }
}
