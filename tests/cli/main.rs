//! The program `ropewalk` from the outside: what each command prints, writes and refuses, its exit codes and its signals.

#[path = "../common/mod.rs"]
mod common;
#[cfg(unix)]
#[path = "../common/limited.rs"]
mod limited;

mod attention;
mod bench;
mod chat;
#[cfg(unix)]
mod data;
mod eval;
mod evening;
mod examples;
mod fetch;
mod finetune;
mod finetune_data;
mod finetune_ended;
mod finetune_recipes;
#[cfg(unix)]
mod guide;
mod hub;
mod imatrix;
mod kernels;
mod killed;
mod landmark;
mod lora;
mod manifest;
mod memory;
mod models;
#[cfg(unix)]
mod outputs;
mod perplexity;
mod pull;
mod pull_folder;
mod pull_hostile;
#[cfg(unix)]
mod pull_planted;
mod recipes;
mod rope;
#[cfg(unix)]
mod serve;
#[cfg(target_os = "linux")]
mod slurm;
mod stages;
mod stopped;
mod study;
mod template;
mod text;
mod units;
mod usage;
#[cfg(unix)]
mod vanished;
