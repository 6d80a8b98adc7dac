//! Products of weights in 16-bit floats, where the processor has instructions for them.

use std::cell::RefCell;

use kernels::gemm::divide;
use kernels::half_floats::{Format, Scratch, Weights};

use crate::node::Part;
use crate::DType;

pub(super) fn format(dtype: DType) -> Option<Format> {
    match dtype {
        DType::BF16 => Some(Format::Bf16),
        DType::F16 => Some(Format::F16),
        _ => None,
    }
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

pub(super) fn run(part: &Part<'_>, dtype: DType, transposed: bool) {
    let ([m, n, ..], x) = (part.ne(), part.source(1));
    let (columns, rows) = divide(m, n, part.ith(), part.nth());
    if columns.is_empty() || rows.is_empty() {
        return;
    }
    let format = format(dtype).expect("the op has checked the type");
    let weights = Weights::new(format, part.source(0).all::<u16>(), [x.ne()[0], m], transposed);
    // SAFETY: `divide` gives the parts of a node different elements.
    let out = unsafe { part.floats().output(columns, rows) };
    SCRATCH.with_borrow_mut(|scratch| scratch.multiply(&weights, |i| x.row([i, 0, 0]), n, out));
}
