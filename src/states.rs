//! The states of recurrent layers (gated delta-nets). Other layers have the KV cache.
//!
//! A state is what such layers keep of all tokens up to a position, in place of a key and a value for each: it cannot be
//! cut back. So states are kept whole, each in a slot: the one after a sequence's last token, the one after the last
//! token before the call that is running, for when it fails, and some further back, where a prompt may depart from.
//! Sequences share slots; one is written only by the call that took it.

use std::sync::Arc;

use ggml::backend::Device;
use ggml::tensor::{Store, StoreTensor, TensorDef};
use ggml::DType;

use crate::hparams::Hparams;
use crate::kv::MAX_SEQS;

/// Slots for each sequence that there is to be room for: its state, the one being written, and two kept further back.
const SLOTS_PER_SEQ: usize = 4;

/// States kept of a sequence after fewer tokens than it has.
pub(crate) const MAX_KEPT: usize = 2;

/// The slot of the state before any token, which is zero and never written.
const ZERO: usize = 0;

/// The state after the first `n` tokens of a sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct State {
    /// Tokens.
    pub n: usize,
    /// Where it lies.
    pub slot: usize,
    /// True if the state stays when the sequence grows.
    kept: bool,
}

/// The states of every recurrent layer.
#[derive(Debug)]
pub struct States {
    /// States that refer to each slot.
    uses: Vec<usize>,
    /// States of each sequence, by ascending number of tokens; the last one is after all of its tokens.
    of: Vec<Vec<State>>,
    /// Sequences of the call that is running, with their length before it.
    running: Vec<(u32, usize)>,
    /// For each layer, the index of its first tensor.
    first: Vec<Option<usize>>,
    store: Arc<Store>,
}

impl States {
    /// Slots for `n_seq` sequences; the first is that of the state before any token.
    pub fn n_slots(n_seq: usize) -> usize {
        1 + n_seq * SLOTS_PER_SEQ
    }

    /// Tensor definitions for `n_seq` sequences: for each recurrent layer what its convolution sees of earlier tokens,
    /// `[n_conv_state, n_slots]`, and its recurrent state, `[n_state, n_slots]`, both F32.
    pub fn defs(hp: &Hparams, n_seq: usize) -> Result<Vec<TensorDef>, ggml::Error> {
        let Some(net) = hp.delta_net else { return Ok(Vec::new()) };
        let n = States::n_slots(n_seq);
        let of_layer = |il| {
            let def = |what, width| TensorDef::new(format!("{what}.{il}"), DType::F32, &[width, n]);
            [def("state_conv", net.n_conv_state()), def("state_delta", net.n_state())]
        };
        hp.recurrent_layers().flat_map(of_layer).collect()
    }

    /// Bytes for `n_seq` sequences; sizes that overflow count as more than there can be.
    pub fn bytes_for(hp: &Hparams, n_seq: usize) -> usize {
        let Some(net) = hp.delta_net else { return 0 };
        let of_layer = (net.n_conv_state() + net.n_state()).saturating_mul(size_of::<f32>());
        of_layer.saturating_mul(hp.recurrent_layers().count()).saturating_mul(States::n_slots(n_seq))
    }

    /// Allocates the states of a model; `None` where it has no recurrent layers.
    ///
    /// # Errors
    /// Returns the errors of [`States::defs`], and an error if there is too little memory.
    pub fn new(device: Device, hp: &Hparams, n_seq: usize) -> Result<Option<States>, ggml::Error> {
        if hp.delta_net.is_none() {
            return Ok(None);
        }
        // A new store is zero.
        let store = Store::new(device, States::defs(hp, n_seq)?, "states of recurrent layers")?;
        let (mut first, mut at) = (vec![None; hp.n_layer], 0);
        for il in hp.recurrent_layers() {
            first[il] = Some(at);
            at += 2;
        }
        let mut uses = vec![0; States::n_slots(n_seq)];
        uses[ZERO] = 1;
        Ok(Some(States { uses, of: vec![Vec::new(); MAX_SEQS as usize], running: Vec::new(), first, store }))
    }

    /// States that there is room for at most.
    pub fn most(&self) -> usize {
        self.uses.len() - 1
    }

    /// Bytes of all slots.
    pub fn n_bytes(&self) -> usize {
        self.store.n_bytes()
    }

    /// The inputs of earlier tokens that a layer's convolution reads, `[n_conv_state, n_slots]`, and its recurrent state,
    /// `[n_state, n_slots]`; `None` for a layer with attention.
    pub fn of_layer(&self, il: usize) -> Option<[StoreTensor; 2]> {
        let index = (*self.first.get(il)?)?;
        Some([index, index + 1].map(|index| StoreTensor { store: Arc::clone(&self.store), index }))
    }

