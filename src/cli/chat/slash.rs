//! The slash commands of a conversation, in one slice that help and completion read.

use std::path::Path;

use anyhow::{anyhow, bail, ensure};
use ropewalk::rope::{Spec, METHODS};
use ropewalk::session::is_session_file;

use super::conversation::Chat;
use crate::cli::options::{parse_spec, text, tokens, MAX_TEXT_BYTES};
use crate::cli::output::{count, rate};

pub(super) struct Slash {
    /// Name, without the slash.
    pub(super) name: &'static str,
    /// Name of the argument in help; empty if the command takes none.
    pub(super) arg: &'static str,
    pub(super) about: &'static str,
    run: fn(&mut Chat<'_>, &str) -> anyhow::Result<After>,
}

pub(super) enum After {
    /// Show a text to the user.
    Show(String),
    /// Answer the last message.
    Answer,
    /// End the conversation.
    Quit,
}

pub(super) static SLASHES: &[Slash] = &[
    Slash { name: "help", arg: "", about: "list these commands", run: help },
    Slash { name: "rope", arg: "[SPEC]", about: "show the RoPE method, or switch to another", run: rope },
    Slash { name: "ctx", arg: "[N]", about: "show the context size, or change it", run: ctx },
    Slash {
        name: "load",
        arg: "FILE",
        about: "add a text file to the next message, or restore a saved session",
        run: load,
    },
    Slash { name: "save", arg: "FILE", about: "save the conversation and its session to FILE", run: save },
    Slash { name: "restore", arg: "FILE", about: "restore a saved session", run: restore },
    Slash {
        name: "system",
        arg: "[TEXT]",
        about: "show the system message, or set it; - removes it",
        run: system,
    },
    Slash { name: "regen", arg: "", about: "answer the last message again", run: regen },
    Slash { name: "undo", arg: "", about: "remove the last message and its answer", run: undo },
    Slash { name: "clear", arg: "", about: "remove all messages except the system message", run: clear },
    Slash { name: "stats", arg: "", about: "show tokens, speed, and memory", run: stats },
    Slash { name: "quit", arg: "", about: "exit; Ctrl-D does the same", run: |_, _| Ok(After::Quit) },
];

/// Runs the command in a line, without its slash.
pub(super) fn run(chat: &mut Chat<'_>, line: &str) -> anyhow::Result<After> {
    let (name, arg) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
    let name = if name == "exit" { "quit" } else { name };
    let Some(slash) = SLASHES.iter().find(|s| s.name == name) else {
        let known: Vec<String> = SLASHES.iter().map(|s| format!("/{}", s.name)).collect();
        bail!("unknown command /{name}; known: {}", known.join(", "));
    };
    let arg = arg.trim();
    ensure!(!slash.arg.is_empty() || arg.is_empty(), "/{name} takes no argument, found '{arg}'");
    ensure!(slash.arg != "FILE" || !arg.is_empty(), "/{name} needs a file");
    (slash.run)(chat, arg)
}

fn show(text: impl Into<String>) -> anyhow::Result<After> {
    Ok(After::Show(text.into()))
}

fn help(_: &mut Chat<'_>, _: &str) -> anyhow::Result<After> {
    let mut text = String::new();
    for s in SLASHES {
        text += &format!("{:18} {}\n", format!("/{} {}", s.name, s.arg), s.about);
    }
    text += "A line that ends in \\ continues on the next one; \"\"\" begins and ends a block of lines; \
             // begins a message with a slash.";
    show(text)
}

fn rope(chat: &mut Chat<'_>, arg: &str) -> anyhow::Result<After> {
    if arg.is_empty() {
        let known: Vec<&str> = METHODS.iter().map(|m| m.name).chain([Spec::DECLARED]).collect();
        return show(format!("rope {}\nknown: {}", chat.spec()?, known.join(", ")));
    }
    let spec = parse_spec(arg)?;
    chat.reopen(chat.n_ctx(), Some(spec))?;
    show(format!("rope {}", chat.spec()?))
}

fn ctx(chat: &mut Chat<'_>, arg: &str) -> anyhow::Result<After> {
    if !arg.is_empty() {
        let n = tokens(arg).map_err(|e| anyhow!("/ctx {arg}: {e}"))?;
        chat.reopen(n, chat.talk.params().session.rope.clone())?;
    }
    let used = chat.talk.session()?.tokens(0).len();
    show(format!("context {} tokens, {} in use", count(chat.n_ctx() as u64), count(used as u64)))
}

fn load(chat: &mut Chat<'_>, arg: &str) -> anyhow::Result<After> {
    let path = Path::new(arg);
    if is_session_file(path) {
        return restore(chat, arg);
    }
    // Not stdin, which the messages come from.
    let text = text(arg, files::foreign::read_file(path, MAX_TEXT_BYTES)?)?;
    let n = chat.talk.load_text(path.display().to_string(), text)?;
    show(format!("{arg}: {} tokens, sent with the next message", count(n as u64)))
}

fn save(chat: &mut Chat<'_>, arg: &str) -> anyhow::Result<After> {
    // No option of this program replaces another file here.
    chat.talk.save(Path::new(arg)).map_err(|e| anyhow!("{e}"))?;
    show(format!("saved to {arg}"))
}

fn restore(chat: &mut Chat<'_>, arg: &str) -> anyhow::Result<After> {
    chat.restore(Path::new(arg))?;
    let n = chat.talk.session()?.tokens(0).len();
    show(format!("{arg}: {} messages, {} tokens restored", chat.talk.messages().len(), count(n as u64)))
}

fn system(chat: &mut Chat<'_>, arg: &str) -> anyhow::Result<After> {
    match arg {
        "" => show(chat.talk.system().unwrap_or("(no system message)").to_owned()),
        "-" => {
            chat.talk.set_system(None);
            show("system message removed")
        }
        text => {
            chat.talk.set_system(Some(text.to_owned()));
            show("system message set")
        }
    }
}

fn regen(chat: &mut Chat<'_>, _: &str) -> anyhow::Result<After> {
    match chat.talk.drop_answer() {
        true => Ok(After::Answer),
        false => bail!("nothing was asked yet"),
    }
}

fn undo(chat: &mut Chat<'_>, _: &str) -> anyhow::Result<After> {
    let Some(message) = chat.talk.undo() else { bail!("nothing to undo") };
    let start: String = message.content.chars().take(60).collect();
    show(format!("removed: {}", start.replace('\n', " ")))
}

fn clear(chat: &mut Chat<'_>, _: &str) -> anyhow::Result<After> {
    chat.talk.clear();
    show("cleared")
}

fn stats(chat: &mut Chat<'_>, _: &str) -> anyhow::Result<After> {
    let session = chat.talk.session()?;
    let mut text = format!(
        "{} messages, {} tokens, {}, rope {}\n\
         memory: {}",
        chat.talk.messages().len(),
        count(session.tokens(0).len() as u64),
        session.plan().context_text(chat.n_ctx(), chat.talk.model().hparams()),
        chat.spec()?,
        session.memory(),
    );
    if let Some(t) = chat.talk.last_turn() {
        let fresh = t.n_prompt - t.reused;
        text += &format!(
            "\nlast answer: {} tokens reused, {fresh} read at {:.1}/s, {} written at {:.1}/s",
            t.reused,
            rate(fresh, t.prefill_s),
            t.n_generated,
            rate(t.n_generated, t.decode_s),
        );
    }
    show(text)
}
