//! Streams, event by event.

use std::time::Duration;

use ropewalk_serve::Options;
use serde_json::{json, Value};

use crate::client::{Client, Site, JSON};

/// Asks for a stream; its headers are read.
fn open(site: &Site, path: &str, mut body: Value) -> Client {
    body["stream"] = json!(true);
    let mut client = site.client();
    client.send("POST", path, &[JSON], body.to_string().as_bytes());
    let head = client.head().unwrap();
    assert_eq!(head.status, 200);
    assert_eq!(head.header("content-type"), Some("text/event-stream"));
    assert_eq!(
        (head.header("cache-control"), head.header("x-accel-buffering")),
        (Some("no-cache"), Some("no"))
    );
    assert_eq!(head.header("x-ropewalk-rope"), Some("plain"));
    client
}

/// All events up to the end, which must be `[DONE]`.
pub(crate) fn events(site: &Site, path: &str, body: Value) -> Vec<Value> {
    let mut client = open(site, path, body);
    let mut out = Vec::new();
    loop {
        let data = client.data().expect("an event after all others");
        if data == "[DONE]" {
            assert_eq!(client.data(), None);
            return out;
        }
        out.push(serde_json::from_str(&data).unwrap());
    }
}

const CHAT: &str = "/v1/chat/completions";

fn hello() -> Value {
    json!({ "messages": [{ "role": "user", "content": "abc" }] })
}

#[test]
fn a_chat_comes_as_deltas() {
    let site = Site::new();
    let events = events(&site, CHAT, hello());
    let deltas: Vec<_> = events.iter().map(|event| event["choices"][0]["delta"].clone()).collect();
    let first = json!({ "role": "assistant", "content": "" });
    let content = |text: &str| json!({ "content": text });
    assert_eq!(deltas, [first, content("c"), content("b"), content("a"), json!({})]);
    let ends: Vec<_> = events.iter().map(|event| &event["choices"][0]["finish_reason"]).collect();
    assert!(ends[..4].iter().all(|end| end.is_null()) && ends[4] == "stop");
    for event in &events {
        assert_eq!((&event["id"], &event["object"]), (&events[0]["id"], &json!("chat.completion.chunk")));
        // Nobody asked for it.
        assert!(event.get("usage").is_none());
    }
    let last = &events[4];
    assert_eq!((&last["ropewalk"]["stop"], &last["timings"]["predicted_n"]), (&json!("end"), &json!(3)));
}

#[test]
fn reasoning_and_logprobs_come_with_their_tokens() {
    let site = Site::new();
    let mut body = hello();
    body["chat_template_kwargs"] = json!({ "enable_thinking": true });
    body["logprobs"] = json!(true);
    let events = events(&site, CHAT, body);
    let of = |name: &str| {
        let texts = events.iter().filter_map(|event| event["choices"][0]["delta"][name].as_str());
        texts.collect::<String>()
    };
    assert_eq!((of("reasoning_content"), of("content")), ("abc".to_owned(), "cba".to_owned()));
    let tokens: Vec<_> = events
        .iter()
        .filter_map(|event| event["choices"][0]["logprobs"]["content"].as_array())
        .flat_map(|list| list.iter().map(|entry| entry["token"].as_str().unwrap().to_owned()))
        .collect();
    // Also the token that shows nothing.
    assert_eq!(tokens, ["a", "b", "c", "</think>", "c", "b", "a"]);
}

#[test]
fn usage_is_the_last_event_if_asked_for() {
    let site = Site::new();
    let mut body = hello();
    body["stream_options"] = json!({ "include_usage": true });
    let events = events(&site, CHAT, body);
    let (last, others) = events.split_last().unwrap();
    assert_eq!((&last["choices"], &last["usage"]["completion_tokens"]), (&json!([]), &json!(3)));
    assert!(others.iter().all(|event| event["usage"].is_null() && event.get("usage").is_some()));
}

