//! Signals that ask a program to stop: Ctrl-C (SIGINT) everywhere, SIGTERM and SIGHUP on Unix. For programs, not
//! for libraries: a process has one such handler.
//!
//! The first signal makes a [`Stop`] request, so that work ends in order. SIGINT or SIGTERM once more ends the
//! process at once; but not within half a second of the first, for `timeout` sends SIGTERM twice. SIGHUP only
//! ever asks, for when a terminal closes it may come from the shell and from the system.
//!
//! SIGHUP that is ignored when the process starts, as under `nohup`, stays ignored. Whether it is can only be
//! seen on Linux; on other systems SIGHUP is left as it is and ends the process, unless it is ignored.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::control::Stop;

const SIGHUP: i32 = 1;
const SIGINT: i32 = 2;
#[cfg(unix)]
const SIGTERM: i32 = 15;
/// Time after a signal in which another one is the same request.
const SAME: Duration = Duration::from_millis(500);

/// The signals that have come. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct Signals {
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    stop: Stop,
    /// The first signal; 0 for none.
    first: AtomicI32,
    /// When SIGINT or SIGTERM came first.
    asked: Mutex<Option<Instant>>,
    waiting: AtomicBool,
}

impl Signals {
    /// Installs the handlers. Call it once in a process.
    ///
    /// # Errors
    /// The system's, or that a handler was installed before.
    pub fn listen() -> io::Result<Signals> {
        let signals = Signals::default();
        let of_ctrl_c = signals.clone();
        ctrlc::set_handler(move || of_ctrl_c.came(SIGINT)).map_err(io::Error::other)?;
        #[cfg(unix)]
        {
            let mut wanted = vec![SIGTERM];
            wanted.extend(may_hang_up().then_some(SIGHUP));
            let mut coming = signal_hook::iterator::Signals::new(wanted)?;
            let of_others = signals.clone();
            let listen = move || coming.forever().for_each(|signal| of_others.came(signal));
            std::thread::Builder::new().name("signals".into()).spawn(listen)?;
        }
        Ok(signals)
    }

    /// The request that the first signal makes.
    pub fn stop(&self) -> &Stop {
        &self.shared.stop
    }

    /// The first signal that came, as a number: 2, 15 or 1.
    pub fn received(&self) -> Option<i32> {
        Some(self.shared.first.load(Ordering::SeqCst)).filter(|&signal| signal != 0)
    }

    /// Forgets Ctrl-C: the next one is a first one again. SIGTERM and SIGHUP mean the whole program and stay.
    pub fn clear(&self) {
        if self.shared.first.compare_exchange(SIGINT, 0, Ordering::SeqCst, Ordering::SeqCst).is_ok() {
            *self.shared.asked.lock().unwrap_or_else(PoisonError::into_inner) = None;
            self.shared.stop.clear();
        }
    }

    /// Runs `wait`, which does nothing but wait for input: meanwhile any signal ends the process at once.
    pub fn waiting<T>(&self, wait: impl FnOnce() -> T) -> T {
        self.shared.waiting.store(true, Ordering::SeqCst);
        let done = wait();
        self.shared.waiting.store(false, Ordering::SeqCst);
        done
    }

    fn came(&self, signal: i32) {
        let first = self.shared.first.compare_exchange(0, signal, Ordering::SeqCst, Ordering::SeqCst).is_ok();
        if self.shared.waiting.load(Ordering::SeqCst) {
            end(signal);
        }
        if signal != SIGHUP {
            let mut asked = self.shared.asked.lock().unwrap_or_else(PoisonError::into_inner);
            if asked.get_or_insert_with(Instant::now).elapsed() >= SAME {
                end(signal);
            }
        }
        if first {
            self.shared.stop.request();
        }
    }
}

/// From now on a file that grows past the limit of the process (`ulimit -f`) is an error of the write, where the
/// system would end the program. For programs, when they start.
pub fn fail_large_writes() {
    // A handler, which need not do anything: unlike a signal that is ignored, it is not passed on to other programs.
    #[cfg(unix)]
    let _ = signal_hook::flag::register(signal_hook::consts::SIGXFSZ, Arc::default());
}

/// The exit code of a program that a signal has ended, as shells give it.
pub fn exit_code(signal: i32) -> u8 {
    128 + (signal & 127) as u8
}

/// Ends the process without running anything more: threads still compute.
fn end(signal: i32) -> ! {
    let code = i32::from(exit_code(signal));
    #[cfg(unix)]
    signal_hook::low_level::exit(code);
    #[cfg(not(unix))]
    std::process::exit(code);
}

/// Returns true if SIGHUP can be handled: it is known not to be ignored.
#[cfg(unix)]
fn may_hang_up() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|l| l.strip_prefix("SigIgn:"));
    let ignored = ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    ignored.is_some_and(|mask| mask & (1 << (SIGHUP - 1)) == 0)
}
