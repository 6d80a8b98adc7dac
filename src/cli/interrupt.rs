//! Ctrl-C: the first one asks whatever is running to stop, the second ends the program.

use anyhow::Context;
use ropewalk::control::{Control, Stop};
use ropewalk::session::Session;

/// The request to stop that Ctrl-C makes. Clones share it.
#[derive(Debug, Clone)]
pub(crate) struct Interrupt {
    stop: Stop,
}

impl Interrupt {
    /// Installs the handler. Call once per process.
    pub(crate) fn install() -> anyhow::Result<Interrupt> {
        let stop = Stop::default();
        let handler = stop.clone();
        ctrlc::set_handler(move || {
            if handler.requested() {
                std::process::exit(130);
            }
            handler.request();
        })
        .context("cannot listen for Ctrl-C")?;
        Ok(Interrupt { stop })
    }

    /// A control whose work Ctrl-C stops.
    pub(crate) fn control(&self) -> Control<'_> {
        Control::default().with_stop(&self.stop)
    }

    /// Makes Ctrl-C stop what this session computes.
    pub(crate) fn watch(&self, session: &Session<'_>) {
        self.stop.bind(&session.cancel_flag());
    }

    /// Whether Ctrl-C was pressed.
    pub(crate) fn requested(&self) -> bool {
        self.stop.requested()
    }

    /// Forgets it: the next Ctrl-C is a first one again.
    pub(crate) fn clear(&self) {
        self.stop.clear();
    }
}
