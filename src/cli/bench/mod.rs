//! `ropewalk bench`: tokens per second, like llama-bench, for several rope methods and against libllama in
//! one run.

mod child;
mod contender;
mod report;

use anyhow::bail;
use clap::{Args as _, FromArgMatches};
use rand::{Rng, SeedableRng};
use ropewalk::model::Model;
use ropewalk::session::Session;
use ropewalk::Token;

use super::interrupt::{stopped, Interrupt};
use super::options::{tokens, tokens_or_zero, ModelArgs, RopesArgs};
use super::output::{self, OutputArgs, Unit};
use super::{models, usage, Command};
use child::{Child, Open, Outcome};
use contender::{Clock, Contender};
use report::{Report, Row, Test};

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
        long,
        value_name = "N,...",
        value_delimiter = ',',
        default_value = "512",
        value_parser = tokens_or_zero
    )]
    n_prompt: Vec<usize>,
    /// Tokens to generate; 0 skips the decode test
    #[arg(
        short = 'n',
        long,
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
    #[arg(long, value_name = "KIND", default_value = "wall")]
    clock: Clock,
    /// Skip the warm-up run of each test
    #[arg(long)]
    no_warmup: bool,
    /// Random seed of the tokens
    #[arg(short, long, value_name = "S", default_value_t = 42)]
    seed: u64,
    #[arg(long = SERVE, hide = true)]
    serve_libllama: bool,
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    rope: RopesArgs,
    #[command(flatten)]
    out: OutputArgs,
}

/// The hidden flag under which this program is libllama's side of the measurement: see [`child`].
const SERVE: &str = "serve-libllama";

fn run(args: &Args) -> anyhow::Result<()> {
    let specs = args.rope.specs()?;
    let tests = tests(args);
    if tests.is_empty() {
        return Err(usage("nothing to measure: every -p and -n is 0"));
    }
    if args.clock == Clock::Cpu && ggml::machine::processor_time().is_none() {
        return Err(usage("--clock cpu: this system does not report the CPU time of threads"));
    }
    let need = tests.iter().map(|t| t.depth.saturating_add(t.n_prompt.max(t.n_gen))).max().unwrap_or(1);
    let n_ctx = args.ctx.unwrap_or(need.div_ceil(256).saturating_mul(256));
    if n_ctx < need {
        bail!("--ctx {n_ctx}: the longest test needs {need}");
    }
    let choice = args.model.resolve_to_write()?;
    if args.serve_libllama {
        return child::serve(&choice, args.clock);
    }
    let interrupt = Interrupt::install()?;
    let model = models::load(&choice, &args.out)?;
    let mut sessions: Vec<Session> = Vec::new();
    for spec in &specs {
        let session = Session::new(&model, &choice.session(n_ctx, spec.as_ref()))?;
        interrupt.watch(&session);
        models::announce(&args.out, &choice, &session, spec.is_some());
        sessions.push(session);
    }
    let settings = sessions[0].params().clone();
    let mut contenders: Vec<Contender> = sessions.into_iter().map(Contender::ours).collect();
    if args.against.is_some() {
        contenders.push(Contender::libllama(Child::start(Open::like(&settings, &model)?)?));
    }

    let rows = measure(args, &model, &tests, &mut contenders, &interrupt)?;
    let died = rows.iter().find_map(|r| Some(format!("{} {}", r.engine, r.died.as_ref()?)));
    let interrupted = interrupt.requested();
    let report = Report::new(&choice, &model, (&settings, args.clock), rows, interrupted);
    if args.out.json {
        output::print_json(&report.json())?;
    } else {
        output::print(&report.text())?;
    }
    if interrupted {
        return Err(stopped("interrupted: unfinished tests are missing"));
    }
    if let Some(died) = died {
        bail!("{died}: its figures are missing");
    }
    Ok(())
}

/// Runs every test of every contender, in turns; ends early, without the test it is at, when Ctrl-C stops it.
fn measure(
    args: &Args,
    model: &Model,
    tests: &[Test],
    contenders: &mut [Contender],
    interrupt: &Interrupt,
) -> anyhow::Result<Vec<Row>> {
    let warmups = u32::from(!args.no_warmup);
    let n_runs = tests.len() as u64 * contenders.len() as u64 * u64::from(args.repetitions + warmups);
    let mut bar = args.out.progress(n_runs, "measuring", Unit::Steps);
    let mut done = 0;
    let mut rows: Vec<Row> = Vec::new();
    for test in tests {
        let text = random_tokens(args.seed, model, test.depth + test.n_prompt.max(test.n_gen));
        let mut of_test: Vec<Row> =
            contenders.iter().enumerate().map(|(i, contender)| Row::new(i, contender, test)).collect();
        for repetition in 0..args.repetitions + warmups {
            for (contender, row) in contenders.iter_mut().zip(&mut of_test) {
                // Where a test has killed an engine once, it would do so again.
                if row.died.is_none() {
                    match contender.run(test, &text, args.clock) {
                        Err(_) | Ok(Outcome::Died(_)) if interrupt.requested() => return Ok(rows),
                        Ok(Outcome::Died(how)) => row.died = Some(how),
                        Ok(Outcome::Seconds(seconds)) if repetition >= warmups => {
                            row.samples.push(test.n_tokens() as f64 / seconds);
                        }
                        Ok(Outcome::Seconds(_)) => {}
                        Err(e) => return Err(e),
                    }
                }
                done += 1;
                bar.set(done);
            }
        }
        rows.extend(of_test);
    }
    Ok(rows)
}

/// Depth by depth: prompts, then generations.
fn tests(args: &Args) -> Vec<Test> {
    let mut tests = Vec::new();
    for &depth in &args.depth {
        let p = args.n_prompt.iter().filter(|&&n| n > 0).map(|&n| Test { n_prompt: n, n_gen: 0, depth });
        let n = args.n_gen.iter().filter(|&&n| n > 0).map(|&n| Test { n_prompt: 0, n_gen: n, depth });
        tests.extend(p.chain(n));
    }
    tests
}

/// Speed does not depend on the text, but caches of a tokenizer's common tokens could: tokens are drawn
/// evenly.
fn random_tokens(seed: u64, model: &Model, n: usize) -> Vec<Token> {
    let mut rng = rand_chacha::ChaCha8Rng::seed_from_u64(seed);
    let n_vocab = Token::try_from(model.hparams().n_vocab).unwrap_or(Token::MAX).max(1);
    (0..n).map(|_| rng.random_range(0..n_vocab)).collect()
}
