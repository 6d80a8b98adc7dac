//! Hermes and Qwen: `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`.

use super::objects::Objects;
use super::Format;

const BEGIN: &str = "<tool_call>";
const END: &str = "</tool_call>";
const FORM: Objects =
    Objects { begin: BEGIN, name: "name", arguments: &["arguments"], list: false, end: END };

pub(super) const FORMAT: Format = Format {
    // Others of Qwen write each argument between tags.
    fits: |template| template.contains(BEGIN) && !template.contains("<function="),
    begins: &[BEGIN],
    whole: false,
    texts: false,
    marks: &[BEGIN, END],
    read: |text, at| FORM.read(text, at),
    behind: |text, last| FORM.behind(text, last),
    series: Some(|tools, many| FORM.series(tools, many)),
};
