//! Adapters: low-rank pairs beside a model's weights, and small tensors that take the place of the model's own.
//!
//! This module brings the adapters of files to a device. The files themselves are read and written by
//! [`ropewalk_core::adapter`], whose items are available here too.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use ggml::backend::Device;
use ggml::dtype::dequantize_tensor;
use ggml::tensor::{Store, StoreTensor, TensorDef};
use ggml::{DType, Result};

use crate::ids::{LinearId, ParamId};
use crate::rope::Spec;
use crate::weights::TensorSpec;

pub use ropewalk_core::adapter::*;

/// One low-rank pair: the weight's product becomes `W x + scale * B (A x)`.
#[derive(Debug, Clone)]
pub struct LowRankPair {
    /// F32 `[n_in, rank]`.
    pub a: StoreTensor,
    /// F32 `[rank, n_out]`.
    pub b: StoreTensor,
    /// `alpha / rank` (or `alpha / sqrt(rank)`), times what the user asks for.
    pub scale: f32,
}

/// One tensor of an adapter's file.
enum Stored<'a> {
    A(&'a PairInfo),
    B(&'a PairInfo),
    Module(&'a WholeInfo),
}

/// An adapter on a model's device: pairs beside linear maps, and tensors in place of the model's own.
#[derive(Debug, Clone, Default)]
pub struct Adapter {
    pairs: HashMap<LinearId, LowRankPair>,
    modules_to_save: HashMap<ParamId, StoreTensor>,
    trained: Option<(PathBuf, Spec)>,
    digest: String,
}

impl Adapter {
    /// From tensors that are on the model's device already. `modules_to_save` take the place of the model's tensors: F32, of
    /// the same shape.
    pub fn from_parts(
        pairs: HashMap<LinearId, LowRankPair>,
        modules_to_save: HashMap<ParamId, StoreTensor>,
    ) -> Adapter {
        Adapter { pairs, modules_to_save, ..Adapter::default() }
    }

    /// Brings an adapter that suits `base` (see [`open_all`]) to the device, as F32.
    ///
    /// # Errors
    /// A tensor that is none of `known`, the architecture's; a value that is not finite; memory.
    pub fn load(
        opened: &Opened,
        strength: f32,
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
                opened.scale(pair, strength)?,
            ));
            defs.push(TensorDef::new(pair.name_a(), DType::F32, &[pair.n_in, pair.rank])?);
            defs.push(TensorDef::new(pair.name_b(), DType::F32, &[pair.rank, pair.n_out])?);
            stored.extend([Stored::A(pair), Stored::B(pair)]);
        }
        for module in opened.whole() {
            let id = ParamId::replaced(&module.name).filter(|_| is_known(&module.name));
            modules.push((id.ok_or_else(|| unknown(&module.name))?, stored.len()));
            defs.push(TensorDef::new(&module.name, DType::F32, &module.shape)?);
            stored.push(Stored::Module(module));
        }
        let store = Store::from_bytes(device, defs, "an adapter", &mut |i| {
            let values = match stored[i] {
                Stored::A(pair) => opened.values(&pair.name_a(), dequantize_tensor),
                Stored::B(pair) => opened.values(&pair.name_b(), dequantize_tensor),
                Stored::Module(module) => opened.whole_values(module, strength, base, dequantize_tensor),
            };
            Ok(values?.iter().flat_map(|x| x.to_le_bytes()).collect())
        })?;
        let at = |index: usize| StoreTensor { store: store.clone(), index };
        let pair =
            |(id, i, scale): (LinearId, usize, f32)| (id, LowRankPair { a: at(i), b: at(i + 1), scale });
        Ok(Adapter {
            pairs: pairs.into_iter().map(pair).collect(),
            modules_to_save: modules.into_iter().map(|(id, i)| (id, at(i))).collect(),
            trained: opened.keys().rope.clone().map(|spec| (opened.file().path().to_owned(), spec)),
            digest: format!("{}:{strength}", fingerprint(opened.file())),
        })
    }

    /// The pair beside a linear map.
    pub fn pair(&self, map: LinearId) -> Option<&LowRankPair> {
        self.pairs.get(&map)
    }

    /// The tensor that takes the place of the model's own.
    pub fn module(&self, id: ParamId) -> Option<&StoreTensor> {
        self.modules_to_save.get(&id)
    }

    /// Pairs in it.
    pub fn n_pairs(&self) -> usize {
        self.pairs.len()
    }

    /// Bytes of its tensors.
    pub fn n_bytes(&self) -> usize {
        let pairs = self.pairs.values().flat_map(|p| [&p.a, &p.b]);
        pairs.chain(self.modules_to_save.values()).map(|t| t.def().n_bytes().unwrap_or(0)).sum()
    }

    /// Its file and the spec it was trained under, where it says.
    pub fn trained(&self) -> Option<(&Path, &Spec)> {
        self.trained.as_ref().map(|(path, spec)| (path.as_path(), spec))
    }

    /// Tells adapters apart: a hash of the file, and the strength. Empty for one made from parts.
    pub fn digest(&self) -> &str {
        &self.digest
    }
}
