//! `ropewalk inspect --kernels`: which kernels multiply a model's weights on this machine.

use std::collections::BTreeMap;
use std::fmt::Write;

use ggml::backend::Device;
use ropewalk::gguf::TensorInfo;
use ropewalk::internals::graph::{Choice, Isa, Kernel, MatmulPolicy, Pass};
use ropewalk::math::Math;
use ropewalk::DType;
use serde_json::{json, Value as Json};

/// Kernels for one type of weights, under one precision, in one pass.
struct Row {
    weight: DType,
    n_tensors: usize,
    experts: bool,
    math: Math,
    training: bool,
    /// By the number of tokens from which on each is chosen.
    choices: Vec<(usize, Choice)>,
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

fn rows(tensors: &[TensorInfo], device: Device) -> Vec<Row> {
    let mut rows = Vec::new();
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
                    rows.push(Row { weight, n_tensors, experts, math, training, choices });
                }
            }
        }
    }
    rows
}

/// A line for each type, precision and pass.
pub(super) fn text(tensors: &[TensorInfo]) -> anyhow::Result<String> {
    let rows = rows(tensors, Device::find("cpu")?);
    let mut s = format!("matrix products on this processor ({}), by tokens in a batch\n", Isa::detect());
    let mut last = None;
    for row in &rows {
        let kind = (row.weight.name(), row.experts);
        if last != Some(kind) {
            let what = match (row.experts, row.n_tensors) {
                (true, 1) => "stack of experts",
                (true, _) => "stacks of experts",
                (false, 1) => "matrix",
                (false, _) => "matrices",
            };
            let _ = writeln!(s, "\n{}, {} {what}", row.weight, row.n_tensors);
            last = Some(kind);
        }
        let ends = row.choices.iter().skip(1).map(|(from, _)| Some(from - 1)).chain([None]);
        let choice = |((from, choice), end): (&(usize, Choice), Option<usize>)| match end {
            Some(end) if end == *from => format!("{from}: {choice}"),
            Some(end) => format!("{from}-{end}: {choice}"),
            None => format!("{from}+: {choice}"),
        };
        let choices = row.choices.iter().zip(ends).map(choice).collect::<Vec<_>>().join(", ");
        let pass = if row.training { "training" } else { "inference" };
        let _ = writeln!(s, "  {pass:9}  --math {:4}  {choices}", row.math.name());
    }
    s.push('\n');
    let used = |kernel: &Kernel| rows.iter().flat_map(|row| &row.choices).any(|(_, c)| c.kernel == *kernel);
    for kernel in Kernel::ALL.into_iter().filter(used) {
        let _ = writeln!(s, "  {:11}  {}", kernel.to_string(), kernel.about());
    }
    Ok(s)
}

/// The same for programs.
pub(super) fn json(tensors: &[TensorInfo]) -> anyhow::Result<Json> {
    let row = |row: &Row| {
        let choices: Vec<Json> = row
            .choices
            .iter()
            .map(|(from, choice)| {
                json!({ "from": from, "dequantize": choice.dequantize.map(|to| to.name()),
                        "kernel": choice.kernel.to_string() })
            })
            .collect();
        json!({ "type": row.weight.name(), "tensors": row.n_tensors, "experts": row.experts,
                "math": row.math.name(), "pass": if row.training { "training" } else { "inference" },
                "choices": choices })
    };
    let rows = rows(tensors, Device::find("cpu")?);
    Ok(json!({ "isa": Isa::detect().to_string(), "products": rows.iter().map(row).collect::<Vec<_>>() }))
}
