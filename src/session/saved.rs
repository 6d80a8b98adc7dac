//! The file of a saved session: its layout, and the checks that need no open session.
//!
//! The layout, with little-endian numbers: magic, length of the header (u64), header (JSON), the attachment, the
//! tokens of each sequence (i32), each slot's position (i32) and sequences (u64), each layer's keys and values for
//! these slots, states of recurrent layers one after the other, and the SHA-256 of all that. The header gives the
//! size of each part, and the file's length must agree before anything is read. If a position mapping shows only
//! first positions, keys under it can be zeros elsewhere. The file has them for every slot, so that it does not
//! depend on whether the session that wrote it cached them.

use std::fs::File;
use std::io::{copy, BufReader, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use files::memory::{filled, room};
use ropewalk_core::terminal::one_line;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::kv::{Cell, MAX_SEQS};
use crate::model::{Error, Result};
use crate::Token;

/// First bytes of a session file of any version; the version's digit follows.
const FAMILY: &[u8; 7] = b"ropewlk";

/// First bytes of the files that are written.
const MAGIC: &[u8; 8] = b"ropewlk3";

/// Bytes before the header.
pub(super) const START: u64 = 16;
/// Bytes of the digest at the end.
pub(super) const DIGEST: u64 = 32;
/// Bytes of a cell's position and sequences.
pub(super) const CELL: u64 = 12;
pub(super) const TOKEN: u64 = 4;

/// Most bytes of a header; a sound one has a few hundred and the rope spec.
const MAX_HEADER: u64 = 1 << 20;

/// Maximum size of an attachment to a saved session, in bytes.
pub const MAX_ATTACHMENT: u64 = 64 << 20;

/// The properties that a session must share with the file to restore it, and the sizes of everything else.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Header {
    pub(super) model: String,
    pub(super) rope: String,
    pub(super) kv_type: String,
    /// `table` or `ggml`: the rotation that made the cached keys, since the two can differ in the order of
    /// dimensions.
    pub(super) keys: String,
    /// Which blocks are attended to, where it is not all of them; empty elsewhere.
    #[serde(default)]
    pub(super) landmarks: String,
    pub(super) n_ctx: usize,
    pub(super) n_tokens: Vec<u64>,
    pub(super) n_cells: u64,
    pub(super) cell_bytes: u64,
    /// States of recurrent layers.
    #[serde(default)]
    pub(super) n_states: u64,
    #[serde(default)]
    pub(super) state_bytes: u64,
    /// For each sequence the number of tokens before each of its states, ascending, and the state's index. Empty where
    /// the model has no recurrent layers.
    #[serde(default)]
    pub(super) states: Vec<Vec<(usize, usize)>>,
    pub(super) attachment_bytes: u64,
}

impl Header {
    /// Bytes of everything between header and digest; `None` for numbers that overflow.
    pub(super) fn data_bytes(&self) -> Option<u64> {
        let tokens = self.n_tokens.iter().try_fold(0u64, |sum, &n| sum.checked_add(n.checked_mul(TOKEN)?))?;
        let cells = self.n_cells.checked_mul(self.cell_bytes.checked_add(CELL)?)?;
        let states = self.n_states.checked_mul(self.state_bytes)?;
        self.attachment_bytes.checked_add(tokens)?.checked_add(cells)?.checked_add(states)
    }

    /// Checks for what a file of this header could not be, whatever session it is restored into.
    pub(super) fn check(&self) -> Result<(), String> {
        if self.attachment_bytes > MAX_ATTACHMENT {
            return Err(format!(
                "attachment: expected at most {MAX_ATTACHMENT} bytes, found {}",
                self.attachment_bytes
            ));
        }
        let most = i32::MAX as u64;
        if self.n_tokens.len() != MAX_SEQS as usize || self.n_tokens.iter().any(|&n| n > most) {
            return Err(format!("tokens: expected at most {most} in each of {MAX_SEQS} sequences"));
        }
        if !self.states.is_empty() && self.states.len() != MAX_SEQS as usize {
            let found = self.states.len();
            return Err(format!("states: expected {MAX_SEQS} sequences, found {found}"));
        }
        if self.states.iter().flatten().any(|&(_, at)| at as u64 >= self.n_states) {
            return Err(format!("states: expected some of {}, found another", self.n_states));
        }
        Ok(())
    }
}

