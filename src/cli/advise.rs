//! `ropewalk advise`: the rope method to use on a model, measured on it.

use std::path::PathBuf;

use anyhow::bail;
use clap::{Args as _, FromArgMatches};
use ropewalk::eval::advise::{self, Advice, Params, Report};
use ropewalk::rope::Spec;

use super::engine::draw;
use super::interrupt::{self, Interrupt};
use super::options::{parse_spec, read_documents, tokens, ForceArgs, ModelArgs};
use super::output::{OutputArgs, Unit};
use super::{models, search, usage, Command};

/// The text to read when none is given: `make models` fetches it.
const TEXT: &str = "models/texts/essays.txt";
/// Methods to measure, if none are named, regardless of time.
const LEAST: usize = 5;

pub(crate) const COMMAND: Command = Command {
    name: "advise",
    about: "Measure RoPE methods on a model at a longer context, and recommend one",
    details:
        "Measures methods that need no training, in about --minutes minutes. It measures the perplexity of a \
              text at the full context, then passkeys under the best four methods, because perplexity alone \
              prefers methods that cannot see the middle of a text. If the file declares a scaling, it is \
              measured first, as `declared`; otherwise, `plain` is. The others follow in the order of their loss on \
              SmolLM2-135M (docs/evidence.md). If time runs short, the last ones are left out. The report ends \
              with the method to use, its results next to those of the others, and the command that writes it \
              to the file.",
    example: "advise -m smollm2 --ctx 16384 -f essays.txt --minutes 20\n\
              advise -m smollm2 --ctx 16384 -f books.txt --search=samples=2 -o factors.json",
    args: Args::augment_args,
    run: |m| run(&Args::from_arg_matches(m)?),
};

#[derive(Debug, clap::Args)]
struct Args {
    /// Context to extend the model to, in tokens
    #[arg(short, long, value_name = "N", value_parser = tokens)]
    ctx: usize,
    /// Texts like those the model will read [default: the essays from `make models`]
    ///
    /// At least one must be as long as the context. A directory stands for the text files in it and below it
    #[arg(short, long, value_name = "FILE", num_args = 1..)]
    file: Vec<PathBuf>,
    /// Approximate time limit, in minutes [default: 10]
    ///
    /// At least five methods, all that --rope names, and a few passkeys are always measured. With --search, the search
    /// ends after this time; by default it runs to the end
    #[arg(long, value_name = "N")]
    minutes: Option<f64>,
    /// Measure this method instead of all; can be repeated
    #[arg(long, value_name = "SPEC")]
    rope: Vec<String>,
    /// Search LongRoPE factors for the dimension pairs, starting from PI, NTK, and YaRN
    ///
    /// Settings: goal (perplexity, or needle: score only numbers that the text asks for long after they appear, as in
    /// LongRoPE2), samples (texts read per candidate: 5), max-evaluations (candidates, including those of earlier
    /// runs), attn-factor, population, iterations, mutations, crossovers, parents, step. A candidate is a list of
    /// factors. The defaults are the paper's, with 1,344 candidates
    #[arg(
        long,
        value_name = "KEY=VALUE,...",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "",
        requires_all = ["output", "file"],
        conflicts_with = "rope"
    )]
    search: Option<String>,
    /// File for all candidates of a search and their scores; --resume reads it
    #[arg(short, long, value_name = "FILE", requires = "search")]
    output: Option<PathBuf>,
    /// Resume the search saved in --output
    #[arg(long, requires = "search", conflicts_with = "force")]
    resume: bool,
    /// Random seed of the search
    #[arg(short, long, value_name = "S", default_value_t = 1)]
    seed: u64,
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    force: ForceArgs,
    #[command(flatten)]
    out: OutputArgs,
}

