//! Mistral: `[TOOL_CALLS]` and a list of calls, or from 2025 on `[TOOL_CALLS]name[ARGS]{...}` for each call.

use super::{value, Format, Found, Said};

const BEGIN: &str = "[TOOL_CALLS]";
const ID: &str = "[CALL_ID]";
const ARGS: &str = "[ARGS]";

pub(super) const FORMAT: Format = Format {
    fits: |template| template.contains(BEGIN),
    begins: &[BEGIN],
    whole: false,
    marks: &[BEGIN, ID, ARGS],
    read,
};

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
            Some(vec![Said { name: name.to_owned(), arguments: found.to_string() }])
        }
        _ => None,
    };
    match calls {
        Some(calls) if !calls.is_empty() => Found::Calls(calls, text.len() - rest.len() + n),
        _ => Found::Text,
    }
}
