//! Chat templates and conversations.

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::mpsc::{sync_channel, Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

use pyo3::prelude::*;
use ropewalk::chat::apart::Apart;
use ropewalk::chat::{Conversation, Template, Turn};
use ropewalk::control::{Control, Stop};

use crate::args::object;
use crate::error::{raised, RopewalkError};
use crate::work::{check_fork, hold, TICK};

/// The program, which renders chat templates in a process with limits.
pub(crate) fn program(py: Python<'_>) -> PyResult<Apart> {
    let program = py.import("ropewalk._program")?.call_method0("find")?.extract::<PathBuf>()?;
    Ok(Apart::new(program, ["--render-chat-template"]))
}

/// The chat template of a model; ChatML if its file has none.
pub(crate) fn template(py: Python<'_>, model: &ropewalk::Model) -> PyResult<Template> {
    let program = program(py)?;
    py.detach(|| Template::of_apart(model, &program)).map_err(raised)
}

/// A conversation: its messages, and a session that answers them. One answer is computed at a time: a call during one raises
/// `SessionBusy`.
#[pyclass(frozen, module = "ropewalk")]
pub(crate) struct Chat(Arc<Mutex<Conversation>>);

impl Chat {
    pub(crate) fn new(conversation: Conversation) -> Chat {
        Chat(Arc::new(Mutex::new(conversation)))
    }
}

#[pymethods]
impl Chat {
    /// The messages so far: dicts with `role` and `content`, and `reasoning_content` if the model thought.
    #[getter]
    fn messages<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let messages = hold(&self.0)?.messages().to_vec();
        object(py, &messages)
    }

    /// Sends a message. The iterator has the text of the answer as it is generated. An answer whose iterator is closed or
    /// deleted before its end is kept as far as it is.
    fn say(&self, text: String) -> PyResult<Answer> {
        // The thread would find the same, but the iterator would raise it.
        check_fork()?;
        drop(hold(&self.0)?);
        let (held, stop) = (Arc::clone(&self.0), Stop::default());
        let asked = stop.clone();
        // Without a buffer, the answer is never far ahead of its reader.
        let (sender, pieces) = sync_channel(0);
        let worker = thread::spawn(move || -> PyResult<Turn> {
            let mut conversation = hold(&held)?;
            let control = Control::default().with_stop(&asked);
            let mut show = |piece: &str| match piece.is_empty() || sender.send(piece.to_owned()).is_ok() {
                true => ControlFlow::Continue(()),
                false => ControlFlow::Break(()),
            };
            conversation.say(&text, &control, &mut show).map_err(raised)
        });
        Ok(Answer { stop, state: Mutex::new(State { pieces, worker: Some(worker), turn: None }) })
    }

    /// Removes the last message of the user and its answer, and returns the text of that message.
    fn undo(&self) -> PyResult<Option<String>> {
        Ok(hold(&self.0)?.undo().map(|message| message.content))
    }

    /// Removes all messages but that of the system.
    fn clear(&self) -> PyResult<()> {
        hold(&self.0)?.clear();
        Ok(())
    }
}

/// The text of an answer, piece by piece. Each piece has complete characters.
#[pyclass(frozen, module = "ropewalk")]
pub(crate) struct Answer {
    stop: Stop,
    state: Mutex<State>,
}

/// An answer that a thread computes.
struct State {
    pieces: Receiver<String>,
    /// `None` after its end.
    worker: Option<JoinHandle<PyResult<Turn>>>,
    turn: Option<Turn>,
}

impl Answer {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for the end of the thread, whose other pieces nobody reads; with `early`, after a request to stop. The thread
    /// does not need the GIL.
    fn wait(&self, early: bool) -> PyResult<()> {
        let mut state = self.state();
        // The request of an answer that has ended would stop the next one, whose session is the same.
        if early && state.worker.as_ref().is_some_and(|worker| !worker.is_finished()) {
            self.stop.request();
        }
        while state.pieces.recv().is_ok() {}
        if let Some(worker) = state.worker.take() {
            let turn = worker.join();
            if self.stop.requested() {
                self.stop.clear();
            }
            let lost = |_| Err(RopewalkError::new_err("the conversation is lost: an answer panicked"));
            state.turn = Some(turn.unwrap_or_else(lost)?);
        }
        Ok(())
    }
}

#[pymethods]
impl Answer {
    fn __iter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __next__(&self, py: Python<'_>) -> PyResult<Option<String>> {
        loop {
            match py.detach(|| self.state().pieces.recv_timeout(TICK)) {
                Ok(piece) => return Ok(Some(piece)),
                Err(RecvTimeoutError::Disconnected) => return py.detach(|| self.wait(false)).map(|()| None),
                Err(RecvTimeoutError::Timeout) => {
                    if let Err(e) = py.check_signals() {
                        self.close(py);
                        return Err(e);
                    }
                }
            }
        }
    }

    /// Ends the answer where it is.
    fn close(&self, py: Python<'_>) {
        // Nobody asked for what failed.
        let _ = py.detach(|| self.wait(true));
    }

    /// Figures of the answer after its end: tokens of the prompt, those that were not computed again, tokens and seconds, and
    /// why it ended (`stop`): `end`, `stop`, `length`, `context`, or `cancelled`.
    #[getter]
    fn turn<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        let turn = py.detach(|| self.state().turn.clone());
        turn.map(|turn| object(py, &turn)).transpose()
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        let _ = self.wait(true);
    }
}
