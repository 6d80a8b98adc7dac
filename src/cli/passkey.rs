//! `ropewalk passkey`: whether a model finds a number in a long text of nothing.

use clap::builder::PossibleValuesParser;
use clap::{Args as _, FromArgMatches};
use ropewalk::eval::passkey::{self, by_name, Depth, Params, Report, KEY_RANGES, SCORINGS, SIZINGS};

use super::interrupt::Interrupt;
use super::methods::Comparison;
use super::options::{lengths, tokens, Lengths, ModelArgs, RopesArgs};
use super::output::OutputArgs;
use super::{models, Command};

pub(crate) const COMMAND: Command = Command {
    name: "passkey",
    about: "Measure passkey retrieval: a number hidden in a long text, asked for at its end",
    details: "The prompt is that of landmark attention, which YaRN, LongLoRA and LongRoPE use too. Lengths \
              x depths x samples are counted exactly, with Wilson's 95 % interval; every prompt follows \
              from the seed; several --rope are compared in one run. Ctrl-C prints what is done.",
    example: "passkey -m smollm2 --lengths 4096,12288 --samples 10 --rope plain --rope yarn:factor=2",
    args: Args::augment_args,
    run: |m| run(&Args::from_arg_matches(m)?),
};

#[derive(Debug, clap::Args)]
struct Args {
    /// Lengths in tokens, prompt and answer together: 4096, 8k, or 4k..32k:4k for every 4k up to 32k
    #[arg(short, long, value_name = "N,...", value_delimiter = ',', required = true, value_parser = lengths)]
    lengths: Vec<Lengths>,
    /// Samples for each length and depth
    #[arg(short = 'n', long, value_name = "N", default_value = "20", value_parser = tokens)]
    samples: usize,
    /// Where the key stands: random, start, or a fraction from 0 to 1
    #[arg(
        long,
        value_name = "DEPTH,...",
        value_delimiter = ',',
        default_value = "random",
        value_parser = depth
    )]
    depth: Vec<Depth>,
    /// How much text a length means
    #[arg(long, value_name = "RULE", default_value = SIZINGS[0].0, value_parser = names(SIZINGS))]
    sizing: String,
    /// When an answer is right: its first number is the key, or its tokens are the key's
    #[arg(long, value_name = "RULE", default_value = SCORINGS[0].0, value_parser = names(SCORINGS))]
    scoring: String,
    /// Which numbers are keys
    #[arg(long, value_name = "RULE", default_value = KEY_RANGES[0].0, value_parser = names(KEY_RANGES))]
    keys: String,
    /// Seed of keys and places
    #[arg(short, long, value_name = "S", default_value_t = 0)]
    seed: u64,
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    rope: RopesArgs,
    #[command(flatten)]
    out: OutputArgs,
}

fn names<T>(known: &'static [(&'static str, T)]) -> PossibleValuesParser {
    PossibleValuesParser::new(known.iter().map(|(name, _)| *name))
}

fn depth(text: &str) -> Result<Depth, String> {
    text.parse().map_err(|_| "expected random, start or a number from 0 to 1".to_owned())
}

fn run(args: &Args) -> anyhow::Result<()> {
    let specs = args.rope.specs()?;
    let params = Params {
        depths: args.depth.clone(),
        samples: args.samples,
        seed: args.seed,
        sizing: by_name("sizing", &args.sizing, SIZINGS)?,
        scoring: by_name("scoring", &args.scoring, SCORINGS)?,
        keys: by_name("keys", &args.keys, KEY_RANGES)?,
        ..Params::new(Lengths::all(&args.lengths))
    };
    let choice = args.model.resolve()?;
    let interrupt = Interrupt::install()?;
    let model = models::load(&choice, &args.out)?;
    let name = models::label(&choice);
    let comparison = Comparison { model: &model, choice: &choice, interrupt: &interrupt, out: args.out };
    let reports = comparison.run(&specs, |source, control| passkey::run(source, &name, &params, control))?;
    comparison.print(&reports, Report::text)?;
    comparison.check_finished()
}
