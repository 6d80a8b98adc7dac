//! Functions: what of a request reaches the template, and the calls that are read out of answers.

use std::time::Duration;

use ropewalk_serve::{Bit, FaultKind, Options, Series, Shape};
use serde_json::{json, Value};

use crate::called::{streamed, texts};
use crate::client::Site;
use crate::fake::Fake;
use crate::streams::events;

pub(crate) const CHAT: &str = "/v1/chat/completions";
pub(crate) const HERMES: &str = "{{ tools }}<tool_call>";
pub(crate) const LLAMA: &str = "{{ tools }}<|start_header_id|>{\"name\": , \"parameters\": }";
pub(crate) const MISTRAL: &str = "{{ tools }}[TOOL_CALLS]";
pub(crate) const QWEN: &str = "{{ tools }}<tool_call><function=";

pub(crate) fn tool(name: &str) -> Value {
    let parameters = json!({ "type": "object", "properties": { "city": { "type": "string" } } });
    json!({ "type": "function", "function": { "name": name, "parameters": parameters } })
}

pub(crate) fn asked() -> Value {
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
        let calls = &choice["message"]["tool_calls"];
        assert_eq!(&called(calls), expected, "{script}");
        let calls = texts(calls);
        // In pieces: first the name, then the arguments.
        let events = events(&site, CHAT, asked());
        let deltas: Vec<&Value> = events.iter().map(|event| &event["choices"][0]["delta"]).collect();
        assert_eq!(streamed(&events), calls, "{script}");
        let text: String = deltas.iter().filter_map(|d| d["content"].as_str()).collect();
        assert_eq!(text, content.as_str().unwrap_or_default());
        assert_eq!(events.last().unwrap()["choices"][0]["finish_reason"], "tool_calls");
    }
}

/// Arguments that are written as texts have the types of the function's schema.
#[test]
fn arguments_have_the_types_of_their_schema() {
    let values = [
        ("s", "5", json!("5")),
        ("n", "5", json!(5)),
        ("o", "{\"a\": [1]}", json!({ "a": [1] })),
        ("b", "True", json!(true)),
        ("m", "null", json!("null")),
        ("t", "a\n\n<b>", json!("a\n\n<b>")),
    ];
    let script: String =
        values.iter().map(|(key, text, _)| format!("<parameter={key}>\n{text}\n</parameter>\n")).collect();
    let call = format!("<tool_call>\n<function=f>\n{script}</function>\n");
    let properties = json!({
        "s": { "type": "string" }, "n": { "type": "integer" }, "o": { "type": "object" }, "b": { "type": "boolean" },
        "m": { "type": ["string", "null"] }, "t": {},
    });
    let function = json!({ "name": "f", "parameters": { "type": "object", "properties": properties } });
    let mut body = asked();
    body["tools"] = json!([{ "type": "function", "function": function }, tool("now")]);
    let expected: Value = values.iter().map(|(key, _, value)| ((*key).to_owned(), value.clone())).collect();
    let now = "<tool_call><function=now></function></tool_call>";
    for (script, n) in
        [(format!("{call}</tool_call>"), 1), (call.clone(), 1), (format!("{call}</tool_call>{now}"), 2)]
    {
        let whole = Site::saying(QWEN, &script).expect(200, CHAT, &body);
        let calls = called(&whole["choices"][0]["message"]["tool_calls"]);
        assert_eq!((calls.len(), &calls[0]), (n, &("f".to_owned(), expected.clone())), "{script}");
    }
    // Whose form cannot be told.
    let site = Site::saying(QWEN, "b");
    for (field, value) in
        [("tool_choice", json!("required")), ("response_format", json!({ "type": "json_object" }))]
    {
        let mut body = body.clone();
        body[field] = value;
        assert_eq!(site.expect(400, CHAT, &body)["error"]["param"], "tools");
    }
}

#[test]
fn what_only_looks_like_a_call_is_text() {
    for (template, script) in [
        (QWEN, "<tool_call><function=other></function></tool_call>"),
        (QWEN, "<tool_call><function=now><parameter=a>1</parameter>"),
        (QWEN, "<tool_call>{\"name\": \"now\"}</tool_call>"),
        (QWEN, "<tool_call><function=now></function> and more"),
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
        (MISTRAL, "[TOOL_CALLS][{\"name\": \"other\", \"arguments\": {}}, 1]"),
        (MISTRAL, "[TOOL_CALLS]now[ARGS]1"),
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
        ("tool_choice", json!({ "type": "function", "function": { "name": "other" } }), "tool_choice"),
        ("response_format", json!("json"), "response_format"),
        ("response_format", json!({ "type": "xml" }), "response_format.type"),
        ("response_format", json!({ "type": "json_schema" }), "response_format.json_schema.schema"),
        (
            "response_format",
            json!({ "type": "json_schema", "json_schema": { "schema": {}, "strict": 1 } }),
            "response_format.json_schema.strict",
        ),
        ("parallel_tool_calls", json!(1), "parallel_tool_calls"),
    ] {
        let mut body = asked();
        body[field] = value;
        assert_eq!(site.expect(400, CHAT, &body)["error"]["param"], param, "{body}");
    }
}

