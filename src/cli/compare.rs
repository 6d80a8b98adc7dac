//! `ropewalk compare`: how far the predictions of two models, or of two settings of one, are from each other.

use std::path::PathBuf;

use clap::{Args as _, FromArgMatches};
use ropewalk::adapter::AdapterSpec;
use ropewalk::eval::divergence::{self, Params, Report};
use ropewalk::session::Session;
use ropewalk::DType;

use super::engine::draw;
use super::interrupt::{stopped, Interrupt};
use super::models;
use super::options::{parse_spec, read_documents, tokens, MachineArgs, KV_TYPES};
use super::output::{self, OutputArgs, Unit};
use super::{usage, Command};

pub(crate) const COMMAND: Command = Command {
    name: "compare",
    about: "Compare predictions of two models, or of one under two settings, token by token",
    details: "At every token of a text: the divergence KL(a || b) of the two distributions of the next token, \
              whether the likeliest one is the same, and both perplexities; over all tokens and by position. B \
              is another file (a quantisation, a merged adapter), or the same under another --rope-b, --kv-b or \
              --lora-b; without them the settings of b are those of a.",
    example: "compare smollm2 -f essays.txt --ctx 8192 --kv-b q4_0",
    args: Args::augment_args,
    run: |m| run(&Args::from_arg_matches(m)?),
};

#[derive(Debug, clap::Args)]
struct Args {
    /// The reference: a GGUF file, or the name of a model that `ropewalk pull` fetched
    #[arg(value_name = "A")]
    a: String,
    /// The other model; default: the same
    #[arg(value_name = "B")]
    b: Option<String>,
    /// Texts: each file is a document; in .jsonl files each line's "text" is one; - is stdin; at most 256 MiB
    /// altogether
    #[arg(short, long, value_name = "FILE", required = true, num_args = 1..)]
    file: Vec<PathBuf>,
    /// Tokens of a window; default: the trained length of a
    #[arg(short, long, value_name = "N", value_parser = tokens)]
    ctx: Option<usize>,
    /// At most this many windows
    #[arg(long, value_name = "N", value_parser = tokens)]
    max_windows: Option<usize>,
    /// Width of the buckets by position; default: an eighth of the window
    #[arg(long, value_name = "N", value_parser = tokens)]
    bucket: Option<usize>,
    /// Rope method of both, or of a alone where --rope-b is given; default: what each file declares
    #[arg(long, value_name = "SPEC")]
    rope: Option<String>,
    /// Rope method of b
    #[arg(long, value_name = "SPEC")]
    rope_b: Option<String>,
    /// Type of the cached keys and values
    #[arg(long, value_name = "TYPE", default_value = "f16", value_parser = KV_TYPES)]
    kv: String,
    /// Type of the cached keys and values of b; default: as of a
    #[arg(long, value_name = "TYPE", value_parser = KV_TYPES)]
    kv_b: Option<String>,
    /// An adapter of a, FILE or FILE:SCALE; repeat it for several
    #[arg(long, value_name = "FILE[:S]")]
    lora: Vec<AdapterSpec>,
    /// An adapter of b
    #[arg(long, value_name = "FILE[:S]")]
    lora_b: Vec<AdapterSpec>,
    #[command(flatten)]
    machine: MachineArgs,
    #[command(flatten)]
    out: OutputArgs,
}

fn run(args: &Args) -> anyhow::Result<()> {
    let rope_a = args.rope.as_deref().map(parse_spec).transpose()?;
    let rope_b = args.rope_b.as_deref().map(parse_spec).transpose()?.or_else(|| rope_a.clone());
    let kv = |name: &str| DType::parse(name).ok_or_else(|| usage(format!("--kv {name}: unknown type")));
    let (kv_a, kv_b) = (kv(&args.kv)?, kv(args.kv_b.as_ref().unwrap_or(&args.kv))?);
    let same_model = args.b.as_ref().is_none_or(|b| *b == args.a);
    if same_model && rope_a == rope_b && kv_a == kv_b && args.lora == args.lora_b {
        return Err(usage("a and b are the same: expected another model, --rope-b, --kv-b or --lora-b"));
    }
    let documents = read_documents(&args.file)?;
    let a = args.machine.choose(&args.a, kv_a, &args.lora, false)?;
    let b = args.machine.choose(args.b.as_ref().unwrap_or(&args.a), kv_b, &args.lora_b, false)?;
    let interrupt = Interrupt::install()?;
    let model_a = models::load(&a, &args.out)?;
    // One copy of the weights where they are the same.
    let shared = same_model && args.lora == args.lora_b;
    let other = if shared { None } else { Some(models::load(&b, &args.out)?) };
    let model_b = other.as_ref().unwrap_or(&model_a);
    let ctx = args.ctx.unwrap_or(model_a.hparams().n_ctx_train);
    let mut session_a = Session::new(&model_a, &a.session(ctx, rope_a.as_ref()))?;
    models::announce(&args.out, &a, &session_a, rope_a.is_some());
    let mut session_b = Session::new(model_b, &b.session(ctx, rope_b.as_ref()))?;
    models::announce(&args.out, &b, &session_b, rope_b.is_some());
    let params = Params { ctx, max_windows: args.max_windows, bucket: args.bucket };
    let draw = draw(args.out.progress(0, "comparing", Unit::Tokens));
    let control = interrupt.control().with_progress(&draw);
    let names = [models::label(&a), models::label(&b)];
    let names = [names[0].as_str(), names[1].as_str()];
    let report = divergence::run(&mut session_a, &mut session_b, names, &documents, &params, &control)?;
    if args.out.json {
        output::print_json(&report)?;
    } else {
        output::print(&Report::text(&report))?;
    }
    if report.interrupted {
        return Err(stopped("interrupted: the figures cover what was done"));
    }
    Ok(())
}
