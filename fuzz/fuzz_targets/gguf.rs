//! See `fuzz::gguf`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    fuzz::gguf::run(bytes);
});
