//! See `fuzz::records`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    fuzz::records::run(bytes);
});
