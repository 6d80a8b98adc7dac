//! Models whose chat template has no functions, or has them in an unknown form: functions, calls, and results are text in
//! messages, and calls have the form of Hermes.

use serde_json::{json, Value};

use super::{hermes, Format};

pub(super) const FORMAT: Format = Format { fits: |_| true, ..hermes::FORMAT };

/// Messages with calls and results as text. The first one also lists the functions, if any are offered.
pub(super) fn written(messages: &[Value], tools: Option<&Value>) -> Vec<Value> {
    let mut out: Vec<Value> = Vec::with_capacity(messages.len());
    let mut results = false;
    for message in messages {
        let text = message["content"].as_str().unwrap_or_default();
        let another = std::mem::replace(&mut results, message["role"] == "tool");
        if results {
            let result = format!("<tool_response>\n{text}\n</tool_response>");
            match out.last_mut().filter(|_| another) {
                // One message, as users and assistants take turns in some templates.
                Some(last) => add(&mut last["content"], &result),
                None => out.push(json!({ "role": "user", "content": result })),
            }
        } else if let Some(calls) = message["tool_calls"].as_array() {
            let mut text = Value::from(text);
            for call in calls {
                let function = &call["function"];
                let (name, arguments) = (&function["name"], function["arguments"].as_str().unwrap_or("{}"));
                let call =
                    format!("<tool_call>\n{{\"name\": {name}, \"arguments\": {arguments}}}\n</tool_call>");
                add(&mut text, &call);
            }
            out.push(json!({ "role": "assistant", "content": text }));
        } else {
            match out.last_mut().filter(|_| another && message["role"] == "user") {
                // It follows a result, which is a user's message here.
                Some(last) => add(&mut last["content"], text),
                None => out.push(message.clone()),
            }
        }
    }
    if let (Some(tools), Some(first)) = (tools.and_then(Value::as_array), out.first_mut()) {
        let list: String = tools.iter().map(|tool| format!("{tool}\n")).collect();
        let mut said = Value::from(format!(
            "You can call functions. Each line describes one in JSON:\n{list}\nTo call a function, write its name and its \
             arguments in this form:\n<tool_call>\n{{\"name\": \"NAME\", \"arguments\": {{\"KEY\": \"VALUE\"}}}}\n</tool_call>"
        ));
        add(&mut said, first["content"].as_str().unwrap_or_default());
        first["content"] = said;
    }
    out
}

/// Adds a line to a text, in place: there may be thousands of them.
fn add(text: &mut Value, line: &str) {
    match text {
        Value::String(text) if !text.is_empty() => {
            text.push('\n');
            text.push_str(line);
        }
        text => *text = line.into(),
    }
}
