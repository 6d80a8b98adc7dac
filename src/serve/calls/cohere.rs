//! Command R7B and Command A: a list of `{"tool_call_id": ..., "tool_name": ..., "parameters": {...}}` between
//! `<|START_ACTION|>` and `<|END_ACTION|>`.

use serde_json::json;

use super::objects::Objects;
use super::{Format, Tool};
use crate::backend::{Bit, Series};

const BEGIN: &str = "<|START_ACTION|>";
const END: &str = "<|END_ACTION|>";
const FORM: Objects =
    Objects { begin: BEGIN, name: "tool_name", arguments: &["parameters"], list: true, end: END };

pub(super) const FORMAT: Format = Format {
    fits: |template| template.contains(BEGIN) && template.contains("\"tool_name\""),
    begins: &[BEGIN],
    whole: false,
    texts: false,
    marks: &[BEGIN, END],
    read: |text, at| FORM.read(text, at),
    behind: |text, last| FORM.behind(text, last),
    series: Some(series),
};

fn series(tools: &[&Tool], many: bool) -> Series {
    let text = |text: &str| Bit::Text(text.to_owned());
    let call = |tool: &&Tool| {
        // The number of the call, from 0.
        let id = Bit::Json { schema: json!({ "type": "string", "pattern": "^[0-9]{1,3}$" }), strict: true };
        let name = format!(", \"tool_name\": \"{}\", \"parameters\": ", tool.name);
        vec![text("{\"tool_call_id\": "), id, Bit::Text(name), tool.arguments(), text("}")]
    };
    Series {
        begin: vec![Bit::Mark(BEGIN), text("[\n    ")],
        one_of: tools.iter().map(call).collect(),
        between: many.then(|| vec![text(",\n    ")]),
        end: vec![text("\n]"), Bit::Mark(END)],
    }
}
