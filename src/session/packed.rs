//! One sequence as a file: the file of a session that has no other. A sequence is packed into memory and unpacked from it, so
//! that its file can be written and read on a thread that is not the session's.

use std::io::{self, copy, Read, Seek, SeekFrom};
use std::path::Path;
use std::time::SystemTime;

use files::memory::{filled, room};
use ropewalk_core::text::{bytes, hex};
use sha2::{Digest, Sha256};

use super::saved::{self, Header, SavedSession, CELL, DIGEST, START, TOKEN};
use super::{SeqId, Session};
use crate::kv::{Cell, MAX_SEQS};
use crate::model::{Error, Result};
use crate::Token;

/// Most tokens of a packed sequence.
const MAX_TOKENS: usize = 1 << 24;

/// The header that all files of a session's sequences share.
#[derive(Debug, Clone)]
pub(crate) struct Form(Header);

/// A sequence outside of a session.
#[derive(Debug)]
pub(crate) struct Packed {
    header: Header,
    tokens: Vec<Token>,
    cells: Vec<Cell>,
    /// Keys and values, tensor by tensor.
    rows: Vec<u8>,
    states: Vec<u8>,
}

impl Packed {
    pub(crate) fn tokens(&self) -> &[Token] {
        &self.tokens
    }

    /// The numbers of tokens that it has states after; none without recurrent layers.
    pub(crate) fn states(&self) -> Vec<usize> {
        self.header.places()
    }

    /// A hash of its tokens, and of all that a file with this attachment says of them.
    pub(crate) fn hash(&self, attachment: &[u8]) -> String {
        let mut hash = Sha256::new();
        hash.update(serde_json::to_vec(&self.header).unwrap_or_default());
        hash.update(attachment);
        self.tokens.iter().for_each(|token| hash.update(token.to_le_bytes()));
        hex(&hash.finalize())
    }

    /// Bytes of its file.
    pub(crate) fn n_bytes(&self, attachment: &[u8]) -> u64 {
        let header = self.header_with(attachment);
        let json = serde_json::to_vec(&header).map_or(0, |json| json.len() as u64);
        START + json + header.data_bytes().unwrap_or(u64::MAX / 2) + DIGEST
    }

    fn header_with(&self, attachment: &[u8]) -> Header {
        Header { attachment_bytes: attachment.len() as u64, ..self.header.clone() }
    }

    /// Writes its file, atomically.
    ///
    /// # Errors
    /// Something that is no saved session is at `path`; the disk.
    pub(crate) fn write(&self, path: &Path, attachment: &[u8]) -> Result<()> {
        saved::write(path, &self.header_with(attachment), attachment, |write| {
            for token in &self.tokens {
                write(&token.to_le_bytes())?;
            }
            for cell in &self.cells {
                write(&cell.pos.to_le_bytes())?;
                write(&cell.seqs.to_le_bytes())?;
            }
            write(&self.rows)?;
            write(&self.states)
        })
    }
}

impl Header {
    /// The numbers of tokens that the first sequence has states after.
    fn places(&self) -> Vec<usize> {
        self.states.first().map_or(Vec::new(), |of| of.iter().map(|state| state.0).collect())
    }

    /// Why a file of this header is none of a packed sequence.
    fn check_packed(&self) -> Result<(), String> {
        let n = self.n_tokens.first().map_or(0, |&n| n as usize);
        if n == 0 || n > MAX_TOKENS {
            return Err(format!("tokens: expected 1 to {MAX_TOKENS}, found {n}"));
        }
        if self.n_tokens.iter().skip(1).any(|&n| n > 0) || self.states.iter().skip(1).any(|s| !s.is_empty()) {
            return Err("tokens: expected those of one sequence, found others".into());
        }
        // In the order of their numbers, as they are written.
        let in_order = self.states.iter().flatten().enumerate().all(|(i, state)| state.1 == i);
        if !in_order || self.states.iter().flatten().count() as u64 != self.n_states {
            return Err(format!("states: expected {} in order, found others", self.n_states));
        }
        Ok(())
    }
}

