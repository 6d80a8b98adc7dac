//! Benchmarks of language models: what is asked, and how answers are judged.
//!
//! A [`Task`] makes [`Sample`]s: a prompt, what is wanted of the model ([`Ask`]), and a function that judges
//! the [`Answer`]. A task knows the model only as an [`Encoder`], which counts and cuts text in its tokens.
//! Running models and averaging scores is the work of `ropewalk::eval`.
//!
//! All tasks are in [`TASKS`], families of them in [`GROUPS`].
#![forbid(unsafe_code)]

mod error;
mod data;
mod task;
// Only `internals` shows items of these: those whose names and types say all have no doc comments.
#[allow(missing_docs)]
mod draws;
#[allow(missing_docs)]
mod text;
pub mod metrics;
#[allow(missing_docs)]
mod ruler;
#[allow(missing_docs)]
mod needle;
#[allow(missing_docs)]
mod passkey;
#[allow(missing_docs)]
mod longbench;
#[allow(missing_docs)]
mod short;
#[allow(missing_docs)]
mod made;
#[allow(missing_docs)]
mod lveval;
#[allow(missing_docs)]
mod infinitebench;
mod registry;
#[doc(hidden)]
pub mod internals;

pub use data::DataFile;
pub use error::{Error, Result};
pub use registry::{find, find_all, Group, GROUPS, TASKS};
pub use task::{
    named_texts, Answer, Ask, Encoder, Info, Judge, Likelihood, Opt, Sample, Samples, Setup, Task, Template,
    Token,
};
