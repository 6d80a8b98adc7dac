//! Attention seen from outside against the naive model: the probabilities of every head, and the maps made of them.

use ropewalk::control::Control;
use ropewalk::eval::attention::{measure, Params};
use ropewalk::rope::Plan;
use ropewalk::session::Session;
use ropewalk::DType;

use super::cases::{self, Case, DCA, FREQUENCIES};
use super::exact::bound;
use super::{text, twins, under, Failures, Twin};
use crate::common::rounding::{rounding, two_orders};
use crate::common::{open, roundings, says, score, soaks};

/// More than a block of 256 cells.
const N: usize = 300;
const N_CTX: usize = 640;

/// Every head, `[layer][head][query][key]`.
type Probabilities = Vec<Vec<Vec<Vec<f64>>>>;

fn definition(twin: &Twin, case: &Case) -> Probabilities {
    let plan = Plan::new(&case.spec.parse().unwrap(), twin.model.hparams(), N_CTX).unwrap();
    twin.naive.probabilities(&text(N), case, &plan)
}

/// How far apart the scores of a row are, at most.
fn scores(want: &Probabilities) -> f64 {
    let apart = |row: &Vec<f64>| {
        let seen = row.iter().copied().filter(|&p| p > 0.0);
        (seen.clone().fold(0.0, f64::max) / seen.fold(1.0, f64::min)).ln()
    };
    want.iter().flatten().flatten().map(apart).fold(0.0, f64::max)
}

/// How far a probability may be off, in parts of it: by as much as its score and the mean of its row's are, for exp(s + e) is
/// exp(s) times 1 + e. A score is off by as large a part of its magnitude as a row is of its norm, and what all of a row have in
/// common counts for nothing: that leaves half of what they are apart for either.
fn part(twin: &Twin, want: &Probabilities, kv: DType, portable: bool) -> f64 {
    scores(want) * bound(twin, N, kv, portable)
}

/// The sum of a row of probabilities: one rounding for each term of the sum they are divided by, and one for that of each.
const SUMS: f64 = rounding(N + 1);

/// Largest error of a probability, in parts of it, and of the sum of a row from 1.
fn off(session: &mut Session, want: &Probabilities) -> (f64, f64) {
    let (mut worst, mut sums, mut rows) = (0f64, 0f64, 0);
    session
        .probe(&text(N), 0..want.len(), &mut |block| {
            assert_eq!(block.n_head(), want[block.layer].len());
            for (head, want) in want[block.layer].iter().enumerate() {
                // Also odd numbers of rows.
                for start in block.positions.clone().step_by(7) {
                    let positions = start..(start + 7).min(block.positions.end);
                    let width = positions.end;
                    let p = block.probabilities(head, positions.clone())?;
                    assert_eq!(p.len(), width * positions.len());
                    for (i, row) in positions.zip(p.chunks_exact(width)) {
                        let sum: f64 = row.iter().map(|&p| f64::from(p)).sum();
                        sums = sums.max((sum - 1.0).abs());
                        assert!(row[i + 1..].iter().all(|&p| p == 0.0), "query {i} sees a later key");
                        let error = |(&p, &want): (&f32, &f64)| match want > 0.0 {
                            true => (f64::from(p) / want - 1.0).abs(),
                            false if p == 0.0 => 0.0,
                            false => f64::INFINITY,
                        };
                        let most = row.iter().zip(&want[i]).map(error).fold(0.0, f64::max);
                        assert!(most.is_finite());
                        worst = worst.max(most);
                        rows += 1;
                    }
                }
            }
            Ok(())
        })
        .unwrap();
    assert_eq!(rows, want.iter().map(Vec::len).sum::<usize>() * N, "each query of each head once");
    (worst, sums)
}

#[test]
fn probabilities_follow_their_definitions() {
    let mut failures = Failures::default();
    let ways = [(DType::F32, 64, false), (DType::F32, 300, true), (DType::F16, 100, false)];
    for (c, case) in cases::all().enumerate() {
        for (i, twin) in twins().iter().enumerate() {
            if i > 0 && i != 1 + c % (twins().len() - 1) {
                continue;
            }
            let want = definition(twin, case);
            // The first model in every way, each of the others in one after another.
            let turn = c / (twins().len() - 1) % ways.len();
            let in_turn = if i == 0 || soaks() { &ways[..] } else { &ways[turn..=turn] };
            for &(kv, n_ubatch, portable) in in_turn {
                let params = under(case.spec, N_CTX, kv).n_ubatch(n_ubatch).portable(portable);
                let (worst, sums) = off(&mut open(&twin.model, &params), &want);
                let what = format!("{}: {}, {kv} cache, portable {portable}", case.spec, twin.about);
                failures.at_most(part(twin, &want, kv, portable), worst, &what);
                // Sinks take a part of each.
                if !twin.about.contains("sinks") {
                    failures.at_most(SUMS, sums, &format!("{what}: sums of rows"));
                }
            }
        }
    }
    failures.none();
}

/// Where keys leave the cache its cells hold positions in no order, and the text is longer than the context.
#[test]
fn probabilities_of_plans_that_drop_keys() {
    let twin = &twins()[0];
    let mut failures = Failures::default();
    let mut found = 0;
    for case in cases::all() {
        let params = under(case.spec, 128, DType::F32).n_ubatch(16);
        let mut session = open(&twin.model, &params);
        if session.plan().evict {
            let want = definition(twin, case);
            let (worst, sums) = off(&mut session, &want);
            failures.at_most(part(twin, &want, DType::F32, false), worst, case.spec);
            failures.at_most(SUMS, sums, &format!("{}: sums of rows", case.spec));
            found += 1;
        }
    }
    assert!(found >= 3, "cases.rs has too few plans that evict");
    failures.none();
}

