//! Checks of a file and of the settings before libllama builds a model from them, where it would abort the
//! process (`GGML_ASSERT` in `llama_model_base::load_hparams`, the graph builders and the ops) instead of
//! failing.

use super::OracleParams;
use crate::{Error, Result};
use gguf::{Array, DType, File, FromValue, TensorInfo, Value};

/// `LLAMA_MAX_LAYERS`.
const MAX_LAYERS: u64 = 512;
/// `LLAMA_MAX_EXPERTS`.
const MAX_EXPERTS: u64 = 512;
/// `GGML_MAX_N_THREADS`.
const MAX_THREADS: u32 = 512;
/// Types ggml's caches and attention take.
const KV_TYPES: &[DType] = &[
    DType::F32,
    DType::F16,
    DType::BF16,
    DType::Q8_0,
    DType::Q4_0,
    DType::Q4_1,
    DType::Q5_0,
    DType::Q5_1,
    DType::IQ4_NL,
];
/// Architectures whose graphs were read for what they assume of a file: the only ones that are opened.
pub const ARCHS: &[&str] = &[
    "cohere2",
    "gemma2",
    "gemma3",
    "gpt-oss",
    "gptneox",
    "granite",
    "llama",
    "mistral3",
    "olmo2",
    "phi2",
    "phi3",
    "qwen2",
    "qwen3",
    "qwen35",
    "qwen35moe",
    "qwen3moe",
    "smollm3",
];
/// Architectures whose graphs accept any number of rotated dimensions up to the width of a head.
const ROTATED_IN_PART: &[&str] =
    &["cohere2", "gemma2", "gemma3", "gptneox", "phi2", "phi3", "qwen35", "qwen35moe"];
/// Architectures whose norms are LayerNorm.
const LAYER_NORM: &[&str] = &["cohere2", "gptneox", "phi2"];
/// Architectures whose heads together must be as wide as the residual stream.
const SQUARE: &[&str] = &["cohere2", "gptneox", "olmo2", "phi2", "phi3", "qwen2"];
/// Architectures that have gated delta-nets.
const DELTA_NETS: &[&str] = &["qwen35", "qwen35moe"];
/// Architectures whose feed-forwards are mixtures of experts.
const MIXTURES: &[&str] = &["gpt-oss", "qwen35moe", "qwen3moe"];
const ROPE_SCALINGS: &[&str] = &["none", "linear", "yarn", "longrope"];

/// Checks the settings that need no file.
pub(super) fn params(p: &OracleParams) -> Result<()> {
    let bad = |name: &str, expected: &str, found: &dyn std::fmt::Display| {
        Err(Error::Argument(format!("{name}: expected {expected}, found {found}")))
    };
    // libllama pads the context to 256 in a u32 and counts positions in an i32.
    if p.n_ctx == 0 || p.n_ctx > (1 << 30) {
        return bad("n_ctx", "1 to 2^30", &p.n_ctx);
    }
    for (name, n) in [("n_batch", p.n_batch), ("n_ubatch", p.n_ubatch)] {
        if n == 0 || n > (1 << 24) {
            return bad(name, "1 to 2^24", &n);
        }
    }
    if p.n_threads == 0 || p.n_threads > MAX_THREADS {
        return bad("n_threads", "1 to 512", &p.n_threads);
    }
    if !KV_TYPES.contains(&p.kv) {
        let known: Vec<&str> = KV_TYPES.iter().map(|t| t.name()).collect();
        return bad("kv", &format!("one of {}", known.join(", ")), &p.kv.name());
    }
    if p.kv.is_quantized() && !p.flash_attn {
        return bad("kv", "f32, f16 or bf16 without flash attention", &p.kv.name());
    }
    if let Some(kind) = p.rope_scaling.filter(|kind| !ROPE_SCALINGS.contains(kind)) {
        return bad("rope_scaling", &format!("one of {}", ROPE_SCALINGS.join(", ")), &kind);
    }
    for (name, x) in [("rope_freq_base", p.rope_freq_base), ("rope_freq_scale", p.rope_freq_scale)] {
        if x != 0.0 && !(1e-6..=1e30).contains(&x) {
            return bad(name, "0 (the file's) or 1e-6 to 1e30", &x);
        }
    }
    let yarn = [
        ("yarn_ext_factor", p.yarn_ext_factor),
        ("yarn_attn_factor", p.yarn_attn_factor),
        ("yarn_beta_fast", p.yarn_beta_fast),
        ("yarn_beta_slow", p.yarn_beta_slow),
    ];
    for (name, x) in yarn {
        if !x.is_finite() {
            return bad(name, "a number, negative for the file's", &x);
        }
    }
    Ok(())
}

