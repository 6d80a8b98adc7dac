//! Records of samples in a JSON Lines file, from which a stopped run resumes.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read};

use files::Output;
use ropewalk_core::terminal::one_line;
use ropewalk_study::SAMPLES;
use ropewalk_tasks::{Answer, Info};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::super::invalid;
use super::Ready;
use crate::model::{Error, Result};

/// Maximum size of a record, in bytes.
const MAX_LINE: u64 = 16 << 20;

/// One scored sample.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// The task.
    pub task: String,
    /// Requested length in tokens, prompt and answer together.
    pub length: Option<usize>,
    /// Identifies the sample within its task and length.
    pub id: String,
    /// SHA-256 of the prompt text.
    pub prompt_sha256: String,
    /// Number of tokens in the prompt, including BOS.
    pub prompt_tokens: usize,
    /// The text that the model generated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answer: Option<String>,
    /// For each choice: the sum of `ln p`, the number of tokens, and whether every token is the top token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub choices: Option<Vec<(f64, usize, bool)>>,
    /// An answer with the full score; for choices, the index of the correct one, from 0.
    pub expected: Value,
    /// Scores by the task's metrics, from 0 to 1.
    pub scores: Map<String, Value>,
    /// Properties of the sample: depth, subject.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub tags: Map<String, Value>,
    /// Hash of model, method, task, and settings.
    pub setup: String,
}

impl Record {
    pub(super) fn new(
        setup: &str,
        info: &Info,
        length: Option<usize>,
        ready: &Ready,
        answer: &Answer,
    ) -> Record {
        let sample = &ready.sample;
        let scores = (sample.judge)(answer);
        let expected = match &sample.expected {
            Answer::Text(text) => Value::from(text.as_str()),
            Answer::Choices(choices) => {
                let right = (0..choices.len()).max_by(|&a, &b| choices[a].sum.total_cmp(&choices[b].sum));
                Value::from(right)
            }
        };
        let (answer, choices) = match answer {
            Answer::Text(text) => (Some(text.clone()), None),
            Answer::Choices(all) => (None, Some(all.iter().map(|c| (c.sum, c.n_tokens, c.greedy)).collect())),
        };
        Record {
            task: info.name.into(),
            length,
            id: sample.id.clone(),
            prompt_sha256: ready.hash.clone(),
            prompt_tokens: ready.prompt.len(),
            answer,
            choices,
            expected,
            scores: info.metrics.iter().zip(scores).map(|(name, x)| ((*name).into(), x.into())).collect(),
            tags: sample.tags.iter().map(|(k, v)| ((*k).into(), v.as_str().into())).collect(),
            setup: setup.into(),
        }
    }

    /// The score by a metric; 0 if the record has none.
    pub fn score(&self, metric: &str) -> f64 {
        self.scores.get(metric).and_then(Value::as_f64).unwrap_or(0.0)
    }
}

/// Keeps records.
pub trait Store {
    /// The record of a sample, if it was scored before with the same setup and prompt.
    fn get(&self, setup: &str, id: &str, prompt_sha256: &str) -> Option<Record>;
    /// Keeps a record.
    ///
    /// # Errors
    /// Returns an error if the record cannot be written.
    fn put(&mut self, record: &Record) -> Result<()>;
}

/// Keeps nothing.
#[derive(Debug, Clone, Copy, Default)]
pub struct Unkept;

impl Store for Unkept {
    fn get(&self, _: &str, _: &str, _: &str) -> Option<Record> {
        None
    }
    fn put(&mut self, _: &Record) -> Result<()> {
        Ok(())
    }
}

/// Keeps records in a file, one line each after a header, written as soon as a sample is scored.
#[derive(Debug)]
pub struct FileStore {
    output: Output,
    /// By setup and id.
    known: HashMap<(String, String), Record>,
    /// True until the first record is written: nothing is in the file, or nothing that stays.
    is_new: bool,
    _lock: files::Lock,
}

impl FileStore {
    /// Opens a file of records, which need not exist. An incomplete last line is removed. If the output is forced, the first
    /// record replaces whatever file is there.
    ///
    /// # Errors
    /// Returns an error if another process has the file open, if it cannot be read or written, if it does not begin with
    /// the header of records, or if a line is not a record.
    pub fn open(path: impl Into<Output>) -> Result<FileStore> {
        let output = path.into();
        let path = output.path();
        let lock = files::Lock::file(path)?;
        // It would be appended to through the link, and cut.
        if path.symlink_metadata().is_ok_and(|m| m.is_symlink()) {
            let what = "expected a regular file, found a symbolic link: name the file itself";
            return Err(invalid(format!("{}: {what}", path.display())));
        }
        SAMPLES.claim(output.clone())?;
        let mut store = FileStore { output, known: HashMap::new(), is_new: true, _lock: lock };
        if !store.output.is_forced() {
            store.load()?;
        }
        Ok(store)
    }

    /// Number of records.
    pub fn len(&self) -> usize {
        self.known.len()
    }

    /// Returns true if there are no records.
    pub fn is_empty(&self) -> bool {
        self.known.is_empty()
    }

    fn load(&mut self) -> Result<()> {
        let path = self.output.path();
        let io = |e: std::io::Error| Error::io(path, e);
        let Some(file) = files::open_in_place(path)? else { return Ok(()) };
        let (mut input, mut whole) = (BufReader::new(&file), SAMPLES.header().len() as u64);
        self.is_new = input.fill_buf().map_err(io)?.is_empty();
        input.seek_relative(whole as i64).map_err(io)?;
        for line in 2.. {
            let mut bytes = Vec::new();
            let n = (&mut input).take(MAX_LINE + 1).read_until(b'\n', &mut bytes).map_err(io)?;
            let invalid = |what: String| invalid(format!("{}: line {line}: {what}", path.display()));
            match bytes.last() {
                None => break,
                Some(b'\n') => {}
                Some(_) if n as u64 > MAX_LINE => {
                    return Err(invalid(format!(
                        "expected a record of at most {MAX_LINE} bytes, found more"
                    )));
                }
                Some(_) => {
                    // What a killed process had begun.
                    file.set_len(whole).map_err(io)?;
                    break;
                }
            }
            let record: Record = serde_json::from_slice(&bytes)
                .map_err(|e| invalid(format!("expected the record of a sample: {}", one_line(e))))?;
            whole += n as u64;
            self.known.insert((record.setup.clone(), record.id.clone()), record);
        }
        Ok(())
    }
}

impl Store for FileStore {
    fn get(&self, setup: &str, id: &str, prompt_sha256: &str) -> Option<Record> {
        let record = self.known.get(&(setup.to_owned(), id.to_owned()))?;
        (record.prompt_sha256 == prompt_sha256).then(|| record.clone())
    }

    fn put(&mut self, record: &Record) -> Result<()> {
        let path = self.output.path();
        let mut line = serde_json::to_vec(record)
            .map_err(|e| invalid(format!("{}: sample {}: {e}", path.display(), record.id)))?;
        line.push(b'\n');
        match self.is_new {
            true => files::replace(self.output.clone(), &SAMPLES, |out| {
                let all = [SAMPLES.header().as_bytes(), &line].concat();
                out.write_all(&all).map_err(|e| files::Error::new(path, e))
            })?,
            false => files::append(path, &line)?,
        }
        self.is_new = false;
        self.known.insert((record.setup.clone(), record.id.clone()), record.clone());
        Ok(())
    }
}
