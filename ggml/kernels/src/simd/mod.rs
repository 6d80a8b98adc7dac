//! Registers of either width, and the instruction sets that the integer loops are compiled for. The program detects at
//! run time which of them the processor has.

// Other processors have none of the sets.
#![cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]

#[cfg(target_arch = "x86_64")]
pub(crate) mod lanes;

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
                Instructions::Avx2 => true,
                Instructions::AvxVnni => is_x86_feature_detected!("avxvnni"),
                Instructions::Avx512 => {
                    is_x86_feature_detected!("avx512f")
                        && is_x86_feature_detected!("avx512bw")
                        && is_x86_feature_detected!("avx512vnni")
                }
            }
        }
        #[cfg(not(target_arch = "x86_64"))]
        false
    }
}
