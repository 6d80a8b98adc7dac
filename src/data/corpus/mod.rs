//! A corpus: documents as tokens, made once, stored in a cache file and read from it.

mod cache;
mod chunks;
mod pieces;
mod separator;
#[cfg(test)]
mod tests;

use std::cell::Cell;
use std::ops::Range;
use std::path::Path;
use std::rc::Rc;

use files::{Lock, Map, Output};
use rayon::prelude::*;
use ropewalk_core::control::Control;
use ropewalk_core::text::hex;
use ropewalk_core::tokenizer::{Failure, Token, Tokenizer};
use sha2::{Digest, Sha256};

use crate::error::{invalid, io, Error, Result};
use crate::text::{documents, ChatTemplate, Content, Document, Group, Kind, Reading, Records, Sources};
use cache::{Cache, Description, Key, Record, SourceKey, Writer, MAGIC};
use pieces::{pieces, runs, text_hash, Piece};
use separator::Ends;

pub use separator::Separator;

/// Bytes of text tokenized in one batch, for each thread.
const BATCH: usize = 1 << 21;

/// How a corpus was opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Built {
    /// Tokenized now, because there was no cache.
    New,
    /// Tokenized now, because the cache that was there could not serve, for this reason.
    Again(String),
    /// Read from the cache, which is whole and of the same texts and tokenizer.
    Reused,
}

/// Documents as tokens. `Send + Sync`; the tokens stay in the mapped cache file.
#[derive(Debug)]
pub struct Corpus {
    cache: Cache,
    built: Built,
    /// Paths of the sources as they are now, with their groups; those in the cache may be of another folder.
    sources: Vec<(String, usize)>,
    groups: Vec<Group>,
    ends: Ends,
    n_vocab: usize,
    /// Where the only document is cut in two.
    cut: Option<u64>,
}

/// All that texts become tokens by.
#[derive(Clone, Copy)]
struct Made<'a> {
    vocab: &'a dyn Tokenizer,
    sources: &'a Sources,
    ends: &'a Ends,
}

impl Corpus {
    /// Opens the cache at `path`. It is made first when there is none, or when it is cut off, damaged, of
    /// another tokenizer or separator, or of texts that have changed since. The file is replaced atomically.
    ///
    /// Documents are tokenized in parallel on rayon's current pool, about 2 MB of text for each thread at a
    /// time. Text that looks like a special token stays text. The cache is mapped, so no other program may
    /// write into it meanwhile; replacing it is harmless. While another process is making it, this one waits,
    /// says so in a note, and takes what that one has made. Progress is counted in bytes of the files (of gzip
    /// files the packed bytes).
    ///
    /// # Errors
    /// A text that cannot be read or tokenized, texts that are all blank, a full disk, [`Error::Interrupted`]
    /// when `control` stops it; then `path` is as it was. A file at `path` that is no cache is an error too,
    /// and is left alone.
    pub fn open(
        path: impl Into<Output>,
        vocab: &dyn Tokenizer,
        sources: &Sources,
        separator: &Separator,
        control: &Control<'_>,
    ) -> Result<Corpus> {
        let output = path.into();
        let path = output.path();
        let ends = separator.ends(vocab)?;
        let made = Made { vocab, sources, ends: &ends };
        let key = made.key();
        let n_vocab = vocab.n_tokens();
        let corpus = |cache, built| Corpus {
            cache,
            built,
            sources: sources.files().iter().map(|f| (f.path.display().to_string(), f.group)).collect(),
            groups: sources.groups().to_vec(),
            ends: ends.clone(),
            n_vocab,
            cut: None,
        };
        let mut found = existing(&output, &key, n_vocab)?;
        let mut lock = None;
        if found.is_err() {
            lock = Some(wait_for(path, control)?);
            // Somebody else may have made it meanwhile.
            found = existing(&output, &key, n_vocab)?;
        }
        let built = match found {
            Ok(cache) => return Ok(corpus(cache, Built::Reused)),
            Err(built) => built,
        };
        files::replace(output.clone(), &TOKENS, |out| {
            let mut writer = Writer::new(out).map_err(|e| io(path, e))?;
            let mut build = Build { path, made, control, notes: Vec::new(), unanswered: (0, String::new()) };
            build.run(&mut writer)?;
            let notes = build.notes;
            writer.finish(&Description { key: key.clone(), notes }).map_err(|e| io(path, e))
        })?;
        drop(lock);
        let cache = reuse(path, &key, n_vocab)?
            .map_err(|why| invalid(format!("{}: just written, and not to be used: {why}", path.display())))?;
        Ok(corpus(cache, built))
    }

