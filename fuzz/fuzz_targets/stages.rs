//! See `fuzz::stages`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    fuzz::stages::run(bytes);
});
