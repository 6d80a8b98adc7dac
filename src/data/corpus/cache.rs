//! The cache file of a corpus: the tokens of all documents, written once and then mapped.
//!
//! Layout, little endian: magic (8 bytes) and version (u64); tokens (u32 each, with [`UNTRAINED`] where the loss
//! is not taken over one); a record for each document
//! (first token u64, hash of its text u64, number of its source u32, line u32); a JSON description; numbers
//! of tokens, documents and bytes of JSON (u64 each); a digest (32 bytes). The digest is SHA-256 over the
//! SHA-256 of each 4 MiB before it. The lengths stand at the end because tokens are written before their
//! number is known, and because a file that was cut off then lacks them.

use std::convert::Infallible;
use std::io::{self, Write};

use files::memory::filled;
use files::{Bytes, Map};
use rayon::prelude::*;
use ropewalk_core::terminal::one_line;
use ropewalk_core::tokenizer::Token;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

pub(super) const MAGIC: &[u8; 8] = b"ropedata";
/// Version of the layout and of how texts become tokens; raised when either changes.
const VERSION: u64 = 4;
const HEAD: usize = 16;
const TAIL: usize = 24 + 32;
const RECORD: usize = 24;
/// Set in a token that is read and not trained on.
const UNTRAINED: u32 = 1 << 31;
/// Most bytes of a description, some hundred for each file of texts.
const MAX_DESCRIPTION: u64 = 512 << 20;
/// Bytes hashed at a time, so that several threads can hash.
const HASH_CHUNK: usize = 1 << 22;

/// Everything the tokens of a corpus depend on: equal keys have equal tokens.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Key {
    /// Fingerprint of the vocabulary.
    pub tokenizer: String,
    /// Tokens before and after each document.
    pub before: Vec<Token>,
    pub after: Vec<Token>,
    /// How a line of JSON Lines is read: the field, or the chat template.
    pub records: String,
    pub replace_invalid: bool,
    pub sources: Vec<SourceKey>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct SourceKey {
    pub path: String,
    pub n_bytes: u64,
    pub sha256: String,
    /// Bytes of a token, in files of token ids; else 0.
    pub token_bytes: usize,
    /// Whether each line is a document.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub lines: bool,
}

impl Key {
    /// The reason why tokens made under `self` do not serve `wanted`; `None` when they do. A file that was
    /// moved is the same text.
    pub(super) fn differs(&self, wanted: &Key) -> Option<String> {
        if self.tokenizer != wanted.tokenizer {
            return Some("another tokenizer".into());
        }
        if (&self.before, &self.after) != (&wanted.before, &wanted.after) {
            return Some("another separator".into());
        }
        if (&self.records, self.replace_invalid) != (&wanted.records, wanted.replace_invalid) {
            return Some("texts are read in another way".into());
        }
        if self.sources.len() != wanted.sources.len() {
            return Some(format!("{} files then, {} now", self.sources.len(), wanted.sources.len()));
        }
        let mut pairs = self.sources.iter().zip(&wanted.sources);
        let changed = pairs.find(|(a, b)| SourceKey { path: b.path.clone(), ..(*a).clone() } != **b);
        changed.map(|(_, now)| format!("{} has changed", now.path))
    }
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Description {
    pub key: Key,
    pub notes: Vec<String>,
}

/// A document's first token, the hash of its text, and its source: file number and line (0 for a whole file).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Record {
    pub start: u64,
    pub text_hash: u64,
    pub source: u32,
    pub line: u32,
}

pub(super) struct Writer<W> {
    out: W,
    chunk: Sha256,
    in_chunk: usize,
    chunks: Sha256,
    pub records: Vec<Record>,
    pub n_tokens: u64,
}

impl<W: Write> Writer<W> {
    pub(super) fn new(out: W) -> io::Result<Self> {
        let (chunk, chunks) = (Sha256::new(), Sha256::new());
        let mut writer = Writer { out, chunk, in_chunk: 0, chunks, records: Vec::new(), n_tokens: 0 };
        writer.put(MAGIC)?;
        writer.put(&VERSION.to_le_bytes())?;
        Ok(writer)
    }

