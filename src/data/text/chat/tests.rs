//! Records: what reaches the template, what is trained on, and what is refused.

use super::*;

/// Names of roles as tags; `tools` and what else the text of the template names.
#[derive(Debug)]
struct Template {
    /// Prints the number of messages first.
    counts: bool,
    /// Opens a turn with a thought.
    thinks: bool,
    /// Renders earlier answers without their first letter.
    forgets: bool,
    /// Marks the texts of answers, without what ends them.
    marks: bool,
}

const PLAIN: Template = Template { counts: false, thinks: false, forgets: false, marks: false };

impl ChatTemplate for Template {
    fn render(
        &self,
        messages: &[Value],
        variables: &Map<String, Value>,
        open: bool,
    ) -> Result<String, Failure> {
        let mut out = if self.counts { messages.len().to_string() } else { String::new() };
        if let Some(tools) = variables.get("tools") {
            out += &format!("[{tools}]");
        }
        for (i, m) in messages.iter().enumerate() {
            let text = match &m["content"] {
                Value::Array(parts) => parts.iter().filter_map(|p| p["text"].as_str()).collect(),
                content => content.as_str().unwrap_or_default().to_owned(),
            };
            let forgotten = usize::from(self.forgets && m["role"] == "assistant" && i + 1 < messages.len());
            let text = &text[forgotten.min(text.len())..];
            let mark = |name: &str| match self.marks && m["role"] == "assistant" {
                true => variables.get(name).and_then(Value::as_str).unwrap_or_default(),
                false => "",
            };
            let text = [mark("__begin"), text, mark("__end")].concat();
            let calls = m.get("tool_calls").map(Value::to_string).unwrap_or_default();
            out += &format!("<{}>{text}{calls}</>\n", m["role"].as_str().unwrap_or_default());
        }
        Ok(match (open, self.thinks) {
            (true, true) => out + "<assistant><think>\n",
            (true, false) => out + "<assistant>",
            _ => out,
        })
    }
    fn source(&self) -> String {
        let marks = if self.marks { "{% endgeneration %}" } else { "" };
        format!("{{{{ tools }}}}{{{{ m.content }}}}{{{{ part.text }}}}{{{{ m['tool_calls'] }}}}{{{{ enable }}}}{marks}")
    }
    fn fingerprint(&self) -> String {
        String::new()
    }
}

fn read(line: &str, answers_only: bool, template: &Template) -> Result<Record, String> {
    let mut found = read_all(line, answers_only, template)?;
    assert_eq!(found.len(), 1);
    Ok(found.remove(0))
}

fn read_all(line: &str, answers_only: bool, template: &Template) -> Result<Vec<Record>, String> {
    let (line, mut found) = (line.replace('\n', ""), Vec::new());
    let each = &mut |record| {
        found.push(record);
        Ok(())
    };
    record("a.jsonl:1", &line, answers_only, Some(template), each).map_err(|e| e.to_string())?;
    Ok(found)
}

/// The answers of a line, as texts.
fn answers(line: &str, template: &Template) -> Result<Vec<String>, String> {
    let whole = read(line, false, template)?;
    let record = read(line, true, template)?;
    assert_eq!((&record.text, whole.answers), (&whole.text, None), "the text is the same");
    Ok(record.answers.unwrap().into_iter().map(|range| record.text[range].to_owned()).collect())
}

#[test]
fn a_template_that_marks_answers_is_believed() {
    let marks = Template { marks: true, forgets: true, ..PLAIN };
    let line = r#"{"messages":[{"role":"user","content":"q"},{"role":"assistant","content":"abc"},
        {"role":"user","content":"r"},{"role":"assistant","content":"def"}]}"#;
    assert_eq!(answers(line, &marks).unwrap(), ["bc", "def"]);
    let pair = line.replace("messages", "prompt").replace(
        r#"},
        {"role":"user","content":"r"}"#,
        r#"}],"completion":[{"role":"user","content":"r"}"#,
    );
    assert_eq!(answers(&pair, &marks).unwrap(), ["def"]);
    let e = answers(&line.replace("abc", "a\u{fdd0}c"), &marks).unwrap_err();
    assert!(e.contains("{% generation %}") && e.contains("cannot be found"), "{e}");
    let silent =
        r#"{"prompt":[{"role":"user","content":"q"}],"completion":[{"role":"assistant","content":""}]}"#;
    assert_eq!(answers(silent, &marks).unwrap(), [""]);
}

