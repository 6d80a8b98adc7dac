//! Responses: a chat in OpenAI's newer form.

use ropewalk_serve::Bit;
use serde_json::{json, Value};

use crate::client::{Client, Site, JSON};

const PATH: &str = "/v1/responses";
const CHAT: &str = "/v1/chat/completions";

/// Asks for a stream; its headers are read.
fn open(site: &Site, mut body: Value) -> Client {
    body["stream"] = json!(true);
    let mut client = site.client();
    client.send("POST", PATH, &[JSON], body.to_string().as_bytes());
    let head = client.head().unwrap();
    assert_eq!((head.status, head.header("content-type")), (200, Some("text/event-stream")));
    assert_eq!(head.header("x-ropewalk-rope"), Some("plain"));
    client
}

/// All events, each named twice, with their numbers in order.
pub(crate) fn events(site: &Site, body: Value) -> Vec<Value> {
    let mut client = open(site, body);
    let mut out: Vec<Value> = Vec::new();
    while let Some(event) = client.event() {
        let (name, data) = event.split_once('\n').unwrap();
        let data: Value = serde_json::from_str(data.strip_prefix("data: ").unwrap()).unwrap();
        assert_eq!(name, format!("event: {}", data["type"].as_str().unwrap()));
        assert_eq!(data["sequence_number"], out.len());
        out.push(data);
    }
    out
}

pub(crate) fn kinds(events: &[Value]) -> Vec<&str> {
    events.iter().map(|event| event["type"].as_str().unwrap().trim_start_matches("response.")).collect()
}

#[test]
fn a_response_has_what_clients_read() {
    let site = Site::new();
    let body = json!({
        "model": "bytes", "input": "abc", "temperature": 0.7, "metadata": { "k": "v" }, "reasoning": { "effort": "low" },
    });
    let answer = site.expect(200, PATH, &body);
    let id = answer["id"].as_str().unwrap();
    assert!(id.starts_with("resp_") && id.len() == 5 + 32, "{id}");
    for (name, value) in [
        ("object", json!("response")),
        ("status", json!("completed")),
        ("model", json!("bytes")),
        ("error", Value::Null),
        ("incomplete_details", Value::Null),
        ("instructions", Value::Null),
        ("max_output_tokens", Value::Null),
        ("metadata", json!({ "k": "v" })),
        ("parallel_tool_calls", json!(true)),
        ("reasoning", json!({ "effort": "low", "summary": null })),
        ("store", json!(false)),
        ("temperature", json!(0.7)),
        ("tool_choice", json!("auto")),
        ("tools", json!([])),
        ("truncation", json!("disabled")),
    ] {
        assert_eq!(answer.get(name), Some(&value), "{name}");
    }
    assert!(answer["created_at"].is_u64());
    let [message] = &answer["output"].as_array().unwrap()[..] else { panic!("{answer}") };
    assert!(message["id"].as_str().unwrap().starts_with("msg_"));
    let part = json!({ "type": "output_text", "text": "cba", "annotations": [], "logprobs": [] });
    let expected = json!({
        "id": message["id"], "type": "message", "role": "assistant", "status": "completed", "content": [part],
    });
    assert_eq!(*message, expected);
    let n = site.expect(200, "/v1/responses/input_tokens", &body);
    assert_eq!(n["object"], "response.input_tokens");
    let n = n["input_tokens"].as_u64().unwrap();
    let usage = json!({
        "input_tokens": n, "input_tokens_details": { "cached_tokens": 0, "cache_write_tokens": n }, "output_tokens": 3,
        "output_tokens_details": { "reasoning_tokens": 0 }, "total_tokens": n + 3,
    });
    assert_eq!(answer["usage"], usage);
    assert_eq!((&answer["ropewalk"]["stop"], &answer["timings"]["predicted_n"]), (&json!("end"), &json!(3)));
}

