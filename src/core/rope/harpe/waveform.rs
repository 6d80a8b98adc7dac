//! The attention waveform of a base, its peaks and its valleys.
//!
//! Formula and extremum rules follow the base search of Attention Buckets (attention-buckets/basic.py of
//! AlibabaResearch/DAMO-ConvAI), the work HARPE cites, with the two constants under which it yields HARPE's
//! Table 2: 30 extrema of each kind, and an upper position of about 131072.

/// Most peaks, and most valleys, taken from a waveform.
pub(super) const MAX_EXTREMA: usize = 30;
/// How near an extremum must come to the one looked for.
const TOLERANCE: f64 = 1e-3;
/// The window searched for the next peak begins this far on, and peaks lie farther apart than this.
const PEAK_GAP: usize = 50;
/// Valleys lie farther apart than this.
const VALLEY_GAP: usize = 60;
/// Step back before the next valley is looked for.
const VALLEY_STEP: usize = 50;
/// Positions searched for the next peak.
const WINDOW: usize = 500;

/// Positions between two exact evaluations of a pair's cosine.
const BLOCK: usize = 2048;
/// Positions advanced at once: enough independent chains to hide the latency of the arithmetic.
const LANES: usize = 32;

/// f_b(m) = 2/sqrt(d) * sum over j < d/2 of cos(m b^(-2j/d)), at the integers `lo ..= hi`.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Waveform {
    lo: usize,
    pub(super) f: Vec<f64>,
}

impl Waveform {
    /// Evaluates it. `d` is the rotary dimension; `lo <= hi`.
    ///
    /// Within a block cos((m+32)θ) = 2 cos(32θ) cos(mθ) - cos((m-32)θ), started exactly; the error of 64 such
    /// steps stays below 1e-11, and the search bears 1e-7.
    pub(super) fn new(base: f64, d: usize, lo: usize, hi: usize) -> Waveform {
        let n = hi.saturating_sub(lo) + 1;
        let mut f = vec![0.0; n.next_multiple_of(LANES)];
        for j in 0..d / 2 {
            let theta = base.powf(-2.0 * j as f64 / d as f64);
            // Angles before and at a block's start: lane l of the first row lies LANES after it.
            let (sin, cos) = theta.sin_cos();
            let mut next = (-(LANES as f64) * theta).sin_cos();
            let lead: [(f64, f64); 2 * LANES] = std::array::from_fn(|_| {
                let here = next;
                next = (here.0 * cos + here.1 * sin, here.1 * cos - here.0 * sin);
                here
            });
            let step = 2.0 * (LANES as f64 * theta).cos();
            for (b, block) in f.chunks_mut(BLOCK).enumerate() {
                let (sin, cos) = ((lo + b * BLOCK) as f64 * theta).sin_cos();
                let at = |l: usize| cos * lead[l].1 - sin * lead[l].0;
                let mut behind: [f64; LANES] = std::array::from_fn(at);
                let mut here: [f64; LANES] = std::array::from_fn(|l| at(l + LANES));
                // Length known, so that the arrays stay in vector registers.
                for row in block.chunks_exact_mut(LANES).filter_map(|r| <&mut [f64; LANES]>::try_from(r).ok())
                {
                    for l in 0..LANES {
                        row[l] += here[l];
                        let next = step * here[l] - behind[l];
                        behind[l] = here[l];
                        here[l] = next;
                    }
                }
            }
        }
        f.truncate(n);
        let scale = 2.0 / (d as f64).sqrt();
        f.iter_mut().for_each(|x| *x *= scale);
        Waveform { lo, f }
    }

    /// At most 30 peaks, ascending: scanned from the left, each the highest point of the 500 positions after
    /// the one before.
    ///
    /// Among the strict local maxima, ends excluded, one within 1e-3 of the target (at first the highest of
    /// all) sets the next target, and is taken if more than 50 beyond the last one taken. While the target is
    /// not met it stands.
    pub(super) fn peaks(&self) -> Vec<usize> {
        let f = &self.f;
        let tops = self.strict(|y, x| y < x);
        let Some(mut target) = tops.iter().map(|i| f[*i]).reduce(f64::max) else { return Vec::new() };
        let mut taken: Vec<usize> = Vec::new();
        for (k, i) in tops.iter().enumerate() {
            if (f[*i] - target).abs() > TOLERANCE {
                continue;
            }
            if taken.last().is_none_or(|last| *i > last + PEAK_GAP) {
                taken.push(*i);
            }
            let Some(next) = tops.get(k + 1) else { break };
            if taken.len() == MAX_EXTREMA {
                break;
            }
            let from = (i + PEAK_GAP).min(*next);
            let to = (from + WINDOW).min(f.len());
            target = f[from..to].iter().copied().fold(f64::NEG_INFINITY, f64::max);
        }
        taken.iter().map(|i| i + self.lo).collect()
    }

    /// At most 30 valleys, ascending: scanned from the right, each the lowest point of everything before the
    /// one after. No mirror image of [`Self::peaks`].
    pub(super) fn valleys(&self) -> Vec<usize> {
        let f = &self.f;
        let bottoms = self.strict(|y, x| y > x);
        let Some(mut target) = bottoms.iter().map(|i| f[*i]).reduce(f64::min) else { return Vec::new() };
        // Minimum of f over the first (i + 1) * BLOCK offsets.
        let mut lowest: Vec<f64> =
            f.chunks(BLOCK).map(|b| b.iter().copied().fold(f64::INFINITY, f64::min)).collect();
        (1..lowest.len()).for_each(|i| lowest[i] = lowest[i].min(lowest[i - 1]));
        let mut taken: Vec<usize> = Vec::new();
        for (k, i) in bottoms.iter().enumerate().rev() {
            if (f[*i] - target).abs() > TOLERANCE {
                continue;
            }
            if taken.last().is_none_or(|last| i + VALLEY_GAP < *last) {
                taken.push(*i);
            }
            if k == 0 || taken.len() == MAX_EXTREMA {
                break;
            }
            let before = i.saturating_sub(VALLEY_STEP).min(bottoms[k - 1]);
            if before == 0 {
                break;
            }
            let whole = before / BLOCK;
            let rest = f[whole * BLOCK..before].iter().copied().fold(f64::INFINITY, f64::min);
            target = if whole == 0 { rest } else { rest.min(lowest[whole - 1]) };
        }
        taken.iter().rev().map(|i| i + self.lo).collect()
    }

    /// Offsets of strict local extrema, ends excluded: both neighbors lie on the side `beyond` says.
    fn strict(&self, beyond: impl Fn(f64, f64) -> bool) -> Vec<usize> {
        let inner = self.f.windows(3).enumerate();
        inner.filter(|(_, w)| beyond(w[0], w[1]) && beyond(w[2], w[1])).map(|(i, _)| i + 1).collect()
    }
}
