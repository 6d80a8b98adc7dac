//! The command line: arguments, progress, what is printed, exit codes.

mod peft;
mod quantizer;

use std::ffi::OsString;
use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{CommandFactory, Parser};
use gguf::DType;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use ropewalk_core::adapter::AdapterSpec;
use ropewalk_core::apart::this_program;
use ropewalk_core::control::{Control, Progress};
use ropewalk_core::rope::{Spec, METHODS};
use ropewalk_core::signals::{self, Signals};
use ropewalk_core::terminal;
use serde_json::{json, Value};

use crate::random::{self, Shape, SHAPES};
use crate::{types, Error, Options, Report, Result, TensorError};

const EXAMPLES: &str = "\
Examples:
  convert --rope harpe model.gguf -o long.gguf          opens under HARPE by itself
  convert --rope yarn --ctx 32768 --llama-cpp model.gguf -o yarn.gguf
  convert --type q4_k model-f16.gguf -o model-q4_k.gguf
  convert --type q4_k_m --imatrix im.gguf --check text.txt f16.gguf -o q4_k_m.gguf
  convert --lora a.gguf:0.8 --type q4_k model.gguf -o merged.gguf
  convert --peft DIR -m model.gguf -o adapter.gguf      and back with --to-peft DIR
  convert Qwen3-0.6B/ -o qwen3.gguf                     a folder of Hugging Face,
  convert Qwen3-0.6B/ --type q4_k_m --rope yarn -o y.gguf   and all of the above
  convert --random llama-tiny --type q8_0 -o tiny.gguf

Metadata written: the standard rope keys as far as they can say the method, and
under ropewalk.rope.* the whole: spec (what --rope would take), derived_from,
n_ctx, n_ctx_orig, bases (HARPE: one for each KV head). docs/gguf-keys.md in the
source describes them; `ropewalk inspect OUT` shows them.

Exit codes: 0 done, 1 failed, 2 wrong usage; stopped by Ctrl-C 130, SIGTERM 143,
SIGHUP 129, with OUT as it was and no temporary file left.";

/// GGUF or a folder of Hugging Face in, GGUF out: writes rope methods into models, changes their element types, makes random ones.
///
/// Tensor data is copied byte for byte unless --type asks for another type. The output is replaced only when
/// everything has succeeded. A file that was converted before gets the new method in place of the old one.
#[derive(Debug, Parser)]
#[command(name = "convert", version, after_help = EXAMPLES)]
struct Args {
    /// The model; of a split one, the first part. Or a folder of Hugging Face with config.json, weights in
    /// safetensors and a tokenizer
    #[arg(value_name = "IN", required_unless_present_any = ["random", "completions", "peft"])]
    input: Option<PathBuf>,
    /// The file to write
    #[arg(short, long, value_name = "OUT", required_unless_present_any = ["completions", "to_peft"])]
    output: Option<PathBuf>,
    /// The rope method to write, NAME[:KEY=VALUE,...]
    #[arg(long, value_name = "SPEC")]
    rope: Option<String>,
    /// The context to write it for, tokens [default: what the spec's factor reaches, else 4 times the trained
    /// window]
    #[arg(long, value_name = "N", value_parser = tokens)]
    ctx: Option<u32>,
    /// Only what stock llama.cpp understands: scaling keys, or the frequencies baked into rope_freqs.weight;
    /// what it cannot say is refused
    #[arg(long)]
    llama_cpp: bool,
    /// Type of all tensors that are not vectors, or a mixture of libllama's quantiser
    #[arg(long = "type", value_name = "TYPE")]
    dtype: Option<String>,
    #[command(flatten)]
    quantizer: quantizer::QuantizerArgs,
    /// Compare the predictions of the result with those of the source on this text, both run by libllama
    #[arg(long, value_name = "TEXT", conflicts_with = "random")]
    check: Option<PathBuf>,
    /// Print the error of every tensor that was converted, not of the worst five alone
    #[arg(long)]
    errors: bool,
    /// Merge an adapter, FILE or FILE:SCALE, into the weights; repeat it for several. Without --rope the file
    /// declares what the first was trained under
    #[arg(long, value_name = "FILE[:S]")]
    lora: Vec<AdapterSpec>,
    /// Take adapters that were trained on another model
    #[arg(long, requires = "lora")]
    force_lora: bool,
    #[command(flatten)]
    peft: peft::PeftArgs,
    /// Kind of the tokenizer in a folder (tokenizer.ggml.pre), for one that llama.cpp's list does not have
    #[arg(long, value_name = "NAME")]
    pre: Option<String>,
    /// Make a random-weight model of this shape. Large tensors repeat one pool of random blocks, which
    /// changes no speed
    #[arg(long, value_name = "SHAPE", conflicts_with_all = ["input", "rope", "ctx", "llama_cpp", "lora", "pre"])]
    random: Option<String>,
    /// Seed of the random weights [default: 0]
    #[arg(long, value_name = "S", requires = "random")]
    seed: Option<u64>,
    /// Print one JSON object on stdout
    #[arg(long)]
    json: bool,
    /// Say nothing on stderr but errors
    #[arg(short, long)]
    quiet: bool,
    /// Print completions for a shell
    #[arg(long, value_name = "SHELL", exclusive = true)]
    completions: Option<clap_complete::Shell>,
}

