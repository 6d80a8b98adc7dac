//! The report of a perplexity run, as JSON and as text.

use serde::Serialize;

use super::super::stats::Perplexity;
use super::super::table::{number, table};

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
    /// Where the protocol is defined.
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
