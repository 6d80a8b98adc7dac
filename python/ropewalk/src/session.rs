//! Sessions: generation, likelihoods, logits.

use std::ops::DerefMut;
use std::sync::{Mutex, MutexGuard, PoisonError};

use numpy::{IntoPyArray, PyArray1, PyArray2, PyArrayMethods};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use ropewalk::control::Control;
use ropewalk::eval::suite::{encode_pair, TaskEncoder};
use ropewalk::eval::{attention, SessionSource};
use ropewalk::sampler::SamplerParams;
use ropewalk::session::{Ending, Greedy, SeqId};
use ropewalk::tasks::Template;
use ropewalk::{Error, GenerateParams, Generation, SessionParams, Token};

use crate::args::{object, Prompt, Texts};
use crate::error::{raised, RopewalkError};
use crate::model::file_name;
use crate::plan::Plan;
use crate::work::{self, Callbacks};

/// Texts that are read together at least, if there is room: as many as `evaluate` has by default.
const TOGETHER: usize = 8;

/// A context over a model, under one RoPE method. One thread can use it at a time: a call while another one runs raises
/// `SessionBusy`.
#[pyclass(frozen, module = "ropewalk")]
pub(crate) struct Session {
    held: Mutex<ropewalk::Session>,
    model: ropewalk::Model,
    plan: ropewalk::Plan,
    params: SessionParams,
}

impl Session {
    pub(crate) fn new(native: ropewalk::Session) -> Session {
        let (model, plan, params) = (native.model().clone(), native.plan().clone(), native.params().clone());
        Session { held: Mutex::new(native), model, plan, params }
    }

    /// The sequences of calls that read several texts. They share the keys of a common prefix, so there can be more of them
    /// than whole contexts fit.
    fn sequences(&self) -> Vec<SeqId> {
        (0..SeqId::MAX).take(self.params.n_seq_max.max(TOGETHER)).collect()
    }

    /// The session, unless another call uses it.
    fn hold(&self) -> PyResult<MutexGuard<'_, ropewalk::Session>> {
        work::hold(&self.held)
    }

    /// Computes with the session. Ctrl-C stops it.
    fn compute<T: Send>(
        &self,
        py: Python<'_>,
        job: impl FnOnce(&mut ropewalk::Session) -> ropewalk::Result<T> + Send,
    ) -> PyResult<T> {
        self.watched(py, &Callbacks::default(), |session, _| job(session))
    }

    /// Computes with the session, and calls the caller's callbacks.
    fn watched<T: Send>(
        &self,
        py: Python<'_>,
        callbacks: &Callbacks,
        job: impl FnOnce(&mut ropewalk::Session, &Control<'_>) -> ropewalk::Result<T> + Send,
    ) -> PyResult<T> {
        let mut held = self.hold()?;
        let session = held.deref_mut();
        let done = work::run(py, callbacks, |control| {
            control.bind(&session.cancel_flag());
            job(session, control)
        })?;
        done.map_err(raised)
    }
}

#[pymethods]
impl Session {
    /// The context, in tokens.
    #[getter]
    fn n_ctx(&self) -> usize {
        self.params.n_ctx
    }

    /// The RoPE method at work: frequencies, distances, notes.
    #[getter]
    fn plan(&self) -> Plan {
        Plan::new(self.plan.clone(), self.model.hparams().clone())
    }

    /// The tokens in the context.
    #[getter]
    fn tokens(&self) -> PyResult<Vec<Token>> {
        Ok(self.hold()?.tokens(0).to_vec())
    }

