//! Controlled studies: every model under every method, measured by every task at every length, and one report
//! that says what came of it.
//!
//! This crate does not run models. A [`Plan`] describes the study and gives its [`Cell`]s. [`run`] lets a
//! [`Runner`] measure them one after another, and keeps each [`CellResult`] in a separate file, so that a study
//! can be stopped, resumed, cut into [`Unit`]s for several machines, and combined by [`merge`].
//! [`report::Report`] shows a folder of results as one HTML page and as Markdown.
#![forbid(unsafe_code)]

mod error;
mod plan;
mod cell;
mod outcome;
mod stats;
mod units;
mod folder;
pub mod report;
mod run;
mod work;

pub use cell::{Cell, Key};
pub use error::{Error, Result};
pub use folder::{merge, Folder, Results, SAMPLES};
pub use outcome::{Breakdown, Bucket, CellResult, Failure, Metric, Record, State};
pub use plan::{
    Attention, Known, Method, Model, Names, Parameters, Plan, Recipe, Task, Template, Trained, MAX_CELLS,
};
pub use run::{run, Estimate, Runner, Summary};
pub use stats::{pearson, spearman};
pub use units::Unit;
pub use work::{list, list_units, Listing, Row, UnitRow, Units, Work};
