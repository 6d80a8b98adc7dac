//! The numbers of a model, rope methods, and adapter files: all that is known of a model without computing with it. And
//! [`control`], by which the other crates' long work is watched and stopped.
//!
//! No C is needed to compile this crate. Values of quantised types are handed out as bytes; whoever can dequantize them does.
#![forbid(unsafe_code)]

pub mod control;
pub mod ids;
pub mod hparams;
pub mod rope;
pub mod adapter;
