//! Rope methods as data: hyper-parameters read from files, the tables methods make of them, and what every
//! method promises.

mod hparams;
mod properties;
mod tables;
