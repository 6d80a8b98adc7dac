//! Blocks of quantized weights as codes, small whole numbers, and what turns these into weights: a code less the type's offset,
//! times a factor, and for some types a number added. 32 codes are read at a time.

/// The types whose weights are read as codes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q8_0,
    Iq4Nl,
    Iq4Xs,
    Q2K,
    Q3K,
    Q4K,
    Q5K,
    Q6K,
}

impl Kind {
    #[cfg(test)]
    pub(crate) const ALL: [Kind; 12] = [
        Kind::Q4_0,
        Kind::Q4_1,
        Kind::Q5_0,
        Kind::Q5_1,
        Kind::Q8_0,
        Kind::Iq4Nl,
        Kind::Iq4Xs,
        Kind::Q2K,
        Kind::Q3K,
        Kind::Q4K,
        Kind::Q5K,
        Kind::Q6K,
    ];

    /// Elements of a block of the type, and its bytes.
    pub fn block(self) -> (usize, usize) {
        match self {
            Kind::Q4_0 | Kind::Iq4Nl => (32, 18),
            Kind::Q4_1 => (32, 20),
            Kind::Q5_0 => (32, 22),
            Kind::Q5_1 => (32, 24),
            Kind::Q8_0 => (32, 34),
            Kind::Iq4Xs => (256, 136),
            Kind::Q2K => (256, 84),
            Kind::Q3K => (256, 110),
            Kind::Q4K => (256, 144),
            Kind::Q5K => (256, 176),
            Kind::Q6K => (256, 210),
        }
    }

    /// Returns true if the type adds an offset to the products of factors and codes.
    pub(crate) const fn adds(self) -> bool {
        matches!(self, Kind::Q4_1 | Kind::Q5_1 | Kind::Q2K | Kind::Q4K | Kind::Q5K)
    }

    /// The code that stands for 0, in types to which nothing is added. Codes below it are read as they are: signed ones
    /// have an offset of 0.
    pub(crate) const fn offset(self) -> i8 {
        match self {
            Kind::Q4_0 => 8,
            Kind::Q5_0 => 16,
            Kind::Q6K => 32,
            Kind::Q3K => 4,
            _ => 0,
        }
    }

    /// Returns true if factors are for 16 weights each, false if for 32.
    pub(crate) const fn halves(self) -> bool {
        matches!(self, Kind::Q2K | Kind::Q3K | Kind::Q6K)
    }

    /// Returns true if codes have a sign.
    pub(crate) const fn signed(self) -> bool {
        matches!(self, Kind::Q8_0 | Kind::Iq4Nl | Kind::Iq4Xs)
    }
}

/// Returns true if this processor can read codes and multiply with them: it has AVX2, F16C, and FMA.
pub(crate) fn has_avx2() -> bool {
    #[cfg(target_arch = "x86_64")]
    {
        is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("fma")
            && is_x86_feature_detected!("f16c")
    }
    #[cfg(not(target_arch = "x86_64"))]
    false
}

#[cfg(target_arch = "x86_64")]
pub(crate) mod lanes;
#[cfg(target_arch = "x86_64")]
mod readers;
#[cfg(target_arch = "x86_64")]
pub(crate) mod rows;
#[cfg(target_arch = "x86_64")]
pub(crate) mod x86;

#[cfg(test)]
pub(crate) mod tests;