impl SavedSession {
    /// The tokens of a packed sequence, and the numbers of tokens that it has states after. They are not verified.
    ///
    /// # Errors
    /// It is the file of a session with other sequences; the disk.
    pub(crate) fn peek(&mut self) -> Result<(Vec<Token>, Vec<usize>)> {
        self.header.check_packed().map_err(|e| self.refuse(e))?;
        let start = self.at + self.header.attachment_bytes;
        self.input.seek(SeekFrom::Start(start)).map_err(|e| self.io(e))?;
        let n_bytes = self.header.n_tokens[0] * TOKEN;
        let tokens = filled(n_bytes as usize, 0u8).map_err(io::Error::from);
        let mut tokens = tokens.map_err(|e| self.io(e))?;
        self.input.read_exact(&mut tokens).map_err(|e| self.io(e))?;
        Ok((of_bytes(&tokens).map_err(|e| self.io(e))?, self.header.places()))
    }

    /// Bytes of the file, and when it was changed or marked as used.
    pub(crate) fn about_file(&self) -> Result<(u64, SystemTime)> {
        let found = self.input.get_ref().metadata().map_err(|e| self.io(e))?;
        Ok((found.len(), found.modified().map_err(|e| self.io(e))?))
    }

    /// Marks the file as used, where the system lets it.
    pub(crate) fn touch(&self) {
        let _ = self.input.get_ref().set_modified(SystemTime::now());
    }

    /// Reads a packed sequence, and verifies the file.
    ///
    /// # Errors
    /// The file is damaged, or needs more memory than is free; the disk.
    pub(crate) fn packed(mut self) -> Result<Packed> {
        self.header.check_packed().map_err(|e| self.refuse(e))?;
        let needed = self.header.data_bytes().unwrap_or(u64::MAX);
        if let Some(free) = ggml::machine::memory_available().filter(|&free| needed > free) {
            return Err(self.refuse(format!("needs {}, {} is free", bytes(needed), bytes(free))));
        }
        match self.read_packed() {
            Ok(Some(packed)) => Ok(packed),
            Ok(None) => Err(self.refuse("damaged: its contents do not agree with their checksum")),
            Err(e) => Err(self.io(e)),
        }
    }

    fn read_packed(&mut self) -> io::Result<Option<Packed>> {
        let header = self.header.clone();
        let mut hash = Sha256::new();
        self.input.rewind()?;
        copy(&mut (&mut self.input).take(self.at), &mut hash)?;
        self.input.seek_relative(header.attachment_bytes as i64)?;
        hash.update(&self.attachment);
        // The file's length agrees with these numbers.
        let mut next = |n: u64| -> io::Result<Vec<u8>> {
            let mut part = filled(n as usize, 0u8)?;
            self.input.read_exact(&mut part)?;
            hash.update(&part);
            Ok(part)
        };
        let tokens = of_bytes(&next(header.n_tokens[0] * TOKEN)?)?;
        let found = next(header.n_cells * CELL)?;
        let rows = next(header.n_cells * header.cell_bytes)?;
        let states = next(header.n_states * header.state_bytes)?;
        let mut digest = [0u8; DIGEST as usize];
        self.input.read_exact(&mut digest)?;
        if hash.finalize()[..] != digest {
            return Ok(None);
        }
        let mut cells = room(header.n_cells as usize)?;
        for cell in found.chunks_exact(CELL as usize) {
            let (pos, seqs) = cell.split_at(TOKEN as usize);
            let pos = i32::from_le_bytes(pos.try_into().unwrap_or_default());
            cells.push(Cell { pos, seqs: u64::from_le_bytes(seqs.try_into().unwrap_or_default()) });
        }
        Ok(Some(Packed { header, tokens, cells, rows, states }))
    }
}

