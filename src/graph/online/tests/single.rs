//! One token's attention over several branches by flash attention, against its definition in f64.

use super::*;
use crate::graph::online::{n_tensors_of_single, Single, UNSEEN};

/// Which columns nobody sees, beside those that the case hides.
type Hidden = Range<usize>;

/// Keys that one query sees: scores of a head by column.
fn seen(case: Case, query: usize, head: usize, hidden: &Hidden) -> Vec<Option<f64>> {
    let scores = case.scores(query, head).into_iter().enumerate();
    scores.map(|(c, score)| score.filter(|_| !hidden.contains(&c))).collect()
}

/// The values of all heads, where the first branch is cut in two at each of the columns given.
fn run(case: Case, query: usize, hidden: &Hidden, cuts: &[usize]) -> Vec<f32> {
    let mut exec = Executor::new(Device::find("cpu").unwrap(), 1).unwrap();
    let (mut floats, mut halves) = (Vec::new(), Vec::new());
    let n_parts = case.n_parts + cuts.len();
    let (out, mask_id) = exec
        .build(64 + n_tensors_of_single(n_parts), |b| {
            let mut input = Input { b, floats: &mut floats, halves: &mut halves };
            let mut parts = Vec::new();
            for (part, &n_keys) in KEYS[..case.n_parts].iter().enumerate() {
                let q = case.q(part)[query * N_HEAD * D..][..N_HEAD * D].to_vec();
                let q = input.floats(&[D, N_HEAD, 1], q)?;
                let ne = [D, n_keys, N_KV];
                let k = input.keys(&ne, case.keys(part, 10), case.half)?;
                let v = input.keys(&ne, case.keys(part, 20), case.half)?;
                let mut ends: Vec<usize> = if part == 0 { cuts.to_vec() } else { Vec::new() };
                ends.push(n_keys);
                let mut from = 0;
                for end in ends {
                    let keys = from..end;
                    let branch = AttentionBranch { q, k: cut(b, k, &keys)?, v: cut(b, v, &keys)? };
                    parts.push(Part { branch, first: part * KEYS[0] + from, range: 0 });
                    from = end;
                }
            }
            let sinks = (0..N_HEAD).map(|h| value(h, 40)).collect();
            let sinks = case.sinks.then(|| input.floats(&[N_HEAD], sinks)).transpose()?;
            let (id, mask) = b.input("mask", DType::F16, &[case.n_columns(), 1])?;
            let scoring = Scoring { scale: SCALE, softcap: case.softcap, sinks };
            let out = Single { b, mask, mask_f32: b.to_f32(mask)?, scoring }.forward(&parts)?;
            Ok::<_, Error>((b.output(out), id))
        })
        .unwrap();
    floats.iter().for_each(|(id, values)| exec.set(*id, values).unwrap());
    halves.iter().for_each(|(id, values)| exec.set(*id, values).unwrap());
    let mask = seen(case, query, 0, hidden);
    let mask: Vec<u16> = mask.iter().map(|s| if s.is_some() { 0 } else { UNSEEN }).collect();
    exec.set(mask_id, &mask).unwrap();
    exec.compute().unwrap();
    let mut values = Vec::new();
    exec.read_f32(out, &mut values).unwrap();
    values
}

fn check(case: Case, query: usize, hidden: &Hidden, cuts: &[usize]) {
    let got = run(case, query, hidden, cuts);
    let values: Vec<Vec<f32>> = (0..case.n_parts).map(|part| case.keys(part, 20)).collect();
    for (head, got) in got.chunks_exact(D).enumerate() {
        let scores = seen(case, query, head, hidden);
        let all = || scores.iter().copied().flatten().chain(case.sink(head));
        let largest = all().fold(f64::NEG_INFINITY, f64::max);
        let sum: f64 = all().map(|s| (s - largest).exp()).sum();
        let mut want = [0f64; D];
        for (c, p) in
            scores.iter().enumerate().filter_map(|(c, s)| Some((c, (s.as_ref()? - largest).exp() / sum)))
        {
            let (part, at) = case.column(c, head);
            let v = &values[part][at..at + D];
            want.iter_mut().zip(v).for_each(|(w, v)| *w += p * f64::from(*v));
        }
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
