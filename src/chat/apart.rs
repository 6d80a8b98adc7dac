//! Renders chat templates in a process of its own.
//!
//! A template is a program out of a model's file. Its steps can be counted, but one step can ask for any
//! amount of memory (`'x' * n`, `batch`, `indent`, `format`), and a process that gets none is ended by the
//! allocator. So whoever does not trust a file has its template rendered by another process under limits:
//! [`Apart`] says how to start it and how much it may take, and the process that was started calls
//! [`serve`].
//!
//! | limit | holds on |
//! |---|---|
//! | memory ([`Limits::memory`]) | Linux and the BSDs |
//! | computing time ([`Limits::cpu`]), no core file | every Unix |
//! | time altogether ([`Limits::wall`]), bytes to and fro ([`MAX_BYTES`]) | everywhere |

use std::borrow::Cow;
use std::ffi::OsString;
use std::io::{Read, Write};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant, SystemTime};

use serde::{Deserialize, Serialize};

use super::{Message, Template};
use crate::model::{Error, Result};

/// Most bytes of a template with its messages, and most bytes of the rendered text, each as JSON.
pub const MAX_BYTES: u64 = 32 << 20;

/// Most bytes that are read of what the process says when it dies.
const MAX_LAST_WORDS: u64 = 4096;

/// The most that rendering once may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of address space, beyond what the started program takes by itself.
    pub memory: u64,
    /// Seconds of computing.
    pub cpu: u64,
    /// Time on the clock.
    pub wall: Duration,
}

impl Default for Limits {
    /// 512 MiB, which is enough for texts of [`MAX_BYTES`]; 5 seconds of computing, 60 on the clock.
    fn default() -> Self {
        Limits { memory: 512 << 20, cpu: 5, wall: Duration::from_secs(60) }
    }
}

/// How to start a process that renders templates.
///
/// ```no_run
/// use ropewalk::chat::{apart::{self, Apart}, Message, Template};
///
/// // In a program that renders in a process of itself:
/// if std::env::args().nth(1).as_deref() == Some("render") {
///     return Ok(apart::serve(std::io::stdin().lock(), std::io::stdout().lock())?);
/// }
/// let apart = Apart::new(std::env::current_exe()?, ["render"]);
/// let template = Template::new_apart("{{ messages[0].content }}", "<s>", "</s>", &apart)?;
/// assert_eq!(template.render(&[Message::new("user", "Hello")], true)?, "Hello");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
pub struct Apart {
    program: PathBuf,
    arguments: Vec<OsString>,
    limits: Limits,
}

/// A request to the process, sent after 16 bytes with the limits that it puts on itself.
#[derive(Debug, Serialize, Deserialize)]
struct Request<'a> {
    template: Cow<'a, str>,
    bos: Cow<'a, str>,
    eos: Cow<'a, str>,
    now: SystemTime,
    /// `None` asks only whether the template can be read.
    messages: Option<Cow<'a, [Message]>>,
    add_generation_prompt: bool,
}

#[derive(Debug, Serialize, Deserialize)]
enum Reply {
    Text(String),
    Error(String),
}

impl Apart {
    /// A process that `program` with these arguments becomes; it must call [`serve`]. The limits are
    /// [`Limits::default`].
    pub fn new(
        program: impl Into<PathBuf>,
        arguments: impl IntoIterator<Item = impl Into<OsString>>,
    ) -> Apart {
        let arguments = arguments.into_iter().map(Into::into).collect();
        Apart { program: program.into(), arguments, limits: Limits::default() }
    }

    /// The same under other limits.
    pub fn with_limits(self, limits: Limits) -> Apart {
        Apart { limits, ..self }
    }

