//! The random numbers of Python and NumPy, draw for draw.
//!
//! Published generators of benchmarks fix a seed, so their prompts are data: the same numbers give
//! the same prompts. Both libraries use the Mersenne Twister MT19937 (Matsumoto and Nishimura, 1998,
//! `mt19937ar.c`) and differ in how they seed it and in how they turn its words into numbers.
//! [`Random`] follows `Lib/random.py` and `Modules/_randommodule.c` of CPython (3.11 and later),
//! [`RandomState`] the legacy generator of NumPy (`numpy/random/mtrand.pyx`, frozen by its compatibility policy).

pub(crate) mod mt19937;
mod numpy;
mod python;

pub use numpy::RandomState;
pub use python::Random;
