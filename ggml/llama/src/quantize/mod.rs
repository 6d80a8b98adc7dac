//! libllama's own quantizer, `llama_model_quantize`: the mixtures of types that llama-quantize writes, byte for byte.

mod check;
mod imatrix;
mod interrupt;
mod legacy;

use std::ffi::{c_char, CString};
use std::path::Path;

use crate::{sys, Error, Result};
use ggml::{logging, DType};

pub use check::ARCHS;
pub use imatrix::Imatrix;

/// Most bytes of rows that libllama holds at a time. What it writes does not depend on it.
const MAX_BUFFER: usize = 256 << 20;

/// A mixture of element types, as llama-quantize names it.
#[derive(Debug, PartialEq, Eq)]
pub struct Mixture {
    /// Name of the mixture, in lower case.
    pub name: &'static str,
    /// Number of the mixture in `general.file_type` (`llama_ftype`).
    pub file_type: u32,
    /// The type of most tensors (`llama_ftype_get_default_type`).
    pub dtype: DType,
    /// True if libllama refuses to write it without an importance matrix.
    pub needs_imatrix: bool,
}

const fn mixture(name: &'static str, file_type: u32, dtype: DType) -> Mixture {
    Mixture { name, file_type, dtype, needs_imatrix: false }
}

const fn with_imatrix(name: &'static str, file_type: u32, dtype: DType) -> Mixture {
    Mixture { name, file_type, dtype, needs_imatrix: true }
}

/// Every mixture of block-quantised types that the pinned libllama writes (`llama.h`, `llama-quant.cpp`).
pub const MIXTURES: &[Mixture] = &[
    mixture("q4_0", 2, DType::Q4_0),
    mixture("q4_1", 3, DType::Q4_1),
    mixture("q5_0", 8, DType::Q5_0),
    mixture("q5_1", 9, DType::Q5_1),
    mixture("q8_0", 7, DType::Q8_0),
    mixture("q2_k", 10, DType::Q2_K),
    with_imatrix("q2_k_s", 21, DType::Q2_K),
    mixture("q3_k_s", 11, DType::Q3_K),
    mixture("q3_k_m", 12, DType::Q3_K),
    mixture("q3_k_l", 13, DType::Q3_K),
    mixture("q4_k_s", 14, DType::Q4_K),
    mixture("q4_k_m", 15, DType::Q4_K),
    mixture("q5_k_s", 16, DType::Q5_K),
    mixture("q5_k_m", 17, DType::Q5_K),
    mixture("q6_k", 18, DType::Q6_K),
    mixture("iq4_nl", 25, DType::IQ4_NL),
    mixture("iq4_xs", 30, DType::IQ4_XS),
    mixture("iq3_s", 26, DType::IQ3_S),
    mixture("iq3_m", 27, DType::IQ3_S),
    with_imatrix("iq3_xs", 22, DType::IQ3_S),
    with_imatrix("iq3_xxs", 23, DType::IQ3_XXS),
    with_imatrix("iq2_m", 29, DType::IQ2_S),
    with_imatrix("iq2_s", 28, DType::IQ2_XS),
    with_imatrix("iq2_xs", 20, DType::IQ2_XS),
    with_imatrix("iq2_xxs", 19, DType::IQ2_XXS),
    with_imatrix("iq1_m", 31, DType::IQ1_M),
    with_imatrix("iq1_s", 24, DType::IQ1_S),
    mixture("tq1_0", 36, DType::TQ1_0),
    mixture("tq2_0", 37, DType::TQ2_0),
    mixture("mxfp4_moe", 38, DType::MXFP4),
    mixture("q1_0", 40, DType::Q1_0),
    mixture("q2_0", 41, DType::Q2_0),
];

impl Mixture {
    /// The mixture of this name, in either case.
    pub fn named(name: &str) -> Option<&'static Mixture> {
        MIXTURES.iter().find(|m| m.name.eq_ignore_ascii_case(name))
    }
}

/// The options of llama-quantize.
#[derive(Debug, Clone)]
pub struct QuantizeParams {
    /// The mixture.
    pub mixture: &'static Mixture,
    /// Type of the token embeddings; `None` leaves it to the mixture.
    pub token_embedding: Option<DType>,
    /// Type of the output matrix.
    pub output: Option<DType>,
    /// Leaves the output matrix as it is.
    pub leave_output: bool,
    /// The mixture's main type for all tensors.
    pub pure_type: bool,
    /// Types of tensors whose name has a match of the regular expression; the first that matches counts. They go before
    /// the mixture's choice, but not before `token_embedding` and `output`.
    pub overrides: Vec<(regex::Regex, DType)>,
    /// The importance of each column of a matrix.
    pub imatrix: Option<Imatrix>,
    /// Threads, 1 to 512.
    pub n_threads: u32,
}

impl QuantizeParams {
    /// llama-quantize's defaults for a mixture, with a thread per core.
    pub fn new(mixture: &'static Mixture) -> Self {
        QuantizeParams {
            mixture,
            token_embedding: None,
            output: None,
            leave_output: false,
            pure_type: false,
            overrides: Vec::new(),
            imatrix: None,
            n_threads: std::thread::available_parallelism().map_or(1, |n| n.get().min(512) as u32),
        }
    }
}

