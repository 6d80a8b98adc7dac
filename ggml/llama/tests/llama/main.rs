//! The tests of vocabularies, samplers and the oracle, one program.

#[path = "../../../../tests/common/fetched.rs"]
mod fetched;
mod oracle;
mod quantize;
mod sampler;
mod vocab;
mod vocab_real;
