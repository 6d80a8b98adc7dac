//! The tests of vocabularies, samplers and the oracle, one program.

#[path = "../../../../tests/common/fetched.rs"]
mod fetched;
mod imatrix;
mod oracle;
mod quantize;
mod sampler;
mod vocab;
mod vocab_real;

// What `sampler::steps`, a file of the library, knows by these names.
use ggml::{Error, Result};
use llama_cpp_sys_2 as sys;