#[test]
fn its_prompt_is_that_of_the_chat() {
    let site = Site::new();
    let input = json!([
        { "role": "user", "content": "one" },
        { "type": "reasoning", "id": "rs_0", "summary": [], "content": [{ "type": "reasoning_text", "text": "why" }] },
        {
            "type": "message", "id": "msg_0", "status": "completed", "role": "assistant",
            "content": [{ "type": "output_text", "text": "two", "annotations": [] }],
        },
        { "role": "developer", "content": "three" },
        { "role": "user", "content": [{ "type": "input_text", "text": "a" }, { "type": "input_text", "text": "b" }] },
    ]);
    let answer = site.expect(200, PATH, &json!({ "instructions": "be brief", "input": input, "top_k": 3 }));
    assert_eq!(answer["output"][0]["content"][0]["text"], "b\na");
    assert_eq!(answer["instructions"], "be brief");
    let messages = json!([
        { "role": "system", "content": "be brief" },
        { "role": "user", "content": "one" },
        { "role": "assistant", "content": "two", "reasoning_content": "why" },
        { "role": "system", "content": "three" },
        { "role": "user", "content": "a\nb" },
    ]);
    site.expect(200, CHAT, &json!({ "messages": messages, "top_k": 3 }));
    let state = site.fake.state();
    assert_eq!(state.jobs[0].prompt, state.jobs[1].prompt);
    assert_eq!((&state.jobs[0].stop, state.jobs[0].sampling.top_k), (&state.jobs[1].stop, Some(3)));
}

#[test]
fn a_stream_has_typed_events() {
    let site = Site::new();
    let events = events(&site, json!({ "input": "abc" }));
    let expected = [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.delta",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "completed",
    ];
    assert_eq!(kinds(&events), expected);
    let first = &events[0]["response"];
    assert_eq!((&first["status"], &first["output"]), (&json!("in_progress"), &json!([])));
    assert_eq!((&events[2]["item"]["content"], &events[2]["output_index"]), (&json!([]), &json!(0)));
    assert_eq!(events[3]["part"]["text"], "");
    let deltas: Vec<_> = events[4..7].iter().map(|event| event["delta"].as_str().unwrap()).collect();
    assert_eq!(deltas, ["c", "b", "a"]);
    for event in &events[3..9] {
        assert_eq!(
            (&event["item_id"], &event["content_index"]),
            (&events[2]["item"]["id"], &json!(0)),
            "{event}"
        );
    }
    assert_eq!((&events[7]["text"], &events[7]["logprobs"]), (&json!("cba"), &json!([])));
    let last = &events[10]["response"];
    assert_eq!((&last["id"], &last["output"]), (&first["id"], &json!([events[9]["item"]])));
    assert_eq!(last["usage"]["output_tokens"], 3);
    // As in one piece, but for what is new each time.
    let whole = site.expect(200, PATH, &json!({ "input": "abc" }));
    let names = |answer: &Value| answer.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(&whole), names(last));
    assert_eq!(whole["output"][0]["content"], last["output"][0]["content"]);
}

#[test]
fn reasoning_is_an_item_before_the_message() {
    let site = Site::new();
    let body = json!({ "input": "ab", "chat_template_kwargs": { "enable_thinking": true } });
    let events = events(&site, body.clone());
    let of = |kind: &str| {
        let of = events.iter().filter(|event| event["type"] == kind);
        of.map(|event| event["delta"].as_str().unwrap()).collect::<String>()
    };
    assert_eq!(of("response.reasoning_text.delta"), "ab");
    assert_eq!(of("response.output_text.delta"), "ba");
    let last = &events.last().unwrap()["response"];
    let [reasoning, message] = &last["output"].as_array().unwrap()[..] else { panic!("{last}") };
    assert!(reasoning["id"].as_str().unwrap().starts_with("rs_"));
    assert_eq!((&reasoning["type"], &reasoning["summary"]), (&json!("reasoning"), &json!([])));
    assert_eq!(reasoning["content"], json!([{ "type": "reasoning_text", "text": "ab" }]));
    assert_eq!((&message["type"], &message["content"][0]["text"]), (&json!("message"), &json!("ba")));
    // With the token that ends it.
    assert_eq!(last["usage"]["output_tokens_details"]["reasoning_tokens"], 3);
    let kinds = kinds(&events);
    let done = kinds.iter().position(|kind| *kind == "output_item.done").unwrap();
    assert_eq!((kinds[done + 1], &events[done + 1]["output_index"]), ("output_item.added", &json!(1)));
    let whole = site.expect(200, PATH, &body);
    assert_eq!(whole["output"][0]["content"], reasoning["content"]);
    assert_eq!(whole["output"][1]["content"], message["content"]);
}