#[test]
fn answers_are_places_in_the_whole_text() {
    let line = r#"{"id":1,"messages":[{"role":"system","content":"s"},{"role":"user","content":"q"},
        {"role":"assistant","content":"a"},{"role":"user","content":"r"},{"role":"assistant","content":"b"}]}"#;
    assert_eq!(answers(line, &PLAIN).unwrap(), ["a</>\n", "b</>\n"]);
    let text = read(line, true, &PLAIN).unwrap().text;
    assert_eq!(text, "<system>s</>\n<user>q</>\n<assistant>a</>\n<user>r</>\n<assistant>b</>\n");
    let e = answers(line, &Template { counts: true, ..PLAIN }).unwrap_err();
    assert!(e.contains("a.jsonl:1: message 3: under the chat template"), "{e}");
    // What a prompt opens and an answer does not begin with is nobody's.
    let thinks = Template { thinks: true, ..PLAIN };
    assert_eq!(answers(line, &thinks).unwrap(), ["a</>\n", "b</>\n"]);
    let thought = line.replace("\"a\"", "\"<think>\\nx</think>a\"");
    assert_eq!(answers(&thought, &thinks).unwrap(), ["x</think>a</>\n", "b</>\n"]);
}

#[test]
fn a_prompt_and_its_completion_are_one_text() {
    let line = r#"{"prompt":"2+2=","completion":"4","source":"x","score":null}"#;
    assert_eq!(answers(line, &PLAIN).unwrap(), ["4"]);
    let record = read(line, true, &PLAIN).unwrap();
    assert_eq!((record.text.as_str(), record.special), ("2+2=4", false));
    // Both as messages: the answers in the prompt are no answers.
    let line = r#"{"prompt":[{"role":"user","content":"q"},{"role":"assistant","content":"a"},{"role":"user","content":"r"}],
        "completion":[{"role":"assistant","content":"b"}]}"#;
    assert_eq!(answers(line, &PLAIN).unwrap(), ["b</>\n"]);
}

#[test]
fn what_is_in_a_record_reaches_the_template() {
    let line = r#"{"tools":[{"name":"now"}],"prompt":"q","messages":[{"role":"user","content":"q","name":null},
        {"role":"assistant","content":null,"tool_calls":[{"name":"now"}],"refusal":null},
        {"role":"tool","name":"now","tool_call_id":"1","content":[{"type":"text","text":"12"},{"type":"text","text":":00"}]},
        {"role":"assistant","content":"Noon.","tool_calls":[],"id":"x"}],"chat_template_kwargs":{"enable":true}}"#;
    let text = read(line, false, &PLAIN).unwrap().text;
    assert_eq!(
        text,
        "[[{\"name\":\"now\"}]]<user>q</>\n<assistant>[{\"name\":\"now\"}]</>\n<tool>12:00</>\n<assistant>Noon.[]</>\n"
    );
    assert_eq!(answers(line, &PLAIN).unwrap(), ["[{\"name\":\"now\"}]</>\n", "Noon.[]</>\n"]);
    // As a column of a table has them.
    let written = line.replace(r#"[{"name":"now"}],"prompt""#, r#""[{\"name\":\"now\"}]","prompt""#);
    assert_eq!(read(&written, false, &PLAIN).unwrap().text, text);
}

