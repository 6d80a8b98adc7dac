//! See `fuzz::peft`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    fuzz::peft::run(bytes);
});
