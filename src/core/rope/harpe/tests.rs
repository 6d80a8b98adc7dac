//! The published table and what note and paper say on the way to it.

use super::search::{bases, Search};
use super::waveform::Waveform;
use super::TABLE2;
use crate::rope::Spec;

const PAPER: Search =
    Search { base_min: 1e6, base_max: 5e6, stride: 3e4, lo: 1000, hi: 131_072, n_rot: 128, n_bases: 32 };

#[test]
fn search_gives_table_2_in_the_known_order() {
    let picks = bases(&PAPER);
    let millions: Vec<String> = picks.iter().map(|(base, _)| format!("{:.2}", base / 1e6)).collect();
    assert_eq!(
        millions.join(" "),
        "1.00 3.88 1.30 1.45 1.15 4.54 3.46 4.15 2.47 2.17 3.13 4.51 2.50 3.04 3.10 2.20 2.65 3.43 2.83 \
         2.74 2.23 \
         3.16 2.68 4.45 2.92 3.22 3.01 2.80 3.61 2.71 4.09 4.39"
    );
    let n: Vec<u64> = picks[1..].iter().map(|(_, n)| *n).collect();
    assert_eq!(
        n,
        [
            3, 4, 5, 6, 7, 8, 8, 8, 10, 12, 13, 13, 14, 14, 16, 18, 16, 17, 18, 19, 19, 21, 22, 21, 24, 25,
            24, 24, 27, 26, 27
        ]
    );
    let mut sorted: Vec<u64> = picks.iter().map(|(base, _)| base.round() as u64).collect();
    sorted.sort_unstable();
    assert_eq!(sorted, TABLE2.map(|b| u64::from(b) * 10_000));
}

#[test]
fn extrema_of_the_first_base() {
    let w = Waveform::new(1e6, 128, 1000, 131_072);
    let (peaks, valleys) = (w.peaks(), w.valleys());
    assert_eq!(peaks[..8], [1162, 1238, 1420, 1791, 1848, 2293, 2759, 2846]);
    assert_eq!(peaks[peaks.len() - 2..], [7634, 8118]);
    assert_eq!(valleys[..5], [2133, 2529, 2648, 3138, 3894]);
    assert_eq!(valleys[valleys.len() - 4..], [99018, 103_399, 122_876, 128_312]);
    assert_eq!(Waveform::new(2.77e6, 128, 1000, 131_072).peaks().len(), 11);
    assert_eq!(Waveform::new(3.04e6, 128, 1000, 131_072).peaks().len(), 27);
}

#[test]
fn the_recurrence_agrees_with_direct_cosines() {
    for (base, d, lo, hi) in [(5e6, 128, 1000, 131_072), (1e4, 64, 3, 5000), (1.5, 2, 0, 0), (1e30, 6, 7, 40)]
    {
        let w = Waveform::new(base, d, lo, hi);
        for m in (lo..=hi).step_by(61).chain([hi]) {
            let direct: f64 =
                (0..d / 2).map(|j| (m as f64 * base.powf(-2.0 * j as f64 / d as f64)).cos()).sum();
            let got = w.f[m - lo];
            assert!((got - direct * 2.0 / (d as f64).sqrt()).abs() < 1e-10, "base {base} position {m}");
        }
        assert_eq!(w.f.len(), hi - lo + 1);
    }
}

#[test]
fn the_printed_rule_is_refused_with_the_reason() {
    let spec = |text: &str| text.parse::<Spec>().map_err(|e| e.to_string());
    let e = spec("harpe:bases=algorithm1").unwrap_err();
    assert!(e.contains("bases: expected search, table2") && e.contains("does not give its Table 2"), "{e}");
    assert!(!spec("harpe:bases=algorithm").unwrap_err().contains("Table 2"));
}

#[test]
fn a_flat_or_short_waveform_has_no_extrema() {
    for (lo, hi) in [(0, 0), (5, 6), (1, 2)] {
        let w = Waveform::new(1e4, 128, lo, hi);
        assert!(w.peaks().is_empty() && w.valleys().is_empty());
    }
}
