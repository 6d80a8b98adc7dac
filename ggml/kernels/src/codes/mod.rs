//! Blocks of quantized weights as codes, which are small integers. A weight is a code minus the type's offset, times a
//! factor, and for some types plus a number.

use gguf::DType;

use crate::simd::Instructions;

/// The types whose weights are read as codes.
pub const TYPES: [DType; 12] = {
    use DType::*;
    [Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, IQ4_NL, IQ4_XS, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K]
};

/// Returns true if this processor can read codes and multiply with them.
pub fn available() -> bool {
    Instructions::all().next().is_some()
}

/// Returns true if the type adds an offset to the products of factors and codes.
pub(crate) const fn adds(dtype: DType) -> bool {
    matches!(dtype, DType::Q4_1 | DType::Q5_1 | DType::Q2_K | DType::Q4_K | DType::Q5_K)
}

/// The code that stands for 0, in types to which nothing is added. Codes below it are read as they are: signed ones have an
/// offset of 0.
pub(crate) const fn offset(dtype: DType) -> i8 {
    match dtype {
        DType::Q4_0 => 8,
        DType::Q5_0 => 16,
        DType::Q6_K => 32,
        DType::Q3_K => 4,
        _ => 0,
    }
}

/// Returns true if factors are for 16 weights each, false if for 32.
pub(crate) const fn halves(dtype: DType) -> bool {
    matches!(dtype, DType::Q2_K | DType::Q3_K | DType::Q6_K)
}

/// Returns true if codes have a sign.
pub(crate) const fn signed(dtype: DType) -> bool {
    matches!(dtype, DType::Q8_0 | DType::IQ4_NL | DType::IQ4_XS)
}

/// Calls a function for the reader of one of the [`TYPES`].
#[cfg(target_arch = "x86_64")]
macro_rules! with_codes {
    ($dtype:expr, $($f:ident)::+, $args:tt) => {
        match $dtype {
            DType::Q4_0 => $($f)::+::<$crate::codes::rows::Q4_0> $args,
            DType::Q4_1 => $($f)::+::<$crate::codes::rows::Q4_1> $args,
            DType::Q5_0 => $($f)::+::<$crate::codes::rows::Q5_0> $args,
            DType::Q5_1 => $($f)::+::<$crate::codes::rows::Q5_1> $args,
            DType::Q8_0 => $($f)::+::<$crate::codes::rows::Q8_0> $args,
            DType::IQ4_NL => $($f)::+::<$crate::codes::rows::Iq4Nl> $args,
            DType::IQ4_XS => $($f)::+::<$crate::codes::rows::Iq4Xs> $args,
            DType::Q2_K => $($f)::+::<$crate::codes::rows::Q2K> $args,
            DType::Q3_K => $($f)::+::<$crate::codes::rows::Q3K> $args,
            DType::Q4_K => $($f)::+::<$crate::codes::rows::Q4K> $args,
            DType::Q5_K => $($f)::+::<$crate::codes::rows::Q5K> $args,
            DType::Q6_K => $($f)::+::<$crate::codes::rows::Q6K> $args,
            other => unreachable!("{other} is not read as codes"),
        }
    };
}
#[cfg(target_arch = "x86_64")]
pub(crate) use with_codes;

#[cfg(target_arch = "x86_64")]
mod readers;
#[cfg(target_arch = "x86_64")]
pub(crate) mod rows;

#[cfg(test)]
pub(crate) mod tests;
