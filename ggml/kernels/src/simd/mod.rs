//! Registers of each width, and the instruction sets that loops are compiled for. The program detects at run time which
//! of them the processor has.

// Other processors have none of the sets.
#![cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]

mod floats;
pub(crate) mod lanes;
pub mod level;

use std::sync::OnceLock;

pub(crate) use floats::{fma, FloatLanes, Plain, MOST};
#[cfg(target_arch = "x86_64")]
use lanes::{Lanes as _, Narrow, Wide};
#[cfg(target_arch = "x86_64")]
pub(crate) use level::{allows, Level};

/// Instructions for products of integers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Instructions {
    /// AVX2 with F16C and fused multiply-adds of floats.
    Avx2,
    /// These, and VNNI without AVX-512.
    AvxVnni,
    /// AVX-512 with VNNI.
    Avx512,
}

impl Instructions {
    /// All that this processor has, the best one first.
    pub(crate) fn all() -> impl Iterator<Item = Instructions> {
        [Instructions::Avx512, Instructions::AvxVnni, Instructions::Avx2].into_iter().filter(|i| i.are_here())
    }

    /// The best ones.
    ///
    /// # Panics
    /// Where the processor has none.
    pub(crate) fn best() -> Instructions {
        Instructions::all().next().expect("the caller has asked whether there are instructions")
    }

    fn are_here(self) -> bool {
        #[cfg(target_arch = "x86_64")]
        {
            let avx2 = is_x86_feature_detected!("avx2")
                && is_x86_feature_detected!("fma")
                && is_x86_feature_detected!("f16c");
            avx2 && match self {
                Instructions::Avx2 => allows(Level::Avx2),
                Instructions::AvxVnni => allows(Level::AvxVnni) && is_x86_feature_detected!("avxvnni"),
                Instructions::Avx512 => {
                    allows(Level::Avx512)
                        && is_x86_feature_detected!("avx512f")
                        && is_x86_feature_detected!("avx512bw")
                        && is_x86_feature_detected!("avx512dq")
                        && is_x86_feature_detected!("avx512vl")
                        && is_x86_feature_detected!("avx512vnni")
                }
            }
        }
        #[cfg(not(target_arch = "x86_64"))]
        false
    }
}

/// Registers of floats that this processor has.
#[derive(Clone, Copy)]
pub(crate) enum Registers {
    Plain(Plain),
    #[cfg(target_arch = "x86_64")]
    Narrow(Narrow),
    #[cfg(target_arch = "x86_64")]
    Wide(Wide),
}

impl Registers {
    /// All of them, the widest first.
    pub(crate) fn all() -> Vec<Registers> {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the processor has the instructions.
        let of = |instructions| unsafe {
            match instructions {
                Instructions::Avx512 => Registers::Wide(Wide::new()),
                Instructions::AvxVnni | Instructions::Avx2 => Registers::Narrow(Narrow::new()),
            }
        };
        #[cfg(not(target_arch = "x86_64"))]
        let of = |_| Registers::Plain(Plain);
        Instructions::all().map(of).chain([Registers::Plain(Plain)]).collect()
    }

    /// The widest.
    #[inline]
    pub(crate) fn best() -> Registers {
        static BEST: OnceLock<Registers> = OnceLock::new();
        *BEST.get_or_init(|| Registers::all()[0])
    }
}

/// An expression in terms of [`FloatLanes`], for the registers given.
macro_rules! with_registers {
    ($registers:expr, $s:ident => $expression:expr) => {
        match $registers {
            $crate::simd::Registers::Plain($s) => $expression,
            #[cfg(target_arch = "x86_64")]
            $crate::simd::Registers::Narrow($s) => $expression,
            #[cfg(target_arch = "x86_64")]
            $crate::simd::Registers::Wide($s) => $expression,
        }
    };
}
pub(crate) use with_registers;
