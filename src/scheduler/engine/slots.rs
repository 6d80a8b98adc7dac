//! The texts that an engine's sequences hold, by the owner of the requests that read them.

use super::super::disk::Store;
use super::super::request::Slot;
use super::super::scores::Scores;
use super::Engine;
use crate::kv::MAX_SEQS;
use crate::model::{Error, Result};
use crate::session::{Packed, SeqId};

impl Engine {
    /// The texts that its sequences hold of requests whose salt begins with `owner`.
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

    /// The salt of a text of `owner` in which no request runs.
    fn kept(&self, owner: &[u8], seq: SeqId) -> Result<&[u8]> {
        self.prefixes.salt(seq).filter(|salt| salt.starts_with(owner)).ok_or_else(|| {
            let expected = "one that holds a text and in which no request runs";
            Error::argument("slot", expected, self.slot(seq))
        })
    }

    /// Empties a sequence of `owner` that no request has; returns how many tokens it held.
    pub(in crate::scheduler) fn erase(&mut self, owner: &[u8], seq: SeqId) -> Result<usize> {
        self.kept(owner, seq)?;
        let n = self.session.tokens(seq).len();
        self.prefixes.erase(&mut self.session, seq)?;
        self.changed = true;
        Ok(n)
    }

    /// A copy of such a sequence, and the attachment of its file.
    pub(in crate::scheduler) fn copy(&self, owner: &[u8], seq: SeqId) -> Result<(Packed, Vec<u8>)> {
        let salt = self.kept(owner, seq)?;
        self.store()?.copy(&self.session, seq, salt)
    }

    fn store(&self) -> Result<&Store> {
        self.prefixes.store.as_ref().ok_or_else(|| Error::Invalid("slots: no texts are kept on disk".into()))
    }

    /// Puts a text of a file into a sequence that is free or one of `owner`; returns the slot that holds it then.
    pub(in crate::scheduler) fn put(
        &mut self,
        owner: &[u8],
        seq: SeqId,
        salt: Vec<u8>,
        packed: &Packed,
        attachment: &[u8],
    ) -> Result<usize> {
        if self.running.iter().any(|run| run.seq == seq) || self.prefixes.holds(seq) {
            self.kept(owner, seq)?;
        }
        self.store()?.check(&self.session, packed, attachment, &salt)?;
        let n = packed.tokens().len();
        let no_room =
            || Error::Invalid(format!("slot: no room for {n} tokens next to those of running requests"));
        if !self.make_room(self.session.cells_at_most(n), 1)? {
            return Err(no_room());
        }
        if self.prefixes.holds(seq) {
            self.prefixes.take(&self.session, seq);
            self.session.truncate(seq, 0)?;
        } else {
            // There may be as many as there can be.
            self.free_seq(None)?;
        }
        let Some(store) = &self.prefixes.store else { return Err(no_room()) };
        if !store.put(&mut self.session, seq, packed)? {
            return Err(no_room());
        }
        self.prefixes.keep(&mut self.session, seq, salt.clone(), Scores::default())?;
        self.changed = true;
        // Another text of this salt may go on after it, and stand for it.
        let holds = |kept: &SeqId| self.session.tokens(*kept).starts_with(packed.tokens());
        let other = self.prefixes.seqs(Some(salt.as_slice())).find(holds);
        Ok(self.slot(if self.prefixes.holds(seq) { seq } else { other.unwrap_or(seq) }))
    }
}
