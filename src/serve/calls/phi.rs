//! Phi-4-mini: `<|tool_call|>{"name": ..., "arguments": {...}}<|/tool_call|>`, which llama.cpp's template for it asks for.
//! Its own template names no form, and takes functions from a field of the system's message that no request has.

use super::objects::Objects;
use super::Format;

const BEGIN: &str = "<|tool_call|>";
const END: &str = "<|/tool_call|>";
const FORM: Objects =
    Objects { begin: BEGIN, name: "name", arguments: &["arguments"], list: false, end: END };

pub(super) const FORMAT: Format = Format {
    fits: |template| template.contains(BEGIN) && template.contains(END),
    begins: &[BEGIN],
    whole: false,
    texts: false,
    marks: &[BEGIN, END],
    read: |text, at| FORM.read(text, at),
    behind: |text, last| FORM.behind(text, last),
    series: Some(|tools, many| FORM.series(tools, many)),
};
