//! Responses, scores, plans, maps, and slots: what other servers and other fields than OpenAI's chats have.

use std::path::Path;

use gguf::Value as Key;
use ropewalk::math::Math;
use ropewalk::plot::Map;
use ropewalk::{Model, ModelParams, Plan, Session, SessionParams};
use serde_json::{json, Value};

use super::{asked, Reply, Server, FIXED};
use crate::common::program::run;
use crate::common::{assert_close, rewritten, LOGITS};
use crate::models::{model, ok, text_file, words};

/// The events of a response's stream, each with its name.
fn typed(reply: &Reply) -> Vec<Value> {
    let event = |event: &str| {
        let (name, data) = event.split_once("\ndata: ").unwrap_or_else(|| panic!("{event:?}"));
        let data: Value = serde_json::from_str(data).unwrap();
        assert_eq!(name, format!("event: {}", data["type"].as_str().unwrap()));
        data
    };
    reply.body.split("\n\n").filter(|event| !event.is_empty() && !event.starts_with(':')).map(event).collect()
}

#[test]
fn responses_are_those_of_chats() {
    let server = Server::new(&[]);
    let messages =
        json!([{ "role": "system", "content": "be brief" }, { "role": "user", "content": "hello there" }]);
    let body = json!({ "messages": messages, "max_tokens": 8, "temperature": 0, "ignore_eos": true });
    let chat = server.post("/v1/chat/completions", &body).ok();
    let mut body = json!({
        "instructions": "be brief", "input": "hello there", "max_output_tokens": 8, "temperature": 0, "ignore_eos": true,
    });
    let whole = server.post("/v1/responses", &body).ok();
    let text = &whole["output"][0]["content"][0]["text"];
    assert_eq!(*text, chat["choices"][0]["message"]["content"]);
    assert_eq!(
        (&whole["status"], &whole["incomplete_details"]["reason"]),
        (&json!("incomplete"), &json!("max_output_tokens"))
    );
    assert_eq!(
        (&whole["usage"]["input_tokens"], &whole["usage"]["output_tokens"]),
        (&chat["usage"]["prompt_tokens"], &json!(8))
    );
    // All but the last token, which the model has to see again.
    let cached = whole["usage"]["input_tokens_details"]["cached_tokens"].as_u64().unwrap();
    assert_eq!(cached + 1, whole["usage"]["input_tokens"].as_u64().unwrap());
    let n = server.post("/v1/responses/input_tokens", &body).ok();
    assert_eq!(n["input_tokens"], whole["usage"]["input_tokens"]);
    body["stream"] = true.into();
    let events = typed(&server.post("/v1/responses", &body));
    let deltas = events.iter().filter(|event| event["type"] == "response.output_text.delta");
    let texts: String = deltas.map(|event| event["delta"].as_str().unwrap()).collect();
    assert_eq!(texts, text.as_str().unwrap());
    let last = events.last().unwrap();
    assert_eq!(last["type"], "response.incomplete");
    assert_eq!(last["response"]["output"][0]["content"], whole["output"][0]["content"]);
}

