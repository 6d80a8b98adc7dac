//! Perplexity by named protocol, at several context lengths in one run.

use std::time::Instant;

use serde::Serialize;

use super::protocol::{Average, Bos, BosRule, Protocol, Text, Window, WindowPlan};
use super::stats::{Mean, Perplexity};
use super::table::{number, table};
use super::{invalid, open, per_second, tokenize, uninterrupted, Document, Lm, LmSource};
use crate::control::Control;
use crate::model::Result;
use crate::Token;

/// Texts are measured by this protocol, at these lengths.
#[derive(Debug, Clone)]
pub struct Params {
    /// The protocol.
    pub protocol: &'static Protocol,
    /// Context lengths in tokens, measured in this order.
    pub ctx: Vec<usize>,
    /// Tokens between windows; `None` is the protocol's own.
    pub stride: Option<usize>,
    /// At most this many windows a length, spread evenly over the plan.
    pub max_windows: Option<usize>,
    /// Width in tokens of the buckets of perplexity by position; `None` is an eighth of the context.
    pub bucket: Option<usize>,
    /// Whether BOS is put in front; `None` is the protocol's rule.
    pub bos: Option<bool>,
    /// Documents of fewer tokens are left out (`--dataset-min-tokens` of YaRN's script).
    pub min_tokens: usize,
    /// At most this many of the documents that are left (`--samples` of YaRN's script).
    pub max_documents: Option<usize>,
}

impl Params {
    /// A protocol as published, on all documents.
    pub fn new(protocol: &'static Protocol, ctx: Vec<usize>) -> Self {
        Params {
            protocol,
            ctx,
            stride: None,
            max_windows: None,
            bucket: None,
            bos: None,
            min_tokens: 0,
            max_documents: None,
        }
    }
}

/// Result of a run. Serialises to the JSON that the command line promises.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Report {
    /// The model's file.
    pub model: String,
    /// The rope spec in force, at the first length.
    pub rope: String,
    /// The protocol's name.
    pub protocol: &'static str,
    /// The stride in force; `null` for protocols without one.
    pub stride: Option<usize>,
    /// One entry per context length, in the order asked for.
    pub results: Vec<Row>,
    /// The file that the protocol is taken from.
    pub source: &'static str,
    /// Whether BOS was used.
    pub bos: bool,
    /// Documents measured.
    pub documents: usize,
    /// Tokens of these documents, without BOS.
    pub document_tokens: usize,
    /// Whether the run was stopped: lengths may be missing, and the last one may lack windows.
    pub interrupted: bool,
    /// Remarks that a reader of the figures must know.
    pub notes: Vec<String>,
}

/// One context length.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Row {
    /// Tokens of a full window, BOS among them.
    pub ctx: usize,
    /// Perplexity, negative log-likelihood and their standard errors, averaged as the protocol says.
    #[serde(flatten)]
    pub headline: Perplexity,
    /// Tokens scored.
    pub tokens: usize,
    /// Windows done.
    pub windows: usize,
    /// Tokens fed per second.
    pub tokens_per_s: f64,
    /// Every scored token weighs the same.
    pub token_weighted: Perplexity,
    /// Every window weighs the same.
    pub window_mean: Perplexity,
    /// By position in the window, empty buckets left out; token-weighted.
    pub buckets: Vec<Bucket>,
    /// Windows this run was to do.
    pub windows_planned: usize,
    /// Windows of the whole protocol, before sampling.
    pub windows_total: usize,
    /// Documents (or streams) shorter than one window.
    pub short_documents: usize,
    /// Tokens fed.
    pub tokens_fed: usize,
    /// Wall time in seconds.
    pub seconds: f64,
    /// The rope spec in force at this length.
    pub rope: String,
    /// Whether windows are missing because the run was stopped.
    pub interrupted: bool,
}

/// Perplexity of the tokens at positions `start..end` of their windows.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Bucket {
    /// First position; 0 is the first token fed.
    pub start: usize,
    /// One past the last position.
    pub end: usize,
    /// Perplexity and its standard error.
    #[serde(flatten)]
    pub value: Perplexity,
    /// Tokens scored.
    pub tokens: usize,
}

