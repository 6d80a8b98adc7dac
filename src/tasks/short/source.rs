//! The published sets as they come out of their files.

use std::collections::HashSet;
use std::io::Read as _;

use serde::de::DeserializeOwned;
use serde::Deserialize;

use super::arrow;
use super::python::{capitalize, strip};
use crate::{DataFile, Error, Result};

/// A question, as the templates of lm-evaluation-harness make it of a document.
#[derive(Debug, Clone, PartialEq)]
pub struct Question {
    /// Name of the sample, if the set gives it one.
    pub name: Option<String>,
    /// Text of the question (`doc_to_text`).
    pub text: String,
    /// The choices offered (`doc_to_choice`); none where an answer is written.
    pub choices: Vec<String>,
    /// The right choice.
    pub gold: usize,
    /// Right answers where one is written (`doc_to_target`); the first one is shown in examples.
    pub targets: Vec<String>,
}

impl Question {
    /// The answer as examples show it.
    pub(super) fn answer(&self) -> &str {
        let found = if self.choices.is_empty() { self.targets.first() } else { self.choices.get(self.gold) };
        found.map_or("", String::as_str)
    }
}

/// Reads a file of data: out of the user's folder; tests have their own.
pub type ReadFile<'a> = &'a dyn Fn(&DataFile) -> Result<Vec<u8>>;

/// The questions of a file of Arrow, in its order.
fn rows<T: DeserializeOwned>(
    read: ReadFile<'_>,
    file: &DataFile,
    question: impl Fn(T) -> Result<Question, String>,
) -> Result<Vec<Question>> {
    let expected =
        "expected rows of signed numbers, texts, lists and structs in an Arrow stream, found others";
    let rows = arrow::rows(&read(file)?).ok_or_else(|| Error::file(file.name, expected))?;
    let made = rows.into_iter().enumerate().map(|(i, row)| {
        let doc = serde_json::from_value::<T>(row).map_err(|e| e.to_string());
        doc.and_then(&question).map_err(|e| Error::file(file.name, format!("row {i}: {e}")))
    });
    made.collect()
}

/// The questions of a file of requests, one a line, packed by gzip. `question` gives a key with each; what has
/// the same key is taken once.
fn requests<T: DeserializeOwned>(
    read: ReadFile<'_>,
    file: &DataFile,
    question: impl Fn(T) -> Result<(String, Question), String>,
) -> Result<Vec<Question>> {
    #[derive(Deserialize)]
    struct Request<T> {
        doc: T,
    }
    let fail = |what: String| Error::file(file.name, what);
    let mut text = String::new();
    let packed = read(file)?;
    let mut unpacked = flate2::read::MultiGzDecoder::new(packed.as_slice());
    unpacked.read_to_string(&mut text).map_err(|e| fail(e.to_string()))?;
    let mut seen = HashSet::new();
    let mut out = Vec::new();
    for (i, line) in text.lines().enumerate() {
        let at = |e: String| fail(format!("line {}: {e}", i + 1));
        let request: Request<T> = serde_json::from_str(line).map_err(|e| at(e.to_string()))?;
        let (key, question) = question(request.doc).map_err(at)?;
        if seen.insert(key) {
            out.push(question);
        }
    }
    Ok(out)
}

fn choice(name: Option<String>, text: String, choices: Vec<String>, gold: usize) -> Question {
    Question { name, text, choices, gold, targets: vec![] }
}

fn written(name: Option<String>, text: String, targets: Vec<String>) -> Question {
    Question { name, text, choices: vec![], gold: 0, targets }
}

/// `lm_eval/tasks/mmlu/default/_default_template_yaml`.
pub(super) fn mmlu(read: ReadFile<'_>, file: &DataFile) -> Result<Vec<Question>> {
    #[derive(Deserialize)]
    struct Doc {
        question: String,
        choices: [String; 4],
        answer: usize,
    }
    rows(read, file, |doc: Doc| {
        let [a, b, c, d] = doc.choices;
        let text = format!("{}\nA. {a}\nB. {b}\nC. {c}\nD. {d}\nAnswer:", strip(&doc.question));
        Ok(choice(None, text, ["A", "B", "C", "D"].map(String::from).to_vec(), doc.answer))
    })
}

/// `lm_eval/tasks/hellaswag/hellaswag.yaml` and its `utils.py`.
pub(super) fn hellaswag(read: ReadFile<'_>, file: &DataFile) -> Result<Vec<Question>> {
    #[derive(Deserialize)]
    struct Doc {
        ind: i64,
        activity_label: String,
        ctx_a: String,
        ctx_b: String,
        endings: Vec<String>,
        label: String,
    }
    rows(read, file, |doc: Doc| {
        let gold =
            doc.label.parse().map_err(|_| format!("expected a number as label, found {:?}", doc.label))?;
        let text = format!("{}: {} {}", doc.activity_label, doc.ctx_a, capitalize(&doc.ctx_b));
        let endings: Vec<_> = doc.endings.iter().map(|e| without_wikihow(e)).collect();
        Ok(choice(Some(doc.ind.to_string()), without_wikihow(&text), endings, gold))
    })
}