    fn put(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        self.out.write_all(bytes)?;
        while !bytes.is_empty() {
            let (now, later) = bytes.split_at(bytes.len().min(HASH_CHUNK - self.in_chunk));
            self.chunk.update(now);
            self.in_chunk += now.len();
            if self.in_chunk == HASH_CHUNK {
                self.chunks.update(self.chunk.finalize_reset());
                self.in_chunk = 0;
            }
            bytes = later;
        }
        Ok(())
    }

    /// Adds the next document; its tokens are `spans`, joined, each with whether it is trained on. `about.start`
    /// is not read.
    pub(super) fn document<'t>(
        &mut self,
        about: Record,
        spans: impl IntoIterator<Item = (&'t [Token], bool)>,
    ) -> io::Result<()> {
        self.records.push(Record { start: self.n_tokens, ..about });
        for (span, trained) in spans {
            let flag = if trained { 0 } else { UNTRAINED };
            let bytes: Vec<u8> = span.iter().flat_map(|&t| (t as u32 | flag).to_le_bytes()).collect();
            self.put(&bytes)?;
            self.n_tokens += span.len() as u64;
        }
        Ok(())
    }

    /// Writes records, description, lengths and digest.
    pub(super) fn finish(mut self, description: &Description) -> io::Result<()> {
        let records = std::mem::take(&mut self.records);
        for record in &records {
            self.put(&record.start.to_le_bytes())?;
            self.put(&record.text_hash.to_le_bytes())?;
            self.put(&record.source.to_le_bytes())?;
            self.put(&record.line.to_le_bytes())?;
        }
        let json = serde_json::to_vec(description)?;
        self.put(&json)?;
        for n in [self.n_tokens, records.len() as u64, json.len() as u64] {
            self.put(&n.to_le_bytes())?;
        }
        if self.in_chunk > 0 {
            self.chunks.update(self.chunk.finalize());
        }
        self.out.write_all(&self.chunks.finalize())?;
        self.out.flush()
    }
}

/// A cache file, mapped, that passed every check.
#[derive(Debug)]
pub(super) struct Cache {
    map: Map,
    pub n_tokens: u64,
    pub n_documents: usize,
    pub description: Description,
}

fn u64_at(bytes: Bytes<'_>, at: usize) -> Option<u64> {
    bytes.array(at).map(u64::from_le_bytes)
}

fn sha256(bytes: Bytes<'_>) -> sha2::digest::Output<Sha256> {
    let mut hash = Sha256::new();
    let Ok(()) = bytes.each(|part| {
        hash.update(part);
        Ok::<_, Infallible>(())
    });
    hash.finalize()
}

impl Cache {
    /// Checks everything about the file that later reads rely on: lengths, digest, order of documents, tokens
    /// below `n_vocab`.
    ///
    /// # Errors
    /// A text that says what is wrong with the file.
    pub(super) fn check(map: Map, n_vocab: usize) -> Result<Cache, String> {
        let bytes = map.bytes();
        if bytes.array(0) != Some(*MAGIC) {
            return Err("other first bytes".into());
        }
        match u64_at(bytes, 8) {
            None => return Err("cut off".into()),
            Some(VERSION) => {}
            Some(found) => return Err(format!("version {found}, expected {VERSION}")),
        }
        let tail = bytes.len().checked_sub(TAIL).filter(|&at| at >= HEAD).ok_or("cut off")?;
        let covered = bytes.slice(0..bytes.len() - 32);
        let chunk = |i: usize| covered.slice(i * HASH_CHUNK..covered.len().min((i + 1) * HASH_CHUNK));
        let n_chunks = covered.len().div_ceil(HASH_CHUNK);
        let mut sums: Vec<[u8; 32]> = filled(n_chunks, [0; 32]).map_err(|e| format!("its checksum: {e}"))?;
        sums.par_iter_mut().enumerate().for_each(|(i, sum)| *sum = sha256(chunk(i)).into());
        let mut all = Sha256::new();
        sums.iter().for_each(|sum| all.update(sum));
        if Some(all.finalize().into()) != bytes.array::<32>(covered.len()) {
            return Err("cut off or damaged: its checksum differs".into());
        }
        let number = |i: usize| u64_at(bytes, tail + 8 * i).unwrap_or(u64::MAX);
        let (n_tokens, n_documents, n_json) = (number(0), number(1), number(2));
        let end = || {
            let tokens = n_tokens.checked_mul(4)?;
            let records = n_documents.checked_mul(RECORD as u64)?;
            (HEAD as u64).checked_add(tokens)?.checked_add(records)?.checked_add(n_json)
        };
        if end() != Some(tail as u64) || n_documents > u64::from(u32::MAX) {
            return Err("its lengths do not add up".into());
        }
        if n_json > MAX_DESCRIPTION {
            return Err(format!("its description: found {n_json} bytes, expected at most {MAX_DESCRIPTION}"));
        }
        let json = bytes.slice(tail - n_json as usize..tail).to_vec();
        let json = json.map_err(|e| format!("its description: {e}"))?;
        let description =
            serde_json::from_slice(&json).map_err(|e| format!("its description: {}", one_line(e)))?;
        let cache = Cache { n_tokens, n_documents: n_documents as usize, description, map };
        let n_sources = cache.description.key.sources.len();
        let ordered = (0..cache.n_documents).all(|i| {
            let (record, end) = (cache.record(i), cache.end(i));
            (i > 0 || record.start == 0) && record.start < end && (record.source as usize) < n_sources
        });
        if !ordered || (cache.n_documents == 0 && n_tokens > 0) {
            return Err("its documents are out of order".into());
        }
        let known = |token: u32| ((token & !UNTRAINED) as usize) < n_vocab;
        let step = (HASH_CHUNK / 4) as u64;
        let known = |i: u64| cache.numbers(i * step, (i + 1) * step).all(known);
        if !(0..n_tokens.div_ceil(step)).into_par_iter().all(known) {
            return Err("it has tokens that are not in the vocabulary".into());
        }
        Ok(cache)
    }

