//! Saving a session to a file and restoring it. `saved` has the file's layout.

use std::path::Path;

use ropewalk_core::text::bytes;
use sha2::{Digest, Sha256};

use super::saved::{self, Header, SavedSession, CELL, SESSION, TOKEN};
use super::{Attention, Session};
use crate::kv::{Cell, MAX_SEQS};
use crate::model::{Error, Model, Result};
use crate::rope::Plan;
use crate::states::MAX_KEPT;
use crate::Token;

/// A hash, in hexadecimal, of everything about the model that its cached keys and values depend on: hyperparameters,
/// adapters, and the name, type, shape, and first bytes of each tensor.
fn fingerprint(model: &Model) -> String {
    let mut hash = Sha256::new();
    for info in model.file().tensors() {
        hash.update(format!("{}{}{:?}", info.name, info.dtype.name(), info.shape));
        let data = model.file().data(info);
        let mut start = [0; 4096];
        let start = &mut start[..data.len().min(4096)];
        data.slice(0..start.len()).copy_to(start);
        hash.update(start);
    }
    hash.update(format!("{:?}", model.hparams()));
    model.adapters().iter().for_each(|a| hash.update(a.digest()));
    format!("{:x}", hash.finalize())
}

impl SavedSession {
    /// Checks that a session is of this model, with the same adapters.
    ///
    /// # Errors
    /// Returns an error that names the file if it is not.
    pub fn check_model(&self, model: &Model) -> Result<()> {
        let (own, found) = (fingerprint(model), &self.header.model);
        if &own != found {
            return Err(self.refuse(format!("model: expected {own}, found {found}")));
        }
        Ok(())
    }
}

impl Session {
    /// Writes tokens and cache to a file, atomically, together with the caller's `attachment`: bytes that belong to
    /// the session, such as its messages. [`Session::restore`] returns them.
    ///
    /// # Errors
    /// Returns an error if something at `path` is not a saved session (it is never replaced), if the attachment
    /// exceeds [`MAX_ATTACHMENT`](super::MAX_ATTACHMENT) bytes, if a session with these parameters could not restore
    /// the file for another reason, or if the file cannot be written (with its name). `path` is unchanged then.
    pub fn save(&self, path: impl AsRef<Path>, attachment: &[u8]) -> Result<()> {
        let path = path.as_ref();
        let refuse = |what: String| Error::Invalid(format!("{}: not saved: {what}", path.display()));
        SESSION.claim(path)?;
        let cells = &self.kv.cells()[..self.kv.n_end()];
        let header = Header {
            attachment_bytes: attachment.len() as u64,
            n_tokens: self.tokens.iter().map(|t| t.len() as u64).collect(),
            n_cells: cells.len() as u64,
            n_states: self.states.as_ref().map_or(0, |states| states.used().len() as u64),
            states: self.saved_states(),
            ..self.facts()
        };
        header.check().map_err(refuse)?;
        self.check(&self.facts(), &header).map_err(refuse)?;
        self.check_contents(&self.tokens, cells).map_err(refuse)?;
        self.check_states(&self.tokens, &header).map_err(refuse)?;
        saved::write(path, &header, attachment, |write| {
            for token in self.tokens.iter().flatten() {
                write(&token.to_le_bytes())?;
            }
            for cell in cells {
                write(&cell.pos.to_le_bytes())?;
                write(&cell.seqs.to_le_bytes())?;
            }
            self.kv.export(&mut *write)?;
            self.states.as_ref().map_or(Ok(()), |states| states.export(write))
        })
    }

    /// Replaces the content of the session with a file that [`Session::save`] wrote, and returns the attachment.
    ///
    /// # Errors
    /// Returns the errors of [`SavedSession::open`] and [`Session::restore_from`].
    pub fn restore(&mut self, path: impl AsRef<Path>) -> Result<Vec<u8>> {
        let mut saved = SavedSession::open(path)?;
        self.restore_from(&mut saved)?;
        Ok(saved.attachment)
    }

