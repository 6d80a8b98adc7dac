//! libllama's own inference, the reference for ropewalk's logits, tokens and speed: used by tests and by
//! `bench --against libllama`, with files of the dense architectures that ropewalk runs itself.

mod check;
mod lora;

use std::ffi::CString;
use std::path::Path;
use std::ptr::NonNull;
use std::sync::Once;

use crate::vocab::{Handle, Vocab};
use crate::{sys, Error, Result, Token};
use ggml::backend::{ensure_backends, Device};
use ggml::{logging, DType};

pub use check::ARCHS;

/// Settings of libllama's context, named as in `llama_context_params`.
#[derive(Debug, Clone)]
#[allow(missing_docs)]
pub struct OracleParams {
    pub n_ctx: u32,
    pub n_batch: u32,
    pub n_ubatch: u32,
    pub n_threads: u32,
    pub kv: DType,
    /// Number of layers on the GPU; 0 is CPU only.
    pub n_gpu_layers: i32,
    pub flash_attn: bool,
    /// Scaling method: `none`, `linear`, `yarn` or `longrope`; `None` takes the file's.
    pub rope_scaling: Option<&'static str>,
    /// Base of the rotation's frequencies; 0 takes the file's.
    pub rope_freq_base: f32,
    /// Factor on positions, the inverse of a linear scaling factor; 0 takes the file's.
    pub rope_freq_scale: f32,
    /// Weight of YaRN's extrapolation; -1 takes the file's.
    pub yarn_ext_factor: f32,
    /// YaRN's factor on the rotated vectors; -1 takes the file's.
    pub yarn_attn_factor: f32,
    /// Rotations within the trained context above which YaRN leaves a frequency as it is; -1 takes the
    /// file's.
    pub yarn_beta_fast: f32,
    /// Rotations within the trained context below which YaRN interpolates fully; -1 takes the file's.
    pub yarn_beta_slow: f32,
    /// Context length the model was trained at, for YaRN; 0 takes the file's.
    pub yarn_orig_ctx: u32,
    /// True if weights can be repacked for the CPU (libllama's default is true).
    pub use_extra_bufts: bool,
}

impl OracleParams {
    /// libllama's own defaults for a context of `n_ctx` tokens on the CPU, with a thread per core.
    pub fn new(n_ctx: u32) -> Self {
        OracleParams {
            n_ctx,
            n_batch: 2048,
            n_ubatch: 512,
            n_threads: std::thread::available_parallelism().map_or(1, |n| n.get().min(512) as u32),
            kv: DType::F16,
            n_gpu_layers: 0,
            flash_attn: true,
            rope_scaling: None,
            rope_freq_base: 0.0,
            rope_freq_scale: 0.0,
            yarn_ext_factor: -1.0,
            yarn_attn_factor: -1.0,
            yarn_beta_fast: -1.0,
            yarn_beta_slow: -1.0,
            yarn_orig_ctx: 0,
            use_extra_bufts: true,
        }
    }
}

#[derive(Debug)]
struct Model(NonNull<sys::llama_model>);
impl Drop for Model {
    fn drop(&mut self) {
        // SAFETY: the pointer came from llama_model_load_from_file and is freed nowhere else; its context is
        // gone.
        unsafe { sys::llama_model_free(self.0.as_ptr()) };
    }
}

#[derive(Debug)]
struct Context(NonNull<sys::llama_context>);
impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: the pointer came from llama_init_from_model and is freed nowhere else.
        unsafe { sys::llama_free(self.0.as_ptr()) };
    }
}

/// A libllama model and context. Declared in the order things must be dropped in.
#[derive(Debug)]
pub struct Oracle {
    vocab: Option<Handle>,
    ctx: Context,
    _model: Model,
    n_vocab: usize,
    /// Most tokens one call of llama_decode takes: more is an assertion in it.
    n_batch: usize,
    n_ctx: usize,
    n_past: usize,
    /// Which tokens of a batch give logits, as llama_batch wants it; kept to be reused.
    outputs: Vec<i8>,
    loras: lora::Loras,
}

