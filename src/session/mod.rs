//! A session: a model, a plan, a KV cache. Prefill, decode, generate, save and restore.

mod batch;
mod decode;
pub(crate) mod generate;
mod inputs;
mod landmark;
mod many;
pub(crate) mod memory;
mod moments;
mod packed;
mod probe;
mod recurrent;
mod saved;
pub(crate) mod sequence;
mod state;
mod step;
mod summary;

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;

use ggml::attention::KEYS;
use ggml::graph::{Executor, OutputId};
use ropewalk_core::text::bytes;

use crate::graph::{is_single, Capabilities, GraphInputs, Moments, ProbedQueries, Shape};
use crate::kv::{whole_blocks, Cell, KvCache, MAX_SEQS};
use crate::landmark::{Landmarks, TopBlocks};
use crate::math::Math;
use crate::model::{Error, Model, Result};
use crate::rope::{Plan, RopeError, Spec};
use crate::states::States;
use crate::{DType, Token};

pub use batch::Batch;
pub use decode::Logits;
pub(crate) use generate::Text;
pub use generate::{GenerateParams, Generation, Piece, Pieces, StopReason};
pub(crate) use many::Prefix;
pub use many::{Ending, Greedy};
pub use moments::InputMoments;
pub(crate) use packed::{Form, Packed};
pub use probe::QueryBlock;
pub use saved::{is_session_file, SavedSession, MAX_ATTACHMENT};
pub(crate) use sequence::n_shared;
pub use sequence::SequenceMut;
pub use step::{Scored, Step, Stepped, Want};

/// A sequence of a session.
pub type SeqId = u32;

/// The attention implementation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Attention {
    /// The fused op, if the device has one for this plan and head size; otherwise [`Attention::Explicit`].
    Auto,
    /// Ops that every device has, one tile of keys at a time.
    Explicit,
    /// For models with landmarks: attention to a few blocks before each query. [`Attention::Auto`] attends to all
    /// blocks.
    Landmark(TopBlocks),
}

impl std::str::FromStr for Attention {
    type Err = String;

    fn from_str(text: &str) -> Result<Attention, String> {
        match text {
            "auto" => Ok(Attention::Auto),
            "explicit" => Ok(Attention::Explicit),
            _ if Landmarks::are_named(text) => text.parse().map(Attention::Landmark),
            _ => Err("expected auto, explicit or landmark:top=K".into()),
        }
    }
}

ropewalk_core::setters! {
    /// Settings of a session.
    #[derive(Debug, Clone, PartialEq)]
    pub struct SessionParams {
        /// Maximum tokens of a sequence, without the landmarks that the session adds. With a plan that evicts keys, text
        /// can have any length, and the cache is as large as such sequences need.
        pub n_ctx: usize,
        /// Number of sequences of that length that fit in the cache. More sequences fit if they are shorter or share
        /// prefixes.
        pub n_seq_max: usize,
        /// Logical batch size: maximum tokens per call of `decode`.
        pub n_batch: usize,
        /// Physical batch (micro-batch) size, in tokens.
        pub n_ubatch: usize,
        /// Tokens of a micro-batch for whose logits memory is taken at the start, 1 to `n_ubatch`. If more are wanted at
        /// once, it is taken then.
        pub n_logits: usize,
        /// Threads; 0 is [`default_threads`](ggml::backend::default_threads).
        pub n_threads: usize,
        /// KV cache type: f32, f16, q8_0, or q4_0.
        pub kv_type: DType,
        /// The RoPE method; `None` uses [`Model::default_rope`], the method of the file or of an adapter.
        pub rope: Option<Spec>,
        /// The attention implementation.
        pub attention: Attention,
        /// Rounding allowed in matrix products. Devices other than the CPU, and `portable`, use the device's own
        /// products.
        pub math: Math,
        /// Use only ops that every backend has. Also on the CPU, this rotates with ggml's rope and multiplies in the
        /// weights' own types, with one thread.
        pub portable: bool,
    }
}

impl SessionParams {
    /// The defaults of the command line at this context: batches of 2048 tokens, micro-batches of 512, and an f16
    /// cache.
    pub fn new(n_ctx: usize) -> Self {
        SessionParams {
            n_ctx,
            n_seq_max: 1,
            n_batch: 2048,
            n_ubatch: 512,
            n_logits: 1,
            n_threads: 0,
            kv_type: DType::F16,
            rope: None,
            attention: Attention::Auto,
            math: Math::Auto,
            portable: false,
        }
    }
}

