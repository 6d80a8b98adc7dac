//! Tokens per second: prompts read at once, tokens written one by one, at depth, in sessions and in other engines.
//!
//! Contenders take turns within each repetition, so a busy machine slows all of them alike. Times exclude tokenization
//! and sampling.
//!
//! ```
//! # let dir = tempfile::tempdir()?;
//! # let path = dir.path().join("model.gguf");
//! # convert::random::write(&convert::random::Shape::named("llama-tiny")?, ropewalk::DType::Q8_0, 1, &path)?;
//! use ropewalk::control::Control;
//! use ropewalk::eval::bench::{self, Contender, Params, Test};
//! use ropewalk::{Model, ModelParams, Session, SessionParams};
//!
//! let model = Model::load(&path, &ModelParams::cpu())?;
//! let session = SessionParams::new(64);
//! # let session = session.n_threads(1);
//! let mut contenders = [Contender::session(Session::new(&model, &session)?)];
//! let tests = vec![Test { n_prompt: 32, n_gen: 0, depth: 16 }];
//! let params = Params::new(tests).repetitions(2);
//! let report = bench::run(&model, "model.gguf", &mut contenders, &session, &params, &Control::default())?;
//! assert_eq!(report.rows[0].samples.len(), 2);
//! println!("{}", report.text());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub(crate) mod report;

use std::sync::atomic::AtomicBool;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ggml::machine::processor_time;
use llama::oracle::{Oracle, OracleParams};
use rand::{Rng, SeedableRng};

use super::unsupported;
use crate::adapter::AdapterSpec;
use crate::control::Control;
use crate::model::{Model, Result};
use crate::rope::Spec;
use crate::session::{Session, SessionParams};
use crate::Token;

pub(crate) use report::flops_of_text;
pub use report::{Report, Row};

/// One test: tokens to read at once, or to write one by one, after `depth` others that are in the context
/// already.
#[derive(Debug, Clone, Copy)]
pub struct Test {
    /// Tokens to read; 0 in a test that writes.
    pub n_prompt: usize,
    /// Tokens to write; 0 in a test that reads.
    pub n_gen: usize,
    /// Tokens in the context before.
    pub depth: usize,
}

impl Test {
    /// Tokens that are timed.
    pub fn n_tokens(&self) -> usize {
        self.n_prompt.max(self.n_gen)
    }

    /// Name of the test, as llama-bench would give it: `pp512`, `tg128 @ d4096`.
    pub fn name(&self) -> String {
        let what =
            if self.n_prompt > 0 { format!("pp{}", self.n_prompt) } else { format!("tg{}", self.n_gen) };
        if self.depth == 0 {
            what
        } else {
            format!("{what} @ d{}", self.depth)
        }
    }
}

ropewalk_core::setters! {
    /// Settings of a measurement.
    #[derive(Debug, Clone)]
    pub struct Params {
        /// Tests, one after another.
        pub tests: Vec<Test>,
        /// Timed runs of each test.
        pub repetitions: u32,
        /// True if each test runs once before, without being timed.
        pub warmup: bool,
        /// The clock.
        pub clock: Clock,
        /// Random seed of the tokens.
        pub seed: u64,
    }
}

impl Params {
    /// Five repetitions after a warm-up, in wall time.
    pub fn new(tests: Vec<Test>) -> Params {
        Params { tests, repetitions: 5, warmup: true, clock: Clock::Wall, seed: 42 }
    }

    /// The context that the longest test needs.
    pub fn n_ctx(&self) -> usize {
        self.tests.iter().map(|t| t.depth.saturating_add(t.n_tokens())).max().unwrap_or(1)
    }
}

/// An engine with a context to fill.
pub trait Engine {
    /// Makes the context hold exactly these tokens.
    ///
    /// # Errors
    /// Returns an error if the engine cannot compute them.
    fn hold(&mut self, tokens: &[Token]) -> Result<()>;

    /// Appends tokens, however many, and computes the last one's logits.
    ///
    /// # Errors
    /// Returns an error if the engine cannot compute them.
    fn append(&mut self, tokens: &[Token]) -> Result<()>;

    /// A flag that ends a call early when set; `None` if it cannot be ended.
    fn cancel_flag(&self) -> Option<Arc<AtomicBool>> {
        None
    }
}

impl Engine for Session {
    fn hold(&mut self, tokens: &[Token]) -> Result<()> {
        let held = self.reuse_prefix(tokens, tokens.len())?;
        Engine::append(self, &tokens[held..])
    }

    fn append(&mut self, tokens: &[Token]) -> Result<()> {
        for batch in tokens.chunks(self.params().n_batch) {
            Session::append(self, batch)?;
        }
        Ok(())
    }

    fn cancel_flag(&self) -> Option<Arc<AtomicBool>> {
        Some(Session::cancel_flag(self))
    }
}

impl Engine for Oracle {
    fn hold(&mut self, tokens: &[Token]) -> Result<()> {
        self.clear();
        match tokens {
            [] => Ok(()),
            _ => self.append(tokens),
        }
    }

    fn append(&mut self, tokens: &[Token]) -> Result<()> {
        self.eval(tokens, false)?;
        Ok(())
    }
}