// SAFETY: a context may be used from any one thread at a time; `Oracle` owns it, and all that changes it
// takes `&mut`.
unsafe impl Send for Oracle {}

impl Oracle {
    /// Opens the model. Everything libllama would abort on is checked first, and the memory of the context
    /// computed.
    pub fn open(path: &Path, params: &OracleParams) -> Result<Oracle> {
        check::params(params)?;
        let file = gguf::File::open(path)?;
        let shape = check::file(&file, params)?;
        // Also checks the tokenizer's keys, before libllama reads them.
        let n_tokens = Vocab::from_metadata(path, file.metadata())?.n_tokens();
        if n_tokens != shape.n_vocab {
            let what = format!("{} rows for a vocabulary of {n_tokens}", shape.n_vocab);
            return Err(file.error("token_embd.weight", what).into());
        }
        init();
        check_memory(&shape, params)?;

        let c_path = CString::new(path.as_os_str().as_encoded_bytes())
            .map_err(|_| Error::Argument(format!("{}: a path with a NUL byte", path.display())))?;
        let failed = |what: &str| Error::Backend(format!("{}: libllama: {what}", path.display()));
        // SAFETY: no preconditions.
        let mut mp = unsafe { sys::llama_model_default_params() };
        let mut no_devices = [std::ptr::null_mut()];
        if params.n_gpu_layers == 0 {
            mp.devices = no_devices.as_mut_ptr();
        }
        mp.n_gpu_layers = params.n_gpu_layers;
        mp.use_extra_bufts = params.use_extra_bufts;
        logging::clear_errors();
        // SAFETY: the path is NUL-terminated, the device list null-terminated and both are copied. The file
        // was validated by our reader, and the keys and tensors that libllama asserts on by `check::file`; it
        // catches its exceptions.
        let model = unsafe { sys::llama_model_load_from_file(c_path.as_ptr(), mp) };
        let model =
            Model(NonNull::new(model).ok_or_else(|| failed(&logging::errors_or("cannot load the model")))?);

        let cp = context_params(params);
        // SAFETY: the model is valid and outlives the context (field order); the settings were checked.
        let ctx = unsafe { sys::llama_init_from_model(model.0.as_ptr(), cp) };
        let ctx =
            Context(NonNull::new(ctx).ok_or_else(|| failed(&logging::errors_or("cannot open a context")))?);

        // SAFETY: the model is valid; the vocabulary is a part of it.
        let vocab = NonNull::new(unsafe { sys::llama_model_get_vocab(model.0.as_ptr()) }.cast_mut())
            .ok_or_else(|| failed("no vocabulary"))?;
        // SAFETY: the vocabulary is valid.
        let n_vocab = unsafe { sys::llama_vocab_n_tokens(vocab.as_ptr()) };
        let n_vocab = usize::try_from(n_vocab).ok().filter(|&n| n == shape.n_vocab);
        let n_vocab = n_vocab.ok_or_else(|| failed("another vocabulary than the file's"))?;
        // SAFETY: `Oracle` drops the handle before the model; the keys are those the model was loaded from.
        let vocab = unsafe { Vocab::handle_on(path, file.metadata(), vocab)? };
        // SAFETY: the context is valid.
        let n_batch = unsafe { sys::llama_n_batch(ctx.0.as_ptr()) } as usize;
        Ok(Oracle {
            vocab,
            ctx,
            _model: model,
            n_vocab,
            n_batch: n_batch.max(1),
            n_ctx: params.n_ctx as usize,
            n_past: 0,
            outputs: Vec::new(),
            loras: lora::Loras::default(),
        })
    }

    /// Appends tokens at the next positions of sequence 0. Returns logits of every one of them when `all`,
    /// else of the last: rows of `n_vocab`. With `all` over many tokens prefer [`Oracle::eval_with`], which
    /// holds one batch at a time.
    pub fn eval(&mut self, tokens: &[Token], all: bool) -> Result<Vec<f32>> {
        let rows = if all { tokens.len() } else { 1 };
        let mut out = Vec::new();
        let bytes = rows.saturating_mul(self.n_vocab).saturating_mul(4);
        out.try_reserve_exact(rows.saturating_mul(self.n_vocab)).map_err(|_| Error::OutOfMemory {
            device: "cpu".into(),
            bytes,
            what: format!("the logits of {rows} tokens"),
        })?;
        self.eval_with(tokens, all, &mut |_, row| out.extend_from_slice(row))?;
        Ok(out)
    }

