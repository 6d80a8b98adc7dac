//! Rounding allowed in products of weights with floats. Sums are floats of 32 bits in any case.

use std::fmt;
use std::str::FromStr;

/// Rounding allowed in products of a model's weights with activations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Math {
    /// No more than libllama does, which rounds activations to 8 bits for quantized weights. On the CPU batches of up to 32
    /// tokens are rounded so, and larger ones to 15 or 16 bits, or not at all: what is measured is then the model, and not its
    /// rounding. Training keeps about 15 bits in AMX tiles, and does not round to integers: gradients with quantized weights would
    /// exceed the bounds of their tests.
    #[default]
    Auto,
    /// Nothing: weights are converted to floats of 32 bits.
    F32,
    /// Weights and activations to bfloat16, that is to 8 bits each. In training, on processors with AVX-512 BF16, weights that
    /// are not trained, and what they are multiplied with; also queries, keys, values and their weights beneath attention, except
    /// Landmark's. About as PyTorch does under bfloat16, and faster than `Auto`. With AMX, training is that of `Auto`.
    Bf16,
    /// Activations to 8 bits for quantized weights, in batches of any size, except in AMX tiles, which keep 16: the fastest,
    /// and what the programs take by default where text is written. Blocks that are rounded together are of 32 values, where
    /// libllama has 256 for K-quants. Not in training.
    Int8,
}

impl Math {
    /// All of them.
    pub const ALL: [Math; 4] = [Math::Auto, Math::F32, Math::Bf16, Math::Int8];

    /// The name typed, and shown in reports.
    pub fn name(self) -> &'static str {
        match self {
            Math::Auto => "auto",
            Math::F32 => "f32",
            Math::Bf16 => "bf16",
            Math::Int8 => "int8",
        }
    }
}

impl fmt::Display for Math {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Math {
    type Err = String;

    fn from_str(text: &str) -> Result<Math, String> {
        let names = || Math::ALL.map(Math::name).join(", ");
        let found = Math::ALL.into_iter().find(|math| math.name() == text);
        found.ok_or_else(|| format!("math '{}': expected one of {}", text.escape_debug(), names()))
    }
}
