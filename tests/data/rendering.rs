//! Templates at the edges: marks, hostile ones, and processes apart. Those of families are in `templates`.

use std::time::{Duration, SystemTime};

use ropewalk::chat::apart::{Apart, Limits};
use ropewalk::chat::{Message, Template};
use ropewalk::model::{Error, Result};
use serde_json::{json, Value};

/// 2024-07-26 12:34:56 UTC, a Friday.
fn day() -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(1_721_997_296)
}

fn render(source: &str, messages: &[(&str, &str)], prompt: bool) -> Result<String> {
    let messages: Vec<Message> = messages.iter().map(|(r, c)| Message::new(*r, *c)).collect();
    Template::at(Some(source), "<s>", "</s>", day())?.render(&messages, prompt)
}

const PLAIN: &str = "{{ messages[0].content }}";

#[test]
fn generation_marks_print_nothing() {
    let t = "a {% generation %}b{% set x = 1 %}{% endgeneration %} c{{ x }}{%- generation -%} d {%- endgeneration %}";
    assert_eq!(render(t, &[], false).unwrap(), "a b cd");
    let marks = json!({"__begin": "<", "__end": ">"});
    let marked = Template::new(Some(t), "", "").unwrap().render_json(&[], marks.as_object().unwrap(), false);
    assert_eq!(marked.unwrap(), "a <b> c<d>");
    let e =
        render("{% for x in [1] %}{% generation %}{% break %}{% endgeneration %}{% endfor %}", &[], false);
    assert!(e.unwrap_err().to_string().contains("{% break %} in a {% generation %} block"));
}

/// Tags, comments, raw texts, and strings that hold the marks of each other, as Jinja2 renders them.
#[test]
fn marks_inside_of_other_marks_are_text() {
    let marks = json!({"__begin": "<", "__end": ">"});
    let render = |template: &str| {
        let template = Template::new(Some(template), "", "");
        template.and_then(|t| t.render_json(&[], marks.as_object().unwrap(), false))
    };
    for (before, text) in [
        ("{# {% raw %} #}", ""),
        ("{#- {%- raw -%} -#} ", ""),
        ("{# {{ ' #}", ""),
        ("{# {# #}", ""),
        ("{#{% generation %}#}", ""),
        ("a{#%}{% raw %}#}", "a"),
        ("{% raw %}{# {% endraw %}", "{# "),
        ("{% raw %}#} {# '{% endraw %}", "#} {# '"),
        ("{% raw %}{{ '{% endraw %}", "{{ '"),
        ("{% raw %}{% raw %}{% endraw %}", "{% raw %}"),
        ("{% raw %}{% - endraw %}{% endraw %}", "{% - endraw %}"),
        ("{% raw %}{% generation %}{% endraw %}", "{% generation %}"),
        ("{{ '{% raw %}' }}", "{% raw %}"),
        ("{{ \"{% generation %}\" }}", "{% generation %}"),
        ("{{ 'it\\'s {% raw %}' }}", "it's {% raw %}"),
        ("{{ '\\\\' }}", "\\"),
        ("{{ '{#' }}", "{#"),
        ("{% set x = '{% raw %}' %}{{ x }}", "{% raw %}"),
        ("{% if '%}' == '{% raw %}' %}{% endif %}", ""),
        ("{{ {'a': {'b': '}}'}} }}", "{'a': {'b': '}}'}}"),
        ("{{ {'a': {'b': 1}}['a'] }}", "{'b': 1}"),
        ("' {% set x %}{# ' {% raw %} #}{% endset %}", "' "),
        ("a {%- raw -%} {% x %} {%- endraw -%} c", "a{% x %}c"),
        (" {%+ raw %} {% x %} {%+ endraw %} c", "  {% x %}  c"),
        ("a\n  {% raw %}\n  {% x %}\n  {% endraw %}\nb", "a\n\n  {% x %}\nb"),
        ("a\n  {%+ raw %}\n  {% x %}\n  {%+ endraw +%}\nb", "a\n  \n  {% x %}\n  \nb"),
        ("a\n  {%- raw -%}\n  {% x %}\n  {%- endraw -%}\nb", "a{% x %}b"),
        ("{%raw%}\n{{{%endraw%}", "\n{{"),
        ("{% raw %} {% endraw %}", " "),
        ("{% raw %}  \n {% endraw %}", "  \n"),
        ("{% raw %} {%- endraw %}", ""),
        ("{% raw -%} {% endraw %}", ""),
    ] {
        let template = format!("{before}{{% generation %}}b{{% endgeneration %}}");
        assert_eq!(render(&template).unwrap(), format!("{text}<b>"), "{template}");
    }
    for template in ["{% raw +%}a{% endraw %}", "{% raw %}", "{# {% generation %}", "{{ '{% generation %} }}"]
    {
        assert!(render(template).is_err(), "{template}");
    }
}

