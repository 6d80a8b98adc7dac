//! Chat templates against what transformers renders of them (`chat/record.py`).

use ropewalk::chat::Template;
use serde::Deserialize;
use serde_json::{Map, Value};

#[derive(Deserialize)]
struct Case {
    name: String,
    template: String,
    messages: Vec<Value>,
    /// What transformers makes of it.
    text: Option<String>,
    /// Part of the error here.
    error: Option<String>,
}

#[test]
fn every_part_of_the_language_is_as_in_transformers() {
    let cases: Vec<Case> = serde_json::from_str(include_str!("chat/constructed.json")).unwrap();
    assert!(cases.len() >= 170);
    let mut wrong = Vec::new();
    for case in cases {
        let rendered = Template::new(Some(&case.template), "<s>", "</s>")
            .and_then(|t| t.render_json(&case.messages, &Map::new(), false))
            .map_err(|e| e.to_string());
        let right = match (&rendered, &case.text, &case.error) {
            (Ok(text), Some(expected), _) => text == expected,
            (Err(e), _, Some(part)) => e.contains(part.as_str()) && !e.contains('\n'),
            _ => false,
        };
        if !right {
            wrong.push(format!("{}: {rendered:?}, expected {:?} {:?}", case.name, case.text, case.error));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Filters and methods that make much of little end.
#[test]
fn what_would_take_too_much_is_refused() {
    for template in [
        "{{ 'a'.center(99999999999) }}",
        "{{ 'a'.zfill(2000000) }}",
        "{{ '\t'.expandtabs(2000000) }}",
        "{{ 'ab' * 99999999999 }}",
        "{{ [1] * 99999999999 }}",
        "{{ (1,) * 99999999999 }}",
        "{{ 'a'|indent(99999999999) }}",
        "{{ '%99999999999d' % 1 }}",
        "{{ '{:99999999999}'.format(1) }}",
        "{{ 9 ** 9 ** 9 }}",
        "{{ range(99999999999)|list }}",
        "{% set ns = namespace(l=[]) %}{% for i in range(5000) %}{% set ns.l = [ns.l] %}{% endfor %}{{ ns.l == ns.l + [] }}",
        "{% set ns = namespace(l=[]) %}{% for i in range(5000) %}{% set ns.l = [ns.l] %}{% endfor %}{{ ns.l|tojson }}",
        "{{ 'a'|center(99999999999) }}",
        "{{ 1.5|round(100000000) }}",
        "{{ [1]|tojson(indent=100000000) }}",
        "{% set ns = namespace(l=[]) %}{% for i in range(5000) %}{% set ns.l = [ns.l] %}{% endfor %}{{ ns.l }}",
        "{{ 'unclosed",
        "{{ '\\",
        "{{ '\\x4' }}",
        "{{ '\\U00110000' }}",
        "{% raw %}{{",
    ] {
        let rendered = Template::new(Some(template), "", "").and_then(|t| t.render(&[], false));
        let e = rendered.unwrap_err().to_string();
        assert!(e.starts_with("chat template") && !e.contains('\n'), "{template}: {e}");
    }
}