#[test]
fn progress_has_no_choices_and_comes_before_the_first_one() {
    let site = Site::new();
    let mut body = hello();
    body["return_progress"] = json!(true);
    let events = events(&site, CHAT, body);
    let n = events.iter().take_while(|event| event["choices"] == json!([])).count();
    assert_eq!(n, 4);
    let done: Vec<_> =
        events[..n].iter().map(|event| event["prompt_progress"]["processed"].as_u64().unwrap()).collect();
    assert!(done.is_sorted() && events[..n].iter().all(|event| event["prompt_progress"]["total"] == done[3]));
    assert!(events[n..].iter().all(|event| event.get("prompt_progress").is_none()));
}

#[test]
fn completions_come_as_texts_with_the_prompt_first() {
    let site = Site::new();
    let body = json!({ "prompt": ["ab", "cd"], "echo": true, "logprobs": 0, "max_tokens": 2 });
    let events = events(&site, "/v1/completions", body);
    for (i, text, tokens) in
        [(0, "abba", ["<s>", "a", "b", "b", "a"]), (1, "cddc", ["<s>", "c", "d", "d", "c"])]
    {
        let of = || events.iter().filter(|event| event["choices"][0]["index"] == i);
        let texts: String = of().map(|event| event["choices"][0]["text"].as_str().unwrap()).collect();
        assert_eq!(texts, text);
        let lists = of().filter_map(|event| event["choices"][0]["logprobs"]["tokens"].as_array());
        assert_eq!(lists.flatten().cloned().collect::<Vec<_>>(), tokens);
        let lists = of().filter_map(|event| event["choices"][0]["logprobs"]["text_offset"].as_array());
        assert_eq!(lists.flatten().cloned().collect::<Vec<_>>(), [0, 3, 4, 5, 6]);
        assert_eq!(of().next_back().unwrap()["choices"][0]["finish_reason"], "length");
    }
}

#[test]
fn a_stream_shows_life_while_a_step_takes_long() {
    let site = Site::with(Options::default().ping(Duration::from_millis(20)), Duration::ZERO);
    site.fake.set(|state| state.allowed = Some(0));
    let mut client = open(&site, CHAT, hello());
    for _ in 0..3 {
        assert_eq!(client.event().unwrap(), ":");
    }
    site.fake.set(|state| state.allowed = None);
    assert!(client.data().unwrap().contains("assistant"));
}

#[test]
fn a_request_sets_its_own_pings() {
    let site = Site::with(Options::default().ping(Duration::from_millis(20)), Duration::ZERO);
    site.fake.set(|state| state.allowed = Some(0));
    let mut body = hello();
    body["sse_ping_interval"] = json!(-1);
    let mut silent = open(&site, CHAT, body);
    // The other's pings show that time has passed.
    let mut other = open(&site, CHAT, hello());
    for _ in 0..5 {
        assert_eq!(other.event().unwrap(), ":");
    }
    site.fake.set(|state| state.allowed = None);
    assert!(silent.event().unwrap().starts_with("data: "));
}

#[test]
fn a_fault_in_a_stream_is_its_last_event() {
    let site = Site::new();
    site.fake.set(|state| state.fails = Some(2));
    let mut client = open(&site, CHAT, hello());
    let mut last = String::new();
    while let Some(data) = client.data() {
        last = data;
    }
    let error: Value = serde_json::from_str(&last).unwrap();
    assert_eq!(error["error"]["type"], "server_error");
    assert_eq!(error["error"]["message"], "the device is gone");
}

#[test]
fn what_is_wrong_with_a_stream_comes_before_it() {
    let site = Site::new();
    for body in
        [json!({ "stream": true }), json!({ "stream": true, "prompt": "a".repeat(65), "rope": "plain" })]
    {
        let answer = site.post("/v1/completions", &body);
        assert_eq!((answer.status, answer.header("content-type")), (400, Some("application/json")));
    }
}
