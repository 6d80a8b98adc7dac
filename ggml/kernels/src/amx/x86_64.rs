//! Tiles in assembly: Rust has no stable intrinsics for them, and no other Rust code of a program touches their
//! registers. Other code of a thread, such as ggml's, can have configured them, and expects to find that configuration
//! again.

use std::arch::asm;
use std::arch::x86_64::*;
use std::sync::OnceLock;

use super::{Operand, ROWS};
use crate::simd::lanes::transposed;
use crate::simd::{allows, Level};

/// Returns true if this process can use bfloat16 tiles. Asks the operating system for them once.
pub(crate) fn available() -> bool {
    static AVAILABLE: OnceLock<bool> = OnceLock::new();
    *AVAILABLE.get_or_init(|| {
        const TILE_AND_BF16: u32 = 1 << 24 | 1 << 22;
        // Every x86-64 processor has CPUID.
        let known = __cpuid(0).eax >= 7;
        let tiles = known && __cpuid_count(7, 0).edx & TILE_AND_BF16 == TILE_AND_BF16;
        tiles && allows(Level::Amx) && cuts() && permitted()
    })
}

/// Returns true if the processor has the instructions that cut floats.
fn cuts() -> bool {
    let [f, bw] = [is_x86_feature_detected!("avx512f"), is_x86_feature_detected!("avx512bw")];
    f && bw && is_x86_feature_detected!("avx512bf16")
}

/// Linux gives a process the large registers when it asks: arch_prctl(ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA).
fn permitted() -> bool {
    let mut answer: isize = 158;
    // SAFETY: a system call that takes two numbers and touches no memory of ours.
    unsafe {
        asm!(
            "syscall",
            inout("rax") answer,
            in("rdi") 0x1023,
            in("rsi") 18,
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack)
        );
    }
    answer == 0
}

/// Assembly that changes tiles, which it declares: all of them, for a constant may say which. That tiles keep from one piece to the
/// next what the first left in them is nothing that declarations can ask for; it holds because the compiler makes no use
/// of tiles, and nothing else runs in between.
macro_rules! tiles_change {
    ($($part:tt)*) => {
        asm!(
            $($part)*,
            out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
            out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
            options(nostack)
        )
    };
}

/// The 64 bytes of a tile configuration.
#[repr(C, align(64))]
struct Config([u8; 64]);

/// All eight tiles of 16 rows of 64 bytes: 16 x 16 floats, or halves for as much.
static WHOLE: Config = {
    let mut bytes = [0; 64];
    bytes[0] = 1; // Palette.
    let mut tile = 0;
    while tile < 8 {
        bytes[16 + 2 * tile] = 64; // Bytes of a row, 16 bits.
        bytes[48 + tile] = ROWS as u8;
        tile += 1;
    }
    Config(bytes)
};

/// This thread's tiles are configured as products want them while it lives, and as they were after.
pub(crate) struct Tiles {
    before: Config,
    /// Configurations are a thread's own.
    _thread: std::marker::PhantomData<*const ()>,
}

impl Tiles {
    /// `None` where there are none.
    pub(crate) fn new() -> Option<Tiles> {
        available().then(|| {
            let mut before = Config([0; 64]);
            // SAFETY: the processor has tiles and the process may use them; 64 bytes are written, and 64 read.
            unsafe {
                tiles_change!("sttilecfg [{}]", "ldtilecfg [{}]", in(reg) &mut before, in(reg) &raw const WHOLE);
            }
            Tiles { before, _thread: std::marker::PhantomData }
        })
    }

