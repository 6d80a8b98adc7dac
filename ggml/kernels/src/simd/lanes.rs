//! Registers in which each 32-bit lane belongs to a row of weights. Functions must be inlined into a function that
//! enables the instructions.

#[cfg(target_arch = "x86_64")]
mod x86;

use super::floats::{FloatLanes, MOST};
#[cfg(target_arch = "x86_64")]
pub(crate) use x86::{transposed, Narrow, Wide};

/// Operations of registers of integers of one width, and of floats with them.
pub(crate) trait Lanes: FloatLanes {
    type Ints: Copy;

    /// # Safety
    /// The processor has AVX2, F16C and FMA, and for [`Wide`] AVX-512 F, BW and VNNI.
    unsafe fn new() -> Self;

    fn all(self, x: i32) -> Self::Ints;
    fn and(self, a: Self::Ints, b: Self::Ints) -> Self::Ints;
    fn or(self, a: Self::Ints, b: Self::Ints) -> Self::Ints;
    fn add(self, a: Self::Ints, b: Self::Ints) -> Self::Ints;
    fn mul(self, a: Self::Ints, b: Self::Ints) -> Self::Ints;
    fn sub_bytes(self, a: Self::Ints, b: Self::Ints) -> Self::Ints;
    fn sub_pairs(self, a: Self::Ints, b: Self::Ints) -> Self::Ints;
    fn mul_pairs(self, a: Self::Ints, b: Self::Ints) -> Self::Ints;
    /// Adds products of pairs of 16-bit numbers to a sum.
    fn add_products(self, sum: Self::Ints, a: Self::Ints, b: Self::Ints) -> Self::Ints;
    fn left(self, a: Self::Ints, by: usize) -> Self::Ints;
    fn right(self, a: Self::Ints, by: usize) -> Self::Ints;
    /// A byte of each lane, with its sign.
    fn signed_byte(self, a: Self::Ints, byte: usize) -> Self::Ints;
    /// The bytes of each lane, with their signs, as pairs of 16-bit numbers: the first and the third, the second and the fourth.
    fn byte_pairs(self, a: Self::Ints) -> [Self::Ints; 2];
    /// The value that a table has for each byte, below 16.
    fn lookup(self, table: &[i8; 16], places: Self::Ints) -> Self::Ints;
    fn words(self, words: [u32; MOST]) -> Self::Ints;
    /// Sixteen bytes of each row, four in a register.
    ///
    /// # Safety
    /// They are at the addresses.
    unsafe fn transposed(self, rows: [*const u8; MOST]) -> [Self::Ints; 4];
    /// Stores the floats of each lane side by side, `at` floats after its address.
    ///
    /// # Safety
    /// They may be written there.
    unsafe fn store_fours(self, floats: [Self::Floats; 4], to: [*mut f32; MOST], at: usize);
    /// # Safety
    /// So many numbers are there.
    unsafe fn load(self, from: *const i32) -> Self::Ints;
    /// # Safety
    /// So many numbers may be written.
    unsafe fn store(self, a: Self::Ints, to: *mut i32);

    fn floats(self, a: Self::Ints) -> Self::Floats;
    fn as_floats(self, a: Self::Ints) -> Self::Floats;
    fn as_ints(self, a: Self::Floats) -> Self::Ints;
    /// Two half-precision numbers of each lane, the lower one first.
    fn two_halves(self, a: Self::Ints) -> [Self::Floats; 2];
}
