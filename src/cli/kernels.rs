//! Which kernels multiply a model's weights on this processor, at the end of `ropewalk inspect` and by `--kernels`.

use std::fmt::Write;

use ropewalk::gguf::TensorInfo;
use ropewalk::internals::graph::{list, Choice, Isa, Kernel, Listed};
use ropewalk::math::Math;
use serde_json::{json, Value as Json};

/// A line for each row, below the processor.
fn table(rows: &[Listed]) -> String {
    let mut s = format!("matrix products on this processor ({}), by tokens in a batch\n", Isa::detect());
    for row in rows {
        let ends = row.choices.iter().skip(1).map(|(from, _)| Some(from - 1)).chain([None]);
        let choice = |((from, choice), end): (&(usize, Choice), Option<usize>)| match end {
            Some(end) if end == *from => format!("{from}: {choice}"),
            Some(end) => format!("{from}-{end}: {choice}"),
            None => format!("{from}+: {choice}"),
        };
        let choices = row.choices.iter().zip(ends).map(choice).collect::<Vec<_>>().join(", ");
        let weight = format!("{}{}", row.weight, if row.pass.of_experts() { " experts" } else { "" });
        let _ = writeln!(s, "  {weight:15}  {:9}  --math {:4}  {choices}", row.pass.name(), row.math.name());
    }
    s
}

/// The last lines of a file's contents: its products under the precisions that commands take by default.
pub(super) fn short(tensors: &[TensorInfo]) -> String {
    let default = |row: &Listed| matches!(row.math, Math::Auto | Math::Int8);
    let rows: Vec<Listed> = list(tensors).into_iter().filter(default).collect();
    rows.first().map_or_else(String::new, |_| format!("\n{}", table(&rows)))
}

/// The products under every precision, and what the names of kernels mean.
pub(super) fn text(tensors: &[TensorInfo]) -> String {
    let rows = list(tensors);
    let mut s = table(&rows) + "\n";
    let used = |kernel: &Kernel| rows.iter().flat_map(|row| &row.choices).any(|(_, c)| c.kernel == *kernel);
    for kernel in Kernel::ALL.into_iter().filter(used) {
        let _ = writeln!(s, "  {:11}  {}", kernel.to_string(), kernel.about());
    }
    s
}

pub(super) fn json(tensors: &[TensorInfo]) -> Json {
    let choice = |(from, choice): &(usize, Choice)| {
        json!({ "from": from, "dequantize": choice.dequantize.map(|to| to.name()),
                "kernel": choice.kernel.to_string() })
    };
    let row = |row: &Listed| {
        json!({ "type": row.weight.name(), "tensors": row.n_tensors, "experts": row.pass.of_experts(),
                "math": row.math.name(), "pass": row.pass.name(),
                "choices": row.choices.iter().map(choice).collect::<Vec<_>>() })
    };
    json!({ "isa": Isa::detect().to_string(), "products": list(tensors).iter().map(row).collect::<Vec<_>>() })
}
