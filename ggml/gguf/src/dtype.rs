//! Element types of tensors: names, numbers in files, block and row sizes.
#![forbid(unsafe_code)]

#[cfg(target_endian = "big")]
compile_error!("tensor data in GGUF files is little-endian and is used in place");

/// The types: numbers in files, names, elements and bytes of a block (`ggml-common.h`; a test compares them with the
/// library's).
macro_rules! types {
    ($($name:ident = $raw:literal $text:literal $block:literal $bytes:literal;)*) => {
        /// A ggml tensor element type.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[allow(non_camel_case_types, missing_docs)]
        #[repr(u32)]
        pub enum DType {
            $($name = $raw,)*
        }

        impl DType {
            /// Every type that the pinned version of ggml knows.
            pub const ALL: &'static [DType] = &[$(DType::$name),*];

            /// Name, elements in a block, bytes of a block.
            const fn facts(self) -> (&'static str, usize, usize) {
                match self {
                    $(DType::$name => ($text, $block, $bytes),)*
                }
            }
        }
    };
}

types! {
    F32 = 0 "f32" 1 4;
    F16 = 1 "f16" 1 2;
    Q4_0 = 2 "q4_0" 32 18;
    Q4_1 = 3 "q4_1" 32 20;
    Q5_0 = 6 "q5_0" 32 22;
    Q5_1 = 7 "q5_1" 32 24;
    Q8_0 = 8 "q8_0" 32 34;
    Q8_1 = 9 "q8_1" 32 36;
    Q2_K = 10 "q2_k" 256 84;
    Q3_K = 11 "q3_k" 256 110;
    Q4_K = 12 "q4_k" 256 144;
    Q5_K = 13 "q5_k" 256 176;
    Q6_K = 14 "q6_k" 256 210;
    Q8_K = 15 "q8_k" 256 292;
    IQ2_XXS = 16 "iq2_xxs" 256 66;
    IQ2_XS = 17 "iq2_xs" 256 74;
    IQ3_XXS = 18 "iq3_xxs" 256 98;
    IQ1_S = 19 "iq1_s" 256 50;
    IQ4_NL = 20 "iq4_nl" 32 18;
    IQ3_S = 21 "iq3_s" 256 110;
    IQ2_S = 22 "iq2_s" 256 82;
    IQ4_XS = 23 "iq4_xs" 256 136;
    I8 = 24 "i8" 1 1;
    I16 = 25 "i16" 1 2;
    I32 = 26 "i32" 1 4;
    I64 = 27 "i64" 1 8;
    F64 = 28 "f64" 1 8;
    IQ1_M = 29 "iq1_m" 256 56;
    BF16 = 30 "bf16" 1 2;
    TQ1_0 = 34 "tq1_0" 256 54;
    TQ2_0 = 35 "tq2_0" 256 66;
    MXFP4 = 39 "mxfp4" 32 17;
    NVFP4 = 40 "nvfp4" 64 36;
    Q1_0 = 41 "q1_0" 128 18;
    Q2_0 = 42 "q2_0" 64 18;
}

/// Largest magnitude a type with half-precision values or block scales can hold.
const F16_MAX: f32 = 65504.0;
/// Largest finite bfloat16.
const BF16_MAX: f32 = f32::from_bits(0x7f7f_0000);
/// Largest product of an E4M3 scale (448) and an E2M1 value (6).
const NVFP4_MAX: f32 = 2688.0;

impl DType {
    /// The type with this number in a GGUF file.
    pub fn from_raw(raw: u32) -> Option<DType> {
        Self::ALL.iter().copied().find(|t| t.raw() == raw)
    }
    /// The number in a GGUF file.
    pub fn raw(self) -> u32 {
        self as u32
    }
    /// Lower-case name, such as `q4_k`.
    pub fn name(self) -> &'static str {
        self.facts().0
    }
    /// The type of this name, in either case.
    pub fn parse(name: &str) -> Option<DType> {
        Self::ALL.iter().copied().find(|t| t.name().eq_ignore_ascii_case(name))
    }
    /// Elements in one block.
    pub const fn block_size(self) -> usize {
        self.facts().1
    }
    /// Bytes of one block.
    pub const fn block_bytes(self) -> usize {
        self.facts().2
    }
    /// Bytes of a row of `n` elements; `None` when `n` is not whole blocks or the product overflows.
    pub fn row_bytes(self, n: usize) -> Option<usize> {
        if !n.is_multiple_of(self.block_size()) {
            return None;
        }
        (n / self.block_size()).checked_mul(self.block_bytes())
    }
    /// True for block-quantised types.
    pub fn is_quantized(self) -> bool {
        self.block_size() > 1
    }
    /// True when ggml converts it to f32.
    pub fn can_dequantize(self) -> bool {
        use DType::*;
        !matches!(self, I8 | I16 | I32 | I64 | F64 | Q8_1 | Q8_K)
    }
    /// True when quantizing to it needs an importance matrix, which nothing here computes
    /// (the list of llama-quantize, which is longer than `ggml_quantize_requires_imatrix`).
    pub fn needs_importance(self) -> bool {
        use DType::*;
        matches!(self, IQ1_S | IQ1_M | IQ2_XXS | IQ2_XS | IQ2_S)
    }
    /// True when ggml converts f32 to it without an importance matrix.
    pub fn can_quantize(self) -> bool {
        self.can_dequantize() && !self.needs_importance()
    }
    /// Largest magnitude a value of this type, or the scale of a block of it, can hold.
    pub fn max_abs(self) -> f32 {
        match self {
            DType::F32 => f32::MAX,
            DType::BF16 => BF16_MAX,
            DType::NVFP4 => NVFP4_MAX,
            _ => F16_MAX,
        }
    }
}

impl std::fmt::Display for DType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.name())
    }
}
