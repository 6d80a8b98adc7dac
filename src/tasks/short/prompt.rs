//! Prompts as `ConfigurableTask.fewshot_context` of lm-evaluation-harness 0.4.13 builds them, and its samplers.

use std::fmt::Write;

use super::source::Question;
use crate::draws::Random;
use crate::{Error, Result};

/// Questions with a description and examples of their own: a task, or one of MMLU's subjects.
pub struct Part {
    /// The subject, for sets that have several.
    pub subject: Option<&'static str>,
    /// Text before the examples.
    pub(super) description: String,
    pub questions: Vec<Question>,
    pub(super) pool: Pool,
}

/// Where examples come from.
pub(super) enum Pool {
    /// Drawn from the questions themselves, but for the one that is asked (`ContextSampler`).
    Asked,
    /// Drawn from other questions (`ContextSampler`).
    Others(Vec<Question>),
    /// The first ones of a list (`FirstNSampler`).
    First(Vec<Question>),
}

/// The examples for a question, which is one of the part. One generator draws for all questions of a task, so examples
/// depend on the order of questions.
pub(super) fn examples<'a>(
    random: &mut Random,
    part: &'a Part,
    asked: usize,
    n: usize,
) -> Result<Vec<&'a Question>> {
    let enough = |most: usize| match most < n {
        true => Err(Error::invalid(format!("shots: expected at most {most}, found {n}"))),
        false => Ok(()),
    };
    match &part.pool {
        _ if n == 0 => Ok(vec![]),
        Pool::First(pool) => enough(pool.len()).map(|()| pool[..n].iter().collect()),
        Pool::Others(pool) => {
            enough(pool.len())?;
            Ok(random.sample_range(pool.len(), n).into_iter().map(|i| &pool[i]).collect())
        }
        Pool::Asked => {
            let (pool, asked) = (&part.questions, &part.questions[asked]);
            enough(pool.len() - 1)?;
            let drawn = random.sample_range(pool.len(), n + 1).into_iter().map(|i| &pool[i]);
            let mut examples: Vec<_> = drawn.filter(|&q| q != asked).take(n).collect();
            if examples.len() < n {
                // The question is in the set more than once: drawn again from what is not it.
                let others: Vec<_> = pool.iter().filter(|&q| q != asked).collect();
                enough(others.len())?;
                examples = random.sample_range(others.len(), n).into_iter().map(|i| others[i]).collect();
            }
            Ok(examples)
        }
    }
}

/// The description, the examples with their answers, the question.
pub(super) fn context(part: &Part, examples: &[&Question], asked: &Question, between: &str) -> String {
    let mut out = part.description.clone();
    for example in examples {
        let _ = write!(out, "{} {}{between}", example.text, example.answer());
    }
    out.push_str(&asked.text);
    out
}
