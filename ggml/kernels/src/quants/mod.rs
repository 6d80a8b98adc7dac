//! Blocks of quantized weights as codes, which are small integers, one file for each format. A weight is a code minus the
//! format's offset, times a factor, and for some formats plus a number.

// Only x86-64 has products that read them.
#![cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]

use gguf::DType;

use crate::dequantize::Convert;
use crate::simd::Instructions;

mod bytes;
#[cfg(target_arch = "x86_64")]
mod convert;
pub(crate) mod format;
pub(crate) mod iq4_nl;
pub(crate) mod iq4_xs;
pub(crate) mod mxfp4;
pub(crate) mod q2_k;
pub(crate) mod q3_k;
pub(crate) mod q4_0;
pub(crate) mod q4_1;
pub(crate) mod q4_k;
pub(crate) mod q5_0;
pub(crate) mod q5_1;
pub(crate) mod q5_k;
pub(crate) mod q6_k;
pub(crate) mod q8_0;

/// The types whose weights are read as codes, and the format of each. The first argument is `$`, which the macro that calls a
/// function for a format needs.
macro_rules! formats {
    ($d:tt $($dtype:ident: $format:ident::$name:ident;)*) => {
        /// The types whose weights are read as codes.
        pub const TYPES: &[DType] = &[$(DType::$dtype),*];

        /// Calls a function for the format of one of the [`TYPES`].
        macro_rules! with_format {
            ($d dtype:expr, $d ($d f:ident)::+, $d args:tt) => {
                match $d dtype {
                    $(DType::$dtype => $d ($d f)::+::<$crate::quants::$format::$name> $d args,)*
                    other => unreachable!("{other} is not read as codes"),
                }
            };
        }
    };
}

formats! { $
    Q4_0: q4_0::Q4_0;
    Q4_1: q4_1::Q4_1;
    Q5_0: q5_0::Q5_0;
    Q5_1: q5_1::Q5_1;
    Q8_0: q8_0::Q8_0;
    IQ4_NL: iq4_nl::Iq4Nl;
    IQ4_XS: iq4_xs::Iq4Xs;
    MXFP4: mxfp4::Mxfp4;
    Q2_K: q2_k::Q2K;
    Q3_K: q3_k::Q3K;
    Q4_K: q4_k::Q4K;
    Q5_K: q5_k::Q5K;
    Q6_K: q6_k::Q6K;
}
#[cfg(target_arch = "x86_64")]
pub(crate) use with_format;

/// Returns true if this processor can read codes and multiply with them.
pub fn available() -> bool {
    Instructions::all().next().is_some()
}

/// The conversion of rows of whole blocks to floats, where it is faster than ggml's: for the [`TYPES`], on processors that can read
/// them.
pub fn converter(dtype: DType) -> Option<Convert> {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the processor has the instructions.
    return Instructions::all()
        .next()
        .filter(|_| TYPES.contains(&dtype))
        .map(|with| unsafe { convert::by(with, dtype) });
    #[cfg(not(target_arch = "x86_64"))]
    None
}

/// What products need to know about a format ([`format::Format`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Facts {
    pub(crate) adds: bool,
    pub(crate) signed: bool,
    pub(crate) offset: i8,
    pub(crate) halves: bool,
}

/// # Panics
/// For a type that is not one of the [`TYPES`].
pub(crate) fn facts(dtype: DType) -> Facts {
    fn of<T: format::Format>() -> Facts {
        Facts { adds: T::ADDS, signed: T::SIGNED, offset: T::OFFSET, halves: T::HALVES }
    }
    with_format!(dtype, of, ())
}

#[cfg(test)]
pub(crate) mod tests;