/// Measures perplexity. `model` is only copied to the report.
///
/// All lengths are planned before the first is measured, so that a text too short for the last one is an
/// error at once. Progress is counted in tokens fed to the model, over all lengths, and reported after every
/// window.
///
/// # Errors
/// No documents or lengths; a text that the protocol has no window for (naming the document); a
/// log-likelihood that is no finite number, naming window and position; whatever the model reports. Being
/// stopped is no error: see [`Report::interrupted`].
pub fn run(
    source: &dyn LmSource,
    model: &str,
    documents: &[Document],
    params: &Params,
    control: &Control<'_>,
) -> Result<Report> {
    let protocol = params.protocol;
    for (name, value) in
        [("max-windows", params.max_windows), ("bucket", params.bucket), ("stride", params.stride)]
    {
        if value == Some(0) {
            return Err(invalid(format!("{name}: expected at least 1, found 0")));
        }
    }
    let Some(&first) = params.ctx.first() else { return Err(invalid("no context length given")) };
    let stride = params.stride.or(protocol.stride).unwrap_or(1);

    let lm = open(source, first, control)?;
    let texts = Texts::new(&*lm, documents, params)?;
    let plans = plan(&texts, params, stride)?;
    let mut report = Report {
        model: model.into(),
        rope: lm.rope(),
        protocol: protocol.name,
        stride: protocol.stride.map(|_| stride),
        results: Vec::new(),
        source: protocol.source,
        bos: texts.bos.is_some(),
        documents: texts.n_documents,
        document_tokens: texts.n_tokens,
        interrupted: false,
        notes: notes(params, &plans),
    };
    let to_feed = |plan: &WindowPlan| plan.sample(params.max_windows).map(|w| w.n_fed()).sum::<usize>();
    let mut fed = Fed { done: 0, total: plans.iter().map(|(_, plan)| to_feed(plan)).sum() };
    let mut lm = Some(lm);
    for (ctx, plan) in &plans {
        if control.stopped() {
            report.interrupted = true;
            break;
        }
        let opened = match lm.take() {
            Some(lm) => Some(lm),
            None => uninterrupted(open(source, *ctx, control))?,
        };
        let row = match opened {
            Some(mut lm) => measure(&mut *lm, *ctx, &texts, plan, params, &mut fed, control)?,
            None => None,
        };
        report.interrupted |= row.as_ref().is_none_or(|row| row.interrupted);
        report.results.extend(row);
        if report.interrupted {
            break;
        }
    }
    Ok(report)
}

/// The windows of every length.
fn plan(texts: &Texts, params: &Params, stride: usize) -> Result<Vec<(usize, WindowPlan)>> {
    let (protocol, lengths, bos) = (params.protocol, texts.lengths(), texts.bos.is_some());
    let plan = |&ctx: &usize| {
        let plan = WindowPlan::new(protocol, &lengths, ctx, stride, bos).map_err(|e| {
            invalid(format!("{}: protocol {}: {}", texts.names[e.text], protocol.name, e.reason))
        })?;
        Ok((ctx, plan))
    };
    params.ctx.iter().map(plan).collect()
}

/// Tokens fed by the whole run.
struct Fed {
    done: usize,
    total: usize,
}

/// The documents as tokens, from which windows are cut: a text for each document, or one of all.
struct Texts {
    names: Vec<String>,
    tokens: Vec<Vec<Token>>,
    bos: Option<Token>,
    n_documents: usize,
    n_tokens: usize,
}

impl Texts {
    fn new(lm: &dyn Lm, documents: &[Document], params: &Params) -> Result<Texts> {
        let protocol = params.protocol;
        let by_rule = match protocol.bos {
            BosRule::Vocabulary => lm.bos().is_some(),
            BosRule::Flags => lm.add_bos(),
        };
        let bos = if params.bos.unwrap_or(by_rule) {
            Some(lm.bos().ok_or_else(|| invalid("BOS is asked for, but the vocabulary has none"))?)
        } else {
            None
        };
        let mut texts = Texts { names: Vec::new(), tokens: Vec::new(), bos, n_documents: 0, n_tokens: 0 };
        let in_stream = protocol.text == Text::Stream;
        for document in documents {
            if params.max_documents.is_some_and(|max| texts.n_documents >= max) {
                break;
            }
            let tokens = tokenize(lm, &document.text, in_stream && bos.is_some())?;
            let n_tokens = tokens.len() - usize::from(in_stream && bos.is_some());
            if n_tokens < params.min_tokens {
                continue;
            }
            texts.n_documents += 1;
            texts.n_tokens += n_tokens;
            match texts.tokens.last_mut().filter(|_| in_stream) {
                Some(stream) => {
                    stream.extend(tokens);
                    texts.names[0] = format!("{} documents", texts.n_documents);
                }
                None => {
                    texts.names.push(document.name.clone());
                    texts.tokens.push(tokens);
                }
            }
        }
        if texts.tokens.is_empty() {
            let least = params.min_tokens;
            return Err(invalid(format!(
                "no documents of at least {least} tokens among the {} given",
                documents.len()
            )));
        }
        Ok(texts)
    }