fn run(args: &Args) -> anyhow::Result<()> {
    if let Some(minutes) = args.minutes.filter(|m| !(*m > 0.0 && m.is_finite())) {
        return Err(usage(format!("--minutes {minutes}: expected a positive number")));
    }
    if let (Some(settings), Some(path)) = (&args.search, &args.output) {
        let mut params = ropewalk::eval::search::Params::new(args.ctx);
        params.seed = args.seed;
        params.seconds = args.minutes.map(|m| 60.0 * m);
        search::set(&mut params, settings).map_err(usage)?;
        params.resume = args.resume;
        let record = args.force.output(path);
        return search::run(&args.model.resolve()?, &args.file, record, params, args.out);
    }
    let minutes = args.minutes.unwrap_or(10.0);
    let asked: Vec<Spec> = args.rope.iter().map(|s| parse_spec(s)).collect::<Result<_, _>>()?;
    let files = match (args.file.is_empty(), PathBuf::from(TEXT)) {
        (false, _) => args.file.clone(),
        (true, text) if text.is_file() => vec![text],
        (true, _) => bail!("no text to measure on: give one with --file"),
    };
    let documents = read_documents(&files)?;
    let choice = args.model.resolve()?;
    let interrupt = Interrupt::install()?;
    let model = models::load(&choice, &args.out)?;
    let hp = model.hparams();
    let (least, up_to) = if asked.is_empty() { (LEAST, "up to ") } else { (asked.len(), "") };
    let candidates = if asked.is_empty() { advise::candidates(hp, args.ctx) } else { asked };
    let params = Params::new(hp, args.ctx).seconds(60.0 * minutes).least(least);
    let name = models::label(&choice);
    args.out.note(format_args!(
        "{name}: {up_to}{} methods at {} tokens, limit {minutes} minutes",
        candidates.len(),
        args.ctx
    ));
    let draw = draw(args.out.progress(0, "measuring", Unit::Steps));
    let source_of = choice.sources(&model);
    let note = |line: std::fmt::Arguments<'_>| args.out.note(line);
    let control = interrupt.control().with_progress(&draw).with_notes(&note);
    let report = advise::run(&source_of, &name, &candidates, &documents, &params, &control)?;
    args.out.result(&report, || {
        let ends = advice(&report, &choice.path.display().to_string());
        format!("{}\n{ends}", report.text())
    })?;
    interrupt::check(report.interrupted, "interrupted: the figures cover the completed part")
}

/// Words the advice, with the line to type next.
fn advice(report: &Report, path: &str) -> String {
    let ctx = report.ctx;
    match report.advice {
        Advice::Keep if report.recommended == report.declared => {
            format!("The model works at {ctx} tokens as its file declares: no conversion is needed.\n")
        }
        Advice::Keep => format!("The model works at {ctx} tokens as it is: no conversion is needed.\n"),
        Advice::Convert => {
            let spec = report.recommended.as_deref().unwrap_or_default();
            let early = "Stopped early: this is the best of the methods measured so far.\n";
            format!(
                "{}Use {spec}. To write a file that opens under it by default:\n\n  ropewalk convert --rope {spec} \
                 --ctx {ctx} {path} -o long.gguf\n",
                if report.interrupted { early } else { "" }
            )
        }
        Advice::Train => format!(
            "No method found a passkey at {ctx} tokens: without training this model does not work there. Try a \
             shorter --ctx, or train it:\n\n  ropewalk finetune -m {path} -d TEXTS... --rope yarn --ctx {ctx} -o \
             adapter.gguf\n"
        ),
        Advice::Repeat if !report.interrupted => format!(
            "None of the methods measured found a passkey at {ctx} tokens, and {} of {} were not measured: raise \
             --minutes.\n",
            report.skipped,
            report.results.len()
        ),
        Advice::Repeat if report.results.iter().all(|row| row.passkeys.is_none()) => {
            "Stopped before passkeys were measured: no advice. The perplexities above cover the completed \
             part.\n".into()
        }
        Advice::Repeat => "Stopped before all passkeys were measured: no advice yet.\n".into(),
    }
}
