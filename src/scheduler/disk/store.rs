//! The directory as an engine uses it: texts that leave its cache, and those that its requests begin with.

use std::sync::{Arc, PoisonError};

use ropewalk_core::text::{bytes, hex};
use sha2::{Digest, Sha256};

use super::{About, Disk, Entry, Read, Write};
use crate::model::{Error, Result};
use crate::session::{n_shared, Form, Packed, SeqId, Session};
use crate::Token;

/// The directory as one engine sees it.
pub(in crate::scheduler) struct Store {
    pub(super) disk: Arc<Disk>,
    pub(super) plan: usize,
    pub(super) form: Form,
    pub(super) about: About,
}

/// A text that a request can begin with.
pub(in crate::scheduler) struct Found {
    pub(super) name: String,
    tokens: Arc<Vec<Token>>,
    /// Tokens to take from it.
    pub(in crate::scheduler) n: usize,
}

impl Store {
    /// Keeps a copy of a sequence that leaves the cache, if it is worth it and not on disk yet. If too much waits to be
    /// written, it is dropped, or, if `waits`, the call waits.
    pub(in crate::scheduler) fn save(&self, session: &Session, seq: SeqId, salt: &[u8], waits: bool) {
        let (tokens, disk) = (session.tokens(seq), &self.disk);
        if tokens.len() < disk.params.n_tokens.max(1) {
            return;
        }
        let (pending, salt) = (session.packed_bytes(seq), hashed(salt));
        let mut state = disk.lock();
        if state.stopping || pending > disk.params.n_bytes {
            return;
        }
        let (covers, evicts) = (session.cuts_anywhere(), session.plan().evict);
        // Whether a text on disk can stand for this one.
        let holds = |text: &[Token], states: &[usize]| {
            text == tokens
                || text.starts_with(tokens) && !evicts && (covers || states.contains(&tokens.len()))
        };
        let (clock, mut known) = (state.clock, false);
        for entry in &mut state.entries {
            let same = entry.plans.contains(&self.plan) && entry.salt == salt;
            if same && holds(&entry.tokens, &entry.states) {
                entry.used = clock;
                known = true;
            }
        }
        let coming = state.writes.iter().map(|write| (write.plan, &write.about.salt, &write.tokens));
        let mut coming = coming.chain(state.writing.iter().map(|(plan, salt, tokens)| (*plan, salt, tokens)));
        let stands = |(plan, other, text): (usize, &String, &Arc<Vec<Token>>)| {
            plan == self.plan && *other == salt && holds(text, &[])
        };
        known |= coming.any(stands);
        if known {
            return;
        }
        // What waits already has its memory.
        while ggml::machine::memory_available().is_some_and(|free| pending > free / 2) {
            if !waits || state.pending == 0 {
                let n = bytes(pending);
                state.warn(format!(
                    "a text of {} tokens is not kept: {n} are too much for memory",
                    tokens.len()
                ));
                return;
            }
            state = disk.room.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.pending += pending;
        drop(state);
        let packed = session.pack(&self.form, seq);
        let mut state = disk.lock();
        match packed {
            Ok(packed) => {
                let about = About { salt, ..self.about.clone() };
                let (plan, tokens) = (self.plan, Arc::new(packed.tokens().to_vec()));
                state.writes.push_back(Write { plan, packed, tokens, about, covers, pending });
                disk.work.notify_all();
            }
            Err(e) => {
                state.pending -= pending;
                state.warn(format!("a text of {} tokens is not kept: {e}", tokens.len()));
            }
        }
    }

    /// The text of which most tokens of a prompt can be taken, at most `most`, and worthwhile more than the `held` that the
    /// cache has.
    pub(in crate::scheduler) fn find(
        &self,
        session: &Session,
        salt: &[u8],
        prompt: &[Token],
        most: usize,
        held: usize,
    ) -> Option<Found> {
        let salt = hashed(salt);
        let mut state = self.disk.lock();
        if state.stopping {
            return None;
        }
        let least = held.saturating_add(self.disk.params.n_tokens.max(1));
        let usable = |entry: &Entry| {
            if !entry.plans.contains(&self.plan) || entry.salt != salt {
                return 0;
            }
            let shared = n_shared(&entry.tokens, &prompt[..most]);
            if session.plan().evict && shared < entry.n_tokens {
                return 0;
            }
            match &entry.states[..] {
                [] => shared,
                states => states.iter().copied().filter(|&n| n <= shared).max().unwrap_or(0),
            }
        };
        let all = state.entries.iter().enumerate().map(|(at, entry)| (usable(entry), at));
        let (n, at) = all.max().filter(|(n, _)| *n >= least)?;
        let mut entry = state.entries.remove(at);
        entry.used = state.clock;
        let found = Found { name: entry.name.clone(), tokens: Arc::clone(&entry.tokens), n };
        state.entries.push(entry);
        Some(found)
    }

    /// Removes what the directory has of a text: also files of its beginnings, and of more, as it may have been before it was
    /// cut. One that is being written is waited for.
    pub(in crate::scheduler) fn erase(&self, tokens: &[Token], salt: &[u8]) {
        let (salt, disk) = (hashed(salt), &self.disk);
        let like = |plan: usize, own: &str, text: &[Token]| {
            plan == self.plan && own == salt && (text.starts_with(tokens) || tokens.starts_with(text))
        };
        let (mut state, mut dropped) = (disk.lock(), 0);
        state.writes.retain(|write| {
            let goes = like(write.plan, &write.about.salt, &write.tokens);
            dropped += if goes { write.pending } else { 0 };
            !goes
        });
        state.pending = state.pending.saturating_sub(dropped);
        while state.writing.as_ref().is_some_and(|(plan, own, text)| like(*plan, own, text)) {
            state = disk.room.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        let own = |entry: &Entry| entry.plans.iter().any(|&plan| like(plan, &entry.salt, &entry.tokens));
        let entries = state.take_all(own);
        drop(state);
        disk.remove(entries);
    }

    /// Has a text read for a request.
    pub(in crate::scheduler) fn fetch(&self, found: Found, job: u64) {
        let read = Read { plan: self.plan, job, name: found.name, tokens: found.tokens };
        self.disk.lock().reads.push_back(read);
        self.disk.work.notify_all();
    }

    /// Gives an empty sequence the first `n` tokens of a text. Returns false if there is no room.
    pub(in crate::scheduler) fn unpack(
        &self,
        session: &mut Session,
        seq: SeqId,
        packed: &Packed,
        n: usize,
    ) -> bool {
        match session.unpack(&self.form, seq, packed, n) {
            Ok(done) => done,
            Err(e) => {
                self.refuse(packed, &e);
                false
            }
        }
    }

    /// A copy of a sequence, and the attachment of its file.
    pub(in crate::scheduler) fn copy(
        &self,
        session: &Session,
        seq: SeqId,
        salt: &[u8],
    ) -> Result<(Packed, Vec<u8>)> {
        let needed = session.packed_bytes(seq);
        if let Some(free) = ggml::machine::memory_available().filter(|&free| needed > free / 2) {
            let (needed, free) = (bytes(needed), bytes(free));
            return Err(Error::Invalid(format!("slot: a copy needs {needed}, {free} is free")));
        }
        let about = About { salt: hashed(salt), ..self.about.clone() };
        Ok((session.pack(&self.form, seq)?, serde_json::to_vec(&about).unwrap_or_default()))
    }

    /// Checks that a session and a salt can have a text that was saved with this attachment.
    ///
    /// # Errors
    /// It was saved under others, or no session can have written it.
    pub(in crate::scheduler) fn check(
        &self,
        session: &Session,
        packed: &Packed,
        attachment: &[u8],
        salt: &[u8],
    ) -> Result<()> {
        let refused = |what: &str| Err(Error::Invalid(format!("saved text: {what}")));
        let Ok(about) = serde_json::from_slice::<About>(attachment) else {
            return refused("expected one of a slot, found another session");
        };
        if (About { salt: about.salt.clone(), ..self.about.clone() }) != about {
            return refused("expected one of this model and these settings, found others");
        }
        if about.salt != hashed(salt) {
            return refused("expected one of this key and salt, found others");
        }
        let (n, n_max) = (packed.tokens().len(), session.n_max());
        if n > n_max {
            return refused(&format!("expected at most {n_max} tokens, found {n}"));
        }
        session.can_unpack(&self.form, packed)
    }

    /// Gives an empty sequence all of a text that was checked. Returns false if there is no room.
    pub(in crate::scheduler) fn put(
        &self,
        session: &mut Session,
        seq: SeqId,
        packed: &Packed,
    ) -> Result<bool> {
        session.unpack(&self.form, seq, packed, packed.tokens().len())
    }

    /// Skips a text from now on that no session can have written.
    fn refuse(&self, packed: &Packed, e: &Error) {
        let state = self.disk.lock();
        let own = |entry: &&Entry| entry.plans.contains(&self.plan) && entry.tokens[..] == *packed.tokens();
        let name = state.entries.iter().find(own).map(|entry| entry.name.clone());
        drop(state);
        match name.filter(|_| matches!(e, Error::Invalid(_))) {
            Some(name) => {
                let why = format!("{}: {e}", self.disk.params.dir.join(&name).display());
                self.disk.forget(&name, why);
            }
            None => self.disk.warn(e),
        }
    }
}

pub(super) fn hashed(salt: &[u8]) -> String {
    hex(&Sha256::digest(salt))
}