    /// Memory in use, in bytes: weights, kv, states, compute.
    #[getter]
    fn memory<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let memory = self.hold()?.memory();
        let dict = PyDict::new(py);
        for (name, bytes) in [
            ("weights", memory.weights),
            ("kv", memory.kv),
            ("states", memory.states),
            ("compute", memory.compute),
        ] {
            dict.set_item(name, bytes)?;
        }
        Ok(dict)
    }

    fn __repr__(&self) -> String {
        format!("<ropewalk.Session {} at {} tokens>", self.plan.spec, self.params.n_ctx)
    }

    /// Empties the context.
    fn clear(&self) -> PyResult<()> {
        self.hold()?.clear();
        Ok(())
    }

    /// Generates text after a prompt, which is a text or tokens. The parts of the context that the prompt shares with it
    /// are not computed again. By default, the most likely token is taken each time, up to the end of the context.
    #[pyo3(signature = (
        prompt, max_tokens=None, *, temperature=0.0, top_k=0, top_p=1.0, min_p=0.0, seed=42, stop=None, ignore_eos=false,
        special=false
    ))]
    #[allow(clippy::too_many_arguments, reason = "keyword arguments")]
    fn generate(
        slf: &Bound<'_, Self>,
        prompt: Prompt,
        max_tokens: Option<usize>,
        temperature: f32,
        top_k: i32,
        top_p: f32,
        min_p: f32,
        seed: u32,
        stop: Option<Texts>,
        ignore_eos: bool,
        special: bool,
    ) -> PyResult<Pieces> {
        let session = slf.get();
        let tokens = prompt.tokens(slf.py(), &session.model)?;
        let sampler =
            SamplerParams::greedy().temp(temperature).top_k(top_k).top_p(top_p).min_p(min_p).seed(seed);
        let how = GenerateParams::greedy(max_tokens.unwrap_or(usize::MAX))
            .sampler(sampler)
            .stop(stop.map_or_else(Vec::new, Texts::list))
            .ignore_eos(ignore_eos)
            .special(special);
        let generation = session.compute(slf.py(), |native| Generation::new(native, 0, &tokens, &how))?;
        let state = Mutex::new(State { generation, tokens: Vec::new() });
        Ok(Pieces { session: slf.clone().unbind(), state })
    }

    /// `-ln p` of each of `tokens[start:]`, given all tokens before it, in nats.
    #[pyo3(signature = (tokens, start=1))]
    fn nll<'py>(&self, py: Python<'py>, tokens: Prompt, start: usize) -> PyResult<Bound<'py, PyArray1<f32>>> {
        let tokens = tokens.tokens(py, &self.model)?;
        let nll = self.compute(py, |session| {
            if start == 0 || start >= tokens.len() {
                let expected = format!("from 1 to below the {} tokens", tokens.len());
                return Err(Error::argument("start", expected, start));
            }
            let shared = session.reuse_prefix(&tokens, start - 1)?;
            session.nll(&tokens[shared..], start - shared..tokens.len() - shared)
        })?;
        Ok(nll.into_pyarray(py))
    }

    /// The logits after each of the last `last` tokens: a row per token, `n_vocab` columns.
    #[pyo3(signature = (tokens, last=1))]
    fn logits<'py>(
        &self,
        py: Python<'py>,
        tokens: Prompt,
        last: usize,
    ) -> PyResult<Bound<'py, PyArray2<f32>>> {
        let tokens = tokens.tokens(py, &self.model)?;
        let n_vocab = self.model.hparams().n_vocab;
        let logits = self.compute(py, |session| {
            let n = tokens.len();
            if last == 0 || last > n {
                return Err(Error::argument("last", format!("1 to the {n} tokens"), last));
            }
            let mut logits: Vec<f32> = Vec::new();
            let needed = last.saturating_mul(n_vocab);
            if logits.try_reserve_exact(needed).is_err() {
                let needed = needed.saturating_mul(size_of::<f32>());
                let what = format!("logits: cannot allocate {needed} bytes");
                return Err(Error::OutOfMemory { needed, free: None, what, remedy: None });
            }
            let shared = session.reuse_prefix(&tokens, n - last)?;
            let wanted = n - last - shared..n - shared;
            session.score(&tokens[shared..], wanted, &mut |_, row: &[f32]| logits.extend_from_slice(row))?;
            Ok(logits)
        })?;
        logits.into_pyarray(py).reshape([last, n_vocab])
    }

    /// The likelihood of a continuation after a prompt, tokenized as lm-evaluation-harness does.
    fn score(&self, py: Python<'_>, prompt: &str, continuation: String) -> PyResult<Score> {
        let encoded = py.detach(|| {
            let source = SessionSource::new(&self.model, self.params.clone());
            let encoder = TaskEncoder::new(&source, Template::Base, None)?;
            encode_pair(&encoder, prompt, &[continuation])
        });
        let (text, endings) = encoded.map_err(raised)?;
        let scored = self.compute(py, |session| session.endings(&[0], &text, &endings))?;
        let found = scored.into_iter().next();
        let ending =
            found.ok_or_else(|| RopewalkError::new_err("score: expected a likelihood, found none"))?;
        Ok(Score::of(&ending))
    }

    /// The likelihoods of several continuations of one prompt, all given as tokens. The prompt is computed once, and
    /// continuations are computed together.
    fn scores(
        &self,
        py: Python<'_>,
        prompt: Vec<Token>,
        continuations: Vec<Vec<Token>>,
    ) -> PyResult<Vec<Score>> {
        let seqs = self.sequences();
        let endings = self.compute(py, |session| session.endings(&seqs, &prompt, &continuations))?;
        Ok(endings.iter().map(Score::of).collect())
    }

    /// The most likely continuations of several prompts, all given as tokens. They are computed together, so there can be as
    /// many as the session has room for: `parallel`. An answer ends with the token that completes one of the texts `stop`.
    #[pyo3(signature = (prompts, max_tokens, stop=None))]
    fn answers(
        &self,
        py: Python<'_>,
        prompts: Vec<Vec<Token>>,
        max_tokens: usize,
        stop: Option<Texts>,
    ) -> PyResult<Vec<Vec<Token>>> {
        let seqs = self.sequences();
        let how = Greedy { n_predict: max_tokens, n_min: 0, stop: stop.map_or_else(Vec::new, Texts::list) };
        self.compute(py, |session| session.continue_all(&seqs, &prompts, &how))
    }

    /// Where a head looks while the session reads a text. Without `layer` and `head`, it is the head that looks farthest: the
    /// one with the largest sum of probabilities at keys more than `distance` tokens back, without the first `sinks` tokens.
    /// The map keeps the largest probability in each square of `tile` x `tile` tokens. Returns the report that
    /// `ropewalk inspect --map --json` prints, and `n_ctx_orig`; `ropewalk.plot.attention` draws it.
    #[pyo3(signature = (tokens, *, layer=None, head=None, distance=1000, sinks=0, tile=16, progress=None))]
    #[allow(clippy::too_many_arguments, reason = "keyword arguments")]
    fn attention<'py>(
        &self,
        py: Python<'py>,
        tokens: Prompt,
        layer: Option<usize>,
        head: Option<usize>,
        distance: usize,
        sinks: usize,
        tile: usize,
        progress: Option<Py<PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let tokens = tokens.tokens(py, &self.model)?;
        let params = attention::Params::new(tokens.len())
            .layer(layer)
            .head(head)
            .distance(distance)
            .sinks(sinks)
            .tile(tile);
        let name = file_name(self.model.file().path());
        let callbacks = Callbacks { progress, ..Callbacks::default() };
        let report = self.watched(py, &callbacks, |session, control| {
            attention::measure(session, &name, &tokens, &params, control)
        })?;
        let report = object(py, &report)?;
        report.set_item("n_ctx_orig", self.plan.n_ctx_orig(self.model.hparams()))?;
        Ok(report)
    }
}

