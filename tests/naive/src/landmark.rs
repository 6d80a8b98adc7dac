//! Landmark attention of one query: which keys it sees, where they are shown, and what they weigh.

/// A key, and its distance where the layer is rotated.
pub(super) type Seen = (usize, Option<usize>);

/// The keys that query `i` sees where it takes blocks by their landmarks (`landmark-attention`, `llama_mem.py`), with the
/// distances they are shown at: of blocks `0..n` before its piece all but the newest `top` are compared as if each were
/// block `n - top - 1`; those taken are put one after another from there on, the newest one further. `most` is the largest
/// score that a query and a key of their lengths can have.
pub(super) fn taken(
    seen: Vec<Seen>,
    i: usize,
    block: usize,
    [top, piece]: [usize; 2],
    score: &dyn Fn(&Seen) -> f64,
    most: &dyn Fn(usize) -> f64,
) -> Vec<Seen> {
    let n = i / piece * piece / block;
    if n <= top {
        return seen;
    }
    let first = n - top - 1;
    let rotated = seen[0].1.is_some();
    // Key `j` as it is shown where its block is block `to`.
    let shown = |j: usize, to: usize| (j, rotated.then(|| i - (to * block + j % block)));
    let of_landmark = |b: usize| {
        let j = b * block + block - 1;
        // Of equal ones, as all are in the first layer that are compared at one place, the newest.
        score(&shown(j, b.max(first))) + b as f64 * most(j) / f64::from(1 << 20)
    };
    let mut order: Vec<usize> = (0..n).collect();
    order.sort_by(|&a, &b| of_landmark(b).total_cmp(&of_landmark(a)));
    order.truncate(top);
    order.sort_unstable();
    let place = |(r, b): (usize, usize)| (b, first + r + usize::from(b > first));
    let blocks = order.into_iter().enumerate().map(place);
    let mut keys: Vec<_> =
        blocks.flat_map(|(b, to)| (b * block..(b + 1) * block).map(move |j| (j, to))).collect();
    keys.extend((n * block..=i).map(|j| (j, j / block)));
    keys.into_iter().map(|(j, to)| shown(j, to)).collect()
}

/// Weights of the keys that query `i` sees, from their scores: one softmax over the keys of its block and the landmarks
/// of earlier ones, and one over the other keys of each of these, which divide their landmark's weight.
pub(super) fn grouped(scores: &[(usize, f64)], i: usize, block: usize) -> Vec<(usize, f64)> {
    let is_landmark = |j: usize| j % block == block - 1;
    let soft_max = |of: Vec<(usize, f64)>| -> Vec<(usize, f64)> {
        let top = of.iter().map(|s| s.1).fold(f64::NEG_INFINITY, f64::max);
        let sum: f64 = of.iter().map(|s| (s.1 - top).exp()).sum();
        of.into_iter().map(|(j, s)| (j, (s - top).exp() / sum)).collect()
    };
    let some =
        |keep: &dyn Fn(usize) -> bool| scores.iter().copied().filter(|s| keep(s.0)).collect::<Vec<_>>();
    let own = i / block;
    let first = soft_max(some(&|j| is_landmark(j) != (j / block == own)));
    let mut out: Vec<(usize, f64)> = first.iter().copied().filter(|p| !is_landmark(p.0)).collect();
    for &(landmark, weight) in first.iter().filter(|p| is_landmark(p.0)) {
        let keys = soft_max(some(&|j| !is_landmark(j) && j / block == landmark / block));
        out.extend(keys.into_iter().map(|(j, p)| (j, p * weight)));
    }
    out
}
