//! Needles in a haystack: `data/synthetic/niah.py`.

use serde::Deserialize;

use super::words::Pairs;
use super::{fit, info, prompt, seed, string_match_all, word_list, Draft, Generator, Synthetic, Version};
use super::{ADJECTIVES, ESSAYS, NOUNS, RULER};
use crate::draws::Random;
use crate::task::{evenly, percents};
use crate::text::{is_python_space, Punkt};
use crate::{DataFile, Error, Info, Opt, Result, Setup};

/// Tokens of an answer.
pub const ANSWER: usize = 128;

/// One line of the haystack of noise.
pub(super) const NOISE: &str =
    "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again.";

/// Number of depths of needles, from 0 to 100 per cent.
const DEPTHS: u32 = 40;

static DEPTH: Opt = Opt {
    name: "depth",
    values: &[],
    default: "random",
    about: "where the needles stand, all at one place: a depth in percent such as 50, or several such as 0/50/100, a sample each \
            in turn; random: where the published generators put them",
};

static OPTIONS: &[&Opt] = &[&RULER, &DEPTH];

/// The depths in percent that samples have in turn; none where needles stand where the generators put them.
fn depths(setup: &Setup<'_>) -> Result<Vec<u32>> {
    let value = setup.option(&DEPTH)?;
    if value == DEPTH.default {
        return Ok(Vec::new());
    }
    percents(value).ok_or_else(|| {
        let form = "`random`, a depth in percent such as 50, or several such as 0/50/100";
        Error::invalid(format!("{}: expected {form}, found {value:?}", DEPTH.name))
    })
}

/// Content of the haystack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Haystack {
    Noise,
    Essays,
    /// Needles that nobody asks for.
    Needles,
}

/// Kind of the keys or of the values.
#[derive(Debug, Clone, Copy)]
enum Thing {
    Words,
    Numbers,
    Uuids,
}

impl Thing {
    /// Several of them, as the prompts name them.
    fn plural(self) -> &'static str {
        match self {
            Thing::Words => "words",
            Thing::Numbers => "numbers",
            Thing::Uuids => "uuids",
        }
    }
}

/// Parameters of one of the eight tasks (`synthetic.yaml`).
struct Shape {
    haystack: Haystack,
    key: Thing,
    value: Thing,
    /// Number of keys, of values a key, and of keys asked for.
    keys: usize,
    values: usize,
    queries: usize,
}

static FILES: &[&DataFile] = &[&ADJECTIVES, &NOUNS];
static FILES_WITH_ESSAYS: &[&DataFile] = &[&ADJECTIVES, &NOUNS, &ESSAYS, Punkt::ENGLISH];

/// Tasks: each is `SINGLE` except for the parameters in braces.
macro_rules! tasks {
    ($($id:ident $name:literal $about:literal $files:ident { $($field:ident: $value:expr),* };)*) => { $(
        pub(super) static $id: Synthetic = Synthetic {
            info: Info { options: OPTIONS, groups: &["depth"], ..info($name, $about, $files) },
            metric: string_match_all,
            answer: ANSWER,
            beyond_2024: 0,
            generator: |setup, version, length| {
                generator(Shape { $($field: $value,)* ..SINGLE }, setup, version, length)
            },
        };
    )* };
}

tasks! {
    SINGLE_1 "niah_single_1" "A number hidden in repeated sentences."
        FILES { haystack: Haystack::Noise };
    SINGLE_2 "niah_single_2" "A number hidden in essays."
        FILES_WITH_ESSAYS {};
    SINGLE_3 "niah_single_3" "A UUID hidden in essays."
        FILES_WITH_ESSAYS { value: Thing::Uuids };
    MULTIKEY_1 "niah_multikey_1" "The number of one of four keys hidden in essays."
        FILES_WITH_ESSAYS { keys: 4 };
    MULTIKEY_2 "niah_multikey_2" "The number of a key in a text of only keys and numbers."
        FILES { haystack: Haystack::Needles };
    MULTIKEY_3 "niah_multikey_3" "The UUID of a UUID key in a text of only UUID pairs."
        FILES { haystack: Haystack::Needles, key: Thing::Uuids, value: Thing::Uuids };
    MULTIVALUE "niah_multivalue" "The four numbers of one key hidden in essays."
        FILES_WITH_ESSAYS { values: 4 };
    MULTIQUERY "niah_multiquery" "The numbers of four keys hidden in essays."
        FILES_WITH_ESSAYS { keys: 4, queries: 4 };
}

const SINGLE: Shape = Shape {
    haystack: Haystack::Essays,
    key: Thing::Words,
    value: Thing::Numbers,
    keys: 1,
    values: 1,
    queries: 1,
};