    /// Sums of products `[SIDE][SIDE]`, rows `stride` floats apart: rows of `a` times columns of `b` over `n_steps`
    /// tiles; added to what is there if `add`.
    ///
    /// # Safety
    /// `SIDE` rows of as many floats, `stride` apart from `out` on, may be read and written, by nobody else meanwhile.
    #[inline]
    pub(crate) unsafe fn product(
        &self,
        a: &Operand<'_>,
        b: &Operand<'_>,
        n_steps: usize,
        add: bool,
        out: *mut f32,
        stride: usize,
    ) {
        assert!(a.holds(n_steps) && b.holds(n_steps));
        let step = 4 * stride;
        // SAFETY: tiles are configured; the rows of each are inside the operands (`holds`), or of the result (the
        // caller's promise).
        unsafe {
            let corner = |i: usize, j: usize| out.add(i * ROWS * stride + j * ROWS).cast::<u8>();
            if add {
                load::<0>(corner(0, 0), step);
                load::<1>(corner(0, 1), step);
                load::<2>(corner(1, 0), step);
                load::<3>(corner(1, 1), step);
            } else {
                tiles_change!("tilezero tmm0", "tilezero tmm1", "tilezero tmm2", "tilezero tmm3");
            }
            for i in 0..n_steps {
                let at = |x: &Operand<'_>, half: &[u32], tile: usize| {
                    half.as_ptr().add(i * x.step + tile * x.tile).cast::<u8>()
                };
                load::<4>(at(a, a.low, 0), 4 * a.row);
                load::<5>(at(a, a.low, 1), 4 * a.row);
                load::<6>(at(b, b.high, 0), 4 * b.row);
                load::<7>(at(b, b.high, 1), 4 * b.row);
                multiply();
                load::<4>(at(a, a.high, 0), 4 * a.row);
                load::<5>(at(a, a.high, 1), 4 * a.row);
                multiply();
                load::<6>(at(b, b.low, 0), 4 * b.row);
                load::<7>(at(b, b.low, 1), 4 * b.row);
                multiply();
            }
            store::<0>(corner(0, 0), step);
            store::<1>(corner(0, 1), step);
            store::<2>(corner(1, 0), step);
            store::<3>(corner(1, 1), step);
        }
    }

    /// See [`cut`].
    #[inline]
    pub(crate) fn cut(&self, from: &[f32], high: &mut [u32], low: &mut [u32]) {
        // SAFETY: where there are tiles, there are these instructions.
        unsafe { cut(from, high, low) }
    }

    /// See [`cut_pairs`].
    #[inline]
    pub(crate) fn cut_pairs(&self, first: &[f32], second: &[f32], high: &mut [u32], low: &mut [u32]) {
        // SAFETY: as above.
        unsafe { cut_pairs(first, second, high, low) }
    }

    /// Cuts [`ROWS`] rows of [`DEPTH`] floats, `step` apart, into rows of words: the halves, then the others.
    ///
    /// # Safety
    /// The floats can be read.
    #[inline]
    pub(crate) unsafe fn cut_rows(&self, from: *const f32, step: usize, words: &mut [u32; 2 * ROWS * ROWS]) {
        // SAFETY: as above; the caller's promise.
        unsafe { cut_rows(from, step, words) }
    }

    /// Cuts [`DEPTH`] rows of [`ROWS`] floats, `step` apart, into words of an element of a row and the one below it.
    ///
    /// # Safety
    /// The floats can be read.
    #[inline]
    pub(crate) unsafe fn cut_columns(
        &self,
        from: *const f32,
        step: usize,
        words: &mut [u32; 2 * ROWS * ROWS],
    ) {
        // SAFETY: as above; the caller's promise.
        unsafe { cut_columns(from, step, words) }
    }

    /// See [`transpose`].
    pub(crate) fn transpose(&self, from: &[u32], from_stride: usize, to: &mut [u32], to_stride: usize) {
        // SAFETY: as above.
        unsafe { transpose(from, from_stride, to, to_stride) }
    }
}

impl Drop for Tiles {
    fn drop(&mut self) {
        // SAFETY: a configuration this processor gave; all zeros is none.
        unsafe { tiles_change!("ldtilecfg [{}]", in(reg) &self.before) }
    }
}

/// Twice 16 floats rounded to bfloat16, and the differences, rounded too. NaN stays NaN.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
fn halves(x: [__m512; 2]) -> [__m512i; 2] {
    // SAFETY: both types are 512 bits.
    let both =
        |[x, y]: [__m512; 2]| unsafe { std::mem::transmute::<__m512bh, __m512i>(_mm512_cvtne2ps_pbh(y, x)) };
    let high = both(x);
    let upper = |half| _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(half)));
    let uppers = [upper(_mm512_castsi512_si256(high)), upper(_mm512_extracti64x4_epi64::<1>(high))];
    [high, both([_mm512_sub_ps(x[0], uppers[0]), _mm512_sub_ps(x[1], uppers[1])])]
}

/// The halves of elements of the first 16, each followed by one of the second.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn pairs([high, low]: [__m512i; 2]) -> [__m512i; 2] {
    const TURNS: [u16; 2 * ROWS] = {
        let mut turns = [0; 2 * ROWS];
        let mut i = 0;
        while i < 2 * ROWS {
            turns[i] = (i / 2 + i % 2 * ROWS) as u16;
            i += 1;
        }
        turns
    };
    // SAFETY: 64 bytes.
    let turns = unsafe { _mm512_loadu_si512(TURNS.as_ptr().cast()) };
    [_mm512_permutexvar_epi16(turns, high), _mm512_permutexvar_epi16(turns, low)]
}

