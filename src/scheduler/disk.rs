//! Texts that left the cache, in files of a directory: found again by the tokens that a prompt begins with, also after a
//! restart.
//!
//! A file is that of a session with a single sequence. Its attachment has what else must agree. The engines copy sequences
//! to memory and from it. A thread writes and reads the files. All of them together have a bound in bytes; which one goes
//! first is decided as in memory ([`prefixes`](super::prefixes)). The order of the last uses, which the files' times keep,
//! stands for the clock after a restart.

mod saved;
mod store;

use std::collections::{BTreeMap, VecDeque};
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use files::foreign::Folder;
use files::Lock;
use ropewalk_core::adapter::fingerprint;
use ropewalk_core::text::bytes;
use serde::{Deserialize, Serialize};

use super::prefixes::worth_of;
use super::Status;
use crate::model::{Error, Result};
use crate::origin::partial::make_folder;
use crate::session::{Form, Packed, SavedSession, Session};
use crate::Token;

pub(super) use saved::Name;
pub(super) use store::{Found, Store};

/// How the names of files begin; digits of a hash follow.
const NAME: &str = "prefix-";
const DIGITS: usize = 32;
/// Most names in the directory.
const MAX_NAMES: usize = 100_000;
/// Most warnings that are held for whoever asks for them.
const MAX_WARNINGS: usize = 100;

ropewalk_core::setters! {
    /// Settings of the texts that a scheduler keeps on disk.
    #[derive(Debug, Clone, PartialEq)]
    pub struct DiskParams {
        /// The directory. It is made if it does not exist, and must be this user's own.
        pub dir: PathBuf,
        /// Most bytes of all files.
        pub n_bytes: u64,
        /// Owners of saved texts. Each may save an equal part of half of the bytes.
        pub n_owners: usize,
        /// Texts of fewer tokens are not written, and none is read that saves fewer.
        pub n_tokens: usize,
    }
}

impl DiskParams {
    /// Up to so many bytes in a directory, for texts of 256 tokens or more, and one owner of saved texts.
    pub fn new(dir: impl AsRef<Path>, n_bytes: u64) -> DiskParams {
        DiskParams { dir: dir.as_ref().to_owned(), n_bytes, n_owners: 1, n_tokens: 256 }
    }
}

/// Facts that a file's header does not hold: the attachment, as JSON.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct About {
    /// A hash of the model's tensors, of more bytes than that of sessions.
    tensors: String,
    math: String,
    portable: bool,
    /// A hash of the salt of requests.
    salt: String,
}

#[derive(Debug)]
struct Entry {
    name: String,
    bytes: u64,
    /// The clock at its last use.
    used: f64,
    n_tokens: usize,
    /// Plans whose sessions take it; none for files of other models and settings.
    plans: Vec<usize>,
    salt: String,
    tokens: Arc<Vec<Token>>,
    /// Numbers of tokens that there are states after; none without recurrent layers.
    states: Vec<usize>,
}

/// A text to read for a request.
struct Read {
    plan: usize,
    job: u64,
    name: String,
    tokens: Arc<Vec<Token>>,
}

struct Write {
    plan: usize,
    packed: Packed,
    tokens: Arc<Vec<Token>>,
    about: About,
    /// Beginnings of this text are worth nothing when it is written.
    covers: bool,
    pending: u64,
}

#[derive(Default)]
struct State {
    /// In the order of their last uses, as far as the clock does not tell.
    entries: Vec<Entry>,
    clock: f64,
    n_bytes: u64,
    reads: VecDeque<Read>,
    writes: VecDeque<Write>,
    /// The text that is being written.
    writing: Option<(usize, String, Arc<Vec<Token>>)>,
    /// Bytes of texts in memory that wait to be written.
    pending: u64,
    stopping: bool,
    n_read: usize,
    n_written: usize,
    warnings: Vec<String>,
}

