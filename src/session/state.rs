//! Saving a session to a file and restoring it.
//!
//! Layout: magic, header length (u64 LE), JSON header, each layer's keys and values for the cells in use,
//! SHA-256 of all that.

use std::io::{BufReader, Read, Seek, SeekFrom};
use std::path::Path;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::Session;
use crate::kv::{Cell, MAX_SEQS};
use crate::model::{Error, Model, Result};
use crate::Token;

/// First bytes of a session file.
pub(super) const MAGIC: &[u8; 8] = b"ropewlk2";

/// Bytes before the header.
const START: u64 = 16;
/// Bytes of the digest at the end.
const DIGEST: u64 = 32;

/// Most bytes of a header: a sound one has about 20 for each token and each cell.
const MAX_HEADER: u64 = 1 << 28;

#[derive(Debug, Serialize, Deserialize)]
struct Header {
    model: String,
    rope: String,
    kv_type: String,
    /// `table` or `ggml`: the rotation that made the cached keys, since the two can differ in the order of
    /// dimensions.
    keys: String,
    tokens: Vec<Vec<Token>>,
    /// Position and sequences of each cell.
    cells: Vec<(i32, u64)>,
    cell_bytes: usize,
}

/// A hash, in hexadecimal, of everything about the model that its cached keys and values depend on: its
/// numbers, its adapters, and each tensor's name, type and shape with its first bytes.
fn fingerprint(model: &Model) -> String {
    let mut hash = Sha256::new();
    for info in model.file().tensors() {
        hash.update(format!("{}{}{:?}", info.name, info.dtype.name(), info.shape));
        let data = model.file().data(info);
        hash.update(&data[..data.len().min(4096)]);
    }
    hash.update(format!("{:?}", model.hparams()));
    model.adapters().iter().for_each(|a| hash.update(a.digest()));
    format!("{:x}", hash.finalize())
}

