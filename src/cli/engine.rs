//! What commands that run a model share: prefill with progress, sizes of contexts, and the end of a stream.

use anyhow::bail;
use ropewalk::model::Model;
use ropewalk::session::{Session, StopReason};
use ropewalk::Token;

use super::output::{OutputArgs, Unit};

/// Contexts that nobody asked for are rounded up to this many tokens.
const ROUND: usize = 256;

/// Makes the session hold exactly `tokens`, batch by batch with a progress bar. Returns how many were there already.
pub(crate) fn prefill(
    session: &mut Session<'_>,
    tokens: &[Token],
    out: &OutputArgs,
) -> ropewalk::model::Result<usize> {
    let held = session.tokens(0);
    let reused = held.iter().zip(tokens).take_while(|(a, b)| a == b).count();
    let step = session.params().n_batch.max(1);
    let mut bar = out.progress(tokens.len() as u64, "reading", Unit::Tokens);
    let mut end = reused;
    bar.set(end as u64);
    loop {
        end = (end + step).min(tokens.len());
        session.prompt(&tokens[..end])?;
        bar.set(end as u64);
        if end == tokens.len() {
            return Ok(reused);
        }
    }
}

/// The context for a prompt when the user names none: the trained length up to `cap`, or what the prompt needs.
pub(crate) fn default_ctx(model: &Model, cap: usize, needed: usize) -> usize {
    model.hparams().n_ctx_train.min(cap).max(needed.div_ceil(ROUND).saturating_mul(ROUND))
}

/// The prompt must leave room for one token at least.
pub(crate) fn check_fits(n_prompt: usize, n_ctx: usize) -> anyhow::Result<()> {
    if n_prompt >= n_ctx {
        bail!(
            "the prompt is {n_prompt} tokens and the context holds {n_ctx}: give --ctx {} or more",
            n_prompt + 1
        );
    }
    Ok(())
}

/// As reports name it.
pub(crate) fn stop_name(reason: Option<StopReason>) -> &'static str {
    match reason {
        Some(StopReason::EndOfGeneration) => "end",
        Some(StopReason::StopString) => "stop",
        Some(StopReason::Length) => "length",
        Some(StopReason::ContextFull) => "context",
        Some(StopReason::Cancelled) | None => "cancelled",
    }
}
