//! Training data: what is found, tokenized, kept in the cache, split and packed.

#[path = "../common/mod.rs"]
mod common;

mod cache;
mod families;
mod packing;
mod recorded;
mod sources;
mod split;
mod templates;
mod tokens;
mod world;
