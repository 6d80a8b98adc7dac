//! Blocks as floats, one block in each lane. All that is multiplied is exact in floats, so the results are bit for bit those of
//! ggml's own loops.

use std::array::from_fn;

use gguf::DType;

use super::format::{Blocks, Format};
use super::with_format;
use crate::dequantize::Convert;
use crate::simd::lanes::{Lanes, Narrow, Wide};
use crate::simd::{Instructions, MOST};

/// Converts rows of one of the [`TYPES`](super::TYPES) by these instructions.
///
/// # Safety
/// The processor has them.
pub(super) unsafe fn by(with: Instructions, dtype: DType) -> Convert {
    match with {
        Instructions::Avx2 | Instructions::AvxVnni => with_format!(dtype, narrow, ()),
        Instructions::Avx512 => with_format!(dtype, wide, ()),
    }
}

macro_rules! compiled_for {
    ($($name:ident, $lanes:ident, $features:literal;)*) => {$(
        fn $name<T: Format>() -> Convert {
            #[target_feature(enable = $features)]
            fn compiled<T: Format>(bytes: &[u8], out: &mut [f32]) {
                // SAFETY: the processor has what this function is compiled for.
                convert::<$lanes, T>(unsafe { $lanes::new() }, bytes, out);
            }
            // SAFETY: `by` is called where the processor has the instructions.
            |bytes, out| unsafe { compiled::<T>(bytes, out) }
        }
    )*};
}

compiled_for!(
    narrow, Narrow, "avx2,fma,f16c";
    wide, Wide, "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni";
);

#[inline(always)]
fn convert<L: Lanes, T: Format>(l: L, bytes: &[u8], out: &mut [f32]) {
    let (blocks, width) = (T::blocks(bytes), T::DTYPE.block_size());
    assert!(bytes.len() == size_of_val(blocks) && out.len() == blocks.len() * width);
    let offset = l.splat(f32::from(T::OFFSET));
    for (blocks, out) in blocks.chunks(L::N).zip(out.chunks_mut(L::N * width)) {
        // Lanes after the last block have that one again, and write the same.
        let place = |lane: usize| lane.min(blocks.len() - 1);
        let each: Blocks<'_, T> = from_fn(|lane| &blocks[place(lane)]);
        let starts: [*mut f32; MOST] = from_fn(|lane| out[place(lane) * width..].as_mut_ptr());
        let [factors, added] = T::factors(l, each);
        let shared = T::shared(l, each);
        for group in 0..T::GROUPS {
            let bytes = T::group(l, each, group);
            for i in 0..T::IN_GROUP {
                let part = T::part(group, i);
                let codes = T::part_codes(l, &shared, &bytes, group, i);
                for (quad, codes) in codes[..T::QUADS].iter().enumerate() {
                    let mut four = [l.none(); 4];
                    for (byte, x) in four.iter_mut().enumerate() {
                        let code = l.minus(l.floats(l.signed_byte(*codes, byte)), offset);
                        *x = if T::ADDS {
                            l.mul_add(code, factors[part], added[part])
                        } else {
                            l.times(code, factors[part])
                        };
                    }
                    // SAFETY: every lane's block has so many floats, in `out`.
                    unsafe { l.store_fours(four, starts, 4 * (part * T::QUADS + quad)) };
                }
            }
        }
    }
}
