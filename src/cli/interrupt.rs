//! Ctrl-C: the first one asks everybody who listens to stop, the second ends the program.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use anyhow::Context;
use ropewalk::session::Session;

/// Who is told of Ctrl-C. Clones share everything.
#[derive(Debug, Clone)]
pub(crate) struct Interrupt {
    requested: Arc<AtomicBool>,
    sessions: Arc<Mutex<Vec<Weak<AtomicBool>>>>,
}

impl Interrupt {
    /// Installs the handler. Call once per process.
    pub(crate) fn install() -> anyhow::Result<Interrupt> {
        let this = Interrupt { requested: Arc::default(), sessions: Arc::default() };
        let handler = this.clone();
        ctrlc::set_handler(move || {
            if handler.requested.swap(true, Ordering::SeqCst) {
                std::process::exit(130);
            }
            handler.tell(true);
        })
        .context("cannot listen for Ctrl-C")?;
        Ok(this)
    }

    /// Makes Ctrl-C stop what this session computes.
    pub(crate) fn watch(&self, session: &Session<'_>) {
        self.watch_flag(&session.cancel_flag());
    }

    /// Makes Ctrl-C set this flag, which [`Interrupt::clear`] resets.
    pub(crate) fn watch_flag(&self, flag: &Arc<AtomicBool>) {
        let mut sessions = self.sessions.lock().unwrap_or_else(PoisonError::into_inner);
        sessions.retain(|s| s.strong_count() > 0);
        sessions.push(Arc::downgrade(flag));
        flag.store(self.requested(), Ordering::SeqCst);
    }

    /// Whether Ctrl-C was pressed.
    pub(crate) fn requested(&self) -> bool {
        self.requested.load(Ordering::SeqCst)
    }

    /// The flag itself, for tasks that check it between cases.
    pub(crate) fn flag(&self) -> &AtomicBool {
        &self.requested
    }

    /// Forgets it: the next Ctrl-C is a first one again.
    pub(crate) fn clear(&self) {
        self.requested.store(false, Ordering::SeqCst);
        self.tell(false);
    }

    fn tell(&self, stop: bool) {
        let sessions = self.sessions.lock().unwrap_or_else(PoisonError::into_inner);
        for flag in sessions.iter().filter_map(Weak::upgrade) {
            flag.store(stop, Ordering::SeqCst);
        }
    }
}
