//! The tests of vocabularies, samplers and the oracle, one program.

mod oracle;
mod sampler;
mod vocab;
mod vocab_real;
