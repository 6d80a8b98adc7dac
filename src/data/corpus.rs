//! A corpus: documents as tokens, made once, stored in a cache file and read from it.

use std::cell::Cell;
use std::io::Read;
use std::ops::Range;
use std::path::Path;
use std::rc::Rc;

use files::{Lock, Map, Unchanging};
use rayon::prelude::*;
use sha2::{Digest, Sha256};

use super::cache::{Cache, Description, Key, Record, SourceKey, Writer, MAGIC};
use super::read::{documents, Document};
use super::separator::{Ends, Separator};
use super::sources::Sources;
use super::{chunks, hex, invalid, io};
use crate::control::Control;
use crate::model::{Error, Result};
use crate::vocab::Vocab;
use crate::Token;

/// Bytes of text tokenised in one batch, for each thread.
const BATCH: usize = 1 << 21;

/// How a corpus was opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Built {
    /// Tokenised now, because there was no cache.
    New,
    /// Tokenised now, because the cache that was there could not serve, for this reason.
    Again(String),
    /// Read from the cache, which is whole and of the same texts and tokenizer.
    Reused,
}

/// Documents as tokens. `Send + Sync`; the tokens stay in the mapped cache file.
#[derive(Debug)]
pub struct Corpus {
    cache: Cache,
    built: Built,
    /// Paths of the sources as they are now; those in the cache may be of another folder.
    sources: Vec<String>,
    n_vocab: usize,
}

impl Corpus {
    /// Opens the cache at `path`. It is made first when there is none, or when it is cut off, damaged, of
    /// another tokenizer or separator, or of texts that have changed since. The file is replaced atomically.
    ///
    /// Documents are tokenised in parallel on rayon's current pool, about 2 MB of text for each thread at a
    /// time. Text that looks like a special token stays text. The cache is mapped, so no other program may
    /// write into it meanwhile; replacing it is harmless. While another process is making it, this one waits,
    /// says so in a note, and takes what that one has made. Progress is counted in bytes of the files (of gzip
    /// files the packed bytes).
    ///
    /// # Errors
    /// A text that cannot be read or tokenised, texts that are all blank, a full disk, [`Error::Interrupted`]
    /// when `control` stops it; then `path` is as it was. A file at `path` that is no cache is an error too,
    /// and is left alone.
    pub fn open(
        path: &Path,
        vocab: &Vocab,
        sources: &Sources,
        separator: &Separator,
        control: &Control<'_>,
    ) -> Result<Corpus> {
        let ends = separator.ends(vocab)?;
        let key = key(vocab, sources, &ends);
        let names = key.sources.iter().map(|s| s.path.clone()).collect();
        let n_vocab = vocab.n_tokens();
        let mut found = existing(path, &key, n_vocab)?;
        let mut lock = None;
        if found.is_err() {
            lock = Some(wait_for(path, control)?);
            // Somebody else may have made it meanwhile.
            found = existing(path, &key, n_vocab)?;
        }
        let built = match found {
            Ok(cache) => return Ok(Corpus { cache, built: Built::Reused, sources: names, n_vocab }),
            Err(built) => built,
        };
        files::replace(path, |out| {
            let mut writer = Writer::new(out).map_err(|e| io(path, e))?;
            let mut build = Build { path, vocab, ends: &ends, sources, control, notes: Vec::new() };
            build.run(&mut writer)?;
            let notes = build.notes;
            writer.finish(&Description { key: key.clone(), notes }).map_err(|e| io(path, e))
        })?;
        drop(lock);
        let cache = reuse(path, &key, n_vocab)?
            .map_err(|why| invalid(format!("{}: just written, and not to be used: {why}", path.display())))?;
        Ok(Corpus { cache, built, sources: names, n_vocab })
    }

    /// A file name for the cache of these paths under this tokenizer, such as `0123456789abcdef.tokens`. It
    /// stays the same when the texts change.
    ///
    /// # Errors
    /// The vocabulary lacks the separator.
    pub fn file_name(vocab: &Vocab, sources: &Sources, separator: &Separator) -> Result<String> {
        let mut key = key(vocab, sources, &separator.ends(vocab)?);
        key.sources.iter_mut().for_each(|s| (s.n_bytes, s.sha256) = (0, String::new()));
        let key = serde_json::to_vec(&key).map_err(|e| invalid(e.to_string()))?;
        Ok(format!("{}.tokens", hex(&Sha256::digest(key)[..8])))
    }

