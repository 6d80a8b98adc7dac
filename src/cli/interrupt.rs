//! Ctrl-C, SIGTERM and SIGHUP: the first one asks whatever is running to stop, another one ends the program.

use std::sync::OnceLock;

use anyhow::{ensure, Context};
use ropewalk::control::Control;
use ropewalk::model::Error;
use ropewalk::session::Session;
use ropewalk::{origin, study};
use ropewalk_core::signals::{self, Signals};

/// The handler of this process, for its exit code.
static SIGNALS: OnceLock<Signals> = OnceLock::new();

/// The request to stop that a signal makes. Clones share it.
#[derive(Debug, Clone)]
pub(crate) struct Interrupt {
    signals: Signals,
}

/// An error that is no fault: the program was asked to stop.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Stopped(String);

/// The error of a command that a signal has stopped.
pub(crate) fn stopped(text: impl Into<String>) -> anyhow::Error {
    Stopped(text.into()).into()
}

/// The error, after the results, of a command whose work was cut short.
pub(crate) fn check(interrupted: bool, text: &str) -> anyhow::Result<()> {
    ensure!(!interrupted, stopped(text));
    Ok(())
}

/// The exit code for an error that came of a signal: 130 after Ctrl-C, 143 after SIGTERM, 129 after SIGHUP.
pub(crate) fn exit_code(e: &anyhow::Error) -> Option<u8> {
    let signal = SIGNALS.get()?.received()?;
    is_stop(e).then(|| signals::exit_code(signal))
}

/// Returns true if an error, or a cause of it, is a request to stop.
fn is_stop(e: &anyhow::Error) -> bool {
    e.chain().any(|e| {
        e.is::<Stopped>()
            || matches!(e.downcast_ref::<Error>(), Some(Error::Interrupted))
            || matches!(e.downcast_ref::<origin::Error>(), Some(origin::Error::Stopped { .. }))
            || matches!(e.downcast_ref::<study::Error>(), Some(study::Error::Stopped))
    })
}

impl Interrupt {
    /// Installs the handler. Call once per process.
    pub(crate) fn install() -> anyhow::Result<Interrupt> {
        let signals = Signals::listen().context("cannot listen for signals")?;
        Ok(Interrupt { signals: SIGNALS.get_or_init(|| signals).clone() })
    }

    pub(crate) fn control(&self) -> Control<'_> {
        Control::default().with_stop(self.signals.stop())
    }

    /// Makes a signal stop what this session computes.
    pub(crate) fn watch(&self, session: &Session) {
        self.signals.stop().bind(&session.cancel_flag());
    }

    pub(crate) fn requested(&self) -> bool {
        self.signals.stop().requested()
    }

    /// Forgets Ctrl-C, so that the next one is a first one again, and runs what only waits for input:
    /// meanwhile a signal ends the program at once.
    ///
    /// # Errors
    /// SIGTERM or SIGHUP has come before.
    pub(crate) fn waiting<T>(&self, wait: impl FnOnce() -> anyhow::Result<T>) -> anyhow::Result<T> {
        self.signals.waiting(|| {
            self.signals.clear();
            check(self.signals.received().is_some(), "interrupted")?;
            wait()
        })
    }
}
