//! Requests that wait for the disk, and what they get from there.

use super::{Engine, Found, Job, Scores};
use crate::model::Result;
use crate::session::Packed;

impl Engine {
    /// Has the beginning of a request read from disk; it waits for that.
    pub(super) fn fetch(&mut self, mut job: Job, found: Found) {
        job.n_restored = Some(0);
        let (id, n) = (job.id, found.n);
        self.reading.push((job, n));
        if let Some(store) = &self.prefixes.store {
            store.fetch(found, id);
        }
    }

    /// Puts what was read from disk into the cache, as texts that are kept there. Their requests are next in turn.
    pub(super) fn restore(&mut self) -> Result<()> {
        let mut done = Ok(());
        for (id, packed) in std::mem::take(&mut self.read) {
            // Canceled meanwhile.
            let Some(at) = self.reading.iter().position(|(job, _)| job.id == id) else { continue };
            let (mut job, n) = self.reading.remove(at);
            let salt = job.request.salt.clone();
            let restored = packed.map_or(Ok(false), |packed| self.unpack(&packed, n, salt));
            job.n_restored = Some(if matches!(restored, Ok(true)) { n } else { 0 });
            self.waiting.push_front(job);
            self.changed = true;
            done = done.and(restored.map(|_| ()));
        }
        done
    }

    /// Keeps the first `n` tokens of a text in the cache. Returns false if there is no room.
    fn unpack(&mut self, packed: &Packed, n: usize, salt: Vec<u8>) -> Result<bool> {
        if !self.make_room(self.session.cells_at_most(n), 1)? {
            return Ok(false);
        }
        let Ok(seq) = self.free_seq(None) else { return Ok(false) };
        let Some(store) = &self.prefixes.store else { return Ok(false) };
        if !store.unpack(&mut self.session, seq, packed, n) {
            return Ok(false);
        }
        self.prefixes.keep(&mut self.session, seq, salt, Scores::default())?;
        Ok(true)
    }
}
