//! Names of settings as options. `tests/cli/units.rs` compiles this file for itself.

use ropewalk::train::KEYS;

/// Settings with an option of their own, of the same name.
const OPTIONS: &str = "rope ctx attention targets rank alpha transform chat resume output plot steps lr";

/// The names of settings in a text of the library's job, as the options that set them.
pub(crate) fn options(text: &str) -> String {
    let own = OPTIONS.split(' ').map(|name| (name, format!("--{name}")));
    let keys = KEYS.iter().map(|key| (key.name, format!("--set {}", key.name)));
    let all = own.chain([("init", "--lora".to_owned())]).chain(keys);
    all.fold(text.to_owned(), |text, (name, option)| text.replace(&format!("`{name}`"), &option))
}
