//! One session and its requests: which are admitted, what a step reads of each, and who gives way when room runs out.

mod parts;
mod place;
mod queue;
mod restore;
mod slots;

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use super::budget::Budget;
use super::disk::{Found, Store};
use super::job::{Ended, Job};
use super::past::Past;
use super::prefixes::Prefixes;
use super::request::{PlanStatus, Status};
use super::scores::Scores;
use super::SchedulerParams;
use crate::kv::MAX_SEQS;
use crate::model::{Error, Result};
use crate::session::{n_shared, Packed, SeqId, Session, Step, Stepped, StopReason, Want};
use crate::Token;

/// A request that has a sequence.
struct Run {
    job: Job,
    seq: SeqId,
    /// Tokens of the job that the sequence holds.
    held: usize,
    /// Tokens that it was given room for.
    target: usize,
    /// Numbers of tokens after which steps end, to keep a state there, or because another request shares these.
    places: Vec<usize>,
    /// Steps since its last admission.
    age: usize,
}

/// The cached text that a request can begin with.
struct Place {
    /// The sequence to take tokens from, and their number.
    donor: Option<(SeqId, usize)>,
    /// Their scores.
    scores: Scores,
    departed: usize,
    differs_at: Option<usize>,
    /// A text that is to be read from disk first.
    found: Option<Found>,
}

/// The resource that a waiting request lacks.
enum Lack {
    /// Cells. It would leave this number of them to short requests.
    Room(usize),
    /// Another request reads a beginning that both have.
    Beginning,
    /// The free cells are kept for others.
    Kept,
}

/// The part of a step that is one request's.
struct Part {
    run: usize,
    /// Tokens that the sequence will hold.
    end: usize,
}

pub(super) struct Engine {
    plan: usize,
    session: Session,
    running: Vec<Run>,
    waiting: VecDeque<Job>,
    /// The turn of the last request that was admitted, and that of each caller's last request.
    turn: u64,
    turns: BTreeMap<usize, u64>,
    /// Requests whose beginning is read from disk, and the tokens that each takes from it.
    reading: Vec<(Job, usize)>,
    /// Texts read from disk, by the numbers of the requests; `None` if that failed. The next round takes them.
    pub(super) read: Vec<(u64, Option<Packed>)>,
    prefixes: Prefixes,
    budget: Budget,
    /// End-of-generation tokens.
    ends: Vec<Token>,
    n_running: usize,
    /// One more, for a short request next to long ones, if there can be so many.
    n_places: usize,
    reserve: usize,
    /// Whether a waiting request might be admitted now.
    changed: bool,
    /// Counts of this engine's work.
    did: Status,
}

impl Run {
    /// Tokens that are not in the cache.
    fn pending(&self) -> usize {
        self.job.tokens.len() - self.held
    }

    /// Whether the next tokens of the prompt are to be scored.
    fn scores(&self) -> bool {
        let is_next = self.held + 1 < self.job.n_prompt && self.held >= self.job.scores.len();
        self.job.request.echo.is_some() && is_next
    }

    /// Where a step of at most `most` tokens ends.
    fn end(&self, most: usize) -> usize {
        let places = self.places.iter().copied().filter(|&at| at > self.held);
        let end = places.fold(self.held.saturating_add(most), usize::min).min(self.job.tokens.len());
        if self.job.request.echo.is_none() || self.held + 1 >= self.job.n_prompt {
            end
        } else if self.scores() {
            // The last token is read by itself, for its logits.
            end.min(self.job.n_prompt - 1)
        } else {
            end.min(self.job.scores.len())
        }
    }

    fn want(&self, end: usize) -> Want<'static> {
        match (self.job.tokens.get(end), self.job.request.echo) {
            // The most likely token is kept with the score, also if it was not asked for.
            (Some(&next), Some(n_top)) if self.scores() => {
                Want::Scores { n_top: n_top.max(1), next: Some(next) }
            }
            (None, _) if self.job.request.n_predict != Some(0) => Want::Logits,
            _ => Want::Nothing,
        }
    }

    /// Whether a request that makes no tokens has done its work.
    fn is_read(&self) -> bool {
        let scored = self.job.request.echo.is_some() && self.pending() <= 1;
        self.job.request.n_predict == Some(0) && (self.pending() == 0 || scored)
    }

    /// Tokens that are those of another request.
    fn shared(&self, job: &Job) -> usize {
        n_shared(&self.job.tokens, &job.tokens)
    }

    /// Tokens that a waiting request can take when the sequence holds them.
    fn offers(&self, job: &Job) -> usize {
        let will_score = self.job.request.echo.map_or(0, |_| self.job.n_prompt - 1);
        job.most_cached(self.shared(job), will_score.max(self.job.scores.len()))
    }

    /// Takes the answer to a step.
    fn take(&mut self, stepped: Stepped, ends: &[Token], n_max: usize) -> Option<Ended> {
        self.job.progress(self.held);
        match stepped {
            Stepped::Scores(scores) => self.job.scored(scores),
            Stepped::Logits(row) => return self.job.sample(row, ends, self.held, n_max),
            _ => {}
        }
        self.is_read().then_some(Ended::Done(StopReason::Length))
    }
}