    fn lengths(&self) -> Vec<usize> {
        self.tokens.iter().map(Vec::len).collect()
    }

    /// Puts the tokens of a window in place of what `tokens` holds.
    fn feed(&self, w: &Window, tokens: &mut Vec<Token>) {
        tokens.clear();
        tokens.extend(self.bos.filter(|_| w.bos == Bos::Prepended));
        tokens.extend_from_slice(&self.tokens[w.text][w.start..w.end]);
        if let (Bos::Replacing, Some(bos), Some(token)) = (w.bos, self.bos, tokens.first_mut()) {
            *token = bos;
        }
    }
}

fn notes(params: &Params, plans: &[(usize, WindowPlan)]) -> Vec<String> {
    let protocol = params.protocol;
    let mut notes = Vec::new();
    if let (None, Some(stride)) = (protocol.stride, params.stride) {
        notes.push(format!("protocol {} has no stride: {stride} is not used", protocol.name));
    }
    if protocol.overlaps {
        notes.push("tokens are scored by several windows: standard errors are too small".into());
    }
    for (ctx, plan) in plans.iter().filter(|(_, plan)| plan.n_short > 0) {
        notes.push(format!("ctx {ctx}: {} of the texts are shorter than one window", plan.n_short));
    }
    notes
}

/// Negative log-likelihoods of one length, averaged in every way that is reported.
struct Sums {
    /// Width in tokens of a bucket.
    width: usize,
    /// By position in the window.
    buckets: Vec<Mean>,
    by_token: Mean,
    by_window: Mean,
}

impl Sums {
    fn new(ctx: usize, params: &Params) -> Sums {
        let width = params.bucket.unwrap_or(ctx.div_ceil(8)).clamp(1, ctx);
        let buckets = vec![Mean::default(); ctx.div_ceil(width)];
        Sums { width, buckets, by_token: Mean::default(), by_window: Mean::default() }
    }

    /// Takes in the values of one window, whose first is at position `from`.
    ///
    /// # Errors
    /// The position and value of one that is not finite.
    fn window(&mut self, from: usize, nll: &[f32]) -> Result<(), (usize, f32)> {
        let mut mean = Mean::default();
        for (position, &x) in (from..).zip(nll) {
            if !x.is_finite() {
                return Err((position, x));
            }
            let x = f64::from(x);
            mean.push(x);
            self.by_token.push(x);
            self.buckets[position / self.width].push(x);
        }
        self.by_window.push(mean.mean());
        Ok(())
    }

    fn headline(&self, protocol: &Protocol) -> Result<Perplexity> {
        match protocol.average {
            Average::Tokens => Perplexity::new(&self.by_token, std::f64::consts::E),
            Average::Windows { base } => Perplexity::new(&self.by_window, base),
        }
    }

    /// The buckets that hold anything.
    fn buckets(&self, ctx: usize) -> Result<Vec<Bucket>> {
        let bucket = |(i, mean): (usize, &Mean)| -> Result<Bucket> {
            let (start, end) = (i * self.width, ((i + 1) * self.width).min(ctx));
            let value = Perplexity::new(mean, std::f64::consts::E)
                .map_err(|e| invalid(format!("ctx {ctx}: positions {start} to {}: {e}", end - 1)))?;
            Ok(Bucket { start, end, value, tokens: mean.n() })
        };
        self.buckets.iter().enumerate().filter(|(_, m)| m.n() > 0).map(bucket).collect()
    }
}