#[test]
fn scores_of_two_methods_are_those_of_echo() {
    let server = Server::new(&["--kv", "f32", "--rope", "plain", "--rope", "yarn:factor=4", "--ctx", "2048"]);
    let tokens = server.tokens(&json!({ "prompt": words(40), "add_special_tokens": false }));
    let body = json!({ "prompt": tokens, "rope": ["plain", "yarn:factor=4"] });
    let score = server.post("/v1/score", &body).ok();
    let list = |value: &Value| -> Vec<f32> {
        let list = value.as_array().unwrap();
        assert_eq!((list.len(), &list[0]), (tokens.len(), &Value::Null));
        list[1..].iter().map(|value| value.as_f64().unwrap() as f32).collect()
    };
    let mut both = Vec::new();
    for (i, rope) in ["plain", "yarn:factor=4"].into_iter().enumerate() {
        let found = &score["scores"][i];
        assert_eq!(found["rope"], rope);
        let body = json!({
            "prompt": tokens, "max_tokens": 0, "logprobs": 0, "echo": true, "rope": rope, "cache_prompt": false,
        });
        let echo = server.post("/v1/completions", &body).ok();
        let expected = list(&echo["choices"][0]["logprobs"]["token_logprobs"]);
        let nll = list(&found["nll"]);
        let expected: Vec<f32> = expected.iter().map(|x| -x).collect();
        assert_close(&nll, &expected, LOGITS, rope);
        let mean = nll.iter().map(|x| f64::from(*x)).sum::<f64>() / nll.len() as f64;
        assert!((found["mean"].as_f64().unwrap() - mean).abs() < 1e-5, "{mean} {found}");
        both.push(nll);
    }
    // The methods differ, and this is by how much.
    let difference = list(&score["difference"]);
    assert!(difference.iter().any(|x| *x != 0.0), "{difference:?}");
    for ((found, a), b) in difference.iter().zip(&both[0]).zip(&both[1]) {
        assert!((found - (b - a)).abs() < 1e-4, "{found} {a} {b}");
    }
}

#[test]
fn longppl_is_that_of_perplexity() {
    let dir = tempfile::tempdir().unwrap();
    let path = text_file(dir.path(), "a.txt", 300);
    // Bounds that every token passes, so that no rounding decides.
    let line = [
        ["perplexity", "-m", model(), "-f", path.as_str(), "--ctx", "256", "--bos", "off"],
        ["--device", "cpu", "-t", "1", "--math", "f32", "--kv", "f32", "--json"],
    ];
    let bounds = "--longppl=trunc-len=100,sliding-window=40,alpha=-100,beta=-100";
    let measured = ok(run(&[&line.concat()[..], &["-q", bounds]].concat())).json();
    let expected = &measured["results"][0]["longppl"];
    let server = Server::new(&["--kv", "f32", "--rope", "plain", "--ctx", "512"]);
    let mut tokens = server.tokens(&json!({ "content": words(300), "add_special": false }));
    tokens.truncate(256);
    let bounds = json!({ "trunc_len": 100, "sliding_window": 40, "alpha": -100, "beta": -100 });
    let mut body = json!({ "prompt": tokens, "longppl": bounds });
    let found = server.post("/v1/score", &body).ok()["scores"][0]["longppl"].clone();
    assert_eq!((&found["key_tokens"], &expected["key_tokens"]), (&json!(116), &json!(116)));
    let (a, b) = (found["longppl"].as_f64().unwrap(), expected["longppl"].as_f64().unwrap());
    assert!((a / b - 1.0).abs() < 1e-4, "{a} {b}");
    // Half of them, about, cost more in a short context.
    body["longppl"]["alpha"] = json!(0);
    let score = server.post("/v1/score", &body).ok()["scores"][0].clone();
    let cost = |list: &Value, i: usize| list[i].as_f64().unwrap();
    let more = |i: &usize| cost(&score["longppl"]["short"], *i) > cost(&score["nll"], *i);
    let at: Vec<usize> = (140..256).filter(more).collect();
    assert!(!at.is_empty() && at.len() < 116, "{score}");
    assert_eq!(score["longppl"]["at"], json!(at));
}

#[test]
fn plans_and_properties_are_those_of_the_program() {
    let server =
        Server::new(&["--rope", "plain", "--rope", "yarn:factor=4", "--ctx", "2048", "--parallel", "3"]);
    let props = server.get("/props", None).ok();
    assert_eq!((&props["total_slots"], &props["model_alias"]), (&json!(6), &json!("tiny")));
    let path = props["model_path"].as_str().unwrap();
    assert_eq!(Path::new(model()).file_name().unwrap().to_str().unwrap(), path);
    assert_eq!(props["default_generation_settings"]["n_ctx"], 2048);
    assert_eq!(props["default_generation_settings"]["params"]["temperature"], 1.0);
    let loaded = Model::load(model(), &ModelParams::cpu()).unwrap();
    let mut before = 0;
    for n in [1024, 2048] {
        let found = server.get(&format!("/plan?rope=yarn:factor=4&n={n}"), None).ok();
        let params =
            SessionParams::new(n).n_threads(1).math(Math::F32).rope(Some("yarn:factor=4".parse().unwrap()));
        let bytes = Session::bytes_needed(&loaded, &params).unwrap() - loaded.n_bytes();
        let request = &found["request"];
        assert_eq!(
            (&request["bytes"], &request["fits"], &request["beyond_trained"]),
            (&json!(bytes), &json!(true), &json!(true))
        );
        assert!(bytes > before, "{bytes} {before}");
        before = bytes;
    }
    let found = server.get("/plan?rope=plain&n=513", None).ok();
    assert_eq!((&found["n_ctx"], &found["request"]["fits"]), (&json!(512), &json!(false)));
}

