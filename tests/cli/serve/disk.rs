//! Texts that stay on disk: found after a restart, by those whose they are.

use serde_json::{json, Value};

use super::{read, Server, FIXED};
use crate::common::process::signal;
use crate::common::program::run;
use crate::eval::refused;
use crate::models::{model, words};

/// A prompt of 400 tokens.
fn long(server: &Server) -> Value {
    let tokens = server.tokens(&json!({ "prompt": words(200), "add_special_tokens": false }));
    json!({ "prompt": [&tokens[..400]], "max_tokens": 4, "temperature": 0, "ignore_eos": true })
}

/// The text of an answer, the tokens that were cached, and where.
fn cached(whole: &Value) -> (Value, Value, Value) {
    let n = &whole["usage"]["prompt_tokens_details"]["cached_tokens"];
    assert_eq!(n, &whole["ropewalk"]["cached"]["tokens"]);
    (whole["choices"][0]["text"].clone(), n.clone(), whole["ropewalk"]["cached"]["from"].clone())
}

#[test]
fn what_was_read_is_found_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let place = dir.path().join("prefixes");
    let place = place.to_str().unwrap();
    let at = ["--prefix-dir", place];
    let server = Server::new(&at);
    let body = long(&server);
    let first = cached(&server.post("/v1/completions", &body).ok());
    assert_eq!((&first.1, &first.2), (&json!(0), &json!(null)));
    // One server at a time, in a directory that is no link.
    let line = ["serve", "-m", model(), "--port", "0"];
    refused(&run(&[&line[..], FIXED, &at].concat()), 1, &[place, "in use by process"]);
    std::os::unix::fs::symlink(place, dir.path().join("link")).unwrap();
    let link = dir.path().join("link");
    let link = ["--prefix-dir", link.to_str().unwrap()];
    refused(&run(&[&line[..], FIXED, &link].concat()), 1, &["link", "is a symbolic link"]);
    refused(&run(&[&line[..], FIXED, &["--prefix-bytes", "1GiB"]].concat()), 2, &["--prefix-dir"]);
    signal(server.child.id(), "-TERM");
    assert_eq!(server.ended(), Some(0));

    let cases: [(&[&str], usize, Option<&str>); 5] = [
        (&[], 399, Some("disk")),
        (&["--kv", "f32"], 0, None),
        (&["--rope", "yarn:factor=2"], 0, None),
        (&["--prefix-bytes", "1KiB"], 0, None),
        (&[], 0, None),
    ];
    for (more, n, from) in cases {
        let server = Server::new(&[&at[..], more].concat());
        let found = cached(&server.post("/v1/completions", &body).ok());
        assert_eq!((&found.1, &found.2), (&json!(n), &json!(from)), "{more:?}");
        if more.is_empty() {
            assert_eq!(found.0, first.0);
        }
        let again = cached(&server.post("/v1/completions", &body).ok());
        assert_eq!((again.1, again.2, again.0), (json!(399), json!("memory"), found.0), "{more:?}");
        let metrics = server.get("/metrics", None).body;
        for (tier, n) in [("memory", 399), ("disk", n)] {
            let line = format!("ropewalk_cached_tokens_total{{from=\"{tier}\"}} {n}\n");
            assert!(metrics.contains(&line), "{metrics}");
        }
        assert!(metrics.contains("ropewalk_prefix_bytes{tier=\"disk\"} "), "{metrics}");
        // Killed: nothing more is written.
    }
}

/// A caller is known by the key, wherever that is in the file.
#[test]
fn what_is_on_disk_stays_its_callers() {
    let dir = tempfile::tempdir().unwrap();
    let keys = dir.path().join("keys.txt");
    let at = ["--prefix-dir", dir.path().to_str().unwrap(), "--api-key-file", keys.to_str().unwrap()];
    let body = long(&Server::new(&[]));
    for (text, key, n) in [("one\ntwo\n", "two", 0), ("two\nthree\n", "two", 399), ("three\n", "three", 0)] {
        std::fs::write(&keys, text).unwrap();
        let server = Server::new(&at);
        let reply = read(server.send("POST", "/v1/completions", Some(key), &body.to_string()));
        assert_eq!(cached(&reply.ok()).1, json!(n), "{text}");
        signal(server.child.id(), "-TERM");
        assert_eq!(server.ended(), Some(0));
    }
}

/// By a caller's own names, which lead nowhere else, and by each caller apart.
#[test]
fn slots_are_saved_and_restored() {
    let dir = tempfile::tempdir().unwrap();
    let (place, keys) = (dir.path().join("prefixes"), dir.path().join("keys.txt"));
    std::fs::write(&keys, "one\ntwo\n").unwrap();
    let at = ["--prefix-dir", place.to_str().unwrap(), "--api-key-file", keys.to_str().unwrap()];
    let ask = |server: &Server, key: &str, path: &str, body: &Value| {
        read(server.send("POST", path, Some(key), &body.to_string()))
    };
    let named = |name: &str| json!({ "filename": name });
    let server = Server::new(&at);
    let mut body = json!({ "prompt": words(20), "max_tokens": 4, "temperature": 0, "ignore_eos": true });
    let first = cached(&ask(&server, "one", "/v1/completions", &body).ok());
    let slots = server.get("/slots", Some("one")).ok();
    let (id, n) = (slots[0]["id"].as_u64().unwrap(), slots[0]["n_past"].clone());
    let path = |action: &str| format!("/slots/{id}?action={action}");
    for name in ["../x", "/etc/passwd", "a/b", "", "\u{ff0e}", "X"] {
        for action in ["save", "restore"] {
            let reply = ask(&server, "one", &path(action), &named(name));
            assert_eq!((reply.status, &reply.json()["error"]["param"]), (400, &json!("filename")), "{name}");
        }
    }
    assert_eq!(ask(&server, "two", &path("save"), &named("chat.bin")).status, 400);
    let saved = ask(&server, "one", &path("save"), &named("chat.bin")).ok();
    assert_eq!((&saved["id_slot"], &saved["n_saved"]), (&json!(id), &n));
    // Killed: nothing else is written.
    drop(server);
    let server = Server::new(&at);
    let reply = ask(&server, "two", &path("restore"), &named("chat.bin"));
    assert_eq!(reply.status, 400);
    assert!(!reply.body.contains(place.to_str().unwrap()), "{}", reply.body);
    let restored = ask(&server, "one", &path("restore"), &named("chat.bin")).ok();
    assert_eq!((&restored["n_restored"], &restored["n_read"]), (&n, &saved["n_written"]));
    let again = cached(&ask(&server, "one", "/v1/completions", &body).ok());
    assert_eq!(again.0, first.0);
    assert!(again.1.as_u64().is_some_and(|n| n > 10), "{again:?}");
    body["cache_salt"] = "other".into();
    assert_eq!(cached(&ask(&server, "one", "/v1/completions", &body).ok()).1, 0);
}
