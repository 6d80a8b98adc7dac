//! Calls as more families of models write them, in the forms that their templates have.

use ropewalk_serve::{call_marks, Bit};
use serde_json::{json, Value};

use crate::called::{streamed, texts};
use crate::calls::{arguments, asked, shape, text, tool, CHAT};
use crate::client::Site;
use crate::streams::events;

const GRANITE: &str = "{{ tools }}<|start_of_role|><|tool_call|>";
const PHI: &str = "{{ tools }}<|tool_call|><|/tool_call|>";
const COHERE: &str = "{{ tools }}<|START_ACTION|>[{\"tool_name\": }]";
const R1: &str = "{{ tools }}<｜tool▁calls▁begin｜>```json";
const HARMONY: &str = "{{ tools }}functions<|channel|><|message|>";
const V31: &str = "{{ tools }}<｜tool▁calls▁begin｜>";

#[test]
fn each_family_writes_calls_in_its_own_form() {
    let (city, none) = (r#"{"city": "<a{\"}]"}"#, "{}");
    let call = |name: &str, arguments: &str| format!("{{\"name\": \"{name}\", \"arguments\": {arguments}}}");
    let (weather, now) = (call("weather", city), call("now", none));
    let block = |name: &str, arguments: &str| {
        format!(
            "<｜tool▁call▁begin｜>function<｜tool▁sep｜>{name}\n```json\n{arguments}\n```<｜tool▁call▁end｜>"
        )
    };
    let plain = |name: &str, arguments: &str| {
        format!("<｜tool▁call▁begin｜>{name}<｜tool▁sep｜>{arguments}<｜tool▁call▁end｜>")
    };
    let (begin, end) = ("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>");
    for (template, script, content) in [
        (GRANITE, format!("<|tool_call|>[{weather}, {now}]"), ""),
        (GRANITE, format!("So:\n<|tool_call|> [{weather},{now}"), "So:"),
        (PHI, format!("<|tool_call|>{weather}<|/tool_call|><|tool_call|>{now}<|/tool_call|>"), ""),
        (
            COHERE,
            format!(
                "I ask.<|START_ACTION|>[\n    {{\"tool_call_id\": \"0\", \"tool_name\": \"weather\", \"parameters\": {city}}},\n    \
                 {{\"tool_call_id\": \"1\", \"tool_name\": \"now\", \"parameters\": {none}}}\n]<|END_ACTION|>"
            ),
            "I ask.",
        ),
        (R1, format!("{begin}{}\n{}{end}", block("weather", city), block("now", none)), ""),
        (R1, format!("I ask.\n\n{begin}{}\n{}", block("weather", city), block("now", none)), "I ask."),
        (V31, format!("{begin}{}{}{end}", plain("weather", city), plain("now", none)), ""),
    ] {
        let site = Site::saying(template, &script);
        let choice = &site.expect(200, CHAT, &asked())["choices"][0];
        let expected = [("weather".to_owned(), city.to_owned()), ("now".to_owned(), none.to_owned())];
        assert_eq!(texts(&choice["message"]["tool_calls"]), expected, "{script}");
        assert_eq!(choice["message"]["content"].as_str().unwrap_or_default(), content, "{script}");
        assert_eq!(choice["finish_reason"], "tool_calls", "{script}");
        let events = events(&site, CHAT, asked());
        assert_eq!(streamed(&events), expected, "{script}");
        let pieces = events.iter().filter(|event| event["choices"][0]["delta"].get("tool_calls").is_some());
        assert!(pieces.count() > 10, "one by one");
        let deltas = events.iter().filter_map(|event| event["choices"][0]["delta"]["content"].as_str());
        assert_eq!(deltas.collect::<String>(), content, "{script}");
    }
}

#[test]
fn what_only_looks_like_a_call_of_a_family_is_text() {
    let begin = "<｜tool▁calls▁begin｜>";
    let call = "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>";
    for (template, script) in [
        (GRANITE, "<|tool_call|>{\"name\": \"now\", \"arguments\": {}}".to_owned()),
        (GRANITE, "<|tool_call|>[{\"name\": \"other\", \"arguments\": {}}]".into()),
        (PHI, "<|tool_call|>[{\"name\": \"now\", \"arguments\": {}}]<|/tool_call|>".into()),
        (COHERE, "<|START_ACTION|>[{\"name\": \"now\", \"parameters\": {}}]<|END_ACTION|>".into()),
        (COHERE, "<|START_ACTION|>[\n    {\"tool_call_id\": \"0\", \"tool_name\": \"now\"".into()),
        (R1, format!("{call}function<｜tool▁sep｜>other\n```json\n{{}}\n```")),
        (R1, format!("{call}code<｜tool▁sep｜>now\n```json\n{{}}\n```")),
        (R1, format!("{call}function<｜tool▁sep｜>now\n{{}}")),
        (R1, format!("{call}function<｜tool▁sep｜>now\n```json\n[]")),
        (V31, format!("{begin} is a mark")),
        (V31, format!("{call}now<｜tool▁sep｜>[1]")),
        (V31, format!("{call}now")),
    ] {
        let site = Site::saying(template, &script);
        let choice = &site.expect(200, CHAT, &asked())["choices"][0];
        assert_eq!(
            (&choice["finish_reason"], &choice["message"]["content"]),
            (&json!("stop"), &json!(script))
        );
        assert!(choice["message"].get("tool_calls").is_none(), "{script}");
    }
}

/// A message to a function, which ends the answer of gpt-oss.
#[test]
fn calls_of_gpt_oss_are_messages() {
    let header = "<|channel|>commentary to=functions.weather <|constrain|>json<|message|>";
    let arguments = r#"{"city": "Bergen"}"#;
    for script in [
        format!("{header}{arguments}<|call|>"),
        format!("{header}{arguments}"),
        format!("<|channel|>commentary to=functions.weather<|message|>\n{arguments}"),
    ] {
        let site = Site::saying(HARMONY, &script);
        let choice = &site.expect(200, CHAT, &asked())["choices"][0];
        let expected = [("weather".to_owned(), arguments.to_owned())];
        assert_eq!(texts(&choice["message"]["tool_calls"]), expected, "{script}");
        assert_eq!(
            (&choice["message"]["content"], &choice["finish_reason"]),
            (&Value::Null, &json!("tool_calls"))
        );
        assert_eq!(streamed(&events(&site, CHAT, asked())), expected, "{script}");
    }
    for script in [
        "<|channel|>commentary to=functions.other <|constrain|>json<|message|>{}",
        "<|channel|>commentary to=functions.now <|constrain|>json<|message|>1",
        "<|channel|>commentary to=functions.now",
        "<|channel|>commentary<|message|>I ask.",
    ] {
        let choice = Site::saying(HARMONY, script).expect(200, CHAT, &asked())["choices"][0].clone();
        assert_eq!(
            (&choice["message"]["content"], &choice["finish_reason"]),
            (&json!(script), &json!("stop"))
        );
    }
}

/// The channel's name calls for a call where calls are held to their schema.
#[test]
fn calls_of_gpt_oss_can_be_asked_for() {
    let to = text(" to=functions.now ");
    let rest = [Bit::Mark("<|constrain|>"), text("json"), Bit::Mark("<|message|>")];
    let found = shape(HARMONY, json!({ "tool_choice": "required" })).unwrap().any.remove(0);
    let call =
        [&[Bit::Mark("<|channel|>"), text("commentary"), to.clone()][..], &rest, &[arguments()]].concat();
    assert_eq!((&found.one_of[0], found.one_of.len(), found.between), (&call, 2, None));
    let mut strict = tool("now");
    strict["function"]["strict"] = json!(true);
    let free = shape(HARMONY, json!({ "tools": [strict] })).unwrap();
    assert_eq!((free.trigger, &free.any[0].one_of[0][0]), (Some("<|channel|>commentary"), &to));
}

/// What a model must write is what is read.
#[test]
fn calls_that_must_come_have_the_form_of_the_family() {
    let named = |name: &str| text(&format!("{{\"name\": \"{name}\", \"arguments\": "));
    let id = Bit::Json { schema: json!({ "type": "string", "pattern": "^[0-9]{1,3}$" }), strict: true };
    let in_a_list = vec![named("now"), arguments(), text("}")];
    for (template, begin, call, end) in [
        (
            GRANITE,
            vec![Bit::Mark("<|tool_call|>"), Bit::Space, text("[")],
            in_a_list.clone(),
            vec![text("]")],
        ),
        (
            PHI,
            vec![],
            [
                vec![Bit::Mark("<|tool_call|>"), Bit::Space],
                in_a_list,
                vec![Bit::Space, Bit::Mark("<|/tool_call|>")],
            ]
            .concat(),
            vec![],
        ),
        (
            COHERE,
            vec![Bit::Mark("<|START_ACTION|>"), text("[\n    ")],
            vec![
                text("{\"tool_call_id\": "),
                id,
                text(", \"tool_name\": \"now\", \"parameters\": "),
                arguments(),
                text("}"),
            ],
            vec![text("\n]"), Bit::Mark("<|END_ACTION|>")],
        ),
        (
            R1,
            vec![Bit::Mark("<｜tool▁calls▁begin｜>")],
            vec![
                Bit::Mark("<｜tool▁call▁begin｜>"),
                text("function"),
                Bit::Mark("<｜tool▁sep｜>"),
                text("now\n```json\n"),
                arguments(),
                text("\n```"),
                Bit::Mark("<｜tool▁call▁end｜>"),
            ],
            vec![Bit::Mark("<｜tool▁calls▁end｜>")],
        ),
        (
            V31,
            vec![Bit::Mark("<｜tool▁calls▁begin｜>")],
            vec![
                Bit::Mark("<｜tool▁call▁begin｜>"),
                text("now"),
                Bit::Mark("<｜tool▁sep｜>"),
                arguments(),
                Bit::Mark("<｜tool▁call▁end｜>"),
            ],
            vec![Bit::Mark("<｜tool▁calls▁end｜>")],
        ),
    ] {
        let found = shape(template, json!({ "tool_choice": "required" })).unwrap().any;
        assert_eq!((found.len(), found[0].one_of.len()), (1, 2), "{template}");
        assert_eq!(
            (&found[0].begin, &found[0].one_of[0], &found[0].end),
            (&begin, &call, &end),
            "{template}"
        );
        // Right calls if any, after any text.
        let mut strict = tool("now");
        strict["function"]["strict"] = json!(true);
        let free = shape(template, json!({ "tools": [strict] })).unwrap();
        let mark = begin.first().unwrap_or(&call[0]);
        assert_eq!(free.trigger.map(Bit::Mark).as_ref(), Some(mark), "{template}");
    }
}

#[test]
fn templates_say_which_form_their_calls_have() {
    let of = |template: &str| call_marks(template).first().copied();
    for (template, mark) in [
        (include_str!("../../../../tests/data/chat/families/command-r7b.jinja"), "<|START_ACTION|>"),
        (include_str!("../../../../tests/data/chat/families/gpt-oss.jinja"), "<|channel|>"),
        (include_str!("../../../../tests/data/chat/families/granite.jinja"), "<|tool_call|>"),
        (include_str!("../../../../tests/data/chat/families/llama3.jinja"), "<|python_tag|>"),
        (include_str!("../../../../tests/data/chat/families/mistral.jinja"), "[TOOL_CALLS]"),
        (include_str!("../../../../tests/data/chat/families/qwen3.jinja"), "<tool_call>"),
    ] {
        assert_eq!(of(template), Some(mark));
    }
    // One that shows the model no functions, and one that names no form.
    let r1 = include_str!("../../../../tests/data/chat/families/r1-distill.jinja");
    let phi = include_str!("../../../../tests/data/chat/families/phi4-mini.jinja");
    assert_eq!((of(r1), of(phi)), (None, None));
    assert_eq!(of(&format!("{{{{ tools }}}}{r1}")), Some("<｜tool▁calls▁begin｜>"));
    let error = Site::saying(r1, "a").expect(400, CHAT, &asked())["error"]["param"].clone();
    assert_eq!(error, Value::from("tools"));
}
