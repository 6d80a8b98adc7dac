//! Functions and schemas: answers of the tiny model are what a request says they must be.

use std::path::Path;

use gguf::{Array, File, Output, Value as Stored, Writer};
use serde_json::{json, Value};

use super::{asked, Server};
use crate::models::model;

/// A chat template that has functions.
const TEMPLATE: &str = "{% for t in tools or [] %}{{ t.function | tojson }}{% endfor %}{% for m in messages %}<|im_start|>\
                        {{ m.role }}\n{{ m.content }}{% for c in m.tool_calls or [] %}<tool_call>{{ c.function.arguments \
                        | tojson }}</tool_call>{% endfor %}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}\
                        <|im_start|>assistant\n{% endif %}";

/// The tiny model with a chat template.
fn caller(dir: &Path, template: &str) -> Server {
    std::fs::write(dir.join("chat.jinja"), template).unwrap();
    Server::start(dir, &["serve", "-m", model(), "--template", "chat.jinja", "--ctx", "1024"])
}

const CHAT: &str = "/v1/chat/completions";

fn formed(schema: &Value) -> Value {
    let format =
        json!({ "type": "json_schema", "json_schema": { "name": "x", "schema": schema, "strict": true } });
    json!({ "messages": [{ "role": "user", "content": "a" }], "response_format": format })
}

#[test]
fn answers_are_of_their_schema() {
    let server = Server::new(&[]);
    let schema = json!({
        "type": "object", "additionalProperties": false, "required": ["color", "name"],
        "properties": { "color": { "enum": ["red", "green"] }, "name": { "type": "string", "maxLength": 3 } },
    });
    let mut body = formed(&schema);
    let check = |text: &str| {
        let value: Value = serde_json::from_str(text).unwrap_or_else(|e| panic!("{e}: {text:?}"));
        let fields = value.as_object().unwrap();
        assert_eq!(fields.keys().map(String::as_str).collect::<Vec<_>>(), ["color", "name"], "{text:?}");
        assert!(fields["color"] == "red" || fields["color"] == "green", "{text:?}");
        assert!(fields["name"].as_str().unwrap().chars().count() <= 3, "{text:?}");
    };
    for seed in 0..6 {
        body["seed"] = seed.into();
        let whole = server.post(CHAT, &body).ok();
        check(whole["choices"][0]["message"]["content"].as_str().unwrap());
        assert_eq!(whole["choices"][0]["finish_reason"], "stop");
    }
    // In streams of three answers, and where the end of the text is a token like others.
    body["stream"] = true.into();
    body["n"] = 3.into();
    body["ignore_eos"] = true.into();
    let choices = server.post(CHAT, &body).choices();
    for i in 0..3 {
        let own = choices.iter().filter(|choice| choice["index"] == i);
        check(&own.filter_map(|choice| choice["delta"]["content"].as_str()).collect::<String>());
    }
    // Log-probabilities are those of the model, which had other plans.
    let score = |format: bool| {
        let mut body = formed(&schema);
        body.as_object_mut().unwrap().retain(|name, _| format || name != "response_format");
        for (name, value) in [
            ("logprobs", json!(true)),
            ("top_logprobs", json!(1)),
            ("temperature", json!(0)),
            ("ignore_eos", json!(true)),
        ] {
            body[name] = value;
        }
        body["max_tokens"] = 1.into();
        server.post(CHAT, &body).ok()["choices"][0]["logprobs"]["content"][0].clone()
    };
    let (free, masked) = (score(false), score(true));
    assert_eq!((&free["token"], &masked["token"]), (&masked["top_logprobs"][0]["token"], &json!("{")));
    assert_ne!(free["token"], "{");
    let value = |score: &Value| score["top_logprobs"][0]["logprob"].as_f64().unwrap();
    assert!((value(&free) - value(&masked)).abs() < 1e-3, "{free} {masked}");
}

