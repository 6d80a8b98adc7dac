//! Requests that wait, and which of them is admitted next.

use std::collections::BTreeMap;

use super::{Engine, Job, Lack, Place};

/// Younger requests that may be admitted before one that waits for more room than they need, or for a place for long ones.
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
        // Cells that short requests may have next to one that many have passed.
        let (mut at, mut left) = (0, None);
        let mut passed = false;
        while self.changed && at < self.waiting.len() && self.n_taken() < self.n_places() {
            if self.waiting[at].long && !self.takes_long(&self.waiting[at]) {
                at += 1;
                continue;
            }
            let Some(mut job) = self.waiting.remove(at) else { break };
            let mut placed = self.place(&job);
            if let Ok(place) = &placed {
                job.long = job.is_long(place.n_cached());
                if self.is_kept(&job, left) {
                    placed = Err(Lack::Kept);
                }
            }
            match placed {
                Ok(mut place) => {
                    self.waiting.iter_mut().take(at).for_each(|earlier| earlier.passed += 1);
                    self.turn = self.turn.max(job.turn);
                    passed |= at > 0;
                    match place.found.take() {
                        Some(found) => self.fetch(job, found),
                        None => self.start(job, place),
                    }
                }
                Err(lack) => {
                    if let Lack::Room(spare) = lack {
                        if job.passed >= MAX_PASSED {
                            left = Some(left.map_or(spare, |left: usize| left.min(spare)));
                        }
                    }
                    self.waiting.insert(at, job);
                    if left == Some(0) {
                        break;
                    }
                    at += 1;
                }
            }
        }
        self.changed = false;
        if passed {
            self.catch_up();
        }
    }

    /// Gives those whose turn went by while they waited the turns from now on, one to each of a caller: else all of them would
    /// go before the next request of another caller.
    fn catch_up(&mut self) {
        let is_new = |job: &Job| !job.is_admitted() && job.n_restored.is_none();
        let mut turns: BTreeMap<usize, u64> = BTreeMap::new();
        for job in self.waiting.iter_mut().filter(|job| is_new(job)) {
            let next = turns.entry(job.request.caller).or_insert(self.turn);
            job.turn = job.turn.max(*next);
            *next = job.turn + 1;
            let last = self.turns.entry(job.request.caller).or_default();
            *last = job.turn.max(*last);
        }
        // Those that ran before, or were read from disk, are next in turn.
        self.waiting.make_contiguous().sort_by_key(|job| is_new(job).then_some(job.turn));
    }

    fn n_taken(&self) -> usize {
        self.running.len() + self.reading.len()
    }

    fn n_long(&self) -> usize {
        let reading = self.reading.iter().map(|(job, _)| job);
        self.running.iter().map(|run| &run.job).chain(reading).filter(|job| job.long).count()
    }

    /// Requests that may run now. Next to long ones there is a place for a short one, so that it waits for no long prompt.
    fn n_places(&self) -> usize {
        if self.n_long() == 0 {
            self.n_running
        } else {
            self.n_places
        }
    }

    /// Whether there is a place for a long request. One that many have passed may have any place that is free: else short
    /// ones, of which one begins whenever one ends, would keep it out.
    fn takes_long(&self, job: &Job) -> bool {
        let is_free = self.n_taken() < self.n_running || job.passed >= MAX_PASSED;
        is_free && self.n_long() < (self.n_places - 1).max(1)
    }

    /// Whether what a request would take is kept for others: a place for short ones, and, where `left` cells are left to
    /// these, all other cells for one that has waited long.
    fn is_kept(&self, job: &Job, left: Option<usize>) -> bool {
        if job.long && !self.takes_long(job) {
            return true;
        }
        let Some(left) = left else { return false };
        let short = self.running.iter().filter(|run| !run.job.long).map(|run| run.target.max(run.held));
        let targets = short.chain([self.target(job, 0)]);
        job.long || targets.map(|n| self.session.cells_at_most(n)).sum::<usize>() > left
    }
}

impl Place {
    /// Tokens that need not be read.
    fn n_cached(&self) -> usize {
        let of_donor = self.donor.map_or(0, |(_, n)| n);
        self.found.as_ref().map_or(of_donor, |found| found.n)
    }
}
