//! Chooses the kernel that multiplies a weight with activations; no other file has thresholds. The choice depends on
//! the weight's type, the number of tokens, the purpose, the requested precision, and the processor; `products` builds
//! it. `ropewalk inspect` prints it, and `benches/matmul.rs` measures whether it is right.
//!
//! On the CPU, ggml's products of quantized weights round activations to 8 bits and are slow in large batches. Without
//! AMX tiles, our own products multiply 16-bit integers (`int16`). AVX2 and VNNI do twice as many of these as of
//! floats in the same time. Weights stay exact and activations keep 15 bits, so perplexity can differ slightly from
//! libllama's.
//!
//! Types without integer codes are multiplied by ggml. BF16, and F16 batches, use our own kernel (`half_floats`,
//! AVX-512), or are dequantized first, from the batch size in `dequantize_from`. F32 is multiplied by ggml, and in
//! large batches by our own kernel, as are experts in floats; in training, by AMX tiles if there are any.

use std::fmt;

use ggml::backend::Device;
use ggml::matmul::{Kernel, INTEGER_TYPES};
use ggml::DType;

use crate::math::Math;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Choice {
    /// The type that the weight is dequantized to first.
    pub dequantize: Option<DType>,
    pub kernel: Kernel,
}

impl Choice {
    /// Returns true if weights that take so many bytes as F32 are multiplied as one.
    pub(super) fn joins(self, bytes: usize) -> bool {
        self.dequantize.is_some() && bytes <= JOINED_MAX
    }
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.dequantize {
            Some(to) => write!(f, "{} (weight as {to})", self.kernel),
            None => self.kernel.fmt(f),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Pass {
    /// A projection in a graph that only runs forwards.
    Inference,
    /// Experts of a mixture in such a graph.
    Experts,
    /// A projection in a graph that is run backwards.
    Training,
    /// Experts of a mixture in such a graph.
    TrainingExperts,
}

impl Pass {
    pub const ALL: [Pass; 4] = [Pass::Inference, Pass::Experts, Pass::Training, Pass::TrainingExperts];

    pub fn of_experts(self) -> bool {
        matches!(self, Pass::Experts | Pass::TrainingExperts)
    }

    pub fn trains(self) -> bool {
        matches!(self, Pass::Training | Pass::TrainingExperts)
    }

    pub fn name(self) -> &'static str {
        ["inference", "training"][usize::from(self.trains())]
    }
}

/// The instructions that kernels need.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Isa {
    /// AVX2, FMA and F16C: products in integers, and fast products of floats in ggml.
    pub avx2: bool,
    /// AVX-512 F and BW: weights in half precision.
    pub avx512: bool,
    /// AVX-512 BF16: weights in bfloat16.
    pub bf16: bool,
    /// AMX tiles of bfloat16.
    pub amx: bool,
}

impl Isa {
    /// Checks the environment variable `ROPEWALK_INSTRUCTIONS`, which limits what [`Isa::detect`] finds.
    ///
    /// # Errors
    /// If its value is unknown, a text that names those that are known. It limits nothing then.
    pub fn check_limit() -> Result<(), String> {
        ggml::machine::instruction_level().map(drop)
    }

    /// Detects the instruction sets of this processor that kernels use.
    pub fn detect() -> Isa {
        Isa {
            avx2: Kernel::Int8.available(DType::Q8_0),
            avx512: Kernel::HalfFloats.available(DType::F16),
            bf16: Kernel::HalfFloats.available(DType::BF16),
            amx: Kernel::Bf16x3.available(DType::BF16),
        }
    }
}

impl fmt::Display for Isa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all =
            [(self.avx2, "AVX2"), (self.avx512, "AVX-512"), (self.bf16, "AVX-512 BF16"), (self.amx, "AMX")];
        let names: Vec<&str> = all.iter().filter(|(has, _)| *has).map(|(_, name)| *name).collect();
        f.write_str(&if names.is_empty() { "baseline".to_owned() } else { names.join(", ") })
    }
}

/// Tokens from which on AMX tiles are faster than ggml's products, measured on Sapphire Rapids. K-quants and i-quants take longer to
/// convert, and ggml has fast products of theirs. Tiles are right to 16 bits of each float: more than ggml keeps of what it
/// multiplies with these types, and less than F32 has, which stays as it is.
fn amx_from(dtype: DType) -> Option<usize> {
    match dtype {
        DType::F32 => None,
        DType::Q4_1 | DType::Q5_1 | DType::Q8_0 => Some(16),
        DType::Q4_0 | DType::Q5_0 | DType::Q6_K | DType::F16 | DType::BF16 => Some(32),
        _ => dtype.can_dequantize().then_some(64),
    }
}

