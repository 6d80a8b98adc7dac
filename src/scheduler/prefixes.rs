//! The texts of ended requests, which stay in the cache for later ones, and which of them makes room first.
//!
//! GreedyDual-Size (Cao and Irani, 1997): a text is worth the clock of its last use and the cost to compute it again for
//! each cell that it would free. What is worth least goes first, and the clock becomes its worth. So a long text stays
//! longer than a short one, but not for ever.

use super::disk::Store;
use super::past::Past;
use super::scores::Scores;
use crate::kv::MAX_SEQS;
use crate::model::Result;
use crate::session::{SeqId, Session};

/// A text of this many tokens is worth twice as much for each cell as a very short one. Its next request would wait for all
/// of it, and short requests, such as for titles, come between the turns of long chats.
const TWICE: f64 = 256.0;

/// Tokens that are cut from a text at least. Else every step would count cells to find room for a few tokens.
const LEAST_CUT: usize = 32;

#[derive(Debug)]
struct Kept {
    salt: Vec<u8>,
    /// The clock at its last use.
    used: f64,
    /// Its text was offered to the disk before it was cut.
    offered: bool,
    scores: Scores,
}

/// The value of a text by its length, added to the clock of its last use.
pub(super) fn worth_of(n_tokens: usize) -> f64 {
    1.0 + n_tokens as f64 / TWICE
}

/// Sequences that no running request has.
pub(super) struct Prefixes {
    of: Vec<Option<Kept>>,
    /// Where texts that leave are kept.
    pub(super) store: Option<Store>,
    pub(super) past: Past,
    clock: f64,
    /// Texts that were dropped or cut.
    pub(super) n_dropped: usize,
}

/// Cells by who holds them.
#[derive(Debug)]
pub(super) struct Cells {
    /// Cells that only kept texts hold.
    pub(super) kept: usize,
    /// Cells that a running request holds.
    pub(super) used: usize,
}

impl Prefixes {
    pub(super) fn new(store: Option<Store>, past: Past) -> Prefixes {
        Prefixes { of: (0..MAX_SEQS).map(|_| None).collect(), store, past, clock: 0.0, n_dropped: 0 }
    }

    /// The sequences, of this salt if one is given.
    pub(super) fn seqs<'a>(&'a self, salt: Option<&'a [u8]>) -> impl Iterator<Item = SeqId> + 'a {
        (0..).zip(&self.of).filter_map(move |(seq, kept)| {
            let kept = kept.as_ref()?;
            salt.is_none_or(|salt| kept.salt == salt).then_some(seq)
        })
    }

    /// The sequences whose salt begins with `owner`.
    pub(super) fn owned<'a>(&'a self, owner: &'a [u8]) -> impl Iterator<Item = SeqId> + 'a {
        let own = move |(seq, kept): (SeqId, &Option<Kept>)| {
            kept.as_ref().filter(|kept| kept.salt.starts_with(owner)).map(|_| seq)
        };
        (0..).zip(&self.of).filter_map(own)
    }

    pub(super) fn holds(&self, seq: SeqId) -> bool {
        self.of[seq as usize].is_some()
    }

    pub(super) fn salt(&self, seq: SeqId) -> Option<&[u8]> {
        self.of[seq as usize].as_ref().map(|kept| &kept.salt[..])
    }

    pub(super) fn scores(&self, seq: SeqId) -> Option<&Scores> {
        self.of[seq as usize].as_ref().map(|kept| &kept.scores)
    }

    pub(super) fn score_bytes(&self) -> usize {
        self.of.iter().flatten().map(|kept| kept.scores.n_bytes()).sum()
    }

    /// Keeps what a sequence holds. Texts that are the beginning of another one of this salt are dropped, where that can
    /// take their place.
    pub(super) fn keep(
        &mut self,
        session: &mut Session,
        seq: SeqId,
        salt: Vec<u8>,
        mut scores: Scores,
    ) -> Result<()> {
        let others: Vec<SeqId> = self.seqs(Some(salt.as_slice())).collect();
        scores.truncate(session.tokens(seq).len().saturating_sub(1));
        self.past.note(&salt, session.tokens(seq));
        self.of[seq as usize] = Some(Kept { salt, used: self.clock, offered: false, scores });
        if session.tokens(seq).is_empty() {
            self.of[seq as usize] = None;
        } else if session.cuts_anywhere() {
            for other in others {
                if session.tokens(seq).starts_with(session.tokens(other)) {
                    self.inherit(other, seq);
                    self.remove(session, other)?;
                } else if session.tokens(other).starts_with(session.tokens(seq)) {
                    self.inherit(seq, other);
                    return self.remove(session, seq);
                }
            }
        }
        Ok(())
    }

    /// Gives the scores of a text to a longer one that has fewer.
    fn inherit(&mut self, from: SeqId, to: SeqId) {
        let Some(from) = self.of[from as usize].as_mut() else { return };
        let scores = std::mem::take(&mut from.scores);
        if let Some(to) = self.of[to as usize].as_mut().filter(|to| to.scores.len() < scores.len()) {
            to.scores = scores;
        }
    }

    /// Gives a sequence to a request, with all that it holds.
    pub(super) fn take(&mut self, session: &Session, seq: SeqId) {
        self.offer(session, seq, false);
        self.of[seq as usize] = None;
    }

    /// A request continues from a text, if it is one that is kept.
    pub(super) fn touch(&mut self, seq: SeqId) {
        let clock = self.clock;
        self.of[seq as usize].iter_mut().for_each(|kept| kept.used = clock);
    }

