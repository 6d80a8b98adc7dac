//! Products of quantized weights with floats in 8-bit numbers, ops of our own for the CPU. Of many rows of floats, one node rounds
//! them for the products of several weights; of a few, each thread of a product rounds them all.

use std::cell::RefCell;
use std::ops::Range;

use kernels::eight_bits::{Layout, Panel, Rounded, Rounding, MOST, ROWS};
use kernels::experts::Groups;

use crate::experts::Chosen;
use crate::graph::Builder;
use crate::integers::has_integer_product;
use crate::node::Part;
use crate::ops::{check, f32_rows, weight};
use crate::tensor::Tensor;
use crate::units::Units;
use crate::{DType, Error, Result};

/// Floats rounded to eight bits in blocks of 32.
#[derive(Debug, Clone, Copy)]
pub struct EightBits<'c> {
    words: Tensor<'c>,
    layout: Layout,
    n: usize,
}

impl EightBits<'_> {
    /// Returns true if the rows can also be multiplied with weights of this type.
    pub fn serve(&self, dtype: DType) -> bool {
        self.layout.serves(dtype)
    }
}

struct Work {
    dtype: DType,
    layout: Layout,
    units: Units,
}

impl<'c> Builder<'c> {
    /// Rounds F32 `[k, n]`, rows contiguous, for [`Builder::shared_eight_bit_product`] with weights of this type. For the CPU
    /// ([`has_integer_product`]); elsewhere the graph is refused.
    pub fn eight_bits(&self, x: Tensor<'c>, dtype: DType) -> Result<EightBits<'c>> {
        let op = "eight_bits";
        check_type(op, dtype)?;
        let [k, n, a, b] = x.ne();
        let whole = f32_rows(x) && a * b == 1 && k > 0 && k.is_multiple_of(dtype.block_size());
        check(whole, op, "an f32 matrix, whole blocks of the weight's type wide", &[x])?;
        let layout = Layout::new(dtype, k, n);
        let words = self.prepared(op, layout.n_words(), x, move |part| run_round(part, &layout))?;
        Ok(EightBits { words, layout, n })
    }

    /// F32 `[m, n]`: every row of a quantized weight `[k, m]` times every rounded row `[k, n]`. The result does not depend on the
    /// number of threads, and is that of [`Builder::eight_bit_product`].
    pub fn shared_eight_bit_product(&self, w: Tensor<'c>, x: EightBits<'c>) -> Result<Tensor<'c>> {
        let op = "shared_eight_bit_product";
        let [k, m, ..] = w.ne();
        check_type(op, w.dtype())?;
        if !(weight(w) && x.serve(w.dtype()) && x.layout.k() == k) {
            let what = format!("expected a weight that the rounded rows serve, found {}", w.describe());
            return Err(Error::Op { op, what });
        }
        let work = Work { dtype: w.dtype(), layout: x.layout, units: Units::default() };
        self.custom(op, DType::F32, [m, x.n, 1, 1], &[w, x.words], move |part| run_shared(&part, &work))
    }

    /// F32 `[m, n]`: every row of a quantized weight `[k, m]` times every row of `x`, F32 `[k, n]`, rounded to eight bits in
    /// blocks of 32. For the CPU ([`has_integer_product`]); elsewhere the graph is refused. The result does not depend on
    /// the number of threads.
    pub fn eight_bit_product(&self, w: Tensor<'c>, x: Tensor<'c>) -> Result<Tensor<'c>> {
        let op = "eight_bit_product";
        let (dtype, [k, m, ..], [l, n, c, d]) = (w.dtype(), w.ne(), x.ne());
        check_type(op, dtype)?;
        let fits = weight(w) && f32_rows(x) && k == l && c * d == 1;
        check(fits, op, "a weight [k,m] and f32 [k,n]", &[w, x])?;
        self.custom(op, DType::F32, [m, n, 1, 1], &[w, x], move |part| run_product(&part, dtype))
    }

    /// The same for each place's expert: weights `[k, m, n_expert]`, `x` F32 `[k, 1 or n_used, T]`, to F32 `[m, n_used, T]`.
    pub fn experts_eight_bit_product(
        &self,
        w: Tensor<'c>,
        x: Tensor<'c>,
        chosen: Chosen<'c>,
    ) -> Result<Tensor<'c>> {
        let op = "experts_eight_bit_product";
        let ([_, m], dtype) = (self.product_shape(op, w, x, chosen, 0)?, w.dtype());
        check_type(op, dtype)?;
        let ne = [m, chosen.n_used(), chosen.n_tokens(), 1];
        self.custom(op, DType::F32, ne, &[w, x, chosen.ids()], move |part| run_experts(&part, dtype))
    }
}

fn check_type(op: &'static str, dtype: DType) -> Result<()> {
    if has_integer_product(dtype) {
        return Ok(());
    }
    Err(Error::Op { op, what: format!("{dtype} weights have no such product on this processor") })
}

/// Floats that stay in a cache, rounded, while a weight goes by.
const FLOATS: usize = 256 << 10;
/// Rows of floats worth reading a weight for, once it is not in a cache.
const FEWEST: usize = 64;

/// Rows of a weight that a thread takes at once where floats are many: few enough that none waits long for another.
const UNIT: usize = 8 * ROWS;

