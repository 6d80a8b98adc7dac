//! A text learned by heart, and the adapter of it in a session.

use ropewalk::adapter::AdapterMeta;
use ropewalk::train::optim::{Decay, OptimParams, Optimizer, Schedule};
use ropewalk::train::{write_adapter, Checkpointing, Sequence, Trainer};
use ropewalk::{DType, Token};

use crate::common::rounding::two_orders;
use crate::common::{essays, mean_nll, open, params, roundings, scratch, with_adapter};
use crate::gradients::{lora, models, settings, targets, ALL};

/// 512 letters of a text, on a model of random weights: from the loss of guessing to nearly none.
#[test]
fn a_text_is_learnt_by_heart() {
    let (_, model) = models().remove(0);
    let tokens: Vec<Token> = essays().bytes().take(513).map(|b| Token::from(b) + 3).collect();
    let mut how = settings(512, 512, "plain").checkpointing(Some(Checkpointing::Products)).n_block(512);
    let pairs = lora(&mut how);
    pairs.targets = targets(&ALL);
    (pairs.rank, pairs.alpha, pairs.norms, pairs.embeddings) = (16, 32.0, true, true);
    let mut trainer = Trainer::new(&model, &how).unwrap();
    let schedule = Schedule::constant(1e-2, 110).lr_min(1e-3).warmup(5).decay(Decay::Cosine);
    let optim = OptimParams::new(schedule);
    let mut optimizer = Optimizer::new(optim, trainer.params()).unwrap();
    let sequence = Sequence::new(&tokens);
    let first = trainer.loss(sequence).unwrap();
    assert!(first > 3.0, "{first}");
    for _ in 0..schedule.steps {
        trainer.accumulate(sequence, 1.0).unwrap();
        optimizer.step(trainer.params_mut()).unwrap();
    }
    let last = trainer.loss(sequence).unwrap();
    println!("{first} before, {last} after");
    assert!(last < 0.05, "{first} before, {last} after");
}

/// After steps on pairs, norms and embeddings, in ropes of each kind; the session's rope is the adapter's.
#[test]
fn an_adapter_has_in_a_session_the_loss_it_was_trained_to() {
    for (i, (about, model)) in models().iter().enumerate() {
        for (spec, rslora) in [("plain", false), ("harpe", true), ("sba:factor=4", false)] {
            let mut how = settings(48, 20, spec);
            let pairs = lora(&mut how);
            (pairs.norms, pairs.embeddings, pairs.rslora) = (true, i != 1, rslora);
            let mut trainer = match Trainer::new(model, &how) {
                Ok(trainer) => trainer,
                // What is rotated in cohere2 has a window, on which no method acts.
                Err(_) if model.hparams().arch == "cohere2" && spec != "plain" => continue,
                Err(e) => panic!("{about}, {spec}: {e}"),
            };
            let schedule = Schedule::constant(5e-3, 9);
            let optim = OptimParams::new(schedule).clip(0.0);
            let mut optimizer = Optimizer::new(optim, trainer.params()).unwrap();
            let tokens = crate::common::some_tokens(48, crate::gradients::N_VOCAB);
            let fresh = trainer.loss(Sequence::new(&tokens)).unwrap();
            for _ in 0..4 {
                trainer.accumulate(Sequence::new(&tokens), 1.0).unwrap();
                optimizer.step(trainer.params_mut()).unwrap();
            }
            let want = trainer.loss(Sequence::new(&tokens)).unwrap();
            assert!(want < 0.98 * fresh, "{about}: {want}, {fresh} untrained");
            let path = scratch(&format!("train-adapter-{i}.gguf"));
            write_adapter(&path, &trainer, None, AdapterMeta::default()).unwrap();
            let with = with_adapter(model, &path);
            // What the file itself declares comes first, and must be replaced by name.
            let declares = with.hparams().rope_scaling.kind.is_some();
            let rope = declares.then(|| spec.parse().unwrap());
            let mut session = open(&with, &params(48).kv_type(DType::F32).rope(rope));
            let found = mean_nll(&mut session, &tokens);
            let about = format!("{about}, {spec}");
            assert!(
                (found / want - 1.0).abs() < two_orders(roundings(with.hparams(), 48)),
                "{about}: {found} in a session, {want} in training"
            );
            drop(session);
            drop(with);
            std::fs::remove_file(path).unwrap();
        }
    }
}
