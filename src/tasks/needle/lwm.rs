//! LWM's needle: a city and its number, new in each sample.
//!
//! The published code inserts in tokens of GPT-4 and pads its batches by 1,024 tokens for the answer; here all is
//! counted in the model's tokens, and the answer gets what the length leaves.

use super::haystack::{documents, joined, period, Haystack};
use super::{depths, prompt, ESSAYS, HAYSTACK};
use crate::draws::Random;
use crate::{Answer, Ask, Encoder, Error, Info, Opt, Result, Sample, Samples, Setup, Task};

static DEPTHS: Opt = depths("20");

static ROUNDS: Opt =
    Opt { name: "rounds", values: &[], default: "3", about: "haystacks, each of them at all depths" };

static INFO: Info = Info {
    name: "needle_lwm",
    about: "The seven-digit number of a city hidden in books.",
    source: "LargeWorldModel/LWM at f45d2b7, scripts/eval_needle.py and run_eval_needle.sh, seed 1234",
    metrics: &["accuracy"],
    options: &[&DEPTHS, &ROUNDS, &HAYSTACK],
    files: &[&ESSAYS],
    groups: &["depth"],
    ..Info::OF_LENGTH
};

/// The published prompt, and the user's part of it.
const PROMPTS: [&str; 2] = [
    "You are a helpful assistant. USER: {context} What is the special magic {city} number? Don't give information \
     outside the document or repeat your findings. Keep your response short and direct. ASSISTANT: ",
    "{context} What is the special magic {city} number? Don't give information outside the document or repeat \
     your findings. Keep your response short and direct.",
];

const SEED: u64 = 1234;
/// Tokens for a sentence with the number.
const NEEDED_TOKENS: usize = 24;
/// Tokens that the published code generates, where the length leaves room.
const ANSWER_TOKENS: usize = 1024;

/// `RANDOM_NEEDLE_CITIES`, repetitions included.
#[rustfmt::skip]
const CITIES: [&str; 100] = [
    "Chicago", "Yangon", "Antananarivo", "Colombo", "Almaty", "Sydney", "Chicago", "Mexico City", "Seattle", "Lagos",
    "Amsterdam", "Belgrade", "Cairo", "Baghdad", "Damascus", "Kigali", "Dakar", "Dakar", "Sofia", "Kigali",
    "Victoria", "Tashkent", "Mumbai", "Barcelona", "Almaty", "Amman", "Toronto", "Bratislava", "Johannesburg",
    "Thimphu", "Bangkok", "Santiago", "Cairo", "San Francisco", "Lagos", "Amsterdam", "Paris", "Rabat", "Santiago",
    "Copenhagen", "Madrid", "Kigali", "Ho Chi Minh City", "Sarajevo", "Delhi", "Istanbul", "Ho Chi Minh City",
    "Khartoum", "Helsinki", "Doha", "Istanbul", "Kuala Lumpur", "Budapest", "Shanghai", "Moscow", "Los Angeles",
    "Oslo", "Johannesburg", "Berlin", "Bangalore", "Tokyo", "Melbourne", "Barcelona", "Chicago", "Port Louis",
    "Lisbon", "Nairobi", "Kampala", "Lima", "Maputo", "Vancouver", "Dubai", "Khartoum", "Jakarta", "Madrid",
    "Yerevan", "Beirut", "Athens", "Chicago", "Paris", "Bucharest", "Copenhagen", "Brussels", "Damascus", "Seattle",
    "Los Angeles", "Yerevan", "Victoria", "Tunis", "Astana", "Seoul", "Buenos Aires", "Bangkok", "Colombo",
    "Brussels", "Khartoum", "Doha", "San Francisco", "Vienna", "Jakarta",
];

pub(super) struct NeedleLwm;

impl Task for NeedleLwm {
    fn info(&self) -> &Info {
        &INFO
    }

    fn samples<'a>(&'a self, setup: &'a Setup<'a>) -> Result<Samples<'a>> {
        let length = setup.length()?;
        let depths = setup.depths(&DEPTHS)?;
        let rounds = setup.number(&ROUNDS, 1..=1000)?;
        // The published loop draws depth by depth; samples come haystack by haystack, the same ones.
        let mut random = Random::new(setup.seed.unwrap_or(SEED));
        let mut drawn = vec![Vec::new(); rounds];
        for _ in &depths {
            for round in &mut drawn {
                round.push((*random.choice(&CITIES), random.randint(1_000_000, 9_999_999)));
            }
        }
        let mut books = Books { documents: documents(setup, length, rounds)?, rounds, next: 0 };
        let is_period = period(setup.encoder, false)?;
        let mut current: Option<(usize, Haystack)> = None;
        // A few samples need one haystack only.
        let one = setup.samples.is_some_and(|n| n <= depths.len());
        let taken = setup.spread(depths.len() * if one { 1 } else { rounds });
        Ok(Samples::new(setup, taken.len(), move |i| {
            let (round, row) = (taken[i] / depths.len(), taken[i] % depths.len());
            let haystack = match &current {
                Some((of, haystack)) if *of == round => haystack,
                _ => {
                    let text = books.round(setup.encoder, round, length)?;
                    &current.insert((round, Haystack::new(setup.encoder, &text, length)?)).1
                }
            };
            let (depth, (city, number)) = (depths[row], drawn[round][row]);
            let needle = format!("\nThe special magic {city} number is: {number}\n");
            let context = haystack.with_needle(setup.encoder, &needle, depth, &is_period)?;
            let values = [("{context}", context.as_str()), ("{city}", city)];
            let (prompt, max_tokens) = prompt(setup, PROMPTS, &values, NEEDED_TOKENS, ANSWER_TOKENS)?;
            let number = number.to_string();
            Ok(Sample {
                id: format!("round-{round}-depth-{depth:03}"),
                prompt,
                ask: Ask::Generate { max_tokens, min_tokens: 0, stop: Vec::new() },
                expected: Answer::Text(number.clone()),
                tags: vec![("depth", depth.to_string()), ("round", round.to_string()), ("city", city.into())],
                judge: Box::new(move |answer| vec![f64::from(u8::from(answer.text().contains(&number)))]),
            })
        }))
    }
}

/// Books, of which each round reads on where the one before stopped.
struct Books {
    documents: Vec<String>,
    rounds: usize,
    next: usize,
}

impl Books {
    /// The haystack of a round, whole books until they have `length` tokens (`read_context_files`).
    ///
    /// Where the published code runs out of books and fails, this begins with the first one again; a single text
    /// is begun at another line in each round.
    fn round(&mut self, encoder: &dyn Encoder, round: usize, length: usize) -> Result<String> {
        let mut text = String::new();
        let mut n = 0;
        if let [only] = &self.documents[..] {
            let from = only.len() / self.rounds * round;
            let line_end = only.as_bytes()[from..].iter().position(|&byte| byte == b'\n');
            let start = line_end.filter(|_| round > 0).map_or(0, |at| from + at + 1);
            return joined(encoder, &[[&only[start..], &only[..start]].concat()], length);
        }
        while n < length {
            let document = &self.documents[self.next % self.documents.len()];
            self.next += 1;
            let found = encoder.count(document)?;
            if found == 0 && self.next > self.documents.len() && n == 0 {
                return Err(Error::invalid("expected a haystack with text, found one without tokens"));
            }
            n += found;
            text.push_str(document);
        }
        Ok(text)
    }
}
