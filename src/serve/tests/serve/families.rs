//! Calls as more families of models write them, in the forms that their templates have.

use ropewalk_serve::{call_marks, Bit};
use serde_json::{json, Value};

use crate::called::{split, streamed, texts};
use crate::calls::{arguments, asked, shape, text, tool, CHAT, HERMES, LLAMA, MISTRAL, QWEN};
use crate::client::Site;
use crate::streams::events;

const GRANITE: &str = "{{ tools }}<|start_of_role|><|tool_call|>";
const PHI: &str = "{{ tools }}<|tool_call|><|/tool_call|>";
const COHERE: &str = "{{ tools }}<|START_ACTION|>[{\"tool_name\": }]";
const R1: &str = "{{ tools }}<｜tool▁calls▁begin｜>```json";
const HARMONY: &str = "{{ tools }}functions<|channel|><|message|>";
const V31: &str = "{{ tools }}<｜tool▁calls▁begin｜>";
const CITY: &str = r#"{"city": "<a{\"}]"}"#;

/// A call of `weather` with this, and one of `now`, as each family writes them. The text before them comes last.
fn written() -> Vec<(&'static str, String, &'static str)> {
    let (city, none) = (CITY, "{}");
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
    vec![
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
    ]
}

#[test]
fn each_family_writes_calls_in_its_own_form() {
    for (template, script, content) in written() {
        let site = Site::saying(template, &script);
        let choice = &site.expect(200, CHAT, &asked())["choices"][0];
        let expected = [("weather".to_owned(), CITY.to_owned()), ("now".to_owned(), "{}".to_owned())];
        assert_eq!(texts(&choice["message"]["tool_calls"]), expected, "{script}");
        assert_eq!(choice["message"]["content"].as_str().unwrap_or_default(), content, "{script}");
        assert_eq!(choice["finish_reason"], "tool_calls", "{script}");
        let events = events(&site, CHAT, asked());
        let pieces = events.iter().filter(|event| event["choices"][0]["delta"].get("tool_calls").is_some());
        assert!(pieces.count() > 10, "one by one");
        // However tokens cut the text.
        for pace in [1, 3, 8, 1000] {
            site.fake.set(|state| state.pace = pace);
            let events = crate::streams::events(&site, CHAT, asked());
            assert_eq!(
                split(&events),
                (content.to_owned(), expected.to_vec(), json!("tool_calls")),
                "{script}"
            );
        }
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

/// The form that a model must write is the form that is read.
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

/// Calls with a part of the text removed, repeated, or elsewhere: none depends on how tokens cut the text.
#[test]
fn any_text_is_read_the_same_however_it_is_cut() {
    let named = |key: &str| format!("{{\"name\": \"weather\", \"{key}\": {CITY}}}");
    let mut scripts: Vec<(&str, String)> = written().into_iter().map(|(t, script, _)| (t, script)).collect();
    scripts.extend([
        (
            HERMES,
            format!(
                "a <tool_call>{}</tool_call>\n<tool_call>{{\"name\": \"now\"}}</tool_call> b\n",
                named("arguments")
            ),
        ),
        (MISTRAL, format!("a [TOOL_CALLS] [{0}, {0}] b\n", named("arguments"))),
        (MISTRAL, format!("[TOOL_CALLS]weather[CALL_ID]1[ARGS]{CITY}[TOOL_CALLS]now[ARGS]{{}}")),
        (LLAMA, format!("<|python_tag|>{0}; {0}", named("parameters"))),
        (LLAMA, format!("{0}; {0}\n", named("parameters"))),
        (
            QWEN,
            "<tool_call>\n<function=weather>\n<parameter=city>\na\n</parameter>\n</function>\n</tool_call> b"
                .into(),
        ),
        (
            HARMONY,
            format!("<|channel|>commentary to=functions.weather <|constrain|>json<|message|>{CITY}<|call|>"),
        ),
    ]);
    let mut random = 1_u64;
    let mut draw = |n: usize| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) as usize % n
    };
    let mut n_calls = 0;
    for (template, script) in scripts {
        let chars: Vec<char> = script.chars().collect();
        let site = Site::saying(template, "");
        for _ in 0..8 {
            let (a, b) = (draw(chars.len()), draw(chars.len()));
            let (i, j) = (a.min(b), a.max(b));
            let changed = match draw(3) {
                0 => [&chars[..i], &chars[j..]].concat(),
                1 => [&chars[..j], &chars[i..]].concat(),
                _ => [&chars[j..], &chars[i..j], &chars[..i]].concat(),
            };
            let script: String = changed.into_iter().collect();
            site.fake.set(|state| (state.script, state.pace) = (Some(script.clone()), 1000));
            let whole = site.expect(200, CHAT, &asked())["choices"][0]["message"].clone();
            let calls = texts(&whole["tool_calls"]);
            n_calls += calls.len();
            let found = (whole["content"].as_str().unwrap_or_default().to_owned(), calls);
            for pace in [1, 4] {
                site.fake.set(|state| state.pace = pace);
                let (text, calls, _) = split(&events(&site, CHAT, asked()));
                assert_eq!((text, calls), found, "{template}, {pace}: {script}");
            }
        }
    }
    assert!(n_calls > 20, "too few of the texts have calls: {n_calls}");
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
    // One that shows the model no functions, and one that names no form, have them as text.
    let r1 = include_str!("../../../../tests/data/chat/families/r1-distill.jinja");
    let phi = include_str!("../../../../tests/data/chat/families/phi4-mini.jinja");
    assert_eq!((of(r1), of(phi)), (Some("<tool_call>"), Some("<tool_call>")));
    assert_eq!(of(&format!("{{{{ tools }}}}{r1}")), Some("<｜tool▁calls▁begin｜>"));
}
