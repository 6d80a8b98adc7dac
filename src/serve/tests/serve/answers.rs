//! Whole answers, and what the server tells of the model.

use ropewalk_serve::Sampling;
use serde_json::{json, Value};

use crate::client::{Site, JSON};
use crate::fake::{BOS, EOS};

fn texts(answer: &Value) -> Vec<&str> {
    answer["choices"].as_array().unwrap().iter().map(|choice| choice["text"].as_str().unwrap()).collect()
}

#[test]
fn a_completion_has_what_clients_read() {
    let site = Site::new();
    let http = site.post("/v1/completions", &json!({ "model": "bytes", "prompt": "abc" }));
    let answer = http.json();
    assert_eq!(http.header("content-type"), Some("application/json"));
    assert!(answer["id"].as_str().unwrap().starts_with("cmpl-"));
    assert_eq!(answer["object"], "text_completion");
    assert_eq!(answer["system_fingerprint"], "fp");
    let choice = json!({ "index": 0, "text": "cba", "logprobs": null, "finish_reason": "stop" });
    assert_eq!(answer["choices"], json!([choice]));
    let usage = &answer["usage"];
    assert_eq!((&usage["prompt_tokens"], &usage["completion_tokens"]), (&json!(4), &json!(3)));
    assert_eq!(
        (&usage["total_tokens"], &usage["prompt_tokens_details"]["cached_tokens"]),
        (&json!(7), &json!(0))
    );
    let (about, times) = (&answer["ropewalk"], &answer["timings"]);
    assert_eq!((&about["rope"], &about["stop"]), (&json!("plain"), &json!("end")));
    assert_eq!((&about["beyond_trained"], &about["n_ctx"]), (&json!(false), &json!(64)));
    let cached = json!({ "tokens": 0, "from": null, "differs_at": 3 });
    assert_eq!((&about["cached"], &about["recomputed_because"]), (&cached, &json!("differs")));
    assert_eq!((&times["prompt_n"], &times["predicted_n"]), (&json!(4), &json!(3)));
    let other = site.expect(200, "/v1/completions", &json!({ "prompt": "abc" }));
    assert_ne!(other["id"], answer["id"]);
}

#[test]
fn answers_come_in_the_order_of_prompts_and_n() {
    let site = Site::new();
    let answer = site.expect(200, "/v1/completions", &json!({ "prompt": ["ab", "cd"], "n": 2, "seed": 7 }));
    assert_eq!(texts(&answer), ["ba", "ba", "dc", "dc"]);
    let indices: Vec<_> = answer["choices"].as_array().unwrap().iter().map(|c| c["index"].clone()).collect();
    assert_eq!(json!(indices), json!([0, 1, 2, 3]));
    // A prompt counts once, its answers each.
    assert_eq!(
        (&answer["usage"]["prompt_tokens"], &answer["usage"]["completion_tokens"]),
        (&json!(6), &json!(8))
    );
    assert_eq!(answer["ropewalk"].as_array().unwrap().len(), 4);
    let seeds: Vec<_> = site.fake.state().jobs.iter().map(|job| job.sampling.seed.unwrap()).collect();
    assert_eq!(seeds, [7, 8, 7, 8]);
}

#[test]
fn tokens_are_taken_as_they_are() {
    let site = Site::new();
    for prompt in [json!([97, 98]), json!([[97, 98]])] {
        assert_eq!(texts(&site.expect(200, "/v1/completions", &json!({ "prompt": prompt }))), ["ba"]);
    }
    site.expect(200, "/v1/completions", &json!({ "prompt": "ab", "add_special_tokens": false }));
    site.expect(200, "/v1/completions", &json!({ "prompt": "ab" }));
    let prompts: Vec<_> = site.fake.state().jobs.iter().map(|job| job.prompt.clone()).collect();
    assert_eq!(prompts, [vec![97, 98], vec![97, 98], vec![97, 98], vec![BOS, 97, 98]]);
}

