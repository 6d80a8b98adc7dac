//! Functions in responses: items that call, items that answer, and the events that tell of them.

use serde_json::{json, Value};

use crate::calls::{tool, CHAT, HERMES};
use crate::client::Site;
use crate::responses::{events, kinds};

const PATH: &str = "/v1/responses";
const SCRIPT: &str =
    "I ask.<tool_call>{\"name\": \"weather\", \"arguments\": {\"city\": \"Bergen\"}}</tool_call>\n\
                      <tool_call>{\"name\": \"now\", \"arguments\": {}}</tool_call>";
const CITY: &str = "{\"city\": \"Bergen\"}";

/// A function as responses have it.
fn flat(name: &str) -> Value {
    let mut function = tool(name)["function"].clone();
    function["type"] = json!("function");
    function["strict"] = Value::Null;
    function
}

fn asked() -> Value {
    json!({ "input": "a", "tools": [flat("now"), flat("weather")] })
}

#[test]
fn calls_are_items_of_the_output() {
    let site = Site::saying(HERMES, SCRIPT);
    let answer = site.expect(200, PATH, &asked());
    assert_eq!((&answer["status"], &answer["tool_choice"]), (&json!("completed"), &json!("auto")));
    assert_eq!(answer["tools"], asked()["tools"]);
    let [message, weather, now] = &answer["output"].as_array().unwrap()[..] else { panic!("{answer}") };
    assert_eq!(message["content"][0]["text"], "I ask.");
    for (item, name, arguments) in [(weather, "weather", CITY), (now, "now", "{}")] {
        let id = item["call_id"].as_str().unwrap();
        assert!(item["id"].as_str().unwrap().starts_with("fc_") && id.len() == 9, "{item}");
        let expected = json!({
            "id": item["id"], "type": "function_call", "status": "completed", "call_id": id, "name": name,
            "arguments": arguments,
        });
        assert_eq!(*item, expected);
    }
    assert_ne!(weather["id"], now["id"]);
    let mut body = asked();
    body["parallel_tool_calls"] = json!(false);
    let answer = site.expect(200, PATH, &body);
    assert_eq!(
        (answer["output"].as_array().unwrap().len(), &answer["parallel_tool_calls"]),
        (2, &json!(false))
    );
    body["tool_choice"] = json!("none");
    let text = site.expect(200, PATH, &body)["output"][0]["content"][0]["text"].clone();
    assert_eq!(text, SCRIPT);
}

#[test]
fn a_stream_tells_of_a_call_as_it_is_written() {
    let site = Site::saying(HERMES, SCRIPT);
    let events = events(&site, asked());
    let mut kinds = kinds(&events);
    kinds.dedup();
    let of_text = ["output_text.delta", "output_text.done", "content_part.done", "output_item.done"];
    let of_call = [
        "output_item.added",
        "function_call_arguments.delta",
        "function_call_arguments.done",
        "output_item.done",
    ];
    let begin = ["created", "in_progress", "output_item.added", "content_part.added"];
    assert_eq!(kinds, [&begin[..], &of_text, &of_call, &of_call, &["completed"]].concat());
    let of = |kind: &str, index: usize| -> Vec<&Value> {
        let kind = format!("response.{kind}");
        events.iter().filter(|e| e["type"] == kind && e["output_index"] == index).collect()
    };
    for (index, name, arguments) in [(1, "weather", CITY), (2, "now", "{}")] {
        let [added] = of("output_item.added", index)[..] else { panic!("one") };
        let [done] = of("output_item.done", index)[..] else { panic!("one") };
        let [said] = of("function_call_arguments.done", index)[..] else { panic!("one") };
        let item = &added["item"];
        assert_eq!((&item["status"], &item["arguments"]), (&json!("in_progress"), &json!("")));
        assert_eq!(
            (&done["item"]["status"], &done["item"]["arguments"]),
            (&json!("completed"), &json!(arguments))
        );
        assert_eq!((&done["item"]["call_id"], &done["item"]["id"]), (&item["call_id"], &item["id"]));
        assert_eq!((&said["name"], &said["arguments"]), (&json!(name), &json!(arguments)));
        let deltas = of("function_call_arguments.delta", index);
        assert!(deltas.len() > 1, "in pieces");
        assert!(deltas.iter().all(|e| e["item_id"] == item["id"] && e.get("content_index").is_none()));
        assert_eq!(deltas.iter().map(|e| e["delta"].as_str().unwrap()).collect::<String>(), arguments);
    }
    let last = &events.last().unwrap()["response"]["output"];
    assert_eq!(last.as_array().unwrap().len(), 3);
    assert_eq!(last[1], of("output_item.done", 1)[0]["item"]);
    // One that is cut.
    let mut body = asked();
    body["max_output_tokens"] = json!(SCRIPT.find("gen").unwrap());
    let events = self::events(&site, body);
    let response = &events.last().unwrap()["response"];
    let call = &response["output"][1];
    assert_eq!((&response["status"], &call["status"]), (&json!("incomplete"), &json!("incomplete")));
    assert_eq!(call["arguments"], "{\"city\": \"Ber");
}