/// Memory use of a session, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MemoryUse {
    /// Weights (mapped or uploaded).
    pub weights: usize,
    /// KV cache.
    pub kv: usize,
    /// States of recurrent layers.
    pub states: usize,
    /// Compute buffers.
    pub compute: usize,
}

/// The parts in use, with their names.
impl std::fmt::Display for MemoryUse {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let [weights, kv, states, compute] =
            [self.weights, self.kv, self.states, self.compute].map(|n| bytes(n as u64));
        write!(f, "{weights} weights + {kv} cache + ")?;
        if self.states > 0 {
            write!(f, "{states} states + ")?;
        }
        write!(f, "{compute} compute")
    }
}

#[derive(Debug, Clone)]
struct Built {
    shape: Shape,
    inputs: GraphInputs,
    /// Rows of logits, where some are wanted.
    output: Option<OutputId>,
    queries: Vec<ProbedQueries>,
    moments: Vec<Moments>,
}

/// A running context over a model.
#[derive(Debug)]
pub struct Session {
    model: Model,
    params: SessionParams,
    /// The same with the context in cells: landmarks take some.
    sized: SessionParams,
    plan: Plan,
    exec: Executor,
    kv: KvCache,
    states: Option<States>,
    capabilities: Capabilities,
    current: Option<Built>,
    /// Layers whose queries graphs are to show.
    probed: Range<usize>,
    /// True if graphs output the second moments of the inputs of linear maps.
    moments: bool,
    /// Tokens of each sequence, by position.
    tokens: Vec<Vec<Token>>,
    /// Rows of logits of the last decode.
    logits: Vec<f32>,
    scratch: inputs::Scratch,
    cancel: Arc<AtomicBool>,
}

impl Session {
    /// Opens a session. If memory does not suffice, the error gives the bytes needed and the settings that would fit.
    pub fn new(model: &Model, params: &SessionParams) -> Result<Session> {
        let mut params = params.clone();
        let plan = Session::checked_plan(model, &mut params)?;
        let (hp, device) = (model.hparams(), model.backend_device());
        let sized = landmark::in_positions(model, &params);
        let n_cells = memory::Cost::new(hp, &sized, &plan).n_cells;
        let flash = params.attention != Attention::Explicit;
        let capabilities = Capabilities { flash, ..Capabilities::new(device, params.portable, params.math) };
        let capabilities = capabilities.with_cache(device, hp, params.kv_type);
        let exec = capabilities.executor(device, params.n_threads)?;
        let kv = KvCache::new(device, hp, &plan, n_cells, params.kv_type)?;
        let states = States::new(device, hp, params.n_seq_max)?;
        let mut session = Session {
            model: model.clone(),
            sized,
            plan,
            exec,
            kv,
            states,
            capabilities,
            current: None,
            probed: 0..0,
            moments: false,
            tokens: vec![Vec::new(); MAX_SEQS as usize],
            logits: Vec::new(),
            scratch: inputs::Scratch::default(),
            cancel: Arc::default(),
            params,
        };
        session.cancel = session.exec.backend().cancel_flag();
        session.reserve()?;
        Ok(session)
    }

    /// Checks what [`Session::new`] checks before it takes memory: the parameters, the method, and whether the session
    /// fits in free memory.
    ///
    /// # Errors
    /// Returns the errors of [`Session::new`].
    pub fn check_params(model: &Model, params: &SessionParams) -> Result<()> {
        Session::checked_plan(model, &mut params.clone()).map(drop)
    }

