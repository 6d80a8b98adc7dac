//! The kinds of files in a study's folder: each is replaced only by its like.

use files::Kind;

/// A copy of a plan is made where nothing is.
pub(super) const PLAN: Kind = Kind::new("a copy of this plan", |_| false);
pub(super) const CELL: Kind = Kind::new("the result of a cell", |head| head.starts_with(b"{\n  \"hash\":"));
pub(super) const SAMPLES: Kind = Kind::new("samples of a cell", |head| head.starts_with(b"{\"task\":"));
/// The files of a report, and their kinds.
pub(crate) const REPORTS: [(&str, Kind); 2] = [
    (
        "report.html",
        Kind::new("the report of a study", |head| {
            head.starts_with(b"<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n")
                && contains(head, b"http-equiv=\"Content-Security-Policy\"")
        }),
    ),
    (
        "report.md",
        Kind::new("the report of a study", |head| {
            head.starts_with(b"# ") && contains(head, b"\n- **Method**: a way to run the model beyond")
        }),
    ),
];

fn contains(all: &[u8], part: &[u8]) -> bool {
    all.windows(part.len()).any(|bytes| bytes == part)
}
