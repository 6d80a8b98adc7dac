//! Training data: what is found, tokenized, kept in the cache, split and packed; chat templates, and answers in their form.

#[path = "../common/mod.rs"]
mod common;

mod answers;
mod cache;
mod families;
mod packing;
mod recorded;
mod rendering;
mod sources;
mod split;
mod templates;
mod tokens;
mod world;
