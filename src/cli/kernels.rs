//! `ropewalk inspect --kernels`: which kernels multiply a model's weights on this machine.

use std::fmt::Write;

use ggml::backend::Device;
use ropewalk::gguf::TensorInfo;
use ropewalk::internals::graph::{list, Choice, Isa, Kernel, Listed};
use serde_json::{json, Value as Json};

/// A line for each type, precision and pass.
pub(super) fn text(tensors: &[TensorInfo]) -> anyhow::Result<String> {
    let rows = list(tensors, Device::find("cpu")?);
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

pub(super) fn json(tensors: &[TensorInfo]) -> anyhow::Result<Json> {
    let row = |row: &Listed| {
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
    let rows = list(tensors, Device::find("cpu")?);
    Ok(json!({ "isa": Isa::detect().to_string(), "products": rows.iter().map(row).collect::<Vec<_>>() }))
}
