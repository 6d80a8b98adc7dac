//! The kernels that multiply the matrices of a file, as a list.

use std::collections::BTreeMap;

use ggml::backend::Device;
use ggml::DType;
use gguf::TensorInfo;

use super::{Choice, MatmulPolicy, Pass};
use crate::math::Math;

/// The products with all matrices of one type, under one precision, in one pass.
#[derive(Debug, Clone)]
pub struct Listed {
    pub weight: DType,
    pub n_tensors: usize,
    pub experts: bool,
    pub math: Math,
    pub training: bool,
    /// By the number of tokens from which on each is chosen.
    pub choices: Vec<(usize, Choice)>,
}

/// Lists the products of a model with these tensors on a device.
pub fn list(tensors: &[TensorInfo], device: Device) -> Vec<Listed> {
    let mut all = Vec::new();
    for ((experts, _), (weight, n_tensors)) in matrices(tensors) {
        for training in [false, true] {
            for math in Math::ALL.into_iter().filter(|math| !training || *math != Math::Int8) {
                let policy = MatmulPolicy::new(device, false, math);
                let pass = match (experts, training) {
                    (false, false) => Pass::Inference,
                    (false, true) => Pass::Training,
                    (true, false) => Pass::Experts,
                    (true, true) => Pass::TrainingExperts,
                };
                // Training in bfloat16 is refused where the processor has no fast products in it.
                if !training || math != Math::Bf16 || policy.has_bf16_training() {
                    let choices = policy.choices(weight, pass);
                    all.push(Listed { weight, n_tensors, experts, math, training, choices });
                }
            }
        }
    }
    all
}

/// Matrices by type, stacks of experts apart from others. The embedding is one of them where it is the output matrix as well.
fn matrices(tensors: &[TensorInfo]) -> BTreeMap<(bool, &'static str), (DType, usize)> {
    let mut all = BTreeMap::new();
    let has_output = tensors.iter().any(|t| t.name == "output.weight");
    let multiplied = |t: &&TensorInfo| {
        let is_looked_up = has_output && t.name == "token_embd.weight";
        t.name.ends_with(".weight") && t.shape.len() > 1 && !is_looked_up
    };
    for t in tensors.iter().filter(multiplied) {
        let (_, n) = all.entry((t.shape.len() > 2, t.dtype.name())).or_insert((t.dtype, 0));
        *n += 1;
    }
    all
}