    /// A file name for the cache of these paths under this tokenizer, such as `essays-0123456789abcdef.tokens`, after the first of them. It
    /// stays the same when the texts change.
    ///
    /// # Errors
    /// The vocabulary lacks the separator.
    pub fn file_name(vocab: &dyn Tokenizer, sources: &Sources, separator: &Separator) -> Result<String> {
        let mut key = Made { vocab, sources, ends: &separator.ends(vocab)? }.key();
        key.sources.iter_mut().for_each(|s| (s.n_bytes, s.sha256) = (0, String::new()));
        let key = serde_json::to_vec(&key).map_err(|e| invalid(e.to_string()))?;
        let first =
            sources.files().first().and_then(|s| s.path.file_stem()).unwrap_or_default().to_string_lossy();
        let plain = |c: &char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        let stem: String = first.chars().filter(plain).take(40).collect();
        Ok(format!("{stem}-{}.tokens", hex(&Sha256::digest(key)[..8])))
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
        self.cache.n_tokens
    }

    /// Number of documents; at least one, none of them empty.
    pub fn n_documents(&self) -> usize {
        self.cache.n_documents + usize::from(self.cut.is_some())
    }

    /// Makes the last `n` tokens of the only document a document of their own, so that they can be held out; `None` makes it one
    /// again. Gives whether there are two now: not where there are more documents, or no more tokens than that.
    pub fn cut_tail(&mut self, n: Option<u64>) -> bool {
        let at = n.and_then(|n| self.n_tokens().checked_sub(n)).filter(|&at| at > 0 && at < self.n_tokens());
        self.cut = at.filter(|_| self.cache.n_documents == 1);
        self.cut.is_some()
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
        let start = self.record(document).start;
        match self.cut {
            Some(cut) if document == 0 => start..cut,
            Some(_) => start..self.cache.end(0),
            None => start..self.cache.end(document),
        }
    }

    /// Appends the tokens at `range` to `out`. Positions beyond the end of the corpus give none.
    pub fn read(&self, range: Range<u64>, out: &mut Vec<Token>) {
        out.extend(self.marked(range).map(|(token, _)| token));
    }

    /// The tokens at `range`, each with whether the loss is taken over it. Positions beyond the end of the
    /// corpus give none.
    pub(crate) fn marked(&self, range: Range<u64>) -> impl Iterator<Item = (Token, bool)> + '_ {
        self.cache.read(range.start, range.end.saturating_sub(range.start))
    }

    /// Returns true if documents end with a separator token; under a separator of BOS alone they do not.
    pub fn has_end(&self) -> bool {
        !self.ends.after.is_empty()
    }

    /// Tokens before and after each text.
    pub(crate) fn around(&self) -> (&[Token], &[Token]) {
        (&self.ends.before, &self.ends.after)
    }

    /// The tokens that end a document: none where it has none, in a stream of token ids that was cut off.
    pub(crate) fn end_of(&self, document: usize) -> &[Token] {
        let (after, mut last) = (self.ends.after.as_slice(), Vec::new());
        let range = self.range(document);
        self.read(range.end.saturating_sub(after.len() as u64).max(range.start)..range.end, &mut last);
        if last == after {
            after
        } else {
            &[]
        }
    }

    /// The groups of sources.
    pub fn groups(&self) -> &[Group] {
        &self.groups
    }

    /// The place of a document's group in [`Corpus::groups`].
    ///
    /// # Panics
    /// When there is no such document.
    pub fn group(&self, document: usize) -> usize {
        self.sources[self.record(document).source as usize].1
    }

    /// The file of a document, with its line for JSONL: `notes.txt`, `pages.jsonl:12`.
    ///
    /// # Panics
    /// When there is no such document.
    pub fn name(&self, document: usize) -> String {
        let record = self.record(document);
        place(&self.sources[record.source as usize].0, record.line)
    }

    /// A hash of a document's text, or of the conversation that it is a part of.
    ///
    /// # Panics
    /// When there is no such document.
    pub fn text_hash(&self, document: usize) -> u64 {
        self.record(document).text_hash
    }

    fn record(&self, document: usize) -> Record {
        assert!(document < self.n_documents(), "document {document} of {}", self.n_documents());
        match self.cut {
            Some(start) if document == 1 => {
                let whole = self.cache.record(0);
                Record { start, text_hash: !whole.text_hash, ..whole }
            }
            _ => self.cache.record(document),
        }
    }
}

