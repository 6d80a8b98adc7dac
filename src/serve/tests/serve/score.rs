//! Scores of a prompt's tokens.

use serde_json::json;

use crate::client::Site;
use crate::fake::{expected, logprob, BOS};

const PATH: &str = "/v1/score";

#[test]
fn scores_are_those_of_echo() {
    let site = Site::new();
    for prompt in [json!("abd!"), json!([97, 0, 98, 99]), json!([[97, 98]])] {
        let score = site.expect(200, PATH, &json!({ "prompt": prompt }));
        let body = json!({ "prompt": prompt, "echo": true, "logprobs": 0, "max_tokens": 0 });
        let echo = site.expect(200, "/v1/completions", &body)["choices"][0]["logprobs"].clone();
        assert_eq!(score["tokens"], echo["tokens"]);
        let nll: Vec<Option<f64>> = serde_json::from_value(score["scores"][0]["nll"].clone()).unwrap();
        let logprobs: Vec<Option<f64>> = serde_json::from_value(echo["token_logprobs"].clone()).unwrap();
        assert_eq!(nll, logprobs.iter().map(|x| x.map(|x| -x)).collect::<Vec<_>>());
        assert_eq!((nll[0], nll.len()), (None, score["token_ids"].as_array().unwrap().len()));
    }
}

#[test]
fn a_score_has_its_mean_and_its_plan() {
    let site = Site::new();
    let http = site.post(PATH, &json!({ "model": "bytes", "prompt": "ab" }));
    let answer = http.json();
    assert_eq!((http.status, http.header("x-ropewalk-rope")), (200, Some("plain")));
    assert!(answer["id"].as_str().unwrap().starts_with("score-"));
    assert_eq!((&answer["object"], &answer["model"]), (&json!("score"), &json!("bytes")));
    assert_eq!((&answer["token_ids"], &answer["tokens"]), (&json!([BOS, 97, 98]), &json!(["<s>", "a", "b"])));
    assert_eq!(answer.get("difference"), None);
    let [score] = &answer["scores"].as_array().unwrap()[..] else { panic!("{answer}") };
    assert_eq!((&score["rope"], &score["spec"]), (&json!("plain"), &json!("plain")));
    let each = [(BOS, 97), (97, 98)].map(|(before, token)| -logprob(before, token, expected(before)));
    let mean = score["mean"].as_f64().unwrap();
    assert!((mean - f64::from(each[0] + each[1]) / 2.0).abs() < 1e-5, "{mean} {each:?}");
    assert!((score["perplexity"].as_f64().unwrap() - mean.exp()).abs() < 1e-9);
    assert_eq!(
        (&answer["usage"]["prompt_tokens"], &answer["usage"]["completion_tokens"]),
        (&json!(3), &json!(0))
    );
    let state = site.fake.state();
    assert_eq!((state.jobs[0].max_tokens, state.jobs[0].echo), (Some(0), Some(0)));
}

#[test]
fn two_plans_are_compared_token_by_token() {
    let site = Site::new();
    let body = json!({ "prompt": "abcd", "rope": ["yarn:factor=4", "plain"], "cache_salt": "x" });
    let answer = site.expect(200, PATH, &body);
    let names: Vec<_> = answer["scores"].as_array().unwrap().iter().map(|score| &score["rope"]).collect();
    assert_eq!(names, ["yarn:factor=4", "plain"]);
    // The model of this test is the same under both.
    assert_eq!(answer["difference"], json!([null, 0.0, 0.0, 0.0, 0.0]));
    assert_eq!(answer["ropewalk"][0]["spec"], "yarn:factor=4,beta=32");
    // Each has read the prompt.
    assert_eq!(answer["usage"]["prompt_tokens"], 10);
    let state = site.fake.state();
    assert_eq!((state.jobs[0].plan, state.jobs[1].plan), (Some(1), Some(0)));
    assert!(state.jobs.iter().all(|job| job.reuse && job.salt.ends_with(b"x")));
}

