//! The tests of GGUF files, one program.

mod bytes;
mod mutate;
mod real;
mod reject;
mod roundtrip;
mod split;
mod write;
