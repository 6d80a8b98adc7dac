//! Llama 3.1 and later: the answer is `{"name": ..., "parameters": {...}}`, or several with `;` between them.

use super::{value, Format, Found, Said, Tool};
use crate::backend::{Bit, Series};

const TAG: &str = "<|python_tag|>";

pub(super) const FORMAT: Format = Format {
    fits: |template| template.contains("<|start_header_id|>") && template.contains("\"parameters\""),
    begins: &[TAG, "{"],
    whole: true,
    texts: false,
    marks: &[TAG],
    read,
    series: Some(series),
};

fn series(tools: &[&Tool], many: bool) -> Series {
    Series {
        one_of: tools.iter().map(|tool| tool.object("parameters").to_vec()).collect(),
        between: many.then(|| vec![Bit::Text("; ".to_owned())]),
        ..Series::default()
    }
}

fn read(text: &str, last: bool) -> Found {
    let body = text.strip_prefix(TAG).unwrap_or(text);
    let (call, n) = match value(body) {
        Ok((value, n)) => (Said::of(&value, &["parameters", "arguments"]), n),
        Err(true) => return Found::Open,
        Err(false) => return Found::Text,
    };
    let Some(call) = call else { return Found::Text };
    let rest = body[n..].trim_start();
    match rest.strip_prefix(';') {
        Some(after) => Found::Calls(vec![call], text.len() - after.len()),
        None if !rest.is_empty() => Found::Text,
        None if last => Found::Calls(vec![call], text.len()),
        None => Found::Open,
    }
}
