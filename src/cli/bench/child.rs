//! libllama in a process of its own: a signal that ends it ends that process, and not the user's report.
//!
//! The process is this program again, with the same arguments and a hidden one. Both talk in lines of JSON:
//! the parent sends one [`Open`] and then a [`Request`] for each run of a test, and gets a [`Reply`] to each.
//! The child ends when its standard input does.

use std::ffi::OsString;
use std::io::{BufRead, BufReader, Write};
use std::process::{ChildStdin, ChildStdout, Command, ExitStatus, Stdio};

use anyhow::{anyhow, bail, Context};
use llama::oracle::{Oracle, OracleParams};
use ropewalk::eval::bench::{time, Clock, Engine, Outcome, Runner, Test};
use ropewalk::model::{Error, Model};
use ropewalk::session::SessionParams;
use ropewalk::{DType, Token};
use serde::{Deserialize, Serialize};

use crate::cli::models::ModelChoice;

/// The settings of libllama's context.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Open {
    n_ctx: u32,
    n_batch: u32,
    n_ubatch: u32,
    n_threads: u32,
    kv: String,
    n_gpu_layers: i32,
}

impl Open {
    /// The settings of a session of ours, as libllama takes them.
    pub(super) fn like(settings: &SessionParams, model: &Model) -> anyhow::Result<Open> {
        let small = |n: usize, what: &str| {
            u32::try_from(n).map_err(|_| anyhow!("{what} {n}: too large for libllama"))
        };
        Ok(Open {
            n_ctx: small(settings.n_ctx, "context")?,
            n_batch: small(settings.n_batch, "--batch")?,
            n_ubatch: small(settings.n_ubatch, "--ubatch")?,
            n_threads: small(settings.n_threads, "--threads")?,
            kv: settings.kv_type.name().to_owned(),
            n_gpu_layers: if model.device() == "cpu" { 0 } else { i32::MAX },
        })
    }
}

/// One run of a test.
#[derive(Debug, Serialize, Deserialize)]
struct Request {
    test: Test,
    text: Vec<Token>,
}

/// The answer to a line of the parent's.
#[derive(Debug, Serialize, Deserialize)]
enum Reply {
    /// The context is open.
    Ready,
    /// A test took so many seconds.
    Seconds(f64),
    /// It could not be done.
    Error(String),
}

/// The parent's side.
pub(super) struct Child {
    open: Open,
    process: Option<Process>,
    /// The way the process died when the context was opened, until a test has reported it.
    death: Option<String>,
}

struct Process {
    child: std::process::Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may be in the midst of a test that nobody waits for.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Child {
    /// Starts the process and opens the context. A process that dies of that has died of the first test.
    ///
    /// # Errors
    /// A model or settings that libllama refuses, in its words; a program that cannot be started.
    pub(super) fn start(open: Open) -> anyhow::Result<Child> {
        let mut child = Child { open, process: None, death: None };
        child.death = child.ready()?;
        Ok(child)
    }

    /// Runs a test. After a death the next test is tried in a new process.
    fn measure(&mut self, test: &Test, text: &[Token]) -> anyhow::Result<Outcome> {
        let death = match self.death.take() {
            Some(death) => Some(death),
            None => self.ready()?,
        };
        if let Some(death) = death {
            return Ok(Outcome::Died(death));
        }
        match self.ask(&Request { test: *test, text: text.to_vec() })? {
            Ok(Reply::Seconds(seconds)) => Ok(Outcome::Seconds(seconds)),
            Ok(Reply::Error(e)) => bail!("libllama: {e}"),
            Ok(Reply::Ready) => bail!("libllama: expected the seconds of a test, found another answer"),
            Err(death) => Ok(Outcome::Died(death)),
        }
    }

    /// Starts a process if none runs; how it died if it did.
    fn ready(&mut self) -> anyhow::Result<Option<String>> {
        if self.process.is_some() {
            return Ok(None);
        }
        let program = std::env::current_exe().context("cannot find this program to run libllama in")?;
        let arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
        let mut child = Command::new(program)
            .args(arguments)
            .arg(format!("--{}", super::SERVE))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot start the libllama process")?;
        let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            bail!("cannot communicate with the libllama process");
        };
        self.process = Some(Process { child, input, output: BufReader::new(output) });
        match self.ask(&self.open.clone())? {
            Ok(Reply::Error(e)) => bail!("{e}"),
            Ok(_) => Ok(None),
            Err(death) => Ok(Some(death)),
        }
    }

