//! The description at `/openapi.json`: it has every path, the fields that are read of requests, and what is answered.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use ropewalk_serve::{check, routes, FaultKind, Options};
use serde_json::{json, Map, Value};

use crate::client::{Client, Site, JSON};
use crate::fake::Fake;

const CHAT: &str = r#"{"messages": [{"role": "user", "content": "ab"}]}"#;
const INPUT: &str = r#"{"input": "ab"}"#;

/// A path with its query, its name in the description, and its smallest requests: a field that one of them reads is the path's.
const POSTS: &[(&str, &str, &[&str])] = &[
    ("/v1/completions", "/v1/completions", &[r#"{"prompt": "ab"}"#]),
    ("/v1/chat/completions", "/v1/chat/completions", &[CHAT]),
    ("/v1/chat/completions/input_tokens", "/v1/chat/completions/input_tokens", &[CHAT]),
    ("/v1/responses", "/v1/responses", &[INPUT]),
    ("/v1/responses/input_tokens", "/v1/responses/input_tokens", &[INPUT]),
    ("/v1/score", "/v1/score", &[r#"{"prompt": "ab"}"#]),
    ("/selftest", "/selftest", &["{}"]),
    ("/tokenize", "/tokenize", &[r#"{"content": "ab"}"#, CHAT]),
    ("/detokenize", "/detokenize", &[r#"{"tokens": [97]}"#]),
    ("/apply-template", "/apply-template", &[CHAT]),
    ("/slots/0?action=restore", "/slots/{id}", &[r#"{"filename": "a"}"#]),
];

fn site() -> Site {
    Site::of(Fake::saving(), Options::default(), Duration::ZERO)
}

fn document(site: &Site) -> Value {
    site.get("/openapi.json").json()
}

/// The part that a reference stands for.
fn found<'a>(doc: &'a Value, part: &'a Value) -> &'a Value {
    match part["$ref"].as_str() {
        Some(at) => doc.pointer(at.trim_start_matches('#')).unwrap_or_else(|| panic!("{at}")),
        None => part,
    }
}

/// The properties of a schema and of those that it includes, and the names of those it requires.
fn fields(doc: &Value, schema: &Value) -> (Map<String, Value>, BTreeSet<String>) {
    let schema = found(doc, schema);
    let (mut all, mut required) = (Map::new(), BTreeSet::new());
    for part in schema["allOf"].as_array().into_iter().flatten() {
        let (more, needed) = fields(doc, part);
        all.extend(more);
        required.extend(needed);
    }
    all.extend(schema["properties"].as_object().cloned().unwrap_or_default());
    let own = schema["required"].as_array().into_iter().flatten();
    required.extend(own.map(|name| name.as_str().unwrap().to_owned()));
    (all, required)
}

/// The fields of a path's requests.
fn asked(doc: &Value, path: &str) -> (Map<String, Value>, BTreeSet<String>) {
    fields(doc, &doc["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"])
}

/// Why a value is not of a schema. A field that the schema does not have is one reason.
fn fits(doc: &Value, schema: &Value, value: &Value, at: &str) -> Result<(), String> {
    let schema = found(doc, schema);
    let wrong = |expected: &Value| Err(format!("{at}: expected {expected}, found {value}"));
    if let Some(some) = schema["oneOf"].as_array() {
        let n = some.iter().filter(|one| fits(doc, one, value, at).is_ok()).count();
        return if n == 1 { Ok(()) } else { wrong(&schema["oneOf"]) };
    }
    let known = schema["enum"].as_array();
    if schema.get("const").is_some_and(|one| one != value) || known.is_some_and(|all| !all.contains(value)) {
        return wrong(schema);
    }
    let types: Vec<&str> = match &schema["type"] {
        Value::Array(list) => list.iter().filter_map(Value::as_str).collect(),
        one => one.as_str().into_iter().collect(),
    };
    let own: &[&str] = match value {
        Value::Null => &["null"],
        Value::Bool(_) => &["boolean"],
        Value::Number(n) if n.is_f64() => &["number"],
        Value::Number(_) => &["integer", "number"],
        Value::String(_) => &["string"],
        Value::Array(_) => &["array"],
        Value::Object(_) => &["object"],
    };
    if !types.is_empty() && !own.iter().any(|own| types.contains(own)) {
        return wrong(&schema["type"]);
    }
    match value {
        Value::Array(list) => {
            let most = schema["maxItems"].as_u64().unwrap_or(u64::MAX);
            if list.len() as u64 > most {
                return wrong(schema);
            }
            let each = |(i, item): (usize, &Value)| fits(doc, &schema["items"], item, &format!("{at}[{i}]"));
            list.iter().enumerate().try_for_each(each)
        }
        Value::Object(map) => {
            let (all, required) = fields(doc, schema);
            if let Some(name) = required.iter().find(|name| !map.contains_key(*name)) {
                return Err(format!("{at}.{name}: expected it, found {value}"));
            }
            map.iter().try_for_each(|(name, value)| {
                let at = format!("{at}.{name}");
                match (all.get(name), &schema["additionalProperties"]) {
                    (Some(own), _) => fits(doc, own, value, &at),
                    (None, Value::Bool(true)) => Ok(()),
                    (None, more @ Value::Object(_)) => fits(doc, more, value, &at),
                    _ => Err(format!("{at}: not described, found {value}")),
                }
            })
        }
        _ => Ok(()),
    }
}

/// The operations that are described: methods in small letters, and paths.
fn described(doc: &Value) -> BTreeSet<(String, String)> {
    let paths = doc["paths"].as_object().unwrap();
    let of = |(path, item): (&String, &Value)| {
        let methods: Vec<String> = item.as_object().unwrap().keys().cloned().collect();
        methods.into_iter().map(|method| (method, path.clone())).collect::<Vec<_>>()
    };
    paths.iter().flat_map(of).collect()
}

#[test]
fn every_path_is_described_and_no_other() {
    let site = site();
    let doc = document(&site);
    assert!(doc["openapi"].as_str().unwrap().starts_with("3.1."));
    let ours = routes().map(|(method, path)| (method.to_lowercase(), path.replace("{*", "{")));
    assert_eq!(ours.collect::<BTreeSet<_>>(), described(&doc));
    let posts: BTreeSet<_> =
        POSTS.iter().map(|(_, name, _)| ("post".to_owned(), (*name).to_owned())).collect();
    let found: BTreeSet<_> = described(&doc).into_iter().filter(|(method, _)| method == "post").collect();
    assert_eq!(posts, found);
    // The list is what is answered.
    for (method, path) in described(&doc) {
        let path = path.replace("{id}", "0");
        let body: &[u8] = if method == "post" { b"{}" } else { b"" };
        let answer = site.client().ask(&method.to_uppercase(), &path, &[JSON], body);
        let missing = answer.status == 405 || answer.text().contains("a path of OpenAI's interface");
        assert!(!missing, "{method} {path}: {}", answer.text());
    }
}

/// The field that a request is refused for, and why.
fn refused(client: &mut Client, path: &str, body: &Value) -> Option<(String, String)> {
    let body = body.to_string();
    match check(path, body.as_bytes()) {
        Ok(()) => None,
        Err(fault) if fault.kind != FaultKind::NotFound => Some((fault.param?, fault.message)),
        Err(_) => {
            let answer = client.ask("POST", path, &[JSON], body.as_bytes());
            let error = answer.json()["error"].take();
            let text = |name: &str| error[name].as_str().map(str::to_owned);
            Some((text("param")?, text("message")?))
        }
    }
}

/// Whether a request is refused if a field has another type than it can have.
fn reads(client: &mut Client, path: &str, body: &Value, name: &str) -> bool {
    [json!({ "?": 1 }), json!("?")].into_iter().any(|wrong| {
        let mut body = body.clone();
        body[name] = wrong;
        refused(client, path, &body).is_some_and(|(param, why)| {
            param.split(['.', '[']).next() == Some(name) && !why.ends_with("not supported yet")
        })
    })
}

/// Words in quotes in the crate's sources, among which are the names of all fields that it reads.
fn words(dir: &Path, into: &mut BTreeSet<String>) {
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() && !path.ends_with("tests") {
            words(&path, into);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = std::fs::read_to_string(&path).unwrap();
            let is_name = |word: &&str| {
                !word.is_empty() && word.bytes().all(|c| matches!(c, b'a'..=b'z' | b'0'..=b'9' | b'_'))
            };
            into.extend(text.split('"').filter(is_name).map(str::to_owned));
        }
    }
}

#[test]
fn the_fields_that_are_read_are_those_that_are_described() {
    let site = site();
    let (doc, mut client) = (document(&site), site.client());
    let mut listed: BTreeSet<String> = BTreeSet::new();
    for (_, name, _) in POSTS {
        listed.extend(asked(&doc, name).0.keys().cloned());
    }
    let mut all = listed.clone();
    words(Path::new(env!("CARGO_MANIFEST_DIR")), &mut all);
    assert!(all.len() > listed.len() + 100, "{}", all.len());
    for (path, name, bodies) in POSTS {
        // Without a connection it is quick.
        let direct = !matches!(check(path, b"{}"), Err(fault) if fault.kind == FaultKind::NotFound);
        let tried = if direct { &all } else { &listed };
        let mut read = BTreeSet::new();
        for body in *bodies {
            let body: Value = serde_json::from_str(body).unwrap();
            read.extend(tried.iter().filter(|field| reads(&mut client, path, &body, field)).cloned());
        }
        let (fields, required) = asked(&doc, name);
        assert_eq!(read, fields.keys().cloned().collect::<BTreeSet<_>>(), "{path}");
        for field in required {
            let mut body: Value = serde_json::from_str(bodies[0]).unwrap();
            body.as_object_mut().unwrap().remove(&field);
            let found = refused(&mut client, path, &body).map(|(param, _)| param);
            assert_eq!(found.as_deref(), Some(&*field), "{path}");
        }
    }
}

#[test]
fn answers_are_as_described() {
    let site = site();
    let doc = document(&site);
    let schema = |method: &str, name: &str, kind: &str| -> Value {
        let answer = found(&doc, &doc["paths"][name][method]["responses"]["200"]);
        answer["content"][kind]["schema"].clone()
    };
    let is_json = |(method, name): &(String, String)| !schema(method, name, "application/json").is_null();
    let mut left: BTreeSet<_> = described(&doc).into_iter().filter(is_json).collect();
    let ask = |(path, name): (&str, &str), body: Value| {
        let answer = site.post(path, &body);
        assert_eq!(answer.status, 200, "{path} {body}: {}", answer.text());
        if body["stream"] == true {
            let text = answer.text();
            let of = schema("post", name, "text/event-stream");
            let data = text.lines().filter_map(|line| line.strip_prefix("data: "));
            let data: Vec<&str> = data.filter(|data| *data != "[DONE]").collect();
            assert!(data.len() > 2, "{text}");
            for data in data {
                fits(&doc, &of, &serde_json::from_str(data).unwrap(), path).unwrap_or_else(|e| panic!("{e}"));
            }
            return;
        }
        let of = schema("post", name, "application/json");
        fits(&doc, &of, &answer.json(), path).unwrap_or_else(|e| panic!("{body}: {e}"));
    };
    let completions = ("/v1/completions", "/v1/completions");
    for body in [
        json!({ "prompt": "ab" }),
        json!({ "prompt": ["ab", "cd"], "n": 2, "logprobs": 2, "echo": true, "return_token_ids": true }),
        json!({ "prompt": "ab", "prompt_logprobs": 1, "max_tokens": 1 }),
        json!({ "prompt": "ab", "logprobs": 1, "stream": true, "return_progress": true, "return_token_ids": true }),
        json!({ "prompt": "ab", "stream": true, "stream_options": { "include_usage": true } }),
    ] {
        ask(completions, body);
    }
    let chat = |more: Value| {
        let mut body: Value = serde_json::from_str(CHAT).unwrap();
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        body
    };
    let thinks = json!({ "enable_thinking": true });
    for more in [
        json!({}),
        json!({ "logprobs": true, "top_logprobs": 2, "n": 2, "return_token_ids": true, "prompt_logprobs": 1 }),
        json!({ "chat_template_kwargs": thinks }),
        json!({ "chat_template_kwargs": thinks, "stream": true, "return_progress": true, "logprobs": true }),
        json!({ "stream": true, "return_token_ids": true, "stream_options": { "include_usage": true } }),
    ] {
        ask(("/v1/chat/completions", "/v1/chat/completions"), chat(more));
    }
    for body in [
        json!({ "input": "ab" }),
        json!({ "input": "ab", "include": ["message.output_text.logprobs"], "max_output_tokens": 1 }),
        json!({ "input": "ab", "chat_template_kwargs": thinks, "instructions": "c", "reasoning": { "effort": "low" } }),
        json!({ "input": "ab", "chat_template_kwargs": thinks, "stream": true, "top_logprobs": 1 }),
    ] {
        ask(("/v1/responses", "/v1/responses"), body);
    }
    for body in [json!({ "prompt": "ab" }), json!({ "prompt": "ab", "rope": ["plain", "streaming"] })] {
        ask(("/v1/score", "/v1/score"), body);
    }
    for body in
        [json!({ "content": "ab" }), json!({ "prompt": "\u{e9}", "with_pieces": true }), chat(json!({}))]
    {
        ask(("/tokenize", "/tokenize"), body);
    }
    ask(("/detokenize", "/detokenize"), json!({ "tokens": [97] }));
    ask(("/selftest", "/selftest"), json!({ "samples": 1 }));
    for path in ["/apply-template", "/v1/chat/completions/input_tokens"] {
        ask((path, path), chat(json!({})));
    }
    ask(("/v1/responses/input_tokens", "/v1/responses/input_tokens"), json!({ "input": "ab" }));
    site.fake.wait(|state| state.running == 0);
    let get = |path: &str, name: &str| {
        let answer = site.get(path);
        assert_eq!(answer.status, 200, "{path}: {}", answer.text());
        let of = schema("get", name, "application/json");
        fits(&doc, &of, &answer.json(), path).unwrap_or_else(|e| panic!("{e}"));
    };
    get("/slots", "/slots");
    for action in ["save", "restore", "erase"] {
        let path = format!("/slots/0?action={action}");
        ask((path.as_str(), "/slots/{id}"), json!({ "filename": "a" }));
    }
    for (path, name) in [
        ("/plan?n=20", "/plan"),
        ("/plan?n=20&rope=streaming", "/plan"),
        ("/plan", "/plan"),
        ("/v1/models/bytes", "/v1/models/{id}"),
    ] {
        get(path, name);
    }
    for path in ["/health", "/v1/health", "/v1/models", "/props", "/tokenizer_info", "/openapi.json"] {
        get(path, path);
    }
    // Nothing was left out: these are all.
    for (_, name, _) in POSTS {
        left.remove(&("post".to_owned(), (*name).to_owned()));
    }
    for name in
        "/slots /plan /v1/models/{id} /health /v1/health /v1/models /props /tokenizer_info /openapi.json"
            .split(' ')
    {
        assert!(left.remove(&("get".to_owned(), name.to_owned())), "{name}");
    }
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn calls_and_errors_are_as_described() {
    let said = "I ask.\n<tool_call>{\"name\": \"now\", \"arguments\": {}}</tool_call>";
    let site = Site::saying("{{ tools }}<tool_call>", said);
    let doc = document(&site);
    let schemas = &doc["components"]["schemas"];
    let mut body: Value = serde_json::from_str(CHAT).unwrap();
    body["tools"] =
        json!([{ "type": "function", "function": { "name": "now", "parameters": { "type": "object" } } }]);
    let answer = site.expect(200, "/v1/chat/completions", &body);
    assert_eq!(answer["choices"][0]["finish_reason"], "tool_calls");
    fits(&doc, &schemas["Chat"], &answer, "chat").unwrap_or_else(|e| panic!("{e}"));
    fits(&doc, &schemas["ChatRequest"], &body, "request").unwrap_or_else(|e| panic!("{e}"));
    body["stream"] = json!(true);
    let text = site.post("/v1/chat/completions", &body).text();
    assert!(text.contains("\"tool_calls\":[{"), "{text}");
    for data in text.lines().filter_map(|line| line.strip_prefix("data: ")).filter(|data| *data != "[DONE]") {
        let piece = serde_json::from_str(data).unwrap();
        fits(&doc, &schemas["ChatChunk"], &piece, "chunk").unwrap_or_else(|e| panic!("{e}"));
    }
    for (status, path, body) in [
        (400, "/v1/completions", json!({ "prompt": 1 })),
        (400, "/v1/completions", json!({ "prompt": "a", "rope": "plain", "max_tokens": 100_000 })),
        (404, "/v1/completions", json!({ "prompt": "a", "model": "other" })),
        (404, "/v1/other", json!({})),
        (405, "/v1/models", json!({})),
        (501, "/slots/0?action=save", json!({ "filename": "a" })),
    ] {
        let error = site.expect(status, path, &body);
        fits(&doc, &schemas["Error"], &error, path).unwrap_or_else(|e| panic!("{e}"));
    }
    // What is not described is noticed.
    let mut other = answer.clone();
    other["choices"][0]["message"]["new"] = json!(1);
    assert!(fits(&doc, &schemas["Chat"], &other, "chat").unwrap_err().contains("message.new"));
}