#[test]
fn a_self_test_asks_the_prompts_of_eval_and_leaves_nothing() {
    let server = Server::new(&["--rope", "plain", "--rope", "yarn:factor=4", "--ctx", "1024"]);
    let results = server.post("/selftest", &json!({})).ok()["results"].clone();
    for (i, (spec, n)) in [("plain", "512"), ("yarn:factor=4", "1024")].into_iter().enumerate() {
        let line =
            ["eval", "passkey", "-m", model(), "--lengths", n, "--samples", "8", "--rope", spec, "--json"];
        let eval = run(&[&line[..], FIXED].concat()).json();
        let found = results[i]["found"].as_f64().unwrap() / 8.0;
        assert_eq!(eval["results"][0]["score"].as_f64(), Some(found), "{eval}");
        assert_eq!((&results[i]["rope"], results[i]["n"].to_string()), (&json!(spec), n.to_owned()));
        let cells = server.get(&format!("/plan?rope={spec}"), None).ok()["cells"].clone();
        assert_eq!(cells["used"], 0, "{cells}");
    }
    assert_eq!(server.get("/props", None).ok()["selftest"], results);
    let refused = server.post("/selftest", &json!({ "n": 16 }));
    assert_eq!((refused.status, &refused.json()["error"]["param"]), (400, &json!("n")));
}

#[test]
fn what_was_read_can_be_erased() {
    let server = Server::new(&[]);
    assert_eq!(server.get("/slots", None).ok(), json!([]));
    server.post("/v1/completions", &asked(4)).ok();
    let list = server.get("/slots", None);
    assert!(!list.body.contains("hello") && !list.body.contains("world"), "{}", list.body);
    let list = list.ok();
    let [slot] = &list.as_array().unwrap()[..] else { panic!("{list}") };
    // The last token that was made is not read.
    assert_eq!((&slot["n_past"], &slot["is_processing"]), (&json!(11 + 3), &json!(false)));
    let cached = |server: &Server| {
        let whole = server.post("/v1/completions", &asked(4)).ok();
        whole["usage"]["prompt_tokens_details"]["cached_tokens"].clone()
    };
    assert_eq!(cached(&server), 10);
    let list = server.get("/slots", None).ok();
    for slot in list.as_array().unwrap() {
        let path = format!("/slots/{}?action=erase", slot["id"]);
        assert_eq!(server.post(&path, &json!({})).ok()["n_erased"], slot["n_past"]);
        assert_eq!(server.post(&path, &json!({})).status, 400);
    }
    assert_eq!(server.get("/slots", None).ok(), json!([]));
    assert_eq!(cached(&server), 0);
}

