//! Recommends a RoPE method for a model at a context, by measuring methods that need no training within a time budget.
//!
//! There are two rounds. First, each method predicts one window of the text at the full context. Perplexity within
//! the original context shows the cost of the method, and perplexity beyond it shows whether the model still follows.
//! Perplexity alone prefers methods that cannot see the middle of the text, so the best few methods then look for
//! passkeys at random depths. The recommended method has the lowest perplexity beyond the original context among the
//! methods that find as many passkeys as the best, within the best's interval.
//!
//! Time may not suffice for all methods. Those with the lowest loss in docs/evidence.md come first.
//!
//! If a file declares a scaling, [`candidates`] puts that scaling first. It is the model as trained, and takes part
//! in both rounds. Nobody trained the model without the scaling, so that is measured only on request.

use std::fmt::Write;
use std::path::Path;
use std::time::Instant;

use serde::Serialize;

use super::stats::{wilson, Mean};
use super::suite::{self, Unkept};
use super::table::{number, table};
use super::{invalid, perplexity, protocol, Document, LmSource};
use crate::control::Control;
use crate::hparams::Hparams;
use crate::model::Result;
use crate::rope::{Plan, Spec, METHODS};

/// Methods that go into the second round.
const FINALISTS: usize = 4;
/// Passkeys that each of them looks for, at least and at most.
const SAMPLES: (usize, usize) = (4, 20);
/// `plain`, because a model may need no method, then the others by their loss past the trained context in docs/evidence.md,
/// lowest first.
const ORDER: [&str; 14] = [
    "plain",
    "lm-infinite",
    "streaming",
    "dca",
    "yarn",
    "self-extend",
    "harpe",
    "ntk",
    "dynamic-ntk",
    "rerope",
    "abf",
    "sba",
    "string",
    "pi",
];

ropewalk_core::setters! {
    /// The context to measure at, and the time for it.
    #[derive(Debug, Clone)]
    pub struct Params {
        /// The context to extend to, in tokens.
        pub ctx: usize,
        /// The original context, in tokens.
        pub n_ctx_orig: usize,
        /// True if the model's file declares a scaling, so that `plain` is another model.
        pub scaled: bool,
        /// Approximate time limit, in seconds. A few passkeys are always measured.
        pub seconds: f64,
        /// The number of candidates, from the first, that are measured regardless of time. The others are measured if
        /// time is left for them and for the passkeys.
        pub least: usize,
    }
}

impl Params {
    /// Ten minutes for this model at this context, and all candidates.
    pub fn new(hp: &Hparams, ctx: usize) -> Params {
        let scaled = Spec::declared(hp).is_ok_and(|own| own != Spec::plain());
        Params { ctx, n_ctx_orig: hp.n_ctx_orig(), scaled, seconds: 600.0, least: usize::MAX }
    }
}

/// The advice that the figures of a run support.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Advice {
    /// Use the file as it is: it opens under [`Report::recommended`].
    Keep,
    /// Write [`Report::recommended`] into the file.
    Convert,
    /// Train the model for this context: no method found a passkey.
    Train,
    /// Measure again: the run was stopped, or ran out of time, before a method found a passkey.
    #[default]
    Repeat,
}

/// Result of a run.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Report {
    /// The model's file.
    pub model: String,
    /// The context measured at.
    pub ctx: usize,
    /// The original context, in tokens.
    pub n_ctx_orig: usize,
    /// The spec that the model's file declares, if it declares a scaling and was measured with it.
    pub declared: Option<String>,
    /// The spec to use; `null` if no method found a passkey.
    pub recommended: Option<String>,
    /// The advice.
    pub advice: Advice,
    /// Every method, the best ones first.
    pub results: Vec<Row>,
    /// Passkeys that each finalist looked for.
    pub samples: usize,
    /// Methods that were not measured, because no time was left for them.
    pub skipped: usize,
    /// True if the run was stopped: methods, or passkeys, are missing.
    pub interrupted: bool,
    /// Wall time, in seconds.
    pub seconds: f64,
}

