//! Numbers of parameters, short. `tests/import/folders.rs` compiles this file for itself.

/// A number in at least two digits, `1.7B`.
pub(super) fn rounded(n: u64) -> String {
    let n = n as f64;
    let (scaled, unit) = match n {
        n if n > 1e12 => (n * 1e-12, "T"),
        n if n > 1e9 => (n * 1e-9, "B"),
        n if n > 1e6 => (n * 1e-6, "M"),
        n => (n * 1e-3, "K"),
    };
    // At least two digits; Rust and Python round halves to even alike.
    let whole = format!("{scaled:.0}");
    let digits = 2usize.saturating_sub(whole.trim_start_matches('0').len());
    format!("{scaled:.digits$}{unit}")
}