impl Made<'_> {
    fn key(&self) -> Key {
        let options = self.sources.options();
        let files = self.sources.files().iter().map(|f| SourceKey {
            path: f.path.display().to_string(),
            n_bytes: f.n_bytes,
            sha256: hex(&f.sha256),
            token_bytes: if f.kind == Kind::Tokens { options.token_bytes } else { 0 },
            lines: f.kind == Kind::Lines,
        });
        let records = match &options.records {
            Records::Text(field) => field.clone(),
            Records::Chat { answers_only } => {
                let template = self.sources.template().map_or(String::new(), ChatTemplate::fingerprint);
                format!("chat {template}, answers only: {answers_only}")
            }
        };
        Key {
            tokenizer: hex(&self.vocab.fingerprint()),
            before: self.ends.before.clone(),
            after: self.ends.after.clone(),
            records,
            replace_invalid: options.replace_invalid,
            sources: files.collect(),
        }
    }
}

/// A file, with the line for JSONL.
fn place(file: impl std::fmt::Display, line: u32) -> String {
    match line {
        0 => file.to_string(),
        line => format!("{file}:{line}"),
    }
}

/// The cache at `path`, if it can serve; else what is to be done.
fn existing(output: &Output, key: &Key, n_vocab: usize) -> Result<Result<Cache, Built>> {
    let path = output.path();
    match std::fs::metadata(path) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(Err(Built::New)),
        Err(e) => Err(io(path, e)),
        Ok(_) => {
            TOKENS.claim(output.clone())?;
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
                control.unless_stopped(Error::Interrupted)?;
                if !said {
                    control.note(format_args!("{e}: waiting for the tokens"));
                    said = true;
                }
            }
            done => return Ok(done?),
        }
    }
}

/// The kind of file that a cache is.
pub const TOKENS: files::Kind = files::Kind::new("a token cache", |head| head.starts_with(MAGIC));

/// Opens the cache at `path`; the inner error is the reason why it cannot serve.
fn reuse(path: &Path, key: &Key, n_vocab: usize) -> Result<Result<Cache, String>> {
    let cache = Cache::check(Map::open(path)?, n_vocab);
    Ok(cache.and_then(|cache| cache.description.key.differs(key).map_or(Ok(cache), Err)))
}

/// Tokenizes the sources into a new cache.
struct Build<'a> {
    path: &'a Path,
    made: Made<'a>,
    control: &'a Control<'a>,
    notes: Vec<String>,
    /// Records that no token of an answer is in, which are left out: how many, and the name of the first.
    unanswered: (u64, String),
}