#[test]
fn an_answer_ends_where_the_request_says() {
    let site = Site::new();
    let ends = |more: Value| {
        let mut body = json!({ "prompt": "0123456789abcdefghij" });
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let answer = site.expect(200, "/v1/completions", &body);
        let choice = &answer["choices"][0];
        let text = choice["text"].as_str().unwrap().to_owned();
        (text, choice["finish_reason"].as_str().unwrap().to_owned(), answer["ropewalk"]["stop"].clone())
    };
    let is = |text: &str, finish: &str, stop: &str| (text.to_owned(), finish.to_owned(), json!(stop));
    // OpenAI's default for completions is 16 tokens.
    assert_eq!(ends(json!({})), is("jihgfedcba987654", "length", "length"));
    assert_eq!(ends(json!({ "max_tokens": 3 })), is("jih", "length", "length"));
    assert_eq!(ends(json!({ "max_tokens": 0 })), is("", "length", "length"));
    assert_eq!(
        ends(json!({ "max_tokens": 0, "echo": true })),
        is("0123456789abcdefghij", "length", "length")
    );
    assert_eq!(ends(json!({ "stop": "fe" })), is("jihg", "stop", "stop"));
    assert_eq!(ends(json!({ "stop": ["zz", "ed"] })), is("jihgf", "stop", "stop"));
    assert_eq!(ends(json!({ "max_tokens": 40 })), is("jihgfedcba9876543210", "stop", "end"));
    let full = ends(json!({ "max_tokens": 43, "ignore_eos": true, "rope": "plain" }));
    assert_eq!((full.0.len(), full.1.as_str()), (42, "length"));
}

#[test]
fn a_chat_has_what_clients_read() {
    let site = Site::new();
    let messages = json!([
        { "role": "developer", "content": "be brief" },
        { "role": "assistant", "content": "yes" },
        { "role": "user", "content": [{ "type": "text", "text": "ab" }, { "type": "text", "text": "cd" }] },
    ]);
    let answer = site.expect(200, "/v1/chat/completions", &json!({ "messages": messages }));
    assert!(answer["id"].as_str().unwrap().starts_with("chatcmpl-"));
    assert_eq!(answer["object"], "chat.completion");
    let message = json!({ "role": "assistant", "content": "dc\nba", "refusal": null });
    let choice = json!({ "index": 0, "message": message, "logprobs": null, "finish_reason": "stop" });
    assert_eq!(answer["choices"], json!([choice]));
    let text = site.expect(200, "/apply-template", &json!({ "messages": messages }));
    let opened = "<|open|>user\nab\ncd<|close|><|open|>assistant\n";
    assert_eq!(
        text["prompt"],
        format!("<|open|>system\nbe brief<|close|><|open|>assistant\nyes<|close|>{opened}")
    );
    let state = site.fake.state();
    // The template's own end of a turn, and no limit.
    assert_eq!((&state.jobs[0].stop[..], state.jobs[0].max_tokens), (&["<|close|>".to_owned()][..], None));
}

#[test]
fn reasoning_is_a_part_of_its_own() {
    let site = Site::new();
    let mut body = json!({
        "messages": [{ "role": "user", "content": "abc" }], "chat_template_kwargs": { "enable_thinking": true }, "n": 2,
    });
    let answer = site.expect(200, "/v1/chat/completions", &body);
    for choice in answer["choices"].as_array().unwrap() {
        assert_eq!(
            (&choice["message"]["reasoning_content"], &choice["message"]["content"]),
            (&json!("abc"), &json!("cba"))
        );
    }
    // With the token that ends it.
    assert_eq!(answer["usage"]["completion_tokens_details"]["reasoning_tokens"], 8);
    body["reasoning_format"] = json!("none");
    let answer = site.expect(200, "/v1/chat/completions", &body);
    let message = json!({ "role": "assistant", "content": "abccba", "refusal": null });
    assert_eq!(answer["choices"][0]["message"], message);
}

#[test]
fn a_chats_logprobs_have_bytes() {
    let site = Site::new();
    let messages = json!([{ "role": "user", "content": "é" }]);
    let body =
        json!({ "messages": messages, "logprobs": true, "top_logprobs": 2, "max_completion_tokens": 1 });
    let answer = site.expect(200, "/v1/chat/completions", &body);
    let content = &answer["choices"][0]["logprobs"]["content"][0];
    // The second byte of the character alone.
    assert_eq!(content["bytes"], json!([0xa9]));
    assert_eq!(content["logprob"].to_string(), "-0.1");
    assert_eq!(content["top_logprobs"].as_array().unwrap().len(), 2);
    assert_eq!(content["top_logprobs"][0]["bytes"], content["bytes"]);
}

