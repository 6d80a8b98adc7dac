//! Calls of functions: those that a request offers, and how models write calls in their answers.
//!
//! A family's form is a file with a [`Format`], and a line in [`FORMATS`].

mod hermes;
mod llama;
mod mistral;
mod qwen;

use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::Arc;

use serde_json::{json, Value};

use crate::backend::{Bit, Fault, Series, Shape};
use crate::fields::{wrong, Fields};

const MAX_TOOLS: usize = 128;
const MAX_NAME: usize = 128;

/// The forms, in the order in which templates are compared with them.
const FORMATS: &[&Format] =
    &[&mistral::NAMED, &mistral::LISTED, &hermes::FORMAT, &qwen::FORMAT, &llama::FORMAT];

/// How a family of models writes calls.
pub(crate) struct Format {
    /// Whether a template is for such calls.
    fits: fn(&str) -> bool,
    /// What a call begins with.
    begins: &'static [&'static str],
    /// Whether calls are the whole answer: only white space comes before.
    whole: bool,
    /// Whether all arguments are texts.
    texts: bool,
    /// All marks, which a vocabulary may have as control tokens.
    marks: &'static [&'static str],
    /// Reads the calls at the beginning of a text, which begins with one of `begins`. Nothing follows if this is `last`.
    read: fn(&str, bool) -> Found,
    /// Calls of these functions, several if that is true; none where such a form cannot be told.
    series: Option<fn(&[&Tool], bool) -> Series>,
}

impl Format {
    /// Any text, or right calls.
    fn free(&self, mut calls: Series) -> Shape {
        if self.whole {
            let text = Series { one_of: vec![vec![Bit::Free('{')]], ..Series::default() };
            return Shape { any: vec![text, calls], ..Shape::default() };
        }
        let mark = self.begins[0];
        if calls.begin.is_empty() {
            // Each call begins with it.
            calls.one_of.iter_mut().for_each(|call| drop(call.remove(0)));
            calls.between.iter_mut().for_each(|between| between.push(Bit::Mark(mark)));
        } else {
            calls.begin.remove(0);
        }
        Shape { trigger: Some(mark), any: vec![calls], ..Shape::default() }
    }
}

/// What a text begins with.
enum Found {
    /// Calls, and the bytes that they take.
    Calls(Vec<Said>, usize),
    /// More text decides.
    Open,
    /// Text.
    Text,
}

/// A call as a model writes it.
struct Said {
    name: String,
    arguments: Value,
}

impl Said {
    /// A call from an object with a name, and with arguments under one of these keys.
    fn of(value: &Value, keys: &[&str]) -> Option<Said> {
        let name = value.get("name")?.as_str()?;
        let arguments = match keys.iter().find_map(|key| value.get(key)) {
            None => json!({}),
            Some(Value::String(text)) => serde_json::from_str(text).ok()?,
            Some(other) => other.clone(),
        };
        arguments.is_object().then(|| Said { name: name.to_owned(), arguments })
    }
}

/// The JSON value that a text begins with, and its bytes. An error says whether more text could make one.
fn value(text: &str) -> Result<(Value, usize), bool> {
    let mut values = serde_json::Deserializer::from_str(text).into_iter::<Value>();
    match values.next() {
        Some(Ok(value)) => Ok((value, values.byte_offset())),
        Some(Err(e)) => Err(e.is_eof()),
        None => Err(true),
    }
}

/// The marks of the form of calls that a template is for. A backend passes them on as text, also where they are control
/// tokens.
pub fn call_marks(template: &str) -> &'static [&'static str] {
    match format(template) {
        Some(format) => format.marks,
        None => &[],
    }
}

fn format(template: &str) -> Option<&'static Format> {
    FORMATS.iter().copied().find(|format| template.contains("tools") && (format.fits)(template))
}

/// A function that a model may call.
#[derive(Clone)]
pub(crate) struct Tool {
    pub(crate) name: String,
    /// The schema of its arguments.
    parameters: Value,
    /// Whether the arguments must be of that schema.
    strict: bool,
}