impl Engine {
    pub(super) fn new(
        session: Session,
        plan: usize,
        params: &SchedulerParams,
        store: Option<Store>,
        past: Past,
    ) -> Engine {
        let vocab = session.model().vocab();
        let ends = (0..vocab.n_tokens() as Token).filter(|&token| vocab.is_eog(token)).collect();
        // Cells of a plan that evicts, and states, are for so many sequences.
        let most = if session.cuts_anywhere() { MAX_SEQS as usize } else { session.params().n_seq_max };
        Engine {
            plan,
            budget: Budget::new(params.step_tokens, session.params().n_batch, session.params().n_ubatch),
            n_running: params.n_running.min(most),
            n_places: (params.n_running + 1).min(most),
            reserve: params.reserve,
            session,
            running: Vec::new(),
            waiting: VecDeque::new(),
            turn: 0,
            turns: BTreeMap::new(),
            reading: Vec::new(),
            read: Vec::new(),
            prefixes: Prefixes::new(store, past),
            ends,
            changed: false,
            did: Status::default(),
        }
    }

    /// Whether a round would do something.
    pub(super) fn has_work(&self) -> bool {
        let waits = !self.waiting.is_empty() && (self.changed || self.reading.is_empty());
        waits || !self.running.is_empty() || !self.read.is_empty()
    }

    /// Whether something is to come from the disk.
    pub(super) fn is_reading(&self) -> bool {
        !self.reading.is_empty()
    }

    /// Has the texts that stayed in the cache written.
    pub(super) fn save(&mut self) {
        self.prefixes.offer_all(&self.session);
    }

    /// Adds what it does, and has done, to a status.
    pub(super) fn report(&self, status: &mut Status) {
        let cells = self.prefixes.count(&self.session, None);
        let plan = PlanStatus {
            running: self.running.len(),
            waiting: self.queue().count(),
            cells: self.session.n_cells().0,
            cells_used: cells.used,
            cells_kept: cells.kept,
            n_kept: self.prefixes.seqs(None).count(),
            score_bytes: self.score_bytes(),
        };
        status.running += plan.running;
        status.waiting += plan.waiting;
        status.plans.push(plan);
        status.n_ended += self.did.n_ended;
        status.n_failed += self.did.n_failed;
        status.n_cancelled += self.did.n_cancelled;
        status.n_preempted += self.did.n_preempted;
        status.n_prompt += self.did.n_prompt;
        status.n_cached += self.did.n_cached;
        status.n_restored += self.did.n_restored;
        status.n_made += self.did.n_made;
        status.n_dropped += self.prefixes.n_dropped;
        status.n_steps += self.did.n_steps;
        status.steps.merge(&self.did.steps);
        status.reread.preempted += self.did.reread.preempted;
        status.reread.unscored += self.did.reread.unscored;
        status.reread.stateless += self.did.reread.stateless;
    }

    /// Bytes of all scores. A request that gave its room to others has kept its own.
    fn score_bytes(&self) -> usize {
        let jobs = self.running.iter().map(|run| &run.job).chain(self.queue());
        jobs.map(|job| job.scores.n_bytes()).sum::<usize>() + self.prefixes.score_bytes()
    }

    /// Scores of the text that a sequence holds.
    fn scores(&self, seq: SeqId) -> Option<&Scores> {
        let run = self.running.iter().find(|run| run.seq == seq);
        run.map(|run| &run.job.scores).or_else(|| self.prefixes.scores(seq))
    }

