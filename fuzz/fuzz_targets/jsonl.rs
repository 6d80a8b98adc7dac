//! See `fuzz::jsonl`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    fuzz::jsonl::run(bytes);
});