    /// Record `i`, which must be below [`Cache::n_documents`].
    pub(super) fn record(&self, i: usize) -> Record {
        let at = HEAD + 4 * self.n_tokens as usize + RECORD * i;
        let number = |at: usize| u64_at(self.map.bytes(), at).unwrap_or_default();
        let place = number(at + 16);
        let (source, line) = (place as u32, (place >> 32) as u32);
        Record { start: number(at), text_hash: number(at + 8), source, line }
    }

    pub(super) fn end(&self, i: usize) -> u64 {
        if i + 1 < self.n_documents {
            self.record(i + 1).start
        } else {
            self.n_tokens
        }
    }

    /// Tokens `start..end` as they are stored, as far as there are any.
    fn numbers(&self, start: u64, end: u64) -> impl Iterator<Item = u32> + '_ {
        let end = end.min(self.n_tokens);
        let start = start.min(end);
        let bytes = self.map.bytes().slice(HEAD + 4 * start as usize..HEAD + 4 * end as usize);
        (0..bytes.len()).step_by(4).map(move |at| u32::from_le_bytes(bytes.array(at).unwrap_or_default()))
    }

    /// Tokens `start..start + n`, as far as there are any, each with whether it is trained on.
    pub(super) fn read(&self, start: u64, n: u64) -> impl Iterator<Item = (Token, bool)> + '_ {
        self.numbers(start, start.saturating_add(n))
            .map(|token| ((token & !UNTRAINED) as Token, token & UNTRAINED == 0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A writer that is full after this many bytes.
    struct Full(usize);

    impl Write for Full {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            if self.0 == 0 {
                return Err(io::ErrorKind::StorageFull.into());
            }
            let n = bytes.len().min(self.0);
            self.0 -= n;
            Ok(n)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn write(room: usize) -> io::Result<()> {
        let key = Key {
            tokenizer: String::new(),
            before: vec![],
            after: vec![2],
            records: "text".into(),
            replace_invalid: false,
            sources: vec![],
        };
        let mut writer = Writer::new(Full(room))?;
        let about = Record { start: 0, text_hash: 1, source: 0, line: 0 };
        writer.document(about, [([1, 2, 3].as_slice(), true), (&[4], false)])?;
        writer.finish(&Description { key, notes: vec![] })
    }

    #[test]
    fn a_full_disk_is_an_error_wherever_it_happens() {
        let size = (0..4096).find(|&room| write(room).is_ok()).expect("it fits");
        assert!(size > HEAD + 4 * 4 + RECORD + TAIL);
        for room in 0..size {
            assert_eq!(
                write(room).unwrap_err().kind(),
                io::ErrorKind::StorageFull,
                "room for {room} of {size}"
            );
        }
    }
}
