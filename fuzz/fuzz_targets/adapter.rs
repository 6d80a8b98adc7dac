//! See `fuzz::adapter`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    fuzz::adapter::run(bytes);
});