    /// Evaluates like [`Oracle::eval`], and shows each row of logits to `row` with the index of its token in `tokens`,
    /// in order, in libllama's memory. On an error nothing of `tokens` stays evaluated.
    pub fn eval_with(
        &mut self,
        tokens: &[Token],
        all: bool,
        row: &mut dyn FnMut(usize, &[f32]),
    ) -> Result<()> {
        if tokens.is_empty() {
            return Err(Error::Argument("no tokens to evaluate".into()));
        }
        if let Some(t) = tokens.iter().find(|t| usize::try_from(**t).map_or(true, |t| t >= self.n_vocab)) {
            return Err(Error::Argument(format!("token {t} is not in the vocabulary of {}", self.n_vocab)));
        }
        let end = self.n_past + tokens.len();
        if end > self.n_ctx {
            return Err(Error::Argument(format!("{end} tokens do not fit in a context of {}", self.n_ctx)));
        }
        let start = self.n_past;
        let result = tokens.chunks(self.n_batch).enumerate().try_for_each(|(i, chunk)| {
            let first = i * self.n_batch;
            let last = first + chunk.len() == tokens.len();
            self.decode(chunk, all, last)?;
            for j in 0..chunk.len() {
                if all || last && j + 1 == chunk.len() {
                    row(first + j, self.logits(j)?);
                }
            }
            Ok(())
        });
        if result.is_err() {
            // SAFETY: the context is valid; positions from `start` on are removed from sequence 0.
            unsafe {
                sys::llama_memory_seq_rm(sys::llama_get_memory(self.ctx.0.as_ptr()), 0, start as i32, -1)
            };
            self.n_past = start;
        }
        result
    }

    /// One call of llama_decode: at most `n_batch` tokens, all in the vocabulary, with room for them.
    fn decode(&mut self, tokens: &[Token], all: bool, last: bool) -> Result<()> {
        self.outputs.clear();
        self.outputs.resize(tokens.len(), i8::from(all));
        if let (true, Some(output)) = (last, self.outputs.last_mut()) {
            *output = 1;
        }
        let batch = sys::llama_batch {
            n_tokens: tokens.len() as i32,
            token: tokens.as_ptr().cast_mut(),
            embd: std::ptr::null_mut(),
            pos: std::ptr::null_mut(),
            n_seq_id: std::ptr::null_mut(),
            seq_id: std::ptr::null_mut(),
            logits: self.outputs.as_mut_ptr(),
        };
        logging::clear_errors();
        // SAFETY: `token` and `logits` hold `n_tokens` entries and are only read; null positions and
        // sequences mean the next ones of sequence 0. The batch is within the context's n_batch, which
        // llama_decode asserts.
        let status = unsafe { sys::llama_decode(self.ctx.0.as_ptr(), batch) };
        if status != 0 {
            let what = logging::errors_or("no room in its cache");
            return Err(Error::Backend(format!("libllama: decoding failed ({status}): {what}")));
        }
        self.n_past += tokens.len();
        Ok(())
    }

    /// The logits of entry `i` of the last batch, which must have been marked as output.
    fn logits(&self, i: usize) -> Result<&[f32]> {
        // SAFETY: the context is valid; an entry without logits gives null.
        let row = unsafe { sys::llama_get_logits_ith(self.ctx.0.as_ptr(), i as i32) };
        let row = NonNull::new(row).ok_or_else(|| Error::Backend("libllama: no logits".into()))?;
        // SAFETY: libllama's row holds n_vocab values and stays until the next decode, which needs `&mut
        // self`.
        Ok(unsafe { std::slice::from_raw_parts(row.as_ptr(), self.n_vocab) })
    }

