//! Random-weight models: small ones for tests, full-sized ones for measuring speed.

mod shapes;
pub mod tokens;
mod values;

use std::path::Path;

use gguf::DType;
use gguf::{Value, Writer};

use crate::{rows, types, Error, Result, Work};
use ropewalk_core::control::Control;
use ropewalk_core::ids::{LinearId, NormId, NormRole, ParamId, Role, TOKEN_EMBD};
pub use shapes::{NamedShape, Shape, SHAPES};
use values::{normal, Source};

/// A tensor to be made.
#[derive(Debug, Clone, PartialEq)]
pub struct TensorSpec {
    /// Name in the file.
    pub name: String,
    /// Shape in ggml order.
    pub shape: Vec<u64>,
    /// Its values.
    pub fill: Fill,
}

/// The values of a random tensor.
#[derive(Debug, Clone, PartialEq)]
pub enum Fill {
    /// Mean and standard deviation.
    Normal(f32, f32),
    /// These values.
    Values(Vec<f32>),
}

/// Writes a random-weight model: matrices as `dtype` (with [`types::target`]'s fallbacks), vectors as F32, a
/// byte-level tokenizer. The file depends on nothing but the arguments. Returns its size in bytes.
///
/// # Errors
/// A shape no model can have, a type that cannot be written, or the file system.
pub fn write(shape: &Shape, dtype: DType, seed: u64, path: &Path) -> Result<u64> {
    write_watched(shape, dtype, seed, path, &Control::default())
}

/// [`write()`], with progress (bytes of tensor data) and cancellation.
///
/// # Errors
/// As [`write()`], and [`Error::Interrupted`].
pub fn write_watched(
    shape: &Shape,
    dtype: DType,
    seed: u64,
    path: &Path,
    control: &Control<'_>,
) -> Result<u64> {
    let work = Work::new(control);
    rows::available("random models")?;
    shape.check()?;
    let Some(file_type) = types::file_type(dtype) else {
        return Err(Error::Invalid(format!("random models cannot be written as {}", dtype.name())));
    };
    let tensors = tensors(shape);
    let source = Source::new(seed, &work);
    let mut writer = Writer::new();
    write_keys(&mut writer, shape, file_type, seed);
    let mut n_bytes = 0u64;
    for (i, tensor) in tensors.iter().enumerate() {
        let dtype = types::target(dtype, &tensor.shape);
        let row = tensor.shape[0] as usize;
        let n = tensor.shape.iter().product::<u64>() as usize;
        let row_bytes = dtype.row_bytes(row).ok_or_else(|| {
            Error::Invalid(format!(
                "{}: rows of {row} values do not divide into {}",
                tensor.name,
                dtype.name()
            ))
        })?;
        n_bytes += (n / row * row_bytes) as u64;
        let source = &source;
        // Stream 0 is the pool's.
        let stream = i as u64 + 1;
        let data = move |out: &mut dyn std::io::Write| -> std::io::Result<()> {
            let plain = |out: &mut dyn std::io::Write, values: &[f32]| {
                let bytes: Vec<u8> = values.iter().flat_map(|x| x.to_le_bytes()).collect();
                source.work.wrote(bytes.len());
                out.write_all(&bytes)
            };
            match &tensor.fill {
                Fill::Values(values) => plain(out, values),
                Fill::Normal(mean, std) if types::is_vector(&tensor.shape) => {
                    plain(out, &normal(source.seed, stream, 0, n, *mean, *std))
                }
                Fill::Normal(_, std) => source.write(out, stream, dtype, (n, row), *std),
            }
        };
        writer.tensor(&tensor.name, dtype, &tensor.shape, Box::new(data))?;
    }
    work.start(n_bytes);
    match writer.write(path) {
        Err(_) if work.stopped() => Err(Error::Interrupted),
        done => Ok(done?),
    }
}

