//! Log lines of ggml and libllama: kept for error messages, otherwise silent.

use std::cell::RefCell;
use std::ffi::{c_char, c_void, CStr};
use std::sync::Once;

use crate::sys;

/// Error lines kept per thread; libllama explains a failed load in two or three.
const KEPT: usize = 4;
/// Bytes kept of one line.
const KEPT_BYTES: usize = 400;

thread_local! {
    static ERRORS: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

/// Sends the log of ggml and libllama here. Must come before any other call into either, because the C side
/// stores the callback without a lock.
pub fn install() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: `receive` has the signature of ggml_log_callback, lives as long as the program and takes no
        // user data. llama_log_set hands it to ggml too.
        unsafe { sys::llama_log_set(Some(receive), std::ptr::null_mut()) };
    });
}

/// Forgets this thread's error lines: call before an operation whose errors matter.
pub fn clear_errors() {
    let _ = ERRORS.try_with(|e| e.borrow_mut().clear());
}

/// The first error line that libllama logged on this thread since [`clear_errors`]; `otherwise` when there is
/// none. Forgets the lines.
pub fn errors_or(otherwise: &str) -> String {
    let lines = ERRORS.try_with(|e| std::mem::take(&mut *e.borrow_mut())).unwrap_or_default();
    // The last line is always the general one ("failed to load model"); the first says why.
    lines.into_iter().next().unwrap_or_else(|| otherwise.to_string())
}

/// Called by C: must not unwind, so nothing in it can panic.
extern "C" fn receive(level: sys::ggml_log_level, text: *const c_char, _user: *mut c_void) {
    if text.is_null() {
        return;
    }
    // SAFETY: ggml passes a NUL-terminated string that outlives the call.
    let text = unsafe { CStr::from_ptr(text) };
    if level != sys::GGML_LOG_LEVEL_ERROR {
        return;
    }
    let bytes = text.to_bytes();
    let line = String::from_utf8_lossy(&bytes[..bytes.len().min(KEPT_BYTES)]);
    let line = tidy(&line);
    // Rules drawn around a message say nothing.
    if !line.contains(char::is_alphanumeric) {
        return;
    }
    let _ = ERRORS.try_with(|errors| {
        if let Ok(mut errors) = errors.try_borrow_mut() {
            if errors.len() < KEPT {
                errors.push(line);
            }
        }
    });
}

/// One line, without the C function's name in front, and without control characters that a file brought into
/// it.
fn tidy(line: &str) -> String {
    let line = line.split_whitespace().collect::<Vec<_>>().join(" ").replace(char::is_control, "?");
    match line.split_once(": ") {
        Some((name, rest))
            if !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_') =>
        {
            let rest = rest.strip_prefix("error loading model: ").unwrap_or(rest);
            rest.strip_prefix("failed to quantize: ").unwrap_or(rest).to_string()
        }
        _ => line,
    }
}