/// Tokens from which on a product is faster with the weight dequantized to F32 first, measured on Sapphire Rapids. Quantized
/// types have products in integers, or kernels in ggml that nothing beats.
fn dequantize_from(dtype: DType) -> Option<usize> {
    match dtype {
        DType::F16 => Some(64),
        DType::BF16 => Some(128),
        _ => None,
    }
}

/// Tokens from which on our products of weights in 16-bit floats are faster than ggml's (Zen 5). Those in half precision are
/// converted first. With one token, both wait for memory, but ggml's is slow if it was not compiled for AVX-512 BF16.
fn half_floats_from(weight: DType) -> usize {
    if weight == DType::BF16 {
        1
    } else {
        96
    }
}

/// Tokens from which on our products of floats of 32 bits are faster than ggml's, which has only the instructions that the build is
/// for: 1.2 to 1.5 times with AVX2 and 512 tokens (Zen 3), and with AVX-512 1.6 with 64 and 2.2 with 512 (a Xeon with AMX).
fn f32_from(isa: Isa) -> usize {
    if isa.avx512 {
        64
    } else {
        128
    }
}

/// Tokens from which on experts in floats are faster as floats of 32 bits than by ggml, with AVX-512: 1.5 times with 64 tokens of
/// which each chooses 2 experts of 8, 2.7 to 3.7 with 512 (a Xeon with AMX).
const F32_EXPERTS_FROM: usize = 64;

/// Tokens from which on products of floats are in AMX tiles in training, off by at most 3/65536 of each product: 1.5 to 2.5
/// times as fast.
const F32_TILES_FROM: usize = 32;

/// Tokens up to which [`Math::Auto`] computes products in 8-bit integers. In batches of so few converting weights to 16 bits takes
/// as long as multiplying them, and 8 bits are two to three times as fast (AVX-512 with VNNI, Zen 5); in larger ones 15 bits cost
/// half of the speed.
const INT8_UP_TO: usize = 32;

/// Smallest batch in which a separate node quantizes activations to 8 bits for several products. With fewer tokens, each
/// product quantizes them faster than the threads can synchronize once more.
const INT8_SHARED_FROM: usize = 16;

/// Dequantized weights are joined into one product up to this many bytes: beyond, the memory counts more than the saved op.
const JOINED_MAX: usize = 4 << 20;

/// No choice changes beyond so many tokens.
pub const LAST_THRESHOLD: usize = 128;

/// Chooses kernels for a device and a precision.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MatmulPolicy {
    /// True if kernels other than ggml's can be chosen, which is the case on the CPU.
    pub custom_ops: bool,
    pub math: Math,
    pub isa: Isa,
}

impl MatmulPolicy {
    /// For a device, or for any device if `portable`.
    pub fn new(device: Device, portable: bool, math: Math) -> MatmulPolicy {
        MatmulPolicy { custom_ops: device.is_cpu() && !portable, math, isa: Isa::detect() }
    }

    /// How a weight of this type is multiplied with `n_tokens` rows of activations.
    pub fn choose(&self, weight: DType, n_tokens: usize, pass: Pass) -> Choice {
        let alone = |kernel| Choice { dequantize: None, kernel };
        match pass {
            _ if !self.custom_ops => self.portable(weight, pass),
            Pass::Experts => alone(self.experts(weight, n_tokens)),
            Pass::TrainingExperts => alone(Kernel::F32),
            Pass::Training => self.training(weight, n_tokens),
            Pass::Inference => self.inference(weight, n_tokens),
        }
    }

    /// All choices for a type: each with the number of tokens from which on it holds, the first of them 1.
    pub fn choices(&self, weight: DType, pass: Pass) -> Vec<(usize, Choice)> {
        let mut all: Vec<(usize, Choice)> = Vec::new();
        for n_tokens in 1..=LAST_THRESHOLD {
            let choice = self.choose(weight, n_tokens, pass);
            if all.last().is_none_or(|(_, last)| *last != choice) {
                all.push((n_tokens, choice));
            }
        }
        all
    }

    /// Returns true if gradients are computed with factors rounded to bfloat16: weights that are not trained, and
    /// attention's.
    pub fn trains_in_bf16(&self) -> bool {
        self.custom_ops && self.math == Math::Bf16 && self.isa.bf16 && !self.isa.amx
    }

