//! InfiniteBench: books and screenplays of more than a hundred thousand words, and what is asked of them.
//!
//! Zhang et al. 2024; OpenBMB/InfiniteBench at 88b3daa. These are the five tasks on natural text that "Untie the
//! Knots" reports: En.Sum, En.QA, En.MC, En.Dia and Zh.QA. Prompts are those for base models (`src/prompt.py`,
//! the templates of yarn-mistral), truncation is that of `src/eval_yarn_mistral.py`: where a prompt has more tokens
//! than the length, the first and the last half of them are kept. The answer comes on top, so that the context
//! has to be longer than the length ([`Samples::beyond`]). Yarn-mistral's code also turns a prompt that fits into
//! tokens and back, which is left out.
//!
//! Files: `infinitebench/NAME.jsonl` in the folder of data, as the data set `xinrongzhang2022/InfiniteBench` has them:
//! one JSON object a line with `id`, `context`, `input`, `answer` (texts) and `options` (texts).

use serde::Deserialize;

use crate::data::{check_answer, Records};
use crate::metrics::infinitebench as metrics;
use crate::{text, Answer, Ask, DataFile, Error, Info, Result, Sample, Samples, Setup, Task};

pub struct InfiniteBench {
    info: Info,
    /// The prompt, with the fields `{context}`, `{question}` and `{OPTION_A}` to `{OPTION_D}`.
    prompt: &'static str,
    /// Tokens of the answer, at most.
    max_tokens: usize,
    pub score: fn(&str, &[String]) -> f64,
    /// True if the answer is one of four options.
    is_choice: bool,
}

/// A record of the published files.
#[derive(Debug, Deserialize)]
pub struct Record {
    context: String,
    input: String,
    answer: Answers,
    #[serde(default)]
    options: Vec<String>,
}

/// The right answers: a list, even of one. For En.MC, the official code also accepts a string.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Answers {
    One(String),
    Many(Vec<String>),
}

/// Tasks: each one's static, its name and that of its file; score, its name, budget of new tokens, and whether the answer
/// is an option; what it asks; prompt.
macro_rules! tasks {
    ($($id:ident $name:literal $file:literal, $score:ident $metric:literal $max_tokens:literal $is_choice:literal,
        $about:literal $prompt:literal;)*) => {
        $(pub static $id: InfiniteBench = InfiniteBench {
            info: Info {
                name: $name,
                about: $about,
                source: "InfiniteBench (Zhang et al. 2024), OpenBMB/InfiniteBench at 88b3daa, src/prompt.py (yarn-mistral) \
                         and src/compute_scores.py",
                metrics: &[$metric],
                files: &[&DataFile {
                    name: concat!("infinitebench/", $file, ".jsonl"),
                    sha256: None,
                    from: concat!("it is part of the dataset xinrongzhang2022/InfiniteBench, ", $file, ".jsonl"),
                }],
                ..Info::OF_LENGTH
            },
            prompt: $prompt,
            max_tokens: $max_tokens,
            score: metrics::$score,
            is_choice: $is_choice,
        };)*

        pub(crate) static TASKS: &[&dyn Task] = &[$(&$id),*];

        pub(crate) const NAMES: &[&str] = &[$($name),*];
    };
}

tasks! {
    EN_SUM "infinitebench_en_sum" "longbook_sum_eng", rouge_lsum "rouge_lsum" 1200 false,
        "The summary of a book."
        "Summarize the book below.\n\n{context}\n\nSummary:";
    EN_QA "infinitebench_en_qa" "longbook_qa_eng", f1 "f1" 40 false,
        "A question on a book, answered in a few words."
        "Read the book and answer the question. Be very concise in your answer.\n\n{context}\n\n\
         Question: {question}\nAnswer:";
    EN_MC "infinitebench_en_mc" "longbook_choice_eng", choice "accuracy" 40 true,
        "A question on a book with four options."
        "Read the book and answer the question.\n\n{context}\n\n\
         Question: {question}\nA. {OPTION_A}\nB. {OPTION_B}\nC. {OPTION_C}\nD. {OPTION_D}\n\n\
         The letter of the correct answer is";
    EN_DIA "infinitebench_en_dia" "longdialogue_qa_eng", speaker "accuracy" 40 false,
        "The speaker of a screenplay whose name is masked in one place."
        "Below is a dialogue script where one random occurrence of a character name is replaced with \
         \"$$MASK$$\", and you should try to guess who that character is.\n\n{context}\n\n\
         The name that has been replaced with $$MASK$$ is likely";
    ZH_QA "infinitebench_zh_qa" "longbook_qa_chn", f1_zh "f1" 40 false,
        "A question on a book in Chinese."
        "阅读以下书籍然后回答问题。\n\n{context}\n\n问题：{question}\n答案：";
}