#[test]
fn an_answer_that_was_cut_is_incomplete() {
    let site = Site::new();
    let body = json!({ "input": "abc", "max_output_tokens": 2 });
    let answer = site.expect(200, PATH, &body);
    assert_eq!(
        (&answer["status"], &answer["output"][0]["status"]),
        (&json!("incomplete"), &json!("incomplete"))
    );
    assert_eq!(answer["incomplete_details"], json!({ "reason": "max_output_tokens" }));
    assert_eq!(
        (&answer["output"][0]["content"][0]["text"], &answer["max_output_tokens"]),
        (&json!("cb"), &json!(2))
    );
    let events = events(&site, body);
    assert_eq!(kinds(&events).last(), Some(&"incomplete"));
    // Nothing at all is an empty message.
    let answer = site.expect(200, PATH, &json!({ "input": "abc", "max_output_tokens": 0 }));
    assert_eq!(answer["output"][0]["content"][0]["text"], "");
}

#[test]
fn logprobs_come_with_their_text_if_included() {
    let site = Site::new();
    let body = json!({ "input": "ab", "include": ["message.output_text.logprobs"], "top_logprobs": 2 });
    let answer = site.expect(200, PATH, &body);
    let list = answer["output"][0]["content"][0]["logprobs"].as_array().unwrap();
    let tokens: Vec<_> = list.iter().map(|entry| entry["token"].as_str().unwrap()).collect();
    assert_eq!(tokens, ["b", "a"]);
    assert_eq!((list[0]["logprob"].to_string(), &list[0]["bytes"]), ("-0.1".to_owned(), &json!([98])));
    assert_eq!(list[0]["top_logprobs"].as_array().unwrap().len(), 2);
    let events = events(&site, body);
    let of_deltas = events.iter().filter(|event| event["type"] == "response.output_text.delta");
    let scores: Vec<Value> = of_deltas.map(|event| event["logprobs"][0].clone()).collect();
    assert_eq!(&scores, list);
}

#[test]
fn what_would_have_to_be_stored_or_is_not_served_is_named() {
    let site = Site::new();
    for (name, value, param) in [
        ("previous_response_id", json!("resp_1"), "previous_response_id"),
        ("background", json!(true), "background"),
        ("store", json!(true), "store"),
        ("conversation", json!("conv_1"), "conversation"),
        ("tool_choice", json!("required"), "tool_choice"),
        ("truncation", json!("auto"), "truncation"),
        ("text", json!({ "format": "json" }), "text.format.type"),
        ("text", json!({ "format": { "type": "json_schema", "name": "x" } }), "text.format.schema"),
        (
            "text",
            json!({ "format": { "type": "json_schema", "schema": {}, "strict": 1 } }),
            "text.format.strict",
        ),
        ("response_format", json!({ "type": "json_object" }), "response_format"),
        ("reasoning", json!({ "summary": "detailed" }), "reasoning.summary"),
        ("reasoning", json!({ "effort": 3 }), "reasoning.effort"),
        ("include", json!(["reasoning.encrypted_content"]), "include"),
        ("include", json!([1]), "include"),
        ("max_output_tokens", json!(-1), "max_output_tokens"),
        ("top_logprobs", json!(21), "top_logprobs"),
        ("metadata", json!([]), "metadata"),
        ("n", json!(2), "n"),
    ] {
        let mut body = json!({ "input": "a" });
        body[name] = value;
        for stream in [false, true] {
            body["stream"] = stream.into();
            let error = site.expect(400, PATH, &body)["error"].clone();
            assert_eq!(error["param"], param, "{body}");
            assert!(error["message"].as_str().unwrap().starts_with(param), "{error}");
        }
    }
    // What asks for nothing.
    let body = json!({
        "input": "a", "previous_response_id": null, "background": false, "store": false, "tools": [], "tool_choice": "auto",
        "truncation": "disabled", "text": { "format": { "type": "text" }, "verbosity": null }, "include": [],
    });
    site.expect(200, PATH, &body);
}

/// As `response_format` of a chat.
#[test]
fn a_text_can_have_to_be_json() {
    let site = Site::new();
    let schema = json!({ "type": "object", "properties": { "a": { "const": 1 } } });
    let format = json!({ "type": "json_schema", "name": "x", "schema": schema, "strict": true });
    let response = site.expect(200, PATH, &json!({ "input": "a", "text": { "format": format } }));
    assert_eq!(response["text"]["format"], format);
    let chat =
        json!({ "type": "json_schema", "json_schema": { "name": "x", "schema": schema, "strict": true } });
    let body = json!({ "messages": [{ "role": "user", "content": "a" }], "response_format": chat });
    site.expect(200, CHAT, &body);
    let state = site.fake.state();
    assert!(state.jobs.iter().all(|job| job.rule.is_some()));
    assert_eq!((state.shapes.len(), &state.shapes[0]), (2, &state.shapes[1]));
    assert!(state.shapes[0].any[0].one_of[0].contains(&Bit::Json { schema, strict: true }));
}