    /// The kernel of all products of attention in training, on the CPU.
    pub fn training_attention(&self) -> Kernel {
        match self.trains_in_bf16() {
            true => Kernel::HalfFloats,
            false => self.training(DType::F32, usize::MAX).kernel,
        }
    }

    /// Returns true if [`Math::Bf16`] changes training: by that rounding, or by AMX tiles, which are as fast and
    /// round less.
    pub fn has_bf16_training(&self) -> bool {
        self.trains_in_bf16() || self.custom_ops && self.isa.amx
    }

    /// Training multiplies floats: ggml's products of quantized weights round activations to 8 bits, which turns gradients.
    fn portable(&self, weight: DType, pass: Pass) -> Choice {
        let dequantizes = pass.trains() && weight != DType::F32;
        Choice { dequantize: dequantizes.then_some(DType::F32), kernel: Kernel::Ggml }
    }

    fn experts(&self, weight: DType, n_tokens: usize) -> Kernel {
        let floats = matches!(weight, DType::F32 | DType::F16 | DType::BF16);
        match self.math {
            Math::F32 | Math::Bf16 => Kernel::F32,
            _ if floats && self.isa.avx512 && n_tokens >= F32_EXPERTS_FROM => Kernel::F32,
            Math::Auto | Math::Int8 if self.has_integers(weight) => Kernel::Int8,
            Math::Auto | Math::Int8 => Kernel::Ggml,
        }
    }

    fn training(&self, weight: DType, n_tokens: usize) -> Choice {
        if weight == DType::F32 && self.math != Math::F32 && self.isa.amx && n_tokens >= F32_TILES_FROM {
            return Choice { dequantize: None, kernel: Kernel::F32Tiles };
        }
        if self.math != Math::F32 && self.in_tiles(weight, n_tokens) {
            return Choice { dequantize: None, kernel: Kernel::Bf16x3 };
        }
        let (to, kernel) = match self.trains_in_bf16() && weight != DType::F32 {
            true => (DType::BF16, Kernel::HalfFloats),
            false => (DType::F32, Kernel::F32),
        };
        Choice { dequantize: (weight != DType::F32).then_some(to), kernel }
    }

    fn inference(&self, weight: DType, n_tokens: usize) -> Choice {
        let kernel = self.undequantized(weight, n_tokens);
        let to = if self.math == Math::Bf16 { DType::BF16 } else { DType::F32 };
        let wanted = match self.math {
            Math::Auto | Math::Int8 => {
                self.isa.avx2 && dequantize_from(weight).is_some_and(|from| n_tokens >= from)
            }
            Math::F32 | Math::Bf16 => weight.can_dequantize(),
        };
        match kernel {
            Kernel::Ggml if wanted && weight != to => {
                Choice { dequantize: Some(to), kernel: self.undequantized(to, n_tokens) }
            }
            kernel => Choice { dequantize: None, kernel },
        }
    }

    /// The best kernel for the weight as it is.
    fn undequantized(&self, weight: DType, n_tokens: usize) -> Kernel {
        let quantizes = matches!(self.math, Math::Auto | Math::Int8);
        let half_floats = match weight {
            DType::F16 => self.isa.avx512 && !self.isa.amx,
            DType::BF16 => self.isa.bf16,
            _ => false,
        };
        let floats = weight == DType::F32 && self.math != Math::Bf16;
        if floats && self.isa.avx2 && n_tokens >= f32_from(self.isa) {
            Kernel::F32
        } else if quantizes && self.in_tiles(weight, n_tokens) {
            Kernel::Bf16x3
        } else if half_floats && self.math != Math::F32 && n_tokens >= half_floats_from(weight) {
            Kernel::HalfFloats
        } else if !(quantizes && self.has_integers(weight)) {
            Kernel::Ggml
        } else if self.math == Math::Auto && n_tokens > INT8_UP_TO {
            Kernel::Int16
        } else if n_tokens >= INT8_SHARED_FROM {
            Kernel::Int8Shared
        } else {
            Kernel::Int8
        }
    }

    fn in_tiles(&self, weight: DType, n_tokens: usize) -> bool {
        self.isa.amx && amx_from(weight).is_some_and(|from| n_tokens >= from)
    }

    fn has_integers(&self, weight: DType) -> bool {
        self.isa.avx2 && INTEGER_TYPES.contains(&weight)
    }
}
