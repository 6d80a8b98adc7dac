//! Helpers for tests of several families: the tokenizer that their reference scripts use, and setups with it.

use std::cell::RefCell;
use std::collections::HashMap;
use std::path::Path;

use ropewalk_core::control::Control;
use ropewalk_tasks::{Ask, Encoder, Result, Sample, Setup, Task, Template, Token};
use serde_json::Value;
use sha2::{Digest, Sha256};

/// Tokens are the matches of `<s>|[A-Za-z]+|[0-9]|[^A-Za-z0-9 ]| +`; decoding joins them, without the first kind.
#[derive(Default)]
pub(crate) struct Simple {
    n_bos: usize,
    frame: [String; 2],
    known: RefCell<(HashMap<String, Token>, Vec<String>)>,
}

impl Simple {
    /// With so many tokens before each text, and a chat template that puts texts before and after each message.
    pub(crate) fn framed(n_bos: usize, frame: [&str; 2]) -> Simple {
        Simple { n_bos, frame: frame.map(str::to_owned), ..Simple::default() }
    }
}

impl Encoder for Simple {
    fn encode(&self, text: &str) -> Result<Vec<Token>> {
        let mut known = self.known.borrow_mut();
        let (mut tokens, mut rest) = (Vec::new(), text);
        while let Some(c) = rest.chars().next() {
            let run = |of: fn(char) -> bool| rest.find(|c| !of(c)).unwrap_or(rest.len());
            let end = match c {
                _ if rest.starts_with("<s>") => 3,
                'a'..='z' | 'A'..='Z' => run(|c| c.is_ascii_alphabetic()),
                ' ' => run(|c| c == ' '),
                _ => c.len_utf8(),
            };
            let (token, behind) = rest.split_at(end);
            rest = behind;
            let next = known.1.len() as Token;
            let id = known.0.get(token).copied().unwrap_or(next);
            if id == next {
                known.0.insert(token.to_owned(), id);
                known.1.push(token.to_owned());
            }
            tokens.push(id);
        }
        Ok(tokens)
    }

    fn decode(&self, tokens: &[Token]) -> Result<String> {
        let known = self.known.borrow();
        let texts = tokens.iter().map(|&t| known.1[t as usize].as_str());
        Ok(texts.filter(|text| *text != "<s>").collect())
    }

    fn frame(&self, message: &str) -> Result<String> {
        let [before, behind] = &self.frame;
        Ok(format!("{before}{message}{behind}"))
    }

    fn n_bos(&self) -> usize {
        self.n_bos
    }
}

/// A setup with a length and options.
pub(crate) fn setup<'a>(
    encoder: &'a dyn Encoder,
    data: &'a Path,
    length: usize,
    options: &[(&str, &str)],
) -> Setup<'a> {
    Setup {
        length: Some(length),
        samples: None,
        seed: None,
        template: Template::Base,
        options: options.iter().map(|&(k, v)| (k.to_string(), v.to_string())).collect(),
        data,
        encoder,
        control: Control::default(),
    }
}

/// The task of a name.
pub(crate) fn task(name: &str) -> &'static dyn Task {
    ropewalk_tasks::find(name).unwrap_or_else(|e| panic!("{e}"))[0]
}

/// All samples of a task, as many as it says.
pub(crate) fn all(task: &dyn Task, setup: &Setup<'_>) -> Result<Vec<Sample>> {
    let samples = task.samples(setup)?;
    let n = samples.n;
    let made: Vec<_> = samples.iter.collect::<Result<_>>()?;
    assert_eq!(made.len(), n, "{}", task.info().name);
    Ok(made)
}

/// The error that a task gives instead of samples.
#[track_caller]
pub(crate) fn error(task: &dyn Task, setup: &Setup<'_>) -> String {
    match all(task, setup) {
        Ok(_) => panic!("{} made samples", task.info().name),
        Err(e) => e.to_string(),
    }
}

/// Compares prompts with those of official code. `of` makes the samples of a set for so many tokens.
pub(crate) fn check_prompts(recorded: &str, n: usize, of: impl Fn(&str, &dyn Encoder, usize) -> Vec<Sample>) {
    let (plain, with_bos) = (Simple::default(), Simple::framed(1, [""; 2]));
    let recorded: Vec<(String, usize, usize, usize, usize, String, Value)> =
        serde_json::from_str(recorded).unwrap();
    assert_eq!(recorded.len(), n);
    for (set, max, n_bos, i, budget, digest, shown) in &recorded {
        let encoder: &dyn Encoder = if *n_bos == 1 { &with_bos } else { &plain };
        let sample = of(set, encoder, *max).swap_remove(*i);
        if let Some(shown) = shown.as_str() {
            assert_eq!(sample.prompt, shown);
        }
        assert_eq!(sha256(&sample.prompt), *digest, "{set} {i}, {max} tokens, {n_bos} of them BOS");
        assert_eq!(sample.ask, Ask::Generate { max_tokens: *budget, min_tokens: 0, stop: Vec::new() });
    }
}

pub(crate) fn sha256(text: &str) -> String {
    Sha256::digest(text.as_bytes()).iter().map(|b| format!("{b:02x}")).collect()
}
