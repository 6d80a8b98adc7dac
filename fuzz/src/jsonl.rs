//! JSON Lines: texts, or one error.

use std::path::Path;

use ropewalk::jsonl::Texts;

use crate::accepted;

/// Reads all texts, replacing bytes that are not UTF-8 if the first byte says so.
pub fn run(bytes: &[u8]) -> bool {
    let replace = bytes.first().is_some_and(|b| b & 1 == 1);
    Texts::new(Path::new("in.jsonl"), bytes, "text", replace).all(|text| {
        accepted(text.map(|(line, text)| {
            // A byte that is not UTF-8 becomes three.
            assert!(line > 0 && text.len() <= 3 * bytes.len());
        }))
    })
}

/// Lines as they should be.
pub fn seeds() -> Vec<Vec<u8>> {
    vec![
        b"{\"text\": \"a\"}\n\n{\"id\": [1, {\"x\": null}], \"text\": \"\\u00e9\\ud83d\\ude00\"}\n".to_vec(),
        b"\xef\xbb\xbf{\"text\":\"b\",\"n\":-1.5e300,\"t\":true}".to_vec(),
    ]
}
