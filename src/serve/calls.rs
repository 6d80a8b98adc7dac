//! Calls of functions: those that a request offers, and how models write calls in their answers.
//!
//! A family's form is a file with a [`Format`], and a line in [`FORMATS`].

mod cohere;
mod deepseek;
mod generic;
mod granite;
mod harmony;
mod hermes;
mod llama;
mod mistral;
mod objects;
mod phi;
mod qwen;
mod reader;

use std::borrow::Cow;

use serde_json::{json, Map, Value};

use crate::backend::{Bit, Fault, Series, Shape};
use crate::fields::{wrong, Fields};

pub(crate) use reader::{joined, Call, Piece, Reader};

const MAX_TOOLS: usize = 128;
const MAX_NAME: usize = 128;

/// The forms, in the order in which templates are compared with them.
const FORMATS: &[&Format] = &[
    &mistral::NAMED,
    &mistral::LISTED,
    &hermes::FORMAT,
    &qwen::FORMAT,
    &phi::FORMAT,
    &granite::FORMAT,
    &cohere::FORMAT,
    &deepseek::BLOCKS,
    &deepseek::PLAIN,
    &harmony::FORMAT,
    &llama::FORMAT,
];

/// How a family of models writes calls.
pub(crate) struct Format {
    /// Whether a template is for such calls.
    fits: fn(&str) -> bool,
    /// Texts that a call can begin with.
    begins: &'static [&'static str],
    /// Whether calls are the whole answer: only white space comes before.
    whole: bool,
    /// Whether all arguments are texts.
    texts: bool,
    /// All marks, which a vocabulary may have as control tokens.
    marks: &'static [&'static str],
    /// Reads the call at the beginning of a text, which begins with one of `begins`, or is inside of a list of calls.
    read: fn(&str, At) -> Found,
    /// Reads what follows the arguments of a call that has begun. Nothing follows the text if that is true.
    behind: fn(&str, bool) -> After,
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
            calls.one_of.iter_mut().for_each(|call| strip(call, mark));
            calls.between.iter_mut().for_each(|between| between.push(Bit::Mark(mark)));
        } else {
            calls.begin.remove(0);
        }
        Shape { trigger: Some(mark), any: vec![calls], ..Shape::default() }
    }
}

/// Removes a text from the beginning of a series, which begins with it.
fn strip(bits: &mut Vec<Bit>, mut text: &str) {
    while !text.is_empty() && !bits.is_empty() {
        text = match bits.remove(0) {
            Bit::Mark(mark) => text.strip_prefix(mark).unwrap_or_default(),
            Bit::Text(part) => text.strip_prefix(part.as_str()).unwrap_or_default(),
            _ => "",
        };
    }
}

/// Where a text is that may be a call.
#[derive(Clone, Copy)]
struct At {
    /// Whether it is behind another call of a list.
    inside: bool,
    /// Whether nothing follows it.
    last: bool,
    /// Whether a call is sure once its arguments begin, so that they can be sent as they come.
    sure: bool,
}

/// The beginning of a text.
enum Found {
    /// A call, the bytes that it takes with what follows it, and whether another one of its list comes next.
    Call(Said, usize, bool),
    /// A call of this name, and the bytes before its arguments, which are a JSON object.
    Begun(String, usize),
    /// More text decides.
    Open,
    /// Text.
    Text,
}

/// The text after a call.
enum After {
    /// Another one of its list, after so many bytes.
    Next(usize),
    /// Its end, of so many bytes.
    End(usize),
    /// More text decides.
    Open,
    /// Text that the form does not have there, after so many bytes.
    Other(usize),
}

/// A call as a model writes it.
struct Said {
    name: String,
    arguments: Value,
}

impl Said {
    /// A call from an object, with the name under this key and the arguments under one of these.
    fn of(value: &Value, name: &str, keys: &[&str]) -> Option<Said> {
        let name = value.get(name)?.as_str()?;
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
    format(template).marks
}

/// The form that a template is for. The last one fits any.
fn format(template: &str) -> &'static Format {
    known(template).unwrap_or(&generic::FORMAT)
}

fn known(template: &str) -> Option<&'static Format> {
    FORMATS.iter().copied().find(|format| template.contains("tools") && (format.fits)(template))
}

