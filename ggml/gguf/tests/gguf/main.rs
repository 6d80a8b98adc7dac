//! The tests of GGUF files, one program.

mod bytes;
#[path = "../../../../tests/common/fetched.rs"]
mod fetched;
mod real;
mod reject;
mod roundtrip;
mod split;
mod write;