/// The request asks for log-probabilities, and the end of the text comes first.
#[test]
fn an_answer_without_tokens_has_lists_without_logprobs() {
    let site = Site::new();
    site.fake.set(|state| state.script = Some(String::new()));
    let body = json!({ "prompt": "a", "logprobs": 1 });
    let none = json!({ "tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": [] });
    let choice = json!({ "index": 0, "text": "", "logprobs": none, "finish_reason": "stop" });
    let whole = site.expect(200, "/v1/completions", &body);
    assert_eq!(whole["choices"], json!([choice]));
    let events = crate::streams::events(&site, "/v1/completions", body);
    assert_eq!(events.last().unwrap()["choices"], json!([choice]));
    let body = json!({ "messages": [{ "role": "user", "content": "a" }], "logprobs": true });
    let chat = site.expect(200, "/v1/chat/completions", &body);
    assert_eq!(chat["choices"][0]["logprobs"], json!({ "content": [], "refusal": null }));
}

#[test]
fn every_setting_of_a_request_reaches_the_model() {
    let site = Site::new();
    let body = json!({
        "prompt": "a", "temperature": 0.5, "top_p": 0.25, "top_k": -1, "min_p": 0.125, "typical_p": 0.75, "repeat_penalty": 1.5,
        "repeat_last_n": 32, "frequency_penalty": -1, "presence_penalty": 1.0, "dry_multiplier": 2, "dry_base": 1.25,
        "dry_allowed_length": 3, "dry_penalty_last_n": -1, "seed": -1, "min_tokens": 2, "logit_bias": { "97": -100, "257": 1.5 },
        "cache_prompt": false, "cache_salt": "x", "skip_special_tokens": false, "max_tokens": 5.0, "user": "me", "unknown": {},
        "stream": null, "best_of": 1, "tools": [], "response_format": { "type": "text" },
    });
    site.expect(200, "/v1/completions", &body);
    let state = site.fake.state();
    let job = &state.jobs[0];
    let sampling = Sampling {
        temperature: Some(0.5),
        top_p: Some(0.25),
        top_k: Some(0),
        min_p: Some(0.125),
        typical_p: Some(0.75),
        repeat_penalty: Some(1.5),
        repeat_last_n: Some(32),
        frequency_penalty: Some(-1.0),
        presence_penalty: Some(1.0),
        dry_multiplier: Some(2.0),
        dry_base: Some(1.25),
        dry_allowed_length: Some(3),
        dry_penalty_last_n: Some(-1),
        // A new one each time.
        seed: None,
        min_tokens: Some(2),
    };
    assert_eq!(job.sampling, sampling);
    assert_eq!(job.bias, [(97, -100.0), (EOS, 1.5)]);
    assert_eq!((job.reuse, job.special, job.max_tokens), (false, true, Some(5)));
    assert!(job.salt.ends_with(b"x"));
}

#[test]
fn a_plan_is_the_first_that_fits_or_the_one_that_is_named() {
    let site = Site::new();
    let long = "a".repeat(80);
    let plan = |body: Value| {
        let answer = site.post("/v1/completions", &body);
        assert_eq!(answer.status, 200, "{}", answer.text());
        let header = |name| answer.header(name).unwrap().to_owned();
        (
            header("x-ropewalk-rope"),
            header("x-ropewalk-beyond-trained"),
            answer.json()["ropewalk"]["spec"].clone(),
        )
    };
    let plain = ("plain".to_owned(), "false".to_owned(), json!("plain"));
    let yarn =
        |beyond: bool| ("yarn:factor=4".to_owned(), beyond.to_string(), json!("yarn:factor=4,beta=32"));
    assert_eq!(plan(json!({ "prompt": "a" })), plain);
    assert_eq!(plan(json!({ "prompt": "a", "rope": "auto", "model": "bytes@auto" })), plain);
    assert_eq!(plan(json!({ "prompt": long })), yarn(true));
    assert_eq!(plan(json!({ "prompt": "a", "rope": "yarn:factor=4" })), yarn(false));
    assert_eq!(plan(json!({ "prompt": "a", "model": "bytes@yarn:factor=4" })), yarn(false));
    assert_eq!(plan(json!({ "prompt": "a", "rope": "yarn:factor=4,beta=32", "model": "" })), yarn(false));
}

