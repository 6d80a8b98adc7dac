//! A model's numbers, rope methods and adapter files: all that is known of a model without computing with it.
//! Also [`setters!`], the macro of settings structs, [`control`], by which long functions of all crates report progress and are canceled, [`terminal`], through
//! which programs print, [`text`], which decodes the texts of files, and [`apart`], which runs work on bytes from strangers in a separate process.
//!
//! No C is needed to compile this crate. It hands out values of quantized types as bytes, for callers to
//! dequantize.
#![forbid(unsafe_code)]

pub mod control;
pub mod divergence;
pub mod remedy;
pub mod settings;
mod setters;
pub mod terminal;
pub mod text;
pub mod tokenizer;
pub mod apart;
pub mod longppl;
#[cfg(feature = "signals")]
pub mod signals;
#[cfg(feature = "signals")]
pub mod program;
pub mod ids;
pub mod hparams;
pub mod rope;
pub mod landmark;
pub mod adapter;
pub mod contents;
#[cfg(test)]
mod tests;
