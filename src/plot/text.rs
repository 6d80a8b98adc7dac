//! Draws line charts in Braille dots for a terminal.

use super::axis::Span;
use super::pen::wrapped;
use super::{Chart, PlotError};

/// Bits of the dots of a Braille cell, by row and column, to be added to U+2800.
const DOTS: [[u8; 2]; 4] = [[0x01, 0x08], [0x02, 0x10], [0x04, 0x20], [0x40, 0x80]];

/// Braille cells of 2 x 4 dots.
struct Canvas {
    columns: usize,
    rows: usize,
    cells: Vec<u8>,
}
impl Canvas {
    fn new(columns: usize, rows: usize) -> Canvas {
        Canvas { columns, rows, cells: vec![0; columns * rows] }
    }
    /// Sets the dot at a place from 0 to 1 on both axes, with y upwards.
    fn dot(&mut self, x: f64, y: f64) {
        if !(0.0..=1.0).contains(&x) || !(0.0..=1.0).contains(&y) {
            return;
        }
        let column = (x * (self.columns * 2 - 1) as f64).round() as usize;
        let row = ((1.0 - y) * (self.rows * 4 - 1) as f64).round() as usize;
        self.cells[row / 4 * self.columns + column / 2] |= DOTS[row % 4][column % 2];
    }
    fn line(&mut self, a: (f64, f64), b: (f64, f64)) {
        let steps =
            ((b.0 - a.0).abs() * (self.columns * 2) as f64).max((b.1 - a.1).abs() * (self.rows * 4) as f64);
        let steps = steps.ceil().clamp(1.0, 10_000.0);
        for i in 0..=steps as usize {
            let t = i as f64 / steps;
            self.dot(a.0 + t * (b.0 - a.0), a.1 + t * (b.1 - a.1));
        }
    }
    /// Sets every `step`-th dot of a horizontal line.
    fn across(&mut self, at: f64, step: usize) {
        let n = self.columns * 2 - 1;
        (0..=n).step_by(step).for_each(|i| self.dot(i as f64 / n as f64, at));
    }
    /// Sets every `step`-th dot of a vertical line.
    fn up(&mut self, at: f64, step: usize) {
        let n = self.rows * 4 - 1;
        (0..=n).step_by(step).for_each(|i| self.dot(at, i as f64 / n as f64));
    }
    fn row_of(&self, y: f64) -> usize {
        (((1.0 - y) * (self.rows * 4 - 1) as f64).round() as usize / 4).min(self.rows - 1)
    }
}

/// The plot itself, the letters at the right end of its rows, and the key that explains them.
struct Plot {
    canvas: Canvas,
    ends: Vec<String>,
    key: Vec<String>,
}

fn plot(chart: &Chart, xs: &Span, ys: &Span, columns: usize, rows: usize) -> Plot {
    let mut canvas = Canvas::new(columns, rows);
    let mut ends: Vec<String> = vec![String::new(); rows];
    let mut key: Vec<String> = Vec::new();
    for (marker, letter) in chart.y.markers.iter().zip('a'..='z') {
        if let Some(y) = ys.at(marker.at) {
            canvas.across(y, 4);
            ends[canvas.row_of(y)].push(letter);
            key.push(format!("{letter} {}", marker.label));
        }
    }
    for marker in &chart.x.markers {
        if let Some(x) = xs.at(marker.at) {
            canvas.up(x, 3);
            key.push(format!("\u{2506} {}", marker.label));
        }
    }
    for (series, letter) in chart.series.iter().zip('A'..='Z') {
        let places: Vec<Option<(f64, f64)>> =
            series.points.iter().map(|p| Some((xs.at(p.0)?, ys.at(p.1)?))).collect();
        for pair in places.windows(2) {
            if let [Some(a), Some(b)] = pair {
                canvas.line(*a, *b);
            }
        }
        places.iter().flatten().for_each(|p| canvas.dot(p.0, p.1));
        if let Some(end) = places.iter().rev().find_map(|p| *p) {
            ends[canvas.row_of(end.1)].push(letter);
            key.push(format!("{letter} {}", series.name));
        }
    }
    let hidden = chart.series.len().saturating_sub(26);
    if hidden > 0 {
        key.push(format!("and {hidden} more, not drawn"));
    }
    Plot { canvas, ends, key }
}

