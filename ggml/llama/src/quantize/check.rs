//! Checks before libllama's quantizer, where it would abort the process (`GGML_ASSERT` in
//! `llama_model_base::load_hparams`, in `llama-quant.cpp`, `gguf.cpp` and `ggml-quants.c`), divide by zero, or leave
//! undone what was asked.

use super::QuantizeParams;
use crate::{Error, Result};
use gguf::{DType, File, TensorInfo, Value};
use rayon::prelude::*;

/// `LLAMA_MAX_LAYERS` and `LLAMA_MAX_EXPERTS`.
const MAX_LAYERS: u64 = 512;
const MAX_EXPERTS: u64 = 1024;
/// Values looked at between two questions whether to go on.
const CHUNK: usize = 1 << 22;
/// Values dequantized at a time: whole blocks of every type.
const RUN: usize = 1 << 14;

/// Architectures whose `load_arch_hparams` (`src/models/*.cpp`) was read for what it assumes of a file:
/// the only ones that are quantized.
pub const ARCHS: &[&str] = &[
    "llama",
    "qwen2",
    "qwen2moe",
    "qwen3",
    "qwen3moe",
    "qwen35",
    "qwen35moe",
    "smollm3",
    "gptneox",
    "phi2",
    "phi3",
    "gemma2",
    "gemma3",
    "olmo2",
    "mistral3",
    "cohere2",
    "granite",
    "gpt-oss",
];
/// Scaling types that `llama_rope_scaling_type_from_string` knows.
const ROPE_SCALINGS: &[&str] = &["none", "linear", "yarn", "longrope"];
/// Tensors of these architectures that are not of a layer, and those that are (`LLM_TENSOR_NAMES`).
const TENSORS: &[&str] =
    &["token_embd", "output_norm", "output", "rope_freqs", "rope_factors_long", "rope_factors_short"];
#[rustfmt::skip]
const LAYER_TENSORS: &[&str] = &[
    "attn_norm", "attn_norm_2", "attn_q", "attn_k", "attn_v", "attn_qkv", "attn_output", "attn_q_norm", "attn_k_norm",
    "attn_gate", "attn_sinks", "attn_rot_embd", "post_attention_norm", "post_ffw_norm", "rope_freqs", "rope_factors_long",
    "rope_factors_short", "ffn_norm", "ffn_gate", "ffn_up", "ffn_down", "ffn_gate_inp", "ffn_gate_exps", "ffn_up_exps",
    "ffn_down_exps", "ffn_gate_up_exps", "ffn_gate_inp_shexp", "ffn_gate_shexp", "ffn_up_shexp", "ffn_down_shexp",
    "exp_probs_b", "ssm_a", "ssm_conv1d", "ssm_dt", "ssm_ba", "ssm_alpha", "ssm_beta", "ssm_in", "ssm_norm", "ssm_out",
    "nextn.eh_proj", "nextn.embed_tokens", "nextn.enorm", "nextn.hnorm", "nextn.shared_head_head",
    "nextn.shared_head_norm",
];

/// Checks everything; returns the tensors whose type is overridden, with that type. `go_on` is asked now and then.
pub(super) fn all(f: &File, p: &QuantizeParams, go_on: &dyn Fn() -> bool) -> Result<Vec<(String, DType)>> {
    if !(1..=512).contains(&p.n_threads) {
        return Err(Error::Argument(format!("n_threads: expected 1 to 512, found {}", p.n_threads)));
    }
    model(f)?;
    for t in f.tensors() {
        known(f, t)?;
    }
    let overrides = types(f, p)?;
    for t in f.tensors() {
        // What is only copied has to be finite all the same.
        let limit = if is_matrix(t) { DType::F16.max_abs() } else { f32::MAX };
        values(f, t, limit, go_on)?;
    }
    Ok(overrides)
}

/// The error of the first matrix whose rows are not whole blocks of its type, which libllama replaces by another type only
/// if it knows one (`tensor_type_fallback`).
pub(super) fn uneven(f: &File, p: &QuantizeParams) -> Option<Error> {
    f.tensors().iter().filter(|t| is_matrix(t)).find_map(|t| {
        let given = p.overrides.iter().find(|(pattern, _)| pattern.is_match(&t.name));
        let dtype = given.map_or(p.mixture.dtype, |(_, dtype)| *dtype);
        let (row, block) = (t.shape[0] as usize, dtype.block_size());
        let what = format!("rows of {row} are not whole {dtype} blocks of {block}; choose another type");
        dtype.row_bytes(row).is_none().then(|| f.error(&t.name, what).into())
    })
}

/// About how large the new file will be.
pub(super) fn expected_bytes(f: &File, p: &QuantizeParams) -> u64 {
    let of = |t: &TensorInfo| match is_matrix(t) {
        true => {
            (t.n_elements() / p.mixture.dtype.block_size() * p.mixture.dtype.block_bytes()).min(t.n_bytes)
        }
        false => t.n_bytes,
    };
    f.tensors().iter().map(|t| of(t) as u64).sum()
}

