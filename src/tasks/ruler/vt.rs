//! Variable tracking: `data/synthetic/variable_tracking.py`. One chain of five variables, assigned to each other,
//! in a haystack of noise; an example of the same kind, with its answer, comes first.

use std::collections::HashSet;

use super::niah::NOISE;
use super::{fit, info, prompt, seed, string_match_all, Draft, Generator, Synthetic, Version};
use crate::draws::{Random, RandomState};
use crate::text::is_python_space;
use crate::{Error, Result, Setup};

/// Tokens of an answer.
const ANSWER: usize = 30;
/// Assignments from a variable to the next one.
const HOPS: usize = 4;
/// Lines of noise by which a sample's size is sought.
const STEP: usize = 10;
/// Tokens of the example, without its answer.
const EXAMPLE: usize = 500;
/// Lines of noise by which the example's size is sought.
const EXAMPLE_STEP: usize = 5;
/// Draws for a sample of 2024 before its haystack gets smaller.
const TRIES: usize = 100;

pub(super) static VT: Synthetic = Synthetic {
    info: info("vt", "All variables that have a value, through a chain of assignments.", &[]),
    metric: string_match_all,
    answer: ANSWER,
    beyond_2024: 0,
    generator,
};

/// The value in the example of the current generators, before each sample draws one.
const EXAMPLE_VALUE: &str = "12345";

/// The task's text, in three parts: before the haystack, after it, and after the value.
const TEXT: [&str; 3] = [
    "Memorize and track the chain(s) of variable assignment hidden in the following text.\n\n",
    "\nQuestion: Find all variables that are assigned the value ",
    " in the text above.",
];

/// A text with a chain in it.
struct Puzzle {
    text: String,
    answer_prefix: String,
    /// The variables, in their order.
    names: Vec<String>,
    value: String,
}

struct Example {
    text: String,
    tokens: usize,
}

/// The draws of one run.
struct Tracking<'a> {
    setup: &'a Setup<'a>,
    version: Version,
    random: Random,
    numbers: RandomState,
    letters: Vec<char>,
}

fn generator<'a>(setup: &'a Setup<'a>, version: Version, length: usize) -> Result<Generator<'a>> {
    let seed = seed(setup)?;
    let mut tracking = Tracking {
        setup,
        version,
        random: Random::new(seed.into()),
        numbers: RandomState::new(seed),
        letters: ('A'..='Z').collect(),
    };
    let example = tracking.example()?;
    let step = if version == Version::Current && length < 4096 { 5 } else { STEP };
    let size = tracking.size(step, length, example.tokens + ANSWER, false)?;
    match version {
        Version::V2024 => Ok(Box::new(move |_| tracking.sample_2024(size, length, &example))),
        Version::Current => Ok(Box::new(move |_| {
            fit::sample(setup, size, step, length, |size| {
                let Some(puzzle) = tracking.puzzle(size, false)? else { return Ok((None, usize::MAX)) };
                let example = tracking.renamed(&example.text);
                let draft = tracking.draft(puzzle, &format!("{example}\n"))?;
                let tokens = tracking.count(&draft.prompt)? + ANSWER;
                Ok((Some(draft), tokens))
            })?
            .ok_or_else(failed)
        })),
    }
}

