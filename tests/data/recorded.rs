//! What transformers renders of the families' templates (`chat/record.py`), and conversations of three turns with answers
//! as the families' models write them.
#![allow(dead_code)] // Each test program includes this and uses its part.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use ropewalk::chat::answer::{Form, Parts};
use ropewalk::chat::{Message, Template};
use serde::Deserialize;
use serde_json::{Map, Value};

#[derive(Deserialize)]
pub(crate) struct Recorded {
    pub(crate) conversations: BTreeMap<String, Conversation>,
    /// By template and conversation. None where transformers refuses.
    pub(crate) texts: BTreeMap<String, BTreeMap<String, Option<String>>>,
    /// What models write, by the form in which they write.
    pub(crate) answers: BTreeMap<String, Vec<Answer>>,
    pub(crate) turns: Vec<Family>,
}

#[derive(Deserialize)]
pub(crate) struct Conversation {
    pub(crate) messages: Vec<Value>,
    pub(crate) variables: Map<String, Value>,
    pub(crate) prompt: bool,
}

#[derive(Deserialize)]
pub(crate) struct Family {
    pub(crate) arch: String,
    pub(crate) template: Option<String>,
    #[serde(flatten)]
    pub(crate) turns: Turns,
}

#[derive(Deserialize)]
pub(crate) struct Turns {
    pub(crate) answers: String,
    /// Whether the template has a place for a system message.
    pub(crate) system: bool,
    /// Three prompts, each with the answers so far.
    pub(crate) prompts: Vec<String>,
}

/// What a model writes, and which parts are the answer and the thinking.
#[derive(Deserialize)]
pub(crate) struct Answer {
    pub(crate) written: String,
    pub(crate) content: String,
    pub(crate) thinking: Option<String>,
}

pub(crate) fn recorded() -> Recorded {
    serde_json::from_str(include_str!("chat/families.json")).unwrap()
}

/// The day of the recordings: 2024-07-26 12:34:56 UTC.
pub(crate) fn day() -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(1_721_997_296)
}

impl Conversation {
    pub(crate) fn rendered(&self, source: &str) -> Result<String, String> {
        Template::at(Some(source), "<s>", "</s>", day())
            .and_then(|t| t.render_json(&self.messages, &self.variables, self.prompt))
            .map_err(|e| e.to_string())
    }
}

impl Recorded {
    /// The prompts of three turns as `ropewalk chat` makes them: each answer is taken apart, and the next prompt is
    /// rendered with its parts.
    pub(crate) fn prompts(&self, template: &Template, turns: &Turns, at: &str) -> Vec<String> {
        let said = |role: &str| {
            let of = self.conversations["three turns"].messages.iter().filter(move |m| m["role"] == role);
            of.map(|m| m["content"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
        };
        let mut messages = Vec::new();
        if turns.system {
            messages.push(Message::new("system", said("system").remove(0)));
        }
        let mut prompts = Vec::new();
        for (i, question) in said("user").into_iter().enumerate() {
            messages.push(Message::new("user", question));
            let prompt = template.render(&messages, true).unwrap_or_else(|e| panic!("{at}, turn {i}: {e}"));
            if let Some(answer) = self.answers[&turns.answers].get(i) {
                let found = split(template, &prompt, &answer.written);
                assert_eq!(
                    (&found.content, &found.reasoning_content),
                    (&answer.content, &answer.thinking),
                    "{at}"
                );
                messages.push(found);
            }
            prompts.push(prompt);
        }
        prompts
    }
}

/// An answer that comes character by character, taken apart.
pub(crate) fn split(template: &Template, prompt: &str, written: &str) -> Message {
    let mut parts = Parts::new(Form::of(template.source()), prompt);
    for c in written.chars() {
        parts.push(c.encode_utf8(&mut [0; 4]));
    }
    let (content, reasoning_content) = parts.finish();
    Message { reasoning_content, ..Message::new("assistant", content) }
}