#[test]
fn without_a_template_it_is_chatml_and_says_so() {
    let t = Template::new(None, "", "").unwrap();
    assert!(t.is_fallback());
    assert_eq!(t.stop(), ["<|im_end|>"]);
    let got = t.render(&[Message::new("user", "Hi")], true).unwrap();
    assert_eq!(got, "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n");
    assert!(!Template::new(Some(PLAIN), "", "").unwrap().is_fallback());
}

#[test]
fn hostile_templates_end_in_one_line() {
    let endless = "{% for a in range(99999) %}{% for b in range(99999) %}{% for c in range(99999) %}{% endfor %}{% endfor %}{% endfor %}";
    let deep = "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}";
    for t in [endless, deep, "{% if %}", "{{ messages.x.y.z }}", "{{ messages | nonesuch }}"] {
        let e = render(t, &[("user", "x")], true).unwrap_err().to_string();
        assert!(e.starts_with("chat template") && !e.contains('\n'), "{e}");
    }
    let e = render("{{ raise_exception('roles\nalternate') }}", &[], true).unwrap_err().to_string();
    assert!(e.starts_with("chat template") && e.ends_with(": roles alternate"), "{e}");
}

#[test]
fn dates() {
    let shown = |format: &str, now| {
        let source = format!("{{{{ strftime_now('{format}') }}}}");
        Template::at(Some(&source), "", "", now).and_then(|t| t.render(&[], false)).unwrap()
    };
    assert_eq!(
        shown("%Y-%m-%d %H:%M:%S %A %a %B %b %y %-d %j %% %K %", day()),
        "2024-07-26 12:34:56 Friday Fri July Jul 24 26 208 % %K %"
    );
    for (days, date) in [(0, "1970-01-01"), (11_016, "2000-02-29"), (20_088, "2024-12-31")] {
        let then = SystemTime::UNIX_EPOCH + Duration::from_secs(days * 86_400);
        assert_eq!(shown("%Y-%m-%d", then), date);
    }
    for hostile in ["%99999999999d", "%:::::z", "%.999999f", "%\u{e9}", "%^#-_0Y"] {
        shown(hostile, day());
    }
}

#[test]
fn dates_can_be_those_of_each_use() {
    let at = |now| Template::at(Some("{{ strftime_now('%Y-%m-%d') }}"), "", "", now).unwrap();
    let shown = |template: &Template| template.render(&[], false).unwrap();
    assert_eq!(shown(&at(day())), "2024-07-26");
    let before = SystemTime::now();
    let text = shown(&at(day()).dated_by_use());
    let days = [before, SystemTime::now()].map(|now| shown(&at(now)));
    assert!(days.contains(&text), "{text}: {days:?}");
}

