//! Log lines of ggml and libllama that become parts of errors.

use std::ffi::{c_char, CStr, CString};
use std::ptr::{null, null_mut};

use ggml::logging::{clear_errors, errors_or, install};
use llama_cpp_sys_2 as sys;

/// Calls what is installed for the log, as C does.
fn log(level: sys::ggml_log_level, text: *const c_char) {
    install();
    let (mut receive, mut user): (sys::ggml_log_callback, _) = (None, null_mut());
    // SAFETY: both pointers are to be written to; the text is null or ends with NUL, and outlives the call.
    unsafe {
        sys::llama_log_get(&mut receive, &mut user);
        receive.expect("a function that is installed")(level, text, user);
    }
}

fn say(level: sys::ggml_log_level, text: &CStr) {
    log(level, text.as_ptr());
}

#[test]
fn the_first_error_line_is_the_reason_and_other_levels_are_not_kept() {
    clear_errors();
    assert_eq!(errors_or("nothing said"), "nothing said");
    say(sys::GGML_LOG_LEVEL_WARN, c"load: odd\n");
    say(sys::GGML_LOG_LEVEL_ERROR, c"llama_model_load: error loading model: unknown tokenizer: 'x'\n");
    say(sys::GGML_LOG_LEVEL_ERROR, c"load_impl: failed to load model\n");
    assert_eq!(errors_or(""), "unknown tokenizer: 'x'");
    assert_eq!(errors_or("taken"), "taken");
}

#[test]
fn lines_of_other_threads_do_not_mix() {
    clear_errors();
    std::thread::spawn(|| say(sys::GGML_LOG_LEVEL_ERROR, c"there: broken\n")).join().unwrap();
    assert_eq!(errors_or("quiet here"), "quiet here");
}

#[test]
fn endless_and_invalid_text_is_cut() {
    clear_errors();
    let long = CString::new(vec![0xff; 100_000]).unwrap();
    for _ in 0..100 {
        say(sys::GGML_LOG_LEVEL_ERROR, &long);
    }
    log(sys::GGML_LOG_LEVEL_ERROR, null());
    assert!(errors_or("").len() <= 1200);
}