/// Measures one length; `None` when stopped before the first window was done.
fn measure(
    lm: &mut dyn Lm,
    ctx: usize,
    texts: &Texts,
    plan: &WindowPlan,
    params: &Params,
    fed: &mut Fed,
    control: &Control<'_>,
) -> Result<Option<Row>> {
    let mut sums = Sums::new(ctx, params);
    let (mut tokens, mut tokens_fed) = (Vec::new(), 0);
    let start = Instant::now();
    let windows = plan.sample(params.max_windows);
    let n_windows = windows.len();
    for (i, w) in windows.enumerate() {
        if control.stopped() {
            break;
        }
        texts.feed(&w, &mut tokens);
        let Some(nll) = uninterrupted(lm.nll(&tokens, w.from))? else { break };
        if nll.len() != w.n_scored() {
            let (expected, found) = (w.n_scored(), nll.len());
            return Err(invalid(format!("window {i}: expected {expected} log-likelihoods, found {found}")));
        }
        sums.window(w.from, &nll).map_err(|(position, x)| {
            let (text, Window { start, end, .. }) = (&texts.names[w.text], w);
            invalid(format!(
                "{text}: ctx {ctx}: window {i} (tokens {start}..{end}), position {position}: negative log-likelihood is {x}"
            ))
        })?;
        tokens_fed += tokens.len();
        fed.done += tokens.len();
        let so_far = sums.headline(params.protocol);
        let so_far = so_far.map_err(|e| invalid(format!("ctx {ctx}: up to window {i}: {e}")))?.ppl;
        let what = format_args!("ctx {ctx} window {}/{n_windows} ppl {so_far:.3}", i + 1);
        control.report(what, fed.done as u64, fed.total as u64);
    }
    if sums.by_window.n() == 0 {
        return Ok(None);
    }
    let seconds = start.elapsed().as_secs_f64();
    Ok(Some(Row {
        ctx,
        headline: sums.headline(params.protocol)?,
        tokens: sums.by_token.n(),
        windows: sums.by_window.n(),
        tokens_per_s: per_second(tokens_fed, seconds),
        token_weighted: Perplexity::new(&sums.by_token, std::f64::consts::E)?,
        window_mean: Perplexity::new(&sums.by_window, std::f64::consts::E)?,
        buckets: sums.buckets(ctx)?,
        windows_planned: n_windows,
        windows_total: plan.len(),
        short_documents: plan.n_short,
        tokens_fed,
        seconds,
        rope: lm.rope(),
        interrupted: sums.by_window.n() < n_windows,
    }))
}

impl Report {
    /// The report as text: what was measured, a markdown table of the lengths, one of perplexity by position,
    /// notes.
    pub fn text(&self) -> String {
        let stride = self.stride.map(|s| format!(", stride {s}")).unwrap_or_default();
        let bos = if self.bos { "with BOS" } else { "no BOS" };
        let mut out = format!("model     {}\nrope      {}\n", self.model, self.rope);
        out += &format!("protocol  {}{stride}, {bos} ({})\n", self.protocol, self.source);
        out += &format!("text      {} tokens in {} document(s)\n\n", self.document_tokens, self.documents);
        let rows: Vec<_> = self.results.iter().map(Row::cells).collect();
        out += &table(&["ctx", "ppl", "+/-", "by token", "by window", "tokens", "windows", "tok/s"], &rows);
        let buckets: Vec<_> =
            self.results.iter().filter(|r| r.buckets.len() > 1).flat_map(Row::bucket_cells).collect();
        if !buckets.is_empty() {
            out += "\n";
            out += &table(&["ctx", "position", "ppl", "+/-", "tokens"], &buckets);
        }
        for note in &self.notes {
            out += &format!("\nnote: {note}");
        }
        if self.interrupted {
            out += "\ninterrupted: the figures cover what was done";
        }
        out.trim_end().to_owned() + "\n"
    }
}

impl Row {
    fn cells(&self) -> Vec<String> {
        vec![
            self.ctx.to_string(),
            number(self.headline.ppl),
            self.headline.ppl_stderr.map(number).unwrap_or("-".into()),
            number(self.token_weighted.ppl),
            number(self.window_mean.ppl),
            self.tokens.to_string(),
            if self.windows == self.windows_total {
                self.windows.to_string()
            } else {
                format!("{} of {}", self.windows, self.windows_total)
            },
            format!("{:.1}", self.tokens_per_s),
        ]
    }

    fn bucket_cells(&self) -> impl Iterator<Item = Vec<String>> + '_ {
        self.buckets.iter().map(|b| {
            vec![
                self.ctx.to_string(),
                format!("{}-{}", b.start, b.end - 1),
                number(b.value.ppl),
                b.value.ppl_stderr.map(number).unwrap_or("-".into()),
                b.tokens.to_string(),
            ]
        })
    }
}
