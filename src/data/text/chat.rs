//! Conversations and questions with answers, one on each line of JSON Lines, as parts that are trained on or
//! not.

use ropewalk_core::tokenizer::Failure;
use serde::Deserialize;

use super::Part;
use crate::error::{invalid, Result};

/// One message of a conversation.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Message {
    /// `system`, `user` or `assistant`.
    pub role: String,
    /// The text.
    pub content: String,
}

/// A model's chat template.
pub trait ChatTemplate: Send + Sync + std::fmt::Debug {
    /// The conversation as text; `open` begins the assistant's turn at its end.
    ///
    /// # Errors
    /// Messages that the template refuses.
    fn render(&self, messages: &[Message], open: bool) -> Result<String, Failure>;
    /// A hash: templates of the same one render all conversations alike.
    fn fingerprint(&self) -> String;
}

/// A line: one of the two forms.
#[derive(Deserialize)]
struct Line {
    messages: Option<Vec<Message>>,
    prompt: Option<String>,
    completion: Option<String>,
}

/// The parts of the record on a line; `name` is the line's, for errors.
///
/// # Errors
/// A line that is neither form; a conversation without an assistant's turn; a template under which the
/// rendered turns so far are not how the whole conversation begins, so that nobody can tell whose words are
/// whose.
pub(super) fn parts(
    name: &str,
    line: &str,
    answers_only: bool,
    template: Option<&dyn ChatTemplate>,
) -> Result<Vec<Part>> {
    let line: Line = serde_json::from_str(line).map_err(|e| invalid(format!("{name}: {e}")))?;
    match line {
        Line { messages: Some(messages), prompt: None, completion: None } => {
            let template =
                template.ok_or_else(|| invalid(format!("{name}: no chat template to render it")))?;
            conversation(name, &messages, answers_only, template)
        }
        Line { messages: None, prompt: Some(prompt), completion: Some(completion) } => {
            let part = |text, trained| Part { text, special: false, trained };
            Ok(vec![part(prompt, !answers_only), part(completion, true)])
        }
        _ => Err(invalid(format!("{name}: expected \"messages\", or \"prompt\" and \"completion\""))),
    }
}

fn conversation(
    name: &str,
    messages: &[Message],
    answers_only: bool,
    template: &dyn ChatTemplate,
) -> Result<Vec<Part>> {
    let render =
        |n: usize, open| template.render(&messages[..n], open).map_err(|e| invalid(format!("{name}: {e}")));
    let whole = render(messages.len(), false)?;
    let part = |text: &str, trained| Part { text: text.to_owned(), special: true, trained };
    let answers: Vec<usize> = (0..messages.len()).filter(|&i| messages[i].role == "assistant").collect();
    if answers.is_empty() {
        return Err(invalid(format!("{name}: expected a message of the role assistant, found none")));
    }
    if !answers_only {
        return Ok(vec![part(&whole, true)]);
    }
    let (mut parts, mut at) = (Vec::new(), 0);
    for i in answers {
        let (start, end) = (render(i, true)?, render(i + 1, false)?);
        let inside = whole.starts_with(&end) && end.starts_with(&start) && start.len() >= at;
        if !inside {
            return Err(invalid(format!(
                "{name}: message {}: under the chat template a conversation does not begin as its first turns \
                 do, so its answers cannot be told apart; train on everything",
                i + 1
            )));
        }
        parts.push(part(&whole[at..start.len()], false));
        parts.push(part(&whole[start.len()..end.len()], true));
        at = end.len();
    }
    parts.push(part(&whole[at..], false));
    parts.retain(|p| !p.text.is_empty());
    Ok(parts)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// ChatML; `broken` prints the number of messages first.
    #[derive(Debug)]
    struct Template {
        broken: bool,
    }

    impl ChatTemplate for Template {
        fn render(&self, messages: &[Message], open: bool) -> Result<String, Failure> {
            let mut out = if self.broken { messages.len().to_string() } else { String::new() };
            for m in messages {
                out += &format!("<{}>{}</>\n", m.role, m.content);
            }
            Ok(if open { out + "<assistant>" } else { out })
        }
        fn fingerprint(&self) -> String {
            String::new()
        }
    }

    fn of(line: &str, answers_only: bool, broken: bool) -> Result<Vec<(String, bool)>, String> {
        let parts = parts("a.jsonl:1", line, answers_only, Some(&Template { broken }));
        parts.map(|p| p.into_iter().map(|p| (p.text, p.trained)).collect()).map_err(|e| e.to_string())
    }

    #[test]
    fn answers_alone_are_trained_on_where_asked() {
        let line = r#"{"id":1,"messages":[{"role":"system","content":"s"},{"role":"user","content":"q"},
            {"role":"assistant","content":"a"},{"role":"user","content":"r"},{"role":"assistant","content":"b"}]}"#;
        let line = line.replace('\n', "");
        let found = of(&line, true, false).unwrap();
        let parts: Vec<(&str, bool)> = found.iter().map(|(t, w)| (t.as_str(), *w)).collect();
        let expected = [
            ("<system>s</>\n<user>q</>\n<assistant>", false),
            ("a</>\n", true),
            ("<user>r</>\n<assistant>", false),
            ("b</>\n", true),
        ];
        assert_eq!(parts, expected);
        let all = of(&line, false, false).unwrap();
        assert_eq!(all.len(), 1);
        assert_eq!(all[0].0, parts.iter().map(|p| p.0).collect::<String>());
        assert!(of(&line, true, true).unwrap_err().contains("a.jsonl:1: message 3: under the chat template"));
    }

    #[test]
    fn a_prompt_and_its_completion_are_joined() {
        let line = r#"{"prompt":"2+2=","completion":"4"}"#;
        let text = |s: &str| s.to_owned();
        assert_eq!(of(line, true, false), Ok(vec![(text("2+2="), false), (text("4"), true)]));
        assert_eq!(of(line, false, false), Ok(vec![(text("2+2="), true), (text("4"), true)]));
    }

    #[test]
    fn other_lines_are_errors_of_one_line() {
        for line in [
            "{}",
            r#"{"prompt":"a"}"#,
            r#"{"messages":[],"prompt":"a","completion":"b"}"#,
            r#"{"messages":[]}"#,
            r#"{"messages":[{"role":"user","content":"q"}]}"#,
            r#"{"messages":[{"role":"user","content":null}]}"#,
            r#"{"messages":3}"#,
            "[",
        ] {
            let e = of(line, true, false).unwrap_err();
            assert!(e.starts_with("a.jsonl:1: ") && !e.contains('\n'), "{e}");
        }
    }
}
