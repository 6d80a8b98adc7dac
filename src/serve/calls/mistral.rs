//! Mistral: `[TOOL_CALLS]` and a list of calls, or from 2025 on `[TOOL_CALLS]name[ARGS]{...}` for each call.

use super::{value, Format, Found, Said, Tool};
use crate::backend::{Bit, Series};

const BEGIN: &str = "[TOOL_CALLS]";
const ID: &str = "[CALL_ID]";
const ARGS: &str = "[ARGS]";

pub(super) const LISTED: Format = Format {
    fits: |template| template.contains(BEGIN),
    begins: &[BEGIN],
    whole: false,
    texts: false,
    marks: &[BEGIN, ID, ARGS],
    read,
    series: Some(listed),
};

pub(super) const NAMED: Format = Format {
    fits: |template| template.contains(BEGIN) && template.contains(ARGS),
    series: Some(named),
    ..LISTED
};

fn listed(tools: &[&Tool], many: bool) -> Series {
    let text = |text: &str| Bit::Text(text.to_owned());
    Series {
        begin: vec![Bit::Mark(BEGIN), Bit::Space, text("[")],
        one_of: tools.iter().map(|tool| tool.object("arguments").to_vec()).collect(),
        between: many.then(|| vec![text(", ")]),
        end: vec![text("]")],
    }
}

fn named(tools: &[&Tool], many: bool) -> Series {
    let call = |tool: &&Tool| {
        vec![Bit::Mark(BEGIN), Bit::Text(tool.name.clone()), Bit::Mark(ARGS), tool.arguments()]
    };
    Series { one_of: tools.iter().map(call).collect(), between: many.then(Vec::new), ..Series::default() }
}

fn read(text: &str, _: bool) -> Found {
    let body = text[BEGIN.len()..].trim_start();
    // A list, or a name before the next mark or the arguments.
    let Some(at) = body.find(['[', '{']) else { return Found::Open };
    let (name, mut rest) = (body[..at].trim(), &body[at..]);
    if let Some(id) = rest.strip_prefix(ID) {
        let Some(at) = id.find(ARGS) else { return Found::Open };
        rest = &id[at..];
    }
    let rest = rest.strip_prefix(ARGS).unwrap_or(rest);
    let (found, n) = match value(rest) {
        Ok(found) => found,
        Err(true) => return Found::Open,
        Err(false) => return Found::Text,
    };
    let calls: Option<Vec<Said>> = match found.as_array() {
        Some(list) if name.is_empty() => list.iter().map(|call| Said::of(call, &["arguments"])).collect(),
        None if !name.is_empty() && found.is_object() => {
            Some(vec![Said { name: name.to_owned(), arguments: found.clone() }])
        }
        _ => None,
    };
    match calls {
        Some(calls) if !calls.is_empty() => Found::Calls(calls, text.len() - rest.len() + n),
        _ => Found::Text,
    }
}
