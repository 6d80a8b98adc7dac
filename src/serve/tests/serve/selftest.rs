//! Self-tests: what they ask, what they find, and that they give way.

use serde_json::{json, Value};

use crate::client::{Client, Site, JSON};

const PATH: &str = "/selftest";

/// Asks while no job may make a token, and waits until the test's job runs.
fn held(site: &Site) -> Client {
    site.fake.set(|state| state.allowed = Some(0));
    let mut client = site.client();
    client.send("POST", PATH, &[JSON], br#"{"rope": "plain", "samples": 1}"#);
    site.fake.wait(|state| state.running == 1);
    client
}

#[test]
fn numbers_are_looked_for_at_the_lengths_that_plans_promise() {
    let site = Site::new();
    assert_eq!(site.get("/props").json()["selftest"], json!([]));
    let answer = site.expect(200, PATH, &json!({ "samples": 2 }));
    let results = answer["results"].as_array().unwrap();
    let found = |name: &str| results.iter().map(|result| result[name].clone()).collect::<Vec<Value>>();
    assert_eq!(found("rope"), ["plain", "yarn:factor=4", "streaming"]);
    // Without an end, the length that answers have by default.
    assert_eq!(found("n"), [64, 256, 50]);
    assert_eq!((found("found"), found("samples")), (vec![json!(2); 3], vec![json!(2); 3]));
    assert!(results.iter().all(|result| result["measured"].as_u64().is_some_and(|at| at > 1_700_000_000)));
    assert_eq!(site.get("/props").json()["selftest"], answer["results"]);
    // Nothing is left of it in the cache.
    site.fake.wait(|state| state.running == 0);
    let mut erased = site.fake.state().erased.clone();
    erased.sort_unstable();
    assert_eq!(erased, (0..6).collect::<Vec<usize>>());
    for (i, job) in site.fake.state().jobs.iter().enumerate() {
        assert_eq!((job.plan, job.sampling.temperature), (Some(i / 2), Some(0.0)));
        assert_eq!(job.prompt.len() + job.max_tokens.unwrap(), [64, 256, 50][i / 2]);
    }
    // Another answer is not the number. The last result under a plan stays.
    site.fake.set(|state| state.script = Some("1234".to_owned()));
    let body = json!({ "rope": "yarn:factor=4", "n": 100, "samples": 1 });
    let result = site.expect(200, PATH, &body)["results"][0].clone();
    assert_eq!((&result["n"], &result["found"], &result["samples"]), (&json!(100), &json!(0), &json!(1)));
    let kept = site.get("/props").json()["selftest"].clone();
    assert_eq!([&kept[0], &kept[1], &kept[2]], [&results[0], &result, &results[2]]);
}

#[test]
fn one_runs_at_a_time() {
    let site = Site::new();
    let mut client = held(&site);
    let error = site.expect(409, PATH, &json!({}))["error"].take();
    assert_eq!(error["code"], "selftest_running");
    site.fake.set(|state| state.allowed = None);
    assert_eq!(client.answer().unwrap().json()["results"][0]["found"], 1);
    site.expect(200, PATH, &json!({ "samples": 1 }));
}

#[test]
fn other_requests_go_first() {
    let site = Site::new();
    let mut client = held(&site);
    let mut other = site.client();
    other.send("POST", "/v1/completions", &[JSON], br#"{"prompt": "abc"}"#);
    site.fake.wait(|state| state.cancelled == 1 && state.running == 1);
    site.fake.set(|state| state.allowed = None);
    assert_eq!(other.answer().unwrap().status, 200);
    assert_eq!(client.answer().unwrap().json()["results"][0]["found"], 1);
    let state = site.fake.state();
    let [first, _, again] = &state.jobs[..] else { panic!("{} jobs", state.jobs.len()) };
    // It goes on from what was read, which no other request can have.
    assert_eq!((&first.prompt, &first.salt, again.reuse), (&again.prompt, &again.salt, true));
    assert!(!first.forget && !state.jobs[1].salt.starts_with(&first.salt));
}

#[test]
fn a_client_that_goes_ends_its_test() {
    let site = Site::new();
    drop(held(&site));
    site.fake.wait(|state| state.cancelled == 1 && state.running == 0);
    site.fake.set(|state| state.allowed = None);
    assert_eq!(site.get("/props").json()["selftest"], json!([]));
    // When the cache is empty, another one may run.
    while site.post(PATH, &json!({ "samples": 1 })).status == 409 {
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    assert_eq!(site.get("/props").json()["selftest"][0]["found"], 1);
}

#[test]
fn a_server_that_stops_ends_it() {
    let site = Site::new();
    let mut client = held(&site);
    site.fake.set(|state| state.stopping = true);
    let answer = client.answer().unwrap();
    assert_eq!((answer.status, &answer.json()["error"]["code"]), (503, &json!("stopping")));
}

#[test]
fn its_bounds_are_named() {
    let site = Site::new();
    for (status, body, param) in [
        (400, json!({ "rope": "plain", "n": 65 }), "n"),
        (400, json!({ "rope": "streaming", "n": 51 }), "n"),
        (400, json!({ "n": 257 }), "n"),
        (400, json!({ "n": 15 }), "n"),
        (400, json!({ "n": 0 }), "n"),
        (400, json!({ "samples": 0 }), "samples"),
        (400, json!({ "samples": 33 }), "samples"),
        (400, json!({ "rope": "pi" }), "rope"),
        (404, json!({ "model": "other" }), "model"),
    ] {
        assert_eq!(site.expect(status, PATH, &body)["error"]["param"], param, "{body}");
    }
    // Plans with room for that length, and no others.
    let results = site.expect(200, PATH, &json!({ "n": 60, "samples": 1 }))["results"].clone();
    assert_eq!(results.as_array().unwrap().len(), 2);
    assert_eq!((&results[0]["rope"], &results[1]["rope"]), (&json!("plain"), &json!("yarn:factor=4")));
}
