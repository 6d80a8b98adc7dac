//! Lines of progress, and colors. `tests/cli/units.rs` compiles this file for itself.

use std::time::Duration;

/// Formats the share of the work that is done, and the time left at this rate.
pub(super) fn progress_line(what: &str, done: u64, total: u64, elapsed: Duration) -> String {
    let minutes = |seconds: f64| match seconds < 119.5 {
        true => format!("{seconds:.0} s"),
        false => format!("{:.0} min", seconds / 60.0),
    };
    let part = done as f64 / total.max(1) as f64;
    let left = match part > 0.0 && part <= 1.0 {
        true => format!(", {} left", minutes(elapsed.as_secs_f64() * (1.0 - part) / part)),
        false => String::new(),
    };
    format!("{what}: {:.0} % after {}{left}", 100.0 * part.min(1.0), minutes(elapsed.as_secs_f64()))
}

/// A color of text at a terminal, as the number of its code.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Colour(u8);

impl Colour {
    /// A token that a data method put in.
    pub(crate) const INSERTED: Colour = Colour(7);
    /// Text that matters less.
    pub(crate) const FAINT: Colour = Colour(2);

    /// The color of a document by its number: one of six that take turns.
    pub(crate) fn document(number: u32) -> Colour {
        Colour(31 + (number % 6) as u8)
    }

    /// The text with the color's codes around it.
    pub(super) fn around(self, text: &str) -> String {
        format!("\u{1b}[{}m{text}\u{1b}[0m", self.0)
    }
}