/// Open WebUI, for one, offers functions to every model.
#[test]
fn templates_without_functions_have_them_as_text() {
    let said = "So.\n<tool_call>\n{\"name\": \"now\", \"arguments\": {\"a\": 1}}\n</tool_call>";
    let site = Site::saying("{{ messages }}", said);
    let call = |text: &str| json!({ "type": "function", "function": { "name": "now", "arguments": text } });
    let mut body = asked();
    body["messages"] = json!([
        { "role": "system", "content": "Be brief." },
        { "role": "user", "content": "a" },
        { "role": "assistant", "content": "So.", "tool_calls": [call("{\"a\": 1}"), call("{}")] },
        { "role": "tool", "content": "noon", "tool_call_id": "c1" },
        { "role": "tool", "content": "one", "tool_call_id": "c2" },
        { "role": "user", "content": "Well?" },
        { "role": "assistant", "content": "b" },
        { "role": "user", "content": "c" },
    ]);
    let message = site.expect(200, CHAT, &body)["choices"][0]["message"].clone();
    assert_eq!(message["tool_calls"][0]["function"], json!({ "name": "now", "arguments": "{\"a\": 1}" }));
    let (messages, variables) = site.fake.state().chats.pop().unwrap();
    assert!(!variables.contains_key("tools"));
    let first = messages[0]["content"].as_str().unwrap();
    assert!(
        first.contains(&body["tools"][0].to_string()) && first.ends_with("</tool_call>\nBe brief."),
        "{first}"
    );
    let expected = json!([
        { "role": "user", "content": "a" },
        { "role": "assistant", "content": format!("{said}\n<tool_call>\n{{\"name\": \"now\", \"arguments\": {{}}}}\n</tool_call>") },
        { "role": "user", "content": "<tool_response>\nnoon\n</tool_response>\n<tool_response>\none\n</tool_response>\nWell?" },
        { "role": "assistant", "content": "b" },
        { "role": "user", "content": "c" },
    ]);
    assert_eq!(Value::from(&messages[1..]), expected);
    // Thousands of results, before any call.
    body["messages"] = vec![json!({ "role": "tool", "content": "x", "tool_call_id": "c" }); 5000].into();
    site.expect(200, CHAT, &body);
    let (messages, _) = site.fake.state().chats.pop().unwrap();
    let text = messages[0]["content"].as_str().unwrap();
    assert_eq!((messages.len(), text.matches("<tool_response>\nx\n").count()), (1, 5000));
    body["messages"] = json!([{ "role": "user", "content": "a" }]);
    // Functions that are not offered are not described.
    body["tool_choice"] = json!("none");
    site.expect(200, CHAT, &body);
    assert_eq!(site.fake.state().chats.pop().unwrap().0[0], body["messages"][0]);
    body["tool_choice"] = json!("required");
    site.expect(200, CHAT, &body);
    assert!(site.fake.state().shapes.pop().is_some());
    // A model without a template is run with one that has no functions.
    let site = Site::of(Fake::untemplated(said), Options::default(), Duration::ZERO);
    body["tool_choice"] = json!("auto");
    let message = site.expect(200, CHAT, &body)["choices"][0]["message"].clone();
    assert_eq!(message["tool_calls"][0]["function"]["name"], "now");
    let (messages, _) = site.fake.state().chats.pop().unwrap();
    assert!(messages[0]["content"].as_str().unwrap().starts_with("You can call functions."));
}

/// Without a type, a schema fits any JSON value.
#[test]
fn arguments_are_an_object_whatever_the_schema_says() {
    for parameters in [json!({}), json!({ "properties": { "a": {} } }), json!({ "type": "object" })] {
        let function = json!({ "name": "now", "parameters": parameters });
        let tools = json!([{ "type": "function", "function": function }]);
        let found = shape(LLAMA, json!({ "tools": tools, "tool_choice": "required" })).unwrap().any.remove(0);
        let schema = found.one_of[0].iter().find_map(|bit| match bit {
            Bit::Json { schema, .. } => Some(schema.clone()),
            _ => None,
        });
        assert_eq!(schema.unwrap()["type"], "object", "{parameters}");
    }
}

/// The form of the answer that a request asks for.
pub(crate) fn shape(template: &str, more: Value) -> Option<Shape> {
    let site = Site::saying(template, "b");
    let mut body = asked();
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    site.expect(200, CHAT, &body);
    let mut state = site.fake.state();
    assert_eq!(state.jobs[0].rule.is_some(), state.shapes.len() == 1);
    state.shapes.pop()
}

pub(crate) fn arguments() -> Bit {
    let schema = json!({ "type": "object", "properties": { "city": { "type": "string" } } });
    Bit::Json { schema, strict: false }
}

pub(crate) fn text(text: &str) -> Bit {
    Bit::Text(text.to_owned())
}

