//! LongLoRA's shifted sparse attention and its gradients against PyTorch's, recorded by `tests/reference/s2.py`: the
//! ranges of keys, our own ops and those of every backend.

use ggml::backend::Device;
use ggml::graph::Executor;
use ggml::matmul::Kernel;
use ggml::tensor::{Store, StoreTensor, TensorDef};
use ggml::{DType, Result};
use serde::Deserialize;

use super::attention::{Attend, How};
use super::seen::{Seen, TrainAttention};
use crate::hparams::LayerAttention;

#[derive(Deserialize)]
struct Recording {
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    n_head: usize,
    n_head_kv: usize,
    d: usize,
    n: usize,
    scale: f32,
    /// `[n][n_head][d]`, as are the gradients of queries; those of keys and values `[n][n_head_kv][d]`.
    out: Vec<f64>,
    d_q: Vec<f64>,
    d_k: Vec<f64>,
    d_v: Vec<f64>,
}

/// `values` of the program.
fn values(n: usize, seed: usize) -> Vec<f32> {
    (0..n).map(|i| ((i * 37 + seed * 11) % 61) as f32 / 16.0 - 30.0 / 16.0).collect()
}

/// Rows of a writable tensor, in a separate store.
fn stored(width: usize, n: usize, values: &[f32]) -> Result<StoreTensor> {
    let defs = vec![TensorDef::new("rows", DType::F32, &[width, n])?];
    let store = Store::new(Device::find("cpu")?, defs, "rows")?;
    store.write_f32(0, 0, values)?;
    Ok(StoreTensor { store, index: 0 })
}

fn read(t: &StoreTensor, n: usize) -> Result<Vec<f32>> {
    let mut out = vec![0.0; n];
    t.store.read_f32(t.index, 0, &mut out)?;
    Ok(out)
}

/// Output and gradients of queries, keys and values, in blocks of queries, last to first.
fn run(case: &Case, own: bool, n_block: usize) -> Result<[Vec<f32>; 4]> {
    let Case { n_head, n_head_kv, d, n, scale, .. } = *case;
    let layer = LayerAttention { scale, ..LayerAttention::new(n_head, n_head_kv, d) };
    let group = TrainAttention::Shifted { group: None }.group(n).unwrap();
    let seen = Seen::new(&[], n, group);
    let (q, grad) = (values(n * n_head * d, 1), values(n * n_head * d, 4));
    let (row, n_kv) = (n_head_kv * d, n * n_head_kv * d);
    let [k, v] = [2, 3].map(|seed| stored(row, n, &values(n_kv, seed)));
    let [dk, dv] = [0, 0].map(|_| stored(row, n, &vec![0.0; n_kv]));
    let (k, v, dk, dv) = (k?, v?, dk?, dv?);
    let (mut out, mut d_q) = (vec![0.0; q.len()], vec![0.0; q.len()]);
    let starts: Vec<usize> = (0..n).step_by(n_block).collect();
    let mut exec = Executor::new(Device::find("cpu")?, 2)?;
    for start in starts.into_iter().rev() {
        let end = (start + n_block).min(n);
        let of_block = start * n_head * d..end * n_head * d;
        let (ids, seen_input, [o, g]) = exec.build(1 << 12, |b| -> Result<_> {
            let (q_id, q) = b.input("q", DType::F32, &[d, n_head, end - start])?;
            let (g_id, d_out) = b.input("d_out", DType::F32, &[d, n_head, end - start])?;
            let how = How { own, kernel: Kernel::F32, split: true, block: None };
            let attend = Attend::new(b, &layer, None, how, end - start, end)?;
            let (k, v) = (b.stored(&k)?, b.stored(&v)?);
            let o_lse = attend.forward(b, q, k, v)?;
            let d_q = attend.backward(b, q, [k, v], o_lse, d_out, [b.stored(&dk)?, b.stored(&dv)?])?;
            let o = b.cont(b.columns(o_lse, 0, d)?)?;
            Ok(([q_id, g_id], attend.seen, [b.output(o), b.output(d_q)]))
        })?;
        exec.set(ids[0], &q[of_block.clone()])?;
        exec.set(ids[1], &grad[of_block.clone()])?;
        seen_input.fill(&mut exec, start..end, &seen, &layer, None)?;
        exec.compute()?;
        for (id, all) in [(o, &mut out), (g, &mut d_q)] {
            let mut rows = Vec::new();
            exec.read_f32(id, &mut rows)?;
            all[of_block.clone()].copy_from_slice(&rows);
        }
    }
    Ok([out, d_q, read(&dk, n_kv)?, read(&dv, n_kv)?])
}

#[test]
fn output_and_gradients_are_pytorchs() {
    let recording: Recording = serde_json::from_str(include_str!("../../reference/s2.json")).unwrap();
    assert!(recording.cases.iter().any(|case| case.n_head % 2 == 1));
    for case in &recording.cases {
        for (own, n_block) in [(true, case.n), (true, 5), (false, case.n), (false, 7)] {
            let found = run(case, own, n_block).unwrap();
            for (name, found, want) in [
                ("out", &found[0], &case.out),
                ("d_q", &found[1], &case.d_q),
                ("d_k", &found[2], &case.d_k),
                ("d_v", &found[3], &case.d_v),
            ] {
                assert_eq!(found.len(), want.len());
                let size = (want.iter().map(|x| x * x).sum::<f64>() / want.len() as f64).sqrt();
                for (i, (a, b)) in found.iter().zip(want).enumerate() {
                    let off = (f64::from(*a) - b).abs() / (size + b.abs());
                    let heads = (case.n_head, case.n_head_kv);
                    assert!(
                        off < 2e-6,
                        "{heads:?} own {own} blocks of {n_block}: {name}[{i}] is {a}, expected {b}"
                    );
                }
            }
        }
    }
}