/// The directory. One process has it at a time.
pub(super) struct Disk {
    params: DiskParams,
    folder: Folder,
    _lock: Lock,
    state: Mutex<State>,
    /// Files of texts that callers have saved, and their bytes.
    saved: Mutex<BTreeMap<String, u64>>,
    /// Wakes the thread.
    work: Condvar,
    /// Wakes an engine that waits for memory, or until a text is written.
    room: Condvar,
}

impl Disk {
    /// Opens the directory, finds the files in it, and removes what a killed process left.
    ///
    /// # Errors
    /// Another process has the directory; it is a link or another user's; it cannot be read or made.
    pub(super) fn open(params: &DiskParams, sessions: &[&Session]) -> Result<(Arc<Disk>, Vec<Store>)> {
        let dir = &params.dir;
        make_folder(dir, 0o700).map_err(|e| Error::Invalid(e.to_string()))?;
        let lock = Lock::folder(dir)?;
        files::remove_orphans(dir);
        let folder = Folder::open(dir)?;
        let store = |(plan, session): (usize, &&Session)| {
            let about = About {
                tensors: fingerprint(session.model().file()),
                math: session.params().math.to_string(),
                portable: session.params().portable,
                salt: String::new(),
            };
            (plan, session.form(), about)
        };
        let forms: Vec<(usize, Form, About)> = sessions.iter().enumerate().map(store).collect();
        let mut state = State::default();
        let (mut found, mut kept) = (Vec::new(), BTreeMap::new());
        for name in folder.names(Path::new("."), MAX_NAMES)? {
            let Some(name) = name.to_str() else { continue };
            match saved::found(&folder, name) {
                Ok(n_bytes) => kept.extend(n_bytes.map(|n| (name.to_owned(), n))),
                Err(e) => state.warn(format!("{e}; skipped")),
            }
            if !is_ours(name) {
                continue;
            }
            match entry(&folder, name, sessions, &forms) {
                Ok(Some(entry)) => found.push(entry),
                Ok(None) => {}
                Err(e) => state.warn(format!("{e}; skipped")),
            }
        }
        found.sort_by_key(|(used, _)| *used);
        state.n_bytes = kept.values().sum();
        let n = found.len().max(1) as f64;
        // A full directory drops each text once while its clock rises by the worth of one.
        state.clock = found.iter().map(|(_, entry)| worth_of(entry.n_tokens)).sum::<f64>() / n;
        for (i, (_, mut entry)) in found.into_iter().enumerate() {
            entry.used = state.clock * (i as f64 / n);
            state.n_bytes += entry.bytes;
            state.entries.push(entry);
        }
        let disk = Disk {
            params: params.clone(),
            folder,
            _lock: lock,
            state: Mutex::new(state),
            saved: Mutex::new(kept),
            work: Condvar::new(),
            room: Condvar::new(),
        };
        let disk = Arc::new(disk);
        // The bound may be a smaller one than before.
        if !disk.make_room(0, |entry| entry.bytes > params.n_bytes) {
            disk.lock().warn(format!("{}: more than {} remain", dir.display(), bytes(params.n_bytes)));
        }
        let store = |(plan, form, about)| Store { disk: Arc::clone(&disk), plan, form, about };
        let stores = forms.into_iter().map(store).collect();
        Ok((disk, stores))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds what it holds, and has done, to a status.
    pub(super) fn report(&self, status: &mut Status) {
        let state = self.lock();
        status.disk_bytes = Some(state.n_bytes);
        status.n_on_disk = state.entries.len();
        status.n_read = state.n_read;
        status.n_written = state.n_written;
    }

    /// The warnings since the last call.
    pub(super) fn warnings(&self) -> Vec<String> {
        std::mem::take(&mut self.lock().warnings)
    }

    pub(super) fn warn(&self, warning: impl std::fmt::Display) {
        self.lock().warn(format!("{}: {warning}", self.params.dir.display()));
    }

    /// The thread: reads before it writes. Each text goes to `deliver`, with its plan and its request. Returns when it was told
    /// to stop, and everything is written.
    pub(super) fn run(&self, deliver: impl Fn(usize, u64, Option<Packed>)) {
        loop {
            let mut state = self.lock();
            let (read, write) = loop {
                let read = state.reads.pop_front();
                let write = if read.is_none() { state.writes.pop_front() } else { None };
                if read.is_some() || write.is_some() {
                    break (read, write);
                }
                if state.stopping {
                    return;
                }
                state = self.work.wait(state).unwrap_or_else(PoisonError::into_inner);
            };
            if let Some(write) = &write {
                state.writing = Some((write.plan, write.about.salt.clone(), Arc::clone(&write.tokens)));
            }
            drop(state);
            if let Some(read) = read {
                let packed = catch_unwind(AssertUnwindSafe(|| self.read(&read))).unwrap_or(None);
                deliver(read.plan, read.job, packed);
            }
            if let Some(write) = write {
                let pending = write.pending;
                if catch_unwind(AssertUnwindSafe(|| self.write(write))).is_err() {
                    self.warn("the thread that writes texts panicked");
                }
                let mut state = self.lock();
                state.pending = state.pending.saturating_sub(pending);
                state.writing = None;
                self.room.notify_all();
            }
        }
    }

    /// Has the thread end when it has written what waits.
    pub(super) fn stop(&self) {
        self.lock().stopping = true;
        self.work.notify_all();
    }

    fn read(&self, read: &Read) -> Option<Packed> {
        let packed = self.open_file(&read.name).and_then(SavedSession::packed);
        let path = self.params.dir.join(&read.name);
        match packed {
            Ok(packed) if packed.tokens() == &read.tokens[..] => {
                self.lock().n_read += 1;
                Some(packed)
            }
            Ok(_) => self.forget(&read.name, format!("{}: its tokens have changed", path.display())),
            Err(e) => self.forget(&read.name, e.to_string()),
        }
    }

    /// Opens a file by its name in the directory, and marks it as used.
    fn open_file(&self, name: &str) -> Result<SavedSession> {
        let saved = open_file(&self.folder, name)?;
        saved.touch();
        Ok(saved)
    }

    /// Skips a text from now on, and removes its file: it is one of ours and of no use.
    fn forget(&self, name: &str, why: String) -> Option<Packed> {
        let mut state = self.lock();
        state.warn(format!("{why}; skipped"));
        let entry = state.take(name);
        drop(state);
        self.remove(entry);
        None
    }

    /// Removes files of texts that are out of the list. One that cannot be removed keeps its room; returns false then.
    fn remove(&self, entries: impl IntoIterator<Item = Entry>) -> bool {
        let mut done = true;
        for entry in entries {
            let removed = self.folder.remove(Path::new(&entry.name));
            let mut state = self.lock();
            match removed {
                Ok(()) => state.free(entry.bytes),
                Err(e) => {
                    state.warn(e.to_string());
                    done = false;
                }
            }
        }
        done
    }

    fn write(&self, write: Write) {
        let Write { plan, packed, tokens, about, covers, .. } = write;
        let attachment = serde_json::to_vec(&about).unwrap_or_default();
        let n_bytes = packed.n_bytes(&attachment);
        let covered = |entry: &Entry| {
            covers
                && entry.plans.contains(&plan)
                && entry.salt == about.salt
                && tokens.starts_with(&entry.tokens)
        };
        if !self.make_room(n_bytes, covered) {
            return;
        }
        let name = format!("{NAME}{}", &packed.hash(&attachment)[..DIGITS]);
        let written = packed.write(&self.params.dir.join(&name), &attachment);
        let mut state = self.lock();
        if let Err(e) = written {
            state.free(n_bytes);
            state.warn(format!("{e}; not kept"));
            return;
        }
        if let Some(replaced) = state.take(&name) {
            state.free(replaced.bytes);
        }
        let beginnings = state.take_all(covered);
        let entry = Entry {
            name,
            bytes: n_bytes,
            used: state.clock,
            n_tokens: tokens.len(),
            plans: vec![plan],
            salt: about.salt.clone(),
            tokens: Arc::clone(&tokens),
            states: packed.states(),
        };
        state.n_written += 1;
        state.entries.push(entry);
        drop(state);
        self.remove(beginnings);
    }

    /// Removes files until there is room for so many bytes, and takes it: first those of `no_use`, then those worth
    /// least. Returns false if there cannot be.
    fn make_room(&self, n_bytes: u64, no_use: impl Fn(&Entry) -> bool) -> bool {
        let most = self.params.n_bytes;
        if n_bytes > most {
            return false;
        }
        loop {
            let mut state = self.lock();
            if state.n_bytes.saturating_add(n_bytes) <= most {
                // Before the file is written: another thread may look for room meanwhile.
                state.n_bytes += n_bytes;
                return true;
            }
            let worth = |entry: &Entry| match no_use(entry) {
                true => f64::MIN,
                false => entry.used + worth_of(entry.n_tokens),
            };
            let least = state.entries.iter().map(|entry| (worth(entry), &entry.name));
            let least = least.min_by(|a, b| a.0.total_cmp(&b.0)).map(|(worth, name)| (worth, name.clone()));
            let Some((worth, name)) = least else { return false };
            state.clock = state.clock.max(worth);
            let entry = state.take(&name);
            drop(state);
            if !self.remove(entry) {
                return false;
            }
        }
    }
}

impl State {
    fn warn(&mut self, warning: String) {
        if self.warnings.len() < MAX_WARNINGS {
            self.warnings.push(warning);
        }
    }

