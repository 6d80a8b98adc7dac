//! The chart of a RoPE plan: the wavelength of each dimension pair.

use ropewalk_core::rope::{Inspection, KindView, Pair, Table};

use super::{Axis, Chart, Scale, Series, Stroke};

/// Maximum number of KV heads drawn.
const MAX_HEADS: usize = 7;

/// A chart of wavelength in tokens by dimension pair, for the file's own frequencies and for plans of one model.
/// Markers show the original context and the target context.
///
/// A plan with frequencies for each KV head gets a line for each of at most seven heads, evenly spread from the first
/// to the last. Each layer group with rotation has separate lines.
pub fn rope(inspections: &[&Inspection]) -> Chart {
    let mut series: Vec<Series> = Vec::new();
    let mut y = Axis::new("wavelength, tokens", Scale::Log);
    for inspection in inspections {
        let method = label(inspection, inspections);
        add(&mut series, inspection, &method, inspections.len() == 1);
        let windows = [("original", inspection.n_ctx_orig), ("target", inspection.n_ctx)];
        let marks = match windows[0].1 == windows[1].1 {
            true => vec![(windows[0].1, format!("original and target {}", windows[0].1))],
            false => windows.map(|(what, n)| (n, format!("{what} {n}"))).to_vec(),
        };
        for (n, mark) in marks {
            if !y.markers.iter().any(|m| m.label == mark) {
                y = y.mark(n as f64, mark);
            }
        }
    }
    let title = match inspections {
        [one] => one.rope.to_string(),
        several => several.iter().map(|i| label(i, several)).collect::<Vec<_>>().join(", "),
    };
    Chart { title, x: Axis::new("pair of rotary dimensions", Scale::Linear), y, series }
}

/// The methods of a plan, with the parameters in which another plan of the same methods differs.
fn label(inspection: &Inspection, all: &[&Inspection]) -> String {
    let methods = |i: &Inspection| i.rope.parts().iter().map(|p| p.name()).collect::<Vec<_>>().join("+");
    let short = methods(inspection);
    let like: Vec<&Inspection> = all.iter().copied().filter(|other| methods(other) == short).collect();
    let parts = inspection.rope.parts().iter().enumerate().map(|(i, part)| {
        let told = part.args().iter().filter(|(key, value)| {
            like.iter().any(|o| o.rope.parts().get(i).and_then(|p| p.get(key)) != Some(value))
        });
        let told: Vec<String> = told.map(|(key, value)| format!("{key}={value}")).collect();
        match told.is_empty() {
            true => part.name().to_owned(),
            false => format!("{}:{}", part.name(), told.join(",")),
        }
    });
    parts.collect::<Vec<_>>().join("+")
}

/// The lines of a plan, and the lines of the file if they are not there yet. `bases`: names of heads have their bases.
fn add(all: &mut Vec<Series>, inspection: &Inspection, method: &str, bases: bool) {
    let rotated: Vec<&KindView> = inspection.kinds.iter().filter(|k| !k.tables.is_empty()).collect();
    for kind in &rotated {
        let of = match kind.layers.first() {
            Some(first) if rotated.len() > 1 => format!(", as layer {first}"),
            _ => String::new(),
        };
        let tables = &kind.tables;
        let n = tables.len().min(MAX_HEADS);
        let heads =
            (0..n).filter_map(|i| tables.get(if n > 1 { i * (tables.len() - 1) / (n - 1) } else { 0 }));
        all.extend(
            heads
                .map(|t| Series::new(format!("{}{of}", name(method, t, bases)), points(t, |p| p.wavelength))),
        );
        let own = format!("as in the file{of}");
        if let Some(table) = tables.first().filter(|_| !all.iter().any(|s| s.name == own)) {
            let file = points(table, |p| (p.theta_file > 0.0).then(|| std::f64::consts::TAU / p.theta_file));
            all.push(Series { stroke: Stroke::Reference, ..Series::new(own, file) });
        }
    }
}

fn name(method: &str, table: &Table, bases: bool) -> String {
    match (table.head, table.base.filter(|_| bases)) {
        (Some(h), Some(b)) => format!("{method}, KV head {h}, base {b:.0}"),
        (Some(h), None) => format!("{method}, KV head {h}"),
        _ => method.to_owned(),
    }
}

fn points(table: &Table, wavelength: impl Fn(&Pair) -> Option<f64>) -> Vec<(f64, f64)> {
    // A pair that is not rotated breaks the line.
    table.pairs.iter().map(|p| (p.index as f64, wavelength(p).unwrap_or(f64::NAN))).collect()
}
