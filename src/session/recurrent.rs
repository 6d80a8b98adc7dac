//! Support for recurrent layers in a session: it batches sequences of similar length, assigns state slots, and keeps
//! states at places where a later prompt could diverge.

use ggml::graph::Executor;

use super::batch::Item;
use super::inputs::REWIND;
use super::{SeqId, Session};
use crate::graph::{DeltaInputs, SeqGroups};
use crate::model::{Error, Result};
use crate::states::States;
use crate::Token;

/// The tokens of a micro-batch by sequence, and the slots of the states that these begin with and end in.
#[derive(Debug, Default)]
pub(super) struct Grouped {
    /// Each sequence, in the order of their first tokens, with the indices of its tokens.
    sequences: Vec<(SeqId, Vec<usize>)>,
    slots: Vec<(usize, usize)>,
    n_tokens: usize,
}

impl Grouped {
    fn new(items: &[Item]) -> Grouped {
        let mut grouped = Grouped { n_tokens: items.len(), ..Grouped::default() };
        for (i, item) in items.iter().enumerate() {
            match grouped.sequences.iter_mut().find(|(seq, _)| *seq == item.seq) {
                Some((_, indices)) => indices.push(i),
                None => grouped.sequences.push((item.seq, vec![i])),
            }
        }
        grouped
    }

    /// How a graph sees them.
    pub(super) fn shape(&self) -> SeqGroups {
        let n_each = self.sequences.iter().map(|(_, own)| own.len()).max().unwrap_or(0);
        let indices = self.sequences.iter().flat_map(|(_, own)| own);
        let in_order = n_each * self.sequences.len() == self.n_tokens && indices.is_sorted();
        SeqGroups { n_seqs: self.sequences.len(), n_each, in_order }
    }

    /// Fills the inputs of recurrent layers, whose convolution sees `n_before` earlier tokens.
    pub(super) fn fill(&self, exec: &mut Executor, ids: &DeltaInputs, n_before: usize) -> Result<()> {
        let (read, write): (Vec<i32>, Vec<i64>) =
            self.slots.iter().map(|&(from, to)| (from as i32, to as i64)).unzip();
        exec.set(ids.read, &read)?;
        exec.set(ids.write, &write)?;
        let Some(regroup) = &ids.regroup else { return Ok(()) };
        let SeqGroups { n_seqs, n_each, .. } = self.shape();
        // What is seen of earlier tokens lies before the tokens themselves.
        let first_token = n_before * n_seqs;
        let (mut rows, mut tokens, mut filled) = (Vec::new(), Vec::new(), Vec::new());
        let mut places = vec![0; self.n_tokens];
        for (s, (_, own)) in self.sequences.iter().enumerate() {
            let n_empty = n_each - own.len();
            for _ in 0..n_empty {
                rows.push(0);
                tokens.push(0);
                filled.push(0.0);
            }
            rows.extend((0..n_before).map(|i| (s * n_before + i) as i32));
            for (at, &i) in own.iter().enumerate() {
                rows.push((first_token + i) as i32);
                tokens.push(i as i32);
                filled.push(1f32);
                places[i] = (s * n_each + n_empty + at) as i32;
            }
        }
        exec.set(regroup.rows, &rows)?;
        exec.set(regroup.tokens, &tokens)?;
        exec.set(regroup.filled, &filled)?;
        exec.set(regroup.places, &places)?;
        Ok(())
    }
}

impl Session {
    /// How many of these items make the next micro-batch. In recurrent layers every sequence takes as much room as the
    /// longest, so the micro-batch ends before that takes more room than `n_ubatch` tokens.
    pub(super) fn micro_batch_len(&self, items: &[Item]) -> usize {
        let most = self.params.n_ubatch.min(items.len());
        if self.states.is_none() {
            return most;
        }
        let mut counts: Vec<(SeqId, usize)> = Vec::new();
        for (i, item) in items[..most].iter().enumerate() {
            match counts.iter_mut().find(|(seq, _)| *seq == item.seq) {
                Some((_, n)) => *n += 1,
                None => counts.push((item.seq, 1)),
            }
            let longest = counts.iter().map(|c| c.1).max().unwrap_or(0);
            if counts.len() > self.params.n_seq_max || counts.len() * longest > self.params.n_ubatch {
                return i.max(1);
            }
        }
        most
    }

