//! Requests of people who mean no good, or know no better.

use std::time::{Duration, Instant};

use ropewalk_serve::Options;
use serde_json::{json, Value};

use crate::client::{Answer, Site, JSON, LONG};

const PATH: &str = "/v1/completions";
const BODY: &[u8] = br#"{"prompt":"abc"}"#;

fn ask(site: &Site, headers: &[(&str, &str)]) -> Answer {
    site.client().ask("POST", PATH, headers, BODY)
}

#[test]
fn names_of_others_are_not_this_server() {
    let site = Site::new();
    let port = site.address.port();
    for host in [
        "evil.example",
        "localhost.evil.com",
        "127.0.0.1.evil.com",
        "10.0.0.1",
        "",
        "[::2]:80",
        "localhost@evil.com",
    ] {
        let answer = ask(&site, &[JSON, ("host", host)]);
        assert_eq!(answer.status, 403, "{host:?}");
        // Nothing that a page could read.
        assert_eq!(answer.header("access-control-allow-origin"), None);
    }
    for host in [
        "localhost",
        "LOCALHOST:1",
        "127.0.0.1",
        "127.9.9.9:80",
        "[::1]",
        "[::1]:80",
        &format!("localhost:{port}"),
    ] {
        assert_eq!(ask(&site, &[JSON, ("host", host)]).status, 200, "{host}");
    }
    assert_eq!(ask(&site, &[JSON, ("host", "localhost"), ("host", "evil.example")]).status, 400);
}

#[test]
fn pages_of_others_may_not_ask() {
    let site = Site::new();
    for origin in
        ["https://evil.example", "null", "http://localhost.evil.com", "http://localhost:1", "localhost", ""]
    {
        assert_eq!(ask(&site, &[JSON, ("origin", origin)]).status, 403, "{origin:?}");
        let answer = site.client().ask("OPTIONS", PATH, &[("origin", origin)], b"");
        assert_eq!((answer.status, answer.header("access-control-allow-origin")), (403, None));
    }
    assert_eq!(ask(&site, &[JSON, ("origin", "http://localhost")]).status, 200);
    let allowed = "https://chat.example";
    let site = Site::with(Options::default().origin(vec![allowed.into()]), Duration::ZERO);
    let answer = ask(&site, &[JSON, ("origin", allowed)]);
    assert_eq!((answer.status, answer.header("access-control-allow-origin")), (200, Some(allowed)));
    assert!(answer.header("access-control-expose-headers").unwrap().contains("x-ropewalk-rope"));
    assert_eq!(
        (answer.header("vary"), answer.header("access-control-allow-credentials")),
        (Some("origin"), None)
    );
    let answer = site.client().ask("OPTIONS", PATH, &[("origin", allowed)], b"");
    assert_eq!((answer.status, answer.header("access-control-allow-origin")), (204, Some(allowed)));
    assert_eq!(answer.header("access-control-allow-headers"), Some("authorization, *"));
    // A request without an origin, and an error, say nothing to other pages.
    assert_eq!(ask(&site, &[JSON]).header("access-control-allow-origin"), None);
    assert_eq!(ask(&site, &[JSON, ("origin", "null")]).header("access-control-allow-origin"), None);
    assert_eq!(ask(&site, &[JSON, ("origin", "http://chat.example")]).status, 403);
}

#[test]
fn a_page_cannot_post_without_being_asked_first() {
    let site = Site::new();
    for kind in ["text/plain", "application/x-www-form-urlencoded", "application/jsonp", ""] {
        assert_eq!(ask(&site, &[("content-type", kind)]).status, 415, "{kind}");
    }
    assert_eq!(ask(&site, &[]).status, 415);
    assert_eq!(ask(&site, &[("content-type", "Application/JSON; charset=utf-8")]).status, 200);
    assert_eq!(ask(&site, &[JSON, ("content-encoding", "gzip")]).status, 415);
}

