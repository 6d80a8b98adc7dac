//! The chart of a rope plan: the wavelength of each rotary pair.

use super::{Axis, Chart, Scale, Series, Stroke};
use crate::rope::{Inspection, KindView, Table};

/// Largest number of KV heads drawn.
const MAX_HEADS: usize = 8;

/// A chart of the wavelength in tokens by rotary pair, of the file's own frequencies and of the plan, with
/// the trained window and the target context as markers.
///
/// A plan with frequencies for each KV head gets a line for each of at most eight heads, evenly spread from
/// the first to the last. Each kind of layer that is rotated has lines of its own.
pub fn rope(inspection: &Inspection) -> Chart {
    let rotated: Vec<&KindView> = inspection.kinds.iter().filter(|k| !k.tables.is_empty()).collect();
    let mut series = Vec::new();
    for kind in &rotated {
        let of = match kind.layers.first() {
            Some(first) if rotated.len() > 1 => format!(", as layer {first}"),
            _ => String::new(),
        };
        let tables = &kind.tables;
        let n = tables.len().min(MAX_HEADS);
        let heads =
            (0..n).filter_map(|i| tables.get(if n > 1 { i * (tables.len() - 1) / (n - 1) } else { 0 }));
        series.extend(
            heads.map(|t| Series::new(format!("{}{of}", name(inspection, t)), points(t, |p| p.wavelength))),
        );
        if let Some(table) = tables.first() {
            let own = points(table, |p| (p.theta_file > 0.0).then(|| std::f64::consts::TAU / p.theta_file));
            let own = Series::new(format!("as in the file{of}"), own);
            series.push(Series { stroke: Stroke::Reference, ..own });
        }
    }
    let windows = [("trained", inspection.n_ctx_orig), ("target", inspection.n_ctx)];
    let mut y = Axis::new("wavelength, tokens", Scale::Log);
    if inspection.n_ctx == inspection.n_ctx_orig {
        y = y.mark(inspection.n_ctx as f64, format!("trained and target {}", inspection.n_ctx));
    } else {
        y = windows.iter().fold(y, |y, (what, n)| y.mark(*n as f64, format!("{what} {n}")));
    }
    Chart {
        title: inspection.rope.to_string(),
        x: Axis::new("pair of rotary dimensions", Scale::Linear),
        y,
        series,
    }
}

fn name(inspection: &Inspection, table: &Table) -> String {
    match (table.head, table.base) {
        (Some(h), Some(b)) => format!("KV head {h}, base {}", super::axis::label(b)),
        (Some(h), None) => format!("KV head {h}"),
        _ => inspection.rope.parts().iter().map(|p| p.name()).collect::<Vec<_>>().join("+"),
    }
}

fn points(table: &Table, wavelength: impl Fn(&crate::rope::Pair) -> Option<f64>) -> Vec<(f64, f64)> {
    // A pair that is not rotated breaks the line.
    table.pairs.iter().map(|p| (p.index as f64, wavelength(p).unwrap_or(f64::NAN))).collect()
}
