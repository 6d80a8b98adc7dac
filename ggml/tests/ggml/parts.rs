//! How products are divided among threads.

#[path = "../../src/parts/cut.rs"]
mod cut;

use cut::{cut, range, Cut};

#[test]
fn parts_are_whole_units_and_together_all() {
    for (n, unit) in [(1, 32), (31, 32), (32, 32), (95, 32), (576, 32), (50_257, 32), (17, 16), (12, 4)] {
        for n_parts in 1..20 {
            let mut next = 0;
            for range in (0..n_parts).map(|i| range(n, unit, i, n_parts)).filter(|r| !r.is_empty()) {
                assert_eq!(range.start, next, "{n} in {n_parts}");
                assert!(range.start % unit == 0 && (range.end % unit == 0 || range.end == n));
                assert!(range.len() >= unit.min(n));
                next = range.end;
            }
            assert_eq!(next, n);
        }
    }
}

#[test]
fn what_is_divided() {
    assert_eq!(cut([576, 1, 1], 1, 1), Cut::Nothing);
    assert_eq!(cut([50_257, 1, 1], 1, 4), Cut::Rows);
    assert_eq!(cut([576, 7, 1], 1, 4), Cut::Rows);
    assert_eq!(cut([576, 512, 1], 1, 4), Cut::Tokens);
    assert_eq!(cut([576, 511, 1], 1, 4), Cut::Rows);
    assert_eq!(cut([50_257, 7, 1], 1, 4), Cut::Nothing);
    assert_eq!(cut([64, 100, 9], 3, 4), Cut::Heads(3));
}
