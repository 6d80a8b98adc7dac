//! Questions on documents, among them the ones that answer it: SQuAD 2.0 (`qa_1`, one document) and HotpotQA
//! (`qa_2`, two).

pub(crate) mod read;

use super::{
    fit, info, prompt, seed, string_match_part, Draft, Generator, Synthetic, Version, HOTPOTQA, SAMPLES,
    SQUAD,
};
use crate::draws::Random;
use crate::metrics::python;
use crate::{DataFile, Error, Result, Setup};

/// Tokens of an answer.
const ANSWER: usize = 32;
/// Steps of the search for a number of documents.
const STEP: usize = 10;

const ANSWER_PREFIX: &str = " Answer:";

pub(super) static QA_1: Synthetic = Synthetic {
    info: info("qa_1", "Questions of SQuAD, with their document among many.", &[&SQUAD]),
    metric: string_match_part,
    answer: ANSWER,
    beyond_2024: 0,
    generator: |setup, version, length| generator(setup, version, length, &SQUAD, read::squad),
};
pub(super) static QA_2: Synthetic = Synthetic {
    info: info("qa_2", "Questions of HotpotQA, with their two documents among many.", &[&HOTPOTQA]),
    metric: string_match_part,
    answer: ANSWER,
    beyond_2024: 0,
    generator: |setup, version, length| generator(setup, version, length, &HOTPOTQA, read::hotpotqa),
};

/// Questions and the documents they are on.
#[derive(Debug, PartialEq)]
pub struct Set {
    /// Different ones, sorted.
    pub documents: Vec<String>,
    pub questions: Vec<Question>,
    /// Numbers of the documents of the same article, which are placed with the question's before any others.
    pub articles: Vec<Vec<usize>>,
}

#[derive(Debug, PartialEq)]
pub struct Question {
    pub text: String,
    /// Any of them is right; at least one.
    pub answers: Vec<String>,
    /// Numbers of the documents that belong to it, those that answer it among them.
    pub documents: Vec<usize>,
    /// Number of its article, if there are articles.
    pub article: Option<usize>,
}

fn generator<'a>(
    setup: &'a Setup<'a>,
    version: Version,
    length: usize,
    file: &DataFile,
    read: fn(&[u8]) -> Result<Set, String>,
) -> Result<Generator<'a>> {
    let set = read(&file.read(setup.data)?).map_err(|what| Error::file(setup.data.join(file.name), what))?;
    let (n_questions, n_documents) = (set.questions.len(), set.documents.len());
    let n = setup.samples.unwrap_or(SAMPLES);
    if n > n_questions {
        return Err(Error::invalid(format!(
            "{}: expected at most {n_questions} samples, found {n}",
            file.name
        )));
    }
    let seed = seed(setup)?;
    let order = (0..n_documents).collect();
    let mut prompts = Prompts { setup, version, set, order, seed, random: Random::new(seed.into()) };
    // Tokens of the shortest prompt seen, for the message if none fits.
    let mut shortest = usize::MAX;
    let documents = match version {
        Version::V2024 => {
            let answers = python_list(&prompts.set.questions[0].answers);
            fit::by_steps(setup, STEP, length, n_documents, false, |documents| {
                let prompt = prompts.draw(0, documents, shortest, length)?;
                let tokens = ANSWER + setup.encoder.count(&format!("{prompt} {answers}"))?;
                shortest = shortest.min(tokens);
                Ok(tokens)
            })?
        }
        Version::Current => {
            let first = setup.encoder.count(&prompts.draw(0, STEP, shortest, length)?)?;
            shortest = ANSWER + first;
            fit::largest(setup, STEP, length, first, |documents| {
                Ok(ANSWER + setup.encoder.count(&prompts.draw(0, documents, shortest, length)?)?)
            })?
        }
    };
    Ok(Box::new(move |index| {
        let mut shortest = shortest;
        fit::sample(setup, documents, STEP, length, |documents| {
            let prompt = prompts.draw(index, documents, shortest, length)?;
            let tokens = ANSWER + setup.encoder.count(&prompt)?;
            shortest = shortest.min(tokens);
            let question = &prompts.set.questions[index];
            let tags = vec![("question", question.text.clone()), ("documents", documents.to_string())];
            Ok((Draft { prompt, references: question.answers.clone(), tags }, tokens))
        })
    }))
}

/// Draws documents for questions.
struct Prompts<'a> {
    setup: &'a Setup<'a>,
    version: Version,
    set: Set,
    /// The documents by their numbers: the generators of 2024 shuffle their own list once all documents are shown,
    /// and go on counting in what became of it.
    order: Vec<usize>,
    seed: u32,
    random: Random,
}

impl Prompts<'_> {
    /// A prompt with `n` documents.
    ///
    /// # Errors
    /// The question's own documents are more: the generators would try for ever. The message has `shortest`, the
    /// tokens of the shortest prompt seen.
    fn draw(&mut self, index: usize, n: usize, shortest: usize, length: usize) -> Result<String> {
        let question = &self.set.questions[index];
        let all = self.set.documents.len();
        let mut shown: Vec<usize>;
        if n < all {
            let own = &question.documents;
            let wanted = n.checked_sub(own.len()).ok_or_else(|| fit::too_short(shortest, length))?;
            let article = question.article.map_or(&[][..], |article| &self.set.articles[article]);
            let more = || article.iter().copied().filter(|document| !own.contains(document));
            let n_more = more().count();
            shown = own.clone();
            if wanted > n_more {
                shown.extend(more());
                let mut used = vec![false; all];
                shown.iter().for_each(|&document| used[document] = true);
                let others: Vec<usize> = (0..all).filter(|&document| !used[document]).collect();
                shown.extend(self.random.sample(&others, (wanted - n_more).min(others.len())));
            } else {
                let more: Vec<usize> = more().collect();
                shown.extend(self.random.sample(&more, wanted));
            }
            shown.iter_mut().for_each(|document| *document = self.order[*document]);
            Random::new(self.seed.into()).shuffle(&mut shown);
        } else if self.version == Version::V2024 {
            Random::new(self.seed.into()).shuffle(&mut self.order);
            shown = self.order.clone();
        } else {
            shown = self.order.iter().copied().cycle().take(n).collect();
            Random::new(self.seed.into()).shuffle(&mut shown);
        }
        let mut text = String::from(
            "Answer the question based on the given documents. Only give me the answer and do not output any other \
             words.\n\nThe following are given documents.\n\n",
        );
        for (i, &document) in shown.iter().enumerate() {
            let between = if i > 0 { "\n\n" } else { "" };
            text.push_str(&format!("{between}Document {}:\n{}", i + 1, self.set.documents[document]));
        }
        text.push_str(
            "\n\nAnswer the question based on the given documents. Only give me the answer and do not output any \
             other words.\n\nQuestion: ",
        );
        text.push_str(&question.text);
        prompt(self.setup, &text, ANSWER_PREFIX)
    }
}

/// `str()` of a list of strings, as Python writes it: the search of 2024 counts the answers in this form.
pub fn python_list(texts: &[String]) -> String {
    let mut out = String::from("[");
    for (i, text) in texts.iter().enumerate() {
        if i > 0 {
            out.push_str(", ");
        }
        python::repr(text, &mut out);
    }
    out.push(']');
    out
}
