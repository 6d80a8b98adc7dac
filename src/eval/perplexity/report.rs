//! The report of a perplexity run, as JSON and as text.

use serde::Serialize;

use super::super::stats::{Mean, Perplexity};
use super::super::table::{number, table};
use super::longppl::LongPpl;

/// Result of a run. It serializes to the JSON of the command line.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Report {
    /// The model's file.
    pub model: String,
    /// The active method spec, at the first length.
    pub rope: String,
    /// `perplexity`, as rows of other measurements name their task.
    pub task: &'static str,
    /// The protocol's name.
    pub protocol: &'static str,
    /// The stride; `null` for protocols without one.
    pub stride: Option<usize>,
    /// One entry per context length, in the requested order.
    pub results: Vec<Row>,
    /// The published definition of the protocol.
    pub source: &'static str,
    /// True if BOS was used.
    pub bos: bool,
    /// Documents measured.
    pub documents: usize,
    /// Number of tokens in these documents, without BOS.
    pub document_tokens: usize,
    /// The measured documents, if they were drawn at random.
    pub sample: Option<Sample>,
    /// The mean over several lengths; empty if there is only one length, or if the run was stopped. Reports of
    /// several methods have one entry per method.
    pub mean_over_ctx: Vec<MeanOverCtx>,
    /// True if the run was stopped. Lengths can then be missing, and the last length can lack windows.
    pub interrupted: bool,
    /// Notes that readers of the figures need.
    pub notes: Vec<String>,
}

/// Documents drawn at random.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Sample {
    /// The random seed.
    pub seed: u64,
    /// Names of the documents, in the order given.
    pub documents: Vec<String>,
}

/// Perplexity as one number for many lengths, as Table 3 of HARPE's paper gives it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct MeanOverCtx {
    /// The active method spec, at the first length.
    pub rope: String,
    /// Arithmetic mean of the lengths' perplexities.
    pub ppl: f64,
    /// Number of lengths.
    pub lengths: usize,
    /// Mean of the lengths' LongPPL, if all have one.
    pub longppl: Option<f64>,
}

/// One context length.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Row {
    /// Tokens of a full window, including BOS.
    pub ctx: usize,
    /// Context size, in tokens.
    pub n_ctx: usize,
    /// Perplexity, negative log-likelihood, and their standard errors, averaged by the protocol's rule.
    #[serde(flatten)]
    pub headline: Perplexity,
    /// Tokens scored.
    pub tokens: usize,
    /// Windows done.
    pub windows: usize,
    /// Tokens fed per second.
    pub tokens_per_s: f64,
    /// Mean in which every scored token weighs the same.
    pub token_weighted: Perplexity,
    /// Mean in which every window weighs the same.
    pub window_mean: Perplexity,
    /// Perplexity by position in the window (for protocol `restart`, in the document), token-weighted, without empty
    /// buckets.
    pub buckets: Vec<Bucket>,
    /// Sums for each text (a document, or the stream of all documents), to compare methods text by text.
    pub texts: Vec<TextRow>,
    /// LongPPL, if requested.
    pub longppl: Option<LongPpl>,
    /// Number of windows planned for this run.
    pub windows_planned: usize,
    /// Windows of the whole protocol, before sampling.
    pub windows_total: usize,
    /// Documents (or streams) shorter than one window.
    pub short_documents: usize,
    /// Tokens fed.
    pub tokens_fed: usize,
    /// Wall time in seconds.
    pub seconds: f64,
    /// The active method spec at this length.
    pub rope: String,
    /// True if windows are missing because the run was stopped.
    pub interrupted: bool,
    /// Mean negative log-likelihood of each window, for [`paired`].
    #[serde(skip)]
    pub window_nll: Vec<f64>,
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

/// Contribution of one text to the sums of a length.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TextRow {
    /// The document's name.
    pub name: String,
    /// Windows done.
    pub windows: usize,
    /// Tokens scored.
    pub tokens: usize,
    /// Sum of their negative log-likelihoods.
    pub nll_sum: f64,
    /// The same by position, in the buckets of the whole.
    pub buckets: Vec<Part>,
}

/// Contribution of one text to a bucket.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Part {
    /// First position.
    pub start: usize,
    /// One past the last position.
    pub end: usize,
    /// Tokens scored.
    pub tokens: usize,
    /// Sum of their negative log-likelihoods.
    pub nll_sum: f64,
}

/// Comparison of the perplexities of two runs over the same windows.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Paired {
    /// `perplexity`.
    pub task: &'static str,
    /// Tokens of a full window.
    pub ctx: usize,
    /// The method spec of the first run.
    pub from: String,
    /// The method spec of the second run.
    pub to: String,
    /// Ratio of perplexities, second run over first run.
    pub ppl_ratio: f64,
    /// Lower end of the ratio's 95% interval, from the differences of windows; `null` if there is only one window.
    pub ci_low: Option<f64>,
    /// Upper end of that interval.
    pub ci_high: Option<f64>,
    /// Number of windows in both runs.
    pub windows: usize,
}