/// Runs the program; `args` start with its name. Tokenizers of folders run in this process.
pub fn run(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    start(args, || Ok(None))
}

/// [`run`] for a program that calls [`serve_tokenizer`](crate::serve_tokenizer) first of all: tokenizers of folders run
/// in processes of it.
pub fn run_apart(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    start(args, || this_program().map(Some))
}

fn start(
    args: impl IntoIterator<Item = OsString>,
    helper: impl FnOnce() -> std::io::Result<Option<PathBuf>>,
) -> ExitCode {
    let matches = Args::command().mut_args(describe).try_get_matches_from(args);
    let args = match matches.and_then(|m| <Args as clap::FromArgMatches>::from_arg_matches(&m)) {
        Ok(args) => args,
        Err(e) => {
            // A closed stdout or stderr is no reason to fail.
            let _ = e.print();
            return ExitCode::from(u8::try_from(e.exit_code()).unwrap_or(2));
        }
    };
    let mut signal = None;
    match act(&args, helper, &mut signal) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            complain(&e);
            ExitCode::from(match (e, signal) {
                (Error::Usage(_), _) => 2,
                (Error::Interrupted, Some(signal)) => signals::exit_code(signal),
                _ => 1,
            })
        }
    }
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

/// A number of tokens as `ropewalk` takes it: `4096`, or `4k` for 4 times 1,024. Positions are i32.
fn tokens(text: &str) -> std::result::Result<u32, String> {
    let (digits, unit) = match text.strip_suffix(['k', 'K']) {
        Some(d) => (d, 1024),
        None => (text, 1),
    };
    let n: u32 = digits.parse().map_err(|_| "expected a number of tokens such as 4096 or 4k".to_owned())?;
    let n = n.checked_mul(unit).filter(|&n| n <= i32::MAX as u32);
    n.filter(|&n| n > 0).ok_or_else(|| format!("expected 1 to {} tokens", i32::MAX))
}

fn complain(e: &dyn std::fmt::Display) {
    // Nothing is left to tell if stderr is closed.
    let _ = writeln!(std::io::stderr(), "convert: {}", terminal::inline(&e.to_string()));
}

/// Does what was asked; `signal` is the one that has stopped it, if one has.
fn act(
    args: &Args,
    helper: impl FnOnce() -> std::io::Result<Option<PathBuf>>,
    signal: &mut Option<i32>,
) -> Result<()> {
    if let Some(shell) = args.completions {
        let mut text = Vec::new();
        clap_complete::generate(shell, &mut Args::command(), "convert", &mut text);
        return print(&text);
    }
    if args.peft.asked() {
        return peft::act(args);
    }
    let Some(output) = &args.output else { return Err(Error::Usage("-o OUT is missing".into())) };
    let (dtype, mixture) =
        args.dtype.as_deref().map(|name| args.quantizer.resolve(name)).transpose()?.unwrap_or_default();
    let terminal = Terminal::new(args.quiet)?;
    let draw = |p: &Progress<'_>| terminal.draw(p);
    let control = Control::default().with_stop(terminal.signals.stop()).with_progress(&draw);
    if let Some(name) = &args.random {
        let shape = Shape::named(name)?;
        if let Some(mixture) = mixture {
            return Err(Error::Usage(format!("random models cannot be written as {}", mixture.name)));
        }
        let (dtype, seed) = (dtype.unwrap_or(DType::F16), args.seed.unwrap_or(0));
        let bytes = random::write_watched(&shape, dtype, seed, output, &control);
        *signal = terminal.done();
        let bytes = bytes?;
        terminal.say(&format!("{}: random {name}, {dtype}, seed {seed}, {bytes} bytes", output.display()));
        let report = json!({"output": path(output), "bytes": bytes, "random": name, "type": dtype.name(), "seed": seed});
        return if args.json { print_json(&report) } else { Ok(()) };
    }
    let Some(input) = &args.input else { return Err(Error::Usage("IN is missing".into())) };
    let rope = match &args.rope {
        Some(text) => Some(text.parse::<Spec>().map_err(|e| Error::Usage(format!("--rope: {e}")))?),
        None => None,
    };
    let options = Options {
        rope,
        n_ctx: args.ctx.map(|n| n as usize),
        dtype,
        mixture,
        check: args.check.clone(),
        llama_cpp: args.llama_cpp,
        adapters: args.lora.clone(),
        force_adapter: args.force_lora,
        pre: args.pre.clone(),
        helper: helper().map_err(|e| Error::Invalid(format!("cannot find this program: {e}")))?,
    };
    let report = crate::convert(input, output, &options, &control);
    *signal = terminal.done();
    let report = report?;
    show(&report, &terminal, output, args.errors);
    if args.json {
        let mut object = json!({"input": path(input), "output": path(output)});
        let rest = serde_json::to_value(&report).map_err(|e| Error::Invalid(e.to_string()))?;
        if let (Value::Object(object), Value::Object(rest)) = (&mut object, rest) {
            object.extend(rest);
        }
        print_json(&object)?;
    }
    Ok(())
}

