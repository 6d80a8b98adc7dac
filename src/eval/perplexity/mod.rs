//! Perplexity by named protocol, at several context lengths in one run.

use std::collections::BTreeMap;
use std::time::Instant;

use self::texts::Texts;
use super::protocol::{Average, Protocol, Window, WindowPlan};
use super::stats::{Mean, Perplexity};
use super::{invalid, open, per_second, uninterrupted, Document, Lm, LmSource};
use crate::control::Control;
use crate::model::{Error, Result};

pub mod longppl;
mod report;
mod texts;

pub use report::{paired, Bucket, MeanOverCtx, Paired, Part, Report, Row, Sample, TextRow};

ropewalk_core::setters! {
    /// Protocol, lengths, and other settings of a perplexity run.
    #[derive(Debug, Clone)]
    pub struct Params {
        /// The protocol.
        pub protocol: &'static Protocol,
        /// Window lengths in tokens, measured in this order.
        pub lengths: Vec<usize>,
        /// The context size to plan methods for, if it is larger than a length needs. Short windows are then measured as
        /// the model runs at this context.
        pub ctx: Option<usize>,
        /// Tokens between window starts; `None` is the protocol's default.
        pub stride: Option<usize>,
        /// Maximum number of windows per length, spread evenly over the plan.
        pub max_windows: Option<usize>,
        /// Bucket width for perplexity by position, in tokens; `None` is an eighth of the context.
        pub bucket: Option<usize>,
        /// `Some(true)` if windows start with BOS; `None` is the protocol's rule.
        pub bos: Option<bool>,
        /// Skips documents with fewer tokens (`--dataset-min-tokens` of YaRN's script).
        pub min_tokens: usize,
        /// Maximum number of the remaining documents (`--samples` of YaRN's script).
        pub max_documents: Option<usize>,
        /// Random seed to draw these documents; `None` takes the first ones.
        pub seed: Option<u64>,
        /// Also measures LongPPL with these bounds; only for protocol `window`.
        pub longppl: Option<longppl::Params>,
    }
}

impl Params {
    /// A protocol as published, on all documents.
    pub fn new(protocol: &'static Protocol, lengths: Vec<usize>) -> Self {
        Params {
            protocol,
            lengths,
            ctx: None,
            stride: None,
            max_windows: None,
            bucket: None,
            bos: None,
            min_tokens: 0,
            max_documents: None,
            seed: None,
            longppl: None,
        }
    }
}

