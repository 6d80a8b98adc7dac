//! How far a converted model's predictions are from the source's: both run in libllama, over the same text.
//!
//! Protocol, that of llama.cpp's `llama-perplexity --kl-divergence`: windows of 512 tokens, each from an empty cache and
//! begun as the vocabulary begins texts; the first half of a window is context, the other half is scored.

use std::path::Path;

use llama::oracle::{Oracle, OracleParams};
use ropewalk_core::control::Control;
use ropewalk_core::divergence::Divergence as Point;
use ropewalk_core::text::{decode, Invalid};
use serde::Serialize;

use crate::{Error, Result};

/// Tokens of a window.
const WINDOW: usize = 512;
const MAX_TEXT: u64 = 256 << 20;

/// Differences of the predictions of two models, over all scored tokens.
#[derive(Debug, Clone, Serialize)]
pub struct Divergence {
    /// Scored tokens.
    pub n_tokens: usize,
    /// Tokens of a window.
    pub window: usize,
    /// Mean of KL(source || result), nats.
    pub kl: f64,
    /// Standard error of the KL divergence, with scored tokens taken as independent.
    pub kl_error: f64,
    /// The divergence that 99 of 100 tokens are below.
    pub kl_99: f64,
    /// The largest.
    pub kl_max: f64,
    /// Share of tokens whose most probable successor is the same, 0 to 1.
    pub same_top: f64,
    /// Perplexity of the source.
    pub ppl_source: f64,
    /// Perplexity of the result.
    pub ppl: f64,
}

pub(crate) fn text(path: &Path) -> Result<String> {
    let decoded = decode(files::foreign::read_file(path, MAX_TEXT)?, Invalid::Refuse);
    Ok(decoded.map_err(|e| Error::Invalid(format!("{}: {e}", path.display())))?.text)
}

pub(crate) fn measure(source: &Path, result: &Path, text: &str, control: &Control<'_>) -> Result<Divergence> {
    let params =
        OracleParams { n_batch: WINDOW as u32, n_ubatch: WINDOW as u32, ..OracleParams::new(WINDOW as u32) };
    let (mut a, mut b) = (Oracle::open(source, &params)?, Oracle::open(result, &params)?);
    let start = a.tokenize("", true, false)?;
    let tokens = a.tokenize(text, false, false)?;
    let n = WINDOW - start.len().min(WINDOW / 2);
    if tokens.len() < n {
        let what = format!("expected a text of at least {n} tokens, found {}", tokens.len());
        return Err(Error::Invalid(what));
    }
    let windows = tokens.chunks_exact(n);
    let total = windows.len() as u64;
    let mut points = Vec::new();
    for (i, window) in windows.enumerate() {
        if control.stopped() {
            return Err(Error::Interrupted);
        }
        control.report(format_args!("measuring the divergence"), i as u64, total);
        let window: Vec<llama::Token> = start.iter().chain(window).copied().collect();
        // The last token has no successor.
        let (first, last) = (window.len() / 2, window.len() - 1);
        let mut rows: Vec<f32> = Vec::with_capacity((last - first) * a.n_vocab());
        a.clear();
        a.eval_with(&window, true, &mut |j, row| {
            if (first..last).contains(&j) {
                rows.extend_from_slice(row);
            }
        })?;
        let n_vocab = a.n_vocab();
        b.clear();
        b.eval_with(&window, true, &mut |j, row| {
            if (first..last).contains(&j) {
                let before = &rows[(j - first) * n_vocab..][..n_vocab];
                points.push(Point::of(before, row, window[j + 1] as usize));
            }
        })?;
    }
    Ok(summary(&points))
}

fn summary(points: &[Point]) -> Divergence {
    let n = points.len().max(1) as f64;
    let mut kls: Vec<f64> = points.iter().map(|p| p.kl).collect();
    kls.sort_by(f64::total_cmp);
    let kl = kls.iter().sum::<f64>() / n;
    let variance = kls.iter().map(|x| (x - kl).powi(2)).sum::<f64>() / (n - 1.0).max(1.0);
    let ppl = |i: usize| (points.iter().map(|p| p.nll[i]).sum::<f64>() / n).exp();
    Divergence {
        n_tokens: points.len(),
        window: WINDOW,
        kl,
        kl_error: (variance / n).sqrt(),
        kl_99: kls.get((0.99 * n) as usize).or(kls.last()).copied().unwrap_or(0.0),
        kl_max: kls.last().copied().unwrap_or(0.0),
        same_top: points.iter().filter(|p| p.same_top).count() as f64 / n,
        ppl_source: ppl(0),
        ppl: ppl(1),
    }
}
