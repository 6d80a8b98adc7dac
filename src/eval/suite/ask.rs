//! Runs prompts through the model: answers, and likelihoods of choices.

use ropewalk_tasks::{Answer, Ask, Likelihood};

use super::super::Lm;
use super::encoder::TaskEncoder;
use super::Ready;
use crate::model::{Error, Result};
use crate::session::Greedy;
use crate::Token;

/// The answers to a batch of samples, in its order.
pub(super) fn ask(lm: &mut dyn Lm, encoder: &TaskEncoder<'_>, batch: &[Ready]) -> Result<Vec<Answer>> {
    let mut answers = Vec::with_capacity(batch.len());
    while let Some(first) = batch.get(answers.len()) {
        let rest = &batch[answers.len()..];
        match &first.sample.ask {
            Ask::Choose(_) => answers.push(choices(lm, first)?),
            Ask::Generate { max_tokens, min_tokens, stop } => {
                let alike: Vec<Vec<Token>> = rest
                    .iter()
                    .take_while(|r| r.sample.ask == first.sample.ask)
                    .map(|r| r.prompt.clone())
                    .collect();
                let how = Greedy { n_predict: *max_tokens, n_min: *min_tokens, stop: stop.clone() };
                for tokens in lm.answers(&alike, &how)? {
                    answers.push(Answer::Text(before_stop(&encoder.source.decode(&tokens)?, stop)));
                }
            }
        }
    }
    Ok(answers)
}

fn choices(lm: &mut dyn Lm, ready: &Ready) -> Result<Answer> {
    let endings = lm.endings(&ready.prompt, &ready.endings)?;
    let likelihood = |e: crate::session::Ending| Likelihood {
        sum: e.logprobs.iter().map(|&x| f64::from(x)).sum(),
        greedy: e.greedy,
        n_tokens: e.logprobs.len(),
    };
    let choices: Vec<Likelihood> = endings.into_iter().map(likelihood).collect();
    if let Some(bad) = choices.iter().find(|choice| !choice.sum.is_finite()) {
        return Err(Error::Invalid(format!(
            "{}: expected a finite log-likelihood of each choice, found {}",
            ready.sample.id, bad.sum
        )));
    }
    Ok(Answer::Choices(choices))
}

/// The text before the first of the stop texts.
fn before_stop(text: &str, stop: &[String]) -> String {
    let at = stop.iter().filter(|s| !s.is_empty()).filter_map(|s| text.find(s.as_str())).min();
    text[..at.unwrap_or(text.len())].to_owned()
}

/// Tokenizes a context and its continuations, as `_encode_pair` of lm-evaluation-harness does
/// (`lm_eval/api/model.py`). Blanks at the end of the context belong to the continuation. The tokens of a
/// continuation are those of the joined text after the context's number of tokens.
pub fn encode_pair(
    encoder: &TaskEncoder<'_>,
    context: &str,
    continuations: &[String],
) -> Result<(Vec<Token>, Vec<Vec<Token>>)> {
    let bare = context.trim_end();
    let blanks = &context[bare.len()..];
    let tokens = encoder.source.encode(bare)?;
    let mut endings = Vec::with_capacity(continuations.len());
    for continuation in continuations {
        let mut whole = encoder.source.encode(&format!("{bare}{blanks}{continuation}"))?;
        endings.push(whole.split_off(tokens.len().min(whole.len())));
    }
    Ok((encoder.prompt(bare)?, endings))
}