#[test]
fn keys_that_would_be_dropped_are_refused_by_name() {
    let of = |keys: &str, of_message: &str| {
        format!(
            "{{\"messages\":[{{\"role\":\"user\",\"content\":\"q\"}},{{\"role\":\"assistant\",\"content\":\"a\"{of_message}}}]{keys}}}"
        )
    };
    for (keys, of_message, part) in [
        (r#","images":["a.png"]"#, "", "\"images\": no part of a conversation"),
        (r#","text":"x""#, "", "\"text\": no part"),
        (r#","documents":[{}]"#, "", "\"documents\": the model's chat template does not read it"),
        (r#","chat_template_kwargs":{"enable_thinking":false,"x":1}"#, "", "\"x\": the model's"),
        (r#","chat_template_kwargs":{"messages":[]}"#, "", "\"messages\" is not the record's"),
        (r#","chat_template_kwargs":3"#, "", "expected an object"),
        (r#","tools":{}"#, "", "\"tools\": expected a list"),
        (r#","tools":"x""#, "", "\"tools\": expected a list"),
        (r#","prompt":"another""#, "", "\"prompt\": it is in none of the messages"),
        ("", r#","reasoning_content":"hm""#, "message 2: \"reasoning_content\": the model's"),
        ("", r#","name":"Ada""#, "message 2: \"name\": the model's"),
        ("", r#","weight":1"#, "message 2: \"weight\": the model's"),
        ("", r#","image":"a.png""#, "message 2: \"image\": the model's"),
    ] {
        let e = read(&of(keys, of_message), true, &PLAIN).unwrap_err();
        assert!(e.starts_with("a.jsonl:1: ") && e.contains(part) && !e.contains('\n'), "{part}: {e}");
    }
    let e = read(r#"{"prompt":"a","completion":"b","system":"c"}"#, true, &PLAIN).unwrap_err();
    assert!(e.contains("\"system\": a prompt and its completion"), "{e}");
}

#[test]
fn other_lines_are_errors_of_one_line() {
    let many = format!("{{\"messages\":[{}]}}", "[],".repeat(MAX_VALUES / 2));
    let message = |m: &str| format!("{{\"messages\":[{m},{{\"role\":\"assistant\",\"content\":\"a\"}}]}}");
    for (line, part) in [
        ("{}".to_owned(), "found no key"),
        (r#"{"prompt":"a"}"#.into(), "found \"prompt\""),
        (r#"{"conversations":[{"from":"human","value":"q"}]}"#.into(), "found \"conversations\""),
        (r#"{"prompt":"a","completion":[]}"#.into(), "both texts or both lists"),
        (r#"{"messages":[],"prompt":"a","completion":"b"}"#.into(), "expected \"messages\", or"),
        (r#"{"messages":[]}"#.into(), "role assistant, found none"),
        (r#"{"messages":[{"role":"user","content":"q"}]}"#.into(), "role assistant, found none"),
        (r#"{"messages":3}"#.into(), "found \"messages\""),
        (message("3"), "message 1: expected an object"),
        (message(r#"{"role":1,"content":"q"}"#), "message 1: \"role\": expected a text"),
        (message(r#"{"content":"q"}"#), "message 1: \"role\": expected a text"),
        (message(r#"{"role":"user","content":null}"#), "message 1: \"content\": expected a text, found none"),
        (message(r#"{"role":"user"}"#), "message 1: \"content\": expected a text, found none"),
        (message(r#"{"role":"user","content":3}"#), "message 1: \"content\": expected a text or a list"),
        (message(r#"{"role":"user","content":["q"]}"#), "expected parts with a \"type\""),
        (message(r#"{"role":"user","content":[{"type":"text"}]}"#), "expected a \"text\""),
        (
            message(r#"{"role":"user","content":[{"type":"image","url":"x"}]}"#),
            "a part of the type \"image\"",
        ),
        ("[".into(), "a.jsonl:1"),
        ("[]".into(), "a.jsonl:1"),
        (many, "expected at most 1048576 values in a record"),
    ] {
        let e = read(&line, true, &PLAIN).unwrap_err();
        assert!(e.starts_with("a.jsonl:1: ") && e.contains(part) && !e.contains('\n'), "{part}: {e}");
    }
}

#[test]
fn names_in_a_template_are_whole_words() {
    for (source, name, found) in [
        ("{{ m.tools }}", "tools", true),
        ("{{ m['tools'] }}", "tools", true),
        ("tools", "tools", true),
        ("{{ builtin_tools }}{{ toolset }}", "tools", false),
        ("{{ my_tools }} {{ tools }}", "tools", true),
        ("", "tools", false),
    ] {
        assert_eq!(mentions(source, name), found, "{source}");
    }
    assert_eq!(n_values(r#"{"a":"b,[{\"],","c":[1,{}]}"#), 6);
}

#[test]
fn where_earlier_answers_are_rendered_otherwise_each_is_a_text() {
    let line = r#"{"messages":[{"role":"user","content":"q"},{"role":"assistant","content":"1a"},
        {"role":"user","content":"r"},{"role":"assistant","content":"2b"}]}"#;
    let forgets = Template { forgets: true, ..PLAIN };
    let whole = "<user>q</>\n<assistant>a</>\n<user>r</>\n<assistant>2b</>\n";
    assert_eq!(read(line, false, &forgets).unwrap().text, whole);
    let found = read_all(line, true, &forgets).unwrap();
    let first = "<user>q</>\n<assistant>1a</>\n";
    assert_eq!(found.iter().map(|r| r.text.as_str()).collect::<Vec<_>>(), [first, whole]);
    for (record, answer) in found.iter().zip(["1a</>\n", "2b</>\n"]) {
        let ranges = record.answers.as_ref().unwrap();
        assert_eq!((ranges.len(), &record.text[ranges[0].clone()]), (1, answer));
        assert_eq!(record.whole.as_deref(), Some(whole), "they are held out together");
    }
    let turn = r#"{"role":"user","content":"q"},{"role":"assistant","content":"1a"}"#;
    let long = format!("{{\"messages\":[{}]}}", vec![turn; 257].join(","));
    let e = read_all(&long, true, &forgets).unwrap_err();
    assert!(e.contains("at most 256 answers, found 257"), "{e}");
}