impl Tool {
    fn arguments(&self) -> Bit {
        Bit::Json { schema: self.parameters.clone(), strict: self.strict }
    }

    /// A call as an object, with the arguments under this key.
    fn object(&self, key: &str) -> [Bit; 3] {
        let begin = format!("{{\"name\": \"{}\", \"{key}\": ", self.name);
        [Bit::Text(begin), self.arguments(), Bit::Text("}".to_owned())]
    }
}

/// Which functions an answer may or must call.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Choose {
    None,
    Auto,
    Required,
    Named(String),
}

/// The functions of a request.
pub(crate) struct Tools {
    pub(crate) list: Vec<Tool>,
    /// The list as the template gets it.
    pub(crate) given: Value,
    pub(crate) choose: Choose,
    /// Whether an answer may have several calls.
    pub(crate) parallel: bool,
}

impl Tools {
    /// Takes the fields about functions.
    pub(crate) fn take(fields: &mut Fields) -> Result<Tools, Fault> {
        let given = match fields.take("tools") {
            None => Vec::new(),
            Some(Value::Array(list)) if list.len() <= MAX_TOOLS => list,
            Some(other) => return Err(wrong("tools", &format!("a list of at most {MAX_TOOLS}"), &other)),
        };
        let mut list: Vec<Tool> = Vec::new();
        for (i, value) in given.iter().enumerate() {
            let tool = tool(&format!("tools[{i}]"), value)?;
            if list.iter().any(|other| other.name == tool.name) {
                let what = format!("tools: expected each name once, found {} again", tool.name);
                return Err(Fault::invalid("tools", what));
            }
            list.push(tool);
        }
        let choose = match fields.take("tool_choice") {
            None => Choose::Auto,
            Some(Value::String(text)) if text == "none" => Choose::None,
            Some(Value::String(text)) if text == "auto" => Choose::Auto,
            Some(Value::String(text)) if text == "required" && !list.is_empty() => Choose::Required,
            Some(value) => match value["function"]["name"].as_str() {
                Some(name) if list.iter().any(|tool| tool.name == name) => Choose::Named(name.to_owned()),
                _ => {
                    let what = "none, auto, required, or a function of `tools`";
                    let found = value.pointer("/function/name").unwrap_or(&value);
                    return Err(wrong("tool_choice", what, found));
                }
            },
        };
        let parallel = fields.bool("parallel_tool_calls")?.unwrap_or(true);
        Ok(Tools { list, given: given.into(), choose, parallel })
    }

    /// Whether an answer may have calls.
    pub(crate) fn offered(&self) -> bool {
        !self.list.is_empty() && self.choose != Choose::None
    }

    /// What an answer must be. Its text may have to be JSON, which comes after a header.
    pub(crate) fn shape(
        &self,
        template: Option<&str>,
        json: Option<Bit>,
        header: Vec<Bit>,
    ) -> Result<Option<Shape>, Fault> {
        let text = json.map(|json| Series { begin: header, one_of: vec![vec![json]], ..Series::default() });
        let only = |any| Ok(Some(Shape { any, ..Shape::default() }));
        let Some(format) = template.and_then(format).filter(|_| self.offered()) else {
            return text.map_or(Ok(None), |text| only(vec![text]));
        };
        let strict = self.list.iter().any(|tool| tool.strict);
        if self.choose == Choose::Auto && text.is_none() && !strict {
            return Ok(None);
        }
        let Some(series) = format.series else {
            let what = "tools: expected tool_choice none or auto, no strict functions, and no response_format with this model's \
                        form of calls, found another";
            return Err(Fault::invalid("tools", what));
        };
        let named = |tool: &&Tool| !matches!(&self.choose, Choose::Named(name) if *name != tool.name);
        let tools: Vec<&Tool> = self.list.iter().filter(named).collect();
        let one = !self.parallel || matches!(self.choose, Choose::Named(_));
        let calls = series(&tools, !one);
        match (&self.choose, text) {
            (Choose::Auto, Some(text)) => only(vec![text, calls]),
            (Choose::Auto, None) => Ok(Some(format.free(calls))),
            _ => only(vec![calls]),
        }
    }

