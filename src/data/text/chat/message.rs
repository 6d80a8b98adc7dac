//! Messages as they are handed to a chat template.

use serde_json::Value;

use super::{is_empty, mentions, Object, Reading, ABOUT};
use crate::error::Result;

/// Which call a tool's answer is to. Where a template does not read it, the order of the messages says the same.
const OF_TOOLS: &[&str] = &["name", "tool_call_id"];

/// Names of what an assistant thought.
const THINKING: [&str; 3] = ["reasoning_content", "thinking", "reasoning"];

impl Reading<'_> {
    /// Checks a message: the template is given it without the keys that are null.
    pub(super) fn message(&self, i: usize, message: Value, source: &str) -> Result<Value> {
        let at = format!("message {}", i + 1);
        let Value::Object(mut message) = message else {
            return Err(self.error(format_args!("{at}: expected an object with \"role\" and \"content\"")));
        };
        message.retain(|key, value| key == "content" || !value.is_null());
        let role = match message.get("role") {
            Some(Value::String(role)) => role.clone(),
            _ => return Err(self.error(format_args!("{at}: \"role\": expected a text"))),
        };
        self.content(&at, &message, source)?;
        for (key, value) in &message {
            let key = key.as_str();
            let said_otherwise = role == "tool" && OF_TOOLS.contains(&key);
            let known = matches!(key, "role" | "content") || ABOUT.contains(&key) || said_otherwise;
            // A template is given the thinking under all of its names.
            let thinks = THINKING.contains(&key) && THINKING.iter().any(|name| mentions(source, name));
            if !known && !thinks && !is_empty(value) && !mentions(source, key) {
                let key = format!("{at}: {key:?}");
                return Err(self.dropped(&key, "the model's chat template does not read it"));
            }
        }
        Ok(Value::Object(message))
    }

    fn content(&self, at: &str, message: &Object, source: &str) -> Result<()> {
        let error = |what: &str| Err(self.error(format_args!("{at}: \"content\": {what}")));
        match message.get("content") {
            Some(Value::String(_)) => Ok(()),
            None | Some(Value::Null) => {
                let other = |(key, value): (&String, &Value)| key != "role" && !is_empty(value);
                match message.iter().any(other) {
                    true => Ok(()),
                    false => error("expected a text, found none"),
                }
            }
            Some(Value::Array(parts)) => {
                for part in parts {
                    match (part.get("type").and_then(Value::as_str), part.get("text")) {
                        (Some("text"), Some(Value::String(_))) => {}
                        (Some("text"), _) => return error("a part of the type text: expected a \"text\""),
                        (Some(kind), _) => {
                            return error(&format!(
                                "a part of the type {kind:?}, which a text model does not read"
                            ))
                        }
                        (None, _) => return error("expected parts with a \"type\""),
                    }
                }
                match mentions(source, "text") {
                    true => Ok(()),
                    false => error("a list of parts, and the model's chat template reads texts alone"),
                }
            }
            Some(_) => error("expected a text or a list of parts"),
        }
    }
}
