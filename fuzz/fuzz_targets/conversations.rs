//! See `fuzz::conversations`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    fuzz::conversations::run(bytes);
});
