//! The files of MMLU: of each of 57 subjects five questions for examples, and those that are asked.

use super::PACKAGE;
use crate::DataFile;

/// Files as `sha256sum` lists them, the two of a subject one after the other.
const LIST: &str = include_str!("mmlu.sha256");

static LISTED: [DataFile; 114] = {
    let mut files = [DataFile { name: "", sha256: None, from: PACKAGE }; 114];
    let (mut i, mut rest) = (0, LIST);
    while i < files.len() {
        let (sha256, behind) = rest.split_at(64);
        // Two blanks stand before the name.
        let mut end = 2;
        while behind.as_bytes()[end] != b'\n' {
            end += 1;
        }
        files[i] =
            DataFile { name: behind.split_at(end).0.split_at(2).1, sha256: Some(sha256), from: PACKAGE };
        rest = behind.split_at(end + 1).1;
        i += 1;
    }
    files
};

pub static FILES: [&DataFile; 114] = {
    let mut files = [&LISTED[0]; 114];
    let mut i = 1;
    while i < files.len() {
        files[i] = &LISTED[i];
        i += 1;
    }
    files
};
