//! Arguments of earlier calls. A request has them as JSON in a text; most templates print an object, some join texts.

use ropewalk::chat::Template;
use serde_json::{json, Value};

/// Whether a template takes arguments as objects.
pub(super) fn takes_objects(template: &Template) -> bool {
    let shows = |arguments: Value| {
        let function = json!({ "name": "f", "arguments": arguments });
        let call = json!({ "id": "000000000", "type": "function", "function": function });
        let messages =
            [json!({ "role": "user", "content": "a" }), json!({ "role": "assistant", "tool_calls": [call] })];
        let text = template.render_json(&messages, &serde_json::Map::new(), false);
        text.is_ok_and(|text| text.contains("\"needle\":"))
    };
    // Some show neither as JSON: these go through the keys of an object.
    shows(json!({ "needle": "a" })) || !shows(r#"{"needle": "a"}"#.into())
}

/// Messages whose arguments are objects, where they were JSON objects as texts.
pub(super) fn as_objects(messages: &[Value]) -> Vec<Value> {
    let mut messages = messages.to_vec();
    let calls = messages.iter_mut().filter_map(|message| message.get_mut("tool_calls")?.as_array_mut());
    for call in calls.flatten() {
        let Some(arguments) = call.pointer_mut("/function/arguments") else { continue };
        let object = arguments.as_str().and_then(|text| serde_json::from_str::<Value>(text).ok());
        if let Some(object) = object.filter(Value::is_object) {
            *arguments = object;
        }
    }
    messages
}
