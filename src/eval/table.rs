//! Markdown tables whose columns also line up in a terminal.

/// A Markdown table, aligned to the right. Every cell is padded to the width of its column.
pub(super) fn table(headers: &[&str], rows: impl IntoIterator<Item = Vec<String>>) -> String {
    let rows: Vec<Vec<String>> = rows.into_iter().collect();
    let width = |c: usize| {
        rows.iter()
            .filter_map(|r| r.get(c))
            .map(|s| s.chars().count())
            .chain([headers[c].chars().count(), 2])
            .max()
            .unwrap_or(2)
    };
    let widths: Vec<usize> = (0..headers.len()).map(width).collect();
    let mut out = line(&widths, headers.iter().copied());
    let rule: Vec<String> = widths.iter().map(|w| format!("{}:", "-".repeat(w - 1))).collect();
    out += &line(&widths, rule.iter().map(String::as_str));
    for row in &rows {
        out += &line(&widths, row.iter().map(String::as_str));
    }
    out
}

fn line<'a>(widths: &[usize], cells: impl Iterator<Item = &'a str>) -> String {
    let cells: Vec<String> = cells.zip(widths).map(|(cell, &w)| format!("{cell:>w$}")).collect();
    format!("| {} |\n", cells.join(" | "))
}

/// A perplexity with at least four significant digits, and no exponent below a million.
pub(super) fn number(x: f64) -> String {
    match x.abs() {
        a if a >= 1e6 => format!("{x:.3e}"),
        a if a >= 1e3 => format!("{x:.1}"),
        a if a >= 100.0 => format!("{x:.2}"),
        _ => format!("{x:.3}"),
    }
}