    /// Renders, or only reads the template where there are no messages.
    pub(super) fn render(
        &self,
        source: &Source,
        messages: Option<&[Message]>,
        add_generation_prompt: bool,
    ) -> Result<String> {
        let request = Request {
            template: Cow::Borrowed(&source.template),
            bos: Cow::Borrowed(&source.bos),
            eos: Cow::Borrowed(&source.eos),
            now: source.now,
            messages: messages.map(Cow::Borrowed),
            add_generation_prompt,
        };
        let json = serde_json::to_vec(&request).map_err(|e| invalid(&e))?;
        if json.len() as u64 > MAX_BYTES {
            return Err(invalid(&format!(
                "template and messages: expected at most {MAX_BYTES} bytes, found {}",
                json.len()
            )));
        }
        match self.ask(&json)? {
            Reply::Text(text) => Ok(text),
            Reply::Error(e) => Err(Error::Invalid(e)),
        }
    }

    /// Sends the request to a new process, and gets its reply or says how it ended.
    fn ask(&self, json: &[u8]) -> Result<Reply> {
        let mut command = Command::new(&self.program);
        command.args(&self.arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        // A process without memory would look for the names of its functions to print them.
        command.env("RUST_BACKTRACE", "0");
        #[cfg(unix)]
        {
            // Ctrl-C at a terminal is for the program that waits.
            use std::os::unix::process::CommandExt;
            command.process_group(0);
        }
        let child = command.spawn().map_err(|e| {
            invalid(&format!("cannot start a process to render it: {}: {e}", self.program.display()))
        })?;
        let mut process = Process(child);
        let child = &mut process.0;
        let (Some(mut stdin), Some(stdout), Some(stderr)) =
            (child.stdin.take(), child.stdout.take(), child.stderr.take())
        else {
            return Err(invalid(&"cannot talk to the process that renders it"));
        };
        let deadline = Instant::now() + self.limits.wall;
        let late = || invalid(&format!("took longer than {} s", self.limits.wall.as_secs_f64()));
        std::thread::scope(|scope| {
            scope.spawn(move || {
                // A process that is gone does not read; how it ended says more than that.
                let limits = [self.limits.memory, self.limits.cpu].map(u64::to_le_bytes).concat();
                let _ = stdin.write_all(&limits).and_then(|()| stdin.write_all(json));
            });
            let last_words = scope.spawn(move || {
                let mut bytes = Vec::new();
                let _ = stderr.take(MAX_LAST_WORDS).read_to_end(&mut bytes);
                String::from_utf8_lossy(&bytes).into_owned()
            });
            let (send, received) = mpsc::channel();
            scope.spawn(move || {
                let mut bytes = Vec::new();
                let read = stdout.take(MAX_BYTES + 1).read_to_end(&mut bytes).map(|_| bytes);
                let _ = send.send(read);
            });
            // Whatever ends here ends the process, so that no thread of the scope waits for it.
            let reply = received.recv_timeout(self.limits.wall);
            let status = match &reply {
                Ok(Ok(bytes)) if bytes.len() as u64 <= MAX_BYTES => process.wait_until(deadline),
                _ => process.end(),
            };
            let said = last_words.join().unwrap_or_default();
            let bytes = match reply {
                Ok(read) => read.map_err(|e| invalid(&format!("the process that renders it: {e}")))?,
                Err(_) => return Err(late()),
            };
            if bytes.len() as u64 > MAX_BYTES {
                return Err(too_long());
            }
            match (serde_json::from_slice(&bytes), status) {
                (Ok(reply), _) => Ok(reply),
                (Err(_), Some(status)) => Err(invalid(&self.fate(status, &said))),
                (Err(_), None) => Err(late()),
            }
        })
    }

    /// The way a process ended that sent no reply, in words.
    fn fate(&self, status: ExitStatus, said: &str) -> String {
        if said.contains("memory allocation of") || said.contains("capacity overflow") {
            return format!("needs more than {} MiB", self.limits.memory >> 20);
        }
        if said.contains("has overflowed its stack") {
            return "is nested too deeply".into();
        }
        #[cfg(unix)]
        {
            use std::os::unix::process::ExitStatusExt;
            /// Its number on every Unix: the limit of computing time was reached.
            const SIGXCPU: i32 = 24;
            if status.signal() == Some(SIGXCPU) {
                return format!("took longer than {} s of computing", self.limits.cpu);
            }
        }
        format!("the process that renders it ended without an answer ({status})")
    }
}

/// A process that does not outlive this value.
struct Process(Child);

impl Process {
    /// Waits for its end; after the deadline it is ended, and `None`.
    fn wait_until(&mut self, deadline: Instant) -> Option<ExitStatus> {
        loop {
            match self.0.try_wait() {
                Ok(None) if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(1)),
                Ok(Some(status)) => return Some(status),
                _ => return self.end(),
            }
        }
    }