/// The essays as words, and the sentences of their first ones.
struct Essays {
    words: Vec<String>,
    punkt: Punkt,
    /// A number of words and their sentences: samples of a length share it.
    last: Option<(usize, Vec<String>)>,
}

#[derive(Deserialize)]
struct EssaysFile {
    text: String,
}

impl Essays {
    fn read(setup: &Setup<'_>) -> Result<Essays> {
        let damaged = |e: String| Error::file(setup.data.join(ESSAYS.name), e);
        let file: EssaysFile =
            serde_json::from_slice(&ESSAYS.read(setup.data)?).map_err(|e| damaged(e.to_string()))?;
        Ok(Essays { words: split_words(&file.text), punkt: Punkt::english(setup)?, last: None })
    }

    /// The sentences of the first `n` words, from the beginning again where there are no more.
    fn sentences(&mut self, n: usize) -> &[String] {
        if self.last.as_ref().is_none_or(|(last, _)| *last != n) {
            let words: Vec<&str> = self.words.iter().map(String::as_str).cycle().take(n).collect();
            let text = words.join(" ");
            let sentences = self.punkt.sentences(text.trim_matches(is_python_space));
            self.last = Some((n, sentences.into_iter().map(str::to_owned).collect()));
        }
        self.last.as_ref().map_or(&[], |(_, sentences)| sentences)
    }
}

/// `re.sub(r'\s+', " ", text).split(" ")`: white space at an end leaves an empty word there.
pub(super) fn split_words(text: &str) -> Vec<String> {
    let mut words: Vec<String> = Vec::new();
    let mut rest = text;
    loop {
        let end = rest.find(is_python_space).unwrap_or(rest.len());
        words.push(rest[..end].to_owned());
        if end == rest.len() {
            return words;
        }
        rest = rest[end..].trim_start_matches(is_python_space);
    }
}

/// The sizes of haystacks and the draws of one run.
struct Niah<'a> {
    shape: Shape,
    setup: &'a Setup<'a>,
    version: Version,
    pairs: Pairs,
    essays: Option<Essays>,
    random: Random,
    seed: u32,
    /// In per cent, where it is not drawn.
    depth: Option<u32>,
}

fn generator<'a>(
    shape: Shape,
    setup: &'a Setup<'a>,
    version: Version,
    length: usize,
) -> Result<Generator<'a>> {
    let seed = seed(setup)?;
    let essays = match shape.haystack {
        Haystack::Essays => Some(Essays::read(setup)?),
        _ => None,
    };
    let pairs = Pairs::new(&word_list(setup, &ADJECTIVES)?, word_list(setup, &NOUNS)?);
    let random = Random::new(seed.into());
    let step = match shape.haystack {
        Haystack::Essays => 500,
        _ if length < 4096 => 5,
        _ => 25,
    };
    let depths = depths(setup)?;
    let mut niah =
        Niah { shape, setup, version, pairs, essays, random, seed, depth: depths.first().copied() };
    let size = niah.size(step, length)?;
    Ok(Box::new(move |index| {
        niah.depth = depths.get(index % depths.len().max(1)).copied();
        fit::sample(setup, size, step, length, |size| {
            let draft = niah.make(size)?;
            let tokens = niah.count(&draft.prompt)? + ANSWER;
            Ok((draft, tokens))
        })
    }))
}

