//! `POST /v1/completions`.

use std::sync::Arc;

use crate::answer::{Choice, Echo};
use crate::app::{App, Caller};
use crate::backend::{Fault, Job, Rule, Shape};
use crate::stream::{begin, Work};
use crate::wire::{self, Common, Prompt};

/// Bytes of a text that is made of a request's tokens.
const MAX_TEXT: usize = 16 << 20;

pub(crate) fn work(app: &Arc<App>, caller: Caller, body: &[u8]) -> Result<Work, Fault> {
    let request = wire::completions(body)?;
    let mut common = request.common;
    prepare(app, caller, &mut common)?;
    let backend = &app.backend;
    let (mut choices, mut prompts) = (Vec::new(), Vec::new());
    for (i, prompt) in request.prompts.into_iter().enumerate() {
        let (tokens, text) = match prompt {
            Prompt::Text(text) => (backend.tokenize(&text, request.add_special, true)?, Some(text)),
            Prompt::Tokens(tokens) => (tokens, None),
        };
        checked(app, "prompt", tokens.iter().copied())?;
        if tokens.is_empty() {
            return Err(Fault::invalid("prompt", "prompt: expected at least one token, found none"));
        }
        let text: Option<Arc<str>> = match (request.echo, text) {
            (false, _) => None,
            (true, Some(text)) => Some(text.into()),
            (true, None) => Some(text_of(app, "prompt", &tokens)?.into()),
        };
        let first = common.job.echo.map(|_| tokens[0]);
        for _ in 0..common.n {
            let echo = text.clone().map(|text| Echo { text, first });
            choices.push(Choice::new(i, common.job.n_top.is_some(), echo, None));
        }
        prompts.push(tokens);
    }
    let jobs = prompts.iter().flat_map(|tokens| each(&common, tokens));
    let (jobs, headers) = begin(app, jobs, &mut choices)?;
    let of_prompt = prompts.iter().flat_map(|tokens| std::iter::repeat_n(tokens, common.n));
    let listing =
        |(choice, tokens): (Choice, &Vec<i32>)| choice.listing(common.ids, tokens, common.prompt_scores);
    let choices = choices.into_iter().zip(of_prompt).map(listing).collect();
    let head = app.head(common.model.as_deref(), false);
    Ok(Work { head, choices, jobs, headers, stream: common.stream })
}

/// Completes what a request asks of a job by what the server knows.
pub(crate) fn prepare(app: &App, caller: Caller, common: &mut Common) -> Result<(), Fault> {
    let (model, plan) = app.plan(common.model.as_deref(), common.rope.as_deref())?;
    (common.job.model, common.job.plan) = match &common.lora {
        Some(lora) => app.under(model, plan, lora)?,
        None => (model, plan),
    };
    if common.job.model != model {
        // The answer names what has made it.
        common.model = app.backend.card().adapters.get(common.job.model - 1).cloned();
    }
    common.job.salt = app.salt(caller, &common.job.salt);
    common.job.caller = caller.0;
    checked(app, "logit_bias", common.job.bias.iter().map(|(token, _)| *token))
}

/// The rule of an answer that must have a form; `param` asks for it. What ends the thinking comes before the form.
pub(crate) fn rule(
    app: &App,
    shape: Option<Shape>,
    thinks: Option<&'static str>,
    param: &str,
) -> Result<Option<Rule>, Fault> {
    let Some(shape) = shape else { return Ok(None) };
    let refused = |fault: Fault| Fault { param: Some(param.to_owned()), ..fault };
    app.backend.rule(&Shape { thinks, ..shape }).map(Some).map_err(refused)
}

/// The jobs of one prompt. Their seeds differ, else all answers would be one.
pub(crate) fn each<'a>(common: &'a Common, tokens: &'a [i32]) -> impl Iterator<Item = Job> + 'a {
    (0..common.n).map(move |i| {
        let mut job = Job { prompt: tokens.to_vec(), ..common.job.clone() };
        job.sampling.seed = job.sampling.seed.map(|seed| seed.wrapping_add(i as u32));
        job
    })
}

/// The text of tokens. A token of two digits can be a hundred bytes.
pub(crate) fn text_of(app: &App, param: &str, tokens: &[i32]) -> Result<String, Fault> {
    let mut bytes = Vec::new();
    for token in tokens {
        bytes.extend(app.backend.piece(*token));
        if bytes.len() > MAX_TEXT {
            let what = format!("{param}: expected tokens of at most {MAX_TEXT} bytes, found more");
            return Err(Fault::invalid(param, what));
        }
    }
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Checks that the vocabulary has these tokens.
pub(crate) fn checked(app: &App, param: &str, mut tokens: impl Iterator<Item = i32>) -> Result<(), Fault> {
    let n_vocab = app.backend.card().n_vocab;
    let outside = |token: &i32| !usize::try_from(*token).is_ok_and(|token| token < n_vocab);
    match tokens.find(outside) {
        None => Ok(()),
        Some(token) => {
            let what = format!("{param}: expected tokens below {n_vocab}, found {token}");
            Err(Fault::invalid(param, what))
        }
    }
}
