//! `ropewalk run`: completes one prompt.

use std::collections::HashMap;
use std::path::PathBuf;
use std::time::Instant;

use anyhow::bail;
use clap::{Args as _, FromArgMatches};
use ropewalk::chat::answer::{hidden_marks, Form};
use ropewalk::chat::Message;
use ropewalk::model::Error;
use ropewalk::session::{GenerateParams, Session, StopReason};
use serde_json::json;

use super::interrupt::{self, Interrupt};
use super::options::{predicted, read_text, text_or_file, tokens, ModelArgs, RopeArgs, SamplingArgs};
use super::output::{self, rate, ModelText, OutputArgs, Unit};
use super::{engine, models, template, usage, Command};

/// Contexts are not made larger than this unless the prompt or the user needs it.
const CTX_CAP: usize = 4096;

pub(crate) const COMMAND: Command = Command {
    name: "run",
    about: "Complete a prompt",
    details: "Generated text goes to stdout, notes and speeds to stderr. Control characters are printed as escapes \
              such as \\u{1b}, unless --raw is given. The prompt is continued as it is; --chat wraps it in the \
              model's chat template as one question. Without --ctx, the context is the trained context or 4096, \
              whichever is less, or as much as the prompt and -n need. For a prompt past the trained context, choose \
              a method with --rope.",
    example: "run -m smollm2 -p \"Once upon a time\" -n 64\n\
              run -m smollm2 -f report.txt --rope yarn:factor=2 --ctx 16384 --kv q8_0 --temp 0",
    args: Args::augment_args,
    run: |m| run(&Args::from_arg_matches(m)?),
};

#[derive(Debug, clap::Args)]
struct Args {
    /// The prompt
    #[arg(short, long, value_name = "TEXT", required_unless_present = "file", conflicts_with = "file")]
    prompt: Option<String>,
    /// Read the prompt from a file; - is stdin
    #[arg(short, long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// Maximum number of tokens to generate; -1 for no limit
    #[arg(
        short = 'n',
        long = "predict",
        value_name = "N",
        default_value_t = 128,
        allow_negative_numbers = true
    )]
    n_predict: i64,
    /// Context size, in tokens
    #[arg(short, long, value_name = "N", value_parser = tokens)]
    ctx: Option<usize>,
    /// Wrap the prompt in the model's chat template
    #[arg(long)]
    chat: bool,
    /// Jinja file to use as the chat template [default: the model's]
    #[arg(long, value_name = "FILE", requires = "chat")]
    template: Option<PathBuf>,
    /// System message, with --chat; @FILE reads it from a file
    #[arg(long, value_name = "TEXT|@FILE", requires = "chat")]
    system: Option<String>,
    /// Stop when this text appears; can be repeated
    #[arg(long, value_name = "TEXT")]
    stop: Vec<String>,
    /// Ignore end-of-text tokens
    #[arg(long)]
    ignore_eos: bool,
    /// Parse special tokens such as <|im_start|> in the prompt, and print them in the output
    #[arg(long)]
    special: bool,
    /// Print the prompt before its continuation
    #[arg(long)]
    echo: bool,
    /// Print control characters unescaped; stdout must not be a terminal
    #[arg(long, conflicts_with = "json")]
    raw: bool,
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    rope: RopeArgs,
    #[command(flatten)]
    sampling: SamplingArgs,
    #[command(flatten)]
    out: OutputArgs,
}