    /// Ends canceled requests, admits others, and runs one step that aims at this time.
    pub(super) fn round(&mut self, aim: Duration) -> Result<()> {
        self.restore()?;
        self.cancel(Job::is_cancelled)?;
        self.admit();
        let parts = self.parts(aim)?;
        if parts.is_empty() {
            return Ok(());
        }
        let steps = parts.iter().map(|part| {
            let run = &self.running[part.run];
            Step { seq: run.seq, tokens: &run.job.tokens[run.held..part.end], want: run.want(part.end) }
        });
        let mut steps: Vec<Step<'_>> = steps.collect();
        let held = |part: &Part| self.running[part.run].held;
        let read = parts.iter().map(|part| (part.end - held(part), held(part))).filter(|(n, _)| *n > 1);
        let read: Vec<(usize, usize)> = read.collect();
        let n_prefill: usize = read.iter().map(|(n, _)| n).sum();
        let depth = read.iter().map(|(_, held)| *held).max().unwrap_or(0);
        let begun = Instant::now();
        let results = self.session.step(&mut steps)?;
        drop(steps);
        let took = begun.elapsed();
        self.budget.learn(n_prefill, depth, took, aim);
        self.did.n_steps += 1;
        self.did.steps.add(took);
        // Also those that shorter ones left nothing: else they would never have their turn.
        self.running.iter_mut().for_each(|run| run.age += 1);
        let n_max = self.session.n_max();
        let mut ended: Vec<(usize, Ended)> = Vec::new();
        for (part, result) in parts.iter().zip(results) {
            let run = &mut self.running[part.run];
            let n_made = run.job.n_made();
            let end = match result {
                Ok(stepped) => {
                    run.held = part.end;
                    if run.places.contains(&run.held) {
                        self.session.keep_state(run.seq);
                        self.changed = true;
                    }
                    run.take(stepped, &self.ends, n_max)
                }
                Err(Error::ContextFull { .. }) if n_made > 0 => Some(Ended::Done(StopReason::ContextFull)),
                Err(Error::Interrupted) => Some(Ended::Done(StopReason::Cancelled)),
                Err(e) => Some(Ended::Failed(e)),
            };
            self.did.n_made += run.job.n_made() - n_made;
            ended.extend(end.map(|end| (part.run, end)));
        }
        // From the last one on, so that the others keep their places.
        ended.sort_unstable_by_key(|(run, _)| std::cmp::Reverse(*run));
        ended.into_iter().try_for_each(|(run, end)| self.finish(run, end))
    }

    /// Ends requests like this as canceled, whether they run or wait.
    pub(super) fn cancel(&mut self, like: impl Fn(&Job) -> bool) -> Result<()> {
        for run in (0..self.running.len()).rev() {
            if like(&self.running[run].job) {
                self.finish(run, Ended::Done(StopReason::Cancelled))?;
            }
        }
        for at in (0..self.waiting.len()).rev() {
            if like(&self.waiting[at]) {
                if let Some(job) = self.waiting.remove(at) {
                    // Those behind it may have waited for it.
                    self.changed = true;
                    self.end(job, Ended::Done(StopReason::Cancelled));
                }
            }
        }
        for at in (0..self.reading.len()).rev() {
            if like(&self.reading[at].0) {
                let (job, _) = self.reading.remove(at);
                // Its place is free.
                self.changed = true;
                self.end(job, Ended::Done(StopReason::Cancelled));
            }
        }
        Ok(())
    }

    /// Ends every running request with an error, and empties the session.
    pub(super) fn fail(&mut self, why: &str) {
        self.session.clear();
        self.prefixes.clear();
        self.changed = true;
        self.reading.drain(..).rev().for_each(|(job, _)| self.waiting.push_front(job));
        for run in std::mem::take(&mut self.running) {
            self.end(run.job, Ended::Failed(Error::Invalid(why.to_owned())));
        }
    }

    fn end(&mut self, job: Job, ended: Ended) {
        self.did.n_ended += 1;
        match ended {
            Ended::Failed(_) => self.did.n_failed += 1,
            Ended::Done(StopReason::Cancelled) => self.did.n_cancelled += 1,
            Ended::Done(_) => {}
        }
        job.end(ended);
    }

    /// Ends a running request; what it has read stays, if it did not fail and is not to be forgotten.
    fn finish(&mut self, run: usize, ended: Ended) -> Result<()> {
        let Run { mut job, seq, .. } = self.running.remove(run);
        self.changed = true;
        let kept = match ended {
            Ended::Done(_) if !job.request.forget => {
                let salt = std::mem::take(&mut job.request.salt);
                self.prefixes.keep(&mut self.session, seq, salt, std::mem::take(&mut job.scores))
            }
            _ => self.session.truncate(seq, 0),
        };
        self.end(job, ended);
        kept
    }

