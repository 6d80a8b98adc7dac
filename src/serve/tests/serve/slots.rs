//! The contents of the caches, shown to the keys whose requests left them.

use std::time::Duration;

use ropewalk_serve::Options;
use serde_json::{json, Value};

use crate::client::{Answer, Client, Site, JSON};
use crate::fake::Fake;

const PATH: &str = "/v1/completions";

fn ask(site: &Site, method: &str, path: &str, key: &str, body: &Value) -> Answer {
    let key = format!("Bearer {key}");
    site.client().ask(method, path, &[JSON, ("authorization", &key)], body.to_string().as_bytes())
}

fn ids(answer: &Answer) -> Vec<u64> {
    answer.json().as_array().unwrap().iter().map(|slot| slot["id"].as_u64().unwrap()).collect()
}

#[test]
fn slots_have_numbers_and_no_text() {
    let site = Site::new();
    assert_eq!(site.get("/slots").json(), json!([]));
    site.expect(200, PATH, &json!({ "prompt": "secret", "rope": "yarn:factor=4" }));
    site.fake.wait(|state| state.running == 0);
    site.fake.set(|state| state.allowed = Some(0));
    let mut client = site.client();
    client.send("POST", PATH, &[JSON], json!({ "prompt": "secret too" }).to_string().as_bytes());
    site.fake.wait(|state| state.running == 1);
    let answer = site.get("/slots");
    let expected = json!([
        {
            "id": 0, "id_task": -1, "is_processing": false, "n_ctx": 256, "n_past": 9, "n_prompt_tokens": 7,
            "n_prompt_tokens_cache": 1, "next_token": [{ "n_decoded": 3 }], "ropewalk": { "rope": "yarn:factor=4" },
        },
        {
            "id": 1, "id_task": 7, "is_processing": true, "n_ctx": 64, "n_past": 13, "n_prompt_tokens": 11,
            "n_prompt_tokens_cache": 1, "next_token": [{ "n_decoded": 3 }], "ropewalk": { "rope": "plain" },
        },
    ]);
    assert_eq!(answer.json(), expected);
    assert!(!answer.text().contains("secret"));
}

#[test]
fn a_key_sees_and_erases_its_own() {
    let keys = vec!["first".to_owned(), "second".to_owned()];
    let site = Site::with(Options::default().keys(keys), Duration::ZERO);
    for key in ["first", "second", "first"] {
        let body = json!({ "prompt": "a", "cache_salt": "x" });
        assert_eq!(ask(&site, "POST", PATH, key, &body).status, 200);
    }
    site.fake.wait(|state| state.running == 0);
    assert_eq!(ids(&ask(&site, "GET", "/slots", "first", &json!({}))), [0, 2]);
    assert_eq!(ids(&ask(&site, "GET", "/slots", "second", &json!({}))), [1]);
    let erase =
        |key: &str, id: &str| ask(&site, "POST", &format!("/slots/{id}?action=erase"), key, &json!({}));
    assert_eq!(erase("first", "2").json(), json!({ "id_slot": 2, "n_erased": 4 }));
    for (key, id) in
        [("first", "2"), ("first", "1"), ("second", "0"), ("first", "9"), ("first", "-1"), ("first", "x")]
    {
        let answer = erase(key, id);
        assert_eq!((answer.status, &answer.json()["error"]["param"]), (400, &json!("id")), "{key} {id}");
    }
    assert_eq!(erase("third", "0").status, 401);
    assert_eq!(ids(&ask(&site, "GET", "/slots", "first", &json!({}))), [0]);
}

#[test]
fn other_actions_are_named() {
    let site = Site::new();
    let body = json!({ "filename": "a.bin" });
    for action in ["save", "restore"] {
        let answer = site.post(&format!("/slots/0?action={action}"), &body);
        let error = &answer.json()["error"];
        assert_eq!((answer.status, &error["type"]), (501, &json!("not_supported_error")));
        assert_eq!(
            error["message"],
            format!("action: {action} is not served: this server keeps nothing on disk")
        );
        // It is not worth another try.
        assert_eq!(answer.header("x-should-retry"), Some("false"));
    }
    for path in ["/slots/0", "/slots/0?action=move", "/slots/0?action=", "/slots/0?action=3"] {
        assert_eq!(site.expect(400, path, &json!({}))["error"]["param"], "action", "{path}");
    }
    // Bytes that are no text.
    assert_eq!(site.expect(400, "/slots/%ff?action=erase", &json!({}))["error"]["param"], "id");
    assert_eq!(site.get("/slots/0").status, 405);
}

