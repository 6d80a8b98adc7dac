//! The command line of conversions: arguments, what is printed, and the program `convert`.
//!
//! `ropewalk convert` has the same arguments ([`augment`], [`Args`]) and does the same ([`act`]).

mod peft;
mod quantizer;

use std::ffi::OsString;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Command, FromArgMatches};
use gguf::{DType, Output};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use ropewalk_core::adapter::AdapterSpec;
use ropewalk_core::apart::this_program;
use ropewalk_core::control::{Control, Progress};
use ropewalk_core::remedy::Remedy;
use ropewalk_core::rope::{Spec, METHODS};
use ropewalk_core::signals::{self, Signals};
use ropewalk_core::{program, settings, terminal};
use serde_json::{json, Value};

use crate::random::{self, Shape, SHAPES};
use crate::{types, Error, Options, Report, Result, TensorError, Tokenizing, MAX_LOST};

/// One line about the program.
pub const ABOUT: &str =
    "Convert a model: import from Hugging Face, quantize, merge LoRA, write a RoPE method";

/// Paragraph for the program's help.
pub const DETAILS: &str =
    "IN is a GGUF file, a Hugging Face model directory, or a PEFT adapter directory. Tensor data is copied byte \
     for byte unless --type asks for another type. OUT is replaced only after everything has succeeded. If IN was \
     converted before, the new method replaces the old one. The standard RoPE keys hold as much of the method as \
     they can express, and ropewalk.rope.* holds all of it; `ropewalk inspect OUT` shows both.";

/// The arguments.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// GGUF file, Hugging Face model directory, or, with -m, PEFT adapter directory
    ///
    /// For a split model, name the first part. A model directory has config.json, weights in safetensors, and a
    /// tokenizer. An adapter directory has adapter_config.json
    #[arg(value_name = "IN", required_unless_present = "random")]
    pub input: Option<PathBuf>,
    /// Positional arguments of llama-quantize.
    #[arg(hide = true, value_name = "OUT TYPE", num_args = 0..)]
    foreign: Vec<OsString>,
    /// Output file
    #[arg(short, long, value_name = "OUT", required_unless_present_any = ["to_peft", "foreign"])]
    pub output: Option<PathBuf>,
    /// RoPE method to write, NAME[:KEY=VALUE,...]
    #[arg(long, value_name = "SPEC")]
    pub rope: Option<String>,
    /// Target context, in tokens [default: factor x original context, or 4 x without a factor]
    ///
    /// Without --ctx, the first of these that applies: `trained` of the spec; its factor times the original context;
    /// the trained context, for plain or a file that is already extended; 4 times the original context. With --lora and
    /// the method of the adapter, it is the context of its training, unless the method states a longer one
    #[arg(short, long, value_name = "N", value_parser = tokens)]
    pub ctx: Option<usize>,
    /// Write only what stock llama.cpp can run, or fail
    ///
    /// The method is written as scaling keys, or as frequencies in rope_freqs.weight
    #[arg(long)]
    llama_cpp: bool,
    /// Merge a LoRA adapter, FILE, FILE:SCALE, or FILE:force; can be repeated
    ///
    /// Without --rope, the file declares the method that the first adapter was trained under. FILE:force merges an
    /// adapter that was trained on another model
    #[arg(long, value_name = "FILE[:S]")]
    pub lora: Vec<AdapterSpec>,
    /// Type of all tensors except vectors, or a mixture of libllama's quantizer; llama:q4_0 selects the mixture if
    /// both have the name
    #[arg(long = "type", value_name = "TYPE")]
    dtype: Option<String>,
    #[command(flatten)]
    quantizer: quantizer::QuantizerArgs,
    /// Print the error of every converted tensor, not only of the worst five
    #[arg(long, hide_short_help = true)]
    errors: bool,
    #[command(flatten)]
    peft: peft::PeftArgs,
    /// Pre-tokenizer (tokenizer.ggml.pre), if llama.cpp's list does not have this tokenizer
    #[arg(long, value_name = "NAME", hide_short_help = true)]
    pre: Option<String>,
    /// Write a model of this shape with random weights (large tensors repeat one pool of random blocks, which does
    /// not affect speed)
    #[arg(
        long,
        value_name = "SHAPE",
        hide_short_help = true,
        conflicts_with_all = ["input", "rope", "ctx", "llama_cpp", "lora", "pre", "imatrix_from"]
    )]
    random: Option<String>,
    /// Random seed of --random [default: 0]
    #[arg(short, long, value_name = "S", requires = "random", hide_short_help = true)]
    seed: Option<u64>,
    /// Replace any file at OUT [default: only a file that has keys of ropewalk]
    #[arg(long, help_heading = "Output")]
    pub force: bool,
    /// Print one JSON object on stdout
    #[arg(long, help_heading = "Output")]
    pub json: bool,
    /// Print only errors on stderr
    #[arg(short, long, help_heading = "Output")]
    pub quiet: bool,
}

