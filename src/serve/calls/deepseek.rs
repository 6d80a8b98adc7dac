//! DeepSeek: calls between marks, and each between marks. R1 and V3 have `function`, a mark, the name, and the arguments as a
//! block of code; V3.1 has the name, the mark, and the arguments.
//!
//! DeepSeek's own templates for R1 and V3 show the model no functions. One that does, such as llama.cpp's, is needed.

use super::{After, At, Format, Found, Tool};
use crate::backend::{Bit, Series};

const BEGIN: &str = "<｜tool▁calls▁begin｜>";
const CALL: &str = "<｜tool▁call▁begin｜>";
const SEP: &str = "<｜tool▁sep｜>";
const CALL_END: &str = "<｜tool▁call▁end｜>";
const END: &str = "<｜tool▁calls▁end｜>";
const BLOCK: &str = "```json";
const BLOCK_END: &str = "```";

pub(super) const BLOCKS: Format = Format {
    fits: |template| template.contains(BEGIN) && template.contains(BLOCK),
    read: |text, at| read(text, at, Some(BLOCK)),
    behind: |text, last| behind(text, last, &[BLOCK_END, CALL_END]),
    series: Some(|tools, many| series(tools, many, true)),
    ..PLAIN
};

pub(super) const PLAIN: Format = Format {
    fits: |template| template.contains(BEGIN),
    begins: &[BEGIN],
    whole: false,
    texts: false,
    marks: &[BEGIN, CALL, SEP, CALL_END, END],
    read: |text, at| read(text, at, None),
    behind: |text, last| behind(text, last, &[CALL_END]),
    series: Some(|tools, many| series(tools, many, false)),
};

fn series(tools: &[&Tool], many: bool, blocks: bool) -> Series {
    let text = |text: &str| Bit::Text(text.to_owned());
    let call = |tool: &&Tool| match blocks {
        true => {
            let name = Bit::Text(format!("{}\n{BLOCK}\n", tool.name));
            let begin = vec![Bit::Mark(CALL), text("function"), Bit::Mark(SEP), name];
            [begin, vec![tool.arguments(), Bit::Text(format!("\n{BLOCK_END}")), Bit::Mark(CALL_END)]].concat()
        }
        false => {
            vec![Bit::Mark(CALL), text(&tool.name), Bit::Mark(SEP), tool.arguments(), Bit::Mark(CALL_END)]
        }
    };
    let between = if blocks { vec![text("\n")] } else { Vec::new() };
    Series {
        begin: vec![Bit::Mark(BEGIN)],
        one_of: tools.iter().map(call).collect(),
        between: many.then_some(between),
        end: vec![Bit::Mark(END)],
    }
}

/// Reads up to the arguments, in a block or not.
fn read(text: &str, at: At, block: Option<&str>) -> Found {
    let body = if at.inside { text } else { text.strip_prefix(BEGIN).unwrap_or(text) };
    let call = match behind_marks(body, &[CALL]) {
        Ok(call) => call,
        Err(true) => return Found::Open,
        Err(false) => return Found::Text,
    };
    let Some((kind, said)) = call.split_once(SEP) else { return Found::Open };
    let (name, rest) = match block {
        None => (kind, said),
        Some(block) => match said.split_once(block) {
            Some(found) if kind.trim() == "function" => found,
            None if !said.contains('{') => return Found::Open,
            _ => return Found::Text,
        },
    };
    let rest = rest.trim_start();
    match rest.chars().next() {
        Some('{') => Found::Begun(name.trim().to_owned(), text.len() - rest.len()),
        Some(_) => Found::Text,
        None => Found::Open,
    }
}

fn behind(text: &str, last: bool, marks: &[&str]) -> After {
    let cut = if last { After::End(text.len()) } else { After::Open };
    let rest = match behind_marks(text, marks) {
        Ok(rest) => rest,
        Err(true) => return cut,
        Err(false) => return After::Other(0),
    };
    match (behind_marks(rest, &[END]), behind_marks(rest, &[CALL])) {
        (Ok(after), _) => After::End(text.len() - after.len()),
        (_, Ok(_)) => After::Next(text.len() - rest.len()),
        (Err(false), Err(false)) => After::Other(text.len() - rest.len()),
        _ => cut,
    }
}

/// The text after marks with white space before each. An error says whether more text could make them.
fn behind_marks<'a>(text: &'a str, marks: &[&str]) -> Result<&'a str, bool> {
    let mut rest = text;
    for mark in marks {
        let start = rest.trim_start();
        rest = start.strip_prefix(mark).ok_or(mark.starts_with(start))?;
    }
    Ok(rest)
}
