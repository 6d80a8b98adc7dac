//! Q4_0: a factor, and codes of four bits, of which 8 stands for 0.

use super::format::*;

pub(crate) struct Q4_0;

impl Format for Q4_0 {
    blocks!(Q4_0);
    const OFFSET: i8 = 8;
    const CODES: usize = 2;
}
