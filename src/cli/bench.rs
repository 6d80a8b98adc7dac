//! `ropewalk bench`: tokens per second, like llama-bench, for several rope methods and against libllama in
//! one run.

use anyhow::ensure;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::{Args as _, FromArgMatches};
use ropewalk::eval::bench::{self, Clock, Contender, Params, Test};
use ropewalk::internals::graph::Isa;
use ropewalk::session::Session;

use super::engine::with_bar;
use super::interrupt::{self, Interrupt};
use super::options::{tokens, tokens_or_zero, ModelArgs, RopesArgs};
use super::output::{OutputArgs, Unit};
use super::{models, usage, Command};

pub(crate) const COMMAND: Command = Command {
    name: "bench",
    about: "Measure tokens per second: prefill, decode, at depth, against libllama",
    details: "Each -p N is a prefill test that processes N tokens at once. Each -n N is a decode test that \
              generates N tokens one by one. Every test runs once for each -d, with that many tokens already \
              in the context. Tests of all methods and of libllama alternate within each repetition, so a \
              busy machine slows all of them alike. Times exclude tokenization and sampling. The table shows \
              the arithmetic or memory traffic of each test, and how close it comes to the machine's limit.",
    example: "bench -m smollm2 -p 512,2048 -n 128 -d 0,4096 --rope harpe --against libllama\n\
              bench -m smollm2 -p 0 -n 64 -d 16384 --kv q8_0",
    args: Args::augment_args,
    run: |m| run(&Args::from_arg_matches(m)?),
};

#[derive(Debug, clap::Args)]
struct Args {
    /// Prompt lengths, in tokens; 0 skips the prefill test
    #[arg(
        short = 'p',
        long = "lengths",
        value_name = "N,...",
        value_delimiter = ',',
        default_value = "512",
        value_parser = tokens_or_zero
    )]
    n_prompt: Vec<usize>,
    /// Tokens to generate; 0 skips the decode test
    #[arg(
        short = 'n',
        long = "predict",
        value_name = "N,...",
        value_delimiter = ',',
        default_value = "128",
        value_parser = tokens_or_zero
    )]
    n_gen: Vec<usize>,
    /// Tokens already in the context
    #[arg(
        short,
        long,
        value_name = "N,...",
        value_delimiter = ',',
        default_value = "0",
        value_parser = tokens_or_zero
    )]
    depth: Vec<usize>,
    /// Repetitions of each test
    #[arg(
        short,
        long,
        value_name = "N",
        default_value = "5",
        value_parser = clap::value_parser!(u32).range(1..=1000)
    )]
    repetitions: u32,
    /// Context size, in tokens [default: what the longest test needs]
    #[arg(short, long, value_name = "N", value_parser = tokens)]
    ctx: Option<usize>,
    /// Also run the tests with libllama
    #[arg(long, value_name = "ENGINE", value_parser = ["libllama"])]
    against: Option<String>,
    /// Clock: wall time, or CPU time of this process
    ///
    /// Other work on the machine changes CPU time less. Use cpu with one thread: threads that wait also spend CPU
    /// time
    #[arg(long, value_name = "KIND", default_value = "wall", value_parser = clocks())]
    clock: Clock,
    /// Skip the warm-up run of each test
    #[arg(long)]
    no_warmup: bool,
    /// Random seed of the tokens
    #[arg(short, long, value_name = "S", default_value_t = 42)]
    seed: u64,
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    rope: RopesArgs,
    #[command(flatten)]
    out: OutputArgs,
}

fn run(args: &Args) -> anyhow::Result<()> {
    let specs = args.rope.specs()?;
    // Depth by depth: prompts, then generations.
    let mut tests = Vec::new();
    for &depth in &args.depth {
        let p = args.n_prompt.iter().filter(|&&n| n > 0).map(|&n| Test { n_prompt: n, n_gen: 0, depth });
        let n = args.n_gen.iter().filter(|&&n| n > 0).map(|&n| Test { n_prompt: 0, n_gen: n, depth });
        tests.extend(p.chain(n));
    }
    let params = Params::new(tests)
        .repetitions(args.repetitions)
        .warmup(!args.no_warmup)
        .clock(args.clock)
        .seed(args.seed);
    ensure!(!params.tests.is_empty(), usage("nothing to measure: every -p and -n is 0"));
    if args.clock == Clock::Cpu && ggml::machine::processor_time().is_none() {
        return Err(usage("--clock cpu: this system does not report the CPU time of threads"));
    }
    let need = params.n_ctx();
    let n_ctx = args.ctx.unwrap_or(need.div_ceil(256).saturating_mul(256));
    ensure!(n_ctx >= need, "--ctx {n_ctx}: the longest test needs {need}");
    let choice = args.model.resolve_to_write()?;
    let interrupt = Interrupt::install()?;
    let model = models::load(&choice, &args.out)?;
    let mut sessions: Vec<Session> = Vec::new();
    for spec in &specs {
        let session = Session::new(&model, &choice.session(n_ctx, spec.as_ref()))?;
        models::announce(&args.out, &choice, &session);
        sessions.push(session);
    }
    let settings = sessions[0].params().clone();
    let mut contenders: Vec<Contender> = sessions.into_iter().map(Contender::session).collect();
    if args.against.is_some() {
        if Isa::detect().avx512 && !cfg!(target_feature = "avx512f") {
            args.out.note(
                "note: libllama is compiled without this processor's AVX-512; for ratios to publish, build with \
                 RUSTFLAGS=\"-C target-cpu=native\"",
            );
        }
        contenders.push(Contender::libllama(&model, &choice.params.adapters, &settings)?);
    }

    let report = with_bar(args.out.progress(0, "measuring", Unit::Steps), &interrupt, |control| {
        bench::run(&model, &models::label(&choice), &mut contenders, &settings, &params, control)
    })?;
    args.out.result(&report, || report.text())?;
    interrupt::check(report.interrupted, "interrupted: unfinished tests are missing")
}

fn clocks() -> impl TypedValueParser<Value = Clock> {
    let cpu = PossibleValue::new("cpu").help("CPU time of all threads of this process");
    let all = [PossibleValue::new("wall").help("Wall time"), cpu];
    PossibleValuesParser::new(all).map(|name| if name == "cpu" { Clock::Cpu } else { Clock::Wall })
}
