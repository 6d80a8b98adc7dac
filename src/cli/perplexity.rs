//! `ropewalk perplexity`: how well a model predicts a text, by a named protocol.

use std::path::PathBuf;

use anyhow::ensure;
use clap::builder::{PossibleValue, PossibleValuesParser};
use clap::{Args as _, FromArgMatches};
use ropewalk::eval::perplexity::{self, longppl, Params, Report};
use ropewalk::eval::protocol::{default_protocol, protocol, PROTOCOLS};
use ropewalk::eval::{check_apart, divergence, one_object, under_each};
use ropewalk::plot;
use ropewalk::rope::Spec;
use ropewalk::session::Session;
use ropewalk_core::settings::{self, Setting};
use serde_json::json;

use super::against::{self, Against};
use super::engine::with_bar;
use super::interrupt::{self, Interrupt};
use super::methods::under_methods;
use super::options::{
    lengths, read_documents, tokens, tokens_or_zero, ForceArgs, Lengths, ModelArgs, RopesArgs,
};
use super::output::{self, OutputArgs, Unit};
use super::{models, usage, Command};

pub(crate) const COMMAND: Command = Command {
    name: "perplexity",
    about: "Measure the perplexity of texts at several context lengths, by a named protocol",
    details: "Published \"sliding-window\" perplexities follow incompatible rules. --protocol selects one, and the \
              report names it. Each length has its own context, and methods that depend on the length are \
              recomputed for it. Several --rope are compared in one run. Ctrl-C stops and prints the results so far.",
    example: "perplexity -m smollm2 -f essays.txt -l 16k --rope plain --rope yarn --plot ppl.svg\n\
              perplexity -m smollm2 -f essays.txt -l 8k --against kv=q4_0",
    args: Args::augment_args,
    run: |m| run(&Args::from_arg_matches(m)?),
};

#[derive(Debug, clap::Args)]
struct Args {
    /// Texts to measure: plain text, .jsonl, or token ids in .bin; - reads stdin
    ///
    /// Each file is a document. In a .jsonl file, the "text" of each line is one. A directory stands for the text
    /// files in it and below it. A .bin file holds token ids of the model's vocabulary, as 16-bit little-endian
    /// integers, with BOS at the start of each document. The limit is 256 MiB for all files together
    #[arg(short, long, value_name = "FILE", required = true, num_args = 1..)]
    file: Vec<PathBuf>,
    /// Lengths, in tokens: 4096, 8k, or a range 2k..128k:2k [default: the trained context]
    ///
    /// 2k..128k:2k stands for every 2k up to 128k
    #[arg(short, long, value_name = "N,...", value_delimiter = ',', value_parser = lengths)]
    lengths: Vec<Lengths>,
    /// Context size to plan the method for, if it is larger than the length
    ///
    /// Short windows are then measured as the model runs at this context. Without --lengths, it means the same as
    /// --lengths
    #[arg(short, long, value_name = "N", value_delimiter = ',', value_parser = lengths)]
    ctx: Vec<Lengths>,
    /// Perplexity protocol [default: window, or stride with --stride]
    #[arg(long, value_name = "NAME", value_parser = protocols())]
    protocol: Option<String>,
    /// Tokens between window starts [default: set by the protocol]
    #[arg(long, value_name = "N", value_parser = tokens)]
    stride: Option<usize>,
    /// Maximum number of windows per length, spread evenly
    #[arg(long, value_name = "N", value_parser = tokens)]
    max_windows: Option<usize>,
    /// Bucket width for perplexity by position, in tokens [default: an eighth of the context]
    #[arg(long, value_name = "N", value_parser = tokens)]
    bucket: Option<usize>,
    /// Plot perplexity by position to this file (.svg, .png, or .pdf)
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
    /// Select documents: max=N uses N of them, min-tokens=N skips shorter ones
    #[arg(long, value_name = "KEY=VALUE,...")]
    documents: Option<String>,
    /// Choose the documents of max=N at random, with this seed [default: the first N]
    #[arg(long, value_name = "S", requires = "documents")]
    seed: Option<u64>,
    /// Also measure LongPPL, the perplexity of tokens that need the long context
    ///
    /// These key tokens are predicted well from the whole context, and much worse from its end alone. The text is
    /// read several times. Settings: trunc-len (minimum number of context tokens in a short context), sliding-window
    /// (tokens that share a short context; fewer take longer), alpha (a key token loses more than this many nats in
    /// the short context), beta (and has a log-likelihood above this in the long context)
    #[arg(long, value_name = "KEY=VALUE,...", num_args = 0..=1, require_equals = true, default_missing_value = "")]
    longppl: Option<String>,
    /// Put BOS at the start (on), or leave it out (off) [default: as in the protocol]
    #[arg(long, value_name = "WHETHER", value_parser = ["on", "off"])]
    bos: Option<String>,
    /// Compare predictions with another model, or with rope=SPEC, kv=TYPE, or lora=FILE[:S]
    ///
    /// Reports the KL divergence, how often the top token is the same, and the ratio of perplexities, over all
    /// tokens. FILE.gguf is another model; the other forms change a setting of this one. Repeat the option to change
    /// several settings at once
    #[arg(
        long,
        value_name = "WHAT",
        conflicts_with_all = ["protocol", "stride", "plot", "documents", "longppl", "bos"]
    )]
    against: Vec<Against>,
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    rope: RopesArgs,
    #[command(flatten)]
    force: ForceArgs,
    #[command(flatten)]
    out: OutputArgs,
}

