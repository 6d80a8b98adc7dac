//! Which files of a repository an import reads.

use std::path::Path;

use crate::safetensors;
use crate::Result;

/// Those beside the weights; a model has some of them.
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

/// Whether a file of this name is read, other than weights.
pub fn is_read(name: &str) -> bool {
    NAMES.contains(&name)
}

/// The files of the weights, each a name without folders: those that the index in `folder` lists, or where there is none
/// those of `names` that are called as weights are. `names` are the files that the repository has.
///
/// # Errors
/// An index that is damaged, that names a path, or that lists a file which is not there; no weights in this format.
pub fn weights<'a>(folder: &Path, names: impl Iterator<Item = &'a str>) -> Result<Vec<String>> {
    safetensors::parts(folder, names.map(str::to_owned).collect())
}
