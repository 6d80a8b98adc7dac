//! Every status with its error, as clients tell them apart.

use std::net::SocketAddr;
use std::sync::Arc;

use ropewalk_serve::{FaultKind, Options, Server};
use serde_json::{json, Value};

use crate::client::Site;
use crate::fake::Fake;

const PATH: &str = "/v1/completions";

#[test]
fn too_long_is_400_with_the_numbers() {
    let site = Site::new();
    let body = json!({ "prompt": "a".repeat(70), "max_tokens": 9, "rope": "plain" });
    let error = site.expect(400, PATH, &body)["error"].clone();
    let expected = json!({
        "message": "expected at most 64 tokens, found 80", "type": "invalid_request_error", "param": null,
        "code": "context_length_exceeded", "n_prompt_tokens": 71, "max_tokens": 9, "n_ctx": 64, "n_ctx_trained": 64, "rope": "plain",
    });
    assert_eq!(error, expected);
}

#[test]
fn the_backends_faults_have_their_status() {
    let site = Site::new();
    for (kind, status, name, code, header) in [
        (FaultKind::Invalid, 400, "invalid_request_error", Value::Null, None),
        (FaultKind::NotFound, 404, "invalid_request_error", json!("model_not_found"), None),
        (FaultKind::Busy, 429, "rate_limit_error", json!("queue_full"), Some("retry-after")),
        (FaultKind::Stopping, 503, "server_error", json!("stopping"), Some("retry-after")),
        (FaultKind::Server, 500, "server_error", Value::Null, Some("x-should-retry")),
    ] {
        site.fake.set(|state| state.refuses = Some(kind));
        for stream in [true, false] {
            let answer = site.post(PATH, &json!({ "prompt": "a", "stream": stream }));
            let error = &answer.json()["error"];
            assert_eq!((answer.status, &error["type"], &error["code"]), (status, &json!(name), &code));
            assert_eq!(error["message"], "as the test asked");
            assert!(header.is_none_or(|header| answer.header(header).is_some()), "{status}");
        }
    }
}

#[test]
fn a_fault_while_it_runs_is_500_and_not_to_be_repeated() {
    let site = Site::new();
    site.fake.set(|state| state.fails = Some(1));
    let answer = site.post(PATH, &json!({ "prompt": "abc" }));
    assert_eq!((answer.status, answer.header("x-should-retry")), (500, Some("false")));
    assert_eq!(answer.json()["error"]["message"], "the device is gone");
}

#[test]
fn a_thread_that_panics_is_500_and_the_server_goes_on() {
    let site = Site::new();
    let messages = json!([{ "role": "user", "content": "a" }]);
    let body = json!({ "messages": messages, "chat_template_kwargs": { "panic": true } });
    site.expect(500, "/v1/chat/completions", &body);
    site.expect(200, "/v1/chat/completions", &json!({ "messages": messages }));
}

#[test]
fn a_server_that_stops_says_so_in_its_health() {
    let site = Site::new();
    assert_eq!(site.get("/v1/health").json(), json!({ "status": "ok" }));
    site.fake.set(|state| state.stopping = true);
    let answer = site.get("/health");
    assert_eq!((answer.status, &answer.json()["error"]["code"]), (503, &json!("stopping")));
}

#[test]
fn what_is_not_there_is_404_and_the_wrong_method_405() {
    let site = Site::new();
    for (path, status) in [("/v1/engines", 404), ("/page", 404), (PATH, 405)] {
        let answer = site.get(path);
        assert_eq!(
            (answer.status, &answer.json()["error"]["type"]),
            (status, &json!("invalid_request_error"))
        );
    }
    site.expect(405, "/v1/models", &json!({}));
}

#[test]
fn an_unknown_model_or_plan_is_named() {
    let site = Site::new();
    for model in ["gpt-4o", "bytes@", "bytes@pi", "bytes@plain ", "BYTES"] {
        let error = site.expect(404, PATH, &json!({ "model": model, "prompt": "a" }))["error"].clone();
        assert_eq!((&error["code"], &error["param"]), (&json!("model_not_found"), &json!("model")));
        assert!(error["message"].as_str().unwrap().contains("bytes@yarn:factor=4"));
    }
    let body = json!({ "rope": "pi", "prompt": "a" });
    let error = site.expect(400, PATH, &body)["error"].clone();
    assert_eq!(error["param"], "rope");
    assert_eq!(error["message"], "rope: expected auto, plain, yarn:factor=4, streaming, found pi");
    let body = json!({ "rope": "plain", "model": "bytes@yarn:factor=4", "prompt": "a" });
    assert_eq!(site.expect(400, PATH, &body)["error"]["param"], "rope");
}

