//! Running a model: sessions, their cache and rotation, every rope method, and the logits of independent programs.

#[path = "../common/mod.rs"]
mod common;
#[path = "../common/checkpoints.rs"]
mod checkpoints;

mod architectures;
mod columns;
mod declared;
mod errors;
mod examples;
mod experts;
mod figures;
mod imported;
mod kv;
mod libllama;
mod math;
mod matmul;
mod online;
mod reach;
mod reference;
mod rotation;
mod session;

// For `src/scheduler/scores.rs` in `session::scheduler::parts`.
use ropewalk::Token;
