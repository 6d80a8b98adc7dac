//! See `fuzz::cache`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    fuzz::cache::run(bytes);
});
