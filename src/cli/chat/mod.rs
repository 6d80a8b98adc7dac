//! `ropewalk chat`: a conversation in the terminal, or line by line from a pipe.

mod complete;
mod conversation;
mod input;
mod slash;

use std::io::IsTerminal;
use std::path::PathBuf;

use anyhow::ensure;
use clap::{Args as _, FromArgMatches};
use ropewalk::chat::{ConversationParams, Turn};
use ropewalk::session::GenerateParams;
use serde_json::json;

use super::interrupt::Interrupt;
use super::options::{predicted, text_or_file, tokens, ModelArgs, RopeArgs, SamplingArgs};
use super::output::{self, ModelText, OutputArgs};
use super::{engine, models, Command};
use conversation::Chat;
use input::{Input, Line};

/// Largest default context in tokens.
const CTX_CAP: usize = 8192;

pub(crate) const COMMAND: Command = Command {
    name: "chat",
    about: "Talk with a model",
    details: "Messages go through the model's own chat template. A line that ends in a backslash continues on the \
              next one, and so does everything between \"\"\" and \"\"\". Pasted lines stay together. Commands begin \
              with a slash: /help lists them, /rope and /ctx change the method and the context of the running \
              conversation, /load adds a file to the next message. Ctrl-C stops an answer and keeps the \
              conversation; Ctrl-D exits. Without a terminal, messages and commands are read from stdin in \
              the same form.",
    example: "chat -m smollm2 --ctx 16384 --rope yarn:factor=2\n\
              chat -m smollm2 --lora chats.gguf --system \"Answer in one sentence.\"",
    args: Args::augment_args,
    run: |m| run(&Args::from_arg_matches(m)?),
};

#[derive(Debug, clap::Args)]
struct Args {
    /// System message; @FILE reads it from a file
    #[arg(long, value_name = "TEXT|@FILE")]
    system: Option<String>,
    /// Jinja file to use as the chat template [default: the model's]
    #[arg(long, value_name = "FILE")]
    template: Option<PathBuf>,
    /// Maximum number of tokens in an answer; -1 for no limit
    #[arg(short = 'n', long = "predict", value_name = "N", default_value_t = -1, allow_negative_numbers = true)]
    n_predict: i64,
    /// Ignore end-of-turn tokens, until -n or the context ends the answer
    #[arg(long)]
    ignore_eos: bool,
    /// Context size, in tokens [default: the trained context, at most 8192]
    #[arg(short, long, value_name = "N", value_parser = tokens)]
    ctx: Option<usize>,
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
    let system = args.system.as_deref().map(text_or_file).transpose()?;
    let mut shown = ModelText::new(args.raw)?;
    let choice = args.model.resolve_to_write()?.with_template(args.template.as_deref())?;
    let people = std::io::stdin().is_terminal() && std::io::stdout().is_terminal() && !args.out.json;
    // The editor installs a SIGINT handler though it reads Ctrl-C as a key. The handler installed last is
    // called.
    let mut input = Input::new(people, &args.out)?;
    let interrupt = Interrupt::install()?;
    let model = models::load(&choice, &args.out)?;
    let n_ctx = args.ctx.unwrap_or_else(|| engine::default_ctx(&model, CTX_CAP, 1));
    let ignore_eos = args.ignore_eos;
    let params = ConversationParams::new(
        choice.session(n_ctx, spec.as_ref()),
        GenerateParams::greedy(n_predict).sampler(sampler).ignore_eos(ignore_eos),
    );
    let mut chat = Chat::open(&model, &choice, params, &interrupt, args.out)?;
    if chat.talk.template().is_fallback() {
        args.out.note("note: the file has no chat template; using the ChatML form");
    }
    chat.talk.set_system(system);

    if people {
        args.out.note("/help lists commands, Ctrl-C stops an answer, Ctrl-D exits\n");
    }
    let (mut turns, mut failed) = (Vec::new(), 0);
    loop {
        let line = match interrupt.waiting(|| input.read())? {
            Line::End => break,
            Line::Hint => {
                args.out.note("(Ctrl-D or /quit exits)");
                continue;
            }
            line => line,
        };
        match step(&mut chat, &line, args, &mut shown, &mut turns) {
            Ok(true) => {}
            Ok(false) => break,
            Err(e) if e.chain().any(|c| c.is::<std::io::Error>() && super::is_broken_pipe(&e)) => {
                return Err(e)
            }
            Err(e) => {
                failed += 1;
                ropewalk_core::program::complain(super::in_a_line(&e));
            }
        }
    }
    if args.out.json {
        output::print_json(&json!({
            "model": models::label(&choice),
            "rope": chat.spec()?,
            "n_ctx": chat.n_ctx(),
            "messages": chat.talk.messages(),
            "turns": turns,
        }))?;
    }
    ensure!(failed == 0 || people, "failed lines: {failed}");
    Ok(())
}

/// Handles one line, a command or a message. False ends the conversation.
fn step(
    chat: &mut Chat<'_>,
    line: &Line,
    args: &Args,
    out: &mut ModelText,
    turns: &mut Vec<Turn>,
) -> anyhow::Result<bool> {
    let (line, command) = match line {
        Line::Block(text) => (text.as_str(), None),
        Line::Text(text) => (text.trim(), text.trim().strip_prefix('/')),
        Line::Hint | Line::End => return Ok(true),
    };
    let message = match command {
        _ if line.trim().is_empty() => return Ok(true),
        // Two slashes begin a message whose text begins with one.
        Some(rest) if !rest.starts_with('/') => match slash::run(chat, rest)? {
            slash::After::Show(text) if args.out.json => {
                args.out.note(text);
                return Ok(true);
            }
            slash::After::Show(text) => {
                output::print(&format!("{text}\n"))?;
                return Ok(true);
            }
            slash::After::Quit => return Ok(false),
            slash::After::Answer => None,
        },
        Some(rest) => Some(rest),
        None => Some(line),
    };
    let (mut shown, mut ends_line) = (false, true);
    let mut show = |text: &str| {
        if !args.out.json && !text.is_empty() {
            (shown, ends_line) = (true, text.ends_with('\n'));
            out.print(text)?;
        }
        Ok(())
    };
    let turn = chat.turn(message, &mut show);
    out.end()?;
    if shown && !ends_line {
        output::print("\n")?;
    }
    let turn = turn?;
    if let Some(note) = chat.note_on(&turn) {
        args.out.note(note);
    }
    turns.push(turn);
    Ok(true)
}
