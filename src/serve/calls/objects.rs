//! Calls that are JSON objects, with marks around them or in a list.

use super::{value, After, At, Found, Said, Tool};
use crate::backend::{Bit, Series};

/// Such a form.
pub(super) struct Objects {
    /// The text before a call or a list. It may be missing where a call can begin without.
    pub(super) begin: &'static str,
    /// The key of the function's name.
    pub(super) name: &'static str,
    /// The keys that arguments may have.
    pub(super) arguments: &'static [&'static str],
    /// Whether calls are in a list.
    pub(super) list: bool,
    /// The text after a call, or after a list, where it may be missing. The end of an answer stands for it.
    pub(super) end: &'static str,
}

impl Objects {
    /// As [`super::Format`] has it.
    pub(super) fn read(&self, text: &str, at: At) -> Found {
        let mut body = text;
        if !at.inside {
            body = text.strip_prefix(self.begin).unwrap_or(text);
            if self.list {
                let open = body.trim_start();
                match open.strip_prefix('[') {
                    Some(inner) => body = inner,
                    None if open.is_empty() => return Found::Open,
                    None => return Found::Text,
                }
            }
        }
        let skipped = text.len() - body.len();
        if let Some((name, n)) = self.head(body).filter(|_| at.sure) {
            return Found::Begun(name, skipped + n);
        }
        let (found, n) = match value(body) {
            Ok(found) => found,
            Err(true) => return Found::Open,
            Err(false) => return Found::Text,
        };
        let Some(said) = Said::of(&found, self.name, self.arguments) else { return Found::Text };
        match self.follows(&body[n..], at.last) {
            After::Next(more) => Found::Call(said, skipped + n + more, true),
            After::End(more) => Found::Call(said, skipped + n + more, false),
            After::Open => Found::Open,
            After::Other(_) => Found::Text,
        }
    }

    /// The name and the bytes before the arguments, of an object that has both in this order. None as well while they have
    /// not come, and for arguments that are a text: these are known when they are complete.
    fn head(&self, text: &str) -> Option<(String, usize)> {
        let mut at = text.len() - text.trim_start().strip_prefix('{')?.len();
        let mut name = None;
        loop {
            let (key, n) = value(&text[at..]).ok()?;
            let inner = text[at + n..].trim_start().strip_prefix(':')?.trim_start();
            at = text.len() - inner.len();
            let key = key.as_str()?;
            if self.arguments.contains(&key) {
                return name.filter(|_| inner.starts_with('{')).map(|name| (name, at));
            }
            let (found, n) = value(inner).ok()?;
            if key == self.name {
                name = Some(found.as_str()?.to_owned());
            }
            at = text.len() - inner[n..].trim_start().strip_prefix(',')?.len();
        }
    }

    /// As [`super::Format`] has it. Of an object that lacks its end, the end is what follows it.
    pub(super) fn behind(&self, text: &str, last: bool) -> After {
        // The rest of the object, behind a value that stands for the arguments.
        const BEGIN: &str = "{\"\":\"\"";
        let n = match value(&format!("{BEGIN}{text}")) {
            Ok((_, n)) => n - BEGIN.len(),
            Err(true) if last => return After::End(text.len()),
            Err(true) => return After::Open,
            Err(false) => 0,
        };
        match self.follows(&text[n..], last) {
            After::Next(more) => After::Next(n + more),
            After::End(more) => After::End(n + more),
            After::Other(more) => After::Other(n + more),
            After::Open => After::Open,
        }
    }

    /// As [`super::Format`] has it.
    pub(super) fn series(&self, tools: &[&Tool], many: bool) -> Series {
        let text = |text: &str| Bit::Text(text.to_owned());
        let end = (!self.end.is_empty()).then_some(Bit::Mark(self.end));
        if self.list {
            return Series {
                begin: vec![Bit::Mark(self.begin), Bit::Space, text("[")],
                one_of: tools.iter().map(|tool| tool.object(self.arguments[0]).to_vec()).collect(),
                between: many.then(|| vec![text(", ")]),
                end: std::iter::once(text("]")).chain(end).collect(),
            };
        }
        let call = |tool: &&Tool| -> Vec<Bit> {
            let begin = [Bit::Mark(self.begin), Bit::Space];
            begin
                .into_iter()
                .chain(tool.object(self.arguments[0]))
                .chain([Bit::Space])
                .chain(end.clone())
                .collect()
        };
        Series {
            one_of: tools.iter().map(call).collect(),
            between: many.then(|| vec![Bit::Space]),
            ..Series::default()
        }
    }

    /// The text after an object.
    fn follows(&self, text: &str, last: bool) -> After {
        let before = |rest: &str| text.len() - rest.len();
        let mut rest = text.trim_start();
        if self.list {
            if let Some(rest) = rest.strip_prefix(',') {
                return After::Next(before(rest));
            }
            match rest.strip_prefix(']') {
                Some(after) if self.end.is_empty() => return After::End(before(after)),
                Some(after) => rest = after,
                None if !rest.is_empty() => return After::Other(0),
                None if last => return After::End(text.len()),
                None => return After::Open,
            }
        }
        let mark = rest.trim_start();
        match mark.strip_prefix(self.end) {
            Some(after) => After::End(before(after)),
            None if !self.end.starts_with(mark) && self.list => After::End(before(rest)),
            None if !self.end.starts_with(mark) => After::Other(0),
            None if last => After::End(text.len()),
            None => After::Open,
        }
    }
}
