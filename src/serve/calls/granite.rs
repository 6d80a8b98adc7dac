//! Granite 3: `<|tool_call|>` and a list of calls. Granite 4 has the form of Hermes.

use super::objects::Objects;
use super::Format;

const BEGIN: &str = "<|tool_call|>";
const FORM: Objects = Objects { begin: BEGIN, name: "name", arguments: &["arguments"], list: true, end: "" };

pub(super) const FORMAT: Format = Format {
    fits: |template| template.contains(BEGIN) && template.contains("<|start_of_role|>"),
    begins: &[BEGIN],
    whole: false,
    texts: false,
    marks: &[BEGIN],
    read: |text, at| FORM.read(text, at),
    behind: |text, last| FORM.behind(text, last),
    series: Some(|tools, many| FORM.series(tools, many)),
};