    /// What reads the calls of an answer, for a model with this template; none if no functions are offered.
    pub(crate) fn reader(&self, template: Option<&str>) -> Result<Option<Reader>, Fault> {
        if !self.offered() {
            return Ok(None);
        }
        let Some(format) = template.and_then(format) else {
            let what = "tools: expected a model whose chat template has calls in a known form, found another";
            return Err(Fault::invalid("tools", what));
        };
        Ok(Some(Reader {
            format,
            tools: self.list.clone().into(),
            parallel: self.parallel,
            held: String::new(),
            open: false,
            blank: true,
            n_calls: 0,
        }))
    }
}

/// One of the functions of a request.
fn tool(at: &str, value: &Value) -> Result<Tool, Fault> {
    if value["type"] != "function" {
        return Err(wrong(&format!("{at}.type"), "function", &value["type"]));
    }
    let function = &value["function"];
    let at = format!("{at}.function");
    if !function.is_object() {
        return Err(wrong(&at, "an object", function));
    }
    let of_names = |c: u8| c.is_ascii_alphanumeric() || b"_-.:/".contains(&c);
    let is_name = |name: &&str| (1..=MAX_NAME).contains(&name.len()) && name.bytes().all(of_names);
    let name = function["name"].as_str().filter(is_name).ok_or_else(|| {
        let expected = format!("1 to {MAX_NAME} letters, digits, or any of _-.:/");
        wrong(&format!("{at}.name"), &expected, &function["name"])
    })?;
    let parameters = match &function["parameters"] {
        // A function without arguments.
        Value::Null => json!({ "type": "object", "properties": {}, "additionalProperties": false }),
        Value::Object(schema) => schema.clone().into(),
        other => return Err(wrong(&format!("{at}.parameters"), "a JSON schema", other)),
    };
    let strict = match &function["strict"] {
        Value::Null => false,
        Value::Bool(strict) => *strict,
        other => return Err(wrong(&format!("{at}.strict"), "true or false", other)),
    };
    Ok(Tool { name: name.to_owned(), parameters, strict })
}

/// The calls of an earlier answer, as a message has them. Arguments are texts.
pub(crate) fn earlier(at: &str, value: &Value) -> Result<Value, Fault> {
    let list = value.as_array().ok_or_else(|| wrong(at, "a list", value))?;
    let one = |(i, call): (usize, &Value)| {
        let at = format!("{at}[{i}]");
        if call.get("type").is_some_and(|kind| kind != "function") {
            return Err(wrong(&format!("{at}.type"), "function", &call["type"]));
        }
        let id = match &call["id"] {
            Value::Null => "",
            Value::String(id) => id.as_str(),
            other => return Err(wrong(&format!("{at}.id"), "a text", other)),
        };
        let function = &call["function"];
        let Some(name) = function["name"].as_str() else {
            return Err(wrong(&format!("{at}.function.name"), "a text", &function["name"]));
        };
        let arguments = match &function["arguments"] {
            Value::Null => "{}".to_owned(),
            Value::String(text) => text.clone(),
            object @ Value::Object(_) => object.to_string(),
            other => return Err(wrong(&format!("{at}.function.arguments"), "JSON as a text", other)),
        };
        Ok(json!({ "id": id, "type": "function", "function": { "name": name, "arguments": arguments } }))
    };
    list.iter().enumerate().map(one).collect()
}

/// A call in an answer.
#[derive(Debug, PartialEq)]
pub(crate) struct Call {
    pub(crate) id: String,
    pub(crate) name: String,
    /// A JSON object.
    pub(crate) arguments: String,
}

/// Separates calls from text, in an answer that comes in pieces. What only looks like a call is text.
#[derive(Clone)]
pub(crate) struct Reader {
    format: &'static Format,
    tools: Arc<[Tool]>,
    parallel: bool,
    /// White space, and after it what may be a call.
    held: String,
    /// Whether it begins like one.
    open: bool,
    /// Whether only white space and calls came.
    blank: bool,
    n_calls: usize,
}

