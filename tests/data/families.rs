//! Templates of every family against what transformers renders of them, alone and over three turns.

use std::collections::BTreeSet;

use ropewalk::chat::{Message, Template};

use crate::recorded::{day, recorded, split};

fn source(name: &str) -> String {
    let path = format!("{}/tests/data/chat/families/{name}.jinja", env!("CARGO_MANIFEST_DIR"));
    std::fs::read_to_string(path).unwrap()
}

#[test]
fn every_familys_template_renders_as_in_transformers() {
    let recorded = recorded();
    let (mut wrong, mut n) = (Vec::new(), 0);
    for (name, texts) in &recorded.texts {
        let source = source(name);
        for (of, text) in texts {
            let found = recorded.conversations[of].rendered(&source);
            n += 1;
            if found.as_ref().ok() != text.as_ref() {
                wrong.push(format!("{name}, {of}: {found:?}, expected {text:?}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(n >= 200, "{n}");
}

#[test]
fn three_turns_of_every_family() {
    let recorded = recorded();
    for family in &recorded.turns {
        let source = family.template.as_deref().map(source);
        let template = Template::at(source.as_deref(), "<s>", "</s>", day()).unwrap();
        let at = format!("{} {:?}", family.arch, family.template);
        assert_eq!(recorded.prompts(&template, &family.turns, &at), family.turns.prompts, "{at}");
    }
    let found: BTreeSet<&str> = recorded.turns.iter().map(|t| t.arch.as_str()).collect();
    let readme = include_str!("../../README.md");
    let table = readme.split("\n## Architectures\n").nth(1).and_then(|t| t.split("\n## ").next()).unwrap();
    let rows = table.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next());
    let known: BTreeSet<&str> = rows.filter(|name| *name != "general.architecture").collect();
    assert_eq!(found, known);
}

/// An answer that was cut while the model still thought has no content. The next turn renders all the same.
#[test]
fn a_conversation_goes_on_behind_an_answer_that_was_cut() {
    let recorded = recorded();
    for family in &recorded.turns {
        let source = family.template.as_deref().map(source);
        let template = Template::at(source.as_deref(), "<s>", "</s>", day()).unwrap();
        let mut messages = vec![Message::new("user", "Hi")];
        let prompt = template.render(&messages, true).unwrap();
        let written = &recorded.answers[&family.turns.answers][0].written;
        messages.push(split(&template, &prompt, &written[..written.find("eets").unwrap_or(2)]));
        messages.push(Message::new("user", "And?"));
        let next = template.render(&messages, true);
        next.unwrap_or_else(|e| panic!("{} {:?}: {e}", family.arch, family.template));
    }
}