/// The items of an answer and their outputs are the messages of the same chat.
#[test]
fn calls_and_their_outputs_go_back_as_messages() {
    let site = Site::saying(HERMES, SCRIPT);
    let mut body = asked();
    let answer = site.expect(200, PATH, &body);
    let items = answer["output"].as_array().unwrap();
    let output = |i: usize, output: Value| json!({ "type": "function_call_output", "call_id": items[i]["call_id"], "output": output });
    let outputs = [output(1, json!("rain")), output(2, json!([{ "type": "input_text", "text": "noon" }]))];
    let user = json!({ "role": "user", "content": "a" });
    body["input"] = [&[user.clone()][..], items, &outputs].concat().into();
    site.expect(200, PATH, &body);
    let call = |i: usize| {
        let function = json!({ "name": items[i]["name"], "arguments": items[i]["arguments"] });
        json!({ "id": items[i]["call_id"], "type": "function", "function": function })
    };
    let result = |i: usize, text: &str| json!({ "role": "tool", "content": text, "tool_call_id": items[i]["call_id"] });
    let calls = json!({ "role": "assistant", "content": "I ask.", "tool_calls": [call(1), call(2)] });
    let messages = json!([user, calls, result(1, "rain"), result(2, "noon")]);
    site.expect(200, CHAT, &json!({ "messages": messages, "tools": [tool("now"), tool("weather")] }));
    // A call alone, after its reasoning.
    body["input"] = json!([
        user, { "type": "reasoning", "summary": [], "content": [{ "type": "reasoning_text", "text": "hm" }] }, items[2],
    ]);
    site.expect(200, PATH, &body);
    let state = site.fake.state();
    let [_, (of_items, tools), (of_messages, expected), (alone, _)] = &state.chats[..] else {
        panic!("four")
    };
    assert_eq!((of_items, tools), (of_messages, expected));
    let calls = json!({ "role": "assistant", "tool_calls": [call(2)], "reasoning_content": "hm" });
    assert_eq!(alone[1], calls);
}

#[test]
fn calls_can_be_asked_for_as_in_chats() {
    let site = Site::saying(HERMES, SCRIPT);
    let messages = json!([{ "role": "user", "content": "a" }]);
    let both = |flat: Value, nested: Value| {
        let mut body = asked();
        body["tool_choice"] = flat;
        assert_eq!(site.expect(200, PATH, &body)["tool_choice"], body["tool_choice"]);
        let tools = [tool("now"), tool("weather")];
        site.expect(200, CHAT, &json!({ "messages": messages, "tools": tools, "tool_choice": nested }));
        let shapes = std::mem::take(&mut site.fake.state().shapes);
        assert_eq!(shapes.len(), 2);
        assert_eq!(shapes[0], shapes[1]);
    };
    both(json!("required"), json!("required"));
    both(
        json!({ "type": "function", "name": "now" }),
        json!({ "type": "function", "function": { "name": "now" } }),
    );
    let mut strict = flat("now");
    strict["strict"] = json!(true);
    for (field, value, param) in [
        ("tools", json!([{ "type": "web_search" }]), "tools[0].type"),
        ("tools", json!([{ "type": "function" }]), "tools[0].name"),
        ("tools", json!([flat("a"), flat("a")]), "tools"),
        ("tools", json!([{ "type": "function", "name": "a", "parameters": 1 }]), "tools[0].parameters"),
        ("tools", json!([{ "type": "function", "name": "a", "strict": 1 }]), "tools[0].strict"),
        ("tools", json!([tool("a")]), "tools[0].name"),
        ("tool_choice", json!({ "type": "function", "name": "other" }), "tool_choice"),
        ("tool_choice", json!({ "type": "function", "function": { "name": "now" } }), "tool_choice"),
        ("tool_choice", json!({ "type": "web_search" }), "tool_choice"),
    ] {
        let mut body = asked();
        body[field] = value;
        assert_eq!(site.expect(400, PATH, &body)["error"]["param"], param, "{body}");
    }
    // Held to its schema where it says so.
    let mut body = asked();
    body["tools"] = json!([strict]);
    site.expect(200, PATH, &body);
    assert_eq!(site.fake.state().shapes[0].trigger, Some("<tool_call>"));
}
