//! Training of all parameters of a floating-point model, and the resulting model as a GGUF file.

use std::collections::HashMap;

use convert::rope::{FactorTensors, Factors};
use gguf::{float, File, Output, TensorInfo, Writer};

use super::export::values;
use super::{Trainable, Trainer};
use crate::adapter::AdapterMeta;
use crate::hparams::keys;
use crate::ids::ParamId;
use crate::model::{Error, Model, Result};
use crate::rope::Spec;
use crate::DType;

const CHUNK: usize = 1 << 16;

/// Every parameter of the model with its shape, layer by layer: weights and biases of linear maps, then norms and the
/// embedding.
///
/// # Errors
/// Experts, attention sinks or gated delta-nets, which have no gradient here; weights that are no floats.
pub(super) fn shapes(model: &Model) -> Result<Vec<(ParamId, [usize; 2])>> {
    let (hp, transformer) = (model.hparams(), model.transformer());
    let no = |what: String| Err(Error::Unsupported(format!("targets full: {what}")));
    if hp.experts.is_some() {
        return no("the weights of experts have no gradient here; train low-rank pairs for attention".into());
    }
    if transformer.layers.iter().any(|layer| layer.sinks().is_some()) {
        return no("attention sinks have no gradient here; train low-rank pairs".into());
    }
    if hp.delta_net.is_some() {
        return no(
            "convolutions and rates of gated delta-nets have no gradient here; train low-rank pairs".into()
        );
    }
    let mut maps = transformer.linears().to_vec();
    maps.sort_by_key(|map| (map.id.layer.is_none(), map.id));
    let mut out = Vec::new();
    for map in maps {
        if map.weight_id != ParamId::Embedding {
            out.push((map.weight_id, [map.n_in, map.n_out]));
        }
        out.extend(map.bias.then_some((ParamId::Bias(map.id), [map.n_out, 1])));
    }
    let mut norms = transformer.norms().to_vec();
    norms.sort();
    out.extend(norms.into_iter().map(|(id, n)| (id, [n, 1])));
    out.push((ParamId::Embedding, [hp.n_embd, hp.n_vocab]));
    for (id, _) in &out {
        let name = id.to_string();
        let file = model.file();
        let info = file.tensor(&name).ok_or_else(|| file.error(&name, "expected a tensor, found none"))?;
        if !is_float(info.dtype) {
            return no(format!(
                "{name}: expected f32, f16 or bf16, found {}, whose steps are larger than training updates; \
                 convert the model to f32, or train low-rank pairs",
                info.dtype
            ));
        }
    }
    Ok(out)
}

fn is_float(dtype: DType) -> bool {
    matches!(dtype, DType::F32 | DType::F16 | DType::BF16)
}

/// Writes the model that a trainer of all parameters has made as a GGUF file, atomically; gives its size in bytes.
/// Metadata and tensors that are not parameters are those of the model's file. The rope method and the context are those
/// of training, written as in a conversion; `meta` says how it was trained, as in adapter files. `average` as for [`write_adapter`](super::write_adapter).
///
/// Values are written as F32, as they were trained. With `types`, a model's file, matrices have the types that they have
/// there, F16 and BF16 rounded to the nearest, ties to even; vectors are F32 all the same.
///
/// # Errors
/// A trainer of low-rank pairs; a value that is not finite or that the type cannot hold; the disk: then whatever was
/// at `path` still is.
pub fn write_model(
    path: impl Into<Output>,
    trainer: &Trainer,
    average: Option<&[Vec<f32>]>,
    types: Option<&File>,
    meta: AdapterMeta,
) -> Result<u64> {
    if trainer.settings().trainable != Trainable::Full {
        return Err(Error::Unsupported("a model can be written only if all parameters are trained".into()));
    }
    // The model's own file has forgotten the arrays of its vocabulary.
    let file = File::open(trainer.setup.model.file().path())?;
    let list = trainer.params().list();
    let index: HashMap<String, usize> = list.iter().enumerate().map(|(i, t)| (t.id.to_string(), i)).collect();
    let mut writer = Writer::with_metadata_of(&file);
    writer.remove(keys::SOURCE);
    let factors = set_rope(&mut writer, &file, trainer)?;
    super::export::filled(trainer, meta)?.set_trained(&mut writer)?;
    for (name, factors) in &factors {
        factors.add(&mut writer, name).map_err(of_convert)?;
    }
    for info in file.tensors() {
        if factors.iter().any(|(name, factors)| info.name == *name && *factors != Factors::Same) {
            continue;
        }
        let Some(&i) = index.get(&info.name) else {
            writer.copy_tensor(&file, info)?;
            continue;
        };
        let wanted = types.and_then(|file| file.tensor(&info.name)).map(|t| t.dtype);
        let to = wanted.filter(|&t| is_float(t) && info.shape.len() > 1).unwrap_or(DType::F32);
        let values = values(list, average, i);
        check(info, values, to)?;
        let data = move |out: &mut dyn std::io::Write| {
            values.chunks(CHUNK).try_for_each(|chunk| {
                out.write_all(&float::encode(to, chunk).map_err(std::io::Error::other)?)
            })
        };
        writer.tensor(&info.name, to, &info.shape, Box::new(data))?;
    }
    Ok(writer.write(path)?)
}

fn check(info: &TensorInfo, values: &[f32], to: DType) -> Result<()> {
    let limit = to.max_abs();
    match values.iter().position(|x| !x.is_finite() || x.abs() > limit) {
        Some(i) => Err(Error::Invalid(format!(
            "{}: expected finite values up to {limit} for {to}, found {} at {i}",
            info.name, values[i]
        ))),
        None => Ok(()),
    }
}

/// Declares the spec and the context of training, where the file declares another spec or a shorter context.
fn set_rope(writer: &mut Writer<'_>, file: &File, trainer: &Trainer) -> Result<FactorTensors> {
    let (hp, plan, n_ctx) = (trainer.setup.model.hparams(), trainer.plan(), trainer.settings().planned_ctx());
    let spec = plan.frozen(hp)?;
    let is_declared = Spec::declared(hp).is_ok_and(|own| own == plan.spec || own == spec);
    if is_declared && n_ctx <= hp.n_ctx_train {
        return Ok(Vec::new());
    }
    convert::rope::declare(writer, file, &spec, n_ctx).map_err(of_convert)
}

fn of_convert(e: convert::Error) -> Error {
    Error::Invalid(e.to_string())
}