#[test]
fn calls_that_must_come_have_the_form_of_the_template() {
    let now = json!({ "type": "function", "function": { "name": "now" } });
    for (template, begin, call, between, end) in [
        (
            HERMES,
            vec![],
            vec![
                Bit::Mark("<tool_call>"),
                Bit::Space,
                text("{\"name\": \"now\", \"arguments\": "),
                arguments(),
                text("}"),
                Bit::Space,
                Bit::Mark("</tool_call>"),
            ],
            vec![Bit::Space],
            vec![],
        ),
        (
            LLAMA,
            vec![],
            vec![text("{\"name\": \"now\", \"parameters\": "), arguments(), text("}")],
            vec![text("; ")],
            vec![],
        ),
        (
            MISTRAL,
            vec![Bit::Mark("[TOOL_CALLS]"), Bit::Space, text("[")],
            vec![text("{\"name\": \"now\", \"arguments\": "), arguments(), text("}")],
            vec![text(", ")],
            vec![text("]")],
        ),
        (
            "{{ tools }}[TOOL_CALLS][ARGS]",
            vec![],
            vec![Bit::Mark("[TOOL_CALLS]"), text("now"), Bit::Mark("[ARGS]"), arguments()],
            vec![],
            vec![],
        ),
    ] {
        let one = Series { begin, one_of: vec![call], between: None, end };
        let named = shape(template, json!({ "tool_choice": now }));
        assert_eq!(named, Some(Shape { any: vec![one.clone()], ..Shape::default() }), "{template}");
        let any = shape(template, json!({ "tool_choice": "required" })).unwrap().any;
        assert_eq!((any.len(), any[0].one_of.len(), &any[0].one_of[0]), (1, 2, &one.one_of[0]), "{template}");
        assert_eq!(any[0].between, Some(between), "{template}");
        let single = shape(template, json!({ "tool_choice": "required", "parallel_tool_calls": false }));
        assert_eq!(single.unwrap().any[0].between, None, "{template}");
        assert_eq!(shape(template, json!({})), None, "{template}");
        // Right calls if any, after any text.
        let mut strict = tool("now");
        strict["function"]["strict"] = json!(true);
        let free = shape(template, json!({ "tools": [strict] })).unwrap();
        let calls = free.any.last().unwrap();
        assert!(
            calls.one_of[0].iter().any(|bit| matches!(bit, Bit::Json { strict: true, .. })),
            "{template}"
        );
        if template == LLAMA {
            assert_eq!((free.trigger, &free.any[0].one_of), (None, &vec![vec![Bit::Free('{')]]));
        } else {
            let mark = one.begin.first().unwrap_or(&one.one_of[0][0]);
            assert_eq!(free.trigger.map(Bit::Mark).as_ref(), Some(mark));
            assert_ne!(calls.begin.first().unwrap_or(&calls.one_of[0][0]), mark);
        }
    }
}

#[test]
fn a_text_can_have_to_be_json() {
    let schema = json!({ "type": "object", "properties": { "a": { "const": 1 } } });
    let series = |schema: &Value, strict| Series {
        begin: vec![Bit::Mark("<|answer|>")],
        one_of: vec![vec![Bit::Json { schema: schema.clone(), strict }]],
        ..Series::default()
    };
    let any = |series: Series| Some(Shape { any: vec![series], ..Shape::default() });
    let of = |format: Value| shape(HERMES, json!({ "tools": [], "response_format": format }));
    assert_eq!(of(json!({ "type": "text" })), None);
    assert_eq!(of(json!({ "type": "json_object" })), any(series(&json!({ "type": "object" }), false)));
    assert_eq!(of(json!({ "type": "json_object", "schema": schema })), any(series(&schema, false)));
    let format =
        json!({ "type": "json_schema", "json_schema": { "name": "x", "schema": schema, "strict": true } });
    assert_eq!(of(format.clone()), any(series(&schema, true)));
    // After the thinking, and with functions either that or calls.
    let thinks = json!({ "tools": [], "response_format": format, "chat_template_kwargs": { "enable_thinking": true } });
    assert_eq!(shape(HERMES, thinks).unwrap().thinks, Some("</think>"));
    let either = shape(HERMES, json!({ "response_format": format })).unwrap().any;
    assert_eq!((either.len(), &either[0]), (2, &series(&schema, true)));
    assert_eq!(
        shape(HERMES, json!({ "response_format": format, "tool_choice": "none" })),
        any(series(&schema, true))
    );
    // What the backend refuses is refused before a stream begins.
    let site = Site::saying(HERMES, "b");
    site.fake.set(|state| state.refuses = Some(FaultKind::Invalid));
    for (more, param) in [
        (json!({ "response_format": format }), "response_format"),
        (json!({ "tool_choice": "required" }), "tools"),
    ] {
        let mut body = asked();
        body["stream"] = json!(true);
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let error = site.expect(400, CHAT, &body)["error"].clone();
        assert_eq!(
            (&error["param"], &error["message"]),
            (&json!(param), &json!("schema: as the test asked"))
        );
    }
}