    /// The plan of a session that can be opened. Sizes of batches are limited to what they can be.
    fn checked_plan(model: &Model, params: &mut SessionParams) -> Result<Plan> {
        let hp = model.hparams();
        // Positions are i32.
        let most = i32::MAX as usize;
        if params.n_ctx == 0 || model.n_positions(params.n_ctx) > most {
            return Err(Error::argument("ctx", format_args!("1 to {most} tokens"), params.n_ctx));
        }
        if params.n_ubatch == 0 || params.n_batch == 0 {
            return Err(Error::argument("batch and ubatch", "at least 1 token", 0));
        }
        if params.n_seq_max == 0 || params.n_seq_max > MAX_SEQS as usize {
            return Err(Error::argument("sequences", format_args!("1 to {MAX_SEQS}"), params.n_seq_max));
        }
        if !matches!(params.kv_type, DType::F32 | DType::F16 | DType::Q8_0 | DType::Q4_0) {
            return Err(Error::argument("kv type", "f32, f16, q8_0 or q4_0", params.kv_type.name()));
        }
        params.n_batch = params.n_batch.min(params.n_ctx);
        params.n_ubatch = params.n_ubatch.min(params.n_batch);
        params.n_logits = params.n_logits.clamp(1, params.n_ubatch);
        let device = model.backend_device();
        let plan = Session::unchecked_plan(model, params)?.map_err(|e| {
            match Plan::new(&Spec::plain(), hp, model.n_positions(params.n_ctx)) {
                // A length that a method cannot serve may be one that no memory holds, and that says more.
                Ok(plain) => memory::Cost::new(hp, &landmark::in_positions(model, params), &plain)
                    .check(device.memory_free())
                    .err()
                    .unwrap_or(e.into()),
                Err(_) => e.into(),
            }
        })?;
        model.check_rope(&plan)?;
        let own_ops = device.is_cpu() && !params.portable;
        landmark::check_top(model, params)?;
        if model.landmarks().is_some() {
            model.check_landmarks(&plan, own_ops && params.attention != Attention::Explicit)?;
        }
        memory::Cost::new(hp, &landmark::in_positions(model, params), &plan).check(device.memory_free())?;
        if !own_ops && matches!(params.math, Math::F32 | Math::Bf16) {
            return Err(Error::Unsupported(format!(
                "math {}: needs the CPU and ropewalk's own ops (not portable); expected auto or int8",
                params.math
            )));
        }
        Ok(plan)
    }

    /// The plan of a session with these parameters.
    ///
    /// # Errors
    /// Returns an error if the method does not support this model or this context.
    pub fn plan_of(model: &Model, params: &SessionParams) -> Result<Plan> {
        let plan = Session::unchecked_plan(model, params)??;
        model.check_rope(&plan)?;
        Ok(plan)
    }

    fn unchecked_plan(model: &Model, params: &SessionParams) -> Result<Result<Plan, RopeError>> {
        let (hp, n_ctx) = (model.hparams(), model.n_positions(params.n_ctx));
        Ok(match &params.rope {
            Some(spec) => Plan::new(spec, hp, n_ctx),
            None => Plan::of_file(&model.default_rope()?, hp, n_ctx)
                .map_err(|e| e.at(model.file().path().display())),
        })
    }

    /// Number of sequences of `n_ctx` tokens, from 1 to `most`, that fit in half of the free memory. It is 1 even if
    /// that does not fit.
    ///
    /// # Errors
    /// Returns the errors of [`Session::plan_of`].
    pub fn n_seq_fitting(model: &Model, params: &SessionParams, most: usize) -> Result<usize> {
        let most = most.clamp(1, MAX_SEQS as usize);
        if most == 1 {
            return Ok(1);
        }
        let plan = Session::plan_of(model, params)?;
        let free = model.backend_device().memory_free() / 2;
        let fits = |n_seq_max: &usize| {
            let params = SessionParams { n_seq_max: *n_seq_max, ..landmark::in_positions(model, params) };
            memory::Cost::new(model.hparams(), &params, &plan).total() <= free
        };
        Ok((2..=most).rev().find(fits).unwrap_or(1))
    }

    /// Minimum memory of a session with these parameters, in bytes, including the weights.
    ///
    /// # Errors
    /// Returns the errors of [`Session::plan_of`].
    pub fn bytes_needed(model: &Model, params: &SessionParams) -> Result<usize> {
        let plan = Session::plan_of(model, params)?;
        let params = landmark::in_positions(model, params);
        Ok(model.n_bytes().saturating_add(memory::Cost::new(model.hparams(), &params, &plan).total()))
    }

