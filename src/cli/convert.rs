//! `ropewalk convert`: the conversions of the crate `convert`, and importance matrices, which need a running model.

use std::path::{Path, PathBuf};

use anyhow::{anyhow, ensure, Context};
use clap::{Arg, Args as _, FromArgMatches};
use convert::cli::{self, Done};
use gguf::kinds::{IMATRIX, MODEL};
use gguf::Output;
use ropewalk::eval::check_apart;
use ropewalk::eval::imatrix::{self, Params};
use ropewalk::session::Session;
use ropewalk::DType;
use ropewalk_core::apart::this_program;
use serde_json::json;

use super::engine::with_bar;
use super::interrupt::{self, Interrupt};
use super::options::{kv_types, read_documents, tokens, MachineArgs};
use super::output::{self, OutputArgs, Unit};
use super::{models, usage, Command};

pub(crate) const COMMAND: Command = Command {
    name: "convert",
    about: cli::ABOUT,
    details: cli::DETAILS,
    example: "convert model.gguf --rope yarn:factor=4 --llama-cpp -o long.gguf\n\
              convert Qwen3-0.6B/ --type q4_k_m -o qwen3.gguf",
    args: |command| {
        // What only a run of the model needs.
        let needed = |arg: Arg| arg.requires("imatrix_from").hide_short_help(true);
        let matrix = MatrixArgs::augment_args(clap::Command::new("matrix")).mut_args(needed);
        cli::augment(command).args(matrix.get_arguments())
    },
    run: |m| run(cli::Args::from_arg_matches(m)?, &MatrixArgs::from_arg_matches(m)?),
};

#[derive(Debug, clap::Args)]
struct MatrixArgs {
    /// Maximum number of windows for --imatrix-from, from the start of the text
    #[arg(long, value_name = "N", value_parser = tokens)]
    max_windows: Option<usize>,
    /// KV cache type
    #[arg(long, value_name = "TYPE", default_value = "f16", value_parser = kv_types())]
    kv: DType,
    #[command(flatten)]
    machine: MachineArgs,
}

/// An error of a conversion as one of this program.
pub(super) fn failed(e: convert::Error) -> anyhow::Error {
    match cli::with_options(e) {
        convert::Error::Interrupted => interrupt::stopped("interrupted"),
        convert::Error::Usage(what) => usage(what),
        other => anyhow!(other),
    }
}

fn run(mut args: cli::Args, matrix: &MatrixArgs) -> anyhow::Result<()> {
    // The name of a downloaded model, as other commands accept it.
    for model in args.models_mut().filter(|model| !model.exists()) {
        if let Some(name) = model.to_str() {
            *model = models::find(name)?;
        }
    }
    let out = OutputArgs { json: args.json, quiet: args.quiet };
    let interrupt = Interrupt::install()?;
    let done = match args.imatrix_from() {
        [] => converted(&args, &interrupt, &out)?,
        texts => weighed(&args, texts, matrix, &interrupt, &out)?,
    };
    done.lines.iter().for_each(|line| out.note(line));
    match out.json {
        true => output::print_json(&done.json),
        false => Ok(()),
    }
}

/// The matrix next to a model: `NAME.imatrix.gguf` for `NAME.gguf`.
fn matrix_of(model: &Path) -> PathBuf {
    let mut name = match model.extension() {
        Some(end) if end == "gguf" => model.with_extension("").into_os_string(),
        _ => model.as_os_str().to_owned(),
    };
    name.push(".imatrix.gguf");
    name.into()
}

fn converted(args: &cli::Args, interrupt: &Interrupt, out: &OutputArgs) -> anyhow::Result<Done> {
    let helper = this_program().context("cannot find this program to run the tokenizer")?;
    let bar = out.progress(0, "converting", Unit::Bytes);
    with_bar(bar, interrupt, |control| cli::act(args, helper, control)).map_err(failed)
}

/// Collects the importance matrix of the model, and converts by it where a type is asked for.
fn weighed(
    args: &cli::Args,
    texts: &[PathBuf],
    matrix: &MatrixArgs,
    interrupt: &Interrupt,
    out: &OutputArgs,
) -> anyhow::Result<Done> {
    let (Some(input), Some(to)) = (&args.input, &args.output) else {
        return Err(usage("--imatrix-from: expected a model, IN, and -o OUT"));
    };
    // Mistakes are errors before the model is run.
    let options = args.options().map_err(failed)?;
    let alone = options.mixture.is_none();
    ensure!(
        !alone || !options.llama_cpp,
        usage("--imatrix-from: without --type it writes a matrix, and --llama-cpp does not apply")
    );
    let what = "expected a GGUF file for --imatrix-from, found a folder: convert it first";
    ensure!(!input.is_dir(), usage(format!("{}: {what}", input.display())));
    let at = if alone { to.clone() } else { matrix_of(to) };
    let read = texts.iter().chain([input]).chain(args.lora.iter().map(|a| &a.path));
    check_apart(read, if alone { vec![to] } else { vec![to, &at] })?;
    ensure!(!to.is_dir(), usage(format!("--output {}: expected a file, found a folder", to.display())));
    // An output that cannot be written is reported before the work.
    drop(files::Scratch::beside(Output::new(&at, args.force), &IMATRIX)?);
    if !alone {
        drop(files::Scratch::beside(Output::new(to, args.force), &MODEL)?);
    }
    // What is weighed is what is written.
    let written = convert::written_rope(input, &options).map_err(failed)?;
    // The model is gone before the conversion begins.
    let (line, json) = {
        let documents = read_documents(texts)?;
        let choice = matrix.machine.choose(&input.display().to_string(), matrix.kv, &args.lora)?;
        let model = models::load(&choice, out)?;
        let hp = model.hparams();
        let (rope, ctx) = match &written {
            Some((spec, ctx)) => (Some(spec.clone()), *ctx),
            None => (options.rope, args.ctx.unwrap_or(hp.n_ctx_train)),
        };
        let mut session = Session::new(&model, &choice.session(ctx, rope.as_ref()))?;
        models::announce(out, &choice, &session);
        let params = Params::new(ctx).max_windows(matrix.max_windows);
        let found = with_bar(out.progress(0, "reading", Unit::Tokens), interrupt, |control| {
            imatrix::collect(&mut session, &documents, &params, control)
        })?;
        let bytes = found.write(Output::new(&at, args.force))?;
        let (name, n_tokens) = (models::label(&choice), found.windows * found.ctx);
        let line = format!(
            "{}: {} matrices of {name}, rope {}, {n_tokens} tokens in {} of {} windows of {}, {bytes} bytes",
            at.display(),
            found.entries.len(),
            found.rope,
            found.windows,
            found.windows_total,
            found.ctx,
        );
        let json = json!({
            "model": name,
            "rope": found.rope,
            "ctx": found.ctx,
            "windows": found.windows,
            "windows_total": found.windows_total,
            "tokens": n_tokens,
            "matrices": found.entries.len(),
            "output": at.display().to_string(),
            "bytes": bytes,
        });
        (line, json)
    };
    if alone {
        return Ok(Done { lines: vec![line], json });
    }
    let mut done = converted(&args.clone().with_imatrix(at, written.is_some()), interrupt, out)?;
    done.lines.insert(0, line);
    done.json["imatrix"] = json;
    Ok(done)
}
