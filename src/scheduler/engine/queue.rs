//! Requests that wait, and which of them is admitted next.

use super::{Engine, Job, Lack};

/// Younger requests that may be admitted before one that waits for more room than they need.
const MAX_PASSED: usize = 16;

impl Engine {
    /// Takes a request. Callers take turns: one that has many requests waiting delays the others by one of them each time.
    pub(in crate::scheduler) fn push(&mut self, mut job: Job) {
        let caller = job.request.caller;
        let next = self.turns.get(&caller).map_or(0, |last| last + 1);
        job.turn = self.turn.max(next);
        // A turn that is over delays nobody.
        self.turns.retain(|_, turn| *turn >= self.turn);
        self.turns.insert(caller, job.turn);
        let before = self.waiting.iter().rposition(|other| other.turn <= job.turn);
        self.waiting.insert(before.map_or(0, |at| at + 1), job);
        self.changed = true;
    }

    /// Requests that wait, also for the disk.
    pub(in crate::scheduler) fn queue(&self) -> impl Iterator<Item = &Job> {
        self.waiting.iter().chain(self.reading.iter().map(|(job, _)| job))
    }

    /// Gives waiting requests a sequence, in order. One that needs more room than there is does not hold up all others.
    pub(super) fn admit(&mut self) {
        let mut at = 0;
        while self.changed
            && at < self.waiting.len()
            && self.running.len() + self.reading.len() < self.n_running
        {
            let Some(job) = self.waiting.remove(at) else { break };
            match self.place(&job) {
                Ok(mut place) => {
                    self.waiting.iter_mut().take(at).for_each(|earlier| earlier.passed += 1);
                    self.turn = self.turn.max(job.turn);
                    match place.found.take() {
                        Some(found) => self.fetch(job, found),
                        None => self.start(job, place),
                    }
                }
                Err(lack) => {
                    let holds_up = lack == Lack::Room && job.passed >= MAX_PASSED;
                    self.waiting.insert(at, job);
                    if holds_up {
                        break;
                    }
                    at += 1;
                }
            }
        }
        self.changed = false;
    }
}
