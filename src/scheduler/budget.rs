//! How many tokens of prompts a step takes: as many as fit in the time aimed at, by the time that each took in earlier steps.

use std::time::Duration;

/// Products take rows of activations in groups of this many (`kernels::int8::MOST`); fewer take as long.
pub(super) const WIDTH: usize = 8;
/// Fewer are never taken. From 16 rows on, products put the codes of a weight in order once for all rows, and 16 rows fill an
/// AMX tile. With fewer, most of a step would be the time that one of any size takes.
pub(super) const FLOOR: usize = 2 * WIDTH;
/// How many times longer a step may take while nobody waits for its end. A request that comes then waits for it, so it is not
/// as long as a micro-batch may take: on a slow model, 20 seconds.
const ALONE: f64 = 16.0;
/// Tokens of such a step while nothing is known of their time.
const FIRST: usize = 64;
/// Depths that are measured by themselves: each reaches twice as far as the one before, from 1,024 tokens on.
const DEPTHS: usize = 12;

#[derive(Debug)]
pub(super) struct Budget {
    fixed: Option<usize>,
    bounds: Bounds,
    /// Seconds for each token, by the depth of the prompts: attention to more tokens takes longer.
    paces: [Option<f64>; DEPTHS],
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Bounds {
    /// Tokens of a batch.
    pub(super) most: usize,
    /// Tokens of a micro-batch: more at once are not read faster.
    pub(super) whole: usize,
}

/// The work that the next step is cut for.
#[derive(Debug, Clone, Copy)]
pub(super) struct Load<'a> {
    /// Whether sequences decode in it.
    pub(super) decoding: bool,
    /// Tokens left of each prompt.
    pub(super) prompts: &'a [usize],
    /// Most tokens before the next ones of a prompt.
    pub(super) depth: usize,
}

impl Budget {
    pub(super) fn new(fixed: Option<usize>, most: usize, whole: usize) -> Budget {
        Budget { fixed, bounds: Bounds { most, whole }, paces: [None; DEPTHS] }
    }

    /// Tokens of prompts for the next step.
    pub(super) fn next(&self, load: Load<'_>, aim: Duration) -> usize {
        let (nearer, farther) = self.paces.split_at(class(load.depth) + 1);
        let pace = nearer.iter().rev().chain(farther).find_map(|pace| *pace);
        self.fixed.unwrap_or_else(|| tokens(load, pace, aim.as_secs_f64(), self.bounds))
    }

    /// Learns from a step of `n` tokens of prompts at a depth that took some time, where `aim` would have been right.
    pub(super) fn learn(&mut self, n: usize, depth: usize, took: Duration, aim: Duration) {
        // They say little about more tokens, and fewer are not taken by choice.
        if n < FLOOR {
            return;
        }
        let (n, took, aim) = (n as f64, took.as_secs_f64().max(1e-9), aim.as_secs_f64());
        let (each, pace) = (took / n, &mut self.paces[class(depth)]);
        *pace = match *pace {
            // The same, if it could have read twice as many.
            Some(known) if took < aim && 2.0 * n * known < aim => return,
            // One step may have been held up by something else.
            Some(known) => Some(each.clamp(known / 2.0, known * 2.0)),
            None => Some(each),
        };
    }
}

/// The entry of a depth in [`Budget::paces`].
fn class(depth: usize) -> usize {
    ((depth / 1024 + 1).ilog2() as usize).min(DEPTHS - 1)
}

/// Tokens of prompts for a step that is to take `aim` seconds, where each token takes `pace`, if that is known.
pub(super) fn tokens(load: Load<'_>, pace: Option<f64>, aim: f64, bounds: Bounds) -> usize {
    let within = |time: f64, unknown: usize| {
        let n = pace.map_or(unknown, |pace| (time / pace) as usize);
        (n / WIDTH * WIDTH).max(FLOOR)
    };
    let short = within(aim, FLOOR).min(bounds.most.max(FLOOR));
    // One that a short step reads to its end does not wait for more of the others.
    let ends = load.prompts.len() > 1 && load.prompts.iter().any(|&n| n <= short);
    let n = match (load.decoding, ends) {
        (true, _) => short,
        (false, true) => short.min(bounds.whole),
        (false, false) => within(aim * ALONE, FIRST).min(bounds.whole),
    };
    n.max(1)
}
