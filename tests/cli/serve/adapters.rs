//! Adapters that requests choose by name.

use serde_json::json;

use super::{asked, Server, FIXED};
use crate::common::program::run;
use crate::eval::refused;
use crate::lora::Folder;

/// An adapter answers under its name as under `--lora`, and from its own keys.
#[test]
fn an_adapter_is_asked_by_its_name() {
    let folder = Folder::new("plain");
    let (model, a) = (folder.path("tiny.gguf"), folder.path("a.gguf"));
    let (novels, more) = (format!("novels={a}"), format!("more={a}:2"));
    let line = ["serve", "-m", &model, "--adapter", &novels, "--adapter", &more];
    let server = Server::start(folder.dir.path(), &line);
    let of_run = |lora: &[&str]| {
        let line =
            ["run", "-m", &model, "-p", "hello world", "-n", "12", "--ignore-eos", "--temp", "0", "--json"];
        run(&[&line[..], lora, FIXED].concat()).json()["text"].clone()
    };
    let expected = [
        ("tiny", of_run(&[])),
        ("novels", of_run(&["--lora", &a])),
        ("more@declared", of_run(&["--lora", &format!("{a}:2")])),
    ];
    assert_ne!(expected[0].1, expected[1].1);
    for cached in [0, 10] {
        for (name, text) in &expected {
            let mut body = asked(12);
            body["model"] = (*name).into();
            let whole = server.post("/v1/completions", &body).ok();
            assert_eq!((&whole["choices"][0]["text"], &whole["model"]), (text, &json!(name)));
            assert_eq!(whole["usage"]["prompt_tokens_details"]["cached_tokens"], cached, "{name}");
        }
    }
    // By their numbers, as llama-server has them, at the scales that they were loaded with.
    for (i, lora) in
        [json!([]), json!([{ "id": 0, "scale": 1.0 }]), json!([{ "id": 1, "scale": 2 }])].iter().enumerate()
    {
        let mut body = asked(12);
        body["lora"] = lora.clone();
        let whole = server.post("/v1/completions", &body).ok();
        let name = ["tiny", "novels", "more"][i];
        assert_eq!((&whole["choices"][0]["text"], &whole["model"]), (&expected[i].1, &json!(name)));
    }
    let mut body = asked(12);
    body["lora"] = json!([{ "id": 1, "scale": 1 }]);
    let reply = server.post("/v1/completions", &body);
    assert!(reply.status == 400 && reply.body.contains("the scale 2 that adapter 1"), "{}", reply.body);
    let mut body = asked(12);
    body["model"] = "novel".into();
    let reply = server.post("/v1/completions", &body);
    assert_eq!(reply.status, 404);
    assert!(reply.body.contains("novels, novels@declared, more"), "{}", reply.body);
    let models = server.get("/v1/models", None).ok();
    let ids: Vec<&str> = models["data"].as_array().unwrap().iter().filter_map(|m| m["id"].as_str()).collect();
    let names = ["tiny", "novels", "more"].map(|name| [name.to_owned(), format!("{name}@declared")]);
    assert_eq!(ids, names.concat());
    let metrics = server.get("/metrics", None).body;
    for plan in ["declared", "novels@declared", "more@declared"] {
        assert_eq!(metrics.matches(&format!("plan=\"{plan}\",state=\"used\"")).count(), 1, "{metrics}");
    }
    for (adapter, why) in
        [("tiny=a.gguf", "a name that no model has"), ("a@b=a.gguf", "visible ASCII"), ("a", "visible ASCII")]
    {
        refused(&run(&["serve", "-m", &model, "-q", "--adapter", adapter]), 2, &[why]);
    }
}
