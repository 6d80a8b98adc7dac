//! See `fuzz::imatrix`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    fuzz::imatrix::run(bytes);
});
