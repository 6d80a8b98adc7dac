//! Adapters: low-rank pairs beside a model's weights, and small tensors that take the place of the model's own.

use std::collections::HashMap;

use ggml::tensor::StoreTensor;

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

/// What an adapter changes, by the name of the model's tensor.
#[derive(Debug, Clone, Default)]
pub struct Adapter {
    pairs: HashMap<String, Pair>,
    whole: HashMap<String, StoreTensor>,
}

impl Adapter {
    /// From tensors that are on the model's device already; `whole` are F32 of the shape of what they replace.
    pub fn from_parts(pairs: HashMap<String, Pair>, whole: HashMap<String, StoreTensor>) -> Adapter {
        Adapter { pairs, whole }
    }

    /// The pair beside a weight.
    pub fn pair(&self, weight: &str) -> Option<&Pair> {
        self.pairs.get(weight)
    }

    /// What takes the place of a tensor.
    pub fn whole(&self, name: &str) -> Option<&StoreTensor> {
        self.whole.get(name)
    }
}