/// Writes `input`, one GGUF file, with other element types to `output`, which is overwritten in place. Tensors that are
/// quantized already are quantized once more.
///
/// `watch` is told from another thread, ten times a second, how many bytes are written of about how many, and says
/// whether to go on; on Linux the work ends when it says no, elsewhere it is not asked.
///
/// # Errors
/// Everything that libllama would abort on or silently leave undone, by file and tensor; an architecture or a tensor that
/// it does not know; values that the types cannot hold; what it says itself, a full disk among it; and, as
/// [`Error::Backend`], that `watch` ended it.
pub fn quantize(
    input: &Path,
    output: &Path,
    params: &QuantizeParams,
    watch: &(dyn Fn(u64, u64) -> bool + Sync),
) -> Result<()> {
    let file = gguf::File::open(input)?;
    let overrides = check::all(&file, params, &|| watch(0, 0))?;
    crate::oracle::init();

    let path = |p: &Path| {
        CString::new(p.as_os_str().as_encoded_bytes())
            .map_err(|_| Error::Argument(format!("{}: a path with a NUL byte", p.display())))
    };
    let (from, to) = (path(input)?, path(output)?);
    let patterns: Vec<(CString, DType)> = overrides
        .iter()
        .map(|(name, dtype)| Ok((c_string(&exactly(name))?, *dtype)))
        .collect::<Result<_>>()?;
    let mut tensor_types: Vec<sys::llama_model_tensor_override> = patterns
        .iter()
        .map(|(p, t)| sys::llama_model_tensor_override {
            pattern: p.as_ptr(),
            type_: t.raw() as sys::ggml_type,
        })
        .collect();
    tensor_types
        .push(sys::llama_model_tensor_override { pattern: std::ptr::null(), type_: sys::GGML_TYPE_COUNT });

    let entries = params.imatrix.as_ref().map_or(&[][..], Imatrix::entries);
    let names = entries.iter().map(|(name, _)| c_string(name)).collect::<Result<Vec<_>>>()?;
    let mut importance: Vec<sys::llama_model_imatrix_data> = entries
        .iter()
        .zip(&names)
        .map(|((_, values), name)| sys::llama_model_imatrix_data {
            name: name.as_ptr(),
            data: values.as_ptr(),
            size: values.len(),
        })
        .collect();
    importance.push(sys::llama_model_imatrix_data {
        name: std::ptr::null(),
        data: std::ptr::null(),
        size: 0,
    });
    let keys = params.imatrix.as_ref().map(Imatrix::keys);

    // SAFETY: no preconditions.
    let mut p = unsafe { sys::llama_model_quantize_default_params() };
    p.nthread = params.n_threads as i32;
    p.ftype = params.mixture.file_type as sys::llama_ftype;
    let number = |t: Option<DType>| t.map_or(sys::GGML_TYPE_COUNT, |t| t.raw() as sys::ggml_type);
    p.token_embedding_type = number(params.token_embedding);
    p.output_tensor_type = number(params.output);
    p.allow_requantize = true;
    p.quantize_output_tensor = !params.leave_output;
    p.pure_ = params.pure_type;
    p.max_buf_size = MAX_BUFFER;
    if !patterns.is_empty() {
        p.tt_overrides = tensor_types.as_ptr();
    }
    if let Some(keys) = &keys {
        p.imatrix = importance.as_ptr();
        p.kv_overrides = keys.as_ptr();
    }
    logging::clear_errors();
    let (status, ended) = interrupt::watched(output, check::expected_bytes(&file, params), watch, || {
        // SAFETY: both paths are NUL-terminated; the lists end with a null name (the keys with an empty one) and, with
        // all they point to, live until the call returns. `check::all` has refused what it would abort on; it catches
        // its exceptions.
        unsafe { sys::llama_model_quantize(from.as_ptr(), to.as_ptr(), &raw const p) }
    });
    if ended {
        return Err(Error::Backend("interrupted".into()));
    }
    if status != 0 {
        let what = logging::errors_or("the quantizer failed");
        let uneven = what.contains("no tensor type fallback").then(|| check::uneven(&file, params)).flatten();
        let other = || Error::Backend(format!("{}: libllama: {what}", input.display()));
        return Err(uneven.unwrap_or_else(other));
    }
    Ok(())
}

fn c_string(text: &str) -> Result<CString> {
    CString::new(text).map_err(|_| Error::Argument(format!("{}: a NUL byte", text.escape_debug())))
}

/// A regular expression of C++'s ECMAScript grammar that one name alone matches.
fn exactly(name: &str) -> String {
    let mut pattern = String::from("^");
    for c in name.chars() {
        if r"^$\.*+?()[]{}|".contains(c) {
            pattern.push('\\');
        }
        pattern.push(c);
    }
    pattern.push('$');
    pattern
}

/// A key for the new file's metadata, as libllama takes it.
fn key(name: &str, value: KeyValue<'_>) -> sys::llama_model_kv_override {
    let mut text = [0 as c_char; 128];
    // The last byte stays 0, as llama-quantize's own copy leaves it.
    let put = |to: &mut [c_char; 128], from: &str| {
        for (to, from) in to[..127].iter_mut().zip(from.bytes()) {
            *to = from as c_char;
        }
    };
    let mut key = [0 as c_char; 128];
    put(&mut key, name);
    let (tag, value) = match value {
        KeyValue::Text(s) => {
            put(&mut text, s);
            (sys::LLAMA_KV_OVERRIDE_TYPE_STR, sys::llama_model_kv_override__bindgen_ty_1 { val_str: text })
        }
        KeyValue::Number(n) => (
            sys::LLAMA_KV_OVERRIDE_TYPE_INT,
            sys::llama_model_kv_override__bindgen_ty_1 { val_i64: i64::from(n) },
        ),
    };
    sys::llama_model_kv_override { tag, key, __bindgen_anon_1: value }
}

enum KeyValue<'a> {
    Text(&'a str),
    Number(u32),
}