    /// The tokens of a micro-batch by sequence, with slots for their states; `items` are in [`Session::tokens`] already.
    pub(super) fn grouped(&mut self, items: &[Item]) -> Result<Grouped> {
        let Some(states) = &mut self.states else {
            return Ok(Grouped { n_tokens: items.len(), ..Grouped::default() });
        };
        let mut grouped = Grouped::new(items);
        let lengths = grouped.sequences.iter().map(|&(seq, _)| (seq, self.tokens[seq as usize].len()));
        let lengths: Vec<(SeqId, usize)> = lengths.collect();
        let no_slot = || {
            let n = self.params.n_seq_max;
            Error::Invalid(format!(
                "sequences: no room for the states of recurrent layers; the session was opened for {n}, open it for more"
            ))
        };
        grouped.slots = states.advance(&lengths).ok_or_else(no_slot)?;
        Ok(grouped)
    }

    /// How the largest graph of `n` tokens sees them.
    pub(super) fn largest_groups(&self, n: usize) -> SeqGroups {
        let n_seqs = if self.states.is_some() { self.params.n_seq_max.min(n) } else { 1 };
        SeqGroups { n_seqs, n_each: n / n_seqs.max(1), in_order: n_seqs == 1 }
    }

    /// Sequences that a call can extend at once, as far as there is room for states.
    pub(crate) fn n_free_states(&self) -> usize {
        self.states.as_ref().map_or(usize::MAX, States::n_free)
    }

    /// Whether every sequence can be cut back to any length.
    pub(crate) fn cuts_anywhere(&self) -> bool {
        self.states.is_none() && !self.plan.evict
    }

    /// The longest prefix of a sequence, of at most `n` tokens, from which it can continue. It has `n` tokens unless
    /// the plan has evicted keys, or recurrent layers have no state after them.
    pub(super) fn resumable(&self, seq: SeqId, n: usize) -> usize {
        let n = self.states.as_ref().map_or(n, |states| states.longest(seq, n));
        if self.holds(seq, n) {
            n
        } else {
            0
        }
    }

    /// Why a sequence cannot be cut back to `n` tokens.
    pub(super) fn cannot_truncate(&self, seq: SeqId, n: usize) -> Error {
        let len = self.tokens(seq).len();
        let states = self.states.as_ref().filter(|states| states.longest(seq, n) != n);
        let Some(states) = states else {
            return Error::Unsupported(format!(
                "truncate: {} has evicted keys that tokens after {n} of {len} would see; truncate to 0 and \
                 decode again",
                self.plan.spec
            ));
        };
        let known: Vec<String> = states.of(seq).iter().map(|s| s.n.to_string()).collect();
        let layers: Vec<String> = self.model.hparams().recurrent_layers().map(|il| il.to_string()).collect();
        Error::Unsupported(format!(
            "truncate: layers {} (gated delta-net) keep a state after 0, {} tokens, but not after {n}; \
             truncate to one of these and decode again",
            layers.join(" "),
            known.join(", ")
        ))
    }

    /// Extends a sequence that holds the first `from` tokens of a prompt to the complete prompt, and returns the
    /// logits of the last token. Recurrent layers keep a state where the prompt departed from the sequence's earlier
    /// tokens (after `departed` tokens), and a little before its end, where the next prompt may depart from it. On an
    /// error, at most the first `from` tokens are held.
    pub(super) fn extend_prompt(
        &mut self,
        seq: SeqId,
        prompt: &[Token],
        from: usize,
        departed: usize,
    ) -> Result<&[f32]> {
        for at in self.kept_places(from, departed, prompt.len()).into_iter().chain([prompt.len()]) {
            let held = self.tokens(seq).len();
            if let Err(e) = self.sequence(seq).append(&prompt[held..at]).map(|_| ()) {
                let back = self.resumable(seq, from);
                self.truncate(seq, back)?;
                return Err(e);
            }
            if at < prompt.len() {
                self.keep_state(seq);
            }
        }
        Ok(&self.logits)
    }

    /// Places in a prompt of `n` tokens after which to keep states: numbers of tokens, ascending, all above `from`
    /// and below `n`.
    pub(crate) fn kept_places(&self, from: usize, departed: usize, n: usize) -> Vec<usize> {
        if self.states.is_none() {
            return Vec::new();
        }
        let mut places = vec![departed, n.saturating_sub(REWIND)];
        places.retain(|&at| at > from && at < n);
        places.sort_unstable();
        places.dedup();
        places
    }

    /// Keeps the state after a sequence's last token, if there are recurrent layers.
    pub(crate) fn keep_state(&mut self, seq: SeqId) {
        self.states.iter_mut().for_each(|states| states.keep(seq));
    }
}
