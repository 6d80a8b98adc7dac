//! gpt-oss: a message of the channel `commentary` to a function, which ends the answer:
//! `<|channel|>commentary to=functions.NAME <|constrain|>json<|message|>{...}<|call|>`.

use super::{After, At, Format, Found, Tool};
use crate::backend::{Bit, Series};

const CHANNEL: &str = "<|channel|>";
const CONSTRAIN: &str = "<|constrain|>";
const MESSAGE: &str = "<|message|>";
const CALL: &str = "<|call|>";
const BEGIN: &str = "<|channel|>commentary";
const TO: &str = " to=functions.";

pub(super) const FORMAT: Format = Format {
    fits: |template| {
        template.contains(CHANNEL) && template.contains(MESSAGE) && template.contains("functions")
    },
    // A token ends here. Where calls are strict, a text for the user in this channel is not possible.
    begins: &[BEGIN],
    whole: false,
    texts: false,
    marks: &[CHANNEL, CONSTRAIN, MESSAGE, CALL],
    read,
    behind,
    series: Some(series),
};

fn series(tools: &[&Tool], _: bool) -> Series {
    let text = |text: &str| Bit::Text(text.to_owned());
    let call = |tool: &&Tool| {
        let to = Bit::Text(format!("{TO}{} ", tool.name));
        let begin = vec![Bit::Mark(CHANNEL), text("commentary"), to, Bit::Mark(CONSTRAIN), text("json")];
        [begin, vec![Bit::Mark(MESSAGE), tool.arguments()]].concat()
    };
    Series { one_of: tools.iter().map(call).collect(), ..Series::default() }
}

fn read(text: &str, _: At) -> Found {
    let body = text.strip_prefix(BEGIN).unwrap_or(text);
    let Some(to) = body.strip_prefix(TO) else {
        return if TO.starts_with(body) { Found::Open } else { Found::Text };
    };
    let Some((header, arguments)) = to.split_once(MESSAGE) else { return Found::Open };
    let name = header.split([' ', '<']).next().unwrap_or_default();
    let arguments = arguments.trim_start();
    match arguments.chars().next() {
        Some('{') => Found::Begun(name.to_owned(), text.len() - arguments.len()),
        Some(_) => Found::Text,
        None => Found::Open,
    }
}

/// The mark at the end is mostly the token that ends the answer, which is no text.
fn behind(text: &str, last: bool) -> After {
    let mark = text.trim_start();
    match mark.strip_prefix(CALL) {
        Some(after) => After::End(text.len() - after.len()),
        None if CALL.starts_with(mark) && !last => After::Open,
        None if CALL.starts_with(mark) => After::End(text.len()),
        None => After::End(0),
    }
}
