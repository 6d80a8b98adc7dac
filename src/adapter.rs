//! LoRA adapters on a model's device: low-rank pairs added to its weights, and tensors that replace its own.
//!
//! [`ropewalk_core::adapter`] reads and writes the files; this module also exports its items.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use ggml::backend::Device;
use ggml::dtype::dequantize_tensor;
use ggml::tensor::{Store, StoreTensor, TensorDef};
use ggml::{DType, Result};

use crate::hparams::{ClexNet, Hparams};
use crate::ids::{LinearId, ParamId};
use crate::landmark::Landmarks;
use crate::rope::Spec;
use crate::weights::TensorSpec;

pub use ropewalk_core::adapter::*;

/// One low-rank pair: a linear map with it computes `W x + scale * B (A x)`.
#[derive(Debug, Clone)]
pub struct LowRankPair {
    /// F32 `[n_in, rank]`.
    pub a: StoreTensor,
    /// F32 `[rank, n_out]`.
    pub b: StoreTensor,
    /// `alpha / rank`, or `alpha / sqrt(rank)` for rsLoRA, times the scale that the user asks for.
    pub scale: f32,
}

/// The network of CLEX that one of the adapters brings, at its scale.
///
/// # Errors
/// A network for other rotary dimensions than the model's; a value that is not finite.
pub(crate) fn clex_net(opened: &[(AdapterReader, f32)], hp: &Hparams) -> Result<Option<ClexNet>> {
    let Some((reader, scale)) = opened.iter().find(|(o, _)| o.clex().is_some()) else { return Ok(None) };
    let net = reader.clex_net(*scale, dequantize_tensor)?;
    let pairs = |n: usize| hp.attention.iter().any(|layer| layer.n_rot() == 2 * n);
    if let Some(found) = net.as_ref().map(ClexNet::n_pairs).filter(|n| !pairs(*n)) {
        let what = format!("expected half of the model's rotary dimensions, found {found}");
        return Err(reader.file().error(&ParamId::ClexUp.to_string(), what).into());
    }
    Ok(net)
}