impl Niah<'_> {
    fn count(&self, text: &str) -> Result<usize> {
        self.setup.encoder.count(text)
    }

    /// The size of the haystack of samples.
    fn size(&mut self, step: usize, length: usize) -> Result<usize> {
        match self.version {
            Version::V2024 => {
                let words = self.essays.as_ref().map(|essays| essays.words.len());
                let most = words.unwrap_or(usize::MAX);
                fit::by_steps(self.setup, step, length, most, words.is_some(), |size| {
                    let draft = self.make(size)?;
                    Ok(self.count(&(draft.prompt + &draft.references.join(" ")))? + ANSWER)
                })
            }
            Version::Current => {
                let first = self.make(step)?.prompt;
                let tokens = self.count(&first)?;
                fit::largest(self.setup, step, length, tokens, |size| {
                    let prompt = self.make(size)?.prompt;
                    Ok(self.count(&prompt)? + ANSWER)
                })
            }
        }
    }

    fn draw(&mut self, thing: Thing) -> String {
        match thing {
            Thing::Words => self.pairs.choice(&mut self.random),
            Thing::Numbers => self.random.randint(1_000_000, 9_999_999).to_string(),
            Thing::Uuids => self.random.uuid4(),
        }
    }

    /// A prompt with a haystack of a size.
    fn make(&mut self, size: usize) -> Result<Draft> {
        let mut keys = Vec::new();
        let mut values = Vec::new();
        let mut needles = Vec::new();
        for _ in 0..self.shape.keys {
            let key = self.draw(self.shape.key);
            let mut values_of_key = Vec::new();
            for _ in 0..self.shape.values {
                let value = self.draw(self.shape.value);
                needles.push(needle(self.shape.value, &key, &value));
                values_of_key.push(value);
            }
            keys.push(key);
            values.push(values_of_key);
        }
        // A separate generator: the same order in every sample.
        Random::new(self.seed.into()).shuffle(&mut needles);

        let context = match self.shape.haystack {
            Haystack::Essays => self.in_essays(size, &needles),
            Haystack::Noise => self.in_lines(vec![NOISE.to_owned(); size], &needles)?,
            Haystack::Needles => {
                let (key, value) = (self.shape.key, self.shape.value);
                let lines = (0..size)
                    .map(|_| {
                        let key = self.draw(key);
                        needle(value, &key, &self.draw(value))
                    })
                    .collect();
                self.in_lines(lines, &needles)?
            }
        };

        let asked = self.random.sample_range(self.shape.keys, self.shape.queries);
        let queries: Vec<&str> = asked.iter().map(|&i| keys[i].as_str()).collect();
        let query = match queries.split_last() {
            Some((last, others)) if !others.is_empty() => format!("{}, and {last}", others.join(", ")),
            _ => queries.concat(),
        };
        let references = asked.iter().flat_map(|&i| values[i].iter().cloned()).collect();
        let (text, answer_prefix) = self.texts(&context, &query);
        let prompt = prompt(self.setup, &text, &answer_prefix)?;
        let mut tags = vec![("query", query)];
        tags.extend(self.depth.map(|depth| ("depth", depth.to_string())));
        Ok(Draft { prompt, references, tags })
    }

    /// Essays with needles between their sentences, at random depths.
    fn in_essays(&mut self, size: usize, needles: &[String]) -> String {
        // The generators of 2024 stop at the last word, later ones begin again.
        let Some(essays) = &mut self.essays else { return String::new() };
        let size = match self.version {
            Version::V2024 => size.min(essays.words.len()),
            Version::Current => size,
        };
        let sentences = essays.sentences(size);
        let n = sentences.len();
        let mut places: Vec<usize> = self
            .random
            .sample(&evenly(DEPTHS), needles.len())
            .into_iter()
            // Drawn all the same: a fixed depth changes where needles stand and nothing else.
            .map(|depth| self.depth.unwrap_or(depth))
            .map(|depth| (n as f64 * (f64::from(depth) / 100.0)) as usize)
            .collect();
        places.sort_unstable();
        let mut pieces = Vec::with_capacity(2 * needles.len() + 1);
        let mut last = 0;
        for (place, needle) in places.into_iter().zip(needles) {
            pieces.push(sentences[last..place].join(" "));
            pieces.push(needle.clone());
            last = place;
        }
        pieces.push(sentences[last..].join(" "));
        pieces.join(" ")
    }

    /// Lines with needles between them, at random places.
    fn in_lines(&mut self, mut lines: Vec<String>, needles: &[String]) -> Result<String> {
        if lines.len() < needles.len() {
            return Err(Error::invalid(format!(
                "expected a length that holds {} lines, found one of {}",
                needles.len(),
                lines.len()
            )));
        }
        let mut places = self.random.sample_range(lines.len(), needles.len());
        if let Some(depth) = self.depth {
            // The last needle goes in first, at the place of them all.
            places.fill((lines.len() as f64 * (f64::from(depth) / 100.0)) as usize);
        }
        places.sort_unstable_by(|a, b| b.cmp(a));
        for (place, needle) in places.into_iter().zip(needles) {
            lines.insert(place, needle.clone());
        }
        Ok(lines.join("\n"))
    }

    /// The task's text and the beginning of the answer; in the singular where there is one value to find.
    fn texts(&self, context: &str, query: &str) -> (String, String) {
        let values = self.shape.value.plural();
        let (some, values, are, all) = match self.shape.queries * self.shape.values {
            1 => ("A", &values[..values.len() - 1], "is", ""),
            _ => ("Some", values, "are", "all "),
        };
        (
            format!(
                "{some} special magic {values} {are} hidden within the following text. Make sure to memorize it. I will quiz you about the {values} afterwards.\n{context}\nWhat {are} {all}the special magic {values} for {query} mentioned in the provided text?"
            ),
            format!(" The special magic {values} for {query} mentioned in the provided text {are}"),
        )
    }
}

/// The sentence to find.
fn needle(values: Thing, key: &str, value: &str) -> String {
    format!("One of the special magic {} for {key} is: {value}.", values.plural())
}