/// All but the one in Chinese.
pub(crate) const ENGLISH: &[&str] = NAMES.split_at(4).0;

impl Task for InfiniteBench {
    fn info(&self) -> &Info {
        &self.info
    }

    fn samples<'a>(&'a self, setup: &'a Setup<'a>) -> Result<Samples<'a>> {
        let length = setup.length()?;
        if length < 2 {
            return Err(Error::invalid(format!(
                "length {length}: expected at least 2 tokens, one for each half of a prompt"
            )));
        }
        // The protocol has no chat templates; the tokens of a template come on top.
        let beyond = self.max_tokens + text::SEAM + setup.encoder.count(&setup.encoder.frame("")?)?;
        let file = self.info.files[0];
        let records: Records<Record> =
            Records::open(&file.path(setup.data)?, &setup.control, |r| self.golds(r).map(|_| ()))?;
        let n = setup.samples_of(records.len());
        let make = move |i: usize| {
            let record = records.get(i)?;
            let golds = self.golds(&record).map_err(|what| Error::file(setup.data.join(file.name), what))?;
            let prompt = text::cut_middle(setup.encoder, self.prompt(&record), length, true)?;
            let score = self.score;
            // The letter of an option; elsewhere the first answer, which is the one that En.Dia looks for.
            let expected = if self.is_choice { golds.last() } else { golds.first() };
            Ok(Sample {
                id: i.to_string(),
                prompt: setup.encoder.frame(&prompt)?,
                ask: Ask::Generate { max_tokens: self.max_tokens, min_tokens: 0, stop: Vec::new() },
                expected: Answer::Text(expected.cloned().unwrap_or_default()),
                tags: Vec::new(),
                judge: Box::new(move |answer| vec![score(answer.text(), &golds)]),
            })
        };
        Ok(Samples::new(setup, n, make).with_beyond(beyond))
    }
}

impl InfiniteBench {
    /// The right answers; for a choice the text of the option and its letter. `get_answer` of `eval_utils.py`.
    pub fn golds(&self, record: &Record) -> Result<Vec<String>, String> {
        let answers = match &record.answer {
            Answers::One(answer) => std::slice::from_ref(answer),
            Answers::Many(answers) => answers,
        };
        answers.iter().try_for_each(|answer| check_answer("answer", answer))?;
        if !self.is_choice {
            return match answers {
                [] => Err("expected at least one `answer`, found none".to_owned()),
                _ => Ok(answers.to_vec()),
            };
        }
        if record.options.len() != 4 {
            return Err(format!("expected four `options`, found {}", record.options.len()));
        }
        match answers {
            [text] => {
                let letter =
                    record.options.iter().zip(["A", "B", "C", "D"]).find(|(option, _)| *option == text);
                let (_, letter) = letter.ok_or_else(|| {
                    format!("expected an `answer` that is one of the options, found {text:?}")
                })?;
                Ok(vec![text.clone(), letter.to_owned()])
            }
            [_, letter] if matches!(letter.as_str(), "A" | "B" | "C" | "D") => Ok(answers.to_vec()),
            _ => Err(format!("expected an option as `answer`, or it and its letter, found {answers:?}")),
        }
    }

    /// The prompt before truncation: `create_prompt` of `eval_utils.py`.
    fn prompt(&self, record: &Record) -> String {
        let option = |i: usize| record.options.get(i).map_or("", String::as_str);
        let fields = [
            ("{context}", record.context.as_str()),
            ("{question}", record.input.as_str()),
            ("{OPTION_A}", option(0)),
            ("{OPTION_B}", option(1)),
            ("{OPTION_C}", option(2)),
            ("{OPTION_D}", option(3)),
        ];
        text::fill(self.prompt, &fields)
    }
}
