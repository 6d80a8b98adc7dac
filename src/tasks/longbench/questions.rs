//! The questions of TREC's question classification (Li and Roth 2002), with the names that LongBench gives their
//! types.

use std::path::Path;

use crate::metrics::python;
use crate::{DataFile, Error, Result};

/// The 5,452 questions to learn from (MD5 of the published file: 073462e3fcefaae31e00edb1f18d2d02).
pub(super) static TRAIN: DataFile = DataFile {
    name: "trec/train_5500.label",
    sha256: None,
    from: "it is part of the Experimental Data for Question Classification, University of Illinois (cogcomp, Data/QA/QC)",
};

/// The 500 questions to test with (MD5 of the published file: 323a3554401d86e650717e2d2f942589).
pub(super) static TEST: DataFile = DataFile { name: "trec/TREC_10.label", ..TRAIN };

/// A question and its type.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Question {
    pub(super) text: String,
    pub(super) label: &'static str,
}

impl Question {
    /// Form in which LongBench asks the question.
    pub(super) fn open(&self) -> String {
        format!("Question: {}\nType:", self.text)
    }

    /// Form in which LongBench shows the question among the examples.
    pub(super) fn answered(&self) -> String {
        format!("{} {}", self.open(), self.label)
    }
}

/// Reads a file of lines like `NUM:dist How far is it from Denver to Aspen ?`.
///
/// The one byte beyond ASCII, 0xF0 in the middle of a name, becomes a space, as in the data set
/// `trec` that LongBench is made from; others would be Latin-1.
pub(super) fn read(file: &DataFile, folder: &Path) -> Result<Vec<Question>> {
    let text: String =
        file.read(folder)?.iter().map(|&b| if b == 0xf0 { ' ' } else { char::from(b) }).collect();
    let mut questions = Vec::new();
    for (i, line) in text.lines().enumerate() {
        let line = line.trim_matches(python::is_space);
        if line.is_empty() {
            continue;
        }
        let fault = |found: &str| {
            let known: Vec<_> = labels().map(|(fine, _)| fine).collect();
            let found: String = found.chars().take(40).collect();
            Error::file(
                folder.join(file.name),
                format!(
                    "line {}: expected a type of {} and a question, found {found:?}",
                    i + 1,
                    known.join(", ")
                ),
            )
        };
        let (fine, text) = line.split_once(' ').ok_or_else(|| fault(line))?;
        let (_, label) = labels().find(|(name, _)| *name == fine).ok_or_else(|| fault(fine))?;
        questions.push(Question { text: text.to_owned(), label });
    }
    Ok(questions)
}

/// TREC's types in the order of LongBench's `all_classes`, with LongBench's names. These are the descriptions
/// of the data set `trec` less their last character, a full stop in all but two.
pub fn labels() -> impl Iterator<Item = (&'static str, &'static str)> {
    include_str!("labels.txt").lines().filter_map(|line| line.split_once(' '))
}
