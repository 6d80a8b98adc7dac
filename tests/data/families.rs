//! Templates of every family against what transformers renders of them, alone and over three turns.

use std::collections::BTreeSet;
use std::sync::Arc;

use ropewalk::chat::{Message, Template};
use ropewalk::control::Control;
use ropewalk::data::{Corpus, Records, Separator, Sources, TextOptions};
use serde_json::json;

use crate::recorded::{day, recorded, split};
use crate::world::{vocab, World};

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
    let page = include_str!("../../docs/guide/models.md");
    let table = page.split("\n## Architectures\n").nth(1).and_then(|t| t.split("\n## ").next()).unwrap();
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

/// Where a template renders earlier answers otherwise than the last one, each answer is a document, and all documents of a
/// conversation are held out together.
#[test]
fn answers_of_several_turns_are_told_apart() {
    let recorded = recorded();
    let messages = &recorded.conversations["three thoughts"].messages[..4];
    let record = json!({ "messages": messages }).to_string() + "\n";
    for (name, n) in [
        ("llama3", 1),
        ("gemma3", 1),
        ("qwen2", 1),
        ("ministral3", 1),
        ("phi3", 2),
        ("olmo3-think", 2),
        ("gpt-oss", 2),
        ("qwen3", 2),
        ("qwen35", 2),
        // It marks its answers.
        ("smollm3", 1),
    ] {
        let mut record = record.clone();
        let reads =
            ["reasoning_content", ".thinking", "'thinking'"].iter().any(|key| source(name).contains(key));
        if !reads {
            // A key that the template does not read is refused.
            record = json!({ "messages": &recorded.conversations["three turns"].messages[1..5] }).to_string();
        }
        let world = World::of(&[("a.jsonl", &record)]);
        let options = TextOptions::default().records(Records::Chat { answers_only: true });
        let template = Template::at(Some(&source(name)), "<s>", "</s>", day()).unwrap();
        let sources = Sources::find(&[world.texts()], &options).unwrap().with_template(Arc::new(template));
        let corpus =
            Corpus::open(world.cache(), vocab(), &sources, &Separator::Auto, &Control::default()).unwrap();
        assert_eq!(corpus.n_documents(), n, "{name}");
        assert_eq!(corpus.text_hash(0), corpus.text_hash(n - 1), "{name}");
        let said = corpus.notes().iter().any(|note| note.contains("each answer is a sequence"));
        assert_eq!(said, n > 1, "{name}: {:?}", corpus.notes());
    }
}
