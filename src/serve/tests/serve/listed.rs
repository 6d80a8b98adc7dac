//! Tokens by number, and scores of prompts by number: vLLM's fields.

use serde_json::{json, Value};

use crate::client::Site;
use crate::fake::BOS;

const PATH: &str = "/v1/completions";
const CHAT: &str = "/v1/chat/completions";

/// The objects of a stream.
fn stream(site: &Site, path: &str, body: &Value) -> Vec<Value> {
    let mut body = body.clone();
    body["stream"] = json!(true);
    let text = site.post(path, &body).text();
    let data = text.split("\n\n").filter_map(|event| event.strip_prefix("data: "));
    data.filter(|data| *data != "[DONE]").map(|data| serde_json::from_str(data).unwrap()).collect()
}

#[test]
fn tokens_are_listed_if_asked_for() {
    let site = Site::new();
    let body = json!({ "prompt": ["ab", "cd"], "return_token_ids": true });
    let answer = site.expect(200, PATH, &body);
    for (i, prompt, made) in [(0, [BOS, 97, 98], [98, 97]), (1, [BOS, 99, 100], [100, 99])] {
        let choice = &answer["choices"][i];
        assert_eq!((&choice["prompt_token_ids"], &choice["token_ids"]), (&json!(prompt), &json!(made)));
    }
    let events = stream(&site, PATH, &body);
    for (i, prompt, made) in [(0, [BOS, 97, 98], [98, 97]), (1, [BOS, 99, 100], [100, 99])] {
        let of = events.iter().map(|event| &event["choices"][0]).filter(|choice| choice["index"] == i);
        let choices: Vec<_> = of.collect();
        assert_eq!(choices[0]["prompt_token_ids"], json!(prompt));
        assert!(choices[1..].iter().all(|choice| choice.get("prompt_token_ids").is_none()));
        let lists = choices.iter().filter_map(|choice| choice["token_ids"].as_array());
        assert_eq!(lists.flatten().cloned().collect::<Vec<_>>(), made);
    }
    let body = json!({ "prompt": "ab" });
    let choice = site.expect(200, PATH, &body)["choices"][0].clone();
    assert!(choice.get("token_ids").is_none() && choice.get("prompt_token_ids").is_none());
}

#[test]
fn a_chat_lists_its_prompt_once() {
    let site = Site::new();
    let messages = json!([{ "role": "user", "content": "ab" }]);
    let prompt = site.expect(200, "/tokenize", &json!({ "messages": messages }))["tokens"].clone();
    let body = json!({ "messages": messages, "return_token_ids": true, "n": 2 });
    let answer = site.expect(200, CHAT, &body);
    assert_eq!(answer["prompt_token_ids"], prompt);
    for choice in answer["choices"].as_array().unwrap() {
        assert_eq!((&choice["token_ids"], choice.get("prompt_token_ids")), (&json!([98, 97]), None));
    }
    let body = json!({ "messages": messages, "return_token_ids": true });
    let events = stream(&site, CHAT, &body);
    assert_eq!(events[0]["prompt_token_ids"], prompt);
    assert!(events[1..].iter().all(|event| event.get("prompt_token_ids").is_none()));
    let lists = events.iter().filter_map(|event| event["choices"][0]["token_ids"].as_array());
    assert_eq!(lists.flatten().cloned().collect::<Vec<_>>(), [98, 97]);
}

#[test]
fn a_prompts_scores_are_apart_from_the_answers() {
    let site = Site::new();
    let mut body = json!({ "prompt": [97, 98, 33], "prompt_logprobs": 2, "logprobs": 0, "max_tokens": 1 });
    let choice = site.expect(200, PATH, &body)["choices"][0].clone();
    assert_eq!(choice["logprobs"]["tokens"], json!(["!"]));
    let [none, second, third] = &choice["prompt_logprobs"].as_array().unwrap()[..] else {
        panic!("{choice}")
    };
    assert!(none.is_null());
    // The best, and one more.
    let best = |token: &str| json!({ "logprob": -0.1, "rank": 1, "decoded_token": token });
    assert_eq!((&second["98"], second.as_object().unwrap().len()), (&best("b"), 2));
    // The token itself where it is not among them: its rank is not known.
    assert_eq!((&third["99"], third.as_object().unwrap().len()), (&best("c"), 3));
    assert_eq!((&third["33"]["rank"], &third["33"]["decoded_token"]), (&Value::Null, &json!("!")));
    assert!(third["33"]["logprob"].as_f64().unwrap() < -1.0);
    assert_eq!(site.fake.state().jobs[0].echo, Some(2));
    body["echo"] = json!(true);
    assert_eq!(site.expect(400, PATH, &body)["error"]["param"], "prompt_logprobs");
    let mut chat = json!({ "messages": [{ "role": "user", "content": "a" }], "prompt_logprobs": 0 });
    let answer = site.expect(200, CHAT, &chat);
    let n = answer["usage"]["prompt_tokens"].as_u64().unwrap() as usize;
    assert_eq!(
        (answer["prompt_logprobs"].as_array().unwrap().len(), &answer["choices"][0]["logprobs"]),
        (n, &Value::Null)
    );
    chat["stream"] = json!(true);
    for body in [
        &chat,
        &json!({ "prompt": "a", "prompt_logprobs": -1 }),
        &json!({ "prompt": "a", "prompt_logprobs": 21 }),
    ] {
        let path = if body.get("prompt").is_some() { PATH } else { CHAT };
        assert_eq!(site.expect(400, path, body)["error"]["param"], "prompt_logprobs", "{body}");
    }
}