/// The likelihood of a text.
#[pyclass(frozen, get_all, module = "ropewalk")]
pub(crate) struct Score {
    /// Sum of `ln p` over its tokens.
    logprob: f64,
    /// Number of its tokens.
    n_tokens: usize,
    /// True if every token is the most likely one.
    greedy: bool,
}

impl Score {
    fn of(ending: &Ending) -> Score {
        Score {
            logprob: ending.logprobs.iter().map(|&x| f64::from(x)).sum(),
            n_tokens: ending.logprobs.len(),
            greedy: ending.greedy,
        }
    }
}

#[pymethods]
impl Score {
    fn __repr__(&self) -> String {
        let greedy = if self.greedy { "True" } else { "False" };
        format!("Score(logprob={:?}, n_tokens={}, greedy={greedy})", self.logprob, self.n_tokens)
    }
}

/// The text of a generation, piece by piece. Each piece has complete characters.
#[pyclass(frozen, module = "ropewalk")]
pub(crate) struct Pieces {
    session: Py<Session>,
    state: Mutex<State>,
}

/// A generation, and the tokens that it has made.
struct State {
    generation: Generation,
    tokens: Vec<Token>,
}

impl Pieces {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[pymethods]
impl Pieces {
    fn __iter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __next__(&self, py: Python<'_>) -> PyResult<Option<String>> {
        work::check_fork()?;
        let session = self.session.get();
        loop {
            let text = py.detach(|| {
                let mut held = session.hold()?;
                let mut state = self.state();
                let Some(piece) = state.generation.next(&mut held).transpose().map_err(raised)? else {
                    return Ok::<_, PyErr>(None);
                };
                state.tokens.extend(piece.token);
                Ok(Some(piece.text))
            })?;
            match text {
                // A model can make special tokens without end.
                Some(text) if text.is_empty() => py.check_signals()?,
                text => return Ok(text),
            }
        }
    }

    /// The tokens that were generated so far.
    #[getter]
    fn tokens(&self, py: Python<'_>) -> Vec<Token> {
        py.detach(|| self.state().tokens.clone())
    }

    /// Why the generation ended: `end`, `stop`, `length`, `context`, or `cancelled`; `None` before that.
    #[getter]
    fn stop_reason(&self, py: Python<'_>) -> PyResult<Option<String>> {
        let reason = py.detach(|| self.state().generation.stop_reason());
        let text = |reason| serde_json::to_value(reason).map_err(|e| RopewalkError::new_err(e.to_string()));
        Ok(reason.map(text).transpose()?.and_then(|text| text.as_str().map(str::to_owned)))
    }
}
