//! One token's attention over several branches by flash attention, against its definition in f64.

use ropewalk::internals::graph::{cut, n_tensors_of_single, Single, UNSEEN};

use super::*;

/// Columns that no query sees, in addition to those that the case hides.
type Hidden = Range<usize>;

/// Keys that one query sees: scores of a head by column.
fn seen(case: Case, query: usize, head: usize, hidden: &Hidden) -> Vec<Option<f64>> {
    let scores = case.scores(query, head).into_iter().enumerate();
    scores.map(|(c, score)| score.filter(|_| !hidden.contains(&c))).collect()
}

/// The values of all heads, where the first branch is cut in two at each of the columns given.
fn values(case: Case, query: usize, hidden: &Hidden, cuts: &[usize]) -> Vec<f32> {
    let max_tensors = 64 + n_tensors_of_single(case.n_parts + cuts.len());
    run(max_tensors, |input| {
        let mut parts = Vec::new();
        for (part, &n_keys) in KEYS[..case.n_parts].iter().enumerate() {
            let AttentionBranch { q, k, v } = input.branch(case, part, query..query + 1)?;
            let mut from = 0;
            for end in cuts.iter().copied().filter(|_| part == 0).chain([n_keys]) {
                let keys = from..end;
                let branch = AttentionBranch { q, k: cut(input.b, k, &keys)?, v: cut(input.b, v, &keys)? };
                parts.push(Part { branch, first: part * KEYS[0] + from, range: 0 });
                from = end;
            }
        }
        let (b, scoring) = (input.b, input.scoring(case)?);
        let (id, mask) = b.input("mask", DType::F16, &[case.n_columns(), 1])?;
        let bits = |score: Option<f64>| if score.is_some() { 0 } else { UNSEEN };
        input.halves.push((id, seen(case, query, 0, hidden).into_iter().map(bits).collect()));
        Single { b, mask, mask_f32: b.to_f32(mask)?, scoring }.forward(&parts)
    })
    .0
}

fn check(case: Case, query: usize, hidden: &Hidden, cuts: &[usize]) {
    let got = values(case, query, hidden, cuts);
    let values = case.values();
    for (head, got) in got.chunks_exact(D).enumerate() {
        let (p, _) = case.softmax(&seen(case, query, head, hidden), head);
        let want = case.mixed(&values, &p, head);
        let off = if case.half { 2e-3 } else { 1e-5 * f64::from(case.loud) };
        for (got, want) in got.iter().zip(want) {
            let near = (f64::from(*got) - want).abs() < off;
            assert!(near, "query {query}, head {head}, {hidden:?} hidden, cut at {cuts:?}: {got}, {want}");
        }
    }
}

#[test]
fn by_definition() {
    for case in cases() {
        for query in 0..N {
            for cuts in [&[][..], &[400], &[8, 300]] {
                check(case, query, &(0..0), cuts);
            }
        }
    }
}

/// A branch without a key that is seen counts for nothing, be it the longest or not, and so do the values there.
#[test]
fn a_branch_that_is_not_seen() {
    for case in cases().into_iter().filter(|case| case.n_parts == 2) {
        for hidden in [0..KEYS[0], KEYS[0]..case.n_columns()] {
            check(case, 6, &hidden, &[]);
        }
    }
}

/// Shares that differ by many orders of magnitude, either way.
#[test]
fn one_branch_outweighs_the_other() {
    let plain = Case { n_parts: 2, loud: 1.0, softcap: None, sinks: false, half: false };
    for loud in [30.0, 1000.0] {
        for query in 0..N {
            check(Case { loud, ..plain }, query, &(0..0), &[]);
        }
    }
}
