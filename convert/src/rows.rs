//! Conversion of rows to and from `f32`.

pub(crate) use ggml::{
    dtype::{dequantize, dequantize_tensor, quantize},
    Result,
};

/// Room for `n` values that a file asks for.
pub(crate) fn zeros(n: usize) -> Result<Vec<f32>> {
    let refused = |e: files::OutOfMemory| gguf::Error::OutOfMemory {
        bytes: e.bytes as usize,
        what: format!("{n} values of f32"),
    };
    Ok(files::memory::filled(n, 0.0).map_err(refused)?)
}

/// The index of a value that cannot be written, counted from the start of the tensor and not of the run that
/// begins at `start`.
pub(crate) fn at_index(e: ggml::Error, start: usize) -> ggml::Error {
    match e {
        ggml::Error::NotQuantizable { dtype, index, value, limit } => {
            ggml::Error::NotQuantizable { dtype, index: index + start, value, limit }
        }
        other => other,
    }
}
