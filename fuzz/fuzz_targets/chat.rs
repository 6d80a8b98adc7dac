//! See `fuzz::chat`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    fuzz::chat::run(bytes);
});
