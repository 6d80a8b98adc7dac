//! Requests for responses, as chats.

use serde_json::{json, Map, Value};

use crate::backend::{Bit, Fault};
use crate::calls::Tools;
use crate::fields::{short, wrong, Fields};
use crate::wire::{common, conversation, form, Common, Messages, MAX_COUNT, MAX_MESSAGES, MAX_TOP};

/// Fields that are known but not served, with the values that ask for nothing.
#[rustfmt::skip]
const NOT_SERVED: &[(&str, &[&str])] = &[
    ("background", &["false"]), ("context_management", &["[]"]), ("conversation", &[]), ("max_tool_calls", &[]),
    ("moderation", &[]), ("n", &["1"]), ("previous_response_id", &[]), ("prompt", &[]), ("prompt_logprobs", &[]),
    ("response_format", &[]), ("return_progress", &["false"]), ("return_token_ids", &["false"]),
    ("service_tier", &["\"auto\"", "\"default\""]), ("store", &["false"]), ("truncation", &["\"disabled\""]),
];

/// The one thing that can be included.
const LOGPROBS: &str = "message.output_text.logprobs";

/// A request, and what the answer repeats of it.
pub(crate) struct Request {
    pub(super) common: Common,
    pub(super) messages: Messages,
    /// The JSON that the text is to be.
    pub(super) form: Option<Bit>,
    pub(super) repeated: Map<String, Value>,
}

/// Reads a request.
pub(crate) fn read(body: &[u8]) -> Result<Request, Fault> {
    let mut fields = Fields::parse(body)?;
    for (name, neutral) in NOT_SERVED {
        fields.refuse(name, neutral)?;
    }
    let mut repeated = Map::new();
    for name in ["instructions", "max_output_tokens", "temperature", "top_logprobs", "top_p"] {
        repeated.insert(name.to_owned(), fields.peek(name));
    }
    repeated.insert("metadata".to_owned(), fields.object("metadata")?.unwrap_or_default().into());
    repeated.insert("user".to_owned(), fields.text("user")?.into());
    for (name, default) in [("tools", json!([])), ("tool_choice", json!("auto"))] {
        let given = Some(fields.peek(name)).filter(|value| !value.is_null());
        repeated.insert(name.to_owned(), given.unwrap_or(default));
    }
    let tools = Tools::take(&mut fields, None)?;
    repeated.insert("parallel_tool_calls".to_owned(), tools.parallel.into());
    let reasoning = fields.object("reasoning")?.unwrap_or_default();
    let effort = reasoning.get("effort").cloned().unwrap_or_default();
    if !matches!(effort, Value::Null | Value::String(_)) {
        return Err(wrong("reasoning.effort", "a text", &effort));
    }
    for name in ["summary", "generate_summary"] {
        refuse("reasoning", &reasoning, name, &["\"auto\""])?;
    }
    repeated.insert("reasoning".to_owned(), json!({ "effort": effort, "summary": null }));
    let text = fields.object("text")?.unwrap_or_default();
    refuse("text", &text, "verbosity", &["\"medium\""])?;
    let format = text.get("format").filter(|format| !format.is_null());
    let format = format.cloned().unwrap_or_else(|| json!({ "type": "text" }));
    let form = form("text.format", &format, None)?;
    repeated.insert("text".to_owned(), json!({ "format": format }));

    let scored = included(&mut fields)?;
    let n_top = fields.count("top_logprobs", MAX_TOP)?;
    let max_tokens = fields.count("max_output_tokens", MAX_COUNT)?;
    let list = input(&mut fields)?;
    // From here on it is a chat.
    fields.put("messages", list.into());
    if !effort.is_null() {
        fields.put("reasoning_effort", effort);
    }
    let messages = conversation(&mut fields, tools)?;
    let mut common = common(&mut fields)?;
    common.job.n_top = n_top.or(scored.then_some(0));
    common.job.max_tokens = max_tokens.or(common.job.max_tokens);
    Ok(Request { common, messages, form, repeated })
}

/// Refuses a field of an object, unless it asks for nothing.
fn refuse(object: &str, fields: &Map<String, Value>, name: &str, neutral: &[&str]) -> Result<(), Fault> {
    match fields.get(name).filter(|value| !value.is_null()).map(Value::to_string) {
        Some(value) if !neutral.contains(&value.as_str()) => {
            let name = format!("{object}.{name}");
            Err(Fault::invalid(&name, format_args!("{name}: not supported yet")))
        }
        _ => Ok(()),
    }
}

/// Whether log-probabilities are asked for.
fn included(fields: &mut Fields) -> Result<bool, Fault> {
    let list = match fields.take("include") {
        None => return Ok(false),
        Some(Value::Array(list)) => list,
        Some(other) => return Err(wrong("include", "a list", &other)),
    };
    match list.iter().find(|name| *name != LOGPROBS) {
        None => Ok(!list.is_empty()),
        Some(Value::String(name)) => {
            let what = format!("include: {} is not supported yet", short(name));
            Err(Fault::invalid("include", what))
        }
        Some(other) => Err(wrong("include", "a list of texts", other)),
    }
}