/// Measures perplexity. `model` is only copied to the report.
///
/// All lengths are planned before the first one is measured, so a text that is too short for the last length, or a
/// context that does not fit in memory, is an error at once. Progress is counted in tokens fed to the model, over all lengths, and reported within windows
/// and after each.
///
/// # Errors
/// Returns an error if there are no documents or lengths, if the protocol has no window for a text (with the name of
/// the document), if a log-likelihood is not finite (with window and position), or if the model fails. An interrupted
/// run is not an error: see [`Report::interrupted`].
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
            return Err(Error::argument(name, "at least 1", 0));
        }
    }
    if let Some(longppl) = params.longppl {
        longppl::check(&longppl, protocol)?;
    }
    let Some(&first) = params.lengths.first() else {
        return Err(Error::argument("lengths", "at least one", "none"));
    };
    let stride = params.stride.or(protocol.stride).unwrap_or(1);
    let context = |length| protocol.context(length, stride).max(params.ctx.unwrap_or(0));
    let open = |length| open(source, context(length), 1, control);

    // An error at the last length would lose the figures of those before it.
    params.lengths.iter().try_for_each(|length| source.check(context(*length)))?;
    let lm = open(first)?;
    let texts = Texts::new(&*lm, documents, params)?;
    let of_texts = texts.lengths();
    let windows = |&ctx: &usize| {
        let plan = WindowPlan::new(protocol, &of_texts, ctx, stride, texts.bos.is_some()).map_err(|e| {
            invalid(format!("{}: protocol {}: {}", texts.names[e.text], protocol.name, e.reason))
        })?;
        Ok((ctx, plan))
    };
    // The windows of every length.
    let plans = params.lengths.iter().map(windows).collect::<Result<Vec<_>>>()?;
    let longest = of_texts.iter().max().copied().unwrap_or(0);
    let shorter = plans.iter().filter(|(_, plan)| plan.n_short > 0).map(|(ctx, plan)| {
        let (short, n) = (plan.n_short, of_texts.len());
        format!(
            "ctx {ctx}: {short} of {n} texts are shorter than one window; the longest text has {longest} tokens"
        )
    });
    let shorter: Vec<String> = shorter.collect();
    let mut report = Report {
        model: model.into(),
        rope: lm.rope(),
        task: "perplexity",
        protocol: protocol.name,
        stride: protocol.stride.map(|_| stride),
        results: Vec::new(),
        source: protocol.source,
        bos: texts.bos.is_some(),
        documents: texts.documents.len(),
        document_tokens: texts.n_tokens,
        sample: params.seed.map(|seed| Sample { seed, documents: texts.documents.clone() }),
        mean_over_ctx: Vec::new(),
        interrupted: false,
        notes: notes(params, &texts, &shorter),
    };
    // Before the hours that it may take, not after them.
    shorter.iter().for_each(|what| control.note(format_args!("note: {what}")));
    let more = |n| params.longppl.map_or(0, |longppl| longppl.n_more(n, texts.bos.is_some()));
    let to_feed = |plan: &WindowPlan| {
        plan.sample(params.max_windows).map(|w| w.n_fed() + more(w.n_fed())).sum::<usize>()
    };
    let mut fed = Fed { done: 0, total: plans.iter().map(|(_, plan)| to_feed(plan)).sum() };
    let mut lm = Some(lm);
    for (ctx, plan) in &plans {
        if control.stopped() {
            report.interrupted = true;
            break;
        }
        let opened = match lm.take() {
            Some(lm) => Some(lm),
            None => uninterrupted(open(*ctx))?,
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
    report.finish();
    Ok(report)
}

/// Tokens fed by the whole run.
struct Fed {
    done: usize,
    total: usize,
}

fn notes(params: &Params, texts: &Texts, shorter: &[String]) -> Vec<String> {
    let protocol = params.protocol;
    let mut notes = texts.notes.clone();
    if let Some(ctx) = params.ctx {
        notes.push(format!("methods are computed for a context of at least {ctx} tokens"));
    }
    if let (None, Some(stride)) = (protocol.stride, params.stride) {
        notes.push(format!("protocol {} has no stride: {stride} is not used", protocol.name));
    }
    if protocol.overlaps {
        notes.push("tokens are scored by several windows: standard errors are too small".into());
    }
    let trunc_len = params.longppl.map_or(0, |longppl| longppl.trunc_len);
    let short = params.lengths.iter().filter(|length| **length <= trunc_len);
    notes.extend(short.map(|ctx| {
        format!("ctx {ctx}: LongPPL has no key tokens: they have at least {trunc_len} tokens before them (trunc-len)")
    }));
    notes.extend_from_slice(shorter);
    notes
}

/// Negative log-likelihoods of one length, averaged in every way that is reported.
#[derive(Default)]
struct Sums {
    /// Width in tokens of a bucket.
    width: usize,
    /// By position in the window.
    buckets: Vec<Mean>,
    by_token: Mean,
    by_window: Mean,
    /// The mean of each window.
    windows: Vec<f64>,
    /// By the text that windows are cut from; texts without windows have none.
    by_text: BTreeMap<usize, TextSums>,
    longppl: Option<longppl::Sums>,
}

/// Sums over the windows of one text.
#[derive(Default)]
struct TextSums {
    windows: usize,
    /// By bucket: tokens scored, and the sum of their negative log-likelihoods.
    buckets: BTreeMap<usize, (usize, f64)>,
}

impl Sums {
    fn new(ctx: usize, params: &Params) -> Sums {
        let width = params.bucket.unwrap_or(ctx.div_ceil(8)).clamp(1, ctx);
        let buckets = vec![Mean::default(); ctx.div_ceil(width)];
        let longppl = params.longppl.map(longppl::Sums::new);
        Sums { width, buckets, longppl, ..Sums::default() }
    }

    /// Takes in the values of one window.
    fn window(&mut self, w: &Window, nll: &[f32]) {
        let mut mean = Mean::default();
        let text = self.by_text.entry(w.text).or_default();
        text.windows += 1;
        for (position, &x) in (w.position + w.from..).zip(nll) {
            let x = f64::from(x);
            mean.push(x);
            self.by_token.push(x);
            let bucket = position / self.width;
            self.buckets[bucket].push(x);
            let (tokens, nll) = text.buckets.entry(bucket).or_default();
            *tokens += 1;
            *nll += x;
        }
        self.by_window.push(mean.mean());
        self.windows.push(mean.mean());
    }

    fn headline(&self, protocol: &Protocol) -> Result<Perplexity> {
        match protocol.average {
            Average::Tokens => Perplexity::new(&self.by_token, std::f64::consts::E),
            Average::Windows { base } => Perplexity::new(&self.by_window, base),
        }
    }

    /// The texts that have windows, in their order.
    fn texts(&self, names: &[String], ctx: usize) -> Vec<TextRow> {
        let row = |(&text, sums): (&usize, &TextSums)| {
            let part = |(&i, &(tokens, nll_sum)): (&usize, &(usize, f64))| {
                let (start, end) = self.range(i, ctx);
                Part { start, end, tokens, nll_sum }
            };
            let buckets: Vec<_> = sums.buckets.iter().map(part).collect();
            TextRow {
                name: names[text].clone(),
                windows: sums.windows,
                tokens: buckets.iter().map(|b| b.tokens).sum(),
                nll_sum: buckets.iter().map(|b| b.nll_sum).sum(),
                buckets,
            }
        };
        self.by_text.iter().map(row).collect()
    }

    /// The positions of a bucket.
    fn range(&self, i: usize, ctx: usize) -> (usize, usize) {
        (i * self.width, ((i + 1) * self.width).min(ctx))
    }

    /// The buckets that hold anything.
    fn buckets(&self, ctx: usize) -> Result<Vec<Bucket>> {
        let bucket = |(i, mean): (usize, &Mean)| -> Result<Bucket> {
            let (start, end) = self.range(i, ctx);
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
    let mut what = format!("ctx {ctx} window 1/{n_windows}");
    for (i, w) in windows.enumerate() {
        if control.stopped() {
            break;
        }
        texts.feed(&w, &mut tokens);
        // One window may take an hour.
        let mut read =
            |n: usize| control.report(format_args!("{what}"), (fed.done + n) as u64, fed.total as u64);
        let Some(nll) = uninterrupted(lm.nll(&tokens, w.from, &mut read))? else { break };
        if nll.len() != w.n_scored() {
            let (expected, found) = (w.n_scored(), nll.len());
            return Err(invalid(format!("window {i}: expected {expected} log-likelihoods, found {found}")));
        }
        let text = &texts.names[w.text];
        if let Some((at, x)) = (w.from..).zip(&nll).find(|(_, x)| !x.is_finite()) {
            let (Window { start, end, .. }, position) = (w, w.position + at);
            return Err(invalid(format!(
                "{text}: ctx {ctx}: window {i} (tokens {start}..{end}), position {position}: negative \
                 log-likelihood is {x}"
            )));
        }
        tokens_fed += tokens.len();
        fed.done += tokens.len();
        if let Some(longppl) = &mut sums.longppl {
            let mut feed = |n| {
                tokens_fed += n;
                fed.done += n;
                let what = format_args!("ctx {ctx} window {}/{n_windows} short contexts", i + 1);
                control.report(what, fed.done as u64, fed.total as u64);
                !control.stopped()
            };
            let done = longppl.document(lm, &tokens, texts.bos.is_some(), &nll, &mut feed);
            if !done.map_err(|e| invalid(format!("{text}: ctx {ctx}: {e}")))? {
                break;
            }
        }
        sums.window(&w, &nll);
        let so_far = sums.headline(params.protocol);
        let so_far = so_far.map_err(|e| invalid(format!("ctx {ctx}: up to window {i}: {e}")))?.ppl;
        what = format!("ctx {ctx} window {}/{n_windows} ppl {so_far:.3}", i + 1);
        control.report(format_args!("{what}"), fed.done as u64, fed.total as u64);
    }
    if sums.by_window.n() == 0 {
        return Ok(None);
    }
    let seconds = start.elapsed().as_secs_f64();
    Ok(Some(Row {
        ctx,
        n_ctx: lm.n_ctx(),
        headline: sums.headline(params.protocol)?,
        tokens: sums.by_token.n(),
        windows: sums.by_window.n(),
        tokens_per_s: per_second(tokens_fed, seconds),
        token_weighted: Perplexity::new(&sums.by_token, std::f64::consts::E)?,
        window_mean: Perplexity::new(&sums.by_window, std::f64::consts::E)?,
        buckets: sums.buckets(ctx)?,
        texts: sums.texts(&texts.names, ctx),
        longppl: sums.longppl.as_ref().map(longppl::Sums::result).transpose()?,
        windows_planned: n_windows,
        windows_total: plan.len(),
        short_documents: plan.n_short,
        tokens_fed,
        seconds,
        rope: lm.rope(),
        interrupted: sums.by_window.n() < n_windows,
        window_nll: sums.windows,
    }))
}
