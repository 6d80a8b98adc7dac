//! Writes the trained tensors to an adapter file.

use gguf::Output;

use super::params::Trained;
use super::{TrainAttention, Trainer};
use crate::adapter::{self, AdapterFile, AdapterMeta, NewPair, NewTensor};
use crate::ids::ParamId;
use crate::model::{Error, Result};
use crate::DType;

/// Writes what a trainer has trained as an adapter, atomically; gives its size in bytes. The file says which
/// model it is for, under which plan, attention and context it was trained, and what else `meta` says. `average` is a
/// moving average to be written instead of the values, in the order of
/// [`ParamSet::list`](super::ParamSet::list).
///
/// # Errors
/// A trainer of all parameters; a value that is not finite, the disk: then whatever was at `path` still is.
pub fn write_adapter(
    path: impl Into<Output>,
    trainer: &Trainer,
    average: Option<&[Vec<f32>]>,
    meta: AdapterMeta,
) -> Result<u64> {
    let (model, list) = (&trainer.setup.model, trainer.params().list());
    let Some(lora) = trainer.settings().trainable.lora() else {
        return Err(Error::Unsupported(
            "an adapter holds tensors trained on top of a model, not the whole model".into(),
        ));
    };
    let values = |i: usize| values(list, average, i);
    let (mut pairs, mut modules_to_save) = (Vec::new(), Vec::new());
    for (i, t) in list.iter().enumerate() {
        if let ParamId::LoraA(map) = t.id {
            let b = list.iter().position(|t| t.id == ParamId::LoraB(map));
            let b =
                b.ok_or_else(|| Error::Invalid(format!("{}: expected, found none", ParamId::LoraB(map))))?;
            let (n_in, n_out) = (t.shape[0], list[b].shape[1]);
            pairs.push(NewPair { weight: map.weight(), n_in, n_out, a: values(i), b: values(b) });
        } else if !t.id.is_lora() {
            let shape = if t.shape[1] == 1 { vec![t.shape[0]] } else { t.shape.to_vec() };
            modules_to_save.push(NewTensor { name: t.id.to_string(), shape, values: values(i) });
        }
    }
    let meta = filled(trainer, meta)?;
    let (rank, alpha) = (lora.rank, lora.alpha as f32);
    let arch = &model.hparams().arch;
    let file = AdapterFile { arch, rank, alpha, pairs, modules_to_save, meta, dtype: DType::F32 };
    Ok(adapter::write(path, &file)?)
}

/// The values of tensor `i`, or their average.
pub(super) fn values<'a>(list: &'a [Trained], average: Option<&'a [Vec<f32>]>, i: usize) -> &'a [f32] {
    average.map_or(list[i].value.as_slice(), |a| a[i].as_slice())
}

/// Metadata with what the trainer knows.
pub(super) fn filled(trainer: &Trainer, meta: AdapterMeta) -> Result<AdapterMeta> {
    let (model, settings) = (&trainer.setup.model, trainer.settings());
    let is_sparse = settings.attention != TrainAttention::Full;
    Ok(AdapterMeta {
        rope: Some(trainer.plan().frozen(model.hparams())?),
        n_ctx: Some(settings.planned_ctx()),
        attention: is_sparse.then(|| settings.attention.to_string()),
        base: Some(adapter::fingerprint(model.file())),
        rslora: settings.trainable.lora().is_some_and(|lora| lora.rslora),
        ..meta
    })
}