#[test]
fn the_page_has_the_map_that_rope_draws() {
    let server = Server::new(&["--rope", "plain", "--rope", "lm-infinite", "--ctx", "2048"]);
    let page = server.get("/", None);
    assert!(page.status == 200 && page.body.starts_with("<!DOCTYPE html>"), "{}", page.head);
    let loaded = Model::load(model(), &ModelParams::cpu()).unwrap();
    let mut plan = Plan::new(&"lm-infinite".parse().unwrap(), loaded.hparams(), 2048).unwrap();
    // The plan of the server, shown as far as a request goes.
    plan.n_ctx = 700;
    let drawn = Map::new(&[&plan], loaded.hparams()).unwrap().to_svg().unwrap();
    for n in [700, 600] {
        let map = server.get(&format!("/map?rope=lm-infinite&n={n}"), None);
        assert_eq!((map.status, map.header("content-type")), (200, Some("image/svg+xml")), "{}", map.body);
        assert_eq!(map.body == drawn, n == 700, "{}", map.body);
    }
    // In numbers.
    let found = server.get("/plan?rope=lm-infinite&n=700", None).ok()["request"]["reach"].clone();
    let inspection = plan.inspect(loaded.hparams()).unwrap();
    let view = &inspection.kinds[0].reach;
    assert_eq!(found.as_array().map(Vec::len), Some(inspection.kinds.len()));
    assert_eq!(found[0]["branches"], json!(view.branches));
    assert_eq!(found[0]["largest_distance"], json!(view.largest_distance));
    assert!(view.branches.len() > 1 && view.largest_distance < Some(699), "{view:?}");
    assert_eq!(found[0]["layers"], json!(inspection.kinds[0].layers));
    let map = server.get("/map?rope=plain&n=100", None);
    let error = &map.json()["error"];
    assert_eq!((map.status, &error["param"]), (400, &json!("rope")));
    assert!(error["message"].as_str().unwrap().contains("at their own distances"), "{error}");
}

#[test]
fn scores_of_prompts_can_be_refused() {
    let server = Server::new(&["--no-scores"]);
    let refused = server.post("/v1/score", &json!({ "prompt": "hello" }));
    assert_eq!(refused.status, 400, "{}", refused.body);
    let mut body = asked(2);
    body["logprobs"] = 1.into();
    let made = server.post("/v1/completions", &body).ok()["choices"][0]["logprobs"]["tokens"].clone();
    assert_eq!(made.as_array().map(Vec::len), Some(2), "{made}");
}

/// A server runs for days.
#[test]
fn the_time_in_a_prompt_is_that_of_the_request() {
    let dir = tempfile::tempdir().unwrap();
    rewritten(Path::new(model()), &dir.path().join("dated.gguf"), &[], |writer| {
        let template = b"{{ strftime_now('%H:%M:%S.%f') }}";
        writer.set("tokenizer.chat_template", Key::String(template.to_vec()));
    });
    let server = Server::start(dir.path(), &["serve", "-m", "dated.gguf"]);
    let body = json!({ "messages": [{ "role": "user", "content": "hello" }] });
    let times = [0, 1].map(|_| server.post("/apply-template", &body).ok()["prompt"].clone());
    assert!(times[0].as_str().is_some_and(|time| time.contains('.')), "{times:?}");
    assert_ne!(times[0], times[1]);
}

/// Also those that run outside of graphs.
#[test]
fn threads_are_as_many_as_asked() {
    let server = Server::new(&[]);
    let tasks = std::fs::read_dir(format!("/proc/{}/task", server.child.id())).unwrap();
    let names = tasks.filter_map(|t| std::fs::read_to_string(t.unwrap().path().join("comm")).ok());
    assert_eq!(names.filter(|name| name.starts_with("rayon")).count(), 1);
}

/// The vocabulary splits texts by std::regex, which needs stack for each character of a run without a break.
#[test]
fn no_text_overflows_the_stack() {
    let dir = tempfile::tempdir().unwrap();
    rewritten(Path::new(model()), &dir.path().join("tekken.gguf"), &[], |writer| {
        writer.set("tokenizer.ggml.pre", Key::String(b"tekken".to_vec()));
    });
    let server = Server::start(dir.path(), &["serve", "-m", "tekken.gguf"]);
    let tokenized = |n: usize| server.post("/tokenize", &json!({ "content": "a".repeat(n) }));
    assert!(!tokenized(1 << 20).ok()["tokens"].as_array().unwrap().is_empty());
    // Up to what a body may have.
    for n in [(1 << 20) + 1, (16 << 20) - 100] {
        let reply = tokenized(n);
        assert_eq!(reply.status, 400, "{}", reply.head);
        assert!(reply.body.contains("expected at most 1048576 characters without a break"), "{}", reply.body);
    }
}
