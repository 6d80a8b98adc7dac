//! Calls in streams, piece by piece.

use serde_json::{json, Value};

use crate::calls::{asked, CHAT, HERMES, LLAMA, MISTRAL};
use crate::client::{Site, JSON};
use crate::streams::events;

/// The calls of an answer by name and arguments as they stand.
pub(crate) fn texts(list: &Value) -> Vec<(String, String)> {
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let call = |call: &Value| (text(&call["function"]["name"]), text(&call["function"]["arguments"]));
    list.as_array().into_iter().flatten().map(call).collect()
}

/// The same of a stream: each call begins with its name, and its arguments follow.
pub(crate) fn streamed(events: &[Value]) -> Vec<(String, String)> {
    let mut calls: Vec<(String, String)> = Vec::new();
    let pieces = events.iter().filter_map(|event| event["choices"][0]["delta"]["tool_calls"].as_array());
    for piece in pieces.flatten() {
        let text = piece["function"]["arguments"].as_str().unwrap();
        if let Some(name) = piece["function"]["name"].as_str() {
            assert_eq!(
                (&piece["type"], piece["id"].as_str().unwrap().len(), text),
                (&json!("function"), 9, "")
            );
            calls.push((name.to_owned(), String::new()));
        } else {
            assert!(!text.is_empty() && piece.get("id").is_none());
            calls.last_mut().unwrap().1.push_str(text);
        }
        assert_eq!(piece["index"], calls.len() - 1);
    }
    calls
}

/// A stream's text and calls, and why it ended.
pub(crate) fn split(events: &[Value]) -> (String, Vec<(String, String)>, Value) {
    let choices: Vec<&Value> = events.iter().map(|event| &event["choices"][0]).collect();
    let text = choices.iter().filter_map(|choice| choice["delta"]["content"].as_str()).collect();
    (text, streamed(events), choices.last().unwrap()["finish_reason"].clone())
}

