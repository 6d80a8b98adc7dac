//! Ends a program that was compiled for another processor with a line that says so. By itself it would die of
//! an illegal instruction somewhere, without a word.
//!
//! For programs, not libraries: linked into one, it runs before anything else does. It cannot wait for `main`,
//! for ggml's C++ has constructors of static objects, compiled for the same processor. And it cannot be
//! written in Rust, which may use any instruction it was allowed to in any function: it is assembly, of
//! instructions that every x86-64 processor has. (`is_x86_feature_detected!` is no help: of what the program
//! is compiled for, the compiler takes the answer to be yes.) On other systems than Linux on x86-64 nothing is
//! checked.

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod x86_64;

/// Returns if the processor has all that the program was compiled for; else the process has ended, with exit
/// code 1 and one line on the standard error stream. To be called first in `main`, so that this crate is
/// linked in.
pub fn require() {
    #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
    x86_64::require();
}
