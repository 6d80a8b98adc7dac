//! What a trainer holds, written as an adapter.

use std::path::Path;

use ropewalk::adapter::{self, AdapterFile, Keys, NewPair, NewTensor};
use ropewalk::ids::ParamId;
use ropewalk::model::Model;
use ropewalk::train::{LoraParams, Trainer};
use ropewalk::DType;

/// Writes the adapter of a trainer: every pair and every whole tensor, the plan trained under, the model's fingerprint.
pub(crate) fn write(path: &Path, model: &Model, trainer: &Trainer<'_>, lora: &LoraParams) {
    let params = trainer.params();
    let (mut pairs, mut whole) = (Vec::new(), Vec::new());
    for t in params.list() {
        if let ParamId::LoraA(map) = t.id {
            let b = params.list().iter().find(|t| t.id == ParamId::LoraB(map)).unwrap();
            pairs.push(NewPair {
                weight: map.weight(),
                n_in: t.shape[0],
                n_out: b.shape[1],
                a: &t.value,
                b: &b.value,
            });
        } else if !t.id.is_lora() {
            let shape = if t.shape[1] == 1 { vec![t.shape[0]] } else { t.shape.to_vec() };
            whole.push(NewTensor { name: t.id.to_string(), shape, values: &t.value });
        }
    }
    assert_eq!(2 * pairs.len() + whole.len(), params.list().len());
    let keys = Keys {
        rope: Some(trainer.plan().spec.clone()),
        n_ctx: Some(trainer.plan().n_ctx),
        base: Some(adapter::fingerprint(model.file())),
        steps: Some(0),
        rslora: lora.rslora,
        ..Keys::default()
    };
    let arch: String = model.file().get("general.architecture").unwrap();
    let (rank, alpha) = (lora.rank, lora.alpha as f32);
    let file = AdapterFile { arch: &arch, rank, alpha, pairs, whole, keys, dtype: DType::F32 };
    adapter::write(path, &file).unwrap_or_else(|e| panic!("{e}"));
}
