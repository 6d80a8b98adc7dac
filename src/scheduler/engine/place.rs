//! The text that a waiting request begins with: one that the cache holds, or one on disk.

use super::super::job::SHORT;
use super::super::request::Recomputed;
use super::{Engine, Job, Lack, Place, Scores};
use crate::model::Result;
use crate::session::{Prefix, SeqId};

/// A prompt that shares this many tokens more with one that is being read waits until these are read.
const WORTH_WAITING: usize = 32;

impl Engine {
    /// The place where a waiting request begins, or why it has to wait.
    pub(super) fn place(&mut self, job: &Job) -> Result<Place, Lack> {
        let salt = &job.request.salt;
        let mut best = Prefix::default();
        if job.request.reuse {
            let sharing = self.running.iter().filter(|run| run.job.request.salt == *salt).map(|run| run.seq);
            let seqs = sharing.chain(self.prefixes.seqs(Some(salt.as_slice())));
            let most = |seq: SeqId, shared: usize| match self.running.iter().find(|run| run.seq == seq) {
                // Also with the score of the token that it reads next.
                Some(run) => job.most_cached(run.shared(job), run.job.scores.len()).min(shared),
                None => job.most_cached(shared, self.prefixes.scores(seq).map_or(0, Scores::len)),
            };
            best = self.session.longest_prefix(&job.tokens, most, seqs);
            let also = self.running.iter_mut().filter(|run| run.job.request.salt == *salt);
            let first = also.map(|run| (run.offers(job), run)).filter(|(n, run)| *n > run.held);
            if let Some((n, run)) = first.max_by_key(|(n, _)| *n).filter(|(n, _)| *n > best.n) {
                // What is waited for already is waited for to the end.
                let is_place = run.places.contains(&n);
                if is_place || n >= best.n + WORTH_WAITING {
                    if !is_place {
                        run.places.push(n);
                    }
                    return Err(Lack::Beginning);
                }
            }
        }
        let donor = (best.n > 0).then_some((best.seq, best.n));
        let mut scores = self.scores(best.seq).cloned().unwrap_or_default();
        scores.truncate(job.most_scored(best.n));
        let differs_at = best.differs.then_some(best.departed);
        let place = Place { donor, scores, departed: best.departed, differs_at, found: None };
        if job.request.reuse && job.n_restored.is_none() && self.fits(job, None) {
            // Scores are not on disk.
            let most = job.most_cached(job.tokens.len(), 0);
            let store = self.prefixes.store.as_ref();
            let found = store.and_then(|store| store.find(&self.session, salt, &job.tokens, most, best.n));
            if found.is_some() {
                return Ok(Place { found, ..place });
            }
        }
        self.fits(job, donor).then_some(place).ok_or_else(|| Lack::Room(self.spare(job, best.n)))
    }

    /// Cells that a request which takes so many tokens from the cache leaves to short ones: those of one without a number
    /// of tokens, as far as there are so many next to its own.
    fn spare(&self, job: &Job, n_cached: usize) -> usize {
        if self.n_places == 1 || !job.is_long(n_cached) {
            return 0;
        }
        let n_cells = self.session.n_cells().0;
        let others = n_cells.saturating_sub(self.session.cells_at_most(self.target(job, 0)));
        others.min(self.session.cells_at_most(SHORT.saturating_add(self.reserve).min(n_cells)))
    }

    /// Why a request that takes `n` tokens from its place reads others that it might have taken.
    pub(super) fn because(&self, job: &Job, place: &Place, n: usize) -> Option<Recomputed> {
        let most = job.tokens.len() - 1;
        if n >= most {
            return None;
        }
        if !job.request.reuse {
            return Some(Recomputed::Forbidden);
        }
        let held = place.departed.min(most);
        let lost = self.prefixes.past.why(&job.request.salt, &job.tokens[..most], held);
        let differs = place.differs_at.map(|_| Recomputed::Differs);
        match lost {
            Some(Recomputed::Evicted) => lost,
            _ if held > n && job.request.echo.is_some() => Some(Recomputed::Unscored),
            _ if held > n => Some(Recomputed::Stateless),
            _ => lost.or(differs).or_else(|| (held == 0).then_some(Recomputed::Unknown)),
        }
    }

    /// Whether there is room for a request that begins with tokens of a sequence.
    fn fits(&self, job: &Job, donor: Option<(SeqId, usize)>) -> bool {
        // Nobody else needs the room then.
        if self.running.is_empty() || self.session.plan().evict {
            return true;
        }
        let n = donor.map_or(0, |(_, n)| n);
        let need = self.session.cells_at_most(self.target(job, 0) - n);
        let (mut promised, mut of_short, mut held) = (0, 0, 0);
        for run in &self.running {
            if run.job.long {
                promised += self.promised(run);
            } else {
                of_short += self.promised(run);
                held += self.session.cells_at_most(run.held);
            }
        }
        let of_short = self.spare(job, n).saturating_sub(held).max(of_short);
        let given = donor.map(|(seq, n)| (seq, self.session.model().n_positions(n) as i32));
        let room = self.session.n_cells().1 + self.prefixes.count(&self.session, given).kept;
        need.saturating_add(promised).saturating_add(of_short) <= room
    }
}