    /// How the corpus was opened: from the cache or from the texts.
    pub fn built(&self) -> &Built {
        &self.built
    }

    /// Notes on what was corrected in the texts, a line each.
    pub fn notes(&self) -> &[String] {
        &self.cache.description.notes
    }

    /// Number of tokens of all documents, separators included.
    pub fn n_tokens(&self) -> u64 {
        self.cache.n_tokens()
    }

    /// Number of documents; at least one, none of them empty.
    pub fn n_documents(&self) -> usize {
        self.cache.n_documents()
    }

    /// Size of the vocabulary the tokens are from.
    pub fn n_vocab(&self) -> usize {
        self.n_vocab
    }

    /// Positions of a document's tokens in the corpus, BOS and separator included.
    ///
    /// # Panics
    /// When there is no such document.
    pub fn range(&self, document: usize) -> Range<u64> {
        self.record(document).start..self.cache.end(document)
    }

    /// Appends the tokens at `range` to `out`. Positions beyond the end of the corpus give none.
    pub fn read(&self, range: Range<u64>, out: &mut Vec<Token>) {
        self.cache.read(range.start, range.end.saturating_sub(range.start), out);
    }

    /// The file of a document, with its line for JSONL: `notes.txt`, `pages.jsonl:12`.
    ///
    /// # Panics
    /// When there is no such document.
    pub fn name(&self, document: usize) -> String {
        let record = self.record(document);
        let file = &self.sources[record.source as usize];
        if record.line == 0 {
            file.clone()
        } else {
            format!("{file}:{}", record.line)
        }
    }

    /// A hash of a document's text.
    ///
    /// # Panics
    /// When there is no such document.
    pub fn text_hash(&self, document: usize) -> u64 {
        self.record(document).text_hash
    }

    fn record(&self, document: usize) -> Record {
        assert!(document < self.n_documents(), "document {document} of {}", self.n_documents());
        self.cache.record(document)
    }
}

fn key(vocab: &Vocab, sources: &Sources, ends: &Ends) -> Key {
    let files = sources.files().iter().map(|f| SourceKey {
        path: f.path.display().to_string(),
        n_bytes: f.n_bytes,
        sha256: hex(&f.sha256),
    });
    Key {
        tokenizer: hex(&vocab.fingerprint()),
        before: ends.before.clone(),
        after: ends.after.clone(),
        text_field: sources.options().text_field.clone(),
        replace_invalid: sources.options().replace_invalid,
        sources: files.collect(),
    }
}

/// The cache at `path`, if it can serve; else what is to be done.
fn existing(path: &Path, key: &Key, n_vocab: usize) -> Result<Result<Cache, Built>> {
    match std::fs::metadata(path) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(Err(Built::New)),
        Err(e) => Err(io(path, e)),
        Ok(_) => {
            check_is_cache(path)?;
            Ok(reuse(path, key, n_vocab)?.map_err(Built::Again))
        }
    }
}

/// The right to make the cache, once no other process is making it.
fn wait_for(path: &Path, control: &Control<'_>) -> Result<Lock> {
    let mut said = false;
    loop {
        match Lock::file(path) {
            Err(e) if e.source.kind() == std::io::ErrorKind::WouldBlock => {
                if control.stopped() {
                    return Err(Error::Interrupted);
                }
                if !said {
                    control.note(format_args!("{e}: waiting for the tokens"));
                    said = true;
                }
            }
            done => return Ok(done?),
        }
    }
}

/// Refuses a file that does not begin as a cache does: it must not be replaced.
fn check_is_cache(path: &Path) -> Result<()> {
    if !std::fs::metadata(path).map_err(|e| io(path, e))?.is_file() {
        return Err(invalid(format!("{}: expected a token cache, found no regular file", path.display())));
    }
    let mut start = Vec::new();
    let file = std::fs::File::open(path).map_err(|e| io(path, e))?;
    file.take(MAGIC.len() as u64).read_to_end(&mut start).map_err(|e| io(path, e))?;
    if !MAGIC.starts_with(&start) {
        return Err(invalid(format!(
            "{}: not a token cache: other first bytes; remove it or name another file",
            path.display()
        )));
    }
    Ok(())
}