    /// Takes a text out of the list. Its file is still there.
    fn take(&mut self, name: &str) -> Option<Entry> {
        let at = self.entries.iter().position(|entry| entry.name == name)?;
        Some(self.entries.remove(at))
    }

    fn take_all(&mut self, like: impl Fn(&Entry) -> bool) -> Vec<Entry> {
        self.entries.extract_if(.., |entry| like(entry)).collect()
    }

    fn free(&mut self, n_bytes: u64) {
        self.n_bytes = self.n_bytes.saturating_sub(n_bytes);
    }
}

/// Writes the text of a session's first sequence to a directory as a scheduler's thread does, in this thread, in which tests
/// let a step fail. Returns the warnings.
///
/// # Errors
/// Returns an error if the directory cannot be opened.
pub fn keep(params: &DiskParams, session: &Session) -> Result<Vec<String>> {
    let (disk, stores) = Disk::open(params, &[session])?;
    stores.iter().for_each(|store| store.save(session, 0, b"", false));
    disk.stop();
    disk.run(|_, _, _| {});
    Ok(disk.warnings())
}

fn is_ours(name: &str) -> bool {
    let digits = name.strip_prefix(NAME).unwrap_or_default();
    digits.len() == DIGITS && digits.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
}

fn open_file(folder: &Folder, name: &str) -> Result<SavedSession> {
    let path = folder.path().join(name);
    let file = folder.file(Path::new(name))?;
    let file = file.ok_or_else(|| Error::Invalid(format!("{}: no longer there", path.display())))?;
    SavedSession::of_file(&path, file)
}

/// A file of the directory, with the time of its last use. It is not verified. `None` for a session that somebody else put
/// there.
fn entry(
    folder: &Folder,
    name: &str,
    sessions: &[&Session],
    forms: &[(usize, Form, About)],
) -> Result<Option<(SystemTime, Entry)>> {
    let mut saved = open_file(folder, name)?;
    let Ok(about) = serde_json::from_slice::<About>(saved.attachment()) else { return Ok(None) };
    let (bytes, used) = saved.about_file()?;
    let takes = |(plan, form, own): &&(usize, Form, About)| {
        let same = About { salt: about.salt.clone(), ..own.clone() } == about;
        same && sessions[*plan].takes(form, &saved)
    };
    let plans: Vec<usize> = forms.iter().filter(takes).map(|(plan, ..)| *plan).collect();
    let n_tokens = saved.n_tokens();
    let (tokens, states) = if plans.is_empty() { Default::default() } else { saved.peek()? };
    let (name, salt, tokens) = (name.to_owned(), about.salt, Arc::new(tokens));
    Ok(Some((used, Entry { name, bytes, used: 0.0, n_tokens, plans, salt, tokens, states })))
}