/// `preprocess` of HellaSwag: what is left of WikiHow's markup is taken out.
pub fn without_wikihow(text: &str) -> String {
    let text = strip(text).replace(" [title]", ". ");
    let mut out = String::new();
    let mut rest = text.as_str();
    // `re.sub("\\[.*?\\]", "", text)`, where the dot is no line feed.
    while let Some(open) = rest.find('[') {
        let (before, bracket) = rest.split_at(open);
        out.push_str(before);
        match bracket.find([']', '\n']) {
            Some(close) if bracket[close..].starts_with(']') => rest = &bracket[close + 1..],
            _ => {
                out.push('[');
                rest = &bracket[1..];
            }
        }
    }
    out.push_str(rest);
    out.replace("  ", " ")
}

/// Validation questions of ARC-Challenge: `lm_eval/tasks/arc/arc_easy.yaml`.
pub(super) fn arc_validation(read: ReadFile<'_>, file: &DataFile) -> Result<Vec<Question>> {
    #[derive(Deserialize)]
    struct Choices {
        text: Vec<String>,
        label: Vec<String>,
    }
    #[derive(Deserialize)]
    struct Doc {
        id: String,
        question: String,
        choices: Choices,
        #[serde(rename = "answerKey")]
        key: String,
    }
    rows(read, file, |doc: Doc| {
        let gold = doc.choices.label.iter().position(|l| *l == doc.key);
        let gold =
            gold.ok_or_else(|| format!("expected one of {:?}, found {:?}", doc.choices.label, doc.key))?;
        Ok(choice(Some(doc.id), format!("Question: {}\nAnswer:", doc.question), doc.choices.text, gold))
    })
}

/// Test questions of ARC-Challenge, which requests with the same layout hold.
pub(super) fn arc_test(read: ReadFile<'_>, file: &DataFile) -> Result<Vec<Question>> {
    #[derive(Deserialize)]
    struct Doc {
        id: String,
        query: String,
        choices: Vec<String>,
        gold: usize,
    }
    requests(read, file, |doc: Doc| {
        Ok((doc.id.clone(), choice(Some(doc.id), doc.query, doc.choices, doc.gold)))
    })
}

/// `lm_eval/tasks/piqa/piqa.yaml`.
pub(super) fn piqa(read: ReadFile<'_>, file: &DataFile) -> Result<Vec<Question>> {
    #[derive(Deserialize)]
    struct Doc {
        goal: String,
        sol1: String,
        sol2: String,
        label: usize,
    }
    rows(read, file, |doc: Doc| {
        let text = format!("Question: {}\nAnswer:", doc.goal);
        Ok(choice(None, text, vec![doc.sol1, doc.sol2], doc.label))
    })
}

/// `lm_eval/tasks/triviaqa/default.yaml`.
pub(super) fn triviaqa(read: ReadFile<'_>, file: &DataFile) -> Result<Vec<Question>> {
    #[derive(Deserialize)]
    struct Right {
        aliases: Vec<String>,
    }
    #[derive(Deserialize)]
    struct Doc {
        question: String,
        question_id: String,
        answer: Right,
    }
    rows(read, file, |doc: Doc| {
        let text = format!("Question: {}?\nAnswer:", doc.question);
        Ok(written(Some(doc.question_id), text, doc.answer.aliases))
    })
}

/// `lm_eval/tasks/nq_open/nq_open.yaml`.
pub(super) fn nq_open(read: ReadFile<'_>, file: &DataFile) -> Result<Vec<Question>> {
    #[derive(Deserialize)]
    struct Doc {
        question: String,
        answer: Vec<String>,
    }
    rows(read, file, |doc: Doc| Ok(written(None, format!("Q: {}?\nA:", doc.question), doc.answer)))
}

/// A question of GSM8K, and its worked answer, which ends in `#### ` and the number.
#[derive(Deserialize)]
struct Problem {
    id: u64,
    question: String,
    answer: String,
}

/// `lm_eval/tasks/gsm8k/gsm8k.yaml`.
pub(super) fn gsm8k(read: ReadFile<'_>, file: &DataFile) -> Result<Vec<Question>> {
    requests(read, file, |doc: Problem| {
        let text = format!("Question: {}\nAnswer:", doc.question);
        Ok((doc.id.to_string(), written(None, text, vec![doc.answer])))
    })
}

/// `lm_eval/tasks/gsm8k/gsm8k-cot.yaml`.
pub(super) fn gsm8k_cot(read: ReadFile<'_>, file: &DataFile) -> Result<Vec<Question>> {
    requests(read, file, |doc: Problem| {
        let number = doc.answer.rsplit("####").next().unwrap_or_default();
        let text = format!("Q: {}\nA:", doc.question);
        Ok((doc.id.to_string(), written(None, text, vec![strip(number).to_owned()])))
    })
}

/// The worked examples of the chain-of-thought paper (Wei et al., 2022), as `lm_eval/tasks/gsm8k/gsm8k-cot.yaml` has
/// them.
pub(super) fn chain_of_thought() -> Vec<Question> {
    let examples = include_str!("chain_of_thought.txt").trim_end().split("\n\n");
    let question =
        |(text, answer): (&str, &str)| written(None, format!("{text}\nA:"), vec![answer.to_owned()]);
    examples.filter_map(|example| example.split_once("\nA: ")).map(question).collect()
}