/// Result of a call: lines for people, and the report of `--json`.
#[derive(Debug)]
pub struct Done {
    /// Lines, which may hold characters out of files.
    pub lines: Vec<String>,
    /// The report.
    pub json: Value,
}

impl Args {
    /// The models that are named: the input, and the base of a PEFT adapter.
    pub fn models_mut(&mut self) -> impl Iterator<Item = &mut PathBuf> {
        self.input.iter_mut().chain(self.peft.model.iter_mut())
    }
}

/// Adds the arguments to a command.
pub fn augment(command: Command) -> Command {
    <Args as clap::Args>::augment_args(command).mut_args(describe)
}

/// Runs the program; `args` start with its name. It has called [`serve_tokenizer`](crate::serve_tokenizer) first of all:
/// tokenizers of folders run in processes of it.
pub fn run(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    let program = Command::new("convert")
        // ImageMagick's program has this name: no line of ours shall start it.
        .bin_name("ropewalk convert")
        .version(env!("CARGO_PKG_VERSION"));
    let program = augment(program).about(ABOUT).long_about(format!("{ABOUT}.\n\n{DETAILS}")).after_help(
        "Exit codes: 0 done, 1 failed, 2 wrong usage; stopped by Ctrl-C 130, SIGTERM 143, SIGHUP 129.",
    );
    let matches = program.try_get_matches_from(args);
    let args = match matches.and_then(|m| Args::from_arg_matches(&m)) {
        Ok(args) => args,
        Err(e) => {
            // A closed stdout or stderr is no reason to fail.
            let _ = e.print();
            return ExitCode::from(u8::try_from(e.exit_code()).unwrap_or(2));
        }
    };
    let mut signal = None;
    match watched(&args, &mut signal) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            program::complain(&e);
            ExitCode::from(match (e, signal) {
                (Error::Usage(_), _) => 2,
                (Error::Interrupted, Some(signal)) => signals::exit_code(signal),
                _ => 1,
            })
        }
    }
}

/// Runs the conversion at a terminal. If a signal stops it, `signal` is set to that.
fn watched(args: &Args, signal: &mut Option<i32>) -> Result<()> {
    if !args.imatrix_from().is_empty() {
        let what = "--imatrix-from runs the model: this program cannot, but `ropewalk convert` does";
        return Err(Error::Usage(what.into()));
    }
    let helper = this_program().map_err(|e| Error::Invalid(format!("cannot find this program: {e}")))?;
    let shown = !args.quiet && std::io::stderr().is_terminal();
    let target = if shown { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
    let bar = ProgressBar::with_draw_target(None, target);
    let style = "{bar:40} {bytes}/{total_bytes} {bytes_per_sec} {eta} left";
    bar.set_style(ProgressStyle::with_template(style).unwrap_or_else(|_| ProgressStyle::default_bar()));
    let signals = Signals::listen().map_err(|e| Error::Invalid(format!("signals cannot be handled: {e}")))?;
    let draw = |p: &Progress<'_>| {
        bar.set_length(p.total);
        bar.set_position(p.done);
    };
    let control = Control::default().with_stop(signals.stop()).with_progress(&draw);
    let done = act(args, helper, &control).map_err(with_options);
    bar.finish_and_clear();
    *signal = signals.received();
    let done = done?;
    if !args.quiet {
        done.lines.iter().for_each(program::say);
    }
    if args.json {
        program::print_json(&done.json).map_err(|e| Error::Invalid(format!("stdout: {e}")))?;
    }
    Ok(())
}

/// Puts what the registries know into the help.
fn describe(arg: clap::Arg) -> clap::Arg {
    let id = arg.get_id().as_str().to_owned();
    let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
    let names: Vec<&str> = match id.as_str() {
        "rope" => METHODS.iter().map(|m| m.name).collect(),
        "dtype" => {
            let plain = types::TARGETS.iter().map(|t| t.0.name()).collect::<Vec<_>>().join(" ");
            let mixtures = types::mixtures().collect::<Vec<_>>().join(" ");
            return arg.help(format!("{help}: {plain}; {mixtures}"));
        }
        "random" => SHAPES.iter().map(|s| s.name).collect(),
        _ => return arg,
    };
    arg.help(format!("{help}: {}", names.join(" ")))
}