/// Opens the cache at `path`; the inner error is the reason why it cannot serve.
fn reuse(path: &Path, key: &Key, n_vocab: usize) -> Result<Result<Cache, String>> {
    // Caches are replaced by renaming.
    let cache = match Cache::check(Map::open(path, Unchanging::while_mapped())?, n_vocab) {
        Ok(cache) => cache,
        Err(why) => return Ok(Err(why)),
    };
    Ok(match cache.description.key.differs(key) {
        None => Ok(cache),
        Some(why) => Err(why),
    })
}

/// Tokenises the sources into a new cache.
struct Build<'a> {
    path: &'a Path,
    vocab: &'a Vocab,
    ends: &'a Ends,
    sources: &'a Sources,
    control: &'a Control<'a>,
    notes: Vec<String>,
}

impl Build<'_> {
    fn run<W: std::io::Write>(&mut self, writer: &mut Writer<W>) -> Result<()> {
        let batch_bytes = BATCH * rayon::current_num_threads();
        let read = Rc::new(Cell::new(0));
        let mut notes = Vec::new();
        for (source, file) in self.sources.files().iter().enumerate() {
            let (mut batch, mut n_bytes) = (Vec::new(), 0);
            let options = self.sources.options();
            documents(&file.path, options, Rc::clone(&read), &mut notes, &mut |document| {
                n_bytes += document.text.len();
                batch.push(document);
                if n_bytes >= batch_bytes {
                    self.write(source, &batch, writer)?;
                    self.tell(read.get(), writer)?;
                    batch.clear();
                    n_bytes = 0;
                }
                Ok(())
            })?;
            self.write(source, &batch, writer)?;
            self.tell(read.get(), writer)?;
        }
        self.notes = notes;
        if writer.n_documents() == 0 {
            let n = self.sources.files().len();
            return Err(invalid(format!("no text to train on: all of {n} files are blank")));
        }
        Ok(())
    }

    fn tell<W: std::io::Write>(&mut self, bytes: u64, writer: &Writer<W>) -> Result<()> {
        let (documents, tokens) = (writer.n_documents(), writer.n_tokens());
        // A file may have grown since it was listed.
        let n_bytes = self.sources.n_bytes().max(bytes);
        let what = format_args!("tokenising: {documents} documents, {tokens} tokens");
        self.control.report(what, bytes, n_bytes);
        if self.control.stopped() {
            return Err(Error::Interrupted);
        }
        Ok(())
    }

    /// Tokenises documents of one source in parallel, and writes them in order.
    fn write<W: std::io::Write>(
        &self,
        source: usize,
        batch: &[Document],
        writer: &mut Writer<W>,
    ) -> Result<()> {
        let named = |document: &Document, e: ggml::Error| {
            let file = self.sources.files()[source].path.display();
            let place = if document.line == 0 { String::new() } else { format!(":{}", document.line) };
            invalid(format!("{file}{place}: {e}"))
        };
        // Chunks of all documents are tokenised together, because a batch may be one long document.
        let chunks: Vec<Vec<&str>> = batch
            .par_iter()
            .map(|d| chunks::split(self.vocab, &d.text).map_err(|e| named(d, e)))
            .collect::<Result<_>>()?;
        let flat: Vec<(usize, &str)> =
            chunks.iter().enumerate().flat_map(|(i, of)| of.iter().map(move |chunk| (i, *chunk))).collect();
        let tokens: Vec<Vec<Token>> = flat
            .par_iter()
            .map(|&(i, chunk)| self.vocab.tokenize(chunk, false, false).map_err(|e| named(&batch[i], e)))
            .collect::<Result<_>>()?;
        let mut tokens = tokens.into_iter();
        for (document, chunks) in batch.iter().zip(&chunks) {
            let hash = Sha256::digest(document.text.as_bytes());
            let text_hash = hash.iter().take(8).fold(0, |n, &b| n << 8 | u64::from(b));
            let record = Record { start: 0, text_hash, source: source as u32, line: document.line };
            let inner: Vec<Vec<Token>> = tokens.by_ref().take(chunks.len()).collect();
            let ends = self.ends;
            let all = std::iter::once(&ends.before).chain(&inner).chain(std::iter::once(&ends.after));
            writer.document(record, all.map(Vec::as_slice)).map_err(|e| io(self.path, e))?;
        }
        Ok(())
    }
}
