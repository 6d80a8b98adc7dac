//! The page and its map.

use std::time::Duration;

use ropewalk_serve::Options;
use serde_json::json;

use crate::client::Site;

const FILES: [(&str, &str); 4] = [
    ("/", "text/html; charset=utf-8"),
    ("/page.css", "text/css; charset=utf-8"),
    ("/page.js", "text/javascript; charset=utf-8"),
    ("/page.svg", "image/svg+xml"),
];

#[test]
fn the_page_is_served_under_a_strict_policy() {
    let site = Site::with(Options::default().keys(vec!["key".to_owned()]), Duration::ZERO);
    for (path, kind) in FILES {
        let answer = site.get(path);
        assert_eq!((answer.status, answer.header("content-type")), (200, Some(kind)), "{path}");
        let policy = answer.header("content-security-policy").unwrap();
        assert!(policy.starts_with("default-src 'self'; ") && policy.contains("frame-ancestors 'none'"));
        // No scripts or styles in the markup, and no code made of texts.
        assert!(!policy.contains("unsafe") && !policy.contains("http"), "{policy}");
        assert_eq!(answer.header("x-content-type-options"), Some("nosniff"));
        assert_eq!(answer.header("referrer-policy"), Some("no-referrer"));
    }
}

#[test]
fn a_head_has_no_body() {
    let site = Site::new();
    let mut client = site.client();
    for (path, _) in FILES {
        client.send("HEAD", path, &[], b"");
        let head = client.head().unwrap();
        let length: usize = head.header("content-length").unwrap().parse().unwrap();
        assert_eq!((head.status, length), (200, site.get(path).body.len()), "{path}");
    }
    // The connection goes on after the heads alone.
    assert_eq!(client.ask("GET", "/health", &[], b"").status, 200);
    assert_eq!(site.client().ask("POST", "/", &[crate::client::JSON], b"{}").status, 405);
}

#[test]
fn the_page_asks_this_server_only() {
    let site = Site::new();
    let [html, css, js] = ["/", "/page.css", "/page.js"].map(|path| site.get(path).text());
    for text in [&html, &css, &js] {
        for other in ["://", "@import", "url("] {
            assert!(!text.contains(other), "{other}");
        }
    }
    // What the markup names is there, relative to the page, so that a proxy may put it under another path.
    let named = ["href=\"", "src=\""]
        .map(|name| html.split(name).skip(1).map(|rest| rest.split('"').next().unwrap()));
    let named: Vec<&str> = named.into_iter().flatten().collect();
    assert_eq!(named, ["page.svg", "page.css", "page.js"]);
    for name in named {
        assert_eq!(site.get(&format!("/{name}")).status, 200, "{name}");
    }
}

#[test]
fn what_a_model_writes_stays_text() {
    let js = Site::new().get("/page.js").text();
    let markup =
        ["innerHTML", "outerHTML", "insertAdjacent", "document.write", "DOMParser", "srcdoc", "Range("];
    let code = ["eval(", "Function(", "setTimeout('", "import("];
    let kept = ["localStorage", "sessionStorage", "indexedDB", "cookie", "history."];
    for word in markup.into_iter().chain(code).chain(kept) {
        assert!(!js.contains(word), "{word}");
    }
    assert!(js.contains("textContent") && js.contains("createTextNode"));
}

/// The page reads these by name.
#[test]
fn every_element_that_the_script_names_is_in_the_page() {
    let site = Site::new();
    let (html, js) = (site.get("/").text(), site.get("/page.js").text());
    let names: Vec<&str> = js.split("$('").skip(1).map(|rest| rest.split('\'').next().unwrap()).collect();
    assert!(names.len() > 20, "{names:?}");
    for name in names {
        assert_eq!(html.matches(&format!(" id=\"{name}\"")).count(), 1, "{name}");
    }
    let labels = html.split("for=\"").skip(1).map(|rest| rest.split('"').next().unwrap()).collect::<Vec<_>>();
    for field in ["<input id=\"", "<select id=\"", "<textarea id=\""] {
        for id in html.split(field).skip(1).map(|rest| rest.split('"').next().unwrap()) {
            assert!(labels.contains(&id), "{id} has no label");
        }
    }
}

#[test]
fn the_prompt_that_the_page_scores_is_that_of_the_chat() {
    let site = Site::new();
    let messages = json!([{ "role": "user", "content": "ab" }]);
    let chat = site.expect(200, "/v1/chat/completions", &json!({ "messages": messages, "max_tokens": 1 }));
    let prompt = site.expect(200, "/tokenize", &json!({ "messages": messages }))["tokens"].clone();
    let rope = &chat["ropewalk"]["rope"];
    let score = site.expect(200, "/v1/score", &json!({ "prompt": prompt, "rope": rope }));
    let n = chat["usage"]["prompt_tokens"].as_u64().map(|n| n as usize);
    for list in [&score["tokens"], &score["scores"][0]["nll"]] {
        assert_eq!(list.as_array().map(Vec::len), n, "{list}");
    }
    let state = site.fake.state();
    assert_eq!(state.jobs[0].prompt, state.jobs[1].prompt);
}

#[test]
fn maps_are_of_plans_that_are_served_and_of_their_lengths() {
    let site = Site::new();
    let map = |query: &str| {
        let answer = site.get(&format!("/map{query}"));
        (answer.status, answer.text())
    };
    let answer = site.get("/map?rope=yarn%3Afactor%3D4&n=100");
    assert_eq!((answer.status, answer.text().as_str()), (200, "<svg>1 100</svg>"));
    assert_eq!(answer.header("content-type"), Some("image/svg+xml"));
    assert_eq!(answer.header("content-security-policy"), Some("default-src 'none'"));
    // Without a plan the first with room, without a number all that the plan has.
    assert_eq!(map("?n=65"), (200, "<svg>1 65</svg>".to_owned()));
    assert_eq!(map("?n=257&rope=auto"), (200, "<svg>2 257</svg>".to_owned()));
    assert_eq!(map("?rope=yarn:factor=4"), (200, "<svg>1 256</svg>".to_owned()));
    for (query, param) in [
        ("?rope=yarn:factor=8&n=10", "rope"),
        ("?rope=plain&n=10", "rope"),
        ("?rope=yarn:factor=4&n=257", "n"),
        ("?rope=yarn:factor=4&n=0", "n"),
        ("?n=16777217", "n"),
        ("?n=-1", "n"),
        ("?n=99999999999999999999", "n"),
        ("?n=", "n"),
        ("?rope=%00%0a", "rope"),
    ] {
        let (status, text) = map(query);
        let error: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!((status, &error["error"]["param"]), (400, &param.into()), "{query}: {text}");
    }
    assert_eq!(map("?rope=%ff%00%0a").0, 400);
}
