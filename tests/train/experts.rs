//! Training of mixtures of experts: gradients against central differences, and what is refused.

use convert::random::Shape;
use ropewalk::model::Model;
use ropewalk::train::{TrainParams, Trainer};
use ropewalk::DType;

use crate::common::made;
use crate::differences::check;
use crate::gradients::{lora, settings, targets, N_VOCAB};

fn mixture(name: &str, dtype: DType) -> Model {
    let shape = Shape {
        n_embd: 64,
        n_head: 4,
        n_embd_head: 32,
        n_ff: 96,
        n_vocab: N_VOCAB,
        n_ctx_train: 64,
        ..Shape::named(name).unwrap()
    };
    made(&format!("train-{name}-{}.gguf", dtype.name()), &shape, dtype, 12)
}

/// Every map that can have a low-rank pair.
fn settings_of_mixtures(n_ctx: usize, n_block: usize, spec: &str) -> TrainParams {
    let mut settings = settings(n_ctx, n_block, spec);
    lora(&mut settings).targets = targets(&["q", "k", "v", "o", "router"]);
    settings
}

#[test]
fn gradients_are_those_of_finite_differences() {
    for name in ["qwen3moe-tiny", "gpt-oss-tiny"] {
        for dtype in [DType::F32, DType::Q8_0] {
            let model = mixture(name, dtype);
            for spec in ["plain", "yarn:factor=4"] {
                let mut settings = settings_of_mixtures(40, 16, spec);
                check(&format!("{name} {} {spec}", dtype.name()), &model, &settings, 37, &[], false);
                lora(&mut settings).norms = true;
                lora(&mut settings).targets = targets(&["q", "output"]);
                check(
                    &format!("{name} {} {spec}, norms", dtype.name()),
                    &model,
                    &settings,
                    24,
                    &[0, 9],
                    true,
                );
            }
        }
    }
}

#[test]
fn what_cannot_be_trained_is_refused_by_name() {
    let model = mixture("qwen3moe-tiny", DType::F32);
    let refused = |settings: &TrainParams| match Trainer::new(&model, settings) {
        Err(e) => e.to_string(),
        Ok(_) => panic!("accepted"),
    };
    for target in ["gate_exps", "up_exps", "down_exps"] {
        let mut settings = settings_of_mixtures(32, 16, "plain");
        lora(&mut settings).targets = targets(&["q", target]);
        let what = refused(&settings);
        assert!(what.contains(target) && what.contains("expert weights"), "{what}");
    }
    let mut settings = settings_of_mixtures(32, 16, "plain");
    lora(&mut settings).targets = targets(&["q", "gate"]);
    assert!(refused(&settings).contains("ffn_gate.weight"));
    let portable = settings_of_mixtures(32, 16, "plain").portable(true);
    assert!(refused(&portable).contains("mixture of experts"), "{}", refused(&portable));
    // All are those of attention: routers are trained where they are named.
    let mut all = settings_of_mixtures(32, 16, "plain");
    lora(&mut all).targets = targets(&["all"]);
    let trainer = Trainer::new(&model, &all).unwrap();
    let names: Vec<String> = trainer.params().list().iter().map(|t| t.id.to_string()).collect();
    assert!(names.iter().all(|name| name.contains("attn_")) && names.len() == 2 * 2 * 4, "{names:?}");
}
