//! Products of quantized weights with floats in 8-bit numbers. Of many rows of floats, one node rounds them for the products of
//! several weights; of a few, each thread of a product rounds them all.

use std::cell::RefCell;
use std::ops::Range;

use kernels::experts::Groups;
use kernels::int8::{Layout, Panel, Rounded, Rounding, MOST, ROWS};

use crate::node::Part;
use crate::units::Units;
use crate::DType;

/// Floats that stay in a cache, rounded, while a weight goes by.
const FLOATS: usize = 256 << 10;
/// Rows of floats worth reading a weight for, once it is not in a cache.
const FEWEST: usize = 64;

/// Rows of a weight that a thread takes at once where floats are many: few enough that none waits long for another.
const UNIT: usize = 8 * ROWS;

thread_local! {
    static SCRATCH: RefCell<(Rounding, Panel)> = RefCell::default();
}

pub(super) fn pack(part: Part<'_>, layout: Layout) {
    let x = part.source(0);
    for (group, words) in part.words(0, layout.n_groups(), layout.group_words()) {
        layout.rows(group).for_each(|row| layout.round(row, x.row([row, 0, 0]), words));
    }
}

/// A product of floats that a node has rounded.
pub(super) fn run_shared(part: &Part<'_>, layout: Layout, dtype: DType, units: &Units) {
    let ([m, n, ..], w) = (part.ne(), part.source(0));
    let rounded = Rounded::new(layout, bytemuck::cast_slice(part.source(1).all::<i32>()));
    let (bytes, row_bytes, out) = (w.bytes(), w.tensor().nb[1], part.floats());
    let (many, n_units) = (at_once(layout.k()), m.div_ceil(UNIT));
    SCRATCH.with_borrow_mut(|(_, panel)| {
        // Units that follow one another share floats.
        units.work(n_units * n.div_ceil(many), part.nth(), |unit| {
            let (from, first) = (unit / n_units * many, unit % n_units * UNIT);
            let rows = &bytes[first * row_bytes..m.min(first + UNIT) * row_bytes];
            let which = (from, many.min(n - from));
            rounded.products(dtype, panel, rows, row_bytes, which, &mut |row, t, products| {
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

/// A product of which each part rounds all floats.
pub(super) fn run(part: &Part<'_>, dtype: DType) {
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

/// The same for the weight of each place's expert.
pub(crate) fn run_experts(part: &Part<'_>, dtype: DType) {
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