/// # Safety
/// 16 rows of 32 floats, `step` apart, can be read.
#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
unsafe fn cut_rows(from: *const f32, step: usize, words: &mut [u32; 2 * ROWS * ROWS]) {
    let to = words.as_mut_ptr();
    for i in 0..ROWS {
        // SAFETY: the caller's promise; both halves have 16 rows of as many words.
        unsafe {
            let row = from.add(i * step);
            let [high, low] = halves([_mm512_loadu_ps(row), _mm512_loadu_ps(row.add(ROWS))]);
            _mm512_storeu_si512(to.add(i * ROWS).cast(), high);
            _mm512_storeu_si512(to.add((ROWS + i) * ROWS).cast(), low);
        }
    }
}

/// # Safety
/// 32 rows of 16 floats, `step` apart, can be read.
#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
unsafe fn cut_columns(from: *const f32, step: usize, words: &mut [u32; 2 * ROWS * ROWS]) {
    let to = words.as_mut_ptr();
    for i in 0..ROWS {
        // SAFETY: the caller's promise; both halves have 16 rows of as many words.
        unsafe {
            let row = from.add(2 * i * step);
            let halves = halves([_mm512_loadu_ps(row), _mm512_loadu_ps(row.add(step))]);
            let [high, low] = pairs(halves);
            _mm512_storeu_si512(to.add(i * ROWS).cast(), high);
            _mm512_storeu_si512(to.add((ROWS + i) * ROWS).cast(), low);
        }
    }
}

/// Cuts floats into words of two, one after the other. An odd one is followed by zero.
#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
fn cut(from: &[f32], high: &mut [u32], low: &mut [u32]) {
    let n = from.len().div_ceil(2);
    let words = high[..n].chunks_mut(ROWS).zip(low[..n].chunks_mut(ROWS));
    for (from, (high, low)) in from.chunks(2 * ROWS).zip(words) {
        let (floats, words) = (mask_of(from.len()), mask_of(high.len()) as u16);
        // SAFETY: masks are of the elements that there are.
        unsafe {
            let x = _mm512_maskz_loadu_ps(floats as u16, from.as_ptr());
            let y = _mm512_maskz_loadu_ps((floats >> ROWS) as u16, from.as_ptr().wrapping_add(ROWS));
            let halves = halves([x, y]);
            _mm512_mask_storeu_epi32(high.as_mut_ptr().cast(), words, halves[0]);
            _mm512_mask_storeu_epi32(low.as_mut_ptr().cast(), words, halves[1]);
        }
    }
}

/// A mask of the first `n` elements of 32.
#[inline(always)]
fn mask_of(n: usize) -> u32 {
    ((1u64 << n) - 1) as u32
}

/// Cuts floats into words, each of one of `first` and one of `second`, which are as long.
#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
fn cut_pairs(first: &[f32], second: &[f32], high: &mut [u32], low: &mut [u32]) {
    let n = first.len();
    let words = high[..n].chunks_mut(ROWS).zip(low[..n].chunks_mut(ROWS));
    for ((x, y), (high, low)) in first.chunks(ROWS).zip(second[..n].chunks(ROWS)).zip(words) {
        let mask = mask_of(x.len()) as u16;
        // SAFETY: the mask is of the elements that all four have.
        unsafe {
            let (x, y) = (_mm512_maskz_loadu_ps(mask, x.as_ptr()), _mm512_maskz_loadu_ps(mask, y.as_ptr()));
            let halves = pairs(halves([x, y]));
            _mm512_mask_storeu_epi32(high.as_mut_ptr().cast(), mask, halves[0]);
            _mm512_mask_storeu_epi32(low.as_mut_ptr().cast(), mask, halves[1]);
        }
    }
}

/// `to[j][i] = from[i][j]` for 16 x 16 words; rows are `from_stride` and `to_stride` words apart.
#[target_feature(enable = "avx512f,avx512bf16")]
fn transpose(from: &[u32], from_stride: usize, to: &mut [u32], to_stride: usize) {
    assert!(from.len() >= (ROWS - 1) * from_stride + ROWS && to.len() >= (ROWS - 1) * to_stride + ROWS);
    // SAFETY: by the assertion all rows are inside the slices.
    unsafe {
        let rows = std::array::from_fn(|i| _mm512_loadu_si512(from.as_ptr().add(i * from_stride).cast()));
        for (j, column) in transposed(rows).into_iter().enumerate() {
            _mm512_storeu_si512(to.as_mut_ptr().add(j * to_stride).cast(), column);
        }
    }
}

/// # Safety
/// Tiles are configured, and 16 rows of 64 bytes, `step` bytes apart, can be read.
#[inline(always)]
unsafe fn load<const TILE: usize>(from: *const u8, step: usize) {
    // SAFETY: the caller's promise.
    unsafe {
        tiles_change!("tileloadd tmm{tile}, [{from} + {step}]", tile = const TILE, from = in(reg) from, step = in(reg) step)
    }
}

