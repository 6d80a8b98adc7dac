//! Functions: what of a request reaches the template, and the calls that are read out of answers.

use serde_json::{json, Value};

use crate::client::Site;
use crate::streams::events;

const CHAT: &str = "/v1/chat/completions";
const HERMES: &str = "{{ tools }}<tool_call>";
const LLAMA: &str = "{{ tools }}<|start_header_id|>{\"name\": , \"parameters\": }";
const MISTRAL: &str = "{{ tools }}[TOOL_CALLS]";

fn tool(name: &str) -> Value {
    let parameters = json!({ "type": "object", "properties": { "city": { "type": "string" } } });
    json!({ "type": "function", "function": { "name": name, "parameters": parameters } })
}

fn asked() -> Value {
    json!({ "messages": [{ "role": "user", "content": "a" }], "tools": [tool("now"), tool("weather")] })
}

/// The calls of an answer by name and arguments.
fn called(list: &Value) -> Vec<(String, Value)> {
    let list = list.as_array().cloned().unwrap_or_default();
    let call = |call: &Value| {
        assert_eq!((&call["type"], call["id"].as_str().unwrap().len()), (&json!("function"), 9));
        let function = &call["function"];
        let arguments = serde_json::from_str(function["arguments"].as_str().unwrap()).unwrap();
        (function["name"].as_str().unwrap().to_owned(), arguments)
    };
    list.iter().map(call).collect()
}

#[test]
fn calls_are_read_in_each_form() {
    let (city, none) = (json!({ "city": "a{\"}]" }), json!({}));
    let one = vec![("weather".to_owned(), city.clone())];
    let two = vec![("weather".to_owned(), city), ("now".to_owned(), none)];
    let weather = r#"{"name": "weather", "arguments": {"city": "a{\"}]"}}"#;
    for (template, script, content, expected) in [
        (HERMES, format!("<tool_call>\n{weather}\n</tool_call>"), json!(null), &one),
        (HERMES, format!("I ask.\n\n<tool_call>{weather}</tool_call>\n"), json!("I ask."), &one),
        (HERMES, format!("<tool_call>{weather}"), json!(null), &one),
        (
            HERMES,
            format!("<tool_call>{weather}</tool_call>\n<tool_call>{{\"name\": \"now\"}}</tool_call>"),
            json!(null),
            &two,
        ),
        (LLAMA, weather.replace("arguments", "parameters"), json!(null), &one),
        (
            LLAMA,
            format!("<|python_tag|>{weather}; {{\"name\": \"now\", \"parameters\": {{}}}}"),
            json!(null),
            &two,
        ),
        (
            MISTRAL,
            format!("[TOOL_CALLS] [{weather}, {{\"name\": \"now\", \"arguments\": {{}}}}]"),
            json!(null),
            &two,
        ),
        (
            MISTRAL,
            r#"So: [TOOL_CALLS]weather[ARGS]{"city": "a{\"}]"}[TOOL_CALLS]now[CALL_ID]abc[ARGS]{}"#.into(),
            json!("So:"),
            &two,
        ),
    ] {
        let site = Site::saying(template, &script);
        let whole = site.expect(200, CHAT, &asked());
        let choice = &whole["choices"][0];
        assert_eq!(
            (&choice["finish_reason"], &choice["message"]["content"]),
            (&json!("tool_calls"), &content),
            "{script}"
        );
        assert_eq!(&called(&choice["message"]["tool_calls"]), expected, "{script}");
        // In pieces: first the name, then the arguments.
        let events = events(&site, CHAT, asked());
        let deltas: Vec<&Value> = events.iter().map(|event| &event["choices"][0]["delta"]).collect();
        let pieces: Vec<&Value> =
            deltas.iter().map(|d| &d["tool_calls"][0]).filter(|d| !d.is_null()).collect();
        assert_eq!(pieces.len(), 2 * expected.len(), "{script}");
        for (i, ((name, arguments), pair)) in expected.iter().zip(pieces.chunks(2)).enumerate() {
            let begin = json!({
                "index": i, "id": pair[0]["id"], "type": "function", "function": { "name": name, "arguments": "" },
            });
            assert_eq!((pair[0], pair[0]["id"].as_str().unwrap().len()), (&begin, 9));
            let text = pair[1]["function"]["arguments"].as_str().unwrap();
            assert_eq!(*pair[1], json!({ "index": i, "function": { "arguments": text } }));
            assert_eq!(&serde_json::from_str::<Value>(text).unwrap(), arguments);
        }
        let text: String = deltas.iter().filter_map(|d| d["content"].as_str()).collect();
        assert_eq!(text, content.as_str().unwrap_or_default());
        assert_eq!(events.last().unwrap()["choices"][0]["finish_reason"], "tool_calls");
    }
}