#[test]
fn models_are_the_model_and_its_plans() {
    let site = Site::new();
    let list = site.get("/v1/models").json();
    let data = list["data"].as_array().unwrap();
    let ids: Vec<_> = data.iter().map(|model| model["id"].as_str().unwrap()).collect();
    assert_eq!(ids, ["bytes", "bytes@plain", "bytes@yarn:factor=4", "bytes@streaming"]);
    assert_eq!((&data[1]["max_model_len"], &data[2]["max_model_len"]), (&json!(64), &json!(256)));
    assert!(data.iter().all(|model| model["object"] == "model" && model["owned_by"] == "ropewalk"));
    assert_eq!(site.get("/v1/models/bytes@yarn:factor=4").json(), data[2]);
    assert_eq!(site.get("/v1/models/bytes%40yarn%3Afactor%3D4").json(), data[2]);
    for name in ["other", "%ff"] {
        let answer = site.get(&format!("/v1/models/{name}"));
        assert_eq!((answer.status, &answer.json()["error"]["code"]), (404, &json!("model_not_found")));
    }
}

#[test]
fn props_have_the_names_of_llama_server() {
    let site = Site::new();
    let props = site.get("/props").json();
    let settings = &props["default_generation_settings"];
    assert_eq!((&settings["n_ctx"], &settings["params"]["top_k"]), (&json!(1 << 24), &json!(40)));
    // The shortest decimal, and null for what the model decides.
    assert_eq!(settings["params"]["temperature"].to_string(), "0.7");
    assert_eq!(settings["params"].get("min_p"), Some(&Value::Null));
    assert_eq!((&props["total_slots"], &props["model_path"]), (&json!(6), &json!("bytes.gguf")));
    assert_eq!((&props["chat_template"], &props["build_info"]), (&json!("{{ messages }}"), &json!("fake 1")));
    assert_eq!(props["ropewalk"][1]["rope"], "yarn:factor=4");
}

#[test]
fn a_plan_says_what_fits() {
    let site = Site::new();
    let plan = |query: &str| {
        let answer = site.get(&format!("/plan{query}"));
        assert_eq!(answer.status, 200, "{query}: {}", answer.text());
        answer.json()
    };
    let found = plan("?rope=plain&n=30");
    assert_eq!(
        (&found["rope"], &found["n_ctx"], &found["n_ctx_trained"]),
        (&json!("plain"), &json!(64), &json!(64))
    );
    assert_eq!(found["cells"], json!({ "used": 3, "total": 64 }));
    let branch = json!({ "pairs": "all keys", "shown": "as it is", "largest": 29 });
    let reach = json!([{ "layers": [0, 1], "largest_distance": 29, "most_keys": 30, "branches": [branch] }]);
    let request = json!({
        "n": 30, "fits": true, "beyond_trained": false, "bytes": 3000, "at_once": 2, "reach": reach,
    });
    assert_eq!(found["request"], request);
    assert_eq!(plan("?rope=plain&n=40")["request"]["at_once"], 1);
    let answers = ["?rope=plain", "?rope=streaming"].map(|query| plan(query)["default_max_tokens"].clone());
    assert_eq!(answers, [Value::Null, json!(50)]);
    let found = plan("?n=100&rope=plain")["request"].clone();
    assert_eq!(
        (&found["fits"], &found["beyond_trained"], &found["at_once"], &found["reach"]),
        (&json!(false), &json!(true), &Value::Null, &Value::Null)
    );
    // As a request that names none.
    for (query, rope) in [
        ("", "plain"),
        ("?n=64", "plain"),
        ("?n=65&rope=auto", "yarn:factor=4"),
        ("?n=257", "streaming"),
        ("?n=2000000000", "streaming"),
        ("?rope=yarn%3Afactor%3D4", "yarn:factor=4"),
        ("?rope=yarn:factor=4,beta=32&&n=1", "yarn:factor=4"),
        ("?model=bytes@streaming&n=1", "streaming"),
    ] {
        let found = plan(query);
        assert_eq!(
            (&found["rope"], found.get("request").is_some()),
            (&json!(rope), query.contains("n=")),
            "{query}"
        );
    }
    for (query, param) in [
        ("?n=0", json!("n")),
        ("?n=-1", json!("n")),
        ("?n=x", json!("n")),
        ("?n=4294967296", json!("n")),
        ("?n=1000", json!("n")),
        ("?rope=pi", json!("rope")),
        ("?rope=3", json!("rope")),
        ("?n=1&n=2", Value::Null),
        ("?rope=%f", Value::Null),
        ("?rope=%ff", Value::Null),
        ("?rope=%zz", Value::Null),
    ] {
        let answer = site.get(&format!("/plan{query}"));
        assert_eq!((answer.status, &answer.json()["error"]["param"]), (400, &param), "{query}");
    }
}