    /// The longest beginning of a sequence, `n` tokens at most, that there is a state after: 0 where there is none.
    pub fn longest(&self, seq: u32, n: usize) -> usize {
        self.of(seq).iter().map(|s| s.n).filter(|&at| at <= n).max().unwrap_or(0)
    }

    /// The states of a sequence, by ascending number of tokens.
    pub fn of(&self, seq: u32) -> &[State] {
        self.of.get(seq as usize).map_or(&[], Vec::as_slice)
    }

    /// Sequences that a call can add tokens to at once, in addition to the existing ones.
    pub fn n_free(&self) -> usize {
        let needed = self.of.iter().filter_map(|states| states.last());
        let mut slots: Vec<usize> = needed.map(|s| s.slot).collect();
        slots.sort_unstable();
        slots.dedup();
        self.most() - slots.len()
    }

    /// Drops what is after more than `n` tokens. [`States::longest`] of `n` must be `n`.
    pub fn truncate(&mut self, seq: u32, n: usize) {
        self.retain(seq, |s| s.n <= n && n > 0);
    }

    /// Replaces the states of `dst` with those of `src`.
    pub fn copy(&mut self, src: u32, dst: u32) {
        self.truncate(dst, 0);
        let states = self.of(src).to_vec();
        states.iter().for_each(|s| self.uses[s.slot] += 1);
        self.of[dst as usize] = states;
    }

    /// Drops all states.
    pub fn clear(&mut self) {
        (0..MAX_SEQS).for_each(|seq| self.truncate(seq, 0));
    }

    /// Keeps the state after a sequence's last token when the sequence grows. Of those kept, the one is dropped that is
    /// nearest after another.
    pub fn keep(&mut self, seq: u32) {
        if let Some(last) = self.of[seq as usize].last_mut() {
            last.kept = true;
        }
        while self.of(seq).iter().filter(|s| s.kept).count() > MAX_KEPT {
            let kept: Vec<usize> = self.of(seq).iter().filter(|s| s.kept).map(|s| s.n).collect();
            let before = std::iter::once(0).chain(kept.iter().copied());
            let gaps = kept.iter().zip(before).map(|(&n, before)| (n - before, n));
            let Some((_, n)) = gaps.min() else { return };
            match self.of[seq as usize].last_mut().filter(|last| last.n == n) {
                Some(last) => last.kept = false,
                None => self.retain(seq, |s| s.n != n),
            }
        }
    }

    /// Begins a call that adds tokens to sequences of these lengths.
    pub fn begin(&mut self, sequences: &[(u32, usize)]) {
        self.running = sequences.to_vec();
    }

    /// For sequences that grow to these lengths within the call that is running: the slot of the state that each begins
    /// with, and the one that its new state is to be written to. `None` when no slot is free; the call is to be ended
    /// then.
    pub fn advance(&mut self, sequences: &[(u32, usize)]) -> Option<Vec<(usize, usize)>> {
        let one = |&(seq, n): &(u32, usize)| {
            let before = self.running.iter().find(|r| r.0 == seq).map_or(0, |r| r.1);
            // What this call has written, it writes on.
            if let Some(last) = self.of[seq as usize].last_mut().filter(|last| last.n > before) {
                last.n = n;
                return Some((last.slot, last.slot));
            }
            let slot = self.take()?;
            let states = &mut self.of[seq as usize];
            let from = states.last().map_or(ZERO, |s| s.slot);
            states.push(State { n, slot, kept: false });
            Some((from, slot))
        };
        sequences.iter().map(one).collect()
    }

    /// Ends the call that is running. Where it failed, its sequences are as they were before.
    pub fn end(&mut self, done: bool) {
        for (seq, before) in std::mem::take(&mut self.running) {
            if done {
                let len = self.of(seq).last().map_or(0, |s| s.n);
                self.retain(seq, |s| s.kept || s.n == len);
            } else {
                self.truncate(seq, before);
            }
        }
    }

    /// A free slot, now in use: if need be that of a state kept further back.
    fn take(&mut self) -> Option<usize> {
        loop {
            if let Some(slot) = self.uses.iter().position(|&n| n == 0) {
                self.uses[slot] = 1;
                return Some(slot);
            }
            let needed = |seq: u32, s: &State| {
                let last = self.of(seq).last().map(|last| last.n);
                last == Some(s.n) || self.running.contains(&(seq, s.n))
            };
            let spare = (0..MAX_SEQS).flat_map(|seq| self.of(seq).iter().map(move |s| (seq, *s)));
            let (seq, state) = spare.into_iter().find(|(seq, s)| !needed(*seq, s))?;
            self.retain(seq, |s| s.n != state.n);
        }
    }