fn tokens(text: &str) -> std::result::Result<usize, String> {
    settings::tokens(text).map_err(|_| format!("expected 1 to {} tokens, such as 4096 or 4k", i32::MAX))
}

impl Args {
    /// The rope method asked for.
    ///
    /// # Errors
    /// [`Error::Usage`] for what is none.
    pub fn spec(&self) -> Result<Option<Spec>> {
        let parse = |text: &String| text.parse::<Spec>().map_err(|e| Error::Usage(format!("--rope: {e}")));
        self.rope.as_ref().map(parse).transpose()
    }

    /// The texts of `--imatrix-from`.
    pub fn imatrix_from(&self) -> &[PathBuf] {
        &self.quantizer.imatrix_from
    }

    /// With this importance matrix in place of the texts to make one of. Without a method to write, the context was that of
    /// their windows.
    pub fn with_imatrix(mut self, file: PathBuf, writes_method: bool) -> Args {
        self.ctx = self.ctx.filter(|_| writes_method || self.llama_cpp);
        self.quantizer.imatrix_from.clear();
        self.quantizer.imatrix = Some(file);
        self
    }

    /// The changes to make.
    ///
    /// # Errors
    /// [`Error::Usage`] for what makes no sense.
    pub fn options(&self) -> Result<Options> {
        let (dtype, mixture) = self.quantizer.resolve(self.dtype.as_deref())?;
        Ok(Options {
            rope: self.spec()?,
            n_ctx: self.ctx,
            dtype,
            mixture,
            llama_cpp: self.llama_cpp,
            adapters: self.lora.clone(),
            pre: self.pre.clone(),
            force: self.force,
            tokenizing: None,
        })
    }
}

/// The way past an output that exists.
const FORCE: &str = ", or replace it with --force";

/// Adds the option to an error of the library, which knows only settings.
pub fn with_options(e: Error) -> Error {
    let remedy = e.remedy();
    match e {
        Error::Argument(what) => Error::Usage(format!("--{what}")),
        Error::Avoidable { what, remedy } => {
            let option = match remedy {
                Remedy::Method => return Error::Usage(what + ": add --rope SPEC"),
                Remedy::OneMethod => " with --rope",
                Remedy::Type => " with --type",
                Remedy::PreTokenizer => " with --pre NAME",
                Remedy::Window => " (--ctx)",
                Remedy::LlamaCpp => " (--llama-cpp)",
                Remedy::Force => FORCE,
                // For programs that run models.
                Remedy::Adapter
                | Remedy::Context
                | Remedy::Cache
                | Remedy::Search
                | Remedy::Chat
                | Remedy::Data(_) => return Error::Avoidable { what, remedy },
            };
            Error::Invalid(what + option)
        }
        e if remedy == Some(Remedy::Force) => Error::Invalid(e.to_string() + FORCE),
        e => e,
    }
}

/// Runs the conversion. `helper` is the program of [`Tokenizing::Apart`].
///
/// # Errors
/// Returns the errors of [`crate::convert`], [`peft`](crate::peft) and [`random`].
pub fn act(args: &Args, helper: PathBuf, control: &Control<'_>) -> Result<Done> {
    if !args.foreign.is_empty() {
        let what = "expected one IN, found more: the output is -o OUT, the type --type TYPE";
        return Err(Error::Usage(what.into()));
    }
    if args.peft.asked() {
        return peft::act(args, control);
    }
    let Some(output) = &args.output else { return Err(Error::Usage("-o OUT is missing".into())) };
    let options = Options { tokenizing: Some(Tokenizing::Apart(helper)), ..args.options()? };
    if let Some(name) = &args.random {
        let shape = Shape::named(name)?;
        if let Some(mixture) = options.mixture {
            return Err(Error::Usage(format!("random models cannot be written as {}", mixture.name)));
        }
        let (dtype, seed) = (options.dtype.unwrap_or(DType::F16), args.seed.unwrap_or(0));
        let bytes = random::write_watched(&shape, dtype, seed, Output::new(output, args.force), control)?;
        let line = format!("{}: random {name}, {dtype}, seed {seed}, {bytes} bytes", output.display());
        let json = json!({"output": path(output), "bytes": bytes, "random": name, "type": dtype.name(), "seed": seed});
        return Ok(Done { lines: vec![line], json });
    }
    let Some(input) = &args.input else { return Err(Error::Usage("IN is missing".into())) };
    if input.join("adapter_config.json").is_file() && !input.join("config.json").is_file() {
        let what = format!("{}: this is a PEFT adapter: pass its base model with -m MODEL", input.display());
        return Err(Error::Usage(what));
    }
    let mut report = crate::convert(input, output, &options, control)?;
    report.notes.extend(lost_training(&report));
    let json = reported(input, output, &report)?;
    Ok(Done { lines: lines(&report, output, args.errors), json })
}

