//! Llama 3.1 and later: the answer is `{"name": ..., "parameters": {...}}`, or several with `;` between them.

use super::objects::Objects;
use super::{Format, Tool};
use crate::backend::{Bit, Series};

const TAG: &str = "<|python_tag|>";
const FORM: Objects =
    Objects { begin: TAG, name: "name", arguments: &["parameters", "arguments"], list: false, end: ";" };

pub(super) const FORMAT: Format = Format {
    fits: |template| template.contains("<|start_header_id|>") && template.contains("\"parameters\""),
    begins: &[TAG, "{"],
    whole: true,
    texts: false,
    marks: &[TAG],
    read: |text, at| FORM.read(text, at),
    behind: |text, last| FORM.behind(text, last),
    series: Some(series),
};

fn series(tools: &[&Tool], many: bool) -> Series {
    Series {
        one_of: tools.iter().map(|tool| tool.object("parameters").to_vec()).collect(),
        between: many.then(|| vec![Bit::Text("; ".to_owned())]),
        ..Series::default()
    }
}