    /// The numbers of tokens that a sequence has states after, and the bytes of each state in turn, layer by layer.
    pub fn take_out(&self, seq: u32) -> Result<(Vec<usize>, Vec<u8>), ggml::Error> {
        let (states, n) = (self.of(seq), self.state_bytes());
        let bytes = states.len() * n;
        let refused = |_| ggml::Error::OutOfMemory {
            device: "cpu".into(),
            bytes,
            what: "the states of a sequence between the session and a file".into(),
        };
        let mut data = files::memory::filled(bytes, 0u8).map_err(refused)?;
        let mut at = 0;
        for state in states {
            for (index, row) in self.row_bytes().into_iter().enumerate() {
                self.store.read(index, state.slot * row, &mut data[at..at + row])?;
                at += row;
            }
        }
        Ok((states.iter().map(|state| state.n).collect(), data))
    }

    /// Gives a sequence that has no states those of [`States::take_out`] that are after at most `end` tokens. Those before the
    /// last of them stay out where no slot is free. Returns false, and changes nothing, if there is no slot for that either,
    /// or no such state. `data` must have the bytes of all states after `n` tokens each.
    ///
    /// # Errors
    /// The device. The sequence then has no states.
    pub fn put_in(&mut self, seq: u32, n: &[usize], end: usize, data: &[u8]) -> Result<bool, ggml::Error> {
        let Some(last) = n.iter().rposition(|&n| n <= end) else { return Ok(false) };
        let Some(slot) = self.take() else { return Ok(false) };
        self.of[seq as usize].push(State { n: n[last], slot, kept: false });
        for &n in &n[..last] {
            let Some(slot) = self.uses.iter().position(|&uses| uses == 0) else { break };
            self.uses[slot] = 1;
            let states = &mut self.of[seq as usize];
            states.insert(states.len() - 1, State { n, slot, kept: true });
        }
        let bytes = self.state_bytes();
        for state in self.of(seq).to_vec() {
            let Some(i) = n.iter().position(|&n| n == state.n) else { continue };
            let mut at = i * bytes;
            for (index, row) in self.row_bytes().into_iter().enumerate() {
                let written = data.get(at..at + row).map_or_else(
                    || Err(ggml::Error::Argument(format!("states: expected more than {} bytes", data.len()))),
                    |row_bytes| self.store.write(index, state.slot * row, row_bytes),
                );
                if let Err(e) = written {
                    self.truncate(seq, 0);
                    return Err(e);
                }
                at += row;
            }
        }
        Ok(true)
    }

    fn retain(&mut self, seq: u32, f: impl Fn(&State) -> bool) {
        let (uses, states) = (&mut self.uses, &mut self.of[seq as usize]);
        states.retain(|s| {
            let stays = f(s);
            uses[s.slot] -= usize::from(!stays);
            stays
        });
    }

    /// The slots in use, each once, ascending.
    pub fn used(&self) -> Vec<usize> {
        (ZERO + 1..self.uses.len()).filter(|&slot| self.uses[slot] > 0).collect()
    }

    /// Bytes of a state in every layer.
    pub fn state_bytes(&self) -> usize {
        self.row_bytes().iter().sum()
    }

    fn row_bytes(&self) -> Vec<usize> {
        self.store.defs().iter().map(|def| def.dtype.row_bytes(def.ne[0]).unwrap_or(0)).collect()
    }

    /// Calls `f` with the bytes of the states in [`States::used`] in turn, layer by layer.
    ///
    /// # Errors
    /// The device; those of `f`.
    pub fn export<E: From<ggml::Error>>(&self, mut f: impl FnMut(&[u8]) -> Result<(), E>) -> Result<(), E> {
        let mut bytes = Vec::new();
        for slot in self.used() {
            for (index, row) in self.row_bytes().into_iter().enumerate() {
                bytes.resize(row, 0);
                self.store.read(index, slot * row, &mut bytes)?;
                f(&bytes)?;
            }
        }
        Ok(())
    }

    /// Replaces all states. `of`: for each sequence the number of tokens before each of its states, ascending, and the
    /// place of the state among `n` that follow; `f` is called for the same buffers in the same order as by
    /// [`States::export`], and fills them. More states than there are slots for are refused by the caller.
    ///
    /// # Errors
    /// The device; those of `f`. No state is left then.
    pub fn import<E: From<ggml::Error>>(
        &mut self,
        of: &[Vec<(usize, usize)>],
        n: usize,
        mut f: impl FnMut(&mut [u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        self.clear();
        let mut bytes = Vec::new();
        for slot in ZERO + 1..ZERO + 1 + n {
            for (index, row) in self.row_bytes().into_iter().enumerate() {
                bytes.resize(row, 0);
                f(&mut bytes)?;
                self.store.write(index, slot * row, &bytes)?;
            }
        }
        for (to, states) in self.of.iter_mut().zip(of) {
            let last = states.len().saturating_sub(1);
            for (i, &(n, at)) in states.iter().enumerate() {
                let slot = ZERO + 1 + at;
                self.uses[slot] += 1;
                to.push(State { n, slot, kept: i < last });
            }
        }
        Ok(())
    }
}
