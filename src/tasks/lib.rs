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
mod draws;
#[cfg(test)]
mod testing;
mod text;
pub mod metrics;
mod ruler;
mod needle;
mod passkey;
mod longbench;
mod short;
mod made;
mod lveval;
mod infinitebench;
mod registry;

pub use data::DataFile;
pub use error::{Error, Result};
pub use registry::{find, find_all, Group, GROUPS, TASKS};
pub use task::{
    Answer, Ask, Encoder, Info, Judge, Likelihood, Opt, Sample, Samples, Setup, Task, Template, Token,
};