    /// The reply to a line, or how the process died of it.
    fn ask(&mut self, line: &impl Serialize) -> anyhow::Result<Result<Reply, String>> {
        let line = serde_json::to_string(line)?;
        let Some(process) = &mut self.process else { bail!("the libllama process is not running") };
        // Writing to a process that is gone fails, and so does reading: what it ended with says more.
        let sent = writeln!(process.input, "{line}").and_then(|()| process.input.flush());
        let mut reply = String::new();
        let received = sent.and_then(|()| process.output.read_line(&mut reply));
        match received {
            Ok(n) if n > 0 => Ok(Ok(serde_json::from_str(&reply).context("libllama's process")?)),
            _ => {
                let death = process.child.wait().map_or_else(|e| e.to_string(), ending);
                self.process = None;
                Ok(Err(death))
            }
        }
    }
}

impl Runner for Child {
    /// The process has the clock in its arguments.
    fn run(&mut self, test: &Test, text: &[Token], _: Clock) -> ropewalk::Result<Outcome> {
        self.measure(test, text).map_err(|e| Error::Invalid(format!("{e:#}")))
    }
}

/// The way a process ended, in words.
fn ending(status: ExitStatus) -> String {
    #[cfg(unix)]
    {
        use std::os::unix::process::ExitStatusExt;
        if let Some(signal) = status.signal() {
            let name = signal_hook::low_level::signal_name(signal).unwrap_or("no name");
            return format!("died of signal {signal} ({name})");
        }
    }
    match status.code() {
        Some(code) => format!("ended with exit code {code}"),
        None => "ended".to_owned(),
    }
}

/// The child's side: opens libllama and runs tests until standard input ends.
///
/// # Errors
/// A parent that cannot be talked to. Whatever libllama refuses is told the parent.
pub(super) fn serve(choice: &ModelChoice, clock: Clock) -> anyhow::Result<()> {
    // Ctrl-C at a terminal reaches this process, too; the parent says when it ends.
    ctrlc::set_handler(|| {}).context("cannot listen for Ctrl-C")?;
    let mut lines = std::io::stdin().lock().lines();
    let Some(first) = lines.next() else { return Ok(()) };
    let mut libllama = match serde_json::from_str(&first?).map_err(Into::into).and_then(|o| open(choice, &o))
    {
        Ok(libllama) => libllama,
        Err(e) => return reply(&Reply::Error(format!("{e:#}"))),
    };
    reply(&Reply::Ready)?;
    for line in lines {
        let request: Request = serde_json::from_str(&line?)?;
        reply(&match time(&mut libllama, &request.test, &request.text, clock) {
            Ok(seconds) => Reply::Seconds(seconds),
            Err(e) => Reply::Error(format!("{e:#}")),
        })?;
    }
    Ok(())
}

fn reply(reply: &Reply) -> anyhow::Result<()> {
    crate::cli::output::print_json(reply)
}

/// libllama, with the adapters of `choice` at the same scales.
fn open(choice: &ModelChoice, settings: &Open) -> anyhow::Result<Libllama> {
    let kv = DType::parse(&settings.kv).with_context(|| format!("--kv {}: unknown type", settings.kv))?;
    let params = OracleParams {
        n_batch: settings.n_batch,
        n_ubatch: settings.n_ubatch,
        n_threads: settings.n_threads,
        kv,
        n_gpu_layers: settings.n_gpu_layers,
        ..OracleParams::new(settings.n_ctx)
    };
    let mut oracle = Oracle::open(&choice.path, &params)?;
    for adapter in &choice.params.adapters {
        oracle.lora(&adapter.path, adapter.scale)?;
    }
    Ok(Libllama { oracle, n_batch: (settings.n_batch as usize).max(1) })
}

struct Libllama {
    oracle: Oracle,
    n_batch: usize,
}

impl Engine for Libllama {
    fn hold(&mut self, tokens: &[Token]) -> ropewalk::Result<()> {
        self.oracle.clear();
        self.append(tokens)
    }

    fn append(&mut self, tokens: &[Token]) -> ropewalk::Result<()> {
        for batch in tokens.chunks(self.n_batch) {
            self.oracle.eval(batch, false)?;
        }
        Ok(())
    }
}
