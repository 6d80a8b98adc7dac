//! Reads messages: with an editor that has history and completion on a terminal, line by line otherwise.

use std::io::{BufRead, Read};
use std::path::PathBuf;

use anyhow::bail;
use rustyline::completion::{Completer, FilenameCompleter, Pair};
use rustyline::error::ReadlineError;
use rustyline::history::DefaultHistory;
use rustyline::validate::{ValidationContext, ValidationResult, Validator};
use rustyline::{Config, Context, Editor, Helper, Highlighter, Hinter};

use ropewalk::rope::METHODS;

use super::slash::{Slash, SLASHES};
use crate::cli::options::{text, MAX_TEXT_BYTES};
use crate::cli::output::OutputArgs;

/// The mark at the beginning and the end of a block of lines.
const QUOTES: &str = "\"\"\"";

pub(super) enum Line {
    /// A whole message or command.
    Text(String),
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
        editor.set_helper(Some(ChatHelper { files: FilenameCompleter::new() }));
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
                    Ok(Line::Text(unwrap(&text)))
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
        if bytes.len() as u64 > most {
            bail!("stdin: expected a message of at most {most} bytes, found more");
        }
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
            let rest = unwrap(&text);
            return Ok(if rest.trim().is_empty() { Line::End } else { Line::Text(rest) });
        }
        return Ok(Line::Text(unwrap(text.trim_end_matches(['\n', '\r']))));
    }
}

/// Returns true if a message is complete: it has no backslash at its end and no open block.
fn is_whole(text: &str) -> bool {
    match text.trim_start().strip_prefix(QUOTES) {
        Some(rest) => rest.contains(QUOTES),
        None => !text.ends_with('\\'),
    }
}

/// The message without backslashes at the ends of lines and without the marks of a block.
fn unwrap(text: &str) -> String {
    match text.trim().strip_prefix(QUOTES) {
        Some(rest) => rest.strip_suffix(QUOTES).unwrap_or(rest).trim_matches('\n').to_owned(),
        None => text.replace("\\\r\n", "\n").replace("\\\n", "\n"),
    }
}

/// Completion and continuation of lines for the editor.
#[derive(Helper, Hinter, Highlighter)]
pub(super) struct ChatHelper {
    files: FilenameCompleter,
}

impl Validator for ChatHelper {
    fn validate(&self, ctx: &mut ValidationContext<'_>) -> rustyline::Result<ValidationResult> {
        Ok(if is_whole(ctx.input()) { ValidationResult::Valid(None) } else { ValidationResult::Incomplete })
    }
}

impl Completer for ChatHelper {
    type Candidate = Pair;
    fn complete(&self, line: &str, pos: usize, ctx: &Context<'_>) -> rustyline::Result<(usize, Vec<Pair>)> {
        match candidates(&line[..pos]) {
            None => self.files.complete(line, pos, ctx),
            Some((start, words)) => {
                Ok((start, words.into_iter().map(|w| Pair { display: w.clone(), replacement: w }).collect()))
            }
        }
    }
}

/// Where the last word of a line begins, and its completions; `None` for the name of a file.
fn candidates(line: &str) -> Option<(usize, Vec<String>)> {
    let Some(rest) = line.strip_prefix('/') else { return Some((line.len(), Vec::new())) };
    let Some((name, arg)) = rest.split_once(' ') else {
        let names = SLASHES.iter().filter(|s| s.name.starts_with(rest));
        let space = |s: &Slash| if s.arg.is_empty() { "" } else { " " };
        return Some((0, names.map(|s| format!("/{}{}", s.name, space(s))).collect()));
    };
    if SLASHES.iter().any(|s| s.name == name && s.arg == "FILE") {
        return None;
    }
    if name == "rope" {
        // A plus joins two methods.
        let part = arg.rsplit('+').next().unwrap_or(arg);
        let words = METHODS.iter().map(|m| m.name).filter(|m| m.starts_with(part)).map(str::to_owned);
        return Some((line.len() - part.len(), words.collect()));
    }
    Some((line.len(), Vec::new()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_go_on() {
        for (text, whole, message) in [
            ("hello", true, "hello"),
            ("one\\", false, ""),
            ("one\\\ntwo", true, "one\ntwo"),
            ("\"\"\"", false, ""),
            ("\"\"\"a\nb\\", false, ""),
            ("\"\"\"\na\nb\n\"\"\"", true, "a\nb"),
            ("\"\"\"a\"\"\"", true, "a"),
        ] {
            assert_eq!(is_whole(text), whole, "{text:?}");
            if whole {
                assert_eq!(unwrap(text), message, "{text:?}");
            }
        }
    }

    #[test]
    fn messages_from_a_pipe_end_where_they_end() {
        let read = |input: &[u8]| {
            let (mut input, mut texts) = (input, Vec::new());
            loop {
                match read_lines(&mut input, 30) {
                    Ok(Line::Text(text)) => texts.push(text),
                    Ok(_) => return texts,
                    Err(e) => {
                        texts.push(e.to_string());
                        return texts;
                    }
                }
            }
        };
        assert_eq!(read(b"a\n\nb\\\r\nc\n\"\"\"d\n\ne\"\"\"\nf"), ["a", "", "b\nc", "d\n\ne", "f"]);
        assert_eq!(read(b"\"\"\"\nno end\n"), ["no end"]);
        assert_eq!(read(b"\xff\n"), ["stdin: not UTF-8: bad byte at offset 0"]);
        let long = "stdin: expected a message of at most 30 bytes, found more";
        assert_eq!(read(&[&b"a\n"[..], &[b'x'; 31]].concat()), ["a", long]);
        assert_eq!(read(&[&b"\"\"\"\n"[..], b"xxxxxxxxx\n".repeat(3).as_slice()].concat()), [long]);
    }

    #[test]
    fn completion_knows_commands_files_and_methods() {
        assert_eq!(candidates("/re"), Some((0, vec!["/restore ".into(), "/regen".into()])));
        assert_eq!(candidates("/load some/fi"), None);
        assert_eq!(candidates("/rope ya"), Some((6, vec!["yarn".into()])));
        assert_eq!(candidates("hello"), Some((5, Vec::new())));
    }
}