#[test]
fn items_are_checked_one_by_one() {
    let site = Site::new();
    for (item, param) in [
        (json!("a"), "input[1]"),
        (json!({ "content": "a" }), "input[1].role"),
        (json!({ "role": "tool", "content": "a" }), "input[1].role"),
        (json!({ "role": "user" }), "input[1].content"),
        (json!({ "role": "user", "content": [{ "type": "input_image" }] }), "input[1].content"),
        (json!({ "type": 1, "role": "user", "content": "a" }), "input[1].type"),
        (json!({ "type": "custom_tool_call_output", "call_id": "c", "output": "a" }), "input[1].type"),
        (json!({ "type": "function_call_output", "output": "a" }), "input[1].call_id"),
        (json!({ "type": "function_call_output", "call_id": "c" }), "input[1].output"),
        (json!({ "type": "function_call", "call_id": "c", "arguments": "{}" }), "input[1].name"),
        (
            json!({ "type": "function_call", "call_id": "c", "name": "f", "arguments": {} }),
            "input[1].arguments",
        ),
        (json!({ "type": "function_call", "name": "f", "arguments": "{}" }), "input[1].call_id"),
        (json!({ "type": "item_reference", "id": "msg_1" }), "input[1].type"),
        (json!({ "type": "reasoning", "encrypted_content": "x" }), "input[1].encrypted_content"),
        (json!({ "type": "reasoning", "content": 1 }), "input[1].content"),
    ] {
        let body = json!({ "input": [{ "role": "user", "content": "a" }, item] });
        assert_eq!(site.expect(400, PATH, &body)["error"]["param"], param, "{item}");
    }
    for input in [json!([]), json!({}), Value::Null, json!([{ "type": "reasoning" }])] {
        assert_eq!(site.expect(400, PATH, &json!({ "input": input }))["error"]["param"], "input");
    }
}

#[test]
fn a_fault_in_a_stream_is_its_last_event() {
    let site = Site::new();
    site.fake.set(|state| state.fails = Some(2));
    let events = events(&site, json!({ "input": "abc" }));
    let last = events.last().unwrap();
    // As the object that clients raise, and as the event of this interface.
    assert_eq!((&last["type"], &last["message"]), (&json!("error"), &json!("the device is gone")));
    assert_eq!(last["error"]["message"], "the device is gone");
    assert_eq!(site.expect(500, PATH, &json!({ "input": "abc" }))["error"]["type"], "server_error");
    let long = json!({ "input": "a".repeat(90), "rope": "plain", "stream": true });
    assert_eq!(site.expect(400, PATH, &long)["error"]["code"], "context_length_exceeded");
}

/// While one of them writes the numbers of a long answer, others are answered: that is done on threads that may block.
#[test]
fn scores_are_written_where_it_may_take_long() {
    let site = Site::new();
    let include = json!(["message.output_text.logprobs"]);
    let echo = json!({ "prompt": "abc", "echo": true, "logprobs": 2, "max_tokens": 2 });
    let chat = [json!({ "role": "user", "content": "abc" })];
    for (path, body) in [
        ("/v1/responses", json!({ "input": "abc", "include": include, "top_logprobs": 2 })),
        ("/v1/score", json!({ "prompt": "abc" })),
        ("/v1/completions", echo),
        ("/v1/chat/completions", json!({ "messages": chat, "logprobs": true, "top_logprobs": 2 })),
    ] {
        site.expect(200, path, &body);
        let threads = std::mem::take(&mut site.fake.state().threads);
        assert!(threads.iter().eq(["serve"]), "{path}: {threads:?}");
    }
    // A stream writes made tokens as they come. What it repeats of the prompt can be long.
    let echo = json!({ "prompt": "abc", "echo": true, "logprobs": 2, "max_tokens": 0 });
    crate::streams::events(&site, "/v1/completions", echo);
    let state = site.fake.state();
    assert!(state.threads.iter().eq(["serve"]), "{:?}", state.threads);
}