fn protocols() -> PossibleValuesParser {
    PossibleValuesParser::new(PROTOCOLS.iter().map(|p| PossibleValue::new(p.name).help(p.about)))
}

impl Args {
    /// Most documents, and fewest tokens of one.
    fn documents(&self) -> Result<(Option<usize>, usize), String> {
        let what = "--documents";
        let (mut max, mut min_tokens) = (None, 0);
        for (key, value) in settings::pairs(what, self.documents.as_deref(), &["max", "min-tokens"])? {
            let n = tokens_or_zero(value).map_err(|e| format!("{what}: {key}={value}: {e}"))?;
            match key {
                "max" if n == 0 => return Err(format!("{what}: max=0: must be at least 1")),
                "max" => max = Some(n),
                _ => min_tokens = n,
            }
        }
        if self.seed.is_some() && max.is_none() {
            return Err("--seed: expected --documents max=N, the draw that it seeds".into());
        }
        Ok((max, min_tokens))
    }

    /// The lengths, none where the model's is taken, and the context, if it is another.
    fn lengths(&self) -> anyhow::Result<(Vec<usize>, Option<usize>)> {
        let (lengths, ctx) = (Lengths::all(&self.lengths), Lengths::all(&self.ctx));
        match (&lengths[..], &ctx[..]) {
            ([], _) => Ok((ctx, None)),
            (_, []) => Ok((lengths, None)),
            (_, &[one]) => Ok((lengths, Some(one))),
            (_, several) => {
                Err(usage(format!("--ctx: expected one context with --lengths, found {}", several.len())))
            }
        }
    }

