//! What the sequences of an engine hold, by whose requests it was read.

use super::super::request::Slot;
use super::Engine;
use crate::kv::MAX_SEQS;
use crate::model::{Error, Result};
use crate::session::SeqId;

impl Engine {
    /// What its sequences hold of requests whose salt begins with `owner`.
    pub(in crate::scheduler) fn slots(&self, owner: &[u8]) -> Vec<Slot> {
        let slot = |seq: SeqId| Slot { id: self.slot(seq), plan: self.plan, ..Slot::default() };
        let own = self.running.iter().filter(|run| run.job.request.salt.starts_with(owner));
        let running = own.map(|run| Slot {
            request: Some(run.job.id),
            n_held: run.held,
            n_prompt: run.job.n_prompt,
            n_cached: run.job.n_cached,
            n_made: run.job.n_made(),
            ..slot(run.seq)
        });
        let kept = self.prefixes.owned(owner);
        let kept = kept.map(|seq| Slot { n_held: self.session.tokens(seq).len(), ..slot(seq) });
        let mut slots: Vec<Slot> = running.chain(kept).collect();
        slots.sort_unstable_by_key(|slot| slot.id);
        slots
    }

    /// The number of a sequence among those of all plans.
    fn slot(&self, seq: SeqId) -> usize {
        self.plan * MAX_SEQS as usize + seq as usize
    }

    /// Empties a sequence of `owner` that no request has; returns how many tokens it held.
    pub(in crate::scheduler) fn erase(&mut self, owner: &[u8], seq: SeqId) -> Result<usize> {
        if !self.prefixes.owned(owner).any(|kept| kept == seq) {
            let expected = "one that holds a text and in which no request runs";
            return Err(Error::argument("slot", expected, self.slot(seq)));
        }
        let n = self.session.tokens(seq).len();
        self.prefixes.erase(&mut self.session, seq)?;
        self.changed = true;
        Ok(n)
    }
}
