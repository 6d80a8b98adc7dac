//! Work on bytes from strangers in a separate process, under limits.
//!
//! A process that gets no memory is ended by the allocator, and a panic in somebody else's code ends a thread. Whoever
//! does not trust bytes has them worked on by another process: [`Apart`] says how to start it and how much it may
//! take, and the process that was started calls [`serve`].
//!
//! The process gets only the library paths of its parent's environment, so no key or token. Waiting for it ends as soon
//! as the caller asks for that ([`Apart::stopped_by`]). A server has the process for the next request started before that
//! comes ([`Apart::ready`]).
//!
//! | limit | holds on |
//! |---|---|
//! | memory ([`Limits::memory`]) | Linux and the BSDs |
//! | computing time ([`Limits::cpu`]), no core file, no file or socket opened after the start | every Unix |
//! | time altogether ([`Limits::wall`]), bytes of the answer | everywhere |

use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::control::Control;

/// Most bytes that are read of what the process says when it dies.
const MAX_LAST_WORDS: u64 = 4096;

/// Time after which a request to stop is noticed.
const LOOK: Duration = Duration::from_millis(20);

/// Variables that say where libraries of programs lie: without them a program linked to such does not start.
const LOADER: &[&str] = if cfg!(target_os = "macos") {
    &["DYLD_LIBRARY_PATH", "DYLD_FALLBACK_LIBRARY_PATH"]
} else if cfg!(windows) {
    &["PATH", "SystemRoot"]
} else {
    &["LD_LIBRARY_PATH"]
};

crate::setters! {
    /// The most that a process may take for one request.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct Limits {
        /// Bytes of address space, beyond what the started program takes by itself.
        pub memory: u64,
        /// Seconds of computing.
        pub cpu: u64,
        /// Time on the clock.
        pub wall: Duration,
    }
}

impl Limits {
    /// Limits of other processes than those of [`Limits::default`].
    pub const fn new(memory: u64, cpu: u64, wall: Duration) -> Limits {
        Limits { memory, cpu, wall }
    }
}

impl Default for Limits {
    /// 512 MiB, 5 seconds of computing, 60 on the clock.
    fn default() -> Self {
        Limits { memory: 512 << 20, cpu: 5, wall: Duration::from_secs(60) }
    }
}

/// How to start a process that answers one request.
#[derive(Debug, Clone)]
pub struct Apart {
    program: PathBuf,
    arguments: Vec<OsString>,
    limits: Limits,
    stop: Arc<AtomicBool>,
    /// The process for the next request, where one is to wait for it.
    next: Option<Arc<Mutex<Option<Process>>>>,
}

/// Why there is no answer. One line.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Fault {
    /// The answer has more bytes than the caller takes.
    #[error("the answer is more than {0} bytes")]
    TooLong(u64),
    /// The caller asked to stop: see [`Apart::stopped_by`].
    #[error("interrupted")]
    Stopped,
    /// The process cannot be started, whatever it was to answer.
    #[error("cannot start a process for it: {}: {what}", program.display())]
    Unstarted {
        /// The program.
        program: PathBuf,
        /// The system's message.
        what: String,
    },
    /// Anything else: a limit reached, a process that died.
    #[error("{0}")]
    Ended(String),
}

impl Apart {
    /// A process that `program` with these arguments becomes; it must call [`serve`]. The limits are
    /// [`Limits::default`].
    pub fn new(
        program: impl Into<PathBuf>,
        arguments: impl IntoIterator<Item = impl Into<OsString>>,
    ) -> Apart {
        let arguments = arguments.into_iter().map(Into::into).collect();
        let program = program.into();
        Apart { program, arguments, limits: Limits::default(), stop: Arc::default(), next: None }
    }

    /// The same under other limits.
    pub fn with_limits(self, limits: Limits) -> Apart {
        Apart { limits, ..self }
    }

    /// The same; where the control's work is to stop, the process is ended and [`Fault::Stopped`] is the answer.
    pub fn stopped_by(self, control: &Control<'_>) -> Apart {
        let stop = Arc::default();
        control.bind(&stop);
        Apart { stop, ..self }
    }