/// An opened file of a saved session. Only the lengths are checked so far;
/// [`Session::restore_from`](super::Session::restore_from) checks the rest, and the checksum.
#[derive(Debug)]
pub struct SavedSession {
    path: PathBuf,
    pub(super) input: BufReader<File>,
    pub(super) header: Header,
    /// Bytes before the attachment.
    pub(super) at: u64,
    pub(super) attachment: Vec<u8>,
}

impl SavedSession {
    /// Opens a file that [`Session::save`](super::Session::save) wrote.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read, is not a saved session, has another version of this format, or
    /// has a length that does not match its header.
    pub fn open(path: impl AsRef<Path>) -> Result<SavedSession> {
        let path = path.as_ref();
        SavedSession::of_file(path, files::foreign::open_file(path)?)
    }

    /// [`SavedSession::open`] of a file that is open already.
    pub(crate) fn of_file(path: &Path, file: File) -> Result<SavedSession> {
        let io = |e: std::io::Error| Error::io(path, e);
        let refuse = |what: String| Error::Invalid(format!("{}: {what}", path.display()));
        let n_bytes = file.metadata().map_err(io)?.len();
        let mut input = BufReader::with_capacity(1 << 16, file);
        let mut start = Vec::new();
        (&mut input).take(START).read_to_end(&mut start).map_err(io)?;
        match version(&start) {
            None => return Err(refuse("not a saved session: wrong first bytes".into())),
            Some(b'3') => {}
            Some(other) => {
                return Err(refuse(format!(
                    "a saved session of version {}: expected version 3, which this program writes",
                    char::from(other)
                )))
            }
        }
        let Some(most) = n_bytes.checked_sub(START + DIGEST).filter(|_| start.len() as u64 == START) else {
            return Err(refuse("a saved session that was cut short".into()));
        };
        let n = u64::from_le_bytes(start[8..].try_into().unwrap_or_default());
        if n > most.min(MAX_HEADER) {
            let most = most.min(MAX_HEADER);
            return Err(refuse(format!("header: expected at most {most} bytes, found {n}")));
        }
        let mut json = vec![0u8; n as usize];
        input.read_exact(&mut json).map_err(io)?;
        let header: Header =
            serde_json::from_slice(&json).map_err(|e| refuse(format!("header: {}", one_line(e))))?;
        header.check().map_err(refuse)?;
        if header.data_bytes() != Some(most - n) {
            let expected = header.data_bytes().map_or("too many to count".into(), |n| n.to_string());
            return Err(refuse(format!("contents: expected {expected} bytes, found {}", most - n)));
        }
        let attachment = filled(header.attachment_bytes as usize, 0u8);
        let mut attachment = attachment.map_err(|e| refuse(format!("attachment: {e}")))?;
        input.read_exact(&mut attachment).map_err(io)?;
        Ok(SavedSession { path: path.to_owned(), input, header, at: START + n, attachment })
    }

    /// The method spec that the session was opened with, with every default filled in.
    pub fn rope(&self) -> &str {
        &self.header.rope
    }

    /// The context size that the session was opened with, in tokens.
    pub fn n_ctx(&self) -> usize {
        self.header.n_ctx
    }

    /// The tokens of its longest sequence.
    pub fn n_tokens(&self) -> usize {
        self.header.n_tokens.iter().max().map_or(0, |&n| n as usize)
    }

    /// The attachment passed to [`Session::save`](super::Session::save). It is verified only when the session is
    /// restored.
    pub fn attachment(&self) -> &[u8] {
        &self.attachment
    }

    pub(super) fn io(&self, e: std::io::Error) -> Error {
        Error::io(&self.path, e)
    }

