//! Compares the predictions of two models, or of one model under two settings. At every token of a text, it measures
//! the divergence of the two next-token distributions, and whether the top token is the same. This shows the effect
//! of quantization, KV cache types, and RoPE methods at every depth.
//!
//! The first model is the reference: with `p` its probabilities and `q` the other's, `KL(p || q)` is the sum of
//! `p ln(p / q)` over the vocabulary, in nats, as in `llama-perplexity --kl-divergence`.

mod points;

use std::time::Instant;

use rayon::prelude::*;
use ropewalk_core::divergence::Divergence;
use serde::Serialize;

use super::document::pieces;
use super::table::{number, table};
use super::{invalid, per_second, unsupported, Document};
use crate::control::Control;
use crate::model::{Error, Result};
use crate::session::Session;
use crate::vocab::Vocab;
use crate::Token;
use points::{buckets, mean, percent, Point};

pub use points::{Bucket, Spread};

/// Bytes of logits held at a time.
const LOGITS: usize = 128 << 20;

ropewalk_core::setters! {
    /// The windows that are compared.
    #[derive(Debug, Clone, PartialEq)]
    pub struct Params {
        /// Tokens per window. Windows follow each other, and each starts with an empty context.
        pub ctx: usize,
        /// Maximum number of windows, from the start of the text.
        pub max_windows: Option<usize>,
        /// Bucket width for results by position; `None` is an eighth of the context.
        pub bucket: Option<usize>,
    }
}

impl Params {
    /// All windows of this many tokens, with results for each eighth.
    pub fn new(ctx: usize) -> Params {
        Params { ctx, max_windows: None, bucket: None }
    }
}

/// One side of the comparison, for the report.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Side {
    /// The model's file, and adapters.
    pub model: String,
    /// The active method spec.
    pub rope: String,
    /// KV cache type.
    pub kv: String,
    /// Perplexity over all tokens scored.
    pub ppl: f64,
}

/// Result of a run. It serializes to the JSON of the command line.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Report {
    /// The reference.
    pub a: Side,
    /// The other.
    pub b: Side,
    /// Tokens of a window.
    pub ctx: usize,
    /// Tokens scored.
    pub tokens: usize,
    /// Windows done.
    pub windows: usize,
    /// Divergence of `b` from `a`.
    pub kl: Spread,
    /// Percentage of tokens at which both sides have the same top token.
    pub same_top: f64,
    /// Perplexity of `b` over that of `a`.
    pub ppl_ratio: f64,
    /// Standard error of the ratio, of the paired differences of tokens, to first order.
    pub ppl_ratio_stderr: Option<f64>,
    /// By position in the window.
    pub buckets: Vec<Bucket>,
    /// Tokens fed to each model per second, both together.
    pub tokens_per_s: f64,
    /// True if the run was stopped: the figures then cover the completed windows.
    pub interrupted: bool,
}

/// Compares two sessions on texts. `names` are the models' labels in the report.
///
/// # Errors
/// Returns an error if the vocabularies or the tokens differ, if no document has two tokens, if the context is
/// smaller than two tokens or larger than the sessions', or if a session fails.
pub fn run(
    a: &mut Session,
    b: &mut Session,
    names: [&str; 2],
    documents: &[Document],
    params: &Params,
    control: &Control<'_>,
) -> Result<Report> {
    if params.ctx < 2 || params.ctx > a.n_max() || params.ctx > b.n_max() {
        let most = a.n_max().min(b.n_max());
        return Err(Error::argument("ctx", format_args!("2 to {most} tokens"), params.ctx));
    }
    let windows = windows(a, b, documents, params)?;
    let total: usize = windows.iter().map(Vec::len).sum();
    control.bind(&a.cancel_flag());
    control.bind(&b.cancel_flag());
    let start = Instant::now();
    let (mut points, mut done, mut fed, mut interrupted) = (Vec::new(), 0, 0, false);
    for window in &windows {
        let compared = if control.stopped() { Err(Error::Interrupted) } else { compare(a, b, window) };
        match compared {
            Err(Error::Interrupted) => {
                interrupted = true;
                break;
            }
            compared => points.extend(compared?),
        }
        (done, fed) = (done + 1, fed + window.len());
        let what = format_args!("window {done}/{}", windows.len());
        control.report(what, fed as u64, total as u64);
    }
    if points.is_empty() {
        return Err(Error::Interrupted);
    }
    let side = |s: &Session, name: &str, nll: fn(&Point) -> f64| Side {
        model: name.into(),
        rope: s.plan().spec.to_string(),
        kv: s.params().kv_type.name().into(),
        ppl: mean(points.iter().map(nll)).mean().exp(),
    };
    let ratio = mean(points.iter().map(|p| p.of.nll[1] - p.of.nll[0]));
    let width = params.bucket.unwrap_or_else(|| params.ctx.div_ceil(8)).max(1);
    Ok(Report {
        a: side(a, names[0], |p| p.of.nll[0]),
        b: side(b, names[1], |p| p.of.nll[1]),
        ctx: params.ctx,
        tokens: points.len(),
        windows: done,
        kl: Spread::new(&points),
        same_top: percent(points.iter()),
        ppl_ratio: ratio.mean().exp(),
        ppl_ratio_stderr: ratio.stderr().map(|e| e * ratio.mean().exp()),
        buckets: buckets(&points, width, params.ctx),
        tokens_per_s: per_second(fed, start.elapsed().as_secs_f64()),
        interrupted,
    })
}

