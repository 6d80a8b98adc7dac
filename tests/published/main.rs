//! Chat templates that models are published with, against what transformers renders of them. They are their publishers', so
//! only hashes are kept here: of each template, and of the texts (`record.py`). Whoever has templates as files of the name
//! `*.jinja` gives their folder in the environment variable ROPEWALK_CHAT_TEMPLATES; those that are known are compared.
//!
//!     ROPEWALK_CHAT_TEMPLATES=FOLDER cargo test --release -p ropewalk --test published

#[path = "../data/recorded.rs"]
mod recorded;

use std::collections::BTreeMap;

use ropewalk::chat::Template;
use serde::Deserialize;
use sha2::{Digest, Sha256};

use recorded::{day, recorded, Turns};

#[derive(Deserialize)]
struct Published {
    name: String,
    texts: BTreeMap<String, Option<String>>,
    #[serde(flatten)]
    turns: Turns,
}

#[test]
fn published_templates_render_as_in_transformers() {
    let published: BTreeMap<String, Published> =
        serde_json::from_str(include_str!("../data/chat/published.json")).unwrap();
    let recorded = recorded();
    let conversations = &recorded.conversations;
    for (hash, of) in &published {
        assert!(hash.len() == 32 && of.texts.keys().eq(conversations.keys()), "{}", of.name);
    }
    let folder =
        std::env::var_os("ROPEWALK_CHAT_TEMPLATES").expect("ROPEWALK_CHAT_TEMPLATES names no folder");
    let hash =
        |text: &str| -> String { Sha256::digest(text).iter().take(16).map(|b| format!("{b:02x}")).collect() };
    let (mut wrong, mut n) = (Vec::new(), 0);
    for entry in std::fs::read_dir(folder).unwrap() {
        let source = std::fs::read_to_string(entry.unwrap().path()).unwrap();
        let Some(of) = published.get(&hash(&source)) else { continue };
        for (conversation, expected) in &of.texts {
            let found = conversations[conversation].rendered(&source);
            n += 1;
            if found.as_deref().ok().map(hash).as_ref() != expected.as_ref() {
                wrong.push(format!("{}, {conversation}: {found:?}", of.name));
            }
        }
        let template = Template::at(Some(&source), "<s>", "</s>", day()).unwrap();
        let prompts = recorded.prompts(&template, &of.turns, &of.name);
        if prompts.iter().map(|text| hash(text)).ne(of.turns.prompts.iter().cloned()) {
            wrong.push(format!("{}, three turns: {prompts:?}", of.name));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(n > 0, "none of the folder's templates is known");
}
