//! Published figures of the default model on the needle essays, measured by others through libllama.

use crate::common::*;

/// One window of 4,096 tokens from the start, every token from the second on, no BOS.
#[test]
fn essays_at_4096_tokens() {
    let model = load(&default_model());
    let tokens = model.vocab().tokenize(&essays()[..40_000], false, false).unwrap()[..4096].to_vec();
    let figures = [("yarn:factor=2", 24.59), ("plain", 24.09), ("pi:factor=2", 63.4)];
    for &(rope, published) in &figures[..size(1, 3)] {
        let params = params(4096).rope(Some(rope.parse().unwrap()));
        let ppl = mean_nll(&mut open(&model, &params), &tokens).exp();
        println!("{rope}: {ppl:.3}, published {published}");
        assert!((ppl / published - 1.0).abs() < 0.01, "{rope}: expected {published} within 1 %, found {ppl}");
    }
}