/// One method.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Row {
    /// The spec, with its defaults filled in if it was measured.
    pub rope: String,
    /// `advise`, as rows of other measurements name their task.
    pub task: &'static str,
    /// The context measured at.
    pub ctx: usize,
    /// True if the row is complete; `false` if the run was stopped before, or if [`Row::note`] gives the reason for
    /// missing figures.
    pub finished: bool,
    /// Perplexity within the original context.
    pub ppl_within: Option<f64>,
    /// Perplexity beyond the original context.
    pub ppl_beyond: Option<f64>,
    /// Passkeys found, of [`Report::samples`]; `None` for methods that were dropped after the first round.
    pub passkeys: Option<usize>,
    /// The fraction of passkeys found, 0 to 1.
    pub accuracy: Option<f64>,
    /// Lower end of the 95% Wilson interval of `accuracy`.
    pub ci_low: Option<f64>,
    /// Upper end of that interval.
    pub ci_high: Option<f64>,
    /// The reason why there are no figures.
    pub note: Option<String>,
}

/// The specs to measure by default: the file's scaling, if it declares one, and all other methods that work on the
/// model. After the file's scaling and `plain`, they have the order of their loss in docs/evidence.md.
pub fn candidates(hp: &Hparams, ctx: usize) -> Vec<Spec> {
    let declared = Spec::declared(hp).ok().filter(|own| *own != Spec::plain());
    let own = declared.and_then(|own| Plan::new(&own, hp, ctx).ok());
    let of_name = |name: &str| name.parse::<Spec>().ok();
    let first = own.is_some().then(|| of_name(Spec::DECLARED)).flatten();
    let mut names: Vec<&str> = METHODS.iter().map(|m| m.name).collect();
    names.sort_by_key(|name| ORDER.iter().position(|o| o == name).unwrap_or(ORDER.len()));
    let methods = names.into_iter().filter_map(of_name).filter(|spec| {
        let plan = Plan::new(spec, hp, ctx);
        let differs = |own: &Plan, plan: Plan| *spec != Spec::plain() && !plan.same_positions(own);
        plan.is_ok_and(|plan| own.as_ref().is_none_or(|own| differs(own, plan)))
    });
    first.into_iter().chain(methods).collect()
}

