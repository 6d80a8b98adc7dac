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

use crate::rope::Spec;
use crate::weights::TensorSpec;

pub use ropewalk_core::adapter::*;

/// One low-rank pair: the weight's product becomes `W x + scale * B (A x)`.
#[derive(Debug, Clone)]
pub struct Pair {
    /// F32 `[n_in, rank]`.
    pub a: StoreTensor,
    /// F32 `[rank, n_out]`.
    pub b: StoreTensor,
    /// `alpha / rank` (or `alpha / sqrt(rank)`), times what the user asks for.
    pub scale: f32,
}

/// What a stored tensor of an adapter is.
enum Part<'a> {
    A(&'a PairInfo),
    B(&'a PairInfo),
    Whole(&'a WholeInfo),
}

/// What an adapter changes, by the name of the model's tensor.
#[derive(Debug, Clone, Default)]
pub struct Adapter {
    pairs: HashMap<String, Pair>,
    whole: HashMap<String, StoreTensor>,
    trained: Option<(PathBuf, Spec)>,
    digest: String,
}

impl Adapter {
    /// From tensors that are on the model's device already; `whole` are F32 of the shape of what they replace.
    pub fn from_parts(pairs: HashMap<String, Pair>, whole: HashMap<String, StoreTensor>) -> Adapter {
        Adapter { pairs, whole, ..Adapter::default() }
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
        let is_known = |name: &str| match known.iter().any(|spec| spec.name == name) {
            true => Ok(()),
            false => {
                Err(opened.file().error(name, "expected a tensor the model computes with, found another"))
            }
        };
        let (mut defs, mut parts) = (Vec::new(), Vec::new());
        for pair in opened.pairs() {
            is_known(target(base, &pair.weight))?;
            defs.push(TensorDef::new(pair.name_a(), DType::F32, &[pair.n_in, pair.rank])?);
            defs.push(TensorDef::new(pair.name_b(), DType::F32, &[pair.rank, pair.n_out])?);
            parts.extend([Part::A(pair), Part::B(pair)]);
        }
        for whole in opened.whole() {
            is_known(&whole.name)?;
            defs.push(TensorDef::new(&whole.name, DType::F32, &whole.shape)?);
            parts.push(Part::Whole(whole));
        }
        let store = Store::from_bytes(device, defs, "an adapter", &mut |i| {
            let values = match parts[i] {
                Part::A(pair) => opened.values(&pair.name_a(), dequantize_tensor),
                Part::B(pair) => opened.values(&pair.name_b(), dequantize_tensor),
                Part::Whole(whole) => opened.whole_values(whole, strength, base, dequantize_tensor),
            };
            Ok(values?.iter().flat_map(|x| x.to_le_bytes()).collect())
        })?;
        let at = |index: usize| StoreTensor { store: store.clone(), index };
        let mut adapter = Adapter {
            trained: opened.keys().rope.clone().map(|spec| (opened.file().path().to_owned(), spec)),
            digest: format!("{}:{strength}", fingerprint(opened.file())),
            ..Adapter::default()
        };
        for (i, part) in parts.iter().enumerate() {
            match part {
                Part::A(pair) => {
                    let scale = opened.scale(pair, strength)?;
                    let pair_here = Pair { a: at(i), b: at(i + 1), scale };
                    adapter.pairs.insert(target(base, &pair.weight).to_owned(), pair_here);
                }
                Part::B(_) => {}
                Part::Whole(whole) => {
                    adapter.whole.insert(whole.name.clone(), at(i));
                }
            }
        }
        Ok(adapter)
    }

    /// The pair beside a weight.
    pub fn pair(&self, weight: &str) -> Option<&Pair> {
        self.pairs.get(weight)
    }

    /// What takes the place of a tensor.
    pub fn whole(&self, name: &str) -> Option<&StoreTensor> {
        self.whole.get(name)
    }

    /// Pairs in it.
    pub fn n_pairs(&self) -> usize {
        self.pairs.len()
    }

    /// Bytes of its tensors.
    pub fn n_bytes(&self) -> usize {
        let pairs = self.pairs.values().flat_map(|p| [&p.a, &p.b]);
        pairs.chain(self.whole.values()).map(|t| t.def().n_bytes().unwrap_or(0)).sum()
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