    /// Clears the cache: no tokens are evaluated.
    pub fn clear(&mut self) {
        // SAFETY: the context is valid. Data need not be zeroed: cells without a position are masked.
        unsafe { sys::llama_memory_clear(sys::llama_get_memory(self.ctx.0.as_ptr()), false) };
        self.n_past = 0;
    }

    /// Tokens evaluated so far.
    pub fn n_past(&self) -> usize {
        self.n_past
    }

    /// Number of tokens of the vocabulary.
    pub fn n_vocab(&self) -> usize {
        self.n_vocab
    }

    /// Text to tokens by libllama's own tokenizer.
    pub fn tokenize(&self, text: &str, add_special: bool, parse_special: bool) -> Result<Vec<Token>> {
        let none = || Error::Vocab("the file has no vocabulary, so it cannot read text".into());
        self.vocab.as_ref().ok_or_else(none)?.tokenize(text, add_special, parse_special)
    }
}

/// Makes libllama ready, once: backends registered, its tables filled.
pub(crate) fn init() {
    static ONCE: Once = Once::new();
    ensure_backends();
    // SAFETY: called once, after the log callback was installed by `ensure_backends`.
    ONCE.call_once(|| unsafe { sys::llama_backend_init() });
}

/// An error if the cache does not fit in free memory. libllama writes zeros over its cache when it is made,
/// so one that is too large would not fail but exhaust the machine's memory.
fn check_memory(shape: &check::Shape, p: &OracleParams) -> Result<()> {
    if p.n_gpu_layers != 0 {
        return Ok(());
    }
    let cpu = Device::find("cpu")?;
    let n_ctx = u64::from(p.n_ctx).next_multiple_of(256);
    let n_batch = u64::from(p.n_batch.min(p.n_ctx));
    let logits = (n_batch + u64::from(p.n_ubatch).min(n_batch)) * shape.n_vocab as u64 * 4;
    let bytes = shape.kv_bytes_per_token.saturating_mul(n_ctx).saturating_add(logits);
    if bytes > cpu.memory_free() as u64 {
        return Err(Error::OutOfMemory {
            device: cpu.name(),
            bytes: usize::try_from(bytes).unwrap_or(usize::MAX),
            what: format!("libllama's context of {} tokens; use a smaller n_ctx", p.n_ctx),
        });
    }
    Ok(())
}

fn context_params(p: &OracleParams) -> sys::llama_context_params {
    // SAFETY: no preconditions.
    let mut cp = unsafe { sys::llama_context_default_params() };
    cp.n_ctx = p.n_ctx;
    cp.n_batch = p.n_batch;
    cp.n_ubatch = p.n_ubatch;
    cp.n_threads = p.n_threads as i32;
    cp.n_threads_batch = p.n_threads as i32;
    cp.rope_scaling_type = match p.rope_scaling {
        None => sys::LLAMA_ROPE_SCALING_TYPE_UNSPECIFIED,
        Some("none") => sys::LLAMA_ROPE_SCALING_TYPE_NONE,
        Some("linear") => sys::LLAMA_ROPE_SCALING_TYPE_LINEAR,
        Some("yarn") => sys::LLAMA_ROPE_SCALING_TYPE_YARN,
        Some(_) => sys::LLAMA_ROPE_SCALING_TYPE_LONGROPE,
    };
    cp.rope_freq_base = p.rope_freq_base;
    cp.rope_freq_scale = p.rope_freq_scale;
    cp.yarn_ext_factor = p.yarn_ext_factor;
    cp.yarn_attn_factor = p.yarn_attn_factor;
    cp.yarn_beta_fast = p.yarn_beta_fast;
    cp.yarn_beta_slow = p.yarn_beta_slow;
    cp.yarn_orig_ctx = p.yarn_orig_ctx;
    cp.type_k = p.kv.raw() as sys::ggml_type;
    cp.type_v = p.kv.raw() as sys::ggml_type;
    cp.flash_attn_type =
        if p.flash_attn { sys::LLAMA_FLASH_ATTN_TYPE_ENABLED } else { sys::LLAMA_FLASH_ATTN_TYPE_DISABLED };
    cp.offload_kqv = p.n_gpu_layers != 0;
    cp.op_offload = p.n_gpu_layers != 0;
    cp
}