/// The client has the beginning of the arguments before the model has made their end.
#[test]
fn arguments_are_sent_as_they_are_made() {
    let (begin, end) = (r#"{"name": "weather", "arguments": {"city": "B"#, r#"ergen"}}"#);
    for (template, before, after, more) in [
        (HERMES, "<tool_call>", "</tool_call>", json!({})),
        (MISTRAL, "[TOOL_CALLS][", "]", json!({})),
        (LLAMA, "<|python_tag|>", "", json!({})),
        (LLAMA, "", "", json!({ "tool_choice": "required" })),
    ] {
        let site = Site::saying(template, &format!("{before}{begin}{end}{after}"));
        site.fake.set(|state| state.allowed = Some(before.len() + begin.len()));
        let mut body = asked();
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        body["stream"] = json!(true);
        let mut client = site.client();
        client.send("POST", CHAT, &[JSON], body.to_string().as_bytes());
        assert_eq!(client.head().unwrap().status, 200);
        let mut events: Vec<Value> = Vec::new();
        while streamed(&events).last().is_none_or(|call| call.1 != r#"{"city": "B"#) {
            events.push(serde_json::from_str(&client.data().unwrap()).unwrap());
        }
        site.fake.set(|state| state.allowed = None);
        loop {
            match client.data().unwrap().as_str() {
                "[DONE]" => break,
                data => events.push(serde_json::from_str(data).unwrap()),
            }
        }
        let call = ("weather".to_owned(), r#"{"city": "Bergen"}"#.to_owned());
        assert_eq!(split(&events), (String::new(), vec![call], json!("tool_calls")), "{before}");
    }
}

/// Text that could still turn out to be something else is held back.
#[test]
fn calls_that_are_not_sure_come_whole() {
    let call = r#"{"name": "weather", "parameters": {"city": "Bergen"}}"#;
    let asked_text = || {
        let mut body = asked();
        body["tools"][0]["function"]["strict"] = json!(true);
        body["response_format"] = json!({ "type": "json_object" });
        body
    };
    for body in [asked(), asked_text()] {
        let events = events(&Site::saying(LLAMA, call), CHAT, body);
        let pieces = events.iter().filter(|event| event["choices"][0]["delta"].get("tool_calls").is_some());
        assert_eq!((pieces.count(), split(&events).1.len()), (2, 1));
    }
    let text = format!("{call} is how it looks");
    assert_eq!(split(&events(&Site::saying(LLAMA, &text), CHAT, asked())), (text, vec![], json!("stop")));
    // Arguments that are a text within the call.
    let quoted = r#"<tool_call>{"name": "weather", "arguments": "{\"city\": \"Bergen\"}"}</tool_call>"#;
    let found = split(&events(&Site::saying(HERMES, quoted), CHAT, asked()));
    assert_eq!(found.1, [("weather".to_owned(), r#"{"city":"Bergen"}"#.to_owned())]);
}

/// A call that has begun stays one, whole and in a stream, whatever follows.
#[test]
fn calls_that_have_begun_stay_calls() {
    let begin = r#"{"name": "weather", "arguments": {"city": "#;
    for (template, script, text, arguments) in [
        (HERMES, format!("<tool_call>{begin}\"Ber"), "", r#"{"city": "Ber"#),
        (HERMES, format!("<tool_call>{begin}\"a\"</tool_call> and more"), " and more", r#"{"city": "a""#),
        (HERMES, format!("<tool_call>{begin}\"a\"}}\n</tool_call>\n"), "", r#"{"city": "a"}"#),
        (HERMES, format!("<tool_call>{begin}\"a\"}}, \"id\": [1]}}</tool_call>"), "", r#"{"city": "a"}"#),
        (
            HERMES,
            format!("<tool_call>{begin}\"</tool_call>\"}}}}</tool_call>"),
            "",
            r#"{"city": "</tool_call>"}"#,
        ),
        (HERMES, format!("<tool_call>{begin}a}}}}</tool_call>"), "", r#"{"city": a}"#),
        (HERMES, format!("<tool_call>{begin}1}}}} and more"), " and more", r#"{"city": 1}"#),
        (MISTRAL, format!("[TOOL_CALLS][{begin}1}}}}, 1]"), " 1]", r#"{"city": 1}"#),
        (MISTRAL, format!("[TOOL_CALLS][{begin}1}}, \"id\": \"abc\"}}] So"), " So", r#"{"city": 1}"#),
        (MISTRAL, "[TOOL_CALLS]weather[ARGS]{\"city\": 1} So".into(), " So", r#"{"city": 1}"#),
        (LLAMA, format!("<|python_tag|>{begin}1}}}} So"), " So", r#"{"city": 1}"#),
    ] {
        let site = Site::saying(template, &script);
        let call = ("weather".to_owned(), arguments.to_owned());
        // However tokens cut the text.
        for pace in [1, 5, 1000] {
            site.fake.set(|state| state.pace = pace);
            let found = split(&events(&site, CHAT, asked()));
            assert_eq!(found, (text.to_owned(), vec![call.clone()], json!("tool_calls")), "{script}");
        }
        let choice = &site.expect(200, CHAT, &asked())["choices"][0];
        assert_eq!(texts(&choice["message"]["tool_calls"]), [call], "{script}");
        assert_eq!(choice["message"]["content"].as_str().unwrap_or_default(), text, "{script}");
    }
    // One that the limit cuts, which the end of the answer says.
    let mut body = asked();
    body["max_tokens"] = json!(60);
    let site =
        Site::saying(HERMES, &format!("<tool_call>{begin}\"Bergen, north of the harbor\"}}}}</tool_call>"));
    let (text, calls, reason) = split(&events(&site, CHAT, body));
    assert_eq!((text.as_str(), reason), ("", json!("length")));
    assert_eq!(calls, [("weather".to_owned(), r#"{"city": "Bergen"#.to_owned())]);
}