/// The messages of a chat: the instructions, then the items of the input.
fn input(fields: &mut Fields) -> Result<Vec<Value>, Fault> {
    let mut list = Vec::new();
    if let Some(text) = fields.text("instructions")? {
        list.push(json!({ "role": "system", "content": text }));
    }
    let items = match fields.take("input") {
        Some(Value::String(text)) => vec![json!({ "role": "user", "content": text })],
        Some(Value::Array(items)) if (1..MAX_MESSAGES).contains(&items.len()) => items,
        Some(other) => {
            let expected = format!("a text or a list of 1 to {} items", MAX_MESSAGES - 1);
            return Err(wrong("input", &expected, &other));
        }
        None => return Err(Fault::invalid("input", "input: expected a text or items, found none")),
    };
    let mut thought = None;
    for (i, item) in items.into_iter().enumerate() {
        add(&mut list, i, item, &mut thought)?;
    }
    if list.is_empty() {
        return Err(Fault::invalid("input", "input: expected a message, found none"));
    }
    Ok(list)
}

/// Adds an item to the messages of a chat. Reasoning is none: it goes with the message after it. Nor is a call: it is one of
/// those of the message before it, as the model wrote both.
fn add(list: &mut Vec<Value>, i: usize, item: Value, thought: &mut Option<String>) -> Result<(), Fault> {
    let mut item = match item {
        Value::Object(item) => item,
        other => return Err(wrong(&format!("input[{i}]"), "an object", &other)),
    };
    let at = |name: &str| format!("input[{i}].{name}");
    let given = |item: &Map<String, Value>, name: &str| match item.get(name) {
        Some(Value::String(text)) => Ok(text.clone()),
        other => Err(wrong(&at(name), "a text", other.unwrap_or(&Value::Null))),
    };
    let kind = item.get("type").cloned().unwrap_or_default();
    match kind.as_str() {
        None if kind.is_null() => {}
        Some("message") => {}
        Some("reasoning") => {
            refuse(&format!("input[{i}]"), &item, "encrypted_content", &[])?;
            let content = item.remove("content").filter(|content| !content.is_null());
            *thought = content.map(|content| text(&at("content"), content)).transpose()?;
            return Ok(());
        }
        Some("function_call") => {
            let function = json!({ "name": given(&item, "name")?, "arguments": given(&item, "arguments")? });
            let call = json!({ "id": given(&item, "call_id")?, "type": "function", "function": function });
            let last = list.last_mut().filter(|last| thought.is_none() && last["role"] == "assistant");
            match last {
                Some(last) => match last["tool_calls"].as_array_mut() {
                    Some(calls) => calls.push(call),
                    None => last["tool_calls"] = json!([call]),
                },
                None => {
                    let calls = json!({ "role": "assistant", "content": null, "tool_calls": [call] });
                    list.push(with_thought(calls, thought.take()));
                }
            }
            return Ok(());
        }
        Some("function_call_output") => {
            let output = text(&at("output"), item.remove("output").unwrap_or_default())?;
            let id = given(&item, "call_id")?;
            list.push(json!({ "role": "tool", "content": output, "tool_call_id": id }));
            *thought = None;
            return Ok(());
        }
        Some(name) => {
            let what = format!("{}: {} is not supported yet", at("type"), short(name));
            return Err(Fault::invalid(&at("type"), what));
        }
        None => {
            let known = "message, reasoning, function_call, or function_call_output";
            return Err(wrong(&at("type"), known, &kind));
        }
    }
    let role = item.get("role").cloned().unwrap_or_default();
    if !matches!(role.as_str(), Some("system" | "developer" | "user" | "assistant")) {
        return Err(wrong(&at("role"), "system, developer, user, or assistant", &role));
    }
    let content = text(&at("content"), item.remove("content").unwrap_or_default())?;
    let message = json!({ "role": role, "content": content });
    list.push(with_thought(message, thought.take().filter(|_| role == "assistant")));
    Ok(())
}

/// A message of the assistant with the reasoning that came before it.
fn with_thought(mut message: Value, thought: Option<String>) -> Value {
    if let Some(thought) = thought {
        message["reasoning_content"] = thought.into();
    }
    message
}

/// A content: a text, or parts of text.
fn text(name: &str, content: Value) -> Result<String, Fault> {
    let parts = match content {
        Value::String(text) => return Ok(text),
        Value::Array(parts) => parts,
        other => return Err(wrong(name, "a text or parts of text", &other)),
    };
    let one = |part: &Value| match (part["type"].as_str(), part["text"].as_str()) {
        (Some("input_text" | "output_text" | "reasoning_text" | "text"), Some(text)) => Ok(text.to_owned()),
        _ => Err(wrong(name, "parts of text", part)),
    };
    Ok(parts.iter().map(one).collect::<Result<Vec<_>, _>>()?.join("\n"))
}
