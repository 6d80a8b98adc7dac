//! LV-Eval: questions about mixed-up documents of 16,000 to 256,000 words, in English and Chinese.
//!
//! Yuan et al. 2024; prompts, budgets, truncation and metrics of infinigence/LVEval at 63e7ae9, which reads the
//! same files. The nine sets with the ending `_mixup` are those that "Untie the Knots" reports; the paper leaves
//! out factrecall.
//!
//! The length chooses the file (the longest published one that is not above it; thousands of words there,
//! thousands of tokens here) and the truncation: as the README prescribes, a prompt has at most 500 tokens less
//! than the length, and a longer one loses its middle.
//!
//! Files: `lveval/SET/SET_LEVEL.jsonl` in the folder of data, as the archives of the data set `Infinigence/LVEval`
//! unpack, or `lveval/SET_LEVEL.jsonl`: one JSON object a line with `input`, `context`, `answers` (texts, the first
//! of which counts) and, but for some sets, `answer_keywords`. Chinese sets also read jieba's dictionary.

pub(crate) mod sets;
pub(crate) mod shots;

use std::path::PathBuf;
use std::sync::Arc;

use serde::Deserialize;

use crate::data::{check_answer, Records};
use crate::metrics::chinese::{normalize_zh_answer, Words};
use crate::metrics::{lveval as metrics, normalize_answer};
use crate::{text, Answer, Ask, Error, Info, Judge, Opt, Result, Sample, Samples, Setup, Task};

pub(crate) use sets::{MULTI_HOP, NAMES, SINGLE_HOP, TASKS};

/// Tokens of the length that the prompt leaves free.
const RESERVE: usize = 500;

/// The published lengths, and the tokens from which on they are chosen.
const LEVELS: [(&str, usize); 5] =
    [("16k", 16_000), ("32k", 32_000), ("64k", 64_000), ("128k", 128_000), ("256k", 256_000)];

static STYLE: Opt = Opt {
    name: "lveval",
    values: &["official", "utk"],
    default: "official",
    about:
        "official: the published prompts; utk: three questions on the passages are answered before, and only \
            the first line of an answer counts, as in Untie the Knots",
};

static LEVEL: Opt = Opt {
    name: "lveval_level",
    values: &["auto", "16k", "32k", "64k", "128k", "256k"],
    default: "auto",
    about: "the published length to read; auto is the longest that is not above the length in tokens",
};

/// How answers are judged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Score {
    F1,
    F1Zh,
    Keywords,
    KeywordsZh,
    RougeZh,
}

impl Score {
    const fn is_chinese(self) -> bool {
        matches!(self, Score::F1Zh | Score::KeywordsZh | Score::RougeZh)
    }
}

pub struct LvEval {
    info: Info,
    /// The name of the set in the names of its files.
    pub set: &'static str,
    prompt: &'static str,
    /// Tokens of the answer, at most.
    max_tokens: usize,
    score: Score,
}

/// A record of the published files; they have more fields.
#[derive(Debug, Deserialize)]
struct Record {
    input: String,
    context: String,
    answers: Vec<String>,
    answer_keywords: Option<String>,
}

impl Task for LvEval {
    fn info(&self) -> &Info {
        &self.info
    }

    fn samples<'a>(&'a self, setup: &'a Setup<'a>) -> Result<Samples<'a>> {
        let words = self.score.is_chinese().then(|| Words::read(setup.data)).transpose()?;
        self.samples_with(setup, words.map(Arc::new))
    }
}

