//! LongRoPE's search: finds one factor per dimension pair, by evolution on the model itself.
//!
//! Individuals are lists of factors ([`Sizes`]). The model reads the same texts under each list, and the lists with
//! the best predictions survive. [`Goal`] sets which tokens count. Scores are saved to a file after each individual.
//! A stopped search resumes as if it had not been stopped, because the next individual follows from the scores before
//! it.

mod evolve;
mod record;
mod score;

use std::time::Instant;

use files::Output;
use ropewalk_core::settings::{quoted, Setting};
use serde::Serialize;
use sha2::{Digest, Sha256};

pub use evolve::Sizes;
pub use record::RECORD;

use self::record::{Record, Scored};
use super::table::{number, table};
use super::{invalid, open, uninterrupted, unsupported, Content, Document, LmSource};
use crate::control::Control;
use crate::hparams::Hparams;
use crate::model::{Error, Result};
use crate::rope::{Plan, Spec};
use crate::Token;

/// The tokens that score a list of factors.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Goal {
    /// All tokens of a text (LongRoPE).
    Perplexity,
    /// Numbers that appear far up in a text and are asked for at its end (after LongRoPE2).
    Needle,
}

impl Setting for Goal {
    fn put(&mut self, what: &str, key: &str, text: &str) -> Result<(), String> {
        *self = match text {
            "perplexity" => Goal::Perplexity,
            "needle" => Goal::Needle,
            _ => return Err(format!("{what}: {key}: expected perplexity or needle, found {}", quoted(text))),
        };
        Ok(())
    }
}

ropewalk_core::setters! {
    /// Parameters of a search.
    #[derive(Debug, Clone)]
    pub struct Params {
        /// The context to search for, in tokens.
        pub ctx: usize,
        /// The tokens that score a list of factors.
        pub goal: Goal,
        /// Maximum number of texts to read under each list of factors.
        pub samples: usize,
        /// Numbers of lists in the evolution.
        pub sizes: Sizes,
        /// Random seed.
        pub seed: u64,
        /// Maximum number of lists, including those of earlier runs.
        pub max_evaluations: Option<usize>,
        /// Time limit in seconds, without earlier runs.
        pub seconds: Option<f64>,
        /// The scale of queries and keys; `None` is LongRoPE's `sqrt(1 + ln s / ln L)`.
        pub attn_factor: Option<f64>,
        /// The file that scores are saved to.
        pub record: Option<Output>,
        /// Resumes from the scores in that file, if it exists.
        pub resume: bool,
    }
}

impl Params {
    /// LongRoPE's settings for this context: five texts, 1,344 lists of factors.
    pub fn new(ctx: usize) -> Params {
        Params {
            ctx,
            goal: Goal::Perplexity,
            samples: 5,
            sizes: Sizes::default(),
            seed: 1,
            max_evaluations: None,
            seconds: None,
            attn_factor: None,
            record: None,
            resume: false,
        }
    }
}

/// One list of factors.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Row {
    /// The factors as a method spec.
    pub rope: String,
    /// `search`, as rows of other measurements name their task.
    pub task: &'static str,
    /// The context they were scored at.
    pub ctx: usize,
    /// Always true: each row is a scored list.
    pub finished: bool,
    /// The initial method that gave these factors, or `found`.
    pub name: &'static str,
    /// Mean negative log-likelihood of the tokens that count, in nats.
    pub nll: f64,
    /// `exp` of it.
    pub ppl: f64,
    /// One factor per dimension pair, the fastest pair first.
    pub factors: Vec<f64>,
}

/// Result of a search.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Report {
    /// The model's file.
    pub model: String,
    /// The context searched for.
    pub ctx: usize,
    /// The original context, in tokens.
    pub n_ctx_orig: usize,
    /// The tokens that score a list of factors.
    pub goal: Goal,
    /// Texts read under each list of factors.
    pub samples: usize,
    /// Lists of factors scored, including those of earlier runs.
    pub evaluations: usize,
    /// Lists of factors in a complete search.
    pub evaluations_total: usize,
    /// The best factors as a method spec.
    pub rope: String,
    /// The best factors, then the initial ones.
    pub results: Vec<Row>,
    /// True if the search was stopped early; it can resume from its record.
    pub interrupted: bool,
    /// Seconds of this run.
    pub seconds: f64,
}

