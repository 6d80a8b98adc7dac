//! Any bytes are refused in one line or describe tensors that lie inside them.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    match gguf::parse(bytes) {
        Ok(header) => assert!(header.tensors.iter().all(|t| t.offset + t.n_bytes <= bytes.len())),
        Err(defect) => assert!(!defect.to_string().contains('\n')),
    }
});
