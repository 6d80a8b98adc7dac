//! Hermes and Qwen: `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`.

use super::{value, Format, Found, Said, Tool};
use crate::backend::{Bit, Series};

const BEGIN: &str = "<tool_call>";
const END: &str = "</tool_call>";

pub(super) const FORMAT: Format = Format {
    // Others of Qwen write each argument between tags.
    fits: |template| template.contains(BEGIN) && !template.contains("<function="),
    begins: &[BEGIN],
    whole: false,
    texts: false,
    marks: &[BEGIN, END],
    read,
    series: Some(series),
};

fn series(tools: &[&Tool], many: bool) -> Series {
    let call = |tool: &&Tool| -> Vec<Bit> {
        let begin = [Bit::Mark(BEGIN), Bit::Space];
        begin.into_iter().chain(tool.object("arguments")).chain([Bit::Space, Bit::Mark(END)]).collect()
    };
    Series {
        one_of: tools.iter().map(call).collect(),
        between: many.then(|| vec![Bit::Space]),
        ..Series::default()
    }
}

fn read(text: &str, last: bool) -> Found {
    let body = &text[BEGIN.len()..];
    let (call, n) = match value(body) {
        Ok((value, n)) => (Said::of(&value, &["arguments"]), n),
        Err(true) => return Found::Open,
        Err(false) => return Found::Text,
    };
    let Some(call) = call else { return Found::Text };
    let rest = body[n..].trim_start();
    match rest.strip_prefix(END) {
        Some(after) => Found::Calls(vec![call], text.len() - after.len()),
        // Some answers end without it.
        None if END.starts_with(rest) && last => Found::Calls(vec![call], text.len()),
        None if END.starts_with(rest) => Found::Open,
        None => Found::Text,
    }
}
