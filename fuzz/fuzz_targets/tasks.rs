//! See `fuzz::tasks`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    fuzz::tasks::run(bytes);
});