/// A note if the merged weights are rounded so coarsely that the training is lost.
fn lost_training(report: &Report) -> Option<String> {
    report.change_kept.filter(|kept| (*kept - 1.0).abs() > MAX_LOST)?;
    let has = |name: &str| report.merged.iter().any(|m| m.dtype == name);
    let better = if has("q8_0") { "f16" } else { "q8_0 (or f16)" };
    Some(format!("Rounding hides most of the training: --type {better} keeps it."))
}

/// A report as JSON, after the names of its files.
fn reported(input: &Path, output: &Path, report: &impl serde::Serialize) -> Result<Value> {
    let mut object = json!({"input": path(input), "output": path(output)});
    let rest = serde_json::to_value(report).map_err(|e| Error::Invalid(e.to_string()))?;
    if let (Value::Object(object), Value::Object(rest)) = (&mut object, rest) {
        object.extend(rest);
    }
    Ok(object)
}

fn path(p: &Path) -> String {
    p.to_string_lossy().into_owned()
}

/// Tensors whose error is printed when not all are asked for.
const WORST: usize = 5;

/// A report in lines: facts and errors, then what was written, for which context, and what can run it.
fn lines(report: &Report, output: &Path, all: bool) -> Vec<String> {
    let details = report.rope.as_ref().map_or(&[][..], |rope| &rope.details);
    let mut lines: Vec<String> =
        report.notes.iter().filter(|note| !details.contains(note)).cloned().collect();
    let mut errors: Vec<&TensorError> = report.converted.iter().collect();
    if !all {
        errors.sort_by(|a, b| b.rel_rmse.total_cmp(&a.rel_rmse));
        errors.truncate(WORST);
    }
    for t in errors {
        lines.push(format!(
            "{:<32} {:>5} -> {:<5} rmse {:.3e} ({:.3} %)  max {:.3e} ({:.3} %)",
            terminal::inline(&t.name),
            t.from,
            t.to,
            t.rmse,
            100.0 * t.rel_rmse,
            t.max,
            100.0 * t.rel_max
        ));
    }
    if !report.converted.is_empty() {
        let n = report.converted.len();
        let shown = if all || n <= WORST { String::new() } else { format!("; above the {WORST} worst") };
        let mean = report.converted.iter().map(|t| t.rel_rmse).sum::<f64>() / n as f64;
        lines.push(format!("{n} tensors converted, rmse {:.3} % on average{shown}", 100.0 * mean));
    }
    if let (Some(ratio), Some(kept)) = (report.rounding_over_change, report.change_kept) {
        let n: usize = report.merged.iter().map(|m| m.n_tensors).sum();
        let types: Vec<_> = report.merged.iter().map(|m| m.dtype).collect();
        lines.push(format!(
            "merged {n} tensors; rounding to {} is {ratio:.2}x the adapter's change and keeps {:.0} % of it",
            types.join(", "),
            100.0 * kept
        ));
    }
    let rope = report.rope.as_ref();
    let method = rope.map_or(String::new(), |rope| format!("{}, ", rope.asked));
    let (tensors, bytes) = (report.n_tensors, report.bytes);
    lines.push(format!("{}: {method}{tensors} tensors, {bytes} bytes", output.display()));
    if let Some(rope) = rope {
        let default = rope.ctx_why.as_ref().map_or(String::new(), |why| format!(": {why}; --ctx sets it"));
        lines.push(format!("for {} tokens{default}", rope.n_ctx));
    }
    lines.extend(
        match (&report.llama_server, rope.and_then(|rope| rope.why.as_ref()), &report.no_llama_server) {
            (Some(line), ..) => Some(format!("runs in ropewalk and llama.cpp: {line}")),
            (_, Some(why), _) => {
                Some(format!("runs in ropewalk; llama.cpp would use the model's own frequencies: {why}"))
            }
            (.., why) => {
                why.as_ref().map(|why| format!("llama.cpp cannot run it as the file declares: {why}"))
            }
        },
    );
    lines
}