    fn longppl(&self) -> Result<Option<longppl::Params>, String> {
        let Some(text) = &self.longppl else { return Ok(None) };
        let mut params = longppl::Params::default();
        let known: &mut [(&'static str, &mut dyn Setting)] = &mut [
            ("trunc-len", &mut params.trunc_len),
            ("sliding-window", &mut params.sliding_window),
            ("alpha", &mut params.alpha),
            ("beta", &mut params.beta),
        ];
        settings::read("--longppl", Some(text.as_str()).filter(|text| !text.is_empty()), known)?;
        Ok(Some(params))
    }
}

fn run(args: &Args) -> anyhow::Result<()> {
    let specs = args.rope.specs()?;
    args.force.check_plot("--plot", args.plot.as_ref())?;
    if !args.against.is_empty() {
        return compare(args, &specs);
    }
    let rule = match &args.protocol {
        Some(name) => protocol(name)?,
        None => default_protocol(args.stride),
    };
    let (max_documents, min_tokens) = args.documents().map_err(usage)?;
    let (lengths, ctx) = args.lengths()?;
    let longppl = args.longppl().map_err(usage)?;
    if let Some(longppl) = longppl {
        longppl::check(&longppl, rule).map_err(|e| usage(e.to_string()))?;
    }
    let texts = read_documents(&args.file)?;
    let choice = args.model.resolve()?;
    check_apart(args.file.iter().chain(choice.files()), &args.plot)?;
    let interrupt = Interrupt::install()?;
    let model = models::load(&choice, &args.out)?;
    let lengths = if lengths.is_empty() { vec![model.hparams().n_ctx_train] } else { lengths };
    let params = Params::new(rule, lengths)
        .ctx(ctx)
        .stride(args.stride)
        .max_windows(args.max_windows)
        .bucket(args.bucket)
        .bos(args.bos.as_deref().map(|bos| bos == "on"))
        .min_tokens(min_tokens)
        .max_documents(max_documents)
        .seed(args.seed)
        .longppl(longppl);
    let name = models::label(&choice);
    let mut reports = Vec::new();
    let done = under_methods(&model, &choice, &interrupt, args.out, |sources, control| {
        under_each(&specs, sources, &mut reports, control, |source| {
            perplexity::run(source, &name, &texts, &params, control)
        })
    });
    // What was measured before an error is shown.
    if reports.is_empty() {
        return Ok(done?);
    }
    if args.out.json {
        let mut all = one_object(&reports)?;
        let differences = reports.iter().skip(1).flat_map(|report| perplexity::paired(&reports[0], report));
        all.insert("differences".into(), serde_json::to_value(differences.collect::<Vec<_>>())?);
        output::print_json(&all)?;
    } else {
        output::print(&reports.iter().map(Report::text).collect::<Vec<_>>().join("\n"))?;
    }
    if let Some(path) = &args.plot {
        plot::perplexity(&specs, &reports, model.hparams().n_ctx_orig()).write(args.force.output(path))?;
        args.out.note(format_args!("drawn to {}", path.display()));
    }
    done?;
    interrupt::check(interrupt.requested(), "interrupted: the figures cover the completed part")
}

/// Compares the model, under one method, with the other setting of `--against`.
fn compare(args: &Args, specs: &[Option<Spec>]) -> anyhow::Result<()> {
    let (lengths, ctx) = args.lengths()?;
    let ([spec], [] | [_]) = (specs, &lengths[..]) else {
        return Err(usage("--against: expected one --rope and one length at most, found several"));
    };
    let (documents, out, rope) = (read_documents(&args.file)?, args.out, spec.as_ref());
    let a = args.model.resolve()?;
    let (b, rope_b) = against::other(&args.against, &a, rope)?;
    let same_weights = b.path == a.path && b.params.adapters == a.params.adapters;
    ensure!(
        !same_weights || rope_b.as_ref() != rope || b.session.kv_type != a.session.kv_type,
        usage("--against: expected another model, rope=, kv= or lora=, found the same as without it")
    );
    let interrupt = Interrupt::install()?;
    let model_a = models::load(&a, &out)?;
    // One copy of the weights where they are the same.
    let other = if same_weights { None } else { Some(models::load(&b, &out)?) };
    let model_b = other.as_ref().unwrap_or(&model_a);
    let length = lengths.first().copied().unwrap_or(model_a.hparams().n_ctx_train);
    let n_ctx = length.max(ctx.unwrap_or(0));
    let mut session_a = Session::new(&model_a, &a.session(n_ctx, rope))?;
    models::announce(&out, &a, &session_a);
    let mut session_b = Session::new(model_b, &b.session(n_ctx, rope_b.as_ref()))?;
    models::announce(&out, &b, &session_b);
    let params = divergence::Params::new(length).max_windows(args.max_windows).bucket(args.bucket);
    let names = [models::label(&a), models::label(&b)];
    let names = [names[0].as_str(), names[1].as_str()];
    let report = with_bar(out.progress(0, "comparing", Unit::Tokens), &interrupt, |control| {
        divergence::run(&mut session_a, &mut session_b, names, &documents, &params, control)
    })?;
    let mut row = serde_json::to_value(&report)?;
    row["task"] = "divergence".into();
    row["finished"] = (!report.interrupted).into();
    row["rope"] = report.b.rope.clone().into();
    out.result(&json!({"model": report.a.model, "results": [row]}), || report.text())?;
    interrupt::check(report.interrupted, "interrupted: the figures cover the completed part")
}