impl Tracking<'_> {
    fn count(&self, text: &str) -> Result<usize> {
        self.setup.encoder.count(text)
    }

    /// The example: names of three letters, and little noise.
    fn example(&mut self) -> Result<Example> {
        let is_2024 = self.version == Version::V2024;
        let answer = if is_2024 { ANSWER } else { 0 };
        let found = self.size(EXAMPLE_STEP, EXAMPLE, answer, true).and_then(|size| {
            // In 2024 the size never changes: each try is another draw of the same length or nearly so.
            let step = if is_2024 { size } else { EXAMPLE_STEP };
            fit::sample(self.setup, size, step, EXAMPLE, |size| {
                let Some(puzzle) = self.puzzle(size, true)? else { return Ok((None, usize::MAX)) };
                let tokens = self.count(&self.prompt(&puzzle, "", true)?)? + answer;
                Ok((Some(puzzle), tokens))
            })
        });
        let puzzle = found.and_then(|puzzle| puzzle.ok_or_else(failed)).map_err(|e| match e {
            Error::Invalid(what) => Error::invalid(format!("vt: its example of {EXAMPLE} tokens: {what}")),
            e => e,
        })?;
        let end = if is_2024 { "\n\n" } else { "\n" };
        let names = puzzle.names.join(" ");
        let text = format!("{}{} {names}{end}", puzzle.text, puzzle.answer_prefix);
        let tokens = self.count(&text)?;
        Ok(Example { text, tokens })
    }

    /// The number of lines of noise. `others` are the tokens besides the puzzle.
    fn size(&mut self, step: usize, limit: usize, others: usize, is_example: bool) -> Result<usize> {
        match self.version {
            Version::V2024 => fit::by_steps(self.setup, step, limit, usize::MAX, false, |size| {
                Ok(self.tokens(size, is_example)? + others)
            }),
            Version::Current => {
                let first = self.tokens(step, is_example)?;
                fit::largest(self.setup, step, limit, first, |size| {
                    Ok(self.tokens(size, is_example)? + others)
                })
            }
        }
    }

    /// Tokens of a puzzle as a prompt, while the size is sought: the generators end where one fails, here another is drawn.
    fn tokens(&mut self, size: usize, is_example: bool) -> Result<usize> {
        for _ in 0..TRIES {
            let Some(puzzle) = self.puzzle(size, is_example)? else { continue };
            let mut text = self.prompt(&puzzle, "", is_example)?;
            if self.version == Version::V2024 {
                // The answer is counted as Python prints a list.
                text += &format!(" ['{}']", puzzle.names.join("', '"));
            }
            return self.count(&text);
        }
        Err(failed())
    }

    /// A sample of 2024. Its generator draws again and again with the same noise; where that does not help, the
    /// noise gets less here.
    fn sample_2024(&mut self, size: usize, length: usize, example: &Example) -> Result<Draft> {
        let mut size = size;
        let mut shortest = usize::MAX;
        loop {
            for _ in 0..TRIES {
                self.setup.check_stopped()?;
                let Some(puzzle) = self.puzzle(size, false)? else { continue };
                let text = self.prompt(&puzzle, "", false)?;
                let tokens = self.count(&text)? + ANSWER + example.tokens;
                if tokens <= length {
                    let example = self.renamed(&example.text);
                    let draft = self.draft(puzzle, &format!(" {example}\n\n"))?;
                    // The generator does not look again: new names may be longer than the old ones.
                    if self.count(&draft.prompt)? + ANSWER <= length {
                        return Ok(draft);
                    }
                }
                shortest = shortest.min(tokens);
            }
            if size <= STEP {
                return Err(fit::too_short(shortest, length));
            }
            size -= STEP;
        }
    }

    /// A puzzle after an example.
    fn draft(&self, puzzle: Puzzle, example: &str) -> Result<Draft> {
        let prompt = self.prompt(&puzzle, example, false)?;
        Ok(Draft { prompt, references: puzzle.names, tags: vec![("value", puzzle.value)] })
    }

    /// The prompt of a puzzle; examples stand in no chat template.
    fn prompt(&self, puzzle: &Puzzle, example: &str, is_example: bool) -> Result<String> {
        if is_example {
            return Ok(format!("{}{}", puzzle.text, puzzle.answer_prefix));
        }
        prompt(self.setup, &format!("{example}{}", puzzle.text), &puzzle.answer_prefix)
    }

    /// The example with new names for the words of its answer, and in the current generators a new value.
    fn renamed(&mut self, example: &str) -> String {
        let mut text = example.to_owned();
        let words: Vec<&str> = example.split_whitespace().collect();
        for &name in &words[words.len().saturating_sub(HOPS + 1)..] {
            let new = self.name(name.len());
            text = text.replace(name, &new);
        }
        if self.version == Version::Current {
            let value = self.numbers.randint(10_000, 99_999);
            text = text.replace(EXAMPLE_VALUE, &value.to_string());
        }
        text
    }

    /// A name of random capitals.
    fn name(&mut self, length: usize) -> String {
        self.random.choices(&self.letters, length).into_iter().collect()
    }

    /// The names and the value of a new chain; `None` where two of its names are one, which fails in the generators.
    fn chain(&mut self, is_example: bool) -> Option<(Vec<String>, String)> {
        let length = if is_example { 3 } else { 5 };
        let names: Vec<String> = (0..=HOPS).map(|_| self.name(length)).collect();
        let mut different: HashSet<String> = names.iter().cloned().collect();
        let failed = different.len() < names.len();
        while different.len() <= HOPS {
            different.insert(self.name(length));
        }
        let mut value = || match self.version {
            Version::Current if is_example => EXAMPLE_VALUE.to_owned(),
            _ => self.numbers.randint(10_000, 99_999).to_string(),
        };
        let first = value();
        if failed {
            // The additional names are taken for a second chain, which has its value before it fails.
            value();
            return None;
        }
        Some((names, first))
    }

    /// A puzzle with `size` lines of noise; `None` where the generators fail.
    fn puzzle(&mut self, size: usize, is_example: bool) -> Result<Option<Puzzle>> {
        let Some((names, value)) = self.chain(is_example) else { return Ok(None) };
        let mut assignments = vec![format!("VAR {} = {value}", names[0])];
        for pair in names.windows(2) {
            assignments.push(format!("VAR {} = VAR {} ", pair[1], pair[0]));
        }
        let mut lines = match self.version {
            Version::V2024 if size > assignments.len() => vec![format!("{NOISE}\n"); size],
            // Little noise is cut into its sentences.
            Version::V2024 => (0..size).flat_map(|_| sentences(&format!("{NOISE}\n"))).collect(),
            // A step down from little noise leaves too few lines for the chain, with which the generators try for ever.
            Version::Current => vec![NOISE.to_owned(); size.max(assignments.len())],
        };
        if lines.len() < assignments.len() {
            return Ok(None);
        }
        let mut places = self.random.sample_range(lines.len(), assignments.len());
        places.sort_unstable();
        for (i, (place, assignment)) in places.into_iter().zip(assignments).enumerate() {
            lines.insert(place + i, assignment);
        }
        let (context, assigned) = match self.version {
            // Their spelling.
            Version::V2024 => (lines.join(" "), "assgined"),
            Version::Current => (lines.join("\n"), "assigned"),
        };
        let context = context.replace(". \n", ".\n");
        let [head, question, tail] = TEXT;
        let text = if is_example && self.version == Version::V2024 && self.is_framed()? {
            // The model's template is cut off, and with it go all newlines of the text around the haystack.
            format!("{} {context} {} {value} {}", head.trim_end(), question.trim(), tail.trim_start())
        } else {
            format!("{head}{context}{question}{value}{tail}")
        };
        let answer_prefix = format!(
            " Answer: According to the chain(s) of variable assignment in the text above, {} variables are {assigned} the value {value}, they are: ",
            HOPS + 1
        );
        Ok(Some(Puzzle { text, answer_prefix, names, value }))
    }

    /// Returns true if the model's chat template adds anything.
    fn is_framed(&self) -> Result<bool> {
        let text = TEXT.concat();
        Ok(self.setup.encoder.frame(&text)? != text)
    }
}

/// No try made a puzzle.
fn failed() -> Error {
    Error::invalid(
        "expected a chain of different variables in the haystack, found none: another length or seed has one",
    )
}

/// A text cut after its full stops.
fn sentences(text: &str) -> Vec<String> {
    let end = |part: &str| if part.trim_matches(is_python_space).is_empty() { "" } else { "." };
    text.split('.').map(|part| format!("{part}{}", end(part))).collect()
}