#[test]
fn fields_that_are_not_served_are_named_and_not_ignored() {
    let site = Site::new();
    for (name, value) in [
        ("suffix", json!("x")),
        ("best_of", json!(2)),
        ("tools", json!([{ "type": "function" }])),
        ("response_format", json!({ "type": "json_object" })),
        ("grammar", json!("root ::= \"a\"")),
        ("continue_final_message", json!(true)),
        ("n_probs", json!(3)),
        ("top_n_sigma", json!(1.0)),
        ("dynatemp_range", json!(0.5)),
        ("t_max_predict_ms", json!(2000)),
        ("dry_sequence_breakers", json!(["\n"])),
    ] {
        let mut body = json!({ "prompt": "a" });
        body[name] = value;
        let error = site.expect(400, PATH, &body)["error"].clone();
        assert_eq!(
            (&error["param"], &error["message"]),
            (&json!(name), &json!(format!("{name}: not supported yet")))
        );
    }
}

#[test]
fn messages_are_checked_one_by_one() {
    let site = Site::new();
    let user = json!({ "role": "user", "content": "a" });
    for (message, param) in [
        (json!("a"), "messages[1]"),
        (json!({ "content": "a" }), "messages[1].role"),
        (json!({ "role": "root", "content": "a" }), "messages[1].role"),
        (json!({ "role": "function", "content": "a" }), "messages[1].role"),
        (json!({ "role": "tool" }), "messages[1].content"),
        (json!({ "role": "tool", "content": "a", "tool_call_id": 1 }), "messages[1].tool_call_id"),
        (json!({ "role": "user" }), "messages[1].content"),
        (json!({ "role": "user", "content": 1 }), "messages[1].content"),
        (json!({ "role": "user", "content": [{ "type": "image_url" }] }), "messages[1].content"),
        (json!({ "role": "user", "content": "a", "name": 1 }), "messages[1].name"),
        (json!({ "role": "assistant", "tool_calls": {} }), "messages[1].tool_calls"),
        (json!({ "role": "assistant", "tool_calls": [] }), "messages[1].content"),
        (json!({ "role": "assistant", "tool_calls": [{}] }), "messages[1].tool_calls[0].function.name"),
        (
            json!({ "role": "user", "content": "a", "tool_calls": [{ "function": { "name": "f" } }] }),
            "messages[1].tool_calls",
        ),
    ] {
        let body = json!({ "messages": [user, message] });
        assert_eq!(site.expect(400, "/v1/chat/completions", &body)["error"]["param"], param, "{message}");
    }
    for messages in [json!([]), json!({}), json!("a"), Value::Null] {
        let body = json!({ "messages": messages });
        assert_eq!(site.expect(400, "/v1/chat/completions", &body)["error"]["param"], "messages");
    }
    for name in ["messages", "add_generation_prompt", "tokenize", "chat_template", "tools"] {
        let mut body = json!({ "messages": [user], "chat_template_kwargs": {} });
        body["chat_template_kwargs"][name] = json!(1);
        assert_eq!(site.expect(400, "/v1/chat/completions", &body)["error"]["param"], "chat_template_kwargs");
    }
}

#[test]
fn a_socket_for_others_needs_a_key() {
    let everyone: SocketAddr = "0.0.0.0:0".parse().unwrap();
    let bind = |keys: &[&str]| {
        let keys = keys.iter().map(|key| (*key).to_owned()).collect();
        Server::bind(everyone, Options::default().keys(keys), Arc::new(Fake::new())).map(drop)
    };
    let error = bind(&[]).unwrap_err().to_string();
    assert_eq!(error, "0.0.0.0:0: expected a key or a loopback address, found neither");
    assert!(bind(&[""]).unwrap_err().to_string().contains("empty"));
    assert!(bind(&["k", "l", "k"]).unwrap_err().to_string().contains("again"));
    bind(&["k"]).unwrap();
}