    /// The same for many requests: after each, the process for the next one is started, and waits for it. Limits still hold
    /// for each request alone, and no process sees two.
    pub fn ready(self) -> Apart {
        Apart { next: Some(Arc::default()), ..self }
    }

    /// Sends the parts of a request to a new process, and gets its answer of at most so many bytes, as `read` takes it, or
    /// says how the process ended. `read` returns `None` for what is no answer.
    pub fn ask<T>(
        &self,
        request: &[&[u8]],
        most: u64,
        read: impl FnOnce(&[u8]) -> Option<T>,
    ) -> Result<T, Fault> {
        if self.stopped() {
            return Err(Fault::Stopped);
        }
        let process = self.waiting().map_or_else(|| self.start(), Ok)?;
        let answer = self.answer(process, request, most, read);
        if self.next.is_some() {
            let apart = self.clone();
            // Without a thread, the next request starts its process itself.
            let _ = std::thread::Builder::new().spawn(move || apart.start_next());
        }
        answer
    }

    /// The process that was started for this request, if it is still there.
    fn waiting(&self) -> Option<Process> {
        let mut process = self.next.as_ref()?.lock().unwrap_or_else(PoisonError::into_inner).take()?;
        matches!(process.0.try_wait(), Ok(None)).then_some(process)
    }

    fn start_next(&self) {
        let Some(next) = &self.next else { return };
        let mut next = next.lock().unwrap_or_else(PoisonError::into_inner);
        if next.is_none() && !self.stopped() {
            *next = self.start().ok();
        }
    }

    fn start(&self) -> Result<Process, Fault> {
        let mut command = alone(&self.program);
        command.args(&self.arguments);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        #[cfg(unix)]
        {
            // Ctrl-C at a terminal is for the program that waits.
            use std::os::unix::process::CommandExt;
            command.process_group(0);
        }
        let cannot = |e: io::Error| Fault::Unstarted { program: self.program.clone(), what: e.to_string() };
        command.spawn().map(Process).map_err(cannot)
    }

    fn answer<T>(
        &self,
        mut process: Process,
        request: &[&[u8]],
        most: u64,
        read: impl FnOnce(&[u8]) -> Option<T>,
    ) -> Result<T, Fault> {
        let ended = |what: String| Fault::Ended(what);
        let child = &mut process.0;
        let (Some(mut stdin), Some(stdout), Some(stderr)) =
            (child.stdin.take(), child.stdout.take(), child.stderr.take())
        else {
            return Err(ended("cannot talk to the process for it".into()));
        };
        let deadline = Instant::now() + self.limits.wall;
        let late = || ended(format!("took longer than {} s", self.limits.wall.as_secs_f64()));
        std::thread::scope(|scope| {
            scope.spawn(move || {
                // A process that is gone does not read; how it ended says more than that.
                let limits = [self.limits.memory, self.limits.cpu].map(u64::to_le_bytes).concat();
                let _ = stdin
                    .write_all(&limits)
                    .and_then(|()| request.iter().try_for_each(|part| stdin.write_all(part)));
            });
            let last_words = scope.spawn(move || {
                let mut bytes = Vec::new();
                let _ = stderr.take(MAX_LAST_WORDS).read_to_end(&mut bytes);
                String::from_utf8_lossy(&bytes).into_owned()
            });
            let (send, received) = mpsc::channel();
            scope.spawn(move || {
                let mut bytes = Vec::new();
                let read = stdout.take(most + 1).read_to_end(&mut bytes).map(|_| bytes);
                let _ = send.send(read);
            });
            // Whatever ends here ends the process, so that no thread of the scope waits for it.
            let reply = self.receive(&received, deadline);
            let status = match &reply {
                Ok(Ok(bytes)) if bytes.len() as u64 <= most => self.wait(&mut process, deadline),
                _ => process.end(),
            };
            let said = last_words.join().unwrap_or_default();
            let bytes = match reply {
                Ok(read) => read.map_err(|e| ended(format!("the process for it: {e}")))?,
                Err(_) if self.stopped() => return Err(Fault::Stopped),
                Err(_) => return Err(late()),
            };
            if bytes.len() as u64 > most {
                return Err(Fault::TooLong(most));
            }
            match (read(&bytes), status) {
                (Some(reply), _) => Ok(reply),
                (None, Some(status)) => Err(ended(self.fate(status, &said))),
                (None, None) if self.stopped() => Err(Fault::Stopped),
                (None, None) => Err(late()),
            }
        })
    }