/// Messages and variables as a template takes them. If it is for no known form of calls, the first message describes the functions.
pub(crate) fn taken<'a>(
    template: Option<&str>,
    messages: &'a [Value],
    variables: &'a Map<String, Value>,
) -> (Cow<'a, [Value]>, Cow<'a, Map<String, Value>>) {
    if template.is_some_and(|template| known(template).is_some()) {
        return (messages.into(), Cow::Borrowed(variables));
    }
    let mut variables = variables.clone();
    let tools = variables.remove("tools");
    (generic::written(messages, tools.as_ref()).into(), Cow::Owned(variables))
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
    /// Takes the fields about functions. What they say of one is in an object under `inner`, or beside its type.
    pub(crate) fn take(fields: &mut Fields, inner: Option<&str>) -> Result<Tools, Fault> {
        let given = match fields.take("tools") {
            None => Vec::new(),
            Some(Value::Array(list)) if list.len() <= MAX_TOOLS => list,
            Some(other) => return Err(wrong("tools", &format!("a list of at most {MAX_TOOLS}"), &other)),
        };
        let mut list: Vec<Tool> = Vec::new();
        for (i, value) in given.iter().enumerate() {
            let tool = tool(&format!("tools[{i}]"), value, inner)?;
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
            Some(value) => {
                let name = &inner.map_or(&value, |inner| &value[inner])["name"];
                match name.as_str().filter(|name| list.iter().any(|tool| tool.name == *name)) {
                    Some(name) => Choose::Named(name.to_owned()),
                    None => {
                        let what = "none, auto, required, or a function of `tools`";
                        let found = if name.is_null() { &value } else { name };
                        return Err(wrong("tool_choice", what, found));
                    }
                }
            }
        };
        let parallel = fields.bool("parallel_tool_calls")?.unwrap_or(true);
        let given = if inner.is_some() { given } else { given.iter().map(nested).collect() };
        Ok(Tools { list, given: given.into(), choose, parallel })
    }

    /// Whether an answer may have calls.
    pub(crate) fn offered(&self) -> bool {
        !self.list.is_empty() && self.choose != Choose::None
    }

    /// The shape that an answer must have. Its text may have to be JSON, which comes after a header.
    pub(crate) fn shape(
        &self,
        template: Option<&str>,
        json: Option<Bit>,
        header: Vec<Bit>,
    ) -> Result<Option<Shape>, Fault> {
        let text = json.map(|json| Series { begin: header, one_of: vec![vec![json]], ..Series::default() });
        let only = |any| Ok(Some(Shape { any, ..Shape::default() }));
        if !self.offered() {
            return text.map_or(Ok(None), |text| only(vec![text]));
        }
        let format = template.map_or(&generic::FORMAT, format);
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

    /// The reader of an answer's calls, for a model with this template; none if no functions are offered. With `json`, the
    /// text of the answer must be JSON.
    pub(crate) fn reader(&self, template: Option<&str>, json: bool) -> Option<Reader> {
        if !self.offered() {
            return None;
        }
        let format = template.map_or(&generic::FORMAT, format);
        // Answers that have to be calls, or that begin like one only where one comes.
        let strict = self.list.iter().any(|tool| tool.strict);
        let sure = self.choose != Choose::Auto || strict && !json;
        Some(Reader::new(format, self.list.clone().into(), self.parallel, sure))
    }
}

/// A function as chats have it, which has what is said of it beside its type.
fn nested(value: &Value) -> Value {
    let fields = value.as_object().into_iter().flatten();
    let said = fields.filter(|(name, value)| *name != "type" && !value.is_null());
    let function: Map<String, Value> = said.map(|(name, value)| (name.clone(), value.clone())).collect();
    json!({ "type": "function", "function": function })
}

/// One of the functions of a request.
fn tool(at: &str, value: &Value, inner: Option<&str>) -> Result<Tool, Fault> {
    if value["type"] != "function" {
        return Err(wrong(&format!("{at}.type"), "function", &value["type"]));
    }
    let (function, at) = match inner {
        Some(inner) => (&value[inner], format!("{at}.{inner}")),
        None => (value, at.to_owned()),
    };
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
        Value::Object(schema) => {
            let mut schema = schema.clone();
            // Without a type, any JSON value fits a schema, and arguments are always an object.
            schema.entry("type").or_insert_with(|| "object".into());
            schema.into()
        }
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
