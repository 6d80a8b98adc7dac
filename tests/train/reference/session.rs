//! An adapter out of a trainer gives in a session the loss that the trainer says.

use ropewalk::adapter::{AdapterMeta, AdapterSpec};
use ropewalk::model::{Model, ModelParams};
use ropewalk::train::{write_adapter, Sequence, TrainParams};
use ropewalk::DType;

use super::recording::{recording, trainer};
use super::{of_loss, wide, wide_file};
use crate::common::{open, params, scratch};

/// On the file in F32, with an F32 cache; the session takes the rope from the adapter.
#[test]
fn a_session_with_the_adapter_has_the_loss_of_the_trainer() {
    let recording = recording();
    for (name, whole) in [("plain-all", false), ("harpe-attention", true)] {
        let (case, tokens) = (recording.case(name), &recording.text()[..160]);
        let mut lora = recording.lora(&case.targets);
        (lora.norms, lora.embeddings) = (whole, whole);
        let settings =
            TrainParams::new(tokens.len()).rope(Some(case.spec.parse().unwrap())).n_threads(1).lora(lora);
        let mut trainer = trainer(wide(), &settings, true);
        let before = trainer.loss(Sequence::new(tokens)).unwrap();
        if whole {
            // Norms up, embeddings down, by amounts that differ from element to element.
            for t in
                trainer.params_mut().list_mut().iter_mut().filter(|t| !t.id.to_string().contains(".lora_"))
            {
                t.value.iter_mut().enumerate().for_each(|(i, v)| *v *= 1.0 + (i % 7) as f32 * 0.01 - 0.02);
            }
            trainer.params().upload().unwrap();
        }
        let want = trainer.loss(Sequence::new(tokens)).unwrap();
        assert!(!whole || (want / before - 1.0).abs() > 1e-3, "{name}: {want} beside {before}");
        let path = scratch(&format!("train-reference-{name}.gguf"));
        write_adapter(&path, &trainer, None, AdapterMeta::default()).unwrap();
        drop(trainer);
        let adapters = vec![AdapterSpec::new(path.clone(), 1.0)];
        let model = Model::load(wide_file(), &ModelParams::cpu().adapters(adapters)).unwrap();
        let mut session = open(&model, &params(tokens.len()).kv_type(DType::F32));
        let nll = session.nll(tokens, 1..tokens.len()).unwrap();
        let found = nll.iter().map(|&x| f64::from(x)).sum::<f64>() / nll.len() as f64;
        println!("{name}: {found} in a session, {want} in training, {before} before");
        let bound = 2.0 * of_loss(model.hparams(), tokens.len());
        assert!((found / want - 1.0).abs() < bound, "{name}: {found} in a session, {want} in training");
        drop(session);
        drop(model);
        std::fs::remove_file(path).unwrap();
    }
}
