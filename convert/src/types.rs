//! Which element type a tensor gets.

use std::collections::BTreeMap;

use gguf::{DType, TensorInfo};

/// Types `--type` takes, with the number each has in `general.file_type` (llama.cpp's `llama_ftype`; of the
/// K-quant mixtures the small one, which like ours is nearly pure).
pub const TARGETS: &[(DType, u32)] = &[
    (DType::F32, 0),
    (DType::F16, 1),
    (DType::BF16, 32),
    (DType::Q8_0, 7),
    (DType::Q4_0, 2),
    (DType::Q4_1, 3),
    (DType::Q5_0, 8),
    (DType::Q5_1, 9),
    (DType::Q2_K, 10),
    (DType::Q3_K, 11),
    (DType::Q4_K, 14),
    (DType::Q5_K, 16),
    (DType::Q6_K, 18),
];

/// Version of the quantized formats, as in `general.quantization_version` (ggml's `GGML_QNT_VERSION`).
pub const QUANTIZATION_VERSION: u32 = 2;

/// The number of a target in `general.file_type`; `None` when it is not one of [`TARGETS`].
pub fn file_type(dtype: DType) -> Option<u32> {
    TARGETS.iter().find(|t| t.0 == dtype).map(|t| t.1)
}

/// The target of this name, or the list of those there are.
///
/// # Errors
/// An unknown name.
pub fn parse(name: &str) -> crate::Result<DType> {
    let found = TARGETS.iter().find(|t| t.0.name().eq_ignore_ascii_case(name));
    found.map(|t| t.0).ok_or_else(|| {
        let names = TARGETS.iter().map(|t| t.0.name()).chain(mixtures());
        let names = names.collect::<Vec<_>>().join(" ");
        crate::Error::Argument(format!("type: unknown type {name:?}; known: {names}"))
    })
}

/// The names of the mixtures that libllama's quantizer writes and that are not names of [`TARGETS`].
pub fn mixtures() -> impl Iterator<Item = &'static str> {
    let all = llama::quantize::MIXTURES.iter().map(|m| m.name);
    all.filter(|name| !TARGETS.iter().any(|t| t.0.name() == *name))
}

/// Returns true if libllama's quantizer writes a mixture of this name.
pub fn is_mixture(name: &str) -> bool {
    llama::quantize::Mixture::named(name).is_some()
}

/// True for vectors: norms, biases and factor tensors, which the graphs want in F32. Trailing 1s do not
/// count.
pub fn is_vector(shape: &[u64]) -> bool {
    shape.iter().skip(1).all(|&n| n == 1)
}

/// True for tensors that stay floats whatever their shape: biases, those of experts side by side too, routers, whose
/// logits choose, and convolutions of recurrent layers (llama.cpp's quantizer leaves them as they are).
pub fn stays_f32(name: &str, shape: &[u64]) -> bool {
    let kept = [".bias", ".ffn_gate_inp.weight", ".ssm_conv1d.weight"];
    is_vector(shape) || kept.iter().any(|end| name.ends_with(end))
}

/// [`target`] of a tensor of this name.
pub fn target_of(wanted: DType, name: &str, shape: &[u64]) -> DType {
    if stays_f32(name, shape) {
        DType::F32
    } else {
        target(wanted, shape)
    }
}

/// The type a tensor of this shape gets when `wanted` is asked for: F32 for vectors; where a row is not whole
/// blocks, the type llama.cpp's quantizer falls back to (`tensor_type_fallback`), and F16 where that does not
/// divide either.
pub fn target(wanted: DType, shape: &[u64]) -> DType {
    if is_vector(shape) {
        return DType::F32;
    }
    let n = shape.first().copied().unwrap_or(0);
    let fits = |t: DType| n % t.block_size().max(1) as u64 == 0;
    if fits(wanted) {
        return wanted;
    }
    let smaller = match wanted {
        DType::Q2_K | DType::Q3_K => DType::Q4_0,
        DType::Q4_K => DType::Q5_0,
        DType::Q5_K => DType::Q5_1,
        DType::Q6_K => DType::Q8_0,
        other => other,
    };
    match fits(smaller) {
        true => smaller,
        false => DType::F16,
    }
}

/// Tensors that cannot have the type asked for, one note for all of the same width.
pub(crate) fn note_fallbacks<'a>(
    tensors: impl Iterator<Item = &'a TensorInfo>,
    wanted: DType,
    notes: &mut Vec<String>,
) {
    let mut groups: BTreeMap<u64, usize> = BTreeMap::new();
    for t in tensors {
        let to = target_of(wanted, &t.name, &t.shape);
        let stays = stays_f32(&t.name, &t.shape);
        if to != wanted && t.dtype != to && t.dtype.can_dequantize() && !stays {
            *groups.entry(t.shape[0]).or_default() += 1;
        }
    }
    for (row, n) in groups {
        let (to, block) = (target(wanted, &[row, 2]), wanted.block_size());
        notes.push(format!(
            "{n} of the tensors become {to}: rows of {row} are not whole {wanted} blocks of {block}."
        ));
    }
}