#[test]
fn tokens_and_texts_in_the_forms_of_two_servers() {
    let site = Site::new();
    let tokens = |body: Value| site.expect(200, "/tokenize", &body)["tokens"].clone();
    assert_eq!(tokens(json!({ "content": "a</s>" })), json!([97, 257]));
    assert_eq!(tokens(json!({ "content": "a", "add_special": true })), json!([256, 97]));
    assert_eq!(tokens(json!({ "content": "</s>", "parse_special": false })), json!([60, 47, 115, 62]));
    assert_eq!(tokens(json!({ "prompt": "a" })), json!([256, 97]));
    let pieces =
        json!([{ "id": 195, "piece": [195] }, { "id": 169, "piece": [169] }, { "id": 97, "piece": "a" }]);
    assert_eq!(tokens(json!({ "content": "éa", "with_pieces": true })), pieces);
    let chat = json!({ "messages": [{ "role": "user", "content": "a" }] });
    let of_chat = site.expect(200, "/tokenize", &chat);
    assert_eq!((&of_chat["count"], &of_chat["max_model_len"]), (&json!(20), &json!(1 << 24)));
    assert_eq!(site.expect(200, "/v1/chat/completions/input_tokens", &chat)["input_tokens"], 20);
    let back = site.expect(200, "/detokenize", &json!({ "tokens": [195, 169, 257] }));
    assert_eq!((&back["content"], &back["prompt"]), (&json!("é</s>"), &json!("é</s>")));
}

#[test]
fn a_connection_takes_many_requests() {
    let site = Site::new();
    let mut client = site.client();
    for prompt in ["ab", "cd", "ef"] {
        let body = json!({ "prompt": prompt }).to_string();
        let answer = client.ask("POST", "/v1/completions", &[JSON], body.as_bytes());
        assert_eq!(texts(&answer.json()), [prompt.chars().rev().collect::<String>()]);
    }
    assert_eq!(client.ask("GET", "/health", &[], b"").json(), json!({ "status": "ok" }));
}

#[test]
fn metrics_count_what_was_asked_and_answered() {
    let site = Site::new();
    site.expect(200, "/v1/completions", &json!({ "prompt": "abc" }));
    site.expect(200, "/v1/completions", &json!({ "prompt": "a".repeat(80), "max_tokens": 1 }));
    site.expect(400, "/v1/completions", &json!({}));
    site.get("/nowhere");
    site.fake.wait(|state| state.running == 0);
    let answer = site.get("/metrics");
    assert_eq!(answer.header("content-type"), Some("text/plain; version=0.0.4; charset=utf-8"));
    let text = answer.text();
    for line in [
        "ropewalk_requests_total{endpoint=\"/v1/completions\",status=\"200\"} 2",
        "ropewalk_requests_total{endpoint=\"/v1/completions\",status=\"400\"} 1",
        "ropewalk_requests_total{endpoint=\"other\",status=\"404\"} 1",
        "ropewalk_finished_total{finish=\"end\"} 1",
        "ropewalk_finished_total{finish=\"length\"} 1",
        "ropewalk_running 0",
        "ropewalk_prompt_tokens_total 85",
        "ropewalk_generated_tokens_total 4",
        "ropewalk_cells{plan=\"plain\",state=\"used\"} 3",
        "ropewalk_cells{plan=\"plain\",state=\"free\"} 61",
        "ropewalk_beyond_trained_total{plan=\"yarn:factor=4\"} 1",
        "ropewalk_time_to_first_token_seconds_count 2",
        "ropewalk_queue_seconds_bucket{le=\"0.005\"} 2",
        "ropewalk_queue_seconds_bucket{le=\"+Inf\"} 2",
        "# TYPE ropewalk_queue_seconds histogram",
    ] {
        assert!(text.lines().any(|l| l == line), "no {line} in\n{text}");
    }
}