#[test]
fn schemas_that_cannot_be_served_are_refused_and_the_server_goes_on() {
    let server = Server::new(&[]);
    let chain: serde_json::Map<String, Value> = (0..3000)
        .map(|i| (format!("a{i}"), json!({ "$ref": format!("#/$defs/a{}", i + 1) })))
        .chain([("a3000".to_owned(), json!({ "type": "null" }))])
        .collect();
    let names: Vec<String> = (0..1_000_000).map(|i| format!("{i:07}")).collect();
    let patterns: serde_json::Map<String, Value> = (0..5000).map(|i| (format!("^{i}$"), json!({}))).collect();
    let options: Vec<Value> = (0..12_000).chain([0]).map(|i| json!({ "const": i.to_string() })).collect();
    let groups = format!("{}a{}", "(".repeat(60_000), ")".repeat(60_000));
    for (what, schema) in [
        ("a reference to itself", json!({ "$ref": "#" })),
        (
            "a cycle",
            json!({ "$ref": "#/$defs/a", "$defs": { "a": { "$ref": "#/$defs/b" }, "b": { "$ref": "#/$defs/a" } } }),
        ),
        ("a chain", json!({ "$ref": "#/$defs/a0", "$defs": chain })),
        ("another document", json!({ "$ref": "https://example.com/schema" })),
        ("nothing fits", json!({ "allOf": [{ "type": "string" }, { "type": "integer" }] })),
        ("unknown words", json!({ "type": "object", "if": {} })),
        ("nested groups", json!({ "type": "string", "pattern": groups })),
        ("no pattern", json!({ "type": "string", "pattern": "(" })),
        ("ten megabytes", json!({ "enum": names })),
        ("a type that is none", json!({ "type": "file" })),
        ("pairs of patterns", json!({ "type": "object", "patternProperties": patterns })),
        ("pairs of options again and again", json!({ "oneOf": options, "allOf": vec![json!({}); 1000] })),
    ] {
        let reply = server.post(CHAT, &formed(&schema));
        assert_eq!(reply.status, 400, "{what}: {}", reply.body);
        let error = &reply.json()["error"];
        assert_eq!(error["param"], "response_format", "{what}: {error}");
        let message = error["message"].as_str().unwrap();
        assert!(message.starts_with("schema: ") && message.len() < 1000, "{what}: {message}");
    }
    // Patterns with very many states have a first token; what is too much work later is the request's own error.
    for pattern in ["^(a|b)*a(a|b){400}$", "^((a*)*)*$", "^(a{1,1000}){1,1000}$"] {
        let mut body = formed(&json!({ "type": "string", "pattern": pattern }));
        body["max_tokens"] = 12.into();
        let reply = server.post(CHAT, &body);
        assert!(matches!(reply.status, 200 | 400 | 500), "{pattern}: {}", reply.head);
    }
    server.post("/v1/completions", &asked(2)).ok();
}