    fn end(&mut self) -> Option<ExitStatus> {
        let _ = self.0.kill();
        let _ = self.0.wait();
        None
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.end();
    }
}

/// A template that another process reads.
#[derive(Debug, Clone)]
pub(super) struct Source {
    pub(super) template: String,
    pub(super) bos: String,
    pub(super) eos: String,
    pub(super) now: SystemTime,
}

/// The other side of [`Apart`]: puts the limits it is told onto this process, reads a template with its
/// messages from `input` to its end, and writes the text. The process should do nothing else and end then.
///
/// # Errors
/// Input or output that fails. What is wrong with the template is told the other side.
pub fn serve(mut input: impl Read, mut output: impl Write) -> std::io::Result<()> {
    let mut limits = [[0u8; 8]; 2];
    for limit in &mut limits {
        input.read_exact(limit)?;
    }
    let [memory, cpu] = limits.map(u64::from_le_bytes);
    limit(memory, cpu)?;
    let mut json = Vec::new();
    input.take(MAX_BYTES + 1).read_to_end(&mut json)?;
    let rendered = if json.len() as u64 > MAX_BYTES { Err(too_long()) } else { answer(json) };
    let reply = match rendered {
        Ok(text) => Reply::Text(text),
        Err(e) => Reply::Error(e.to_string()),
    };
    let mut reply = serde_json::to_vec(&reply)?;
    if reply.len() as u64 > MAX_BYTES {
        reply = serde_json::to_vec(&Reply::Error(too_long().to_string()))?;
    }
    output.write_all(&reply)?;
    output.flush()
}

fn answer(json: Vec<u8>) -> Result<String> {
    let request: Request<'static> = serde_json::from_slice(&json).map_err(|e| invalid(&e))?;
    drop(json);
    let template = Template::at(Some(&request.template), &request.bos, &request.eos, request.now)?;
    match &request.messages {
        Some(messages) => template.render(messages, request.add_generation_prompt),
        None => Ok(String::new()),
    }
}

fn too_long() -> Error {
    invalid(&format!("its text is more than {MAX_BYTES} bytes"))
}

fn invalid(what: &dyn std::fmt::Display) -> Error {
    Error::Invalid(format!("chat template: {what}"))
}

/// Puts limits on this process: `memory` more bytes than it has now, and so many seconds of computing.
#[cfg(unix)]
fn limit(memory: u64, cpu: u64) -> std::io::Result<()> {
    use rlimit::Resource;
    let lower = |resource: Resource, soft: u64, hard: u64| {
        // No process may raise the limit that it was started under.
        let (_, most) = resource.get()?;
        resource.set(soft.min(most), hard.min(most))
    };
    // What a dying process held belongs into no file.
    lower(Resource::CORE, 0, 0)?;
    // The first limit sends a signal that can be told from others, the second ends the process for sure.
    lower(Resource::CPU, cpu, cpu.saturating_add(1))?;
    #[cfg(not(target_os = "macos"))]
    {
        let most = size().saturating_add(memory);
        lower(Resource::AS, most, most)?;
    }
    #[cfg(target_os = "macos")]
    let _ = memory;
    Ok(())
}

#[cfg(not(unix))]
fn limit(_: u64, _: u64) -> std::io::Result<()> {
    Ok(())
}

/// Bytes of this process's address space: of the program itself, as a rule. Where the system does not say, a
/// bound of what a program has with the libraries of GPUs.
#[cfg(all(unix, not(target_os = "macos")))]
fn size() -> u64 {
    let read = || {
        let status = std::fs::read_to_string("/proc/self/status").ok()?;
        let line = status.lines().find(|l| l.starts_with("VmSize:"))?;
        Some(line.split_ascii_whitespace().nth(1)?.parse::<u64>().ok()? * 1024)
    };
    read().unwrap_or(4 << 30)
}