    /// Restores a file that was opened before to read its method, its context, or its attachment.
    ///
    /// # Errors
    /// Returns an error if the file has another model, method, or KV cache type, if it needs more slots than this
    /// session has or more memory than is free, or if it is damaged. The session is unchanged then. If the file
    /// cannot be read to its end, the session is left empty.
    pub fn restore_from(&mut self, saved: &mut SavedSession) -> Result<()> {
        self.check(&self.facts(), &saved.header).map_err(|e| saved.refuse(e))?;
        let header = &saved.header;
        let needed = header.n_tokens.iter().sum::<u64>() * TOKEN + header.n_cells * CELL;
        if let Some(free) = ggml::machine::memory_available().filter(|&free| needed > free) {
            let what = saved
                .refuse(format!("needs {} for its tokens, {} is free", bytes(needed), bytes(free)))
                .to_string();
            return Err(Error::OutOfMemory {
                needed: needed as usize,
                free: Some(free as usize),
                what,
                remedy: None,
            });
        }
        match saved.is_whole() {
            Ok(true) => {}
            Ok(false) => return Err(saved.refuse("damaged: its contents do not agree with their checksum")),
            Err(e) => return Err(saved.io(e)),
        }
        let (tokens, cells) = saved.contents().map_err(|e| saved.io(e))?;
        self.check_contents(&tokens, &cells).map_err(|e| saved.refuse(e))?;
        self.check_states(&tokens, &saved.header).map_err(|e| saved.refuse(e))?;
        self.clear();
        let done = self.kv.import(&cells, |bytes| saved.fill(bytes)).and_then(|()| self.import_states(saved));
        if done.is_err() {
            self.clear();
            return done;
        }
        self.tokens = tokens;
        Ok(())
    }

    /// A header of this session, without anything in it.
    pub(super) fn facts(&self) -> Header {
        let keys = if self.capabilities.custom_ops { "table" } else { "ggml" };
        Header {
            model: fingerprint(&self.model),
            rope: self.plan.spec.to_string(),
            kv_type: self.params.kv_type.name().into(),
            keys: keys.into(),
            landmarks: match self.params.attention {
                Attention::Landmark(top) => top.to_string(),
                Attention::Auto | Attention::Explicit => String::new(),
            },
            n_ctx: self.params.n_ctx,
            cell_bytes: self.kv.cell_bytes() as u64,
            state_bytes: self.states.as_ref().map_or(0, |states| states.state_bytes() as u64),
            ..Header::default()
        }
    }

    /// The reason why this session, with these facts, cannot restore a file with this header.
    pub(super) fn check(&self, own: &Header, header: &Header) -> Result<(), String> {
        for (key, expected, found) in [
            ("model", &own.model, &header.model),
            ("rope", &own.rope, &header.rope),
            ("keys", &own.keys, &header.keys),
            ("landmarks", &own.landmarks, &header.landmarks),
            ("kv type", &own.kv_type, &header.kv_type),
            ("cell bytes", &own.cell_bytes.to_string(), &header.cell_bytes.to_string()),
            ("state bytes", &own.state_bytes.to_string(), &header.state_bytes.to_string()),
        ] {
            if expected != found {
                return Err(format!("{key}: expected {expected}, found {found}"));
            }
        }
        // Some specs come to other positions at other contexts (`keep-short`, `dynamic-ntk:trained`, `clex`).
        let n_ctx = header.n_ctx;
        let at = |n_ctx| Plan::new(&self.plan.spec, self.model.hparams(), n_ctx).map_err(|e| e.to_string());
        if n_ctx != self.params.n_ctx && !at(self.model.n_positions(n_ctx))?.same_positions(&self.plan) {
            return Err(format!(
                "ctx: under {} positions depend on the context; expected {} tokens, found {n_ctx}",
                own.rope, self.params.n_ctx
            ));
        }
        let n_cells = self.kv.cells().len();
        if header.n_cells > n_cells as u64 {
            return Err(format!("ctx: expected at least {}, found {n_cells}", header.n_cells));
        }
        let longest = header.n_tokens.iter().copied().max().unwrap_or(0);
        if longest > self.n_max() as u64 {
            return Err(format!("ctx: expected at least {longest}, found {}", self.n_max()));
        }
        Ok(())
    }