impl Session<'_> {
    /// Writes tokens and cache to a file, atomically.
    ///
    /// # Errors
    /// The disk, naming the file; what was at `path` before still is.
    pub fn save(&self, path: &Path) -> Result<()> {
        let io = |e: std::io::Error| Error::Ggml(ggml::Error::io(path, e));
        let cells = &self.kv.cells()[..self.kv.n_end()];
        let header = Header {
            model: fingerprint(self.model),
            rope: self.plan.spec.to_string(),
            kv_type: self.params.kv_type.name().into(),
            keys: self.key_layout().into(),
            tokens: self.tokens.clone(),
            cells: cells.iter().map(|c| (c.pos, c.seqs)).collect(),
            cell_bytes: self.kv.cell_bytes(),
        };
        let header = serde_json::to_vec(&header).map_err(|e| io(e.into()))?;
        files::replace(path, |out| {
            let mut hash = Sha256::new();
            let mut write = |bytes: &[u8]| {
                hash.update(bytes);
                out.write_all(bytes).map_err(io)
            };
            write(MAGIC)?;
            write(&(header.len() as u64).to_le_bytes())?;
            write(&header)?;
            self.kv.export(write)?;
            out.write_all(&hash.finalize()).map_err(io)
        })
    }

    /// Restores what [`Session::save`] wrote, in place of what the session holds.
    ///
    /// # Errors
    /// A file of another model, rope or cache type, one that needs more cells than this session has, or a
    /// damaged one; the session is as it was then. A file that cannot be read to its end leaves the session
    /// empty.
    pub fn restore(&mut self, path: &Path) -> Result<()> {
        let io = |e: std::io::Error| Error::Ggml(ggml::Error::io(path, e));
        let refuse = |what: String| Error::Invalid(format!("{}: {what}", path.display()));
        // Before it is opened, since opening a pipe would wait for a writer.
        let about = std::fs::metadata(path).map_err(io)?;
        let Some(most) = about.len().checked_sub(START + DIGEST).filter(|_| about.is_file()) else {
            return Err(refuse("not a saved session: too short".into()));
        };
        let mut input = BufReader::new(std::fs::File::open(path).map_err(io)?);
        let mut start = [0u8; START as usize];
        input.read_exact(&mut start).map_err(io)?;
        if &start[..8] != MAGIC {
            return Err(refuse("not a saved session: other first bytes".into()));
        }
        let n = start[8..].iter().rev().fold(0u64, |n, &b| n << 8 | u64::from(b));
        if n > most.min(MAX_HEADER) {
            return Err(refuse(format!(
                "header: expected at most {} bytes, found {n}",
                most.min(MAX_HEADER)
            )));
        }
        let mut json = vec![0u8; n as usize];
        input.read_exact(&mut json).map_err(io)?;
        let header: Header = serde_json::from_slice(&json).map_err(|e| refuse(format!("header: {e}")))?;
        self.check(&header, most - n).map_err(refuse)?;
        input.rewind().map_err(io)?;
        if !is_whole(&mut input, START + most).map_err(io)? {
            return Err(refuse("damaged: its contents do not agree with their checksum".into()));
        }
        input.seek(SeekFrom::Start(START + n)).map_err(io)?;
        let cells: Vec<Cell> = header.cells.iter().map(|&(pos, seqs)| Cell { pos, seqs }).collect();
        self.clear();
        let done = self.kv.import(&cells, |bytes| input.read_exact(bytes).map_err(io));
        if done.is_err() {
            self.clear();
            return done;
        }
        self.tokens = header.tokens;
        Ok(())
    }

    fn key_layout(&self) -> &'static str {
        if self.capabilities.custom_ops {
            "table"
        } else {
            "ggml"
        }
    }

    fn check(&self, header: &Header, data: u64) -> Result<(), String> {
        let expect = |key: &str, expected: &str, found: &str| {
            (expected == found)
                .then_some(())
                .ok_or_else(|| format!("{key}: expected {expected}, found {found}"))
        };
        expect("model", &fingerprint(self.model), &header.model)?;
        expect("rope", &self.plan.spec.to_string(), &header.rope)?;
        expect("keys", self.key_layout(), &header.keys)?;
        expect("kv type", self.params.kv_type.name(), &header.kv_type)?;
        expect("cell bytes", &self.kv.cell_bytes().to_string(), &header.cell_bytes.to_string())?;
        if header.cells.len() > self.kv.cells().len() {
            return Err(format!(
                "ctx: expected at least {}, found {}",
                header.cells.len(),
                self.kv.cells().len()
            ));
        }
        let bytes = (header.cells.len() * self.kv.cell_bytes()) as u64;
        if data != bytes {
            return Err(format!("cache: expected {bytes} bytes, found {data}"));
        }
        let n_vocab = self.model.hparams().n_vocab;
        let in_vocab = |t: &Token| usize::try_from(*t).is_ok_and(|t| t < n_vocab);
        if header.tokens.len() != MAX_SEQS as usize || !header.tokens.iter().flatten().all(in_vocab) {
            return Err("tokens: expected token ids of 64 sequences".into());
        }
        // Each sequence's tokens must have exactly one cell for each of their positions, but for what may be
        // evicted.
        for (seq, tokens) in header.tokens.iter().enumerate() {
            let mut positions: Vec<i32> =
                header.cells.iter().filter(|c| c.1 & (1 << seq) != 0).map(|c| c.0).collect();
            positions.sort_unstable();
            let n = tokens.len() as i32;
            let once =
                positions.windows(2).all(|w| w[0] < w[1]) && positions.iter().all(|p| (0..n).contains(p));
            let missing = |j: i32| positions.binary_search(&j).is_err();
            if !once || (0..n).any(|j| missing(j) && (!self.plan.evict || self.plan.needs(j, n))) {
                return Err(format!(
                    "cells: sequence {seq} does not have one for each of its {} tokens",
                    tokens.len()
                ));
            }
        }
        Ok(())
    }
}

/// Whether the first `n` bytes have the SHA-256 digest that follows them.
fn is_whole(input: &mut impl Read, n: u64) -> std::io::Result<bool> {
    let (mut hash, mut block) = (Sha256::new(), vec![0u8; 1 << 16]);
    let mut left = n;
    while left > 0 {
        let part = left.min(block.len() as u64);
        input.read_exact(&mut block[..part as usize])?;
        hash.update(&block[..part as usize]);
        left -= part;
    }
    let mut digest = [0u8; DIGEST as usize];
    input.read_exact(&mut digest)?;
    Ok(hash.finalize()[..] == digest)
}

/// Whether a file begins like a saved session.
pub fn is_session_file(path: &Path) -> bool {
    let mut start = [0u8; 8];
    // Opening a pipe would wait for a writer.
    path.is_file()
        && std::fs::File::open(path).and_then(|mut f| f.read_exact(&mut start)).is_ok()
        && &start == MAGIC
}