impl Build<'_> {
    fn run<W: std::io::Write>(&mut self, writer: &mut Writer<W>) -> Result<()> {
        let batch_bytes = BATCH * rayon::current_num_threads();
        let Made { vocab, sources, ends } = self.made;
        let counter = Rc::new(Cell::new(0));
        let reading = Reading {
            options: sources.options(),
            template: sources.template(),
            before: &ends.before,
            after: &ends.after,
            n_vocab: vocab.n_tokens(),
            counter: Rc::clone(&counter),
        };
        let mut notes = Vec::new();
        for (source, file) in sources.files().iter().enumerate() {
            let (mut batch, mut n_bytes) = (Vec::new(), 0);
            documents(file, &reading, &mut notes, &mut |document| {
                n_bytes += document.n_bytes();
                batch.push(document);
                if n_bytes >= batch_bytes {
                    self.write(source, &batch, writer)?;
                    self.tell(counter.get(), writer)?;
                    batch.clear();
                    n_bytes = 0;
                }
                self.control.unless_stopped(Error::Interrupted)
            })
            // A template that was not rendered to its end is no fault of the text.
            .map_err(|e| if self.control.stopped() { Error::Interrupted } else { e })?;
            self.write(source, &batch, writer)?;
            self.tell(counter.get(), writer)?;
        }
        if self.unanswered.0 > 0 {
            let (n, first) = &self.unanswered;
            notes
                .push(format!("{first}: no token lies wholly in an answer: left out, as {n} records in all"));
        }
        self.notes = notes;
        if writer.records.is_empty() {
            let n = sources.files().len();
            return Err(invalid(format!("no text to train on: all of {n} files are blank")));
        }
        Ok(())
    }

    fn tell<W: std::io::Write>(&mut self, bytes: u64, writer: &Writer<W>) -> Result<()> {
        let (documents, tokens) = (writer.records.len(), writer.n_tokens);
        // A file may have grown since it was listed.
        let n_bytes = self.made.sources.n_bytes().max(bytes);
        let what = format_args!("tokenizing: {documents} documents, {tokens} tokens");
        self.control.report(what, bytes, n_bytes);
        self.control.unless_stopped(Error::Interrupted)
    }

    /// Tokenizes documents of one source in parallel, and writes them in order.
    fn write<W: std::io::Write>(
        &mut self,
        source: usize,
        batch: &[Document],
        writer: &mut Writer<W>,
    ) -> Result<()> {
        let (Made { vocab, sources, .. }, control) = (self.made, self.control);
        let name = |document: &Document| place(sources.files()[source].path.display(), document.line);
        let named = |document: &Document, e: Failure| invalid(format!("{}: {e}", name(document)));
        // Chunks of all documents are tokenized together, because a batch may be one long document.
        let pieces: Vec<Vec<Piece<'_>>> =
            batch.par_iter().map(|d| pieces(vocab, d).map_err(|e| named(d, e))).collect::<Result<_>>()?;
        let flat: Vec<(usize, Piece<'_>)> =
            pieces.iter().enumerate().flat_map(|(i, of)| of.iter().map(move |piece| (i, *piece))).collect();
        let tokens: Vec<Vec<(Vec<Token>, bool)>> = flat
            .par_iter()
            .map(|&(i, piece)| match control.stopped() {
                // A batch takes seconds.
                true => Err(Error::Interrupted),
                false => runs(vocab, piece).map_err(|e| named(&batch[i], e)),
            })
            .collect::<Result<_>>()?;
        let mut tokens = tokens.into_iter();
        for (document, pieces) in batch.iter().zip(&pieces) {
            let inner: Vec<(Vec<Token>, bool)> = tokens.by_ref().take(pieces.len()).flatten().collect();
            if !inner.is_empty() && inner.iter().all(|(_, trained)| !trained) {
                if self.unanswered.0 == 0 {
                    self.unanswered.1 = name(document);
                }
                self.unanswered.0 += 1;
                continue;
            }
            let spans = self.spans(document, &inner);
            if spans.iter().all(|(span, _)| span.is_empty()) {
                continue;
            }
            let text_hash = text_hash(document);
            let record = Record { start: 0, text_hash, source: source as u32, line: document.line };
            writer.document(record, spans).map_err(|e| io(self.path, e))?;
        }
        Ok(())
    }

    /// A document's tokens with those around it, and whether they are trained on.
    fn spans<'t>(
        &'t self,
        document: &'t Document,
        inner: &'t [(Vec<Token>, bool)],
    ) -> Vec<(&'t [Token], bool)> {
        let (before, after) = (self.made.ends.before.as_slice(), self.made.ends.after.as_slice());
        let inner = inner.iter().map(|(tokens, trained)| (tokens.as_slice(), *trained));
        match &document.content {
            Content::Tokens(tokens) => vec![(tokens, true)],
            Content::Text(_) => std::iter::once((before, true)).chain(inner).chain([(after, true)]).collect(),
            Content::Record(record) => {
                let mut spans: Vec<(&[Token], bool)> = inner.collect();
                // A template may write the tokens around a conversation itself.
                let first = spans.iter().find_map(|(span, _)| span.first()).copied();
                if before.first() != first.as_ref() || before.is_empty() {
                    spans.insert(0, (before, record.answers.is_none()));
                }
                if !record.special {
                    spans.push((after, true));
                }
                spans
            }
        }
    }
}
