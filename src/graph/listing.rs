//! The kernels that multiply the matrices of a file, as a list.

use std::collections::BTreeMap;

use ggml::DType;
use gguf::TensorInfo;

use super::{Choice, Isa, MatmulPolicy, Pass};
use crate::math::Math;

/// The products with all matrices of one type, under one precision, in one pass.
#[derive(Debug, Clone)]
pub struct Listed {
    pub weight: DType,
    pub n_tensors: usize,
    pub pass: Pass,
    pub math: Math,
    /// By the number of tokens from which on each is chosen.
    pub choices: Vec<(usize, Choice)>,
}

/// Lists the products of a model with these tensors on this processor.
pub fn list(tensors: &[TensorInfo]) -> Vec<Listed> {
    let (isa, mut all) = (Isa::detect(), Vec::new());
    for ((experts, _), (weight, n_tensors)) in matrices(tensors) {
        for pass in Pass::ALL.into_iter().filter(|pass| pass.of_experts() == experts) {
            for math in Math::ALL {
                let policy = MatmulPolicy { custom_ops: true, math, isa };
                // Training in bfloat16 is refused where the processor has no fast products in it.
                let slow = math == Math::Bf16 && !policy.has_bf16_training();
                if !(pass.trains() && (slow || math == Math::Int8)) {
                    let choices = policy.choices(weight, pass);
                    all.push(Listed { weight, n_tensors, pass, math, choices });
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