/// Initial methods of a search (Ding et al. 2024, section 3.2).
const FIRST: [&str; 3] = ["pi", "ntk", "yarn"];

/// Searches factors. `source_of` makes the model's source under a spec, and `hp` has its hyperparameters. `identity`
/// identifies everything that the predictions depend on ([`super::SessionSource::identity`]), for the record.
///
/// Progress is counted in lists of factors.
///
/// # Errors
/// Returns an error if the context does not exceed the original one, if the sizes do not make a search, if the texts
/// are shorter than the context, if the record is from another search, or if the model fails. An interrupted search
/// is not an error: see [`Report::interrupted`].
pub fn run<'a>(
    source_of: &dyn Fn(&Spec) -> Box<dyn LmSource + 'a>,
    model: &str,
    identity: &str,
    hp: &Hparams,
    documents: &[Document],
    params: &Params,
    control: &Control<'_>,
) -> Result<Report> {
    let (ctx, n_ctx_orig, sizes) = (params.ctx, Spec::plain().n_ctx_orig(hp), &params.sizes);
    if ctx <= n_ctx_orig {
        return Err(invalid(format!(
            "ctx {ctx}: the original context is {n_ctx_orig} tokens: expected a longer context"
        )));
    }
    sizes.check()?;
    if params.samples == 0 {
        return Err(Error::argument("samples", "at least 1", 0));
    }
    let scale = ctx as f64 / n_ctx_orig as f64;
    let spec_of = |factors: &[f64]| -> Result<Spec> {
        let list: Vec<String> = factors.iter().map(f64::to_string).collect();
        let magnitude = params.attn_factor.map_or(String::new(), |x| format!(",attn-factor={x}"));
        let has_magnitude = params.attn_factor.is_some() || hp.rope_scaling.attn_factor.is_some();
        let factor = if has_magnitude { String::new() } else { format!(",factor={scale}") };
        Ok(format!("longrope:factors={}{factor}{magnitude},original={n_ctx_orig}", list.join("/")).parse()?)
    };
    let theta = |spec: &Spec| -> Result<Vec<f64>> {
        let plan = Plan::new(spec, hp, ctx)?;
        let layer = plan.kinds().iter().find(|layer| layer.applies);
        Ok(layer.ok_or_else(|| unsupported("no layer of the model is rotated"))?.freqs.theta.clone())
    };
    let n_pairs = theta(&Spec::plain())?.len();
    let own = theta(&spec_of(&vec![1.0; n_pairs])?)?;
    // The factors of the initial methods: none below 1, and none smaller than the one before.
    let mut first: Vec<Vec<f64>> = Vec::new();
    for name in FIRST {
        let scaled = theta(&format!("{name}:factor={scale}").parse()?)?;
        let mut least = 1.0f64;
        let factors = own.iter().zip(&scaled).map(|(own, scaled)| {
            // What is printed is what was searched.
            least = ((own / scaled * 1e4).round() / 1e4).max(least);
            least
        });
        first.push(factors.collect());
    }

    let plain = source_of(&Spec::plain());
    let tokens = |document: &Document| match &document.content {
        Content::Text(text) => plain.encode(text),
        Content::Ids(ids) => Ok(ids.iter().map(|id| Token::from(*id)).collect()),
    };
    let texts: Vec<Vec<Token>> = documents.iter().map(tokens).collect::<Result<_>>()?;
    let mut digest = Sha256::new();
    for text in &texts {
        digest.update((text.len() as u64).to_le_bytes());
        text.iter().for_each(|token| digest.update(token.to_le_bytes()));
    }
    let digest: String = digest.finalize().iter().take(8).map(|byte| format!("{byte:02x}")).collect();
    let samples = score::samples(&*plain, &texts, params.goal, ctx, params.samples, params.seed)?;
    // Its cache would be held in addition to each candidate's.
    drop(plain);
    let of = format!(
        "{identity}; {:?} of {} texts {digest} at {ctx} tokens, seed {}, attn-factor {:?}, {sizes:?}",
        params.goal,
        samples.len(),
        params.seed,
        params.attn_factor,
    );
    let mut record = match &params.record {
        // Nothing has been scored where the file is missing or empty.
        Some(to) if params.resume && to.path().metadata().is_ok_and(|found| found.len() > 0) => {
            Record::read(to.path(), &of)?
        }
        _ => Record { of, scored: Vec::new() },
    };

    let start = Instant::now();
    let total = sizes.evaluations().min(params.max_evaluations.unwrap_or(usize::MAX));
    let (mut n, mut best, mut interrupted) = (0, f64::INFINITY, false);
    // The file's own factors, which these replace, can be larger.
    let slowest = first.iter().filter_map(|factors| factors.last()).copied().fold(scale, f64::max);
    let found = evolve::evolve::<Error>(&first, slowest, params.seed, sizes, &mut |factors| {
        if let Some(nll) = record.score_of(n, factors)? {
            n += 1;
            best = best.min(nll);
            return Ok(Some(nll));
        }
        let late = params.seconds.is_some_and(|most| start.elapsed().as_secs_f64() >= most);
        interrupted |= control.stopped();
        if interrupted || late && n > FIRST.len() || n >= total {
            return Ok(None);
        }
        control.report(format_args!("best perplexity {}", number(best.exp())), n as u64, total as u64);
        let spec = spec_of(factors)?;
        let source = source_of(&spec);
        let mut lm = open(&*source, ctx, 1, control)?;
        let Some(nll) = uninterrupted(score::score(&mut *lm, &samples))? else {
            interrupted = true;
            return Ok(None);
        };
        // A model that breaks under some factors is as bad as can be, and the search goes on.
        let nll = if nll.is_finite() { nll } else { f64::from(f32::MAX) };
        n += 1;
        best = best.min(nll);
        record.scored.push(Scored { factors: factors.to_vec(), nll });
        if let Some(to) = &params.record {
            record.write(to)?;
        }
        Ok(Some(nll))
    })?;
    let Some(winner) = found.first() else {
        return Err(if interrupted { Error::Interrupted } else { invalid("nothing was scored") });
    };
    let row = |name, factors: &[f64], nll: f64| -> Result<Row> {
        let rope = spec_of(factors)?.to_string();
        let factors = factors.to_vec();
        Ok(Row { rope, task: "search", ctx, finished: true, name, nll, ppl: nll.exp(), factors })
    };
    let began = FIRST.iter().zip(&record.scored).map(|(name, s)| row(*name, &s.factors, s.nll));
    let found = row("found", &winner.factors, winner.score);
    Ok(Report {
        model: model.into(),
        ctx,
        n_ctx_orig,
        goal: params.goal,
        samples: samples.len(),
        evaluations: n,
        evaluations_total: sizes.evaluations(),
        rope: spec_of(&winner.factors)?.to_string(),
        results: std::iter::once(found).chain(began).collect::<Result<_>>()?,
        interrupted,
        seconds: start.elapsed().as_secs_f64(),
    })
}

impl Report {
    /// The report as text: the factors found next to the initial ones.
    pub fn text(&self) -> String {
        let counted = match self.goal {
            Goal::Perplexity => "all tokens",
            Goal::Needle => "numbers asked for",
        };
        let mut out = format!(
            "model     {}\ncontext   {} tokens, original context {}\nsearched  {} of {} lists of factors, perplexity of {counted} in \
             {} texts, {:.0} s\n\n",
            self.model, self.ctx, self.n_ctx_orig, self.evaluations, self.evaluations_total, self.samples, self.seconds
        );
        let cells = |row: &Row| {
            let at = |j: usize| row.factors.get(j).map_or(String::new(), |f| number(*f));
            let n = row.factors.len();
            vec![
                row.name.into(),
                number(row.ppl),
                at(0),
                at(n / 4),
                at(n / 2),
                at(3 * n / 4),
                at(n.wrapping_sub(1)),
            ]
        };
        let headers = ["factors", "ppl", "first pair", "1/4", "1/2", "3/4", "last"];
        out += &table(&headers, self.results.iter().map(cells));
        if self.interrupted {
            out += "\ninterrupted before its end\n";
        }
        out
    }
}