/// Sizes read from a checked file.
pub(super) struct Shape {
    /// Bytes of keys and values per position.
    pub kv_bytes_per_token: u64,
    /// Rows of the output matrix.
    pub n_vocab: usize,
}

/// Checks the file as a model of one of libllama's architectures that ropewalk runs itself.
pub(super) fn file(f: &File, p: &OracleParams) -> gguf::Result<Shape> {
    let arch = f.get::<String>("general.architecture")?;
    if !ARCHS.contains(&arch.as_str()) {
        let what = format!("expected one of {}, found {arch}", ARCHS.join(", "));
        return Err(f.error("general.architecture", what));
    }
    let key = |k: &str| format!("{arch}.{k}");
    let within = |k: &str, x: u64, max: u64| match x {
        x if (1..=max).contains(&x) => Ok(x),
        x => Err(f.error(&key(k), format!("expected 1 to {max}, found {x}"))),
    };
    let number = |k: &str, max: u64| within(k, f.get::<u64>(&key(k))?, max);
    let or = |k: &str, default: u64| within(k, f.get_opt::<u64>(&key(k))?.unwrap_or(default), 1 << 20);

    let n_layer = number("block_count", MAX_LAYERS)?;
    let n_embd = number("embedding_length", 1 << 20)?;
    number("context_length", u32::MAX as u64)?;
    number("feed_forward_length", 1 << 24)?;
    let n_head = number("attention.head_count", 1 << 16)?;
    let n_head_kv = or("attention.head_count_kv", n_head)?;
    if n_head % n_head_kv != 0 {
        let what = format!("expected a divisor of {n_head} heads, found {n_head_kv}");
        return Err(f.error(&key("attention.head_count_kv"), what));
    }
    let d_head = or("attention.key_length", (n_embd / n_head).max(1))?;
    let among = |list: &[&str]| list.contains(&arch.as_str());
    if among(SQUARE) && d_head * n_head != n_embd {
        return Err(f.error(
            &key("attention.head_count"),
            format!("{n_head} heads of {d_head} do not make {n_embd}"),
        ));
    }
    let n_value = or("attention.value_length", n_embd / n_head)?;
    if n_value != d_head || d_head % 2 != 0 {
        let what = format!("expected the even head width {d_head}, found {n_value}");
        return Err(f.error(&key("attention.value_length"), what));
    }
    let n_rot = or("rope.dimension_count", d_head)?;
    if n_rot != d_head && !(among(ROTATED_IN_PART) && n_rot < d_head && n_rot % 2 == 0) {
        let what = format!("expected the head width {d_head}, or an even number below, found {n_rot}");
        return Err(f.error(&key("rope.dimension_count"), what));
    }
    let off = |k: &str| absent_or_zero::<u64>(f, &key(k), |n| *n == 0);
    for k in ["expert_group_count", "nextn_predict_layers", "pooling_type"] {
        off(k)?;
    }
    if among(MIXTURES) {
        // Without a width of their own, experts have that of the feed-forward over their number.
        let n_expert = number("expert_count", MAX_EXPERTS)?;
        number("expert_used_count", n_expert)?;
        number("expert_feed_forward_length", 1 << 24)?;
        if n_expert < 2 {
            return Err(f.error(&key("expert_count"), "expected 2 or more, found 1"));
        }
    } else {
        off("expert_count")?;
        off("expert_used_count")?;
    }
    if among(DELTA_NETS) {
        let n_head = number("ssm.time_step_rank", 1 << 12)?;
        let (n_k, d) = (number("ssm.group_count", n_head)?, number("ssm.state_size", 1 << 10)?);
        number("ssm.conv_kernel", 256)?;
        or("full_attention_interval", 4)?;
        if n_head % n_k != 0 || number("ssm.inner_size", 1 << 24)? != n_head * d {
            let what = format!("{n_head} heads of {d}, and {n_k} of keys, which must divide them");
            return Err(f.error(&key("ssm.inner_size"), format!("expected the width of {what}")));
        }
        // They are summed as ints, and divided by.
        let sections = f.value(&key("rope.dimension_sections"));
        let sum = match sections {
            Some(Value::Array(Array::I32(v)))
                if v.len() == 4 && v.iter().all(|n| (0..=1 << 20).contains(n)) =>
            {
                v.iter().map(|&n| n as u64).sum()
            }
            _ => 0,
        };
        if !(1..=d_head).contains(&sum) {
            let what = format!("expected 4 i32 of 0 or more, {d_head} in all at most");
            return Err(f.error(&key("rope.dimension_sections"), what));
        }
    }
    absent_or_zero::<bool>(f, &key("attention.causal"), |causal| *causal)?;
    let kind = if among(LAYER_NORM) { "layer_norm" } else { "layer_norm_rms" };
    let eps_key = key(&format!("attention.{kind}_epsilon"));
    let eps = f.get::<f32>(&eps_key)?;
    if !(0.0..1.0).contains(&eps) {
        return Err(f.error(&eps_key, format!("expected 0 to 1, found {eps}")));
    }
    let scaling = f.get_opt::<String>(&key("rope.scaling.type"))?;
    if let Some(kind) = scaling.filter(|kind| !ROPE_SCALINGS.contains(&kind.as_str())) {
        let what = format!("expected one of {}, found {kind}", ROPE_SCALINGS.join(", "));
        return Err(f.error(&key("rope.scaling.type"), what));
    }

    if p.kv.is_quantized() && d_head % p.kv.block_size() as u64 != 0 {
        let what = format!("a {} cache needs heads of whole blocks of {}", p.kv.name(), p.kv.block_size());
        return Err(f.error(&key("attention.key_length"), format!("{what}, found {d_head}")));
    }
    let embd = f.tensor("token_embd.weight").ok_or_else(|| f.error("token_embd.weight", "missing"))?;
    let n_vocab = usize::try_from(embd.shape.get(1).copied().unwrap_or(1)).unwrap_or(usize::MAX);
    f.tensors().iter().try_for_each(|t| tensor(f, t))?;

    // At most 2^20 * 2^16 * 4: fits.
    let row = p.kv.row_bytes((n_head_kv * d_head) as usize).unwrap_or(usize::MAX) as u64;
    Ok(Shape { kv_bytes_per_token: row.saturating_mul(2 * n_layer), n_vocab })
}

/// The CPU's ops take vectors (norms, biases, rope factors) as F32 only, and matrices of types with a
/// product.
fn tensor(f: &File, t: &TensorInfo) -> gguf::Result<()> {
    let matrix = t.shape.len() > 1 && t.shape[1..].iter().any(|&n| n > 1) && !t.name.ends_with(".bias");
    if matrix && t.dtype.can_dequantize() || t.dtype == DType::F32 {
        return Ok(());
    }
    let expected = if matrix { "a floating-point or quantized type" } else { "f32 for a vector" };
    Err(f.error(&t.name, format!("expected {expected}, found {}", t.dtype.name())))
}

/// Refuses what this oracle does not run; `fine` is the value that means "not in use".
fn absent_or_zero<T: FromValue + std::fmt::Debug>(
    f: &File,
    key: &str,
    fine: impl Fn(&T) -> bool,
) -> gguf::Result<()> {
    match f.get_opt::<T>(key)? {
        Some(v) if !fine(&v) => {
            Err(f.error(key, format!("{v:?} is not something libllama is asked to run here")))
        }
        _ => Ok(()),
    }
}
