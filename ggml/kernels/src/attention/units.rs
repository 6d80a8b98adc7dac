//! Rows of keys and values read in place, 32 elements at a time, and their products with few queries.
//!
//! Keys and values of F16, Q8_0, and Q4_0 are converted in registers, once for all queries that share them; nothing is
//! copied.

use super::tile::KEYS;
use super::vector::{Vector, N};
use super::view::Format;

/// Elements of a unit: as many as there are in a block of the quantized types.
pub(super) const UNIT: usize = 32;
const VECTORS: usize = UNIT / N;
/// Queries whose sums, of four keys or of two units of values each, fit in registers.
pub(super) const QUERIES: usize = if N == 16 { 4 } else { 3 };

/// 32 elements of a row as they lie in memory.
pub(super) trait Unit: Copy {
    /// Returns true if rows in a format consist of these units.
    fn is(format: Format) -> bool;
    /// Elements from `i * N` on, as floats.
    fn load(&self, i: usize) -> Vector;
}

pub(super) type Floats = [f32; UNIT];
/// The bits of half-precision floats.
pub(super) type Halves = [u16; UNIT];

impl Unit for Floats {
    #[inline(always)]
    fn is(format: Format) -> bool {
        matches!(format, Format::F32)
    }
    #[inline(always)]
    fn load(&self, i: usize) -> Vector {
        Vector::load(&self.as_chunks().0[i])
    }
}

impl Unit for Halves {
    #[inline(always)]
    fn is(format: Format) -> bool {
        matches!(format, Format::F16)
    }
    #[inline(always)]
    fn load(&self, i: usize) -> Vector {
        Vector::of_halves(&self.as_chunks().0[i])
    }
}

/// ggml's `block_q8_0`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct Q8 {
    /// Half-precision scale.
    scale: [u8; 2],
    bytes: [u8; UNIT],
}

impl Unit for Q8 {
    #[inline(always)]
    fn is(format: Format) -> bool {
        matches!(format, Format::Q8_0)
    }
    #[inline(always)]
    fn load(&self, i: usize) -> Vector {
        Vector::of_bytes(&self.bytes.as_chunks().0[i]).times(scale(self.scale))
    }
}

/// ggml's `block_q4_0`: the lower halves of the bytes are the first 16 elements.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct Q4 {
    /// Half-precision scale.
    scale: [u8; 2],
    nibbles: [u8; UNIT / 2],
}

/// Values of the codes of [`Q4`].
const CODES: [f32; 16] = [-8., -7., -6., -5., -4., -3., -2., -1., 0., 1., 2., 3., 4., 5., 6., 7.];

impl Unit for Q4 {
    #[inline(always)]
    fn is(format: Format) -> bool {
        matches!(format, Format::Q4_0)
    }
    #[inline(always)]
    fn load(&self, i: usize) -> Vector {
        let codes = CODES.as_chunks::<N>().0;
        let scale = scale(self.scale);
        let scaled = std::array::from_fn(|i| Vector::load(&codes[i]).times(scale));
        let (bytes, half) = (self.nibbles.as_chunks().0, VECTORS / 2);
        if i < half {
            Vector::looked_up::<0>(scaled, &bytes[i])
        } else {
            Vector::looked_up::<4>(scaled, &bytes[i - half])
        }
    }
}

#[inline(always)]
fn scale(half: [u8; 2]) -> Vector {
    Vector::of_halves(&[u16::from_ne_bytes(half); N])
}

/// Asks for what lies so many bytes after `x`, if anything: rows of one head do not lie side by side, which hardware
/// prefetchers do not predict.
#[inline(always)]
fn prefetch<T>(x: &T, ahead: usize) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch has no effect that could be seen, wherever it points.
    unsafe {
        use std::arch::x86_64::{_mm_prefetch, _MM_HINT_T0};
        _mm_prefetch::<_MM_HINT_T0>((x as *const T).cast::<i8>().wrapping_add(ahead));
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (x, ahead);
}

#[inline]
pub(super) fn convert<U: Unit>(row: &[U], out: &mut [f32]) {
    for (unit, out) in row.iter().zip(out.as_chunks_mut::<UNIT>().0) {
        for (i, out) in out.as_chunks_mut().0.iter_mut().enumerate() {
            unit.load(i).store(out);
        }
    }
}

/// Scores of `n` keys with R queries. What is after them is undefined.
#[inline]
pub(super) fn scores<'x, U: Unit + 'x, const R: usize>(
    q: [&[Floats]; R],
    n: usize,
    key: impl Fn(usize) -> &'x [U],
    ahead: usize,
    out: &mut [[f32; KEYS]; R],
) {
    for from in (0..n).step_by(N) {
        let mut quads = [[Vector::splat(0.0); N / 4]; R];
        for part in 0..N / 4 {
            let keys: [&[U]; 4] = std::array::from_fn(|j| key((from + 4 * part + j).min(n - 1)));
            for (quads, sums) in quads.iter_mut().zip(dots(q, keys, ahead)) {
                quads[part] = Vector::quad(sums);
            }
        }
        for (out, quads) in out.iter_mut().zip(quads) {
            Vector::join(quads).store(&mut out.as_chunks_mut().0[from / N]);
        }
    }
}

/// Products of R queries with four keys, still to be summed over the elements of a vector.
#[inline(always)]
fn dots<U: Unit, const R: usize>(q: [&[Floats]; R], keys: [&[U]; 4], ahead: usize) -> [[Vector; 4]; R] {
    let n = keys[0].len();
    assert!(q.iter().all(|q| q.len() == n) && keys.iter().all(|k| k.len() == n));
    let mut sums = [[Vector::splat(0.0); 4]; R];
    for unit in 0..n {
        keys.iter().for_each(|key| prefetch(&key[unit], ahead));
        for i in 0..VECTORS {
            let q: [Vector; R] = std::array::from_fn(|r| Vector::load(&q[r][unit].as_chunks().0[i]));
            for (j, key) in keys.iter().enumerate() {
                let key = key[unit].load(i);
                for (sums, q) in sums.iter_mut().zip(q) {
                    sums[j] = sums[j].add_product(key, q);
                }
            }
        }
    }
    sums
}

/// Adds to R rows of sums C units of `n` weighted values; those that nobody sees are not there.
#[inline]
pub(super) fn weigh<'x, U: Unit + 'x, const R: usize, const C: usize>(
    weights: &[[f32; KEYS]; R],
    n: usize,
    value: impl Fn(usize) -> Option<&'x [U; C]>,
    ahead: usize,
    out: [&mut [Floats; C]; R],
) {
    let mut sums = [[[Vector::splat(0.0); VECTORS]; C]; R];
    for i in 0..n.min(KEYS) {
        let Some(value) = value(i) else { continue };
        for (c, unit) in value.iter().enumerate() {
            prefetch(unit, ahead);
            for l in 0..VECTORS {
                let v = unit.load(l);
                for (sums, weights) in sums.iter_mut().zip(weights) {
                    sums[c][l] = sums[c][l].add_product(Vector::splat(weights[i]), v);
                }
            }
        }
    }
    for (out, sums) in out.into_iter().zip(&sums) {
        let out = out.as_flattened_mut().as_chunks_mut().0;
        for (out, sum) in out.iter_mut().zip(sums.as_flattened()) {
            Vector::load(out).plus(*sum).store(out);
        }
    }
}