#[test]
fn what_only_looks_like_a_call_is_text() {
    for (template, script) in [
        (HERMES, "<tool_call>{\"name\": \"other\", \"arguments\": {}}</tool_call>"),
        (HERMES, "<tool_call>{\"name\": \"now\", \"arguments\": [1]}</tool_call>"),
        (HERMES, "<tool_call>{\"name\": \"now\"} and more</tool_call>"),
        (HERMES, "a <tool_call> is a tag, </tool_call> its end\n"),
        (HERMES, "  <tool_call>{\"name\": \"now\", "),
        (HERMES, "1 < 2 <tool"),
        (LLAMA, "{\"name\": \"now\"} is the form"),
        (LLAMA, "So: {\"name\": \"now\", \"parameters\": {}}"),
        (LLAMA, "<|python_tag|>now()"),
        (LLAMA, "{\"a\": 1}"),
        (MISTRAL, "[TOOL_CALLS][]"),
        (MISTRAL, "[TOOL_CALLS][{\"name\": \"now\", \"arguments\": {}}, 1]"),
        (MISTRAL, "[TOOL_CALLS]now"),
        (MISTRAL, "[TOOL_CALLS]other[ARGS]{}"),
    ] {
        let site = Site::saying(template, script);
        let whole = site.expect(200, CHAT, &asked());
        let choice = &whole["choices"][0];
        assert_eq!(
            (&choice["finish_reason"], &choice["message"]["content"]),
            (&json!("stop"), &json!(script))
        );
        assert!(choice["message"].get("tool_calls").is_none(), "{script}");
        let events = events(&site, CHAT, asked());
        let text: String =
            events.iter().filter_map(|event| event["choices"][0]["delta"]["content"].as_str()).collect();
        assert_eq!(text, script);
    }
}

#[test]
fn only_offered_functions_are_called() {
    let site = Site::saying(
        HERMES,
        "<tool_call>{\"name\": \"now\"}</tool_call><tool_call>{\"name\": \"weather\"}</tool_call>",
    );
    let calls = |more: Value| {
        let mut body = asked();
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let whole = site.expect(200, CHAT, &body);
        called(&whole["choices"][0]["message"]["tool_calls"]).len()
    };
    assert_eq!(calls(json!({})), 2);
    assert_eq!(calls(json!({ "parallel_tool_calls": false })), 1);
    assert_eq!(calls(json!({ "tool_choice": "none" })), 0);
    assert_eq!(calls(json!({ "tools": [] })), 0);
    // Each answer has its own.
    let mut body = asked();
    body["n"] = json!(2);
    let whole = site.expect(200, CHAT, &body);
    for choice in whole["choices"].as_array().unwrap() {
        assert_eq!(called(&choice["message"]["tool_calls"]).len(), 2);
    }
    // An answer that was cut has no end.
    let mut body = asked();
    body["max_tokens"] = json!(60);
    let whole = site.expect(200, CHAT, &body);
    assert_eq!(whole["choices"][0]["finish_reason"], "length");
}

#[test]
fn functions_and_calls_reach_the_template() {
    let site = Site::saying(HERMES, "b");
    let call =
        json!({ "id": "c1", "type": "function", "function": { "name": "now", "arguments": "{\"a\": 1}" } });
    let mut body = asked();
    body["messages"] = json!([
        { "role": "user", "content": "a", "name": "me" },
        { "role": "assistant", "content": null, "tool_calls": [call], "reasoning_content": "hm" },
        { "role": "tool", "content": [{ "type": "text", "text": "noon" }], "tool_call_id": "c1" },
    ]);
    site.expect(200, CHAT, &body);
    let (messages, variables) = site.fake.state().chats.pop().unwrap();
    let expected = json!([
        { "role": "user", "content": "a", "name": "me" },
        { "role": "assistant", "tool_calls": [call], "reasoning_content": "hm" },
        { "role": "tool", "content": "noon", "tool_call_id": "c1" },
    ]);
    assert_eq!((Value::from(messages), &variables["tools"]), (expected, &body["tools"]));
    body["tool_choice"] = json!("none");
    site.expect(200, CHAT, &body);
    assert!(!site.fake.state().chats.pop().unwrap().1.contains_key("tools"));
}

#[test]
fn functions_are_checked() {
    let site = Site::saying(HERMES, "b");
    let named = |name: &str| json!([tool(name)]);
    for (field, value, param) in [
        ("tools", json!({}), "tools"),
        ("tools", json!([1]), "tools[0].type"),
        ("tools", json!([{ "type": "function" }]), "tools[0].function"),
        ("tools", named(""), "tools[0].function.name"),
        ("tools", named("a b"), "tools[0].function.name"),
        ("tools", named(&"a".repeat(129)), "tools[0].function.name"),
        ("tools", json!([tool("a"), tool("a")]), "tools"),
        (
            "tools",
            json!([{ "type": "function", "function": { "name": "a", "parameters": 1 } }]),
            "tools[0].function.parameters",
        ),
        ("tools", vec![tool("a"); 129].into(), "tools"),
        ("tool_choice", json!("some"), "tool_choice"),
        ("tool_choice", json!({}), "tool_choice"),
        ("parallel_tool_calls", json!(1), "parallel_tool_calls"),
    ] {
        let mut body = asked();
        body[field] = value;
        assert_eq!(site.expect(400, CHAT, &body)["error"]["param"], param, "{body}");
    }
    // A template without calls.
    let error = Site::new().expect(400, CHAT, &asked())["error"].clone();
    assert_eq!(error["param"], "tools");
}
