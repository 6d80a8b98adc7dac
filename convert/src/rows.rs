//! Conversion of rows to and from `f32`: ggml's, or in a build without feature `ggml`, an error that names
//! the feature.

#[cfg(feature = "ggml")]
pub(crate) use ggml::{
    dtype::{dequantize, dequantize_tensor, quantize},
    Result,
};
#[cfg(not(feature = "ggml"))]
pub(crate) use without::{dequantize, dequantize_tensor, quantize, Result};

/// Room for `n` values that a file asks for.
///
/// # Errors
/// The memory cannot be had.
pub(crate) fn zeros(n: usize) -> Result<Vec<f32>> {
    let refused = |e: files::OutOfMemory| gguf::Error::OutOfMemory {
        bytes: e.bytes as usize,
        what: format!("{n} values of f32"),
    };
    Ok(files::memory::filled(n, 0.0).map_err(refused)?)
}

/// Refuses what the user asked for where this build cannot do it.
///
/// # Errors
/// The build has no feature `ggml`.
pub(crate) fn available(wanted: &str) -> crate::Result<()> {
    if cfg!(feature = "ggml") {
        return Ok(());
    }
    Err(crate::Error::Usage(format!("{wanted}: this program was built without its feature `ggml`")))
}

/// The index of a value that cannot be written, counted from the start of the tensor and not of the run that
/// begins at `start`.
#[cfg(feature = "ggml")]
pub(crate) fn at_index(e: ggml::Error, start: usize) -> ggml::Error {
    match e {
        ggml::Error::NotQuantizable { dtype, index, value, limit } => {
            ggml::Error::NotQuantizable { dtype, index: index + start, value, limit }
        }
        other => other,
    }
}

#[cfg(not(feature = "ggml"))]
pub(crate) fn at_index(e: gguf::Error, _: usize) -> gguf::Error {
    e
}

/// `available` has refused every job that would come here; should one come all the same, it fails, too.
#[cfg(not(feature = "ggml"))]
mod without {
    use gguf::{DType, Error, File, TensorInfo};

    pub(crate) type Result<T> = std::result::Result<T, Error>;

    fn missing<T>(dtype: DType) -> Result<T> {
        Err(Error::Argument(format!("{dtype}: to convert values, convert needs its feature `ggml`")))
    }

    pub(crate) fn dequantize<'a>(dtype: DType, _: impl Into<gguf::Bytes<'a>>, _: &mut [f32]) -> Result<()> {
        missing(dtype)
    }

    pub(crate) fn quantize(dtype: DType, _: usize, _: &[f32]) -> Result<Vec<u8>> {
        missing(dtype)
    }

    pub(crate) fn dequantize_tensor(_: &File, t: &TensorInfo) -> Result<Vec<f32>> {
        missing(t.dtype)
    }
}