#[test]
fn every_path_but_health_and_the_page_needs_the_key() {
    let keys = vec!["first-key".to_owned(), "second".to_owned()];
    let site = Site::with(Options::default().keys(keys), Duration::ZERO);
    let with = |path: &str, value: &str| {
        let method = if path == PATH { "POST" } else { "GET" };
        site.client().ask(method, path, &[JSON, ("host", "any.example"), ("authorization", value)], BODY)
    };
    for value in [
        "",
        "Bearer",
        "Bearer ",
        "Bearer first-ke",
        "Bearer first-key2",
        "first-key",
        "Basic first-key",
        "Bearer Second",
    ] {
        let answer = with(PATH, value);
        let error = &answer.json()["error"];
        assert_eq!((answer.status, &error["type"]), (401, &json!("authentication_error")), "{value}");
        assert_eq!(answer.header("www-authenticate"), Some("Bearer"));
    }
    for path in [
        "/metrics",
        "/plan?n=1",
        "/props",
        "/selftest",
        "/slots",
        "/slots/0?action=erase",
        "/v1/models",
        "/v1/responses",
        "/v1/responses/input_tokens",
        "/v1/score",
        "/tokenizer_info",
        "/v1/models/bytes",
        "/map",
        "/nowhere",
        "/page",
    ] {
        assert_eq!(with(path, "Bearer third").status, 401, "{path}");
    }
    for path in ["/health", "/v1/health", "/", "/page.js"] {
        assert_eq!(with(path, "").status, 200, "{path}");
        // No body is read for these either: this one never comes.
        let head = format!("POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n");
        let mut client = site.client();
        client.write(format!("{head}content-length: 1000\r\n\r\n").as_bytes());
        assert_eq!(client.answer().unwrap().status, 401, "{path}");
    }
    assert_eq!((with(PATH, "Bearer first-key").status, with(PATH, "bearer second").status), (200, 200));
    // What one has read, another cannot find out from the time that it takes.
    let state = site.fake.state();
    assert_ne!(state.jobs[0].salt, state.jobs[1].salt);
    // Each has a queue.
    assert_eq!((state.jobs[0].caller, state.jobs[1].caller), (0, 1));
}

#[test]
fn heads_have_a_size() {
    let site = Site::new();
    let long = "k".repeat(1 << 20);
    let answer = ask(&site, &[JSON, ("authorization", &long)]);
    assert_eq!(answer.status, 431);
    assert_eq!(site.get("/health").status, 200);
}