impl Reader {
    /// Takes more text; the text and the calls that are ready.
    pub(crate) fn push(&mut self, text: &str) -> (String, Vec<Call>) {
        self.held.push_str(text);
        // All calls end with one of these, and a long one is not to be read again with every token.
        if self.open && !text.contains(['}', ']', '>']) {
            return (String::new(), Vec::new());
        }
        self.read(false)
    }

    /// What was held back.
    pub(crate) fn finish(&mut self) -> (String, Vec<Call>) {
        self.read(true)
    }

    fn read(&mut self, last: bool) -> (String, Vec<Call>) {
        let (mut text, mut calls) = (String::new(), Vec::new());
        loop {
            if !self.parallel && self.n_calls > 0 {
                self.held.clear();
                return (text, calls);
            }
            if !self.open {
                let ready = self.ready(last);
                let later = self.held.split_off(ready);
                let now = std::mem::replace(&mut self.held, later);
                self.blank &= now.trim().is_empty();
                text.push_str(&now);
                if !self.open {
                    if last && self.n_calls > 0 && text.trim().is_empty() {
                        text.clear();
                    }
                    return (text, calls);
                }
            }
            let space = self.held.len() - self.held.trim_start().len();
            match (self.format.read)(&self.held[space..], last) {
                Found::Open if !last => return (text, calls),
                Found::Calls(mut said, n) if said.iter().all(|call| self.tool(&call.name).is_some()) => {
                    self.held.drain(..space + n);
                    said.truncate(if self.parallel { usize::MAX } else { 1 });
                    self.n_calls += said.len();
                    calls.extend(said.into_iter().map(|said| self.call(said)));
                }
                _ => {
                    let begins = self.format.begins.iter().filter(|b| self.held[space..].starts_with(**b));
                    let n = space + begins.map(|b| b.len()).max().unwrap_or(0);
                    text.extend(self.held.drain(..n));
                    self.blank = false;
                }
            }
            self.open = false;
        }
    }

    fn tool(&self, name: &str) -> Option<&Tool> {
        self.tools.iter().find(|tool| tool.name == name)
    }

    fn call(&self, said: Said) -> Call {
        let Said { name, mut arguments } = said;
        if let Some(tool) = self.tool(&name).filter(|_| self.format.texts) {
            let values = arguments.as_object_mut().into_iter().flatten();
            values.for_each(|(key, value)| qwen::typed(&tool.parameters["properties"][key.as_str()], value));
        }
        Call { id: id(), name, arguments: arguments.to_string() }
    }

    /// The bytes that are text. Sets `open` if a call may begin after them.
    fn ready(&mut self, last: bool) -> usize {
        let held = self.held.as_str();
        let body = held.trim_start();
        let begins = self.format.begins;
        if self.format.whole {
            self.open = self.blank && begins.iter().any(|b| body.starts_with(b));
            let undecided = self.blank && !last && begins.iter().any(|b| b.starts_with(body));
            return if self.open || undecided { 0 } else { held.len() };
        }
        if let Some(at) = begins.iter().filter_map(|b| held.find(b)).min() {
            self.open = true;
            return held[..at].trim_end().len();
        }
        if last {
            return held.len();
        }
        let longest = begins.iter().map(|b| b.len()).max().unwrap_or(0);
        let start = held.len().saturating_sub(longest);
        let starts =
            |at: &usize| held.is_char_boundary(*at) && begins.iter().any(|b| b.starts_with(&held[*at..]));
        let at = (start..held.len()).find(starts).unwrap_or(held.len());
        held[..at].trim_end().len()
    }
}

/// An id of nine letters and digits, which is what Mistral's templates take.
fn id() -> String {
    const LETTERS: &[u8; 36] = b"0123456789abcdefghijklmnopqrstuvwxyz";
    let mut random = RandomState::new().build_hasher().finish();
    let mut letter = || {
        let letter = LETTERS[(random % 36) as usize];
        random /= 36;
        char::from(letter)
    };
    (0..9).map(|_| letter()).collect()
}