#[test]
fn a_probed_session_goes_on_as_any_other() {
    let model = &twins()[0].model;
    let params = under("plain", N_CTX, DType::F32);
    let mut session = open(model, &params);
    let mut calls = 0;
    let mut count = |_: &_| {
        calls += 1;
        Ok(())
    };
    session.probe(&text(N), 1..2, &mut count).unwrap();
    assert_eq!(calls, 2, "micro-batches of one layer");
    let next = session.append(&text(N + 1)[N..]).unwrap().to_vec();
    let mut other = open(model, &params);
    let rows = score(&mut other, &text(N + 1));
    let last = &rows[rows.len() - next.len()..];
    assert!(super::apart(last, &next) < two_orders(roundings(model.hparams(), N + 1)));
    for bad in [0..0, 1..3, 2..3] {
        assert!(session.probe(&text(3), bad, &mut |_| Ok(())).is_err());
    }
}

/// The head, its sum and its squares, from the naive probabilities by their definition.
#[test]
fn maps_follow_their_definition() {
    const DISTANCE: usize = 100;
    let twin = &twins()[0];
    for (case, kv) in [(&FREQUENCIES[0], DType::F32), (&DCA[0], DType::F32)] {
        let want = definition(twin, case);
        // Sums of probabilities are off by no larger a part than these.
        let part = part(twin, &want, kv, false);
        let close = |found: f64, want: f64| (found - want).abs() <= part * want;
        let far_without = |sinks: usize, layer: usize, head: usize| -> f64 {
            let rows = want[layer][head].iter().enumerate();
            let far = rows.flat_map(|(i, row)| {
                row.iter().enumerate().filter(move |&(j, _)| i - j > DISTANCE && j >= sinks)
            });
            far.map(|(_, p)| p).sum()
        };
        let far = |layer, head| far_without(0, layer, head);
        let mut heads: Vec<(usize, usize)> = (0..2).flat_map(|l| (0..4).map(move |h| (l, h))).collect();
        heads.sort_by(|a, b| far(b.0, b.1).total_cmp(&far(a.0, a.1)));
        let mut session = open(&twin.model, &under(case.spec, N_CTX, kv));
        let params = Params::new(N).distance(DISTANCE);
        let tokens = text(N);
        let mut run = |params: &Params| measure(&mut session, "twin", &tokens, params, &Control::default());
        let report = run(&params).unwrap();
        let found: Vec<_> = report.heads.iter().map(|h| (h.layer, h.head)).collect();
        assert_eq!(found, heads, "{}", case.spec);
        for h in report.heads.iter().chain([&report.shown]) {
            let want = far(h.layer, h.head);
            assert!(close(h.far, want), "{}: {h:?}, not {want}", case.spec);
            assert_eq!(h.far_per_query, h.far / (N - DISTANCE - 1) as f64);
        }
        let (layer, head) = heads[0];
        assert_eq!((report.shown.layer, report.shown.head), (layer, head));
        let most = |want: &Probabilities, layer: usize, head: usize, [r, c]: [usize; 2]| {
            let rows = want[layer][head].iter().skip(16 * r).take(16);
            rows.flat_map(|row| row.iter().skip(16 * c).take(16)).copied().fold(0.0, f64::max)
        };
        assert_eq!((report.map.tile, report.map.rows.len()), (16, N.div_ceil(16)));
        for (r, row) in report.map.rows.iter().enumerate() {
            assert_eq!(row.len(), r + 1);
            for (c, &p) in row.iter().enumerate() {
                let want = most(&want, layer, head, [r, c]);
                assert!(close(p.into(), want), "{}: {r}, {c}: {p}, not {want}", case.spec);
                let shown = (100.0 * want).clamp(0.0, 1.0);
                assert!(close(report.map.shown()[r][c].into(), shown));
            }
        }
        // A given head, and the best of a layer.
        let (layer, head) = heads[7];
        let given = run(&params.clone().layer(Some(layer)).head(Some(head))).unwrap();
        assert_eq!((given.shown.layer, given.shown.head, given.heads.len()), (layer, head, 0));
        assert!(close(given.shown.far, far(layer, head)));
        let of_layer = run(&params.clone().layer(Some(layer))).unwrap();
        let best = heads.iter().find(|h| h.0 == layer).unwrap();
        assert_eq!((of_layer.shown.layer, of_layer.shown.head, of_layer.heads.len()), (best.0, best.1, 4));
        for h in run(&params.clone().sinks(5)).unwrap().heads {
            let want = far_without(5, h.layer, h.head);
            assert!(close(h.far, want), "{}: {h:?}, not {want}", case.spec);
        }
        for (bad, why) in [
            (params.clone().layer(Some(2)), "layer: expected 0 to 1, found 2"),
            (params.clone().layer(Some(0)).head(Some(4)), "head: expected 0 to 3, found 4"),
            (params.clone().head(Some(0)), "needs its layer"),
            (params.clone().distance(N - 1), "no two of 300 tokens are more than 299 apart"),
            (params.clone().tile(0), "at least 1"),
        ] {
            says(run(&bad), &[why]);
        }
        let long = vec![1; N_CTX + 1];
        let limit = if session.plan().evict { continue } else { "at most 640 tokens" };
        says(measure(&mut session, "twin", &long, &params, &Control::default()), &[limit]);
    }
}
