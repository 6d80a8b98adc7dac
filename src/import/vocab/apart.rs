//! The engine in a separate process, under limits: the one defense against a hostile tokenizer.json.

use std::borrow::Cow;
use std::io::{Read, Write};
use std::path::Path;
use std::time::Duration;

use ropewalk_core::apart::{self, Apart, Fault, Limits};
use serde::{Deserialize, Serialize};

use crate::json::{bytes, LARGE};
use crate::{Error, Result};

use super::engine::{self, Answer, Question};
use super::tokenizer::{Tokenizer, FILE};

/// The most that a process for a tokenizer may take. The largest known, 33 MB, takes it half a gigabyte and 3 seconds.
pub const LIMITS: Limits = Limits::new(4 << 30, 60, Duration::from_secs(600));

/// Bytes of the question, and of the answer, each as JSON.
const MAX_TALK: u64 = 128 << 20;

/// Header of the file, after the length of its JSON in 8 bytes.
#[derive(Debug, Serialize, Deserialize)]
struct Request<'a> {
    path: Cow<'a, Path>,
    question: Question,
}

/// Has a process read the folder's tokenizer and answer.
pub(super) fn answer(folder: &Path, process: &Apart, question: Question) -> Result<Answer> {
    let path = folder.join(FILE);
    let missing = || Error::of(folder, format!("has no {FILE}, expected one"));
    let file = bytes(&path, LARGE)?.ok_or_else(missing)?;
    let n = question.texts.len();
    let wrong = |e: &dyn std::fmt::Display| Error::of(&path, e);
    let request = serde_json::to_vec(&Request { path: Cow::Borrowed(&path), question });
    let request = request.map_err(|e| wrong(&e))?;
    let length = (request.len() as u64).to_le_bytes();
    let read = |bytes: &[u8]| serde_json::from_slice::<std::result::Result<Answer, String>>(bytes).ok();
    let reply = process.ask(&[&length, &request, &file], MAX_TALK, read);
    let reply = reply.map_err(|fault| match fault {
        Fault::Stopped => Error::Interrupted,
        fault => wrong(&fault),
    });
    match reply? {
        Ok(answer) if answer.texts.len() == n => Ok(answer),
        Ok(_) => Err(wrong(&"the process for it did not answer for each added token")),
        Err(what) => Err(Error::Invalid(what)),
    }
}

/// Who runs a tokenizer.json, with the crate `tokenizers`. A hostile file can make that panic, or take all memory.
#[derive(Debug, Clone)]
pub enum Tokenizing {
    /// A process that does as [`serve`], under limits such as [`LIMITS`].
    Apart(Apart),
    /// This process, without limits, for the caller trusts the file.
    Trusted,
}

/// The other side of [`Tokenizing::Apart`]: puts the limits it is told onto this process, reads a tokenizer from `input` to
/// its end, runs it and writes what it answers. The process should do nothing else and end then.
///
/// # Errors
/// Input or output that fails. What is wrong with the tokenizer is told the other side.
pub fn serve(input: impl Read, output: impl Write) -> std::io::Result<()> {
    apart::serve(input, output, LARGE + MAX_TALK, |request| {
        let reply = request.ok_or_else(|| "is too long".to_owned()).and_then(|r| run(&r));
        serde_json::to_vec(&reply).unwrap_or_default()
    })
}

fn run(request: &[u8]) -> std::result::Result<Answer, String> {
    let broken = || "the request for a tokenizer is broken".to_owned();
    let (length, rest) = request.split_first_chunk::<8>().ok_or_else(broken)?;
    let at = usize::try_from(u64::from_le_bytes(*length)).ok();
    let (json, file) = at.and_then(|at| rest.split_at_checked(at)).ok_or_else(broken)?;
    let Request { path, question } = serde_json::from_slice(json).map_err(|_| broken())?;
    let file = Tokenizer::parse(&path, file).map_err(|e| e.to_string())?;
    engine::answer(&file, question).map_err(|e| e.to_string())
}
