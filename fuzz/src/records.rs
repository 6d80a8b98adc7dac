//! Files of judged samples, which `eval` goes on from.

use ropewalk::eval::suite::{FileStore, Store};
use ropewalk::study::SAMPLES;

use crate::{accepted, file};

/// Opens the file. What is kept of a sound one is read the same a second time.
pub fn run(bytes: &[u8]) -> bool {
    let path = file("in.jsonl", bytes);
    let Ok(store) = FileStore::open(&path) else {
        assert!(!accepted(FileStore::open(&path)));
        assert_eq!(std::fs::read(&path).unwrap(), bytes, "a refused file was changed");
        return false;
    };
    let n = store.len();
    assert!(store.get("", "", "").is_none_or(|r| r.id.is_empty()));
    drop(store);
    let kept = std::fs::read(&path).unwrap();
    assert!(bytes.starts_with(&kept), "records were changed");
    assert_eq!(FileStore::open(&path).unwrap().len(), n);
    true
}

/// A text that was generated, a choice, and a line that was never finished.
pub fn seeds() -> Vec<Vec<u8>> {
    let text = r#"{"task":"vt","length":4096,"id":"0","prompt_sha256":"ab","prompt_tokens":9,"answer":"<b>\n","expected":"é","scores":{"all":0.5},"tags":{"depth":"10"},"setup":"x"}"#;
    let choice = r#"{"task":"piqa","length":null,"id":"1","prompt_sha256":"cd","prompt_tokens":3,"choices":[[-1.5,2,false],[-3e2,1,true]],"expected":0,"scores":{"acc":1.0},"setup":"x"}"#;
    let header = SAMPLES.header();
    vec![
        format!("{header}{text}\n{choice}\n").into_bytes(),
        format!("{header}{text}\n{}", &choice[..40]).into_bytes(),
    ]
}
