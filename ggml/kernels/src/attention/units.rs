//! Rows of keys and values read in place, 32 elements at a time, and their products with few queries.
//!
//! Keys and values of F16, Q8_0, and Q4_0 are converted in registers, once for all queries that share them; nothing is
//! copied.

use super::tile::KEYS;
use super::view::Format;
use crate::simd::{with_registers, FloatLanes, Registers, MOST};

/// Elements of a unit: as many as there are in a block of the quantized types.
pub(super) const UNIT: usize = 32;
/// Registers of a unit, of the narrowest.
const MOST_REGISTERS: usize = UNIT / 8;

/// Queries whose sums, of four keys or of two units of values each, fit in registers.
pub(super) const fn queries<S: FloatLanes>() -> usize {
    if S::N == 16 {
        4
    } else {
        3
    }
}

/// 32 elements of a row as they lie in memory.
pub(super) trait Unit: Copy {
    /// Returns true if rows in a format consist of these units.
    fn is(format: Format) -> bool;
    /// The register of elements from lane `i * N` on, as floats.
    fn load<S: FloatLanes>(&self, s: S, i: usize) -> S::Floats;
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
    fn load<S: FloatLanes>(&self, s: S, i: usize) -> S::Floats {
        s.read(&self[i * S::N..])
    }
}

impl Unit for Halves {
    #[inline(always)]
    fn is(format: Format) -> bool {
        matches!(format, Format::F16)
    }
    #[inline(always)]
    fn load<S: FloatLanes>(&self, s: S, i: usize) -> S::Floats {
        s.halves(&self[i * S::N..])
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
    fn load<S: FloatLanes>(&self, s: S, i: usize) -> S::Floats {
        s.times(s.bytes(&self.bytes[i * S::N..]), scale(s, self.scale))
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
    fn load<S: FloatLanes>(&self, s: S, i: usize) -> S::Floats {
        let scale = scale(s, self.scale);
        let (low, high) = (s.read(&CODES), s.read(&CODES[CODES.len() - S::N..]));
        let scaled = [s.times(low, scale), s.times(high, scale)];
        let half = UNIT / S::N / 2;
        if i < half {
            s.picked::<0>(scaled, &self.nibbles[i * S::N..])
        } else {
            s.picked::<4>(scaled, &self.nibbles[(i - half) * S::N..])
        }
    }
}

#[inline(always)]
fn scale<S: FloatLanes>(s: S, half: [u8; 2]) -> S::Floats {
    s.halves(&[u16::from_ne_bytes(half); MOST])
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

// Not inlined, for what reads rows of other types stays small without it.
#[inline(never)]
pub(super) fn convert<U: Unit>(row: &[U], out: &mut [f32]) {
    #[inline(always)]
    fn with<S: FloatLanes, U: Unit>(s: S, row: &[U], out: &mut [f32]) {
        for (unit, out) in row.iter().zip(out.chunks_exact_mut(UNIT)) {
            out.chunks_exact_mut(S::N).enumerate().for_each(|(i, out)| s.write(unit.load(s, i), out));
        }
    }
    with_registers!(Registers::best(), s => s.run(|| with(s, row, out)));
}

/// Scores of `n` keys with R queries. What is after them is undefined.
#[inline]
pub(super) fn scores<'x, S: FloatLanes, U: Unit + 'x, const R: usize>(
    s: S,
    q: [&[Floats]; R],
    n: usize,
    key: impl Fn(usize) -> &'x [U],
    ahead: usize,
    out: &mut [[f32; KEYS]; R],
) {
    s.run(|| {
        for from in (0..n).step_by(S::N) {
            let mut quads = [[s.none(); MOST / 4]; R];
            for part in 0..S::N / 4 {
                let keys: [&[U]; 4] = std::array::from_fn(|j| key((from + 4 * part + j).min(n - 1)));
                for (quads, sums) in quads.iter_mut().zip(dots(s, q, keys, ahead)) {
                    quads[part] = s.quad(sums);
                }
            }
            for (out, quads) in out.iter_mut().zip(quads) {
                s.write(s.join(quads), &mut out[from..]);
            }
        }
    })
}

/// Products of R queries with four keys, still to be summed over the lanes of a register.
#[inline(always)]
fn dots<S: FloatLanes, U: Unit, const R: usize>(
    s: S,
    q: [&[Floats]; R],
    keys: [&[U]; 4],
    ahead: usize,
) -> [[S::Floats; 4]; R] {
    let n = keys[0].len();
    assert!(q.iter().all(|q| q.len() == n) && keys.iter().all(|k| k.len() == n));
    let mut sums = [[s.none(); 4]; R];
    for unit in 0..n {
        keys.iter().for_each(|key| prefetch(&key[unit], ahead));
        for i in 0..UNIT / S::N {
            let q: [S::Floats; R] = std::array::from_fn(|r| q[r][unit].load(s, i));
            for (j, key) in keys.iter().enumerate() {
                let key = key[unit].load(s, i);
                for (sums, q) in sums.iter_mut().zip(q) {
                    sums[j] = s.mul_add(key, q, sums[j]);
                }
            }
        }
    }
    sums
}

/// Adds to R rows of sums C units of `n` weighted values; those that nobody sees are not there.
#[inline]
pub(super) fn weigh<'x, S: FloatLanes, U: Unit + 'x, const R: usize, const C: usize>(
    s: S,
    weights: &[[f32; KEYS]; R],
    n: usize,
    value: impl Fn(usize) -> Option<&'x [U; C]>,
    ahead: usize,
    out: [&mut [Floats; C]; R],
) {
    s.run(|| {
        let mut sums = [[[s.none(); MOST_REGISTERS]; C]; R];
        for i in 0..n.min(KEYS) {
            let Some(value) = value(i) else { continue };
            for (c, unit) in value.iter().enumerate() {
                prefetch(unit, ahead);
                for l in 0..UNIT / S::N {
                    let v = unit.load(s, l);
                    for (sums, weights) in sums.iter_mut().zip(weights) {
                        sums[c][l] = s.mul_add(s.splat(weights[i]), v, sums[c][l]);
                    }
                }
            }
        }
        for (out, sums) in out.into_iter().zip(&sums) {
            for (unit, sums) in out.iter_mut().zip(sums) {
                for (out, sum) in unit.chunks_exact_mut(S::N).zip(sums) {
                    s.write(s.sum(s.read(out), *sum), out);
                }
            }
        }
    })
}
