//! Scores a list of factors by the model's predictions under it.

use rand::seq::SliceRandom;
use rand::Rng;
use rand_chacha::rand_core::SeedableRng;
use rand_chacha::ChaCha8Rng;

use super::Goal;
use crate::eval::{invalid, Lm, LmSource};
use crate::model::{Error, Result};
use crate::Token;

/// Most needles in a text: each has a different name.
const N_NEEDLES: usize = 8;
const NAMES: [&str; 26] = [
    "alpha", "bravo", "charlie", "delta", "echo", "foxtrot", "golf", "hotel", "india", "juliett", "kilo",
    "lima", "mike", "november", "oscar", "papa", "quebec", "romeo", "sierra", "tango", "uniform", "victor",
    "whiskey", "xray", "yankee", "zulu",
];

/// Tokens to read, and which of them are scored.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Sample {
    tokens: Vec<Token>,
    /// Ranges of `tokens`, in order.
    scored: Vec<std::ops::Range<usize>>,
}

/// One sample from each text that is long enough, at most `n`, of at most `ctx` tokens.
pub(super) fn samples(
    source: &dyn LmSource,
    texts: &[Vec<Token>],
    goal: Goal,
    ctx: usize,
    n: usize,
    seed: u64,
) -> Result<Vec<Sample>> {
    let bos = source.bos_first();
    let n_bos = usize::from(bos.is_some());
    let long_enough: Vec<&Vec<Token>> = texts.iter().filter(|t| t.len() + n_bos >= ctx).take(n).collect();
    if long_enough.is_empty() {
        let longest = texts.iter().map(Vec::len).max().unwrap_or(0);
        return Err(invalid(format!("expected a text of at least {ctx} tokens, the longest has {longest}")));
    }
    let mut out = Vec::new();
    for (i, text) in long_enough.into_iter().enumerate() {
        out.push(match goal {
            Goal::Perplexity => {
                let tokens: Vec<Token> = bos.into_iter().chain(text.iter().copied()).take(ctx).collect();
                Sample { scored: vec![1..tokens.len(); 1], tokens }
            }
            Goal::Needle => {
                let mut rng = ChaCha8Rng::seed_from_u64(seed);
                rng.set_stream(i as u64);
                needles(source, bos, text, ctx, &mut rng)?
            }
        });
    }
    Ok(out)
}

/// A text with sentences put in at places spread over all of it, each a name and a number, and at its end a question and the
/// number for each name: of these numbers the tokens are scored. LongRoPE2 (Shang et al. 2025, arXiv:2502.20082) scores
/// answers of needles alone for the same reason: most words of a text need nothing from far back. Its code and its
/// sentences are not published; these are its idea.
fn needles(
    source: &dyn LmSource,
    bos: Option<Token>,
    text: &[Token],
    ctx: usize,
    rng: &mut ChaCha8Rng,
) -> Result<Sample> {
    let mut names = NAMES;
    names.shuffle(rng);
    let held: Vec<(&str, String)> = names[..N_NEEDLES]
        .iter()
        .map(|name| (*name, rng.random_range(1_000_000..10_000_000u32).to_string()))
        .collect();
    let mut sentences = Vec::new();
    for (name, number) in &held {
        sentences.push(source.encode(&format!("\nThe special magic number for {name} is: {number}.\n"))?);
    }
    let mut asked: Vec<usize> = (0..N_NEEDLES).collect();
    asked.shuffle(rng);
    let mut questions: Vec<(Vec<Token>, Vec<Token>)> = Vec::new();
    for i in asked {
        let (name, number) = &held[i];
        let question =
            format!("\nWhat is the special magic number for {name} mentioned above? The special magic number for {name} is:");
        questions.push((source.encode(&question)?, source.encode(&format!(" {number}"))?));
    }
    let fixed = usize::from(bos.is_some())
        + sentences.iter().map(Vec::len).sum::<usize>()
        + questions.iter().map(|(q, a)| q.len() + a.len()).sum::<usize>();
    let Some(n_text) = ctx.checked_sub(fixed).filter(|n| *n >= N_NEEDLES) else {
        return Err(invalid(format!(
            "ctx {ctx}: {N_NEEDLES} needles and their questions take {fixed} tokens: expected a longer context"
        )));
    };
    let mut tokens: Vec<Token> = bos.into_iter().collect();
    let mut at = 0;
    for (i, sentence) in sentences.iter().enumerate() {
        let part = n_text * i / N_NEEDLES..n_text * (i + 1) / N_NEEDLES;
        let place = rng.random_range(part);
        tokens.extend(&text[at..place]);
        tokens.extend(sentence);
        at = place;
    }
    tokens.extend(&text[at..n_text]);
    let mut scored = Vec::new();
    for (question, answer) in &questions {
        tokens.extend(question);
        scored.push(tokens.len()..tokens.len() + answer.len());
        tokens.extend(answer);
    }
    Ok(Sample { tokens, scored })
}

/// The mean negative log-likelihood of all scored tokens, in nats.
///
/// # Errors
/// Returns an error if the model fails. The mean is not finite if a likelihood is not.
pub(super) fn score(lm: &mut dyn Lm, samples: &[Sample]) -> Result<f64> {
    let (mut sum, mut n) = (0.0, 0);
    for sample in samples {
        let first = sample.scored.first().map_or(1, |range| range.start);
        let nll = lm.nll(&sample.tokens, first, &mut |_| {})?;
        for range in &sample.scored {
            let of = nll.get(range.start - first..range.end - first);
            let of =
                of.ok_or_else(|| Error::Invalid("the model scored fewer tokens than it was given".into()))?;
            sum += of.iter().map(|x| f64::from(*x)).sum::<f64>();
            n += of.len();
        }
    }
    Ok(sum / n.max(1) as f64)
}