#[test]
fn tokens_that_need_the_long_context_are_found() {
    let site = Site::new();
    // The model of this test expects the next letter, and sees no more than one: each cost is the same in a short context.
    let tokens: Vec<i32> = (0..70).map(|i| 97 + i % 5).collect();
    let bounds = json!({ "trunc_len": 20, "sliding_window": 10, "alpha": -1, "beta": -1 });
    let answer = site.expect(200, PATH, &json!({ "prompt": tokens, "longppl": bounds }));
    let (nll, found) = (&answer["scores"][0]["nll"], &answer["scores"][0]["longppl"]);
    let at: Vec<usize> = (30..70).filter(|i| i % 5 != 0).collect();
    assert_eq!((&found["at"], &found["key_tokens"]), (&json!(at), &json!(32)));
    let cost = found["nll"].as_f64().unwrap();
    assert!((cost - 0.1).abs() < 1e-9, "{cost}");
    assert_eq!(found["longppl"].as_f64(), Some(cost.exp()));
    let (nll, short) = (nll.as_array().unwrap(), found["short"].as_array().unwrap());
    assert!(short.len() == 70 && short[..30].iter().all(|cost| cost.is_null()), "{short:?}");
    assert_eq!(short[30..], nll[30..]);
    // The short contexts are read under the plan that the whole prompt gets, and take and leave nothing in the cache.
    {
        let state = site.fake.state();
        let jobs = state.jobs.iter().map(|job| (job.prompt.len(), job.plan, job.reuse, job.forget));
        let part = (30, Some(1), false, true);
        assert_eq!(jobs.collect::<Vec<_>>(), [(70, Some(1), true, false), part, part, part, part]);
        assert_eq!(state.jobs[2].prompt, tokens[20..50]);
    }
    assert_eq!(answer["usage"]["prompt_tokens"], 70 + 4 * 30);
    assert_eq!(answer["ropewalk"]["spec"], "yarn:factor=4,beta=32");

    let bounds = json!({ "trunc_len": 20, "sliding_window": 10 });
    let body = json!({ "prompt": tokens, "longppl": bounds, "rope": ["yarn:factor=4", "streaming"] });
    let both = site.expect(200, PATH, &body);
    for (i, rope) in ["yarn:factor=4", "streaming"].into_iter().enumerate() {
        let score = &both["scores"][i];
        assert_eq!((&score["rope"], &score["longppl"]["short"]), (&json!(rope), &found["short"]));
        assert_eq!((&score["longppl"]["longppl"], &score["longppl"]["at"]), (&json!(null), &json!([])));
    }
    assert_eq!(both["difference"].as_array().map(Vec::len), Some(70));
    assert_eq!(both["ropewalk"].as_array().map(Vec::len), Some(2));
}

#[test]
fn what_cannot_be_scored_is_named() {
    let site = Site::new();
    for (body, param) in [
        (json!({}), "prompt"),
        (json!({ "prompt": "" }), "prompt"),
        (json!({ "prompt": [1] }), "prompt"),
        (json!({ "prompt": ["a", "b"] }), "prompt"),
        (json!({ "prompt": [1, 262] }), "prompt"),
        (json!({ "prompt": "a", "rope": "pi" }), "rope"),
        (json!({ "prompt": "a", "rope": [] }), "rope"),
        (json!({ "prompt": "a", "rope": [1] }), "rope"),
        (json!({ "prompt": "a", "rope": ["plain", "plain", "plain"] }), "rope"),
        (json!({ "prompt": "a", "stream": true }), "stream"),
        (json!({ "prompt": "a", "cache_prompt": 1 }), "cache_prompt"),
        (json!({ "prompt": "a", "longppl": 1 }), "longppl"),
        (json!({ "prompt": "a", "longppl": true }), "longppl"),
        (json!({ "prompt": "a", "longppl": { "trunc_len": 0 } }), "longppl.trunc_len"),
        (json!({ "prompt": "a", "longppl": { "alpha": "x" } }), "longppl.alpha"),
        (json!({ "prompt": "a", "longppl": { "length": 1 } }), "longppl.length"),
        // More short contexts than a request may have.
        (json!({ "prompt": "a".repeat(200), "longppl": { "trunc_len": 1, "sliding_window": 1 } }), "longppl"),
    ] {
        assert_eq!(site.expect(400, PATH, &body)["error"]["param"], param, "{body}");
    }
    let body = json!({ "prompt": "a".repeat(65), "rope": ["yarn:factor=4", "plain"] });
    let error = site.expect(400, PATH, &body)["error"].clone();
    assert_eq!((&error["code"], &error["rope"]), (&json!("context_length_exceeded"), &json!("plain")));
}
