//! Models for libllama's quantizer, which aborts on much: what our checks let through is quantized.

use convert::{convert, Mixture, Options};
use ropewalk::control::Control;
use ropewalk::DType;

use crate::{accepted, file, model_bytes, scratch, small};

/// Converts the model to a mixture.
pub fn run(bytes: &[u8]) -> bool {
    let (input, output) = (file("in.gguf", bytes), scratch("quantized.gguf"));
    let mixture = Mixture::default().name("iq4_nl".into());
    let options = Options::default().mixture(Some(mixture)).force(true);
    accepted(convert(input, output, &options, &Control::default()))
}

/// A small model of each architecture.
pub fn seeds() -> Vec<Vec<u8>> {
    ["llama-tiny", "qwen2-tiny"].map(|name| model_bytes(&small(name), DType::F16)).into()
}