fn run(args: &Args) -> anyhow::Result<()> {
    let n_predict = predicted(args.n_predict)?;
    let (spec, sampler) = (args.rope.spec()?, args.sampling.params()?);
    let text = match (&args.prompt, &args.file) {
        (Some(text), _) => text.clone(),
        (None, Some(path)) => read_text(path)?,
        (None, None) => return Err(usage("a prompt is needed: -p TEXT or -f FILE")),
    };
    let mut shown = ModelText::new(args.raw)?;
    let choice = args.model.resolve_to_write()?.with_template(args.template.as_deref())?;
    let interrupt = Interrupt::install()?;

    let started = Instant::now();
    let model = models::load(&choice, &args.out)?;
    // Texts end a turn where the model has no token for it.
    let (prompt, mut stop, marks) = if args.chat {
        let template = template::of(&model, &interrupt.control())?;
        if template.is_fallback() {
            args.out.note("note: the file has no chat template; using the ChatML form");
        }
        let system = args.system.as_deref().map(text_or_file).transpose()?;
        let mut messages: Vec<Message> = system.into_iter().map(|s| Message::new("system", s)).collect();
        messages.push(Message::new("user", text.as_str()));
        let marks = if args.special { &[] } else { Form::of(template.source()).marks() };
        let marks = hidden_marks(model.vocab(), marks)?;
        (template.tokens(model.vocab(), &messages, true)?, template.stop(), marks)
    } else {
        (model.vocab().tokenize(&text, true, args.special)?, Vec::new(), HashMap::new())
    };
    stop.extend(args.stop.iter().cloned());
    if prompt.is_empty() {
        bail!("the prompt is empty and the model has no token to begin with: nothing to continue");
    }
    let wanted = if n_predict == usize::MAX { 1 } else { n_predict.max(1) };
    let n_ctx =
        args.ctx.unwrap_or_else(|| engine::default_ctx(&model, CTX_CAP, prompt.len().saturating_add(wanted)));
    let mut session = Session::new(&model, &choice.session(n_ctx, spec.as_ref()))?;
    let (n_prompt, most) = (prompt.len(), session.n_max());
    if n_prompt >= most {
        let needed = n_prompt + 1;
        bail!("the prompt has {n_prompt} tokens and the context holds {most}: pass --ctx {needed} or more");
    }
    interrupt.watch(&session);
    let load_s = started.elapsed().as_secs_f64();
    models::announce(&args.out, &choice, &session);
    args.out.note("");

    let started = Instant::now();
    engine::with_bar(args.out.progress(0, "reading", Unit::Tokens), &interrupt, |control| {
        session.prefill(&prompt, control)
    })?;
    let prefill_s = started.elapsed().as_secs_f64();
    if args.echo && !args.out.json {
        shown.print(&text)?;
    }

    let params = GenerateParams::greedy(n_predict)
        .sampler(sampler)
        .stop(stop)
        .ignore_eos(args.ignore_eos)
        .special(args.special);
    let started = Instant::now();
    let (mut tokens, mut written) = (Vec::new(), String::new());
    let mut generation = session.generate(&prompt, &params)?;
    for piece in generation.by_ref() {
        let piece = match piece {
            Ok(piece) => piece,
            Err(Error::Interrupted) => break,
            Err(e) => return Err(e.into()),
        };
        tokens.extend(piece.token);
        // Without the marks, which are control tokens in some models, thinking would run into the answer.
        let mark = piece.token.and_then(|token| marks.get(&token));
        for text in [&*piece.text].into_iter().chain(mark.copied()) {
            written.push_str(text);
            if !args.out.json {
                shown.print(text)?;
            }
        }
    }
    shown.end()?;
    let stop = generation.stop_reason();
    drop(generation);
    let (n_generated, decode_s) = (tokens.len(), started.elapsed().as_secs_f64());
    let (prefill_rate, decode_rate) = (rate(n_prompt, prefill_s), rate(n_generated, decode_s));
    if args.out.json {
        output::print_json(&json!({
            "model": models::label(&choice),
            "rope": session.plan().spec.to_string(),
            "device": model.device(),
            "n_ctx": n_ctx,
            "text": written,
            "tokens": tokens,
            "n_prompt": n_prompt,
            "stop": stop.unwrap_or(StopReason::Cancelled),
            "timings": {
                "load_s": load_s,
                "prefill_s": prefill_s,
                "prefill_tokens_per_s": prefill_rate,
                "decode_s": decode_s,
                "decode_tokens_per_s": decode_rate,
            },
        }))?;
    } else {
        if !written.ends_with('\n') {
            output::print("\n")?;
        }
        args.out.note(format_args!(
            "\nread {n_prompt} tokens in {prefill_s:.2} s ({prefill_rate:.1}/s), wrote {n_generated} in {decode_s:.2} s \
             ({decode_rate:.1}/s), loaded in {load_s:.2} s",
        ));
        if stop == Some(StopReason::ContextFull) {
            args.out
                .note(format_args!("stopped: the context of {n_ctx} tokens is full (see --ctx and --rope)"));
        }
    }
    interrupt::check(interrupt.requested(), "interrupted")
}
