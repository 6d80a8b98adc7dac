//! Mistral: `[TOOL_CALLS]` and a list of calls, or from 2025 on `[TOOL_CALLS]name[ARGS]{...}` for each call.

use super::objects::Objects;
use super::{After, At, Format, Found, Tool};
use crate::backend::{Bit, Series};

const BEGIN: &str = "[TOOL_CALLS]";
const ID: &str = "[CALL_ID]";
const ARGS: &str = "[ARGS]";
const LIST: Objects = Objects { begin: BEGIN, name: "name", arguments: &["arguments"], list: true, end: "" };

pub(super) const LISTED: Format = Format {
    fits: |template| template.contains(BEGIN),
    begins: &[BEGIN],
    whole: false,
    texts: false,
    marks: &[BEGIN, ID, ARGS],
    read,
    behind,
    series: Some(|tools, many| LIST.series(tools, many)),
};

pub(super) const NAMED: Format = Format {
    fits: |template| template.contains(BEGIN) && template.contains(ARGS),
    series: Some(named),
    ..LISTED
};

fn named(tools: &[&Tool], many: bool) -> Series {
    let call = |tool: &&Tool| {
        vec![Bit::Mark(BEGIN), Bit::Text(tool.name.clone()), Bit::Mark(ARGS), tool.arguments()]
    };
    Series { one_of: tools.iter().map(call).collect(), between: many.then(Vec::new), ..Series::default() }
}

fn read(text: &str, at: At) -> Found {
    let body = text.strip_prefix(BEGIN).unwrap_or(text).trim_start();
    if at.inside || body.starts_with('[') {
        return LIST.read(text, at);
    }
    // A name before the next mark or the arguments.
    let Some(n) = body.find(['[', '{']) else { return Found::Open };
    let (name, mut rest) = (body[..n].trim(), &body[n..]);
    if name.is_empty() {
        return Found::Text;
    }
    if let Some(id) = rest.strip_prefix(ID) {
        let Some(n) = id.find(ARGS) else { return Found::Open };
        rest = &id[n..];
    }
    if [ID, ARGS].iter().any(|mark| mark.len() > rest.len() && mark.starts_with(rest)) {
        return Found::Open;
    }
    let rest = rest.strip_prefix(ARGS).unwrap_or(rest).trim_start();
    match rest.chars().next() {
        Some('{') => Found::Begun(name.to_owned(), text.len() - rest.len()),
        Some(_) => Found::Text,
        None => Found::Open,
    }
}

/// After arguments behind a name comes nothing; in a list, the rest of the object does.
fn behind(text: &str, last: bool) -> After {
    match text.trim_start().chars().next() {
        Some('}' | ',') => LIST.behind(text, last),
        None if !last => After::Open,
        _ => After::End(0),
    }
}