#[test]
fn bodies_have_a_size() {
    let site = Site::with(Options::default().max_body(1000), Duration::ZERO);
    let mut client = site.client();
    // Its word is enough.
    client.write(b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 1073741824\r\n\r\n");
    assert_eq!(client.answer().unwrap().status, 413);
    // Chunks have no length to be believed.
    let mut client = site.client();
    client.write(b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n");
    client.write(&[b"3e9\r\n".as_slice(), &[b' '; 1001], b"\r\n"].concat());
    assert_eq!(client.answer().unwrap().status, 413);
    let body = json!({ "prompt": "a".repeat(1000 - 13) }).to_string();
    assert_eq!(body.len(), 1000);
    let answer = site.client().ask("POST", PATH, &[JSON], body.as_bytes());
    assert_eq!(answer.status, 200, "{}", answer.text());
}

#[test]
fn all_bodies_together_have_a_size() {
    let site = Site::with(Options::default().max_body(1000), Duration::ZERO);
    let body = json!({ "prompt": "a".repeat(1000 - 13) }).to_string();
    let head = "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 1000";
    let mut slow: Vec<_> = (0..4).map(|_| site.client()).collect();
    slow.iter_mut().for_each(|client| client.write(format!("{head}\r\n\r\n{}", &body[..900]).as_bytes()));
    let until = |status| {
        let start = Instant::now();
        loop {
            let answer = site.post(PATH, &json!({ "prompt": "a".repeat(800) }));
            if answer.status == status {
                return answer;
            }
            assert!(start.elapsed() < LONG, "{} after five minutes", answer.status);
            std::thread::sleep(Duration::from_millis(10));
        }
    };
    // Once they were read so far.
    let answer = until(429);
    assert!(answer.header("retry-after").is_some());
    for client in &mut slow {
        client.write(&body.as_bytes()[900..]);
        assert_eq!(client.answer().unwrap().status, 200);
    }
    until(200);
}

#[test]
fn a_body_does_not_become_many_times_its_size() {
    let site = Site::new();
    let body = json!({ "content": "a".repeat((1 << 17) + 1), "with_pieces": true });
    assert_eq!(site.expect(400, "/tokenize", &body)["error"]["param"], "with_pieces");
    // Nine bytes for each.
    let tokens = vec![259; 2 << 20];
    assert_eq!(site.expect(400, "/detokenize", &json!({ "tokens": tokens }))["error"]["param"], "tokens");
    let body = json!({ "prompt": tokens, "echo": true });
    assert_eq!(site.expect(400, PATH, &body)["error"]["param"], "prompt");
    let body = json!({ "prompt": tokens[..3000], "echo": true, "logprobs": 20, "n": 128, "max_tokens": 1 });
    assert_eq!(site.expect(400, PATH, &body)["error"]["param"], "n");
}

#[test]
fn slow_senders_are_not_waited_for() {
    // Only the one has a short time: on a busy machine a client may need longer for its head than for what follows.
    let short = Duration::from_millis(50);
    let site = Site::with(Options::default().body_timeout(short), Duration::ZERO);
    let mut client = site.client();
    client.write(b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 20\r\n\r\n{");
    assert_eq!(client.answer().unwrap().status, 408);
    // A head that never ends, and a connection that never asks.
    let site = Site::with(Options::default().head_timeout(short), Duration::ZERO);
    for start in [b"GET /health HTTP/1.1\r\nx: ".as_slice(), b""] {
        let mut client = site.client();
        client.write(start);
        assert!(client.answer().is_none());
    }
}

#[test]
fn bytes_that_are_no_http_end_the_connection_only() {
    let site = Site::new();
    for bytes in [
        b"\0\0\0\0\r\n\r\n".as_slice(),
        b"GET\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        &[0xff; 300],
        b"\x16\x03\x01\x02\r\n\r\n",
    ] {
        let mut client = site.client();
        client.write(bytes);
        assert!(client.answer().is_none_or(|answer| answer.status == 400), "{bytes:?}");
    }
    assert_eq!(site.get("/health").status, 200);
}

#[test]
fn bodies_that_are_no_object_are_refused() {
    let site = Site::new();
    let deep = [vec![b'['; 100_000], vec![b']'; 100_000]].concat();
    let wide = vec![b'['; 1 << 20];
    for body in [
        b"".as_slice(),
        b"null",
        b"[]",
        b"\"a\"",
        b"{",
        b"{}{}",
        b"\xff\xfe",
        br#"{"prompt":"\ud800"}"#,
        br#"{"prompt":NaN}"#,
        br#"{"prompt":1e999}"#,
        br#"{"prompt":"a","prompt":"b"}"#,
        br#"{"prompt":"a",}"#,
        [br#"{"prompt":"#.as_slice(), deep.as_slice(), b"}"].concat().as_slice(),
        deep.as_slice(),
        wide.as_slice(),
    ] {
        let answer = site.client().ask("POST", PATH, &[JSON], body);
        let start = String::from_utf8_lossy(&body[..body.len().min(40)]).into_owned();
        assert_eq!(answer.status, 400, "{start}");
        let message = answer.json()["error"]["message"].as_str().unwrap().to_owned();
        assert!(message.starts_with("body: expected a JSON object") && !message.contains('\n'), "{message}");
    }
}

#[test]
fn a_clients_text_in_a_message_is_short_and_harmless() {
    let site = Site::new();
    let name = "\u{1b}[2J\n".to_owned() + &"x".repeat(100_000);
    let answer = site.post(PATH, &json!({ "model": name, "prompt": "a" }));
    let message = answer.json()["error"]["message"].as_str().unwrap().to_owned();
    assert_eq!(answer.status, 404);
    assert!(message.len() < 500 && !message.chars().any(char::is_control), "{message:?}");
}

#[test]
fn numbers_have_ranges() {
    let site = Site::new();
    let values = [
        json!(-1),
        json!(0),
        json!(i32::MAX),
        json!(1_u64 << 63),
        json!(1e308),
        json!("1"),
        Value::Null,
        json!([]),
        json!({}),
    ];
    // Which of the values each field takes.
    for (name, taken) in [
        ("temperature", [false, true, false, false, false, false, true, false, false]),
        ("top_p", [false, true, false, false, false, false, true, false, false]),
        ("top_k", [true, true, true, false, false, false, true, false, false]),
        ("min_p", [false, true, false, false, false, false, true, false, false]),
        ("repeat_penalty", [false, false, false, false, false, false, true, false, false]),
        ("repeat_last_n", [true, true, true, false, false, false, true, false, false]),
        ("presence_penalty", [true, true, false, false, false, false, true, false, false]),
        ("dry_base", [false, false, false, false, false, false, true, false, false]),
        ("dry_allowed_length", [false, true, true, false, false, false, true, false, false]),
        ("min_tokens", [false, true, true, false, false, false, true, false, false]),
        ("seed", [true, true, true, false, false, false, true, false, false]),
        ("n", [false, false, false, false, false, false, true, false, false]),
        ("logprobs", [false, true, false, false, false, false, true, false, false]),
        ("stop", [false, false, false, false, false, true, true, true, false]),
        ("logit_bias", [false, false, false, false, false, false, true, false, true]),
        ("stream", [false, false, false, false, false, false, true, false, false]),
        ("echo", [false, false, false, false, false, false, true, false, false]),
        ("cache_salt", [false, false, false, false, false, true, true, false, false]),
    ] {
        for (value, taken) in values.iter().zip(taken) {
            let mut body = json!({ "prompt": "a" });
            body[name] = value.clone();
            let answer = site.post(PATH, &body);
            assert_eq!(answer.status == 200, taken, "{name} {value}: {}", answer.text());
            if !taken {
                let error = &answer.json()["error"];
                assert_eq!((answer.status, &error["param"]), (400, &json!(name)), "{name} {value}");
            }
        }
    }
    // More tokens than any context has.
    let body = json!({ "prompt": "a", "max_tokens": i32::MAX });
    assert_eq!(site.expect(400, PATH, &body)["error"]["code"], "context_length_exceeded");
    for (body, param) in [
        (json!({ "prompt": [262] }), "prompt"),
        (json!({ "prompt": [-1] }), "prompt"),
        (json!({ "prompt": [1.5] }), "prompt"),
        (json!({ "prompt": [1_u64 << 40] }), "prompt"),
        (json!({ "prompt": [] }), "prompt"),
        (json!({ "prompt": [[]] }), "prompt"),
        (json!({ "prompt": ["a", [1]] }), "prompt"),
        (json!({ "prompt": "", "add_special_tokens": false }), "prompt"),
        (json!({ "prompt": vec!["a"; 129] }), "prompt"),
        (json!({ "prompt": vec!["a"; 65], "n": 2 }), "n"),
        (json!({ "prompt": "a", "logit_bias": { "262": 1 } }), "logit_bias"),
        (json!({ "prompt": "a", "logit_bias": { "-1": 1 } }), "logit_bias"),
        (json!({ "prompt": "a", "logit_bias": { "1": 101 } }), "logit_bias"),
        (json!({ "prompt": "a", "stop": [""] }), "stop"),
        (json!({ "prompt": "a", "stop": vec!["x"; 10_000] }), "stop"),
        (json!({ "prompt": "a", "stop": "x".repeat(2000) }), "stop"),
        (json!({ "prompt": "a", "max_tokens": 1, "max_completion_tokens": 2 }), "max_completion_tokens"),
        (json!({ "prompt": "a", "return_progress": true }), "return_progress"),
        (json!({ "prompt": "a", "stream_options": {} }), "stream_options"),
    ] {
        assert_eq!(site.expect(400, PATH, &body)["error"]["param"], param);
    }
    let messages = json!([{ "role": "user", "content": "a" }]);
    for top in [json!(-1), json!(21), json!(1_u64 << 31), json!(true)] {
        let body = json!({ "messages": messages, "logprobs": true, "top_logprobs": top });
        assert_eq!(site.expect(400, "/v1/chat/completions", &body)["error"]["param"], "top_logprobs");
    }
}