fn of_bytes(bytes: &[u8]) -> io::Result<Vec<Token>> {
    let mut tokens = room(bytes.len() / TOKEN as usize)?;
    let of = |token: &[u8]| Token::from_le_bytes(token.try_into().unwrap_or_default());
    tokens.extend(bytes.chunks_exact(TOKEN as usize).map(of));
    Ok(tokens)
}

impl Session {
    /// The header that all files of its sequences share.
    pub(crate) fn form(&self) -> Form {
        Form(self.facts())
    }

    /// Bytes of a sequence outside of the session, nearly.
    pub(crate) fn packed_bytes(&self, seq: SeqId) -> u64 {
        let cells = self.cells().iter().filter(|cell| cell.seqs & (1 << seq) != 0).count();
        let states = self.states.as_ref().map_or(0, |states| states.of(seq).len() * states.state_bytes());
        (cells * (self.kv.cell_bytes() + CELL as usize) + states) as u64
    }

    /// Copies a sequence out of the session.
    ///
    /// # Errors
    /// It has no tokens, or too many; the device; too little memory.
    pub(crate) fn pack(&self, form: &Form, seq: SeqId) -> Result<Packed> {
        let tokens = self.tokens(seq).to_vec();
        let (cells, rows) = self.kv.take_out(seq)?;
        let mut header = form.0.clone();
        header.n_tokens = vec![0; MAX_SEQS as usize];
        header.n_tokens[0] = tokens.len() as u64;
        header.n_cells = cells.len() as u64;
        let mut states = Vec::new();
        if let Some(own) = &self.states {
            let places;
            (places, states) = own.take_out(seq)?;
            header.n_states = places.len() as u64;
            header.states = vec![Vec::new(); MAX_SEQS as usize];
            header.states[0] = places.into_iter().enumerate().map(|(i, n)| (n, i)).collect();
        }
        header.check_packed().map_err(Error::Invalid)?;
        Ok(Packed { header, tokens, cells, rows, states })
    }

    /// Whether a file has a sequence for a session of this form.
    pub(crate) fn takes(&self, form: &Form, saved: &SavedSession) -> bool {
        let n = saved.n_tokens();
        saved.header.check_packed().is_ok() && n <= self.n_max() && self.check(&form.0, &saved.header).is_ok()
    }

    /// Checks that a packed sequence is one of a session of this form.
    pub(crate) fn can_unpack(&self, form: &Form, packed: &Packed) -> Result<()> {
        self.check(&form.0, &packed.header).map_err(Error::Invalid)?;
        let mut tokens = vec![Vec::new(); MAX_SEQS as usize];
        tokens[0] = packed.tokens.clone();
        self.check_contents(&tokens, &packed.cells).map_err(Error::Invalid)?;
        self.check_states(&tokens, &packed.header).map_err(Error::Invalid)
    }

    /// Gives a sequence the first `n` tokens of a packed one, which must be able to continue there. Returns false if there is
    /// no room; the sequence is empty then.
    ///
    /// # Errors
    /// The packed sequence is none of a session of this form; the device. The sequence is empty then.
    pub(crate) fn unpack(&mut self, form: &Form, seq: SeqId, packed: &Packed, n: usize) -> Result<bool> {
        self.truncate(seq, 0)?;
        self.can_unpack(form, packed)?;
        let n = n.min(packed.tokens.len());
        let end = self.model.n_positions(n) as i32;
        if !self.kv.put_in(seq, &packed.cells, end, &packed.rows)? {
            return Ok(false);
        }
        if let Some(states) = &mut self.states {
            let put = states.put_in(seq, &packed.header.places(), n, &packed.states);
            if !matches!(put, Ok(true)) {
                self.kv.remove(seq, 0);
                return Ok(put?);
            }
        }
        self.tokens_mut(seq)?.extend_from_slice(&packed.tokens[..n]);
        Ok(true)
    }
}
