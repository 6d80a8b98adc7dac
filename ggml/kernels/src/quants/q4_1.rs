//! Q4_1: a factor, a number that is added, and codes of four bits.

use super::format::*;

pub(crate) struct Q4_1;

impl Format for Q4_1 {
    blocks!(Q4_1);
    const ADDS: bool = true;
    const CODES: usize = 4;
}