    fn cost(&self) -> memory::Cost<'_> {
        memory::Cost::new(self.model.hparams(), &self.sized, &self.plan)
    }

    /// Measures the largest graph before it is built, and falls back to attention by tiles if the device has
    /// no flash attention for it. With several branches, only a single token's graph has any, so that is also built.
    /// The largest graph is reserved here, so memory does not grow later.
    fn reserve(&mut self) -> Result<()> {
        let n = self.params.n_ubatch;
        let (groups, n_seqs) = (self.largest_groups(n), self.n_tables(self.params.n_seq_max));
        let tables = self.table_shape(self.sized.n_ctx, n.min(self.params.n_seq_max));
        let mut largest =
            Shape { n_out: self.params.n_logits, groups, n_seqs, tables, ..self.largest_of_one(n) };
        if self.capabilities.branched_attention() && self.params.n_seq_max > 1 {
            // A block of columns is of one sequence, or of several that share all of it.
            let used = largest.spans.iter_mut().flatten().filter(|span| span.len > 0);
            used.for_each(|span| span.columns = whole_blocks(span.columns + self.params.n_seq_max * KEYS));
        }
        let one = Shape {
            n_tokens: 1,
            n_out: 1,
            n_starts: largest.n_starts.min(1),
            groups: self.largest_groups(1),
            ..largest.clone()
        };
        let alone = one.spans.iter().any(|spans| is_single(self.capabilities, spans, 1));
        let mut compute = self.measure(&largest)?;
        if alone {
            compute = compute.max(self.measure(&one)?);
        }
        self.cost().check_measured(self.kv.n_bytes(), compute, self.model.backend_device().memory_free())?;
        let one = if alone { self.prepare(&one) } else { Ok(()) };
        match one.and_then(|()| self.prepare(&largest)) {
            Err(Error::Ggml(ggml::Error::Backend(_))) if self.capabilities.flash => {
                self.capabilities.flash = false;
                largest.spans = self.cost().spans();
                self.prepare(&largest)
            }
            other => other,
        }
    }

    /// The model.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// The active plan.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// The parameters, with defaults filled in.
    pub fn params(&self) -> &SessionParams {
        &self.params
    }

    /// Maximum tokens of one sequence: `n_ctx`, or the largest position if the plan evicts keys.
    pub fn n_max(&self) -> usize {
        if self.plan.evict {
            i32::MAX as usize
        } else {
            self.params.n_ctx
        }
    }

    /// Tokens of a sequence, in order; empty if the sequence does not exist.
    pub fn tokens(&self, seq: SeqId) -> &[Token] {
        self.tokens.get(seq as usize).map_or(&[], Vec::as_slice)
    }

    /// Makes `dst` share everything that `src` holds; no data is copied.
    pub fn copy_seq(&mut self, src: SeqId, dst: SeqId) -> Result<()> {
        let tokens = self.tokens_mut(src)?.clone();
        if src != dst {
            self.truncate(dst, 0)?;
            *self.tokens_mut(dst)? = tokens;
            self.kv.copy(src, dst);
            self.states.iter_mut().for_each(|states| states.copy(src, dst));
        }
        Ok(())
    }

    /// Empties every sequence.
    pub fn clear(&mut self) {
        self.tokens.iter_mut().for_each(Vec::clear);
        self.kv.clear();
        self.states.iter_mut().for_each(|states| states.clear());
    }

    /// Memory in use, in bytes.
    pub fn memory(&self) -> MemoryUse {
        MemoryUse {
            weights: self.model.n_bytes(),
            kv: self.kv.n_bytes(),
            states: self.states.as_ref().map_or(0, States::n_bytes),
            compute: self.exec.buffer_bytes(),
        }
    }

    /// A flag that stops `decode` with [`Error::Interrupted`] when set: between micro-batches, and on the CPU within
    /// them. Tokens that the interrupted call was adding are dropped. The caller that sets the flag must reset it. If
    /// the call has already evicted keys that earlier tokens need, its sequences are left empty: see
    /// [`Session::tokens`].
    pub fn cancel_flag(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.cancel)
    }

    /// The cells up to the last used one.
    pub(crate) fn cells(&self) -> &[Cell] {
        &self.kv.cells()[..self.kv.n_end()]
    }

    /// Cells in all, and those that are free.
    pub(crate) fn n_cells(&self) -> (usize, usize) {
        (self.kv.cells().len(), self.kv.n_free())
    }

    fn cancelled(&self) -> bool {
        self.cancel.load(Ordering::Relaxed)
    }

    fn tokens_mut(&mut self, seq: SeqId) -> Result<&mut Vec<Token>> {
        self.tokens.get_mut(seq as usize).ok_or_else(|| no_such_sequence(seq))
    }
}

fn no_such_sequence(seq: SeqId) -> Error {
    Error::argument("sequence", format_args!("0 to {}", MAX_SEQS - 1), seq)
}
