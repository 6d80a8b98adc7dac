//! Graphs whose memory is replaced by larger memory, again and again.

use ggml::backend::Device;
use ggml::graph::Executor;
use ggml::DType;

use crate::subject::device;

/// Mesa 22.3's lavapipe uses buffers that are gone, if it is let: see `Device::is_lavapipe`. With one backend for all graphs
/// this test ended in "corrupted double-linked list" whenever it was run.
#[test]
fn memory_may_be_replaced_between_graphs() {
    let device = Device::find(&device()).unwrap();
    let mut exec = Executor::new(device, 1).unwrap();
    for round in 0..100 {
        let shape = [64, 16 * (1 + round)];
        let n = shape[0] * shape[1];
        // Sums have more operands than products with a number, and stand at other places in every round.
        let is_sum = |k: usize| (k + 5 * round).is_multiple_of(3);
        let (a, b, sum) = exec
            .build(100, |g| -> ggml::Result<_> {
                let (a, mut t) = g.input("a", DType::F32, &shape)?;
                let (b, other) = g.input("b", DType::F32, &shape)?;
                for k in 0..12 {
                    t = if is_sum(k) { g.add(t, other)? } else { g.scale(t, 0.5)? };
                }
                Ok((a, b, g.output(t)))
            })
            .unwrap();
        let values: Vec<f32> = (0..n).map(|i| (i % 7) as f32).collect();
        exec.set(a, &values).unwrap();
        exec.set(b, &values).unwrap();
        exec.compute().unwrap();
        let mut got = Vec::new();
        exec.read_f32(sum, &mut got).unwrap();
        // Seven values and powers of two: no device rounds them.
        let want = |x: &f32| (0..12).fold(*x, |t, k| if is_sum(k) { t + x } else { 0.5 * t });
        assert!(got.iter().zip(&values).all(|(got, x)| *got == want(x)), "round {round}");
    }
}
