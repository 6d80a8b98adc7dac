//! The programs in `examples/`, as they are without arguments.

#![allow(dead_code)] // Their `main` reads arguments.

#[path = "../../examples/embed.rs"]
mod embed;
#[path = "../../examples/evaluate.rs"]
mod evaluate;
#[path = "../../examples/finetune.rs"]
mod finetune;

#[test]
fn embed_runs() {
    embed::run(None).unwrap();
}

#[test]
fn evaluate_runs() {
    evaluate::run(None, None).unwrap();
}

#[test]
fn finetune_runs() {
    finetune::run(None, None, None).unwrap();
}
