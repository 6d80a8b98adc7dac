//! See `fuzz::model`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    fuzz::model::run(bytes);
});