/// The windows of all documents, at least two tokens long.
fn windows(a: &Session, b: &Session, documents: &[Document], params: &Params) -> Result<Vec<Vec<Token>>> {
    let (va, vb) = (a.model().hparams().n_vocab, b.model().hparams().n_vocab);
    if va != vb {
        return Err(unsupported(format!(
            "vocabularies differ: {va} tokens and {vb}; their predictions cannot be compared"
        )));
    }
    let vocab = a.model().vocab();
    let bos = vocab.bos().filter(|_| vocab.add_bos());
    let width = params.ctx - usize::from(bos.is_some());
    let mut windows = Vec::new();
    for piece in pieces(documents, va, vocab.bos(), &mut Vec::new())? {
        let tokens = |vocab: &Vocab| piece.tokens(|text| Ok(vocab.tokenize(text, false, false)?));
        let (tokens, in_b) = (tokens(vocab)?, tokens(b.model().vocab())?);
        if tokens != in_b {
            return Err(unsupported(format!("{}: the two models have different tokens for it", piece.name)));
        }
        windows.extend(tokens.chunks(width).map(|w| bos.into_iter().chain(w.iter().copied()).collect()));
    }
    windows.retain(|w: &Vec<Token>| w.len() >= 2);
    windows.truncate(params.max_windows.unwrap_or(usize::MAX));
    if windows.is_empty() {
        return Err(invalid("expected a text of at least two tokens"));
    }
    Ok(windows)
}

/// Every token of a window but the first.
fn compare(a: &mut Session, b: &mut Session, window: &[Token]) -> Result<Vec<Point>> {
    let n_vocab = a.model().hparams().n_vocab;
    let chunk = (LOGITS / (4 * n_vocab)).max(1);
    a.clear();
    b.clear();
    let mut points = Vec::with_capacity(window.len());
    // The last token's prediction is of no use, so that token is not read.
    let read = &window[..window.len() - 1];
    for (i, tokens) in read.chunks(chunk).enumerate() {
        let first = i * chunk;
        let (p, q) = (logits(a, tokens)?, logits(b, tokens)?);
        let pairs = p.par_chunks_exact(n_vocab).zip(q.par_chunks_exact(n_vocab));
        points.par_extend(pairs.enumerate().map(|(i, (p, q))| {
            let position = first + i + 1;
            Point { position, of: Divergence::of(p, q, window[position] as usize) }
        }));
    }
    let is_bad = |point: &&Point| !point.of.kl.is_finite() || !point.of.nll.iter().all(|nll| nll.is_finite());
    if let Some(Point { position, .. }) = points.iter().find(is_bad) {
        return Err(Error::Invalid(format!(
            "position {position}: expected finite logits of both models, found NaN or infinity"
        )));
    }
    Ok(points)
}

/// Rows of logits of tokens added to a session.
fn logits(session: &mut Session, tokens: &[Token]) -> Result<Vec<f32>> {
    let mut rows = Vec::with_capacity(tokens.len() * session.model().hparams().n_vocab);
    session.score(tokens, 0..tokens.len(), &mut |_, row| rows.extend_from_slice(row))?;
    Ok(rows)
}

impl Report {
    /// The report as text: the two sides, the figures over all tokens, and a Markdown table by position.
    pub fn text(&self) -> String {
        let side =
            |s: &Side| format!("{}, rope {}, cache {}, perplexity {}", s.model, s.rope, s.kv, number(s.ppl));
        let mut out = format!("a         {}\nb         {}\n", side(&self.a), side(&self.b));
        let error = |e: Option<f64>| e.map_or_else(String::new, |e| format!(" +- {e:.5}"));
        out += &format!(
            "compared  {} tokens in {} windows of {}\n\nKL(a || b), nats: mean {:.5}{}, median {:.5}, 90 % below {:.5}, \
             99 % below {:.5}, largest {:.4}\nsame top token: {:.2} %\nperplexity of b over a: {:.5}{}\n\n",
            self.tokens,
            self.windows,
            self.ctx,
            self.kl.mean,
            error(self.kl.stderr),
            self.kl.median,
            self.kl.p90,
            self.kl.p99,
            self.kl.max,
            self.same_top,
            self.ppl_ratio,
            error(self.ppl_ratio_stderr),
        );
        let cells = |b: &Bucket| {
            vec![
                format!("{}-{}", b.start, b.end),
                b.tokens.to_string(),
                format!("{:.5}", b.kl),
                format!("{:.2}", b.same_top),
                number(b.ppl_a),
                number(b.ppl_b),
            ]
        };
        let headers = ["position", "tokens", "KL", "same top %", "ppl a", "ppl b"];
        out += &table(&headers, self.buckets.iter().map(cells));
        if self.interrupted {
            out += "\ninterrupted: the figures cover the completed part\n";
        }
        out
    }
}