/// Returns true if libllama would quantize the tensor, its name aside.
fn is_matrix(t: &TensorInfo) -> bool {
    t.shape.iter().skip(1).any(|&n| n > 1)
}

/// The numbers of the model.
fn model(f: &File) -> Result<()> {
    if f.paths().len() > 1 {
        return Err(f.error("split.count", "expected a file that is not split").into());
    }
    // libllama pads to 32 whatever the file says.
    if f.alignment() != gguf::DEFAULT_ALIGNMENT {
        return Err(f.error("general.alignment", format!("expected 32, found {}", f.alignment())).into());
    }
    let arch = f.get::<String>("general.architecture")?;
    if !ARCHS.contains(&arch.as_str()) {
        let what = format!("libllama's quantizer is used for {}; found {arch}", ARCHS.join(" "));
        return Err(f.error("general.architecture", what).into());
    }
    let numbers = |k: &str| numbers(f, &format!("{arch}.{k}"));
    let bad = |k: &str, expected: String| -> Result<()> {
        let found = f.value(&format!("{arch}.{k}")).map_or("nothing".into(), Value::describe);
        Err(f.error(&format!("{arch}.{k}"), format!("expected {expected}, found {found}")).into())
    };
    let one = |k: &str| Ok::<u64, Error>(numbers(k)?.into_iter().max().unwrap_or(0));
    let n_layer = one("block_count")?;
    if !(1..=MAX_LAYERS).contains(&n_layer) {
        return bad("block_count", format!("1 to {MAX_LAYERS}"));
    }
    if one("nextn_predict_layers")? >= n_layer {
        return bad("nextn_predict_layers", format!("less than the {n_layer} layers"));
    }
    let heads = numbers("attention.head_count")?;
    if heads.is_empty() || heads.contains(&0) {
        return bad("attention.head_count", "1 or more".into());
    }
    if numbers("full_attention_interval")?.contains(&0) {
        return bad("full_attention_interval", "1 or more".into());
    }
    let (n, used) = (one("expert_count")?, one("expert_used_count")?);
    let (groups, groups_used) = (one("expert_group_count")?, one("expert_group_used_count")?);
    if n > MAX_EXPERTS {
        return bad("expert_count", format!("at most {MAX_EXPERTS}"));
    }
    if used > n || n > 0 && used == 0 {
        return bad("expert_used_count", format!("a number of {n} experts"));
    }
    let grouped = groups > 1 && (n % groups != 0 || groups_used == 0 || groups_used >= groups);
    if n == 0 && groups > 0 || n > 0 && groups >= n || grouped {
        return bad("expert_group_count", format!("a division of {n} experts"));
    }
    let scaling = f.get_opt::<String>(&format!("{arch}.rope.scaling.type"))?;
    if scaling.is_some_and(|s| !ROPE_SCALINGS.contains(&s.as_str())) {
        return bad("rope.scaling.type", ROPE_SCALINGS.join(" "));
    }
    Ok(())
}

/// A number, or one for each layer; none when the key is absent.
fn numbers(f: &File, key: &str) -> Result<Vec<u64>> {
    match f.value(key) {
        None => Ok(Vec::new()),
        Some(Value::Array(_)) => {
            let read = f.get::<Vec<i64>>(key)?;
            let read = read.into_iter().map(|n| u64::try_from(n).ok()).collect::<Option<Vec<u64>>>();
            read.ok_or_else(|| f.error(key, "expected numbers from 0").into())
        }
        Some(_) => Ok(vec![f.get::<u64>(key)?]),
    }
}

/// A tensor that libllama knows, of a shape that its quantizer counts right.
fn known(f: &File, t: &TensorInfo) -> Result<()> {
    let stem = t.name.strip_suffix(".weight").or_else(|| t.name.strip_suffix(".bias")).unwrap_or(&t.name);
    let of_layer = stem.strip_prefix("blk.").and_then(|rest| {
        let (n, role) = rest.split_once('.')?;
        Some(n.parse::<u64>().is_ok_and(|n| n < MAX_LAYERS) && LAYER_TENSORS.contains(&role))
    });
    if !of_layer.unwrap_or_else(|| TENSORS.contains(&stem)) {
        return Err(f.error(&t.name, "is not a tensor that libllama knows of this architecture").into());
    }
    if t.shape.contains(&0) || t.shape.get(3).is_some_and(|&n| n > 1) {
        let what = format!("expected up to three dimensions of 1 or more, found {:?}", t.shape);
        return Err(f.error(&t.name, what).into());
    }
    Ok(())
}

