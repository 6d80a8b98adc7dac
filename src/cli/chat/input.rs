//! Reads messages: with an editor that has history and completion on a terminal, line by line otherwise.

use std::io::{BufRead, Read};
use std::path::PathBuf;

use anyhow::ensure;
use rustyline::completion::{Completer, Pair};
use rustyline::error::ReadlineError;
use rustyline::history::DefaultHistory;
use rustyline::validate::{ValidationContext, ValidationResult, Validator};
use rustyline::{Config, Context, Editor, Helper, Highlighter, Hinter};

use super::complete::candidates;
use super::slash::SLASHES;
use crate::cli::options::{text, MAX_TEXT_BYTES};
use crate::cli::output::OutputArgs;

/// The mark at the beginning and the end of a block of lines.
const QUOTES: &str = "\"\"\"";

pub(super) enum Line {
    /// A whole message or command.
    Text(String),
    /// A block of lines: a message, as it is.
    Block(String),
    /// Ctrl-C while nothing was being generated.
    Hint,
    /// The end of the input.
    End,
}

pub(super) enum Input {
    Editor { editor: Box<Editor<ChatHelper, DefaultHistory>>, history: Option<PathBuf> },
    Lines,
}

impl Input {
    /// An editor when a person types, else plain lines.
    pub(super) fn new(people: bool, out: &OutputArgs) -> anyhow::Result<Input> {
        if !people {
            return Ok(Input::Lines);
        }
        let config =
            Config::builder().history_ignore_space(true).max_history_size(1000)?.auto_add_history(true);
        let mut editor: Editor<ChatHelper, DefaultHistory> = Editor::with_config(config.build())?;
        editor.set_helper(Some(ChatHelper));
        let history = dirs::data_dir().map(|d| d.join("ropewalk").join("chat_history"));
        if let Some(path) = &history {
            let made = path.parent().map_or(Ok(()), std::fs::create_dir_all);
            if let Err(e) = made {
                out.note(format_args!("note: history is not saved: {}: {e}", path.display()));
            }
            // There is no history before the first conversation.
            let _ = editor.load_history(path);
        }
        Ok(Input::Editor { editor: Box::new(editor), history })
    }

    pub(super) fn read(&mut self) -> anyhow::Result<Line> {
        match self {
            Input::Editor { editor, history } => match editor.readline("> ") {
                Ok(text) => {
                    if let Some(path) = history {
                        // A history that cannot be written is no reason to end the conversation.
                        let _ = editor.append_history(path);
                    }
                    Ok(unwrap(&text))
                }
                Err(ReadlineError::Interrupted) => Ok(Line::Hint),
                Err(ReadlineError::Eof) => Ok(Line::End),
                Err(e) => Err(e.into()),
            },
            Input::Lines => read_lines(&mut std::io::stdin().lock(), MAX_TEXT_BYTES),
        }
    }
}

/// Reads the lines of a message of at most so many bytes.
fn read_lines(input: &mut impl BufRead, most: u64) -> anyhow::Result<Line> {
    let mut bytes = Vec::new();
    let mut in_block = false;
    loop {
        let from = bytes.len();
        let n = input.take(most + 1 - from as u64).read_until(b'\n', &mut bytes)?;
        ensure!(bytes.len() as u64 <= most, "stdin: expected a message of at most {most} bytes, found more");
        // Only the new line is looked at, because a message may be a book of a million lines.
        let line = String::from_utf8_lossy(&bytes[from..]);
        let line = line.trim_end_matches(['\n', '\r']);
        let ends = match from {
            0 => {
                in_block = line.trim_start().starts_with(QUOTES);
                is_whole(line)
            }
            _ if in_block => line.contains(QUOTES),
            _ => !line.ends_with('\\'),
        };
        if n > 0 && !ends {
            continue;
        }
        let text = text("stdin", bytes)?;
        if n == 0 {
            // A message counts even if the end of its block is missing.
            return Ok(match unwrap(&text) {
                Line::Text(rest) | Line::Block(rest) if rest.trim().is_empty() => Line::End,
                line => line,
            });
        }
        return Ok(unwrap(text.trim_end_matches(['\n', '\r'])));
    }
}

/// Returns true if a message is complete: it has no backslash at its end and no open block.
fn is_whole(text: &str) -> bool {
    text.trim_start().strip_prefix(QUOTES).map_or(!text.ends_with('\\'), |rest| rest.contains(QUOTES))
}

/// The message without backslashes at the ends of lines and without the marks of a block.
fn unwrap(text: &str) -> Line {
    match text.trim().strip_prefix(QUOTES) {
        Some(rest) => {
            let block = rest.strip_suffix(QUOTES).unwrap_or(rest);
            Line::Block(block.trim_start_matches(['\r', '\n']).trim_end().to_owned())
        }
        None => Line::Text(text.replace("\\\r\n", "\n").replace("\\\n", "\n")),
    }
}

/// Completion and continuation of lines for the editor.
#[derive(Helper, Hinter, Highlighter)]
pub(super) struct ChatHelper;

impl Validator for ChatHelper {
    fn validate(&self, ctx: &mut ValidationContext<'_>) -> rustyline::Result<ValidationResult> {
        Ok(if is_whole(ctx.input()) { ValidationResult::Valid(None) } else { ValidationResult::Incomplete })
    }
}

impl Completer for ChatHelper {
    type Candidate = Pair;
    fn complete(&self, line: &str, pos: usize, _: &Context<'_>) -> rustyline::Result<(usize, Vec<Pair>)> {
        let (start, words) = candidates(&line[..pos], SLASHES.iter().map(|s| (s.name, s.arg)));
        Ok((start, words.into_iter().map(|w| Pair { display: w.clone(), replacement: w }).collect()))
    }
}
