//! The engines that are measured: sessions of ours, and libllama on the same file with the same settings.

use std::time::{Duration, Instant};

use ggml::machine::processor_time;
use ropewalk::rope::Spec;
use ropewalk::session::Session;
use ropewalk::Token;

use super::child::{Child, Outcome};
use super::report::Test;

/// An engine with a context to fill.
pub(super) trait Engine {
    /// Makes the context hold exactly these tokens.
    fn hold(&mut self, tokens: &[Token]) -> anyhow::Result<()>;
    /// Appends tokens, however many, and computes the last one's logits.
    fn append(&mut self, tokens: &[Token]) -> anyhow::Result<()>;
}

impl Engine for Session {
    fn hold(&mut self, tokens: &[Token]) -> anyhow::Result<()> {
        let held = self.reuse_prefix(tokens, tokens.len())?;
        Engine::append(self, &tokens[held..])
    }

    fn append(&mut self, tokens: &[Token]) -> anyhow::Result<()> {
        for batch in tokens.chunks(self.params().n_batch) {
            Session::append(self, batch)?;
        }
        Ok(())
    }
}

/// The clock that a test is measured by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Clock {
    /// Wall time.
    Wall,
    /// CPU time of all threads of this process.
    Cpu,
}

impl Clock {
    /// The name typed, and shown in reports.
    pub(super) fn name(self) -> &'static str {
        match self {
            Clock::Wall => "wall",
            Clock::Cpu => "cpu",
        }
    }

    /// The time since `started`, a moment of its own.
    fn since(self, started: (Instant, Duration)) -> f64 {
        match self {
            Clock::Wall => started.0.elapsed().as_secs_f64(),
            Clock::Cpu => self.spent().saturating_sub(started.1).as_secs_f64(),
        }
    }

    fn spent(self) -> Duration {
        let spent = if self == Clock::Cpu { processor_time() } else { None };
        spent.unwrap_or_default()
    }
}

/// Seconds of one run of a test; filling the depth is not part of it.
pub(super) fn time(
    engine: &mut dyn Engine,
    test: &Test,
    text: &[Token],
    clock: Clock,
) -> anyhow::Result<f64> {
    let (filler, rest) = text.split_at(test.depth);
    engine.hold(filler)?;
    let started = (Instant::now(), clock.spent());
    if test.n_prompt > 0 {
        engine.append(&rest[..test.n_prompt])?;
    } else {
        for token in &rest[..test.n_gen] {
            engine.append(std::slice::from_ref(token))?;
        }
    }
    Ok(clock.since(started))
}

/// The place where a contender's work is done.
enum Runner {
    Session(Box<Session>),
    Child(Child),
}

/// An engine under one rope method, as reports name it.
pub(super) struct Contender {
    /// Name of the engine.
    pub(super) engine: &'static str,
    /// The rope spec in force.
    pub(super) rope: String,
    /// The same as it was asked for: short, for tables.
    pub(super) label: String,
    runner: Runner,
}

impl Contender {
    /// A session of ours.
    pub(super) fn ours(session: Session) -> Self {
        let rope = session.plan().spec.to_string();
        let label = session.params().rope.as_ref().map_or_else(|| rope.clone(), ToString::to_string);
        Contender { engine: "ropewalk", rope, label, runner: Runner::Session(Box::new(session)) }
    }

    /// libllama, under the rope that its file declares.
    pub(super) fn libllama(child: Child) -> Self {
        let rope = Spec::DECLARED.to_owned();
        Contender { engine: "libllama", label: rope.clone(), rope, runner: Runner::Child(child) }
    }

    /// Runs a test once on `text`, the tokens of its depth and those read or written.
    pub(super) fn run(&mut self, test: &Test, text: &[Token], clock: Clock) -> anyhow::Result<Outcome> {
        match &mut self.runner {
            Runner::Session(session) => Ok(Outcome::Seconds(time(session.as_mut(), test, text, clock)?)),
            Runner::Child(child) => child.run(test, text),
        }
    }
}
