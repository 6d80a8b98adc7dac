//! See `fuzz::ids`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    fuzz::ids::run(bytes);
});