/// Measures candidates. `source_of` makes the model's source under a spec. The text is the first of `documents` that
/// is long enough for the context.
///
/// # Errors
/// Returns an error if no text is as long as the context, if the context does not exceed the original one, or if the
/// model fails for all candidates.
pub fn run<'a>(
    source_of: &dyn Fn(&Spec) -> Box<dyn LmSource + 'a>,
    model: &str,
    candidates: &[Spec],
    documents: &[Document],
    params: &Params,
    control: &Control<'_>,
) -> Result<Report> {
    if params.ctx <= params.n_ctx_orig {
        return Err(invalid(format!(
            "ctx {}: the original context is {} tokens, so no method is needed: expected a longer context",
            params.ctx, params.n_ctx_orig
        )));
    }
    let start = Instant::now();
    let (ctx, n_ctx_orig) = (params.ctx, params.n_ctx_orig);
    let mut report = Report { model: model.into(), ctx, n_ctx_orig, ..Report::default() };
    let mut specs: Vec<(Spec, Row)> = Vec::new();
    let how = perplexity::Params {
        max_windows: Some(1),
        // BOS may be one of the context's tokens.
        min_tokens: ctx - 1,
        max_documents: Some(1),
        bucket: Some(n_ctx_orig),
        ..perplexity::Params::new(protocol::protocol("window")?, vec![ctx])
    };
    let passkeys = FINALISTS.min(candidates.len()) * SAMPLES.0;
    for (i, spec) in candidates.iter().enumerate() {
        if control.stopped() {
            report.interrupted = true;
            break;
        }
        let begun = Instant::now();
        let mut row = Row { rope: spec.to_string(), task: "advise", ctx, ..Row::default() };
        let (spent, read) = (start.elapsed().as_secs_f64(), measured(&specs));
        // The order says which ones to leave out: all after the first that is.
        let late = || read > 0 && spent + spent / read as f64 * (1 + passkeys) as f64 > params.seconds;
        if report.skipped > 0 || (i >= params.least && late()) {
            row.note = Some("not measured: no time left".into());
            report.skipped += 1;
            specs.push((spec.clone(), row));
            continue;
        }
        control.report(format_args!("perplexity under {spec}"), i as u64, candidates.len() as u64);
        match perplexity::run(&*source_of(spec), "", documents, &how, &control.without_progress()) {
            // A method that cannot serve the model is a row that says so.
            Err(e) => row.note = Some(e.to_string()),
            Ok(found) => {
                row.rope.clone_from(&found.rope);
                if let Some(result) = found.results.first() {
                    let (mut within, mut beyond) = (Mean::default(), Mean::default());
                    for bucket in &result.buckets {
                        let mean = if bucket.start < n_ctx_orig { &mut within } else { &mut beyond };
                        (0..bucket.tokens).for_each(|_| mean.push(bucket.value.nll));
                    }
                    row.ppl_within = (within.n() > 0).then(|| within.mean().exp());
                    row.ppl_beyond = (beyond.n() > 0).then(|| beyond.mean().exp());
                }
            }
        }
        // The first method that was measured says how long all of them take at least.
        if row.ppl_beyond.is_some() && specs.iter().all(|(_, row)| row.ppl_beyond.is_none()) {
            let methods = params.least.clamp(i + 1, candidates.len()) - i;
            let least = begun.elapsed().as_secs_f64() * (methods + passkeys) as f64;
            if least > 1.2 * params.seconds {
                control.note(format_args!(
                    "{} methods at {} tokens need about {:.0} minutes or more here (the limit is {}); continuing: Ctrl-C \
                     prints the results so far, fewer methods or a shorter context take less time",
                    i + methods,
                    params.ctx,
                    least / 60.0,
                    params.seconds / 60.0
                ));
            }
        }
        if spec.is_declared() {
            report.declared = Some(row.rope.clone());
        }
        specs.push((spec.clone(), row));
    }
    report.interrupted |= control.stopped();
    if specs.iter().all(|(_, row)| row.ppl_beyond.is_none()) && !report.interrupted {
        let why = specs.first().and_then(|(_, row)| row.note.clone()).unwrap_or_default();
        return Err(invalid(format!("no method could be measured at {} tokens: {why}", params.ctx)));
    }
    let beyond = |row: &Row| row.ppl_beyond.unwrap_or(f64::INFINITY);
    specs.sort_by(|a, b| beyond(&a.1).total_cmp(&beyond(&b.1)));
    // What the first round took says what the second can.
    let each = start.elapsed().as_secs_f64() / measured(&specs).max(1) as f64;
    let left = (params.seconds - start.elapsed().as_secs_f64()).max(0.0);
    let affordable = (left / each.max(1e-9) / FINALISTS as f64) as usize;
    report.samples = affordable.clamp(SAMPLES.0, SAMPLES.1);
    let measured = specs.iter_mut().filter(|(_, row)| row.ppl_beyond.is_some()).enumerate();
    // The best, and the model as its file declares it.
    let (finalists, out): (Vec<_>, Vec<_>) =
        measured.partition(|(i, (spec, _))| *i < FINALISTS || spec.is_declared());
    // Who is out is known when all have been measured.
    out.into_iter().for_each(|(_, (_, row))| row.finished = !report.interrupted);
    let n = finalists.len();
    let how = suite::Params { samples: Some(report.samples), ..suite::Params::new(vec![ctx], Path::new("")) };
    for (i, (_, (spec, row))) in finalists.into_iter().enumerate() {
        if control.stopped() {
            report.interrupted = true;
            break;
        }
        control.report(format_args!("passkeys under {spec}"), i as u64, n as u64);
        row.finished = true;
        let source = source_of(spec);
        for task in ropewalk_tasks::find("passkey").map_err(|e| invalid(e.to_string()))? {
            let found = suite::run(&*source, "", task, &how, &mut Unkept, &control.without_progress())?;
            let Some(result) = found.results.first().filter(|r| !r.interrupted) else {
                row.finished = false;
                break;
            };
            let correct = result.records.iter().filter(|r| r.score("accuracy") == 1.0).count();
            let (low, high) = wilson(correct, result.samples);
            (row.passkeys, row.ci_low, row.ci_high) = (Some(correct), Some(low), Some(high));
            row.accuracy = Some(correct as f64 / result.samples as f64);
        }
        report.interrupted |= !row.finished;
    }
    report.results = specs.into_iter().map(|(_, row)| row).collect();
    report.choose(params.scaled);
    report.seconds = start.elapsed().as_secs_f64();
    Ok(report)
}