/// A tensor of an adapter file, in the order of the store it is uploaded to.
enum Stored<'a> {
    A(&'a PairInfo),
    B(&'a PairInfo),
    Module(&'a ModuleInfo),
}

/// An adapter on a model's device.
#[derive(Debug, Clone, Default)]
pub struct Adapter {
    pairs: HashMap<LinearId, LowRankPair>,
    modules_to_save: HashMap<ParamId, StoreTensor>,
    trained: Option<(PathBuf, Spec)>,
    landmarks: Option<Landmarks>,
    digest: String,
    keeps_output: bool,
}

impl Adapter {
    /// An adapter of tensors that are on the model's device already. Those of `modules_to_save` replace the
    /// model's: F32, of the same shapes.
    pub fn from_parts(
        pairs: HashMap<LinearId, LowRankPair>,
        modules_to_save: HashMap<ParamId, StoreTensor>,
    ) -> Adapter {
        Adapter { pairs, modules_to_save, ..Adapter::default() }
    }

    /// Uploads an adapter that suits `base` (see [`open_all`]) to the device, as F32. `known` are the tensors
    /// of the architecture.
    ///
    /// # Errors
    /// A tensor that is none of `known`; a value that is not finite; too little memory.
    pub fn load(
        opened: &AdapterReader,
        scale: f32,
        base: &gguf::File,
        known: &[TensorSpec],
        device: Device,
    ) -> Result<Adapter> {
        let unknown = |name: &str| {
            opened.file().error(name, "expected a tensor the model computes with, found another")
        };
        let is_known = |name: &str| known.iter().any(|spec| spec.name == name);
        let (mut defs, mut stored) = (Vec::new(), Vec::new());
        let (mut pairs, mut modules) = (Vec::new(), Vec::new());
        for pair in opened.pairs() {
            let id = LinearId::from_weight(&pair.weight).filter(|_| is_known(&pair.weight));
            pairs.push((
                id.ok_or_else(|| unknown(&pair.weight))?,
                stored.len(),
                opened.pair_scale(pair, scale)?,
            ));
            defs.push(TensorDef::new(pair.name_a(), DType::F32, &[pair.n_in, pair.rank])?);
            defs.push(TensorDef::new(pair.name_b(), DType::F32, &[pair.rank, pair.n_out])?);
            stored.extend([Stored::A(pair), Stored::B(pair)]);
        }
        for module in opened.modules_to_save() {
            let replaced = ParamId::replaced(&module.name).filter(|_| is_known(&module.name));
            let id = replaced.or_else(|| ParamId::added(&module.name));
            modules.push((id.ok_or_else(|| unknown(&module.name))?, stored.len()));
            defs.push(TensorDef::new(&module.name, DType::F32, &module.shape)?);
            stored.push(Stored::Module(module));
        }
        let store = Store::from_bytes(device, defs, "an adapter", &mut |i| {
            let values = match stored[i] {
                Stored::A(pair) => opened.values(&pair.name_a(), dequantize_tensor),
                Stored::B(pair) => opened.values(&pair.name_b(), dequantize_tensor),
                Stored::Module(module) => opened.module_values(module, scale, base, dequantize_tensor),
            };
            let values = values?;
            let n = 4 * values.len();
            let mut bytes = files::memory::room(n).map_err(|e| ggml::Error::OutOfMemory {
                device: "CPU".to_owned(),
                bytes: n,
                what: format!("an adapter, {}: {e}", opened.file().path().display()),
            })?;
            values.iter().for_each(|x| bytes.extend(x.to_le_bytes()));
            Ok(bytes)
        })?;
        let at = |index: usize| StoreTensor { store: store.clone(), index };
        let pair =
            |(id, i, scale): (LinearId, usize, f32)| (id, LowRankPair { a: at(i), b: at(i + 1), scale });
        Ok(Adapter {
            pairs: pairs.into_iter().map(pair).collect(),
            modules_to_save: modules.into_iter().map(|(id, i)| (id, at(i))).collect(),
            trained: opened.meta().rope.clone().map(|spec| (opened.file().path().to_owned(), spec)),
            landmarks: opened.landmarks(),
            digest: format!(
                "{}:{scale}{}",
                fingerprint(opened.file()),
                if opened.keeps_output() { ":keeps-output" } else { "" }
            ),
            keeps_output: opened.keeps_output(),
        })
    }

    /// The pair added to a linear map.
    pub fn pair(&self, map: LinearId) -> Option<&LowRankPair> {
        self.pairs.get(&map)
    }

    /// The tensor that replaces one of the model.
    pub fn module(&self, id: ParamId) -> Option<&StoreTensor> {
        self.modules_to_save.get(&id)
    }

    /// Returns true if the adapter replaces the embedding for the input only, and a tied output keeps the model's own.
    pub fn keeps_output(&self) -> bool {
        self.keeps_output
    }

    /// Number of pairs.
    pub fn n_pairs(&self) -> usize {
        self.pairs.len()
    }

    /// Bytes of its tensors.
    pub fn n_bytes(&self) -> usize {
        let pairs = self.pairs.values().flat_map(|p| [&p.a, &p.b]);
        pairs.chain(self.modules_to_save.values()).map(|t| t.def().n_bytes().unwrap_or(0)).sum()
    }

    /// Path of its file and the rope spec it was trained under, where the file names one.
    pub fn trained(&self) -> Option<(&Path, &Spec)> {
        self.trained.as_ref().map(|(path, spec)| (path.as_path(), spec))
    }

    /// The landmarks it was trained with, if any.
    pub fn landmarks(&self) -> Option<Landmarks> {
        self.landmarks
    }

    /// A hash of the file and the scale, which identifies an adapter. Empty for one made of parts.
    pub fn digest(&self) -> &str {
        &self.digest
    }
}