#[test]
fn functions_that_must_be_called_are() {
    let dir = tempfile::tempdir().unwrap();
    let server = caller(dir.path(), TEMPLATE);
    let parameters = json!({
        "type": "object", "properties": { "a": { "enum": ["x", "yy"] } }, "required": ["a"], "additionalProperties": false,
    });
    let tool =
        |name: &str| json!({ "type": "function", "function": { "name": name, "parameters": parameters } });
    let mut body = json!({
        "messages": [{ "role": "user", "content": "a" }], "tools": [tool("f"), tool("g")], "parallel_tool_calls": false,
        "tool_choice": "required", "seed": 1,
    });
    let check = |call: &Value, names: &[&str]| {
        let function = &call["function"];
        assert!(names.contains(&function["name"].as_str().unwrap()), "{call}");
        let arguments: Value = serde_json::from_str(function["arguments"].as_str().unwrap()).unwrap();
        assert!(arguments == json!({ "a": "x" }) || arguments == json!({ "a": "yy" }), "{call}");
    };
    let whole = server.post(CHAT, &body).ok();
    let choice = &whole["choices"][0];
    assert_eq!(
        (&choice["finish_reason"], &choice["message"]["content"]),
        (&json!("tool_calls"), &Value::Null)
    );
    let calls = choice["message"]["tool_calls"].clone();
    assert_eq!(calls.as_array().map(Vec::len), Some(1), "{calls}");
    check(&calls[0], &["f", "g"]);
    // The one that is named, in pieces.
    let mut named = body.clone();
    named["tool_choice"] = json!({ "type": "function", "function": { "name": "g" } });
    named["stream"] = true.into();
    let choices = server.post(CHAT, &named).choices();
    let pieces: Vec<&Value> =
        choices.iter().map(|c| &c["delta"]["tool_calls"][0]).filter(|c| !c.is_null()).collect();
    assert_eq!(pieces[0]["function"]["arguments"], "");
    let arguments: String =
        pieces.iter().map(|piece| piece["function"]["arguments"].as_str().unwrap()).collect();
    // Each token's text is sent as it comes.
    assert!(pieces.len() > 2, "{pieces:?}");
    let function = json!({ "name": pieces[0]["function"]["name"], "arguments": arguments });
    check(&json!({ "function": function }), &["g"]);
    // The next turn: the template prints arguments as an object, and as text what is spelled like a special token.
    body["messages"] = json!([
        { "role": "user", "content": "a" },
        { "role": "assistant", "content": null, "tool_calls": [
            { "id": "1", "type": "function", "function": { "name": "f", "arguments": "{\"a\":\"\\u003c|im_end|>\"}" } },
        ] },
        { "role": "tool", "content": "b", "tool_call_id": "1" },
    ]);
    let text = server.post("/apply-template", &body).ok()["prompt"].clone();
    assert!(text.as_str().unwrap().contains("<tool_call>{\"a\": \"<|im_end|>\"}</tool_call>"), "{text}");
    let [end] = server.tokens(&json!({ "content": "<|im_end|>" }))[..] else { panic!("one token") };
    let tokens = server.tokens(&json!({ "messages": body["messages"] }));
    assert_eq!(tokens.iter().filter(|token| **token == end).count(), 3);
    // A model without calls has all of it as text, and writes calls that must come.
    let dir = tempfile::tempdir().unwrap();
    let server = caller(dir.path(), "{% for m in messages %}{{ m.content }}{% endfor %}");
    let text = server.post("/apply-template", &body).ok()["prompt"].clone();
    let parts = [
        "You can call functions.",
        "<tool_call>\n{\"name\": \"f\", ",
        "<tool_response>\nb\n</tool_response>",
    ];
    assert!(parts.iter().all(|part| text.as_str().unwrap().contains(part)), "{text}");
    check(&server.post(CHAT, &body).ok()["choices"][0]["message"]["tool_calls"][0], &["f", "g"]);
}

/// In the channels of gpt-oss, a call is a message of the model's.
#[test]
fn calls_are_told_from_other_messages() {
    let dir = tempfile::tempdir().unwrap();
    let template = "{% for t in tools or [] %}functions.{{ t.function | tojson }}{% endfor %}{% for m in messages %}<|start|>\
                    {{ m.role }}<|channel|>final<|message|>{{ m.content }}<|end|>{% endfor %}<|start|>assistant";
    let server = caller(dir.path(), template);
    let parameters = json!({
        "type": "object", "properties": { "a": { "enum": ["x", "yy"] } }, "required": ["a"], "additionalProperties": false,
    });
    let body = json!({
        "messages": [{ "role": "user", "content": "a" }], "tool_choice": "required", "seed": 1,
        "tools": [{ "type": "function", "function": { "name": "f", "parameters": parameters } }],
    });
    let choice = server.post(CHAT, &body).ok()["choices"][0].clone();
    assert_eq!(
        (&choice["finish_reason"], &choice["message"]["content"]),
        (&json!("tool_calls"), &Value::Null)
    );
    let function = &choice["message"]["tool_calls"][0]["function"];
    assert_eq!(function["name"], "f");
    let arguments: Value = serde_json::from_str(function["arguments"].as_str().unwrap()).unwrap();
    assert!(arguments == json!({ "a": "x" }) || arguments == json!({ "a": "yy" }), "{choice}");
    assert!(choice["message"].get("reasoning_content").is_none(), "{choice}");
}

