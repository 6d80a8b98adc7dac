//! Kinds of GGUF files that this program writes, told by its keys: as far as one may take the place of another.
#![forbid(unsafe_code)]

use std::path::Path;

use files::{Kind, Map};

use crate::{parse, Value};

/// Start of the keys that only this program writes.
const OWN: &str = "ropewalk.";

/// A model: a GGUF file with a key of this program that does not say that it is an adapter or an importance matrix.
pub const MODEL: Kind = Kind::parsed("a model with keys of ropewalk", |path| is_ours(path, "model"));
/// An adapter, with a key of this program.
pub const ADAPTER: Kind = Kind::parsed("an adapter with keys of ropewalk", |path| is_ours(path, "adapter"));
/// An importance matrix, with a key of this program.
pub const IMATRIX: Kind =
    Kind::parsed("an importance matrix with keys of ropewalk", |path| is_ours(path, "imatrix"));

/// The kind that files with this metadata are of.
pub(crate) fn of(metadata: &[(String, Value)]) -> &'static Kind {
    match general_type(metadata) {
        "adapter" => &ADAPTER,
        "imatrix" => &IMATRIX,
        _ => &MODEL,
    }
}

fn general_type(metadata: &[(String, Value)]) -> &'static str {
    match metadata.iter().find(|(key, _)| key == "general.type") {
        Some((_, Value::String(text))) if text == b"adapter" => "adapter",
        Some((_, Value::String(text))) if text == b"imatrix" => "imatrix",
        _ => "model",
    }
}

/// Returns true if the file is whole, is of this type, and has a key of this program, wherever that stands.
fn is_ours(path: &Path, of: &str) -> bool {
    let Ok(map) = Map::open(path) else { return false };
    parse(map.bytes()).is_ok_and(|header| {
        let is_marked = header.metadata.iter().any(|(key, _)| key.starts_with(OWN));
        is_marked && general_type(&header.metadata) == of
    })
}