impl LvEval {
    /// The samples, with what cuts Chinese into words.
    pub fn samples_with<'a>(
        &'a self,
        setup: &'a Setup<'a>,
        words: Option<Arc<Words>>,
    ) -> Result<Samples<'a>> {
        let length = setup.length()?;
        let level = level(setup, length)?;
        let max_prompt = max_prompt(length)?;
        let has_passages = self.info.options.iter().any(|option| option.name == STYLE.name);
        let with_shots = has_passages && setup.option(&STYLE)? == "utk";
        let path = self.path(setup, level)?;
        let records = Records::open(&path, &setup.control, |record| self.check(record, with_shots))?;
        let n = setup.samples_of(records.len());
        let need =
            max_prompt + self.max_tokens + setup.encoder.count(&setup.encoder.frame("")?)? + text::SEAM;
        let make = move |i: usize| {
            let record: Record = records.get(i)?;
            let prompt =
                text::cut_middle(setup.encoder, self.prompt(&record, with_shots)?, max_prompt, false)?;
            let gold = record.answers.into_iter().next().unwrap_or_default();
            // A line break is one more blank to every metric.
            let expected = Answer::Text(if with_shots { gold.replace('\n', " ") } else { gold.clone() });
            Ok(Sample {
                id: i.to_string(),
                prompt: setup.encoder.frame(&prompt)?,
                ask: Ask::Generate { max_tokens: self.max_tokens, min_tokens: 0, stop: Vec::new() },
                expected,
                tags: vec![("level", level.to_owned())],
                judge: judge(self.score, gold, record.answer_keywords, words.clone(), with_shots),
            })
        };
        Ok(Samples::new(setup, n, make).with_beyond(need.saturating_sub(length)))
    }

    /// Where the records of a level are: in the folder that the published archive unpacks to, or next to it, where
    /// the official code looks.
    fn path(&self, setup: &Setup<'_>, level: &str) -> Result<PathBuf> {
        let ending = format!("{}_{level}.jsonl", self.set);
        let beside = setup.data.join("lveval").join(&ending);
        if beside.is_file() {
            return Ok(beside);
        }
        let file = self.info.files.iter().find(|f| f.name.ends_with(&ending));
        file.ok_or_else(|| Error::invalid(format!("{}: no file of the level {level}", self.info.name)))?
            .path(setup.data)
    }

    /// Checks a record; the error says what is wrong with it.
    fn check(&self, record: &Record, with_shots: bool) -> Result<(), String> {
        let gold = record.answers.first().ok_or("expected at least one of `answers`, found none")?;
        let keywords = record.answer_keywords.as_deref().filter(|k| !k.is_empty());
        check_answer("answers", gold)?;
        check_answer("answer_keywords", keywords.unwrap_or_default())?;
        // Without a word that can be found, no answer can be scored.
        let scored = match self.score {
            Score::Keywords => keywords.is_none_or(|k| !normalize_answer(k).is_empty()),
            Score::KeywordsZh => !normalize_zh_answer(keywords.unwrap_or(gold)).is_empty(),
            Score::F1 | Score::F1Zh | Score::RougeZh => true,
        };
        if !scored {
            return Err(format!("expected `answer_keywords` with a word in them, found {keywords:?}"));
        }
        if with_shots && shots::titles(&record.context).next().is_none() {
            let what = "expected passages under headings such as \"### Passage 1\" in `context`, found none";
            return Err(what.to_owned());
        }
        Ok(())
    }

    /// The prompt before truncation.
    fn prompt(&self, record: &Record, with_shots: bool) -> Result<String> {
        let parts = self.prompt.trim_end().split_once("{context}").and_then(|(head, rest)| {
            let (instruction, tail) = rest.split_once("{input}")?;
            let (instruction, question) = instruction.split_at(instruction.rfind("\n\n")? + 2);
            Some((head, instruction, question, tail))
        });
        let (head, instruction, question, tail) =
            parts.ok_or_else(|| Error::invalid(format!("{}: its template has no fields", self.info.name)))?;
        let mut out = [head, &record.context, instruction].concat();
        if with_shots {
            for (asked, answer) in shots::pseudo(&record.context, self.score.is_chinese()) {
                out.extend([question, &asked, tail, &answer, "\n\n"]);
            }
        }
        out.extend([question, &record.input, tail]);
        Ok(out)
    }
}

fn level(setup: &Setup<'_>, length: usize) -> Result<&'static str> {
    let chosen = setup.option(&LEVEL)?;
    if let Some((name, _)) = LEVELS.iter().find(|(name, _)| *name == chosen) {
        return Ok(name);
    }
    let fitting = LEVELS.iter().rev().find(|(_, from)| *from <= length);
    fitting.map(|(name, _)| *name).ok_or_else(|| {
        let known: Vec<_> = LEVELS.iter().map(|(_, from)| from.to_string()).collect();
        Error::invalid(format!(
            "length {length}: LV-Eval has files for {} tokens; shorter lengths need the option {}",
            known.join(", "),
            LEVEL.name
        ))
    })
}

/// Tokens of the prompt, at most. The README has 31,500 for a model of 32k and 199,500 for one of 200k: thousands,
/// less 500 for the answer. So a multiple of 1024 counts as that many thousands.
pub fn max_prompt(length: usize) -> Result<usize> {
    // Two tokens are the least that has a first and a second half.
    text::thousands(length).checked_sub(RESERVE).filter(|&n| n >= 2).ok_or_else(|| {
        Error::invalid(format!(
            "length {length}: expected at least {} tokens, of which LV-Eval leaves {RESERVE} to the answer",
            RESERVE + 2
        ))
    })
}

fn judge(
    score: Score,
    gold: String,
    keywords: Option<String>,
    words: Option<Arc<Words>>,
    first_line: bool,
) -> Judge {
    Box::new(move |answer| {
        let text = if first_line { text::first_line(answer.text()) } else { answer.text() };
        let keywords = keywords.as_deref();
        vec![match (score, &words) {
            (Score::F1, _) => metrics::f1(text, &gold),
            (Score::Keywords, _) => metrics::f1_with_keywords(text, &gold, keywords),
            (Score::F1Zh, Some(words)) => metrics::f1_zh(words, text, &gold),
            (Score::KeywordsZh, Some(words)) => metrics::f1_zh_with_keywords(words, text, &gold, keywords),
            (Score::RougeZh, Some(words)) => metrics::rouge_zh(words, text, &gold),
            // Chinese is never judged without its words.
            (Score::F1Zh | Score::KeywordsZh | Score::RougeZh, None) => 0.0,
        }]
    })
}
