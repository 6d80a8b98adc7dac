//! See `fuzz::quantize`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    fuzz::quantize::run(bytes);
});