    /// The states of each sequence as a header has them.
    fn saved_states(&self) -> Vec<Vec<(usize, usize)>> {
        let Some(states) = &self.states else { return Vec::new() };
        let used = states.used();
        let index = |slot: usize| used.binary_search(&slot).unwrap_or(0);
        let of = |seq| states.of(seq).iter().map(|s| (s.n, index(s.slot))).collect();
        (0..MAX_SEQS).map(of).collect()
    }

    fn import_states(&mut self, saved: &mut SavedSession) -> Result<()> {
        let Some(states) = &mut self.states else { return Ok(()) };
        let (n, of) = (saved.header.n_states as usize, saved.header.states.clone());
        states.import(&of, n, |bytes| saved.fill(bytes))
    }

    /// Why the states that a header lists cannot be those of sequences of these tokens in this session.
    pub(super) fn check_states(&self, tokens: &[Vec<Token>], header: &Header) -> Result<(), String> {
        let Some(states) = &self.states else {
            let found = header.n_states;
            let none = found == 0 && header.states.is_empty();
            return if none { Ok(()) } else { Err(format!("states: expected none, found {found}")) };
        };
        let most = states.most() as u64;
        if header.n_states > most {
            return Err(format!(
                "states: a session for {} sequences has room for {most}, found {}",
                self.params.n_seq_max, header.n_states
            ));
        }
        for (seq, tokens) in tokens.iter().enumerate() {
            let of = header.states.get(seq).map_or(&[][..], Vec::as_slice);
            // One after its last token, and those kept.
            if of.len() > MAX_KEPT + 1 {
                return Err(format!(
                    "states: expected at most {} of sequence {seq}, found {}",
                    MAX_KEPT + 1,
                    of.len()
                ));
            }
            let ascending = of.windows(2).all(|w| w[0].0 < w[1].0) && of.iter().all(|s| s.0 > 0);
            if !ascending || of.last().map_or(0, |s| s.0) != tokens.len() {
                let n = tokens.len();
                return Err(format!("states: sequence {seq} has no state after its {n} tokens"));
            }
        }
        Ok(())
    }

    /// Why tokens and cells cannot be those of one session under this plan.
    pub(super) fn check_contents(&self, tokens: &[Vec<Token>], cells: &[Cell]) -> Result<(), String> {
        let n_vocab = self.model.hparams().n_vocab;
        let in_vocab = |t: &Token| usize::try_from(*t).is_ok_and(|t| t < n_vocab);
        if let Some(token) = tokens.iter().flatten().find(|t| !in_vocab(t)) {
            return Err(format!("tokens: expected 0 to {}, found {token}", n_vocab.saturating_sub(1)));
        }
        // Each sequence's tokens must have exactly one cell for each of their positions, but for what may be
        // evicted.
        for (seq, tokens) in tokens.iter().enumerate() {
            let of_seq = || cells.iter().filter(|c| c.seqs & (1 << seq) != 0).map(|c| c.pos);
            let mut positions = files::memory::room(of_seq().count()).map_err(|e| format!("cells: {e}"))?;
            positions.extend(of_seq());
            positions.sort_unstable();
            let n = self.model.n_positions(tokens.len()) as i32;
            let once =
                positions.windows(2).all(|w| w[0] < w[1]) && positions.iter().all(|p| (0..n).contains(p));
            let missing = |j: i32| positions.binary_search(&j).is_err();
            if !once || (0..n).any(|j| missing(j) && (!self.plan.evict || self.plan.needs(j, n))) {
                return Err(format!(
                    "cells: sequence {seq} does not have a cell for each of its {} tokens",
                    tokens.len()
                ));
            }
        }
        Ok(())
    }
}