/// How many of them have a perplexity.
fn measured(specs: &[(Spec, Row)]) -> usize {
    specs.iter().filter(|(_, row)| row.ppl_beyond.is_some()).count()
}

impl Report {
    pub(crate) fn choose(&mut self, scaled: bool) {
        let best = self.results.iter().filter_map(|r| r.passkeys).max().unwrap_or(0);
        if best > 0 {
            let (low, _) = wilson(best, self.samples);
            let as_good = |r: &&Row| r.passkeys.is_some_and(|n| n as f64 / self.samples as f64 >= low);
            // Rows stand in the order of perplexity.
            self.recommended = self.results.iter().find(as_good).map(|r| r.rope.clone());
        }
        self.advice = match &self.recommended {
            Some(spec) if self.declared.as_ref() == Some(spec) => Advice::Keep,
            Some(spec) if spec == "plain" && !scaled => Advice::Keep,
            Some(_) => Advice::Convert,
            None if self.interrupted || self.skipped > 0 => Advice::Repeat,
            None => Advice::Train,
        };
    }

    /// The report as text: a table.
    pub fn text(&self) -> String {
        let asked = self.results.iter().filter(|r| r.passkeys.is_some()).count();
        let passkeys = match asked {
            0 => "no passkeys".to_owned(),
            _ => format!("{} passkeys under the best {asked}", self.samples),
        };
        let read = self.results.iter().filter(|r| r.ppl_beyond.is_some()).count();
        let mut out = format!(
            "model     {}\ncontext   {} tokens, original context {}\nmeasured  perplexity of one window under {read} of {} \
             methods, {passkeys}, in {:.0} s\n",
            self.model,
            self.ctx,
            self.n_ctx_orig,
            self.results.len(),
            self.seconds
        );
        if let Some(own) = &self.declared {
            let _ = writeln!(out, "declared  {own}: the model as it ships");
        }
        out.push('\n');
        let cells = |r: &Row| {
            let ppl = |x: Option<f64>| x.map_or_else(|| "-".into(), number);
            let found = match (r.passkeys, r.ci_low, r.ci_high) {
                (Some(n), Some(low), Some(high)) => {
                    format!("{n}/{} ({:.0}-{:.0} %)", self.samples, 100.0 * low, 100.0 * high)
                }
                _ => r.note.clone().unwrap_or_else(|| "-".into()),
            };
            let own = self.declared.as_ref() == Some(&r.rope);
            let rope = if own { format!("{} (declared)", r.rope) } else { r.rope.clone() };
            vec![rope, ppl(r.ppl_within), ppl(r.ppl_beyond), found]
        };
        let within = format!("ppl to {}", self.n_ctx_orig);
        let headers = ["rope", within.as_str(), "ppl beyond", "passkeys (95 % interval)"];
        out += &table(&headers, self.results.iter().map(cells));
        if self.interrupted {
            out += "\ninterrupted: the figures cover the completed part\n";
        }
        out
    }
}
