//! HARPE's search of bases: the rule that makes the published table.

use rayon::prelude::*;

use super::waveform::{Waveform, MAX_EXTREMA};

#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Search {
    /// Smallest base; always in the result.
    pub base_min: f64,
    /// No candidate lies above.
    pub base_max: f64,
    /// Candidates are `base_min + i * stride`.
    pub stride: f64,
    /// Positions of the waveforms, first.
    pub lo: usize,
    /// Last.
    pub hi: usize,
    /// Rotary dimension.
    pub n_rot: usize,
    /// Bases wanted.
    pub n_bases: usize,
}

impl Search {
    /// Steps from `base_min` to the last candidate.
    pub(super) fn n_steps(&self) -> usize {
        // A hair more, so that a stride that divides the range ends on base_max.
        ((self.base_max - self.base_min) / self.stride + 1e-6).max(0.0) as usize
    }

    /// Cosines the waveforms take, with what takes as long as that many: looking for their extrema, and comparing
    /// those of each candidate with what is held for each base.
    pub(super) fn cost(&self) -> f64 {
        let of_waveform = (self.hi - self.lo + 1) as f64 * (self.n_rot / 2 + SCAN) as f64;
        let of_picks = self.n_bases as f64 * (2 * MAX_EXTREMA * (2 * RADIUS + 1)) as f64;
        (self.n_steps() + 1) as f64 * (of_waveform + of_picks)
    }

    fn candidates(&self) -> Vec<Candidate> {
        (0..=self.n_steps())
            .into_par_iter()
            .map(|i| {
                let base = self.base_min + i as f64 * self.stride;
                let wave = Waveform::new(base, self.n_rot, self.lo, self.hi);
                Candidate { base, peaks: wave.peaks(), valleys: wave.valleys() }
            })
            .collect()
    }
}

struct Candidate {
    base: f64,
    peaks: Vec<usize>,
    valleys: Vec<usize>,
}

/// Looking for extrema takes about as long as this many cosines at each position.
const SCAN: usize = 8;

/// Peaks and valleys closer than this complement each other.
const RADIUS: usize = 3;

/// The search that makes Table 2: bases in the order it picks, to be sorted for heads, each with the number of pairs that it
/// brought, 0 for the first.
///
/// From `base_min`, again and again the candidate that has the most (its peak, a valley held) and (its
/// valley, a peak held) pairs at most 3 positions apart, ties by the smallest mean square of their distances,
/// then by the smallest base. Its extrema join those held, with repeats, and every position then held as a
/// peak and as a valley is dropped from both. Fewer bases than wanted when candidates run out.
pub(super) fn bases(search: &Search) -> Vec<(f64, u64)> {
    let mut free = search.candidates();
    if free.is_empty() || search.n_bases == 0 {
        return Vec::new();
    }
    let (mut peaks, mut valleys) = (Held::new(search), Held::new(search));
    let first = free.remove(0);
    first.peaks.iter().for_each(|p| peaks.add(*p));
    first.valleys.iter().for_each(|v| valleys.add(*v));
    let mut picks = vec![(first.base, 0)];
    while picks.len() < search.n_bases {
        // With n equal, the smaller sum of squares is the smaller mean.
        let best = free
            .iter()
            .enumerate()
            .map(|(i, c)| {
                let (n, sum) = c.peaks.iter().map(|p| valleys.near(*p)).fold((0, 0), plus);
                let (n, sum) = c.valleys.iter().map(|v| peaks.near(*v)).fold((n, sum), plus);
                (std::cmp::Reverse(n), sum, i)
            })
            .min();
        let Some((std::cmp::Reverse(n), _, i)) = best else { break };
        let c = free.remove(i);
        picks.push((c.base, n));
        c.peaks.iter().for_each(|p| peaks.add(*p));
        c.valleys.iter().for_each(|v| valleys.add(*v));
        // Only a position just added can be in both.
        for at in c.peaks.iter().chain(&c.valleys).map(|p| p - search.lo) {
            if peaks.count[at] > 0 && valleys.count[at] > 0 {
                (peaks.count[at], valleys.count[at]) = (0, 0);
            }
        }
    }
    picks
}

fn plus(a: (u64, u64), b: (u64, u64)) -> (u64, u64) {
    (a.0 + b.0, a.1 + b.1)
}

/// Positions held, with repeats: how often each.
struct Held {
    lo: usize,
    count: Vec<u32>,
}
impl Held {
    fn new(search: &Search) -> Held {
        Held { lo: search.lo, count: vec![0; search.hi - search.lo + 1] }
    }
    fn add(&mut self, position: usize) {
        self.count[position - self.lo] += 1;
    }
    /// How many lie within [`RADIUS`], and the sum of their squared distances.
    fn near(&self, position: usize) -> (u64, u64) {
        let at = position - self.lo;
        let from = at.saturating_sub(RADIUS);
        let to = (at + RADIUS).min(self.count.len() - 1);
        (from..=to)
            .map(|i| (u64::from(self.count[i]), (i.abs_diff(at) as u64).pow(2)))
            .fold((0, 0), |sum, (n, square)| plus(sum, (n, n * square)))
    }
}
