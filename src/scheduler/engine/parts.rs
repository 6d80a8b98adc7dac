//! How a step is divided among the requests that run.

use std::time::Duration;

use super::super::budget::Load;
use super::{Engine, Part, Run};
use crate::model::Result;

/// Steps after which a prompt that is being read, or waits for its turn, counts as half as long.
const HALVED: usize = 64;

impl Engine {
    /// The tokens that the next step reads: one of every sequence that has one left to read, then parts of prompts, for this time.
    pub(super) fn parts(&mut self, aim: Duration) -> Result<Vec<Part>> {
        loop {
            let single: Vec<usize> =
                (0..self.running.len()).filter(|&i| self.running[i].pending() == 1).collect();
            let cells = single.len() * self.session.cells_at_most(1);
            if !self.make_room(cells, single.len())? {
                if self.preempt()? {
                    continue;
                }
                // Alone it has no room: the step says so.
                return Ok(single.into_iter().map(|run| self.part(run, 1)).collect());
            }
            let prompts: Vec<usize> = self.running.iter().map(Run::pending).filter(|&n| n > 1).collect();
            let read = self.running.iter().filter(|run| run.pending() > 1);
            let depth = read.map(|run| run.held).max().unwrap_or(0);
            let load = Load { decoding: !single.is_empty(), prompts: &prompts, depth };
            let budget = self.budget.next(load, aim);
            let chunks = self.chunks(budget);
            let mut parts: Vec<Part> = single.iter().map(|&run| self.part(run, 1)).collect();
            let (mut cells, mut lacking) = (cells, parts.is_empty());
            let youngest = self.running.iter().map(|run| run.job.id).max();
            for (run, n) in chunks {
                let more = self.session.cells_at_most(n);
                if self.make_room(cells + more, parts.len() + 1)? {
                    (cells, lacking) = (cells + more, false);
                    parts.push(self.part(run, n));
                } else if Some(self.running[run].job.id) < youngest {
                    // One without a number of tokens has grown into the room that this one was promised.
                    lacking = true;
                    break;
                }
            }
            if !lacking || self.running.is_empty() {
                return Ok(parts);
            }
            if !self.preempt()? {
                return Ok((0..self.running.len()).map(|run| self.part(run, budget)).collect());
            }
        }
    }

    fn part(&self, run: usize, most: usize) -> Part {
        Part { run, end: self.running[run].end(most) }
    }

    /// Divides tokens among the prompts that are being read: a quarter to the oldest, the others to the one with the
    /// fewest left, which count less the longer they have waited.
    fn chunks(&self, budget: usize) -> Vec<(usize, usize)> {
        let mut order: Vec<usize> =
            (0..self.running.len()).filter(|&i| self.running[i].pending() > 1).collect();
        order.sort_by_key(|&i| {
            let run = &self.running[i];
            (run.pending().saturating_mul(HALVED) / (HALVED + run.age), run.job.id)
        });
        let mut left = budget;
        let mut given = vec![0; self.running.len()];
        let oldest = order.iter().copied().min_by_key(|&i| self.running[i].job.id);
        let quarter = oldest.map(|i| (i, (budget / 4).max(1)));
        for (i, most) in quarter.into_iter().chain(order.iter().map(|&i| (i, budget))) {
            let run = &self.running[i];
            let n = run.end((given[i] + left).min(most)) - run.held;
            left -= n.saturating_sub(given[i]);
            given[i] = given[i].max(n);
        }
        order.into_iter().map(|i| (i, given[i])).filter(|(_, n)| *n > 0).collect()
    }
}
