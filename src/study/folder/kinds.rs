//! The kinds of files in a study's folder: each is replaced only by its like.

use files::{foreign, Kind};

use super::records::MAX_RECORD;
use crate::outcome::Record;

/// A copy of a plan is made where nothing is.
pub(super) const PLAN: Kind = Kind::new("a copy of this plan", |_| false);
pub(super) const CELL: Kind = Kind::parsed("the result of a cell", |path| {
    foreign::read_file(path, MAX_RECORD).is_ok_and(|bytes| serde_json::from_slice::<Record>(&bytes).is_ok())
});
/// Samples, of a cell or of an evaluation without a study: a header, and a line of JSON for each.
pub const SAMPLES: Kind = Kind::record("the record of an evaluation");
/// A comment near the start of a report, in HTML and in Markdown.
pub(crate) const MARK: &str = "<!-- written by ropewalk study -->\n";
/// The files of a report, and their kinds.
pub(crate) const REPORTS: [(&str, Kind); 2] = [
    (
        "report.html",
        Kind::new("the report of a study", |head| {
            let rest = head.strip_prefix(b"<!DOCTYPE html>\n");
            rest.is_some_and(|rest| rest.starts_with(MARK.as_bytes()))
        }),
    ),
    ("report.md", Kind::new("the report of a study", |head| head.starts_with(MARK.as_bytes()))),
];