    pub(super) fn refuse(&self, what: impl std::fmt::Display) -> Error {
        Error::Invalid(format!("{}: {what}", self.path.display()))
    }

    /// Returns true if the file matches the SHA-256 digest at its end, and has the attachment that was read from it.
    pub(super) fn is_whole(&mut self) -> std::io::Result<bool> {
        let data = self.header.data_bytes().unwrap_or_default();
        self.input.rewind()?;
        let mut hash = Sha256::new();
        copy(&mut (&mut self.input).take(self.at), &mut hash)?;
        self.input.seek_relative(self.header.attachment_bytes as i64)?;
        hash.update(&self.attachment);
        copy(&mut (&mut self.input).take(data - self.header.attachment_bytes), &mut hash)?;
        let mut digest = [0u8; DIGEST as usize];
        self.input.read_exact(&mut digest)?;
        Ok(hash.finalize()[..] == digest)
    }

    /// Tokens and cells. The caller has compared their numbers with the memory there is.
    pub(super) fn contents(&mut self) -> std::io::Result<(Vec<Vec<Token>>, Vec<Cell>)> {
        self.input.seek(SeekFrom::Start(self.at + self.header.attachment_bytes))?;
        let mut tokens = Vec::new();
        for &n in &self.header.n_tokens {
            let mut of_seq = room(n as usize)?;
            for _ in 0..n {
                of_seq.push(Token::from_le_bytes(read_array(&mut self.input)?));
            }
            tokens.push(of_seq);
        }
        let mut cells = room(self.header.n_cells as usize)?;
        for _ in 0..self.header.n_cells {
            let pos = i32::from_le_bytes(read_array(&mut self.input)?);
            cells.push(Cell { pos, seqs: u64::from_le_bytes(read_array(&mut self.input)?) });
        }
        Ok((tokens, cells))
    }

    /// The next bytes after [`SavedSession::contents`].
    pub(super) fn fill(&mut self, bytes: &mut [u8]) -> Result<()> {
        self.input.read_exact(bytes).map_err(|e| Error::io(&self.path, e))
    }
}

/// Writes a file, atomically. `body` writes what follows the attachment.
pub(super) fn write(
    path: &Path,
    header: &Header,
    attachment: &[u8],
    body: impl FnOnce(&mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()>,
) -> Result<()> {
    let io = |e: std::io::Error| Error::io(path, e);
    let json = serde_json::to_vec(header).map_err(|e| io(e.into()))?;
    if json.len() as u64 > MAX_HEADER {
        let what = format!("not saved: header: expected at most {MAX_HEADER} bytes, found {}", json.len());
        return Err(Error::Invalid(format!("{}: {what}", path.display())));
    }
    files::replace(path, &SESSION, |out| {
        let mut hash = Sha256::new();
        let mut write = |bytes: &[u8]| {
            hash.update(bytes);
            out.write_all(bytes).map_err(io)
        };
        write(MAGIC)?;
        write(&(json.len() as u64).to_le_bytes())?;
        write(&json)?;
        write(attachment)?;
        body(&mut write)?;
        out.write_all(&hash.finalize()).map_err(io)
    })
}

/// The version digit of the first bytes of a session file.
fn version(start: &[u8]) -> Option<u8> {
    start.strip_prefix(FAMILY)?.first().copied().filter(u8::is_ascii_digit)
}

fn read_array<const N: usize>(input: &mut impl Read) -> std::io::Result<[u8; N]> {
    let mut bytes = [0u8; N];
    input.read_exact(&mut bytes).map(|()| bytes)
}

/// The kind of file that a session is saved in, of this version of the format or another.
pub(super) const SESSION: files::Kind = files::Kind::new("a saved session", |head| version(head).is_some());

/// Returns true if a file begins like a saved session, of any version of the format.
pub fn is_session_file(path: impl AsRef<Path>) -> bool {
    SESSION.marks(path.as_ref()).unwrap_or(false)
}
