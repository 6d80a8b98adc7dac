//! Training and its adapters: gradients against finite differences of a naive f64 model and against a recording made by
//! automatic differentiation; the optimizer, checkpoints, memory, bad input; adapters in sessions and merged into weights.

#[path = "../common/mod.rs"]
mod common;

/// Methods and what they mean, from their papers.
#[path = "../runtime/reach/cases.rs"]
#[allow(dead_code)]
mod cases;

mod adapter;
mod checkpoint;
mod clex;
mod data;
mod delta_net;
mod differences;
mod experts;
mod faults;
mod full;
mod gradients;
mod init;
mod invalid;
mod job;
mod landmark;
mod landmark_session;
mod landmark_top;
mod math;
mod memory;
mod optim;
mod overfit;
mod parts;
mod reaches;
mod reference;
mod resumed;
mod run;
mod same;
mod set;

// What the files in `parts` use.
use ropewalk::internals::graph;
use ropewalk::{hparams, model, rope, Token};
