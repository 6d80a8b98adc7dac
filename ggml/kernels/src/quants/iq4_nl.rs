//! IQ4_NL: a factor, and places in a table.

use super::format::*;

pub(crate) struct Iq4Nl;

impl Format for Iq4Nl {
    blocks!(IQ4_NL);
    const SIGNED: bool = true;
    const CODES: usize = 2;

    #[inline(always)]
    fn part_codes<L: Lanes>(l: L, _: &Codes<L>, b: &Bytes<L>, _: usize, _: usize) -> Codes<L> {
        lookup(l, b, &IQ4)
    }
}