/// # Safety
/// The promise of [`load`], and the rows can be written.
#[inline(always)]
unsafe fn store<const TILE: usize>(to: *mut u8, step: usize) {
    // SAFETY: the caller's promise.
    unsafe {
        asm!("tilestored [{to} + {step}], tmm{tile}", tile = const TILE, to = in(reg) to, step = in(reg) step,
            options(nostack))
    }
}

/// Adds the products of tiles 4 and 5 with tiles 6 and 7 to tiles 0 to 3.
///
/// # Safety
/// Tiles are configured.
#[inline(always)]
unsafe fn multiply() {
    // SAFETY: the caller's promise.
    unsafe {
        tiles_change!(
            "tdpbf16ps tmm0, tmm4, tmm6",
            "tdpbf16ps tmm1, tmm4, tmm7",
            "tdpbf16ps tmm2, tmm5, tmm6",
            "tdpbf16ps tmm3, tmm5, tmm7"
        )
    }
}

#[cfg(test)]
// On a processor without the instructions these tests test nothing; those of crate `ggml` say so of AMX.
mod tests {
    use super::super::DEPTH;
    use super::*;

    #[test]
    fn transposed() {
        if !cuts() {
            return;
        }
        let from: Vec<u32> = (0..16 * 20).collect();
        let mut to = vec![0; 16 * 18];
        // SAFETY: asked above.
        unsafe { transpose(&from, 20, &mut to, 18) };
        for i in 0..16 {
            for j in 0..16 {
                assert_eq!(to[j * 18 + i], from[i * 20 + j], "{i} {j}");
            }
        }
    }

    /// Words that both functions should make of two floats.
    fn words(first: f32, second: f32) -> (u32, u32) {
        let halves = |x: f32| {
            let high = half::bf16::from_f32(x);
            [high, half::bf16::from_f32(x - high.to_f32())].map(|h| u32::from(h.to_bits()))
        };
        let ([first, first_low], [second, second_low]) = (halves(first), halves(second));
        (first | second << 16, first_low | second_low << 16)
    }

    #[test]
    fn floats_are_cut_into_rounded_halves() {
        if !cuts() {
            return;
        }
        for n in [1usize, 2, 15, 16, 17, 64, 80, 83] {
            let floats: Vec<f32> = (0..n).map(|i| (i as f32 * 0.377).sin()).collect();
            let others: Vec<f32> = (0..n).map(|i| (i as f32 * 0.133).cos() * 1e3).collect();
            let (mut high, mut low) = (vec![7; n + 1], vec![7; n + 1]);
            // SAFETY: asked above.
            unsafe { cut(&floats, &mut high, &mut low) };
            let at = |i: usize| floats.get(i).copied().unwrap_or(0.0);
            for i in 0..n.div_ceil(2) {
                assert_eq!((high[i], low[i]), words(at(2 * i), at(2 * i + 1)), "{n} {i}");
            }
            assert_eq!((high[n.div_ceil(2)], low[n.div_ceil(2)]), (7, 7));
            // SAFETY: asked above.
            unsafe { cut_pairs(&floats, &others, &mut high, &mut low) };
            for i in 0..n {
                assert_eq!((high[i], low[i]), words(floats[i], others[i]), "{n} {i}");
            }
            assert_eq!((high[n], low[n]), (7, 7));
        }
        let (step, floats) = (40, (0..40 * DEPTH).map(|i| (i as f32 * 0.377).sin()).collect::<Vec<_>>());
        let (mut rows, mut columns) = ([0; 2 * ROWS * ROWS], [0; 2 * ROWS * ROWS]);
        // SAFETY: asked above; 32 rows of 40 floats are there.
        unsafe {
            cut_rows(floats.as_ptr(), step, &mut rows);
            cut_columns(floats.as_ptr(), step, &mut columns);
        }
        for (i, j) in (0..ROWS).flat_map(|i| (0..ROWS).map(move |j| (i, j))) {
            let halves = |words: &[u32]| (words[i * ROWS + j], words[(ROWS + i) * ROWS + j]);
            assert_eq!(halves(&rows), words(floats[i * step + 2 * j], floats[i * step + 2 * j + 1]));
            assert_eq!(halves(&columns), words(floats[2 * i * step + j], floats[(2 * i + 1) * step + j]));
        }
        let (mut high, mut low) = ([0], [0]);
        // SAFETY: asked above.
        unsafe { cut(&[f32::from_bits(0xffff_e000), f32::NAN], &mut high, &mut low) };
        let halves = [high[0], high[0] >> 16].map(|h| half::bf16::from_bits(h as u16));
        assert!(halves.iter().all(|h| h.is_nan()));
    }
}