fn path(p: &std::path::Path) -> String {
    p.to_string_lossy().into_owned()
}

/// Tensors whose error is printed when not all are asked for.
const WORST: usize = 5;

fn show(report: &Report, terminal: &Terminal, output: &std::path::Path, all: bool) {
    for note in &report.notes {
        terminal.say(note);
    }
    let mut errors: Vec<&TensorError> = report.converted.iter().collect();
    if !all {
        errors.sort_by(|a, b| b.rel_rmse.total_cmp(&a.rel_rmse));
        errors.truncate(WORST);
    }
    for t in errors {
        terminal.say(&format!(
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
        terminal.say(&format!("{n} tensors converted, rmse {:.3} % on average{shown}", 100.0 * mean));
    }
    if let Some(d) = &report.divergence {
        terminal.say(&format!(
            "KL divergence from the source {:.3e} +- {:.1e} (99 % of tokens below {:.3e}, largest {:.3e}), same top \
             token {:.2} %, perplexity {:.4} -> {:.4}; libllama, {} tokens, the second halves of windows of {}",
            d.kl,
            d.kl_error,
            d.kl_99,
            d.kl_max,
            100.0 * d.same_top,
            d.ppl_source,
            d.ppl,
            d.n_tokens,
            d.window
        ));
    }
    for m in &report.merged {
        let percent = 100.0 * m.rel_rmse;
        terminal.say(&format!(
            "{} merged tensors in {}: rmse {percent:.4} % of the exact merged weights",
            m.n_tensors, m.dtype
        ));
    }
    if let Some(rope) = &report.rope {
        terminal.say(&format!(
            "{} for {} tokens, from a trained window of {}",
            rope.rope, rope.n_ctx, rope.n_ctx_orig
        ));
        match &rope.llama_cpp {
            None => {}
            Some(keys) if keys.is_empty() => terminal.say("llama.cpp: the model's own frequencies"),
            Some(keys) => {
                let keys: Vec<String> = keys.iter().map(|(k, v)| format!("{k} = {v}")).collect();
                terminal.say(&format!("llama.cpp: {}", keys.join(", ")));
            }
        }
    }
    if let Some(line) = &report.llama_server {
        terminal.say(line);
    }
    if let Some(why) = &report.no_llama_server {
        terminal.say(&format!("llama-server cannot run it as converted: {why}"));
    }
    terminal.say(&format!("{}: {} tensors, {} bytes", output.display(), report.n_tensors, report.bytes));
}

fn print(text: &[u8]) -> Result<()> {
    let mut out = std::io::stdout().lock();
    out.write_all(text).and_then(|()| out.flush()).map_err(|e| Error::Invalid(format!("stdout: {e}")))
}

fn print_json(value: &Value) -> Result<()> {
    print(format!("{}\n", terminal::plain_json(value.to_string())).as_bytes())
}

/// Standard error, and signals.
struct Terminal {
    quiet: bool,
    bar: ProgressBar,
    signals: Signals,
}

impl Terminal {
    fn new(quiet: bool) -> Result<Terminal> {
        let shown = !quiet && std::io::stderr().is_terminal();
        let target = if shown { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
        let bar = ProgressBar::with_draw_target(None, target);
        let style = "{bar:40} {bytes}/{total_bytes} {bytes_per_sec} {eta} left";
        bar.set_style(ProgressStyle::with_template(style).unwrap_or_else(|_| ProgressStyle::default_bar()));
        let signals =
            Signals::listen().map_err(|e| Error::Invalid(format!("signals cannot be handled: {e}")))?;
        Ok(Terminal { quiet, bar, signals })
    }
    /// Draws the progress of a job.
    fn draw(&self, p: &Progress<'_>) {
        self.bar.set_length(p.total);
        self.bar.set_position(p.done);
    }
    /// Removes the progress bar; gives the signal that has come, if one has.
    fn done(&self) -> Option<i32> {
        self.bar.finish_and_clear();
        self.signals.received()
    }
    fn say(&self, line: &str) {
        if !self.quiet {
            // A closed stderr is no reason to fail: the file is written.
            let _ = writeln!(std::io::stderr(), "{}", terminal::shown(line));
        }
    }
}
