//! Hints that the program adds to messages of the library: the option or the command for a setting.

use super::pull;

/// Ends of messages, and the hint for each.
const ENDS: [(&str, &str); 3] = [
    ("open its model with this adapter", " (--lora)"),
    ("set factors=.. to the result of a search", " (`ropewalk advise --search`)"),
    ("or \"prompt\" and \"completion\"", " (`ropewalk finetune --chat`)"),
];

/// The hint for an error with this text.
pub(super) fn of(e: &anyhow::Error, text: &str) -> String {
    match e.downcast_ref::<ropewalk::Error>() {
        // A session under a context; other memory has no such options.
        Some(ropewalk::Error::OutOfMemory { what, .. }) if what.starts_with("ctx ") => {
            " (--ctx, --kv)".to_owned()
        }
        Some(ropewalk::Error::ContextFull { .. }) => " (--ctx)".to_owned(),
        _ => of_text(text),
    }
}

/// The hint for an error, from its text alone.
pub(super) fn of_text(text: &str) -> String {
    if let Some((_, hint)) = ENDS.iter().find(|(end, _)| text.ends_with(*end)) {
        return (*hint).to_owned();
    }
    let file = text.split_once(": is missing: ").map(|(before, _)| before);
    let set = file.and_then(pull::set_with);
    set.map_or(String::new(), |set| format!("; `ropewalk pull {set}` fetches it"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_that_is_missing_is_named_with_its_command() {
        let hint = of_text("cwe at 2048 tokens: data/ruler/nounlist.txt: is missing: it is in a package");
        assert_eq!(hint, "; `ropewalk pull ruler` fetches it");
        assert_eq!(of_text("data/ruler/english_words.json: is missing: it is in a repository"), "");
        assert_eq!(of_text("a.gguf: expected a model: open its model with this adapter"), " (--lora)");
    }
}
