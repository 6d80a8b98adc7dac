//! The search for the largest haystack that fits, as the generators do it.
//!
//! A haystack has a size (words, lines, documents); one try makes a prompt of a size and counts its tokens, answer
//! included. Every try draws, so which sizes are tried decides what the samples are.

use crate::{Error, Result, Setup};

/// Tries with the smallest haystack before a sample is given up. The generators would try for ever; another draw
/// may be a token shorter.
const TRIES: usize = 1000;

/// The size that a search by steps finds, the answer's tokens included in `tokens` (generators of 2024): a step
/// before the first one that is too long; `most` at most. Essays may be left out whole, and one size beyond `most` is
/// tried of them.
pub(super) fn by_steps(
    setup: &Setup<'_>,
    step: usize,
    limit: usize,
    most: usize,
    of_essays: bool,
    mut tokens: impl FnMut(usize) -> Result<usize>,
) -> Result<usize> {
    let last = most.saturating_add(if of_essays { step } else { 0 });
    let mut size = step;
    loop {
        setup.check_stopped()?;
        let found = tokens(size)?;
        if found > limit {
            return match size - step {
                0 if !of_essays => Err(too_short(found, limit)),
                smaller => Ok(smaller),
            };
        }
        check_tokens(size, found)?;
        size += step;
        if size > last {
            return Ok(most);
        }
        if found == limit {
            // Nothing is tried once the length is met, but the step is made.
            return Ok(size);
        }
    }
}

/// The largest size of which one try has at most `limit` tokens, by bisection from `step` upwards, or `step`
/// (current generators). `tokens_of_step` are those of a first try, without the answer.
pub(super) fn largest(
    setup: &Setup<'_>,
    step: usize,
    limit: usize,
    tokens_of_step: usize,
    tokens: impl FnMut(usize) -> Result<usize>,
) -> Result<usize> {
    check_tokens(step, tokens_of_step)?;
    // Three times the estimate, since draws differ.
    let estimate = (limit as f64 / (tokens_of_step as f64 / step as f64) * 3.0) as usize;
    bisect(setup, step, limit, estimate, tokens)
}

/// The largest size from `step` to `most` (or two steps, if that is more) of which one try has at most `limit`
/// tokens, or `step`.
pub(super) fn bisect(
    setup: &Setup<'_>,
    step: usize,
    limit: usize,
    most: usize,
    mut tokens: impl FnMut(usize) -> Result<usize>,
) -> Result<usize> {
    let (mut low, mut high) = (step, most.max(2 * step));
    let mut found = None;
    while low <= high {
        setup.check_stopped()?;
        let middle = low.midpoint(high);
        if tokens(middle)? <= limit {
            found = Some(middle);
            low = middle + 1;
        } else {
            high = middle - 1;
        }
    }
    Ok(found.unwrap_or(step))
}

/// Makes a sample of a size, smaller by `step` after each try that is too long.
///
/// `make` gives the sample and its tokens, answer included.
pub(super) fn sample<T>(
    setup: &Setup<'_>,
    mut size: usize,
    step: usize,
    limit: usize,
    mut make: impl FnMut(usize) -> Result<(T, usize)>,
) -> Result<T> {
    let mut shortest = usize::MAX;
    let mut tries = 0;
    loop {
        setup.check_stopped()?;
        let (made, tokens) = make(size)?;
        if tokens <= limit {
            return Ok(made);
        }
        shortest = shortest.min(tokens);
        if size > step {
            size -= step;
            continue;
        }
        tries += 1;
        if tries == TRIES {
            return Err(too_short(shortest, limit));
        }
    }
}

/// Refuses a tokenizer with which sizes would grow without end: each word or line of a haystack is a token at least.
fn check_tokens(size: usize, tokens: usize) -> Result<()> {
    if tokens < size / 2 {
        return Err(Error::invalid(format!(
            "expected a tokenizer that makes at least {} tokens of {size} words or lines, found {tokens}",
            size / 2
        )));
    }
    Ok(())
}

/// No prompt fits.
pub(super) fn too_short(shortest: usize, limit: usize) -> Error {
    Error::invalid(format!(
        "expected a length of about {shortest} tokens or more, found {limit}: the shortest prompt and its answer have {shortest}"
    ))
}
