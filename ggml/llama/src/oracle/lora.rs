//! LoRA adapters in libllama.

use std::ffi::CString;
use std::path::Path;
use std::ptr::NonNull;

use super::Oracle;
use crate::{sys, Error, Result};
use ggml::logging;
use gguf::{File, Value};

/// The adapters in force and their scales. libllama frees them with the model, which is after the context.
#[derive(Debug, Default)]
pub(super) struct Loras {
    adapters: Vec<*mut sys::llama_adapter_lora>,
    scales: Vec<f32>,
}

impl Oracle {
    /// Adds the adapter file at `path`, times `scale`, to those in force.
    ///
    /// # Errors
    /// An adapter that libllama would abort on or refuses: one of another model, or with whole tensors that
    /// are not norms.
    pub fn lora(&mut self, path: &Path, scale: f32) -> Result<()> {
        if !scale.is_finite() {
            return Err(Error::Argument(format!(
                "{}: expected a finite scale, found {scale}",
                path.display()
            )));
        }
        check(&File::open(path)?)?;
        let c_path = CString::new(path.as_os_str().as_encoded_bytes())
            .map_err(|_| Error::Argument(format!("{}: a path with a NUL byte", path.display())))?;
        logging::clear_errors();
        // SAFETY: the model is valid, the path NUL-terminated. The file was validated by our reader, and what
        // libllama asserts on by `check`; it catches its exceptions.
        let adapter = unsafe { sys::llama_adapter_lora_init(self._model.0.as_ptr(), c_path.as_ptr()) };
        let adapter = NonNull::new(adapter).ok_or_else(|| {
            let what = logging::errors_or("cannot load the adapter");
            Error::Backend(format!("{}: libllama: {what}", path.display()))
        })?;
        let Loras { adapters, scales } = &mut self.loras;
        adapters.push(adapter.as_ptr());
        scales.push(scale);
        // SAFETY: context and adapters are valid, the adapters of the context's own model; both lists hold as
        // many entries as stated, and are copied.
        let status = unsafe {
            sys::llama_set_adapters_lora(
                self.ctx.0.as_ptr(),
                adapters.as_mut_ptr(),
                adapters.len(),
                scales.as_mut_ptr(),
            )
        };
        match status {
            0 => Ok(()),
            _ => Err(Error::Backend(format!(
                "{}: libllama: cannot use the adapter ({status})",
                path.display()
            ))),
        }
    }
}

/// libllama reads these keys without looking at their type, looks at two dimensions only, and multiplies by a
/// pair of the embedding as if it were a pair of the output.
fn check(file: &File) -> gguf::Result<()> {
    for key in ["general.type", "general.architecture", "adapter.type"] {
        file.get::<String>(key)?;
    }
    match file.value("adapter.lora.alpha") {
        None | Some(Value::F32(_)) => {}
        Some(other) => {
            return Err(file.error("adapter.lora.alpha", format!("expected f32, found {}", other.describe())))
        }
    }
    for t in file.tensors() {
        if t.shape.iter().skip(2).any(|&n| n != 1) {
            return Err(file.error(&t.name, format!("expected two dimensions, found {:?}", t.shape)));
        }
        if t.name.contains("token_embd") {
            return Err(file.error(&t.name, "expected no tensor for the embedding, found one"));
        }
        if !t.dtype.can_dequantize() {
            return Err(file.error(&t.name, format!("expected floats, found {}", t.dtype.name())));
        }
    }
    Ok(())
}
