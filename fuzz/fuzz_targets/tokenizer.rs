//! See `fuzz::tokenizer`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    fuzz::tokenizer::run(bytes);
});