thread_local! {
    static SCRATCH: RefCell<(Rounding, Panel)> = RefCell::default();
}

fn run_round(part: Part<'_>, layout: &Layout) {
    let x = part.source(0);
    for (group, words) in part.words(0, layout.n_groups(), layout.group_words()) {
        layout.rows(group).for_each(|row| layout.round(row, x.row([row, 0, 0]), words));
    }
}

fn run_shared(part: &Part<'_>, work: &Work) {
    let ([m, n, ..], w) = (part.ne(), part.source(0));
    let rounded = Rounded::new(work.layout, bytemuck::cast_slice(part.source(1).all::<i32>()));
    let (bytes, row_bytes, out) = (w.bytes(), w.tensor().nb[1], part.floats());
    let (many, n_units) = (at_once(work.layout.k()), m.div_ceil(UNIT));
    SCRATCH.with_borrow_mut(|(_, panel)| {
        // Units that follow one another share floats.
        work.units.work(n_units * n.div_ceil(many), part.nth(), |unit| {
            let (from, first) = (unit / n_units * many, unit % n_units * UNIT);
            let rows = &bytes[first * row_bytes..m.min(first + UNIT) * row_bytes];
            let which = (from, many.min(n - from));
            rounded.products(work.dtype, panel, rows, row_bytes, which, &mut |row, t, products| {
                // SAFETY: units are of disjoint elements.
                unsafe { out.write(t, first + row, products) }
            });
        });
    });
}

/// The rows of a weight that a part takes: whole [`ROWS`].
fn rows_of(m: usize, part: &Part<'_>) -> Range<usize> {
    let mine = part.share(m.div_ceil(ROWS));
    m.min(mine.start * ROWS)..m.min(mine.end * ROWS)
}

fn run_product(part: &Part<'_>, dtype: DType) {
    let ([m, n, ..], w, x) = (part.ne(), part.source(0), part.source(1));
    let mine = rows_of(m, part);
    if mine.is_empty() {
        return;
    }
    let (row_bytes, out) = (w.tensor().nb[1], part.floats());
    let rows = &w.bytes()[mine.start * row_bytes..mine.end * row_bytes];
    SCRATCH.with_borrow_mut(|(rounding, panel)| {
        let rounded = rounding.set(dtype, w.ne()[0], (0..n).map(|i| Some(x.row([i, 0, 0]))));
        products(dtype, &rounded, panel, rows, row_bytes, 0..n, &mut |row, t, products| {
            // SAFETY: parts take disjoint rows of the weight.
            unsafe { out.write(t, mine.start + row, products) }
        });
    });
}

fn run_experts(part: &Part<'_>, dtype: DType) {
    let ([m, n_used, ..], w, x) = (part.ne(), part.source(0), part.source(1));
    let ([k, _, n_expert, _], row_bytes) = (w.ne(), w.tensor().nb[1]);
    let mine = rows_of(m, part);
    if mine.is_empty() {
        return;
    }
    // Places that share a row of floats.
    let shared = n_used / x.ne()[1];
    let (floats, bytes, out) = (x.all::<f32>(), w.bytes(), part.floats());
    let groups = Groups::of(part.source(2).all::<i32>(), n_expert);
    // Rows of an expert lie side by side, so each one's begin with a group of theirs.
    let places = |expert: usize| {
        let rows = groups.rows(expert);
        let gap = rows.len().next_multiple_of(MOST) - rows.len();
        rows.iter().copied().map(Some).chain(std::iter::repeat_n(None, gap))
    };
    let order: Vec<Option<usize>> = (0..n_expert).flat_map(places).collect();
    SCRATCH.with_borrow_mut(|(rounding, panel)| {
        let row = |row: usize| &floats[row / shared * k..][..k];
        let rounded = rounding.set(dtype, k, order.iter().map(|place| place.map(row)));
        let mut first = 0;
        for expert in 0..n_expert {
            let n = groups.rows(expert).len();
            let of_expert = first..first + n;
            first += n.next_multiple_of(MOST);
            if of_expert.is_empty() {
                continue;
            }
            let rows = &bytes[(expert * m + mine.start) * row_bytes..(expert * m + mine.end) * row_bytes];
            products(dtype, &rounded, panel, rows, row_bytes, of_expert, &mut |row, t, products| {
                let Some(place) = order[t] else { return };
                // SAFETY: the result has a row for each place; parts take disjoint rows of weights.
                unsafe { out.write(place, mine.start + row, products) }
            });
        }
    });
}

/// Rows of `k` floats that stay in a cache, rounded.
fn at_once(k: usize) -> usize {
    (FLOATS / k).next_multiple_of(MOST).max(FEWEST)
}

/// Products of rows of weights with some of the rounded rows, as many at a time as stay in a cache.
fn products(
    dtype: DType,
    rounded: &Rounded<'_>,
    panel: &mut Panel,
    rows: &[u8],
    row_bytes: usize,
    floats: Range<usize>,
    put: &mut dyn FnMut(usize, usize, &[f32]),
) {
    let many = at_once(rounded.k());
    for at in floats.clone().step_by(many) {
        let which = (at, many.min(floats.end - at));
        rounded.products(dtype, panel, rows, row_bytes, which, put);
    }
}