    fn stopped(&self) -> bool {
        self.stop.load(Ordering::SeqCst)
    }

    /// Receives the next message before the deadline, unless the caller asks to stop.
    fn receive<T>(&self, from: &Receiver<T>, deadline: Instant) -> Result<T, RecvTimeoutError> {
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match from.recv_timeout(left.min(LOOK)) {
                Err(RecvTimeoutError::Timeout) if left > LOOK && !self.stopped() => {}
                done => return done,
            }
        }
    }

    /// Waits for the end of a process. After the deadline, and where the caller asks to stop, it is ended, and `None`.
    fn wait(&self, process: &mut Process, deadline: Instant) -> Option<ExitStatus> {
        loop {
            match process.0.try_wait() {
                Ok(None) if Instant::now() < deadline && !self.stopped() => {
                    std::thread::sleep(Duration::from_millis(1))
                }
                Ok(Some(status)) => return Some(status),
                _ => return process.end(),
            }
        }
    }

    /// The way a process ended that sent no answer, in words.
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
            /// Number of the signal on every Unix: the limit of CPU time was reached.
            const SIGXCPU: i32 = 24;
            if status.signal() == Some(SIGXCPU) {
                return format!("took longer than {} s of computing", self.limits.cpu);
            }
        }
        format!("the process for it ended without an answer ({status})")
    }
}

/// A process that does not outlive this value.
#[derive(Debug)]
struct Process(Child);

impl Process {
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

/// A program in an environment that has nothing of this process's but where libraries lie.
fn alone(program: &Path) -> Command {
    let mut command = Command::new(program);
    command.env_clear();
    command.envs(LOADER.iter().filter_map(|name| Some((name, std::env::var_os(name)?))));
    command
}

/// The program that runs, for a process of itself.
pub fn this_program() -> io::Result<PathBuf> {
    // The link leads to the running program even when another was put into its place meanwhile.
    let link = PathBuf::from("/proc/self/exe");
    match link.exists() {
        true => Ok(link),
        false => std::env::current_exe(),
    }
}

/// The other side of [`Apart::ask`]: puts the limits it is told onto this process, reads a request of at most so many
/// bytes from `input` to its end, and writes the answer. A longer request is given to `answer` as `None`. The process
/// should do nothing else and end then.
///
/// # Errors
/// Input or output that fails, and limits that cannot be set.
pub fn serve(
    mut input: impl Read,
    mut output: impl Write,
    most: u64,
    answer: impl FnOnce(Option<Vec<u8>>) -> Vec<u8>,
) -> io::Result<()> {
    let mut limits = [[0u8; 8]; 2];
    for limit in &mut limits {
        input.read_exact(limit)?;
    }
    let [memory, cpu] = limits.map(u64::from_le_bytes);
    limit(memory, cpu)?;
    let mut request = Vec::new();
    input.take(most + 1).read_to_end(&mut request)?;
    let fits = request.len() as u64 <= most;
    output.write_all(&answer(fits.then_some(request)))?;
    output.flush()
}

/// Puts limits on this process: `memory` more bytes than it has now, so many seconds of computing, and no more files
/// than its three standard streams.
#[cfg(unix)]
fn limit(memory: u64, cpu: u64) -> io::Result<()> {
    use rlimit::Resource;
    const STREAMS: u64 = 3;
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
    // Last, for the size is read from a file.
    lower(Resource::NOFILE, STREAMS, STREAMS)
}

#[cfg(not(unix))]
fn limit(_: u64, _: u64) -> io::Result<()> {
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

#[cfg(all(test, target_os = "linux"))]
mod tests;