/// The types asked for: each can be written, has an effect, and suits its tensors.
fn types(f: &File, p: &QuantizeParams) -> Result<Vec<(String, DType)>> {
    let refuse = |what: String| Err(Error::Argument(what));
    if p.mixture.needs_imatrix && p.imatrix.is_none() {
        return refuse(format!("{} can only be written with an importance matrix", p.mixture.name));
    }
    if p.pure_type && p.mixture.dtype.needs_importance() {
        return refuse(format!("{}: the embeddings cannot be {}", p.mixture.name, p.mixture.dtype));
    }
    let tied = f.tensor("output.weight").is_none();
    if p.leave_output && tied {
        return refuse(format!("{}: has no output matrix to leave as it is", f.path().display()));
    }
    if p.output.is_some() && (p.leave_output || tied && (p.pure_type || p.token_embedding.is_some())) {
        return refuse(format!("{}: the type of the output would have no effect", f.path().display()));
    }
    let mut wanted = Vec::new();
    for (given, names) in [(p.token_embedding, &["token_embd.weight"][..]), (p.output, &["output.weight"])] {
        let of = given.iter().flat_map(|dtype| names.iter().filter_map(|n| Some((f.tensor(n)?, *dtype))));
        wanted.extend(of);
    }
    for &(t, dtype) in &wanted {
        if dtype.row_bytes(t.shape[0] as usize).is_none() {
            let what =
                format!("rows of {} are not whole {dtype} blocks of {}", t.shape[0], dtype.block_size());
            return Err(f.error(&t.name, what).into());
        }
    }
    let mut overrides = Vec::new();
    for t in f.tensors().iter().filter(|t| is_matrix(t)) {
        if let Some((_, dtype)) = p.overrides.iter().find(|(pattern, _)| pattern.is_match(&t.name)) {
            overrides.push((t.name.clone(), *dtype));
            wanted.push((t, *dtype));
        }
    }
    if let Some((pattern, _)) =
        p.overrides.iter().find(|(pattern, _)| !overrides.iter().any(|(name, _)| pattern.is_match(name)))
    {
        return refuse(format!("{}: no matrix has a name that matches {pattern}", f.path().display()));
    }
    let importance = |name: &str| {
        p.imatrix.as_ref().and_then(|m| m.entries().iter().find(|(n, _)| n == name)).map(|(_, values)| values)
    };
    for (t, dtype) in wanted {
        let needed = dtype.needs_importance();
        if !(dtype.can_quantize() || needed && importance(&t.name).is_some()) {
            let why = if needed { " without importances for it" } else { "" };
            return Err(f.error(&t.name, format!("{dtype} cannot be written{why}")).into());
        }
    }
    if let Some(m) = &p.imatrix {
        let mut used = 0;
        for t in f.tensors() {
            let Some(values) = importance(&t.name) else { continue };
            let expected = t.shape[0] * t.shape.get(2).unwrap_or(&1);
            if values.len() as u64 != expected {
                let what =
                    format!("expected {expected} numbers for {}, found {}", f.path().display(), values.len());
                return Err(gguf_error(m.path(), &t.name, &what));
            }
            used += 1;
        }
        if used == 0 {
            return Err(gguf_error(m.path(), "tensors", &format!("none is of {}", f.path().display())));
        }
    }
    Ok(overrides)
}

fn gguf_error(path: &std::path::Path, key: &str, what: &str) -> Error {
    Error::Argument(format!("{}: {}: {what}", path.display(), key.escape_debug()))
}

/// Values that every quantized type can hold: not finite or too large ones become blocks of NaN, or abort.
fn values(f: &File, t: &TensorInfo, limit: f32, go_on: &dyn Fn() -> bool) -> Result<()> {
    if matches!(t.dtype, DType::I8 | DType::I16 | DType::I32 | DType::I64 | DType::F64)
        || !t.dtype.can_dequantize()
    {
        return Err(f.error(&t.name, format!("{} is not a type of weights", t.dtype)).into());
    }
    let (data, n) = (f.data(t), t.n_elements());
    let bytes_at = |i: usize| i / t.dtype.block_size() * t.dtype.block_bytes();
    for start in (0..n).step_by(CHUNK) {
        if !go_on() {
            return Err(Error::Backend("interrupted".into()));
        }
        let runs = (start..n.min(start + CHUNK)).into_par_iter().step_by(RUN);
        let bad = runs.map(|at| -> Result<Option<(usize, f32)>> {
            let mut values = vec![0f32; RUN.min(n.min(start + CHUNK) - at)];
            ggml::dtype::dequantize(
                t.dtype,
                data.slice(bytes_at(at)..bytes_at(at + values.len())),
                &mut values,
            )?;
            let bad = values.iter().position(|v| v.is_nan() || v.abs() > limit);
            Ok(bad.map(|i| (at + i, values[i])))
        });
        if let Some((index, value)) = bad.collect::<Result<Vec<_>>>()?.into_iter().flatten().next() {
            let what = format!("value {index} is {value}: expected finite values up to {limit}");
            return Err(f.error(&t.name, what).into());
        }
    }
    Ok(())
}