/// The tiny model with these tokens, of this kind.
pub(crate) fn with_tokens(dir: &Path, words: &[(usize, &str)], kind: i32) -> String {
    let (file, path) = (File::open(Path::new(model())).unwrap(), dir.join("tokens.gguf"));
    let mut out = Writer::with_metadata_of(&file);
    file.tensors().iter().for_each(|t| _ = out.copy_tensor(&file, t).unwrap());
    let stored = |key: &str| file.metadata().iter().find(|(name, _)| name == key).unwrap().1.clone();
    let (tokens, kinds) = ("tokenizer.ggml.tokens", "tokenizer.ggml.token_type");
    let (Stored::Array(Array::String(mut names)), Stored::Array(Array::I32(mut types))) =
        (stored(tokens), stored(kinds))
    else {
        panic!("{tokens} and {kinds}")
    };
    for &(token, word) in words {
        (names[token], types[token]) = (word.into(), kind);
    }
    out.set(tokens, Stored::Array(Array::String(names))).set(kinds, Stored::Array(Array::I32(types)));
    out.write(Output::new(&path, true)).unwrap();
    path.to_str().unwrap().to_owned()
}

/// Marks that are tokens have no text, or have it where special tokens are shown: calls are read either way.
#[test]
fn calls_between_control_tokens_are_read() {
    let dir = tempfile::tempdir().unwrap();
    // Control tokens, as Qwen3 has.
    let marks = with_tokens(dir.path(), &[(270, "<tool_call>"), (271, "</tool_call>")], 3);
    std::fs::write(dir.path().join("chat.jinja"), TEMPLATE).unwrap();
    let server =
        Server::start(dir.path(), &["serve", "-m", &marks, "--template", "chat.jinja", "--ctx", "1024"]);
    assert_eq!(server.tokens(&json!({ "content": "<tool_call>" })).len(), 1);
    let parameters = json!({ "type": "object", "properties": { "a": { "enum": ["x"] } }, "required": ["a"] });
    let tool = json!({ "type": "function", "function": { "name": "f", "parameters": parameters } });
    for (format, skip) in [("auto", true), ("none", true), ("auto", false), ("none", false)] {
        let mut body = json!({
            "messages": [{ "role": "user", "content": "a" }], "tools": [tool], "tool_choice": "required", "seed": 1,
            "parallel_tool_calls": false, "reasoning_format": format, "skip_special_tokens": skip,
        });
        let choice = server.post(CHAT, &body).ok()["choices"][0].clone();
        let message = &choice["message"];
        assert_eq!(message["tool_calls"].as_array().map(Vec::len), Some(1), "{format} {skip}: {choice}");
        assert_eq!(message["tool_calls"][0]["function"]["name"], "f", "{format} {skip}: {choice}");
        assert_eq!(message["content"], Value::Null, "{format} {skip}: {choice}");
        body["stream"] = true.into();
        let choices = server.post(CHAT, &body).choices();
        let text = choices.iter().filter_map(|c| c["delta"]["content"].as_str()).collect::<String>();
        let n_calls = choices.iter().filter(|c| c["delta"]["tool_calls"][0]["id"].is_string()).count();
        assert_eq!((n_calls, text.as_str()), (1, ""), "{format} {skip}: {choices:?}");
    }
}

/// A call that a model may write, and begins in the token that ends its mark.
#[test]
fn a_token_can_hold_the_mark_and_the_beginning_of_a_call() {
    let dir = tempfile::tempdir().unwrap();
    let marked = with_tokens(dir.path(), &[(270, "<tool_call>{\"")], 4);
    std::fs::write(dir.path().join("chat.jinja"), TEMPLATE).unwrap();
    let server =
        Server::start(dir.path(), &["serve", "-m", &marked, "--template", "chat.jinja", "--ctx", "1024"]);
    let [token] = server.tokens(&json!({ "content": "<tool_call>{\"" }))[..] else { panic!("one token") };
    let parameters = json!({
        "type": "object", "properties": { "a": { "enum": ["x"] } }, "required": ["a"], "additionalProperties": false,
    });
    let body = json!({
        "messages": [{ "role": "user", "content": "a" }], "seed": 1, "parallel_tool_calls": false, "max_tokens": 60,
        "tools": [{ "type": "function", "function": { "name": "f", "strict": true, "parameters": parameters } }],
        "logit_bias": { token.to_string(): 100 },
    });
    let message = server.post(CHAT, &body).ok()["choices"][0]["message"].clone();
    assert_eq!(message["tool_calls"][0]["function"]["name"], "f", "{message}");
    assert_eq!(message["content"], Value::Null, "{message}");
}
