//! The program that libFuzzer drives: each input goes to the target that `FUZZ_TARGET` names.
#![no_main]

use std::sync::LazyLock;

static TARGET: LazyLock<&fuzz::Target> = LazyLock::new(|| {
    let name = std::env::var("FUZZ_TARGET").unwrap_or_default();
    let named = fuzz::TARGETS.iter().find(|target| target.name == name);
    named.unwrap_or_else(|| {
        panic!("FUZZ_TARGET: expected a name in TARGETS of fuzz/src/lib.rs, found {name:?}")
    })
});

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    (TARGET.run)(bytes);
});
