//! Kinds of GGUF files, as far as one may take the place of another.
#![forbid(unsafe_code)]

use files::Kind;

use crate::Value;

/// A model: any GGUF file that says of itself to be nothing else.
pub const MODEL: Kind = Kind::new("a model in GGUF", |head| {
    head.starts_with(b"GGUF") && !matches!(general_type(head), Some(b"adapter" | b"imatrix"))
});
/// An adapter.
pub const ADAPTER: Kind = Kind::new("an adapter in GGUF", |head| {
    head.starts_with(b"GGUF") && general_type(head) == Some(b"adapter")
});
/// An importance matrix.
pub const IMATRIX: Kind = Kind::new("an importance matrix in GGUF", |head| {
    head.starts_with(b"GGUF") && general_type(head) == Some(b"imatrix")
});

/// The kind that files with this metadata are of.
pub(crate) fn of(metadata: &[(String, Value)]) -> &'static Kind {
    let text = metadata.iter().find(|(key, _)| key == KEY).map(|(_, value)| value);
    let text = match text {
        Some(Value::String(text)) => Some(text.as_slice()),
        _ => None,
    };
    match text {
        Some(b"adapter") => &ADAPTER,
        Some(b"imatrix") => &IMATRIX,
        _ => &MODEL,
    }
}

const KEY: &str = "general.type";

/// The text under `general.type`, which writers put among the first keys.
fn general_type(head: &[u8]) -> Option<&[u8]> {
    let mut key = (KEY.len() as u64).to_le_bytes().to_vec();
    key.extend(KEY.as_bytes());
    // The type of a text.
    key.extend(8u32.to_le_bytes());
    let at = head.windows(key.len()).position(|bytes| bytes == key)? + key.len();
    let (length, rest) = head[at..].split_first_chunk::<8>()?;
    rest.get(..usize::try_from(u64::from_le_bytes(*length)).ok()?)
}

#[cfg(test)]
mod tests {
    use crate::Writer;

    #[test]
    fn one_kind_does_not_replace_another() {
        let dir = tempfile::tempdir().unwrap();
        let kinds = ["", "adapter", "imatrix"];
        for (i, old) in kinds.iter().enumerate() {
            for (j, new) in kinds.iter().enumerate() {
                let path = dir.path().join(format!("{i}{j}"));
                let write = |of: &str| {
                    let mut w = Writer::new();
                    if !of.is_empty() {
                        w.set("general.type", of);
                    }
                    w.write(&path)
                };
                write(old).unwrap();
                let before = std::fs::read(&path).unwrap();
                let done = write(new);
                assert_eq!(done.is_ok(), i == j, "{old} {new}: {done:?}");
                assert_eq!(std::fs::read(&path).unwrap(), before);
            }
        }
    }
}
