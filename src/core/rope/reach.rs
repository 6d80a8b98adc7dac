//! The second axis of a plan: which query-key pairs see each other, and at which positions. Data only.

use std::ops::Range;

/// An exact map of positions: `min(floor((i mod modulo) / div) + add, max) / unit`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct PosMap {
    /// Positions start over after this many.
    pub modulo: i32,
    /// Neighbors that share a position.
    pub div: i32,
    /// Added after that.
    pub add: i32,
    /// The largest number of units there is.
    pub max: i32,
    /// Parts of a position counted by the numbers above, at least 1: more where positions are fractions.
    pub unit: i32,
}

impl PosMap {
    /// The position itself.
    pub const IDENTITY: PosMap = PosMap { modulo: i32::MAX, div: 1, add: 0, max: i32::MAX, unit: 1 };

    /// One position for all.
    pub const fn constant(at: i32) -> PosMap {
        PosMap { modulo: 1, add: at, ..PosMap::IDENTITY }
    }

    /// Where `i` (0 or more) is put, in units; never negative.
    pub fn at(&self, i: i32) -> i32 {
        ((i % self.modulo.max(1)) / self.div.max(1)).saturating_add(self.add).min(self.max).max(0)
    }
}

/// How many chunks a key may lie before its query's own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Chunks {
    /// Tokens in a chunk, at least 1.
    pub len: i32,
    /// Fewest chunks back.
    pub min: i32,
    /// Most chunks back.
    pub max: i32,
}

/// The keys at or before a query that meet every condition here. They always are one run of positions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Reach {
    /// Distance from query back to key, from here on.
    pub dist_min: i32,
    /// Distance below this.
    pub dist_end: i32,
    /// Key positions from here on.
    pub key_min: i32,
    /// Key positions below this.
    pub key_end: i32,
    /// Chunks that keys may lie in.
    pub chunks: Option<Chunks>,
}

impl Reach {
    /// Every key at or before the query.
    pub const CAUSAL: Reach =
        Reach { dist_min: 0, dist_end: i32::MAX, key_min: 0, key_end: i32::MAX, chunks: None };

    /// The positions query `i` sees, empty or within `0..=i`.
    pub fn keys(&self, i: i32) -> Range<i32> {
        let i = i64::from(i);
        let mut lo = (i - i64::from(self.dist_end) + 1).max(i64::from(self.key_min));
        let mut hi = (i - i64::from(self.dist_min) + 1).min(i64::from(self.key_end));
        if let Some(c) = self.chunks {
            let (len, own) = (i64::from(c.len.max(1)), i / i64::from(c.len.max(1)));
            lo = lo.max((own - i64::from(c.max)) * len);
            hi = hi.min((own - i64::from(c.min) + 1) * len);
        }
        let (lo, hi) = (lo.max(0), hi.min(i + 1));
        // Both lie within 0..=i+1 now, unless empty.
        if lo < hi {
            lo as i32..hi as i32
        } else {
            0..0
        }
    }

    /// Returns true if query `from` or any later query can see key `j`.
    pub fn needs(&self, j: i32, from: i32) -> bool {
        let back = i64::from(from) - i64::from(j);
        let chunks = self.chunks.is_none_or(|c| {
            let len = c.len.max(1);
            i64::from(from / len) - i64::from(j / len) <= i64::from(c.max)
        });
        (self.key_min..self.key_end).contains(&j) && back < i64::from(self.dist_end) && chunks
    }

    /// Keys that can be needed at once, however long the text; `None` when that grows with it.
    pub fn most_keys(&self) -> Option<usize> {
        let by_dist = (self.dist_end < i32::MAX).then_some(i64::from(self.dist_end));
        let by_keys = (self.key_end < i32::MAX).then_some(i64::from(self.key_end) - i64::from(self.key_min));
        let by_chunks = self
            .chunks
            .filter(|c| c.max < i32::MAX)
            .map(|c| i64::from(c.len.max(1)).saturating_mul(i64::from(c.max) + 1));
        [by_dist, by_keys, by_chunks].into_iter().flatten().min().map(|n| n.max(0) as usize)
    }
}

/// One attention branch: the pairs in `reach`, rotated at `q_pos(i)` and `k_pos(j)`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Branch {
    /// Query positions.
    pub q_pos: PosMap,
    /// Key positions.
    pub k_pos: PosMap,
    /// Pairs covered.
    pub reach: Reach,
}

impl Branch {
    /// Attention as models are trained with it.
    pub const PLAIN: Branch =
        Branch { q_pos: PosMap::IDENTITY, k_pos: PosMap::IDENTITY, reach: Reach::CAUSAL };

    /// The distance the model is shown between query `i` and key `j`, if this branch covers the pair.
    pub fn distance(&self, i: i32, j: i32) -> Option<f64> {
        let (parts, unit) = self.parts(i, j);
        self.reach.keys(i).contains(&j).then(|| parts as f64 / unit as f64)
    }

    /// Returns true if query `i` is shown those of `keys` at their own distances. A step from key to key adds at most
    /// one position, so if both ends are right, all keys between them are.
    fn keeps_distances(&self, i: i32, keys: &Range<i32>) -> bool {
        let own = |j: i32| {
            let (parts, unit) = self.parts(i, j);
            parts == i64::from(i - j) * unit
        };
        own(keys.start) && own(keys.end - 1)
    }

    /// The distance of a pair in whole parts, and how many of them are one position.
    fn parts(&self, i: i32, j: i32) -> (i64, i64) {
        let (q, k) = (i64::from(self.q_pos.unit.max(1)), i64::from(self.k_pos.unit.max(1)));
        (i64::from(self.q_pos.at(i)) * k - i64::from(self.k_pos.at(j)) * q, q * k)
    }

    /// The largest distance that query `i` is shown to any of `keys` (of those this branch covers), rounded
    /// up; `None` when it covers none.
    pub fn largest(&self, i: i32, keys: Range<i32>) -> Option<i32> {
        let covered = self.reach.keys(i);
        let (from, end) = (covered.start.max(keys.start), covered.end.min(keys.end));
        // Positions only grow within a period: the smallest is at its start, if that is among the keys, else
        // at the first key.
        let period = i64::from(self.k_pos.modulo.max(1));
        let start = (i64::from(from) + period - 1) / period * period;
        let lowest = i32::try_from(start).ok().filter(|s| *s < end).unwrap_or(from);
        let (parts, unit) = self.parts(i, lowest);
        // Positions are 32-bit, and so is their difference.
        (from < end).then(|| (parts + unit - 1).div_euclid(unit) as i32)
    }
}

/// Returns true if queries below `n` see the same keys under `branches` as under `own`, at their own distances. Checks
/// one query after another, up to the first that does not.
pub(super) fn same_within(own: &Branch, branches: &[Branch], n: i32) -> bool {
    let same = |i: i32| {
        let seen = || branches.iter().map(|b| (b, b.reach.keys(i))).filter(|(_, keys)| !keys.is_empty());
        let count: usize = seen().map(|(_, keys)| keys.len()).sum();
        count == own.reach.keys(i).len() && seen().all(|(b, keys)| b.keeps_distances(i, &keys))
    };
    (0..n).all(same)
}

/// A plan's branches, at most this many.
pub const MAX_BRANCHES: usize = 3;