    /// Has a text written that is about to leave.
    fn offer(&mut self, session: &Session, seq: SeqId, waits: bool) {
        let Some(store) = &self.store else { return };
        if let Some(kept) = self.of[seq as usize].as_mut().filter(|kept| !kept.offered) {
            kept.offered = true;
            store.save(session, seq, &kept.salt, waits);
        }
    }

    /// Has all texts written, those worth most first, and waits until all but the last are.
    pub(super) fn offer_all(&mut self, session: &Session) {
        let worth = |seq: &SeqId| {
            let kept = self.of[*seq as usize].as_ref();
            kept.map_or(0.0, |kept| kept.used) + worth_of(session.tokens(*seq).len())
        };
        let mut seqs: Vec<SeqId> = self.seqs(None).collect();
        seqs.sort_by(|a, b| worth(b).total_cmp(&worth(a)));
        seqs.into_iter().for_each(|seq| self.offer(session, seq, true));
    }

    /// Forgets a text, also on disk.
    pub(super) fn erase(&mut self, session: &mut Session, seq: SeqId) -> Result<()> {
        if let Some(kept) = &self.of[seq as usize] {
            self.past.forget(&kept.salt, session.tokens(seq));
            self.store.iter().for_each(|store| store.erase(session.tokens(seq), &kept.salt));
        }
        self.remove(session, seq)
    }

    fn remove(&mut self, session: &mut Session, seq: SeqId) -> Result<()> {
        self.of[seq as usize] = None;
        session.truncate(seq, 0)
    }

    /// Forgets all texts, which the session has dropped.
    pub(super) fn clear(&mut self) {
        self.of.iter_mut().for_each(|kept| *kept = None);
    }

    /// Counts cells. The first `n` positions of `donor` count as used.
    pub(super) fn count(&self, session: &Session, donor: Option<(SeqId, i32)>) -> Cells {
        let idle = self.mask();
        let mut cells = Cells { kept: 0, used: 0 };
        for cell in session.cells().iter().filter(|cell| cell.seqs != 0) {
            let given = donor.is_some_and(|(seq, n)| cell.seqs & (1 << seq) != 0 && cell.pos < n);
            let is_used = cell.seqs & !idle != 0 || given;
            *(if is_used { &mut cells.used } else { &mut cells.kept }) += 1;
        }
        cells
    }

    /// A bit for each kept text.
    fn mask(&self) -> u64 {
        self.seqs(None).fold(0u64, |mask, seq| mask | 1 << seq)
    }

    /// For each kept text, the cells that it holds and no running request does, and those that it holds alone.
    fn held(&self, session: &Session) -> Vec<(usize, usize)> {
        let idle = self.mask();
        let mut held = vec![(0, 0); MAX_SEQS as usize];
        for cell in session.cells().iter().filter(|cell| cell.seqs & !idle == 0) {
            let (mut seqs, alone) = (cell.seqs, cell.seqs.is_power_of_two());
            while seqs != 0 {
                let of = &mut held[seqs.trailing_zeros() as usize];
                of.0 += 1;
                of.1 += usize::from(alone);
                seqs &= seqs - 1;
            }
        }
        held
    }

    /// The text that is worth least, but not `donor`, with the cells that it holds alone. `idle`: only texts that hold
    /// cells which no running request has.
    fn least(&self, session: &Session, donor: Option<SeqId>, idle: bool) -> Option<(SeqId, usize, f64)> {
        let cells = self.held(session);
        let mut least: Option<(SeqId, usize, f64)> = None;
        for seq in self.seqs(None).filter(|&seq| Some(seq) != donor) {
            let (Some(kept), (held, alone)) = (&self.of[seq as usize], cells[seq as usize]) else {
                continue;
            };
            if idle && held == 0 {
                continue;
            }
            let worth = kept.used + worth_of(session.tokens(seq).len());
            if least.is_none_or(|least| worth < least.2) {
                least = Some((seq, alone, worth));
            }
        }
        least
    }

    /// Drops the text that is worth least, but not `donor`. Returns its sequence, which is empty.
    pub(super) fn drop_least(
        &mut self,
        session: &mut Session,
        donor: Option<SeqId>,
    ) -> Result<Option<SeqId>> {
        let Some((seq, _, worth)) = self.least(session, donor, false) else { return Ok(None) };
        self.clock = self.clock.max(worth);
        self.n_dropped += 1;
        self.offer(session, seq, false);
        self.remove(session, seq)?;
        Ok(Some(seq))
    }

    /// Drops texts, or cuts them, until so many cells are free, and states for so many sequences. Returns false if too
    /// few are free then.
    pub(super) fn make_room(
        &mut self,
        session: &mut Session,
        n_cells: usize,
        n_states: usize,
    ) -> Result<bool> {
        loop {
            let short = n_cells.saturating_sub(session.n_cells().1);
            if session.n_free_states() < n_states {
                if self.drop_least(session, None)?.is_none() {
                    return Ok(false);
                }
            } else if short == 0 {
                return Ok(true);
            } else {
                let Some((seq, alone, worth)) = self.least(session, None, true) else { return Ok(false) };
                self.clock = self.clock.max(worth);
                self.n_dropped += 1;
                self.offer(session, seq, false);
                let short = short.max(LEAST_CUT);
                let cut = session.tokens(seq).len().saturating_sub(short);
                if session.cuts_anywhere() && alone > short && cut > 0 {
                    session.truncate(seq, cut)?;
                    self.of[seq as usize].iter_mut().for_each(|kept| kept.scores.truncate(cut - 1));
                } else {
                    self.remove(session, seq)?;
                }
            }
        }
    }
}
