//! See `fuzz::cell`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    fuzz::cell::run(bytes);
});
