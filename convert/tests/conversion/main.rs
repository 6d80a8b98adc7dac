//! Files that `convert` writes: rope methods, element types, random models; and the program from the outside.

#[path = "../../../tests/common/checkpoints.rs"]
mod checkpoints;
mod cli;
mod declared;
mod ended;
mod import;
mod lab;
#[path = "../../../tests/common/limited.rs"]
mod limited;
mod memory;
mod merge;
mod mixtures;
mod oracle;
mod peft;
mod peft_cases;
mod peft_families;
mod peft_targets;
mod random;
mod rope;
#[path = "../../../tests/common/rounding.rs"]
mod rounding;
mod tokenizers;
mod tokens;
mod types;

// What `peft_targets` compiles knows them by these names.
use convert::{Error, Result};
