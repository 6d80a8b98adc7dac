//! Figures of a bench: statistics, the names of tests, and the work behind them.

use ropewalk::eval::bench::Test;
use ropewalk::internals::eval::{mean, median, memory_bandwidth, stddev, Work};

#[test]
fn statistics() {
    let x = [1.0, 2.0, 4.0, 9.0];
    assert_eq!(mean(&x), 4.0);
    assert_eq!(median(&x), 3.0);
    assert_eq!(median(&x[..3]), 2.0);
    assert!((stddev(&x) - (38.0f64 / 3.0).sqrt()).abs() < 1e-12);
    assert_eq!(stddev(&x[..1]), 0.0);
}

#[test]
fn names_are_llama_benchs() {
    assert_eq!(Test { n_prompt: 512, n_gen: 0, depth: 0 }.name(), "pp512");
    assert_eq!(Test { n_prompt: 0, n_gen: 128, depth: 4096 }.name(), "tg128 @ d4096");
}

#[test]
fn work_counts_pairs_and_outputs() {
    let w = Work {
        layer_elements: 10.0,
        output_elements: 100.0,
        weight_bytes: 60.0,
        kv_bytes: 2.0,
        attention_flops: 4.0,
    };
    // 3 tokens after 5: pairs 15 + 6, one output row when reading, three when writing.
    let read = Test { n_prompt: 3, n_gen: 0, depth: 5 };
    assert_eq!(w.flops(&read), 2.0 * (30.0 + 100.0) + 4.0 * 21.0);
    let write = Test { n_prompt: 0, n_gen: 3, depth: 5 };
    assert_eq!(w.flops(&write), 2.0 * (30.0 + 300.0) + 4.0 * 21.0);
    assert_eq!(w.bytes_per_token(&write), 60.0 + 2.0 * 6.5);
}

#[test]
fn memory_has_a_speed() {
    let b = memory_bandwidth();
    assert!(b > 1e8 && b < 1e13, "{b}");
}