/// The clock that a test is measured by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Clock {
    /// Wall time.
    Wall,
    /// CPU time of all threads of this process.
    Cpu,
}

impl Clock {
    /// The name shown in reports.
    pub fn name(self) -> &'static str {
        match self {
            Clock::Wall => "wall",
            Clock::Cpu => "cpu",
        }
    }

    /// The time since `start`, or the process's time on the processor.
    fn read(self, start: Instant) -> Duration {
        match self {
            Clock::Wall => start.elapsed(),
            Clock::Cpu => processor_time().unwrap_or_default(),
        }
    }
}

/// Seconds of one run of a test on `text`, the tokens of its depth and those read or written. Filling the depth is not
/// part of it.
fn time(engine: &mut dyn Engine, test: &Test, text: &[Token], clock: Clock) -> Result<f64> {
    let (filler, rest) = text.split_at(test.depth);
    engine.hold(filler)?;
    let start = Instant::now();
    let before = clock.read(start);
    if test.n_prompt > 0 {
        engine.append(&rest[..test.n_prompt])?;
    } else {
        for token in &rest[..test.n_gen] {
            engine.append(std::slice::from_ref(token))?;
        }
    }
    Ok(clock.read(start).saturating_sub(before).as_secs_f64())
}

/// An engine under one rope method, as reports name it.
pub struct Contender {
    /// Name of the engine.
    name: &'static str,
    /// The rope spec in force.
    rope: String,
    /// The same as it was asked for: short, for tables.
    label: String,
    engine: Box<dyn Engine>,
}

impl Contender {
    /// A session of ours.
    pub fn session(session: Session) -> Self {
        let rope = session.plan().spec.to_string();
        let label = session.params().rope.as_ref().map_or_else(|| rope.clone(), ToString::to_string);
        Contender { name: "ropewalk", rope, label, engine: Box::new(session) }
    }

    /// libllama with the file of `model`, these adapters, and the settings of `session`, under the rope that the file
    /// declares.
    ///
    /// # Errors
    /// A model, an adapter, or a setting that libllama refuses.
    pub fn libllama(model: &Model, adapters: &[AdapterSpec], session: &SessionParams) -> Result<Self> {
        // What is too large is refused by name.
        let small = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        let params = OracleParams {
            n_batch: small(session.n_batch),
            n_ubatch: small(session.n_ubatch),
            n_threads: small(session.n_threads),
            kv: session.kv_type,
            n_gpu_layers: if model.device() == "cpu" { 0 } else { i32::MAX },
            ..OracleParams::new(small(session.n_ctx))
        };
        let mut oracle = Oracle::open(model.file().path(), &params)?;
        for adapter in adapters {
            oracle.lora(&adapter.path, adapter.scale)?;
        }
        let rope = Spec::DECLARED.to_owned();
        Ok(Contender { name: "libllama", label: rope.clone(), rope, engine: Box::new(oracle) })
    }
}

/// Runs every test of every contender, in turns. `name` is the model's in the report, and `session` has the settings that
/// all contenders share. If `control` stops the work, the report lacks the unfinished tests. Progress is in runs.
///
/// # Errors
/// Returns an error if the system does not have the clock, and the errors of the contenders.
pub fn run(
    model: &Model,
    name: &str,
    contenders: &mut [Contender],
    session: &SessionParams,
    params: &Params,
    control: &Control<'_>,
) -> Result<Report> {
    if params.clock == Clock::Cpu && processor_time().is_none() {
        return Err(unsupported("`clock` cpu: this system does not report the CPU time of threads"));
    }
    contenders.iter().filter_map(|c| c.engine.cancel_flag()).for_each(|flag| control.bind(&flag));
    let n_repeated = params.repetitions.saturating_add(u32::from(params.warmup));
    let n_runs = params.tests.len() as u64 * contenders.len() as u64 * u64::from(n_repeated);
    let n_vocab = Token::try_from(model.hparams().n_vocab).unwrap_or(Token::MAX).max(1);
    let mut done = 0;
    let mut rows: Vec<Row> = Vec::new();
    'tests: for test in &params.tests {
        // Speed does not depend on the text, but caches of a tokenizer's common tokens could: tokens are drawn evenly.
        let mut rng = rand_chacha::ChaCha8Rng::seed_from_u64(params.seed);
        let n = test.depth + test.n_tokens();
        let text: Vec<Token> = (0..n).map(|_| rng.random_range(0..n_vocab)).collect();
        let mut of_test: Vec<Row> =
            contenders.iter().enumerate().map(|(i, contender)| Row::new(i, contender, test)).collect();
        for repetition in 0..n_repeated {
            for (contender, row) in contenders.iter_mut().zip(&mut of_test) {
                match time(&mut *contender.engine, test, &text, params.clock) {
                    Err(_) if control.stopped() => break 'tests,
                    Err(e) => return Err(e),
                    Ok(seconds) if repetition > 0 || !params.warmup => {
                        row.samples.push(test.n_tokens() as f64 / seconds);
                    }
                    Ok(_) => {}
                }
                done += 1;
                control.report(format_args!("measuring"), done, n_runs);
            }
        }
        rows.extend(of_test);
    }
    Ok(Report::new(name, model, (session, params.clock), rows, control.stopped()))
}
