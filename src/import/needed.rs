//! Which files of a repository an import reads.

use std::path::Path;

use crate::{safetensors, Result};

/// Files other than weights; a model has some of them.
const NAMES: &[&str] = &[
    "config.json",
    "generation_config.json",
    safetensors::INDEX,
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "added_tokens.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "chat_template.json",
];

/// The folder of chat templates other than the first, one in each file.
pub const TEMPLATES: &str = "additional_chat_templates";

/// The name of a template in [`TEMPLATES`], of a path in the repository.
pub fn template(path: &str) -> Option<&str> {
    let name = path.strip_prefix(TEMPLATES)?.strip_prefix('/')?;
    (name.ends_with(".jinja") && !name.contains('/')).then_some(name)
}

/// Returns true if a file of this path in the repository is read, weights aside.
pub fn is_read(path: &str) -> bool {
    NAMES.contains(&path) || template(path).is_some()
}

/// The files of the weights, each a name without folders: those that the index in `folder` lists, or where there is none
/// those of `names` that are called as weights are. `names` are the files that the repository has.
///
/// # Errors
/// An index that is damaged, that names a path, or that lists a file which is not there; no weights in this format.
pub fn weights<'a>(folder: &Path, names: impl Iterator<Item = &'a str>) -> Result<Vec<String>> {
    let there = names.map(str::to_owned).collect();
    safetensors::parts(folder, safetensors::listed(folder)?.as_ref(), &there)
}