/// Whatever the other process does, rendering ends: in time, and with one line.
#[cfg(unix)]
#[test]
fn a_process_that_does_not_answer_is_given_up() {
    let limits = Limits::default();
    for (command, what) in [
        (&["sleep", "100"][..], "took longer than 0.3 s"),
        // It closes its output at once and goes on.
        (&["sh", "-c", "exec >&-; exec sleep 100"], "took longer than 0.3 s"),
        (&["false"], "without an answer"),
        (&["cat"], "without an answer"),
        (&["sh", "-c", "kill -9 $$"], "signal: 9"),
        (
            &["sh", "-c", "echo 'memory allocation of 9 bytes failed' >&2; kill -6 $$"],
            "needs more than 512 MiB",
        ),
        (&["/no/such/program"], "cannot start a process for it: /no/such/program"),
    ] {
        // The others end by themselves, on a busy machine later.
        let wall = Duration::from_millis(if what.contains("longer") { 300 } else { 60_000 });
        let apart = Apart::new(command[0], &command[1..]).with_limits(limits.wall(wall));
        let started = std::time::Instant::now();
        let e = Template::new_apart(PLAIN, "", "", &apart).unwrap_err();
        assert_eq!(matches!(e, Error::During { .. }), what.contains("cannot start"), "{command:?}");
        let e = e.to_string();
        assert!(
            e.starts_with("chat template: ") && e.contains(what) && !e.contains('\n'),
            "{command:?}: {e}"
        );
        assert!(started.elapsed() < Duration::from_secs(60), "{command:?}");
    }
    let endless = Apart::new("yes", [""; 0]).with_limits(limits.wall(Duration::from_secs(300)));
    let e = Template::new_apart(PLAIN, "", "", &endless).unwrap_err().to_string();
    assert_eq!(e, "chat template: its text is more than 33554432 bytes");
}

#[cfg(target_os = "linux")]
#[test]
fn the_process_that_renders_inherits_only_where_libraries_lie() {
    let dir = tempfile::tempdir().unwrap();
    let found = dir.path().join("environ");
    let script = format!("cat /proc/$$/environ > '{}'", found.display());
    Template::new_apart(PLAIN, "", "", &Apart::new("/bin/sh", ["-c", &script])).unwrap_err();
    let environ = String::from_utf8(std::fs::read(&found).unwrap()).unwrap();
    let names = environ.split_terminator('\0').map(|variable| variable.split_once('=').unwrap().0);
    assert!(names.clone().all(|name| name == "LD_LIBRARY_PATH"), "{:?}", names.collect::<Vec<_>>());
}

#[test]
fn messages_reach_the_template_as_transformers_passes_them() {
    let render = |messages: &[Value], variables: Value| {
        let source =
            "{{ tools | tojson }}{{ (documents is none) | tojson }}{{ messages | tojson }}{{ add_generation_prompt | tojson }}";
        let template = Template::at(Some(source), "<s>", "</s>", day()).unwrap();
        template.render_json(messages, variables.as_object().unwrap(), true)
    };
    for (message, expected) in [
        (json!({"role": "user", "content": null, "name": "Ann"}), r#"{"role": "user", "name": "Ann"}"#),
        (
            json!({"role": "tool", "content": "1", "tool_call_id": "c1", "tool_calls": null}),
            r#"{"role": "tool", "content": "1", "tool_call_id": "c1"}"#,
        ),
        (
            json!({"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "image", "url": null}]}),
            r#"{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "image", "url": null}]}"#,
        ),
        (
            json!({"role": "assistant", "reasoning_content": "r", "content": "c"}),
            r#"{"thinking": "r", "role": "assistant", "reasoning_content": "r", "content": "c"}"#,
        ),
        (
            json!({"role": "assistant", "thinking": "t", "content": "c"}),
            r#"{"role": "assistant", "thinking": "t", "content": "c", "reasoning_content": "t"}"#,
        ),
        (
            json!({"role": "assistant", "reasoning": "r", "thinking": null}),
            r#"{"thinking": "r", "role": "assistant", "reasoning": "r", "reasoning_content": "r"}"#,
        ),
        (
            json!({"tool_calls": [{"function": {"name": "f", "arguments": {"z": 1, "a": 2.0}}}]}),
            r#"{"tool_calls": [{"function": {"name": "f", "arguments": {"z": 1, "a": 2.0}}}]}"#,
        ),
    ] {
        assert_eq!(render(&[message], json!({})).unwrap(), format!("nulltrue[{expected}]true"));
    }
    let found = render(&[], json!({"tools": [{"name": "f"}], "messages": 1})).unwrap();
    assert_eq!(found, r#"[{"name": "f"}]true[]true"#);
    let e = render(&[json!("x")], json!({})).unwrap_err().to_string();
    assert!(e.contains("expected each message to be an object"), "{e}");
}
