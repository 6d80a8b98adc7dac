//! Rows of quantized weights as whole numbers of 16 bits: each block of 32 has a factor, and each half of it a number that
//! is added. Nothing is rounded: `factor * number + added` is what the type says, but for the order of roundings of floats.

use gguf::DType;

use super::BLOCK;

/// A part of a row as whole numbers.
pub(super) struct Numbers<'a> {
    /// Values of the part, one per element, none larger than 4096 in size.
    pub(super) values: &'a mut [i16],
    /// One for each [`BLOCK`] of them.
    pub(super) factors: &'a mut [f32],
    /// Two for each block; 0 for types that add nothing.
    pub(super) added: &'a mut [f32],
}

/// Reads whole blocks.
///
/// # Safety
/// The processor has AVX2.
pub(super) unsafe fn read(dtype: DType, bytes: &[u8], to: Numbers<'_>) {
    let (block, n_bytes) = (dtype.block_size(), dtype.block_bytes());
    let n = bytes.len() / n_bytes * block;
    assert!(bytes.len().is_multiple_of(n_bytes) && to.values.len() == n);
    assert!(to.factors.len() == n / BLOCK && to.added.len() == n / BLOCK * 2);
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the caller's promise.
    unsafe {
        crate::codes::with_codes!(dtype, read_codes, [], (bytes, to))
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,f16c")]
fn read_codes<T: crate::codes::x86::Codes>(bytes: &[u8], to: Numbers<'_>) {
    use std::arch::x86_64::*;

    let offset = _mm256_set1_epi8(const { crate::codes::offset(T::DTYPE) });
    let parts = to.values.as_chunks_mut::<BLOCK>().0.chunks_exact_mut(T::PARTS);
    let heads = to.factors.chunks_exact_mut(T::PARTS).zip(to.added.chunks_exact_mut(2 * T::PARTS));
    for ((b, parts), (factors, added)) in T::blocks(bytes).iter().zip(parts).zip(heads) {
        let heads = T::heads(b);
        factors.fill(heads.factor);
        let of = |part: usize, half: usize| if T::HALVES { 2 * part + half } else { part };
        for (i, added) in added.iter_mut().enumerate() {
            *added = heads.added * f32::from(heads.times[of(i / 2, i % 2)]);
        }
        for (i, part) in parts.iter_mut().enumerate() {
            // SAFETY: this function has AVX2.
            let codes = unsafe { T::codes(b, i) };
            let codes = _mm256_sub_epi8(codes, offset);
            let halves = [_mm256_castsi256_si128(codes), _mm256_extracti128_si256::<1>(codes)];
            for (half, (part, codes)) in part.as_chunks_mut::<16>().0.iter_mut().zip(halves).enumerate() {
                let mut numbers = _mm256_cvtepi8_epi16(codes);
                if T::PARTS > 1 {
                    let factor = i16::from(heads.factors[of(i, half)]);
                    numbers = _mm256_mullo_epi16(numbers, _mm256_set1_epi16(factor));
                }
                // SAFETY: 16 numbers are written to 16.
                unsafe { _mm256_storeu_si256(part.as_mut_ptr().cast(), numbers) }
            }
        }
    }
}