    /// Tokens that a request is given room for, when it holds so many.
    fn target(&self, job: &Job, held: usize) -> usize {
        let most = match job.request.n_predict {
            Some(n) => job.n_prompt.saturating_add(n),
            None if held > 0 => held.saturating_add(self.reserve / 4),
            // One that had to give way waits for more room than before.
            None => job.tokens.len().saturating_add(self.reserve << job.preempted.min(16)),
        };
        most.min(self.session.n_max()).max(job.tokens.len())
    }

    /// Cells that a running request may still need.
    fn promised(&self, run: &Run) -> usize {
        let target = run.target.max(self.target(&run.job, run.job.tokens.len()));
        self.session.cells_at_most(target - run.held)
    }

    /// Gives a request a sequence.
    fn start(&mut self, mut job: Job, place: Place) {
        let (donor, n) = place.donor.unzip();
        let n = n.unwrap_or(0);
        let placed = self.free_seq(donor).and_then(|seq| {
            if let Some(donor) = donor.filter(|&donor| donor != seq) {
                self.prefixes.touch(donor);
                self.session.copy_seq(donor, seq)?;
            }
            self.session.truncate(seq, n)?;
            Ok(seq)
        });
        let seq = match placed {
            Ok(seq) => seq,
            Err(e) => return self.end(job, Ended::Failed(e)),
        };
        let because = self.because(&job, &place, n);
        if job.start(self.plan, n, place.differs_at, because) {
            self.did.n_prompt += job.n_prompt;
            self.did.n_cached += n;
            self.did.n_restored += job.n_restored.unwrap_or(0).min(n);
            let again = place.departed.min(job.tokens.len() - 1).saturating_sub(n);
            match job.request.echo {
                Some(_) => self.did.reread.unscored += again,
                None => self.did.reread.stateless += again,
            }
        } else {
            self.did.reread.preempted += job.held.saturating_sub(n);
        }
        job.long = job.is_long(n);
        job.take_scores(place.scores);
        // A prompt that is to be scored has to read the last token that it shares.
        let departed = place.departed.saturating_sub(usize::from(job.request.echo.is_some()));
        let places = self.session.kept_places(n, departed, job.tokens.len());
        let target = self.target(&job, 0);
        self.running.push(Run { job, seq, held: n, target, places, age: 0 });
    }

    /// A sequence for a request that takes tokens from `donor`: that itself if no request runs in it and there is no
    /// other.
    fn free_seq(&mut self, donor: Option<SeqId>) -> Result<SeqId> {
        let own = donor.filter(|&seq| self.prefixes.holds(seq));
        let most =
            if self.session.plan().evict { self.session.params().n_seq_max } else { MAX_SEQS as usize };
        if self.running.len() + self.prefixes.seqs(None).count() < most {
            let taken =
                |seq: SeqId| self.prefixes.holds(seq) || self.running.iter().any(|run| run.seq == seq);
            if let Some(seq) = (0..MAX_SEQS).find(|&seq| !taken(seq)) {
                return Ok(seq);
            }
        }
        if let Some(seq) = self.prefixes.drop_least(&mut self.session, donor)? {
            return Ok(seq);
        }
        let no_seq = || Error::Invalid("sequences: all are in use".into());
        let seq = own.ok_or_else(no_seq)?;
        self.prefixes.take(&self.session, seq);
        Ok(seq)
    }

    fn make_room(&mut self, n_cells: usize, n_states: usize) -> Result<bool> {
        let n_cells = if self.session.plan().evict { 0 } else { n_cells };
        self.prefixes.make_room(&mut self.session, n_cells, n_states)
    }

    /// Has the youngest request give its room to the others, and wait. Returns false if there are no others.
    fn preempt(&mut self) -> Result<bool> {
        let youngest = (0..self.running.len()).max_by_key(|&i| self.running[i].job.id);
        let Some(youngest) = youngest.filter(|_| self.running.len() > 1) else { return Ok(false) };
        let Run { mut job, seq, held, .. } = self.running.remove(youngest);
        if job.request.forget {
            self.session.truncate(seq, 0)?;
        } else {
            let (salt, scores) = (job.request.salt.clone(), job.scores.clone());
            self.prefixes.keep(&mut self.session, seq, salt, scores)?;
        }
        job.preempted += 1;
        job.held = held;
        self.did.n_preempted += 1;
        self.changed = true;
        self.waiting.push_front(job);
        Ok(true)
    }
}
