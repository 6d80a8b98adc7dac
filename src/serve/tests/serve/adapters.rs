//! Adapters by their numbers: llama-server's field `lora`.

use std::time::Duration;

use ropewalk_serve::Options;
use serde_json::{json, Value};

use crate::client::Site;
use crate::fake::Fake;

const PATH: &str = "/v1/completions";

fn site() -> Site {
    Site::of(Fake::adapted(), Options::default(), Duration::ZERO)
}

#[test]
fn a_number_is_an_adapter() {
    let site = site();
    let on = |id: usize, scale: f64| json!({ "id": id, "scale": scale });
    for (more, model, plan, name) in [
        (json!({ "lora": [] }), 0, None, "bytes"),
        (json!({ "lora": null }), 0, None, "bytes"),
        (json!({ "lora": [on(0, 0.0), on(1, 0.0)] }), 0, None, "bytes"),
        (json!({ "lora": [on(0, 1.0)] }), 1, None, "novels"),
        (json!({ "lora": [on(0, 0.0), on(1, 0.5)] }), 2, None, "laws"),
        (json!({ "lora": [on(1, 0.5)], "rope": "streaming" }), 2, Some(8), "laws"),
        (json!({ "lora": [on(1, 0.5)], "model": "bytes@yarn:factor=4" }), 2, Some(7), "laws"),
        (json!({ "lora": [on(0, 1.0)], "model": "novels@plain" }), 1, Some(3), "novels@plain"),
        (json!({ "model": "laws" }), 2, None, "laws"),
    ] {
        let mut body = json!({ "prompt": "a" });
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let answer = site.expect(200, PATH, &body);
        assert_eq!(answer["model"], name, "{more}");
        let state = site.fake.state();
        let job = state.jobs.last().unwrap();
        assert_eq!((job.model, job.plan), (model, plan), "{more}");
    }
    let chat = json!({ "messages": [{ "role": "user", "content": "a" }], "lora": [on(0, 1.0)] });
    assert_eq!(site.expect(200, "/v1/chat/completions", &chat)["model"], "novels");
    assert_eq!(
        site.expect(200, "/v1/responses", &json!({ "input": "a", "lora": [on(0, 1.0)] }))["model"],
        "novels"
    );
}

#[test]
fn what_cannot_be_is_refused() {
    let site = site();
    let refused = |more: Value, says: &str| {
        let mut body = json!({ "prompt": "a" });
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let error = site.expect(400, PATH, &body)["error"].clone();
        assert!(error["param"].as_str().unwrap().starts_with("lora"), "{error}");
        assert!(error["message"].as_str().unwrap().contains(says), "{error}");
    };
    let lora = |list: Value| json!({ "lora": list });
    refused(lora(json!([{ "id": 2, "scale": 1 }])), "the 2 adapters, from 0, found 2");
    refused(
        lora(json!([{ "id": 0, "scale": 0.5 }])),
        "the scale 1 that adapter 0 was loaded with, or 0, found 0.5",
    );
    refused(
        lora(json!([{ "id": 0, "scale": 1 }, { "id": 1, "scale": 0.5 }])),
        "one adapter at a time, found 2",
    );
    refused(
        lora(json!([{ "id": 0, "scale": 1 }, { "id": 0, "scale": 1 }])),
        "one adapter at a time, found 2",
    );
    refused(json!({ "model": "novels", "lora": [] }), "the adapter that model names");
    refused(
        json!({ "model": "novels", "lora": [{ "id": 1, "scale": 0.5 }] }),
        "the adapter that model names",
    );
    for list in [
        json!(1),
        json!({ "id": 0 }),
        json!([0]),
        json!([{ "id": 0 }]),
        json!([{ "scale": 1 }]),
        json!([{ "id": -1, "scale": 1 }]),
        json!([{ "id": 1.5, "scale": 1 }]),
        json!([{ "id": "novels", "scale": 1 }]),
        json!([{ "id": 0, "scale": "1" }]),
        json!([{ "id": 0, "scale": 1e300 }]),
        json!(vec![json!({ "id": 0, "scale": 0 }); 65]),
    ] {
        refused(lora(list), "expected");
    }
    // Without adapters there are no numbers.
    let plain = Site::new();
    let error = plain.expect(400, PATH, &json!({ "prompt": "a", "lora": [{ "id": 0, "scale": 1 }] }));
    assert_eq!(error["error"]["param"], "lora");
    let score = json!({ "prompt": "ab", "lora": [{ "id": 0, "scale": 1 }] });
    assert_eq!(plain.expect(400, "/v1/score", &score)["error"]["param"], "lora");
}