/// Compares the second report with the first, at each length at which both have the same windows.
pub fn paired(a: &Report, b: &Report) -> Vec<Paired> {
    let pair = |(a, b): (&Row, &Row)| {
        if a.ctx != b.ctx || a.windows != b.windows || a.tokens != b.tokens {
            return None;
        }
        let ratio = b.headline.ppl / a.headline.ppl;
        let mut apart = Mean::default();
        a.window_nll.iter().zip(&b.window_nll).for_each(|(a, b)| apart.push(b - a));
        let end = |side: f64| Some(ratio * (side * 1.96 * apart.stderr()?).exp());
        Some(Paired {
            task: "perplexity",
            ctx: a.ctx,
            from: a.rope.clone(),
            to: b.rope.clone(),
            ppl_ratio: ratio,
            ci_low: end(-1.0),
            ci_high: end(1.0),
            windows: a.windows,
        })
    };
    a.results.iter().zip(&b.results).filter_map(pair).collect()
}

impl Report {
    /// Works out what rests on all lengths.
    pub(super) fn finish(&mut self) {
        let lengths = self.results.len();
        if lengths < 2 || self.interrupted {
            return;
        }
        let mean = |values: Vec<f64>| values.iter().sum::<f64>() / lengths as f64;
        let longppl: Option<Vec<f64>> = self.results.iter().map(|r| r.longppl?.longppl).collect();
        self.mean_over_ctx = vec![MeanOverCtx {
            rope: self.rope.clone(),
            ppl: mean(self.results.iter().map(|r| r.headline.ppl).collect()),
            lengths,
            longppl: longppl.map(mean),
        }];
    }

    /// The report as text: the setup, a Markdown table of the lengths, a table of perplexity by position, and notes.
    pub fn text(&self) -> String {
        let stride = self.stride.map(|s| format!(", stride {s}")).unwrap_or_default();
        let bos = if self.bos { "with BOS" } else { "no BOS" };
        let mut out = format!("model     {}\nrope      {}\n", self.model, self.rope);
        out += &format!("protocol  {}{stride}, {bos} ({})\n", self.protocol, self.source);
        let drawn = self.sample.as_ref().map(|s| format!(", drawn by seed {}", s.seed)).unwrap_or_default();
        out += &format!(
            "text      {} tokens in {} document(s){drawn}\n\n",
            self.document_tokens, self.documents
        );
        let headers = ["ctx", "ppl", "+/-", "by token", "by window", "tokens", "windows", "tok/s"];
        out += &table(&headers, self.results.iter().map(Row::cells));
        for mean in &self.mean_over_ctx {
            out += &format!("\nmean over {} lengths: ppl {}\n", mean.lengths, number(mean.ppl));
        }
        let longppl: Vec<_> = self.results.iter().filter_map(Row::longppl_cells).collect();
        if !longppl.is_empty() {
            out += "\n";
            out += &table(&["ctx", "LongPPL", "+/-", "key tokens", "of tokens", "their ppl"], longppl);
        }
        let buckets: Vec<_> =
            self.results.iter().filter(|r| r.buckets.len() > 1).flat_map(Row::bucket_cells).collect();
        if !buckets.is_empty() {
            out += "\n";
            out += &table(&["ctx", "position", "ppl", "+/-", "tokens"], buckets);
        }
        for note in &self.notes {
            out += &format!("\nnote: {note}");
        }
        if self.interrupted {
            out += "\ninterrupted: the figures cover the completed part";
        }
        out.trim_end().to_owned() + "\n"
    }
}

fn shown(x: Option<f64>) -> String {
    x.map_or("-".into(), number)
}

impl Row {
    fn cells(&self) -> Vec<String> {
        let windows = match self.windows == self.windows_total {
            true => self.windows.to_string(),
            false => format!("{} of {}", self.windows, self.windows_total),
        };
        vec![
            self.ctx.to_string(),
            number(self.headline.ppl),
            shown(self.headline.ppl_stderr),
            number(self.token_weighted.ppl),
            number(self.window_mean.ppl),
            self.tokens.to_string(),
            windows,
            format!("{:.1}", self.tokens_per_s),
        ]
    }

    fn longppl_cells(&self) -> Option<Vec<String>> {
        let found = self.longppl?;
        Some(vec![
            self.ctx.to_string(),
            shown(found.longppl),
            shown(found.longppl_stderr),
            found.key_tokens.to_string(),
            found.tokens.to_string(),
            shown(found.ppl),
        ])
    }

    fn bucket_cells(&self) -> impl Iterator<Item = Vec<String>> + '_ {
        self.buckets.iter().map(|b| {
            vec![
                self.ctx.to_string(),
                format!("{}-{}", b.start, b.end - 1),
                number(b.value.ppl),
                shown(b.value.ppl_stderr),
                b.tokens.to_string(),
            ]
        })
    }
}
