//! Work without the GIL. It runs on its own thread. The calling thread waits for it, looks for signals, and calls the
//! caller's callbacks, so that Ctrl-C stops the work, and callbacks run where they are expected.

use std::fmt::Arguments;
use std::panic::resume_unwind;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{sync_channel, RecvTimeoutError};
use std::sync::{Mutex, MutexGuard, TryLockError};
use std::time::Duration;
use std::{process, thread};

use pyo3::prelude::*;
use pyo3::types::PyDict;
use ropewalk::control::{Control, Progress, Stop};

use crate::error::{RopewalkError, SessionBusy};

/// Time between two looks for signals.
pub(crate) const TICK: Duration = Duration::from_millis(50);

/// Callables of the caller.
#[derive(Default)]
pub(crate) struct Callbacks {
    /// Gets units done, units in all, and a line of text.
    pub(crate) progress: Option<Py<PyAny>>,
    /// Gets a dict of the figures of a step.
    pub(crate) step: Option<Py<PyAny>>,
    /// Gets lines that are worth keeping.
    pub(crate) note: Option<Py<PyAny>>,
}

/// A report from the work.
enum Event {
    Progress { what: String, done: u64, total: u64, figures: Vec<(&'static str, f64)> },
    Note(String),
}

impl Callbacks {
    fn call(&self, py: Python<'_>, event: Event) -> PyResult<()> {
        match event {
            Event::Progress { what, done, total, figures } => {
                if let Some(step) = self.step.as_ref().filter(|_| !figures.is_empty()) {
                    let dict = PyDict::new(py);
                    dict.set_item("step", done)?;
                    dict.set_item("steps", total)?;
                    for (name, figure) in figures {
                        dict.set_item(name, figure)?;
                    }
                    step.call1(py, (dict,))?;
                }
                if let Some(progress) = &self.progress {
                    progress.call1(py, (done, total, what))?;
                }
            }
            Event::Note(text) => {
                if let Some(note) = &self.note {
                    note.call1(py, (text,))?;
                }
            }
        }
        Ok(())
    }
}

/// A session, or what has one, unless another call uses it.
pub(crate) fn hold<T>(held: &Mutex<T>) -> PyResult<MutexGuard<'_, T>> {
    held.try_lock().map_err(|e| match e {
        TryLockError::WouldBlock => SessionBusy::new_err("the session is in use by another call"),
        TryLockError::Poisoned(_) => RopewalkError::new_err("the session is lost: an earlier call panicked"),
    })
}

/// The process that first computed; 0 before.
static OWNER: AtomicU32 = AtomicU32::new(0);

/// Fails in a process that was forked after its parent computed: the threads that share the work do not survive a fork,
/// and a call would wait for them forever.
///
/// # Errors
/// A [`RopewalkError`] that names the way out.
pub(crate) fn check_fork() -> PyResult<()> {
    let own = process::id();
    match OWNER.compare_exchange(0, own, Ordering::Relaxed, Ordering::Relaxed) {
        Err(owner) if owner != own => Err(RopewalkError::new_err(
            "fork: the parent of this process has computed, and its threads do not survive a fork: start processes with \
             multiprocessing.get_context('spawn'), or compute only in them",
        )),
        _ => Ok(()),
    }
}

/// Runs the work, and returns its result.
///
/// # Errors
/// Returns what a signal handler or a callback raised. The work has stopped by then. In a process that was forked after
/// its parent computed, returns the error of [`check_fork`].
pub(crate) fn run<T: Send>(
    py: Python<'_>,
    callbacks: &Callbacks,
    work: impl FnOnce(&Control<'_>) -> T + Send,
) -> PyResult<T> {
    check_fork()?;
    let stop = Stop::default();
    let (done, raised) = py.detach(|| {
        thread::scope(|scope| {
            // Without a buffer, the work is never far ahead of its callbacks.
            let (sender, events) = sync_channel(0);
            let stop = &stop;
            let worker = scope.spawn(move || {
                // An event that nobody waits for is dropped.
                let progress = |p: &Progress<'_>| {
                    let (what, figures) = (p.what.to_string(), p.figures.to_vec());
                    let _ = sender.send(Event::Progress { what, done: p.done, total: p.total, figures });
                };
                let note = |text: Arguments<'_>| {
                    let _ = sender.send(Event::Note(text.to_string()));
                };
                let mut control = Control::default().with_stop(stop);
                if callbacks.progress.is_some() || callbacks.step.is_some() {
                    control = control.with_progress(&progress);
                }
                if callbacks.note.is_some() {
                    control = control.with_notes(&note);
                }
                work(&control)
            });
            let mut raised: Option<PyErr> = None;
            loop {
                let event = match events.recv_timeout(TICK) {
                    Ok(event) => Some(event),
                    Err(RecvTimeoutError::Timeout) => None,
                    Err(RecvTimeoutError::Disconnected) => break,
                };
                if raised.is_some() {
                    continue;
                }
                let heard = Python::attach(|py| {
                    event.map_or(Ok(()), |event| callbacks.call(py, event))?;
                    py.check_signals()
                });
                if let Err(e) = heard {
                    raised = Some(e);
                    stop.request();
                }
            }
            (worker.join(), raised)
        })
    });
    // Flags of sessions that followed the request are reset.
    stop.clear();
    let done = done.unwrap_or_else(|panic| resume_unwind(panic));
    raised.map_or(Ok(done), Err)
}
