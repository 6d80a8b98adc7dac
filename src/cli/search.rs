//! `ropewalk search`: LongRoPE's factors for a model, found on it.

use std::path::PathBuf;

use clap::{Args as _, FromArgMatches};
use ropewalk::eval::search::{self, Goal, Params, Report, Sizes, GOALS};
use ropewalk::eval::SessionSource;
use ropewalk::rope::Spec;
use ropewalk_core::settings;

use super::engine::draw;
use super::interrupt::{stopped, Interrupt};
use super::options::{read_documents, tokens, ModelArgs};
use super::output::{self, OutputArgs, Unit};
use super::{models, usage, Command};

pub(crate) const COMMAND: Command = Command {
    name: "search",
    about: "Search the factor of each pair of dimensions for a longer context, as LongRoPE does",
    details: "Evolution on the model itself, quantised as it is: it reads the texts under list after list of factors, and \
              lists under which it predicts best live on. Begins with PI, NTK and YaRN, so what is found is no worse on \
              these texts; measure it on others (`perplexity`, `passkey`). The search of the paper is 1,344 lists: \
              --minutes or --max-evaluations end it earlier, and --resume goes on. Every list is kept in the output, which \
              ends with Ctrl-C as it would have otherwise.",
    example: "search -m smollm2 -f books.txt --ctx 16384 --minutes 60 -o factors.json",
    args: Args::augment_args,
    run: |m| run(&Args::from_arg_matches(m)?),
};

#[derive(Debug, clap::Args)]
struct Args {
    /// Context to search for, tokens
    #[arg(short, long, value_name = "N", value_parser = tokens)]
    ctx: usize,
    /// Texts to read, each at least as long as the context; in .jsonl files each line's "text" is one
    #[arg(short, long, value_name = "FILE", required = true, num_args = 1..)]
    file: Vec<PathBuf>,
    /// Everything that was scored, as JSON: what --resume goes on from
    #[arg(short, long, value_name = "OUT")]
    output: PathBuf,
    /// Go on from the output of a run that ended early
    #[arg(long)]
    resume: bool,
    /// The measure of factors: perplexity of all tokens (LongRoPE), or of numbers that stand far up in the text and are
    /// asked for at its end (after LongRoPE2)
    #[arg(long, value_name = "GOAL", default_value = "perplexity", value_parser = GOALS.iter().map(|g| g.0).collect::<Vec<_>>())]
    goal: String,
    /// Texts read under each list of factors
    #[arg(long, value_name = "N", default_value_t = 5)]
    samples: usize,
    /// End after so many minutes
    #[arg(long, value_name = "N")]
    minutes: Option<f64>,
    /// End after so many lists of factors, those of earlier runs counted
    #[arg(long, value_name = "N")]
    max_evaluations: Option<usize>,
    /// Sizes of the search: population (lists of factors at the start), iterations (generations), mutations and crossovers (in
    /// a generation), parents (lists that live on), step (distance of neighbouring factors); default: those of the paper
    #[arg(long, value_name = "KEY=VALUE,...")]
    evolve: Option<String>,
    /// Magnitude of queries and keys; default: LongRoPE's sqrt(1 + ln s / ln L)
    #[arg(long, value_name = "X")]
    attn_factor: Option<f64>,
    /// Seed of all draws
    #[arg(long, value_name = "S", default_value_t = 1)]
    seed: u64,
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    out: OutputArgs,
}

fn sizes(text: Option<&str>) -> Result<Sizes, String> {
    let what = "--evolve";
    let known = ["population", "iterations", "mutations", "crossovers", "parents", "step"];
    let mut sizes = Sizes::default();
    for (key, value) in settings::pairs(what, text, &known)? {
        let count = || settings::number(what, key, value);
        match key {
            "population" => sizes.population = count()?,
            "iterations" => sizes.iterations = count()?,
            "mutations" => sizes.mutations = count()?,
            "crossovers" => sizes.crossovers = count()?,
            "parents" => sizes.parents = count()?,
            _ => sizes.step = settings::number(what, key, value)?,
        }
    }
    Ok(sizes)
}

fn run(args: &Args) -> anyhow::Result<()> {
    if let Some(minutes) = args.minutes.filter(|m| !(*m > 0.0 && m.is_finite())) {
        return Err(usage(format!("--minutes {minutes}: expected a positive number")));
    }
    let to = &args.output;
    let choice = args.model.resolve()?;
    for path in args.file.iter().chain([&choice.path]) {
        if files::same_file(path, to)? {
            return Err(usage(format!("{}: the output is a file to be read; name another", to.display())));
        }
    }
    if to.exists() && !args.resume {
        return Err(usage(format!("{} is there already: --resume goes on from it", to.display())));
    }
    // What cannot be written is said before the work.
    drop(files::Scratch::beside(to, &search::RECORD)?);
    let documents = read_documents(&args.file)?;
    let interrupt = Interrupt::install()?;
    let model = models::load(&choice, &args.out)?;
    let goal = GOALS.iter().find(|(name, _)| *name == args.goal).map_or(Goal::Perplexity, |(_, goal)| *goal);
    let params = Params {
        ctx: args.ctx,
        goal,
        samples: args.samples,
        sizes: sizes(args.evolve.as_deref()).map_err(usage)?,
        seed: args.seed,
        max_evaluations: args.max_evaluations,
        seconds: args.minutes.map(|m| 60.0 * m),
        attn_factor: args.attn_factor,
        record: Some(to.clone()),
        resume: args.resume,
    };
    let name = models::label(&choice);
    let identity = SessionSource::new(&model, choice.session(0, Some(&Spec::plain()))).identity()?;
    let source_of = choice.sources(&model);
    let report = {
        let draw = draw(args.out.progress(0, "searching", Unit::Steps));
        let control = interrupt.control().with_progress(&draw);
        search::run(&source_of, &name, &identity, model.hparams(), &documents, &params, &control)?
    };
    if args.out.json {
        output::print_json(&report)?;
    } else {
        let ends = next(&report, &choice.path.display().to_string());
        output::print(&format!("{}\n{ends}", report.text()))?;
    }
    if report.interrupted {
        return Err(stopped("interrupted: --resume goes on"));
    }
    Ok(())
}

/// How to use what was found.
fn next(report: &Report, path: &str) -> String {
    format!(
        "{}\n\nMeasure it on other texts with --rope; to write it into a file for any session, and for stock llama.cpp:\n\n  \
         convert --rope '{}' --ctx {} {path} -o long.gguf\n  convert --llama-cpp --rope '{}' --ctx {} {path} -o long.gguf\n",
        report.rope, report.rope, report.ctx, report.rope, report.ctx
    )
}