/// The horizontal axis and, below it, as many tick labels as fit.
fn x_axis(xs: &Span, columns: usize) -> (String, String) {
    let mut axis: Vec<char> = vec!['\u{2500}'; columns];
    let mut labels: Vec<char> = vec![' '; columns + 3];
    let mut free = 0;
    for (v, text) in xs.ticks((columns / 9).clamp(2, 10)) {
        let Some(x) = xs.at(v) else { continue };
        let column = (x.clamp(0.0, 1.0) * (columns - 1) as f64).round() as usize;
        let from = column.saturating_sub(text.chars().count() / 2);
        if from >= free && from + text.chars().count() <= labels.len() {
            axis[column] = '\u{252c}';
            labels.splice(from..from + text.chars().count(), text.chars());
            free = from + text.chars().count() + 1;
        }
    }
    (axis.into_iter().collect(), labels.into_iter().collect())
}

pub(super) fn text(chart: &Chart, width: usize, height: usize) -> Result<String, PlotError> {
    let (width, rows) = (width.clamp(24, 400), height.clamp(4, 100));
    let (xs, ys) = Span::both(chart)?;
    let yticks = ys.ticks(rows.div_ceil(3).min(8));
    let gutter = yticks.iter().map(|t| t.1.chars().count()).max().unwrap_or(0).min(12);
    // Two columns for the frame, three for letters at the right.
    let columns = width.saturating_sub(gutter + 5).max(8);
    let Plot { canvas, ends, key } = plot(chart, &xs, &ys, columns, rows);

    let mut out = String::new();
    let fits = |s: &str| s.chars().count() <= width;
    let cut = |s: &str| match fits(s) {
        true => s.to_owned(),
        false => s.chars().take(width - 3).chain("...".chars()).collect::<String>(),
    };
    let mut push = |line: &str| {
        out.push_str(line.trim_end());
        out.push('\n');
    };
    wrapped(&chart.title, 2, fits).iter().for_each(|line| push(&cut(line.trim_end())));
    push(&cut(&chart.y.name()));
    let mut labels: Vec<Option<&str>> = vec![None; rows];
    for (v, text) in &yticks {
        if let Some(y) = ys.at(*v) {
            labels[canvas.row_of(y)].get_or_insert(text);
        }
    }
    for row in 0..rows {
        let cells = &canvas.cells[row * columns..(row + 1) * columns];
        // An empty cell is a space, because some fonts draw the empty Braille cell.
        let shown = |c: &u8| if *c == 0 { Some(' ') } else { char::from_u32(0x2800 + u32::from(*c)) };
        let dots: String = cells.iter().filter_map(shown).collect();
        let label = labels[row].unwrap_or_default();
        let edge = if labels[row].is_some() { '\u{2524}' } else { '\u{2502}' };
        let end: String = ends[row].chars().take(3).collect();
        push(&format!("{label:>gutter$}{edge}{dots}{}{end}", if end.is_empty() { "" } else { " " }));
    }
    let (axis, labels) = x_axis(&xs, columns);
    push(&format!("{:gutter$}\u{2514}{axis}", ""));
    push(&format!("{:gutter$} {labels}", ""));
    push(&format!("{:gutter$} {}", "", cut(&chart.x.name())));
    let mut line = String::new();
    for entry in key {
        let entry = cut(&entry);
        if !line.is_empty() && line.chars().count() + 3 + entry.chars().count() > width {
            push(&std::mem::take(&mut line));
        }
        if !line.is_empty() {
            line.push_str("   ");
        }
        line.push_str(&entry);
    }
    push(&line);
    Ok(out)
}
