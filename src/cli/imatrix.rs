//! `ropewalk imatrix`: what the matrices of a model read, for quantisers to weigh.

use std::path::PathBuf;

use clap::{Args as _, FromArgMatches};
use ropewalk::eval::imatrix::{self, Params};
use ropewalk::session::Session;
use serde_json::json;

use super::engine::draw;
use super::interrupt::Interrupt;
use super::models;
use super::options::{read_documents, tokens, ModelArgs, RopeArgs};
use super::output::{self, OutputArgs, Unit};
use super::{usage, Command};

pub(crate) const COMMAND: Command = Command {
    name: "imatrix",
    about: "Collect an importance matrix under a rope method, at its context",
    details: "For each matrix of the model the sum of the squares of what it reads, column by column, over a text \
              in windows of --ctx tokens, in llama.cpp's GGUF format: `convert --type q4_k_m --imatrix FILE` weighs \
              the errors of quantising by it, and so does llama-quantize. Ctrl-C leaves the output as it was.",
    example: "imatrix -m smollm2 -f essays.txt --ctx 16384 --rope yarn:factor=2 -o imatrix.gguf",
    args: Args::augment_args,
    run: |m| run(&Args::from_arg_matches(m)?),
};

#[derive(Debug, clap::Args)]
struct Args {
    /// Texts, joined in this order: each file is a document; in .jsonl files each line's "text" is one; - is
    /// stdin; at most 256 MiB altogether
    #[arg(short, long, value_name = "FILE", required = true, num_args = 1..)]
    file: Vec<PathBuf>,
    /// The importance matrix, a GGUF file
    #[arg(short, long, value_name = "OUT")]
    output: PathBuf,
    /// Tokens of a window, and the context the rope method is worked out for; default: the trained one
    #[arg(short, long, value_name = "N", value_parser = tokens)]
    ctx: Option<usize>,
    /// At most this many windows, the first ones of the text
    #[arg(long, visible_alias = "chunks", value_name = "N", value_parser = tokens)]
    max_windows: Option<usize>,
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    rope: RopeArgs,
    #[command(flatten)]
    out: OutputArgs,
}

fn run(args: &Args) -> anyhow::Result<()> {
    let rope = args.rope.spec()?;
    let to = &args.output;
    let choice = args.model.resolve()?;
    for path in args.file.iter().chain([&choice.path]) {
        if files::same_file(path, to)? {
            return Err(usage(format!("{}: the output is a file to be read; name another", to.display())));
        }
    }
    if to.is_dir() {
        return Err(usage(format!("--output {}: expected a file, found a folder", to.display())));
    }
    let documents = read_documents(&args.file)?;
    // What cannot be written is said before the work.
    drop(files::Scratch::beside(to, &gguf::kinds::IMATRIX)?);
    let interrupt = Interrupt::install()?;
    let model = models::load(&choice, &args.out)?;
    let ctx = args.ctx.unwrap_or(model.hparams().n_ctx_train);
    let mut session = Session::new(&model, &choice.session(ctx, rope.as_ref()))?;
    models::announce(&args.out, &choice, &session, rope.is_some());
    let found = {
        let draw = draw(args.out.progress(0, "reading", Unit::Tokens));
        let control = interrupt.control().with_progress(&draw);
        imatrix::collect(&mut session, &documents, &Params { ctx, max_windows: args.max_windows }, &control)?
    };
    let bytes = found.write(to)?;
    let (name, n_tokens) = (models::label(&choice), found.windows * found.ctx);
    if args.out.json {
        return output::print_json(&json!({
            "model": name,
            "rope": found.rope,
            "ctx": found.ctx,
            "windows": found.windows,
            "windows_total": found.windows_total,
            "tokens": n_tokens,
            "matrices": found.entries.len(),
            "output": to.display().to_string(),
            "bytes": bytes,
        }));
    }
    output::print(&format!(
        "{}: {} matrices of {name}, rope {}, {n_tokens} tokens in {} of {} windows of {}, {bytes} bytes\n",
        to.display(),
        found.entries.len(),
        found.rope,
        found.windows,
        found.windows_total,
        found.ctx,
    ))
}
