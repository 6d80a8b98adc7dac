//! The divergence of two predictions, over all tokens and by position.

#[path = "../../src/eval/divergence/points.rs"]
#[allow(dead_code, unreachable_pub)]
mod points;

use points::{buckets, Point, Spread};
use ropewalk_core::divergence::Divergence;

#[test]
fn positions_fall_into_their_buckets() {
    let of = |kl| Divergence { kl, same_top: kl == 0.0, nll: [1.0, 2.0] };
    let at = |position, kl| Point { position, of: of(kl) };
    let points = [at(1, 0.0), at(3, 0.4), at(4, 0.2), at(9, 0.0)];
    let found = buckets(&points, 4, 10);
    let short: Vec<_> = found.iter().map(|b| (b.start, b.end, b.tokens, b.same_top)).collect();
    assert_eq!(short, [(0, 4, 2, 50.0), (4, 8, 1, 0.0), (8, 10, 1, 100.0)]);
    assert!((found[0].kl - 0.2).abs() < 1e-12 && (found[0].ppl_b - 2f64.exp()).abs() < 1e-12);
    let spread = Spread::new(&points);
    assert_eq!((spread.max, spread.median), (0.4, 0.2));
}