#[test]
fn a_text_is_saved_and_restored_by_its_name() {
    let site = Site::of(Fake::saving(), Options::default(), Duration::ZERO);
    for salt in ["", "x"] {
        site.expect(200, PATH, &json!({ "prompt": "a", "cache_salt": salt }));
    }
    site.fake.wait(|state| state.running == 0);
    let ask = |action: &str, status: u16, body: Value| {
        site.expect(status, &format!("/slots/1?action={action}"), &body)
    };
    let body = json!({ "filename": "chat.bin", "cache_salt": "x" });
    let mut saved = ask("save", 200, body.clone());
    assert!(saved["timings"]["save_ms"].as_f64().is_some_and(|ms| ms >= 0.0), "{saved}");
    saved["timings"].take();
    let expected =
        json!({ "id_slot": 1, "filename": "chat.bin", "n_saved": 4, "n_written": 1000, "timings": null });
    assert_eq!(saved, expected);
    let mut restored = ask("restore", 200, body);
    assert!(restored["timings"]["restore_ms"].as_f64().is_some_and(|ms| ms >= 0.0), "{restored}");
    restored["timings"].take();
    let expected =
        json!({ "id_slot": 2, "filename": "chat.bin", "n_restored": 1, "n_read": 1000, "timings": null });
    assert_eq!(restored, expected);
    // It belongs to its salt.
    assert_eq!(ask("restore", 400, json!({ "filename": "chat.bin" }))["error"]["param"], "filename");
    for action in ["save", "restore"] {
        for body in
            [json!({}), json!({ "filename": 1 }), json!({ "filename": null }), json!({ "filename": ["a"] })]
        {
            assert_eq!(ask(action, 400, body)["error"]["param"], "filename");
        }
        let answer = site.post(&format!("/slots/x?action={action}"), &json!({ "filename": "a" }));
        assert_eq!((answer.status, &answer.json()["error"]["param"]), (400, &json!("id")));
    }
    let answer = site.client().ask("POST", "/slots/1?action=save", &[JSON], b"[");
    assert_eq!(answer.status, 400);
}

#[test]
fn saves_leave_threads_to_other_requests() {
    let site = Site::of(Fake::saving(), Options::default(), Duration::ZERO);
    site.expect(200, PATH, &json!({ "prompt": "a" }));
    site.fake.wait(|state| state.running == 0);
    site.fake.set(|state| state.saves_wait = true);
    let save = |i: usize| {
        let mut client = site.client();
        let body = json!({ "filename": format!("{i}") }).to_string();
        client.send("POST", "/slots/0?action=save", &[JSON], body.as_bytes());
        client
    };
    // More than there are threads.
    let clients: Vec<Client> = (0..16).map(save).collect();
    assert_eq!(site.get("/health").status, 200);
    site.expect(200, "/tokenize", &json!({ "content": "a" }));
    site.fake.set(|state| state.saves_wait = false);
    for mut client in clients {
        assert_eq!(client.answer().unwrap().status, 200);
    }
}

/// The disk may hold it up for long.
#[test]
fn a_save_is_cut_off_when_the_server_ends() {
    let mut site = Site::of(Fake::saving(), Options::default(), Duration::ZERO);
    site.expect(200, PATH, &json!({ "prompt": "a" }));
    site.fake.wait(|state| state.running == 0);
    site.fake.set(|state| state.saves_wait = true);
    let mut client = site.client();
    let body = json!({ "filename": "a" }).to_string();
    client.send("POST", "/slots/0?action=save", &[JSON], body.as_bytes());
    site.fake.wait(|state| state.saved.len() == 1);
    site.join();
    let answer = client.answer().expect("an answer before the end");
    assert_eq!((answer.status, &answer.json()["error"]["code"]), (503, &json!("stopping")));
    site.fake.set(|state| state.saves_wait = false);
}