/// Every tensor of a shape, in file order. Scales keep activations near unit size through the layers, scores
/// spread enough for attention to matter, and logits at a deviation near 2.
pub fn tensors(shape: &Shape) -> Vec<TensorSpec> {
    let (embd, ff) = (shape.n_embd as u64, shape.n_ff as u64);
    let (q, kv) = ((shape.n_head * shape.n_embd_head) as u64, (shape.n_head_kv * shape.n_embd_head) as u64);
    let vocab = shape.n_vocab as u64;
    let mut list = Vec::new();
    let mut add = |name: String, shape: Vec<u64>, fill: Fill| list.push(TensorSpec { name, shape, fill });
    let matrix = |gain: f32, n_in: u64| Fill::Normal(0.0, gain / (n_in as f32).sqrt());
    let norm = Fill::Normal(1.0, 0.1);
    let bias = Fill::Normal(0.0, 0.5);

    let head = matrix(2.0, embd);
    let embedding = if shape.tied { head.clone() } else { Fill::Normal(0.0, 1.0) };
    add(TOKEN_EMBD.into(), vec![embd, vocab], embedding);
    if let Some(factors) = &shape.rope_factors {
        add("rope_freqs.weight".into(), vec![factors.len() as u64], Fill::Values(factors.clone()));
    }
    for il in 0..shape.n_layer {
        let linear = |role| LinearId::layer(il, role).weight();
        let layer_norm = |role| NormId::layer(il, role).weight();
        add(layer_norm(NormRole::Attn), vec![embd], norm.clone());
        for (role, n_out, gain) in [(Role::Q, q, 1.5), (Role::K, kv, 1.5), (Role::V, kv, 1.0)] {
            add(linear(role), vec![embd, n_out], matrix(gain, embd));
            if shape.qkv_bias {
                add(ParamId::Bias(LinearId::layer(il, role)).to_string(), vec![n_out], bias.clone());
            }
        }
        for role in [NormRole::Q, NormRole::K].into_iter().filter(|_| shape.qk_norm) {
            add(layer_norm(role), vec![shape.n_embd_head as u64], norm.clone());
        }
        add(linear(Role::O), vec![q, embd], matrix(1.0, q));
        add(layer_norm(NormRole::Ffn), vec![embd], norm.clone());
        add(linear(Role::Gate), vec![embd, ff], matrix(1.0, embd));
        add(linear(Role::Up), vec![embd, ff], matrix(1.0, embd));
        add(linear(Role::Down), vec![ff, embd], matrix(1.0, ff));
    }
    add(NormId::OUTPUT.weight(), vec![embd], norm);
    if !shape.tied {
        add(LinearId::OUTPUT.weight(), vec![embd, vocab], head);
    }
    list
}

fn write_keys(writer: &mut Writer<'_>, shape: &Shape, file_type: u32, seed: u64) {
    let text = |s: &str| Value::String(s.as_bytes().to_vec());
    writer
        .set("general.architecture", text(&shape.arch))
        .set("general.type", text("model"))
        .set("general.name", text(&format!("random {} {}x{}", shape.arch, shape.n_layer, shape.n_embd)))
        .set("general.file_type", Value::U32(file_type))
        .set("general.quantization_version", Value::U32(types::QUANTIZATION_VERSION))
        .set("ropewalk.random.seed", Value::U64(seed));
    let counts = [
        ("vocab_size", shape.n_vocab),
        ("context_length", shape.n_ctx_train),
        ("embedding_length", shape.n_embd),
        ("block_count", shape.n_layer),
        ("feed_forward_length", shape.n_ff),
        ("rope.dimension_count", shape.n_embd_head),
        ("attention.head_count", shape.n_head),
        ("attention.head_count_kv", shape.n_head_kv),
        ("attention.key_length", shape.n_embd_head),
        ("attention.value_length", shape.n_embd_head),
    ];
    for (key, n) in counts {
        // Shape::check keeps every count below 2^31.
        writer.set(&format!("{}.{key}", shape.arch), Value::U32(n as u32));
    }
    writer
        .set(&format!("{}.attention.layer_norm_rms_epsilon", shape.arch), Value::F32(shape.rms_eps))
        .set(&format!("{}.rope.freq_base", shape.arch), Value::F32(shape.freq_base));
    tokens::write(writer, shape.n_vocab);
}
