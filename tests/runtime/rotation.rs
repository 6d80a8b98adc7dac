//! Plans through both lowerings, the table op and `ggml_rope_ext`, against the rotation's definition in f64.

use ggml::backend::Device;
use ggml::graph::{Builder, Executor};
use ggml::{DType, Error};
use ropewalk::hparams::{Hparams, LayerAttention, LayerHparams};
use ropewalk::internals::graph::{Pairing, Positions, Rotation};
use ropewalk::rope::{Plan, PosMap};

/// One more than the farthest position.
const N_CTX: usize = 26_001;

/// Bound on the error of an f32 angle at the farthest position: its own rounding and that of the factor dividing it.
const ANGLE_BOUND: f64 = 1.5 * 26_000.0 * 1.2e-7;

/// The table is rounded once from f64.
const TABLE_BOUND: f64 = 1e-6;

fn model(n_head: usize, n_head_kv: usize, n_embd_head: usize, n_rot: usize) -> Hparams {
    Hparams {
        arch: "llama".into(),
        n_layer: 1,
        n_embd: n_head * n_embd_head,
        n_vocab: 100,
        n_ctx_train: 2048,
        norm_eps: 1e-5,
        attention: vec![LayerAttention::new(n_head, n_head_kv, n_embd_head).rotated(1e4, n_rot)],
        layers: LayerHparams::alike(1, 64),
        ..Hparams::default()
    }
}

fn plan(spec: &str, hp: &Hparams) -> Plan {
    let spec = spec.parse().unwrap_or_else(|e| panic!("{spec}: {e}"));
    Plan::new(&spec, hp, N_CTX).unwrap_or_else(|e| panic!("{spec}: {e}"))
}

fn values(n: usize, seed: u32) -> Vec<f32> {
    let mut x = seed.wrapping_mul(2_654_435_761).max(1);
    let mut next = || {
        x ^= x << 13;
        x ^= x >> 17;
        x ^= x << 5;
        x as f32 / u32::MAX as f32 * 2.0 - 1.0
    };
    (0..n).map(|_| next()).collect()
}

/// The two dimensions of pair `j`.
fn pair(pairing: Pairing, n_rot: usize, j: usize) -> (usize, usize) {
    match pairing {
        Pairing::Adjacent => (2 * j, 2 * j + 1),
        Pairing::Halves => (j, j + n_rot / 2),
    }
}

/// Heads `[d, n_heads, T]` rotated by definition.
fn naive(x: &[f32], n_heads: usize, hp: &Hparams, plan: &Plan, pairing: Pairing, pos: &[i32]) -> Vec<f64> {
    let mut y: Vec<f64> = x.iter().map(|&x| f64::from(x)).collect();
    let tables: Vec<&[f64]> = plan.layer(0).freqs.tables().collect();
    for (at, head) in y.chunks_mut(hp.layer_attention(0).n_embd_head).enumerate() {
        let (t, h) = (at / n_heads, at % n_heads);
        // Query heads share the table of their key head.
        let theta = tables[h / (n_heads / tables.len())];
        let x = head.to_vec();
        for (j, theta) in theta.iter().enumerate() {
            let (a, b) = pair(pairing, hp.layer_attention(0).n_rot(), j);
            let (sin, cos) = (f64::from(pos[t]) * theta).sin_cos();
            head[a] = (x[a] * cos - x[b] * sin) * plan.layer(0).mscale;
            head[b] = (x[a] * sin + x[b] * cos) * plan.layer(0).mscale;
        }
    }
    y
}

struct Rotated {
    q: Vec<f32>,
    k: Vec<f32>,
}

fn rotate(
    hp: &Hparams,
    plan: &Plan,
    pairing: Pairing,
    pos: &[i32],
    by_table: bool,
    q: &[f32],
    k: &[f32],
) -> Result<Rotated, Error> {
    let (n, layer, plan) = (pos.len(), hp.layer_attention(0), plan.layer(0));
    let mut exec = Executor::new(Device::find("cpu")?, 2)?;
    let build = |b: &Builder<'_>| {
        let (q_id, q) = b.input("q", DType::F32, &[layer.n_embd_head, layer.n_head, n])?;
        let (k_id, k) = b.input("k", DType::F32, &[layer.n_embd_head, layer.n_head_kv, n])?;
        let maps = std::iter::once(PosMap::IDENTITY);
        let (rotation, inputs) = Rotation::new(b, layer, plan, pairing, n, by_table, maps)?;
        let (q, k) = (rotation.queries(b, q, PosMap::IDENTITY)?, rotation.keys(b, k, PosMap::IDENTITY)?);
        Ok::<_, Error>((q_id, k_id, inputs, b.output(q), b.output(k)))
    };
    let (q_id, k_id, inputs, q_out, k_out) = exec.build(64, build)?;
    exec.set(q_id, q)?;
    exec.set(k_id, k)?;
    inputs.fill(&mut exec, layer, plan, Positions::Whole(pos), &mut Vec::new())?;
    exec.compute()?;
    let mut out = Rotated { q: Vec::new(), k: Vec::new() };
    exec.read_f32(q_out, &mut out.q)?;
    exec.read_f32(k_out, &mut out.k)?;
    Ok(out)
}

/// Heads with the members of each pair of the first `n_rot` dimensions side by side.
fn side_by_side(x: &[f64], d: usize, n_rot: usize) -> Vec<f64> {
    let from = |i: usize| if i < n_rot { i / 2 + i % 2 * n_rot / 2 } else { i };
    x.chunks(d).flat_map(|head| (0..d).map(move |i| head[from(i)])).collect()
}

fn max_error(got: &[f32], want: &[f64]) -> f64 {
    assert_eq!(got.len(), want.len());
    got.iter().zip(want).map(|(g, w)| (f64::from(*g) - w).abs()).fold(0.0, f64::max)
}

const SPECS: [&str; 9] = [
    "plain",
    "pi:factor=8",
    "ntk:factor=8",
    "dynamic-ntk",
    "yarn:factor=8",
    "abf:base=500000",
    "sba:factor=8",
    "harpe:bases=10000/50000/250000",
    "harpe:bases=search,base-min=10000,base-max=200000",
];

#[test]
fn both_lowerings_are_the_rotation() {
    for (n_head, n_head_kv, d) in [(9, 3, 64), (3, 3, 16), (6, 3, 32)] {
        let hp = model(n_head, n_head_kv, d, d);
        for spec in SPECS {
            let plan = plan(spec, &hp);
            for pairing in [Pairing::Adjacent, Pairing::Halves] {
                for pos in [&[26_000][..], &[0, 1, 25_999, 26_000, 12_345, 77, 26_000]] {
                    let (q, k) = (values(d * n_head * pos.len(), 1), values(d * n_head_kv * pos.len(), 2));
                    let mut want_q = naive(&q, n_head, &hp, &plan, pairing, pos);
                    let mut want_k = naive(&k, n_head_kv, &hp, &plan, pairing, pos);
                    let what = format!("{spec}, {n_head}/{n_head_kv} heads of {d}, {pairing:?}");

                    let got = rotate(&hp, &plan, pairing, pos, true, &q, &k).unwrap();
                    let off = max_error(&got.q, &want_q).max(max_error(&got.k, &want_k));
                    assert!(off <= TABLE_BOUND * plan.layer(0).mscale, "{what}: by table off by {off:e}");

                    let got = rotate(&hp, &plan, pairing, pos, false, &q, &k).unwrap();
                    if plan.layer(0).freqs.n_tables > 1 && pairing == Pairing::Halves {
                        (want_q, want_k) = (side_by_side(&want_q, d, d), side_by_side(&want_k, d, d));
                    }
                    let off = max_error(&got.q, &want_q).max(max_error(&got.k, &want_k));
                    assert!(
                        off <= ANGLE_BOUND * plan.layer(0).mscale,
                        "{what}: by ggml_rope_ext off by {off:e}"
                    );
                }
            }
        }
    }
}

#[test]
fn dimensions_that_are_not_rotated_stay() {
    let hp = model(6, 3, 32, 20);
    let pos = [26_000, 3];
    let (q, k) = (values(32 * 6 * 2, 3), values(32 * 3 * 2, 4));
    for spec in ["plain", "yarn:factor=4", "harpe:bases=10000/50000/250000"] {
        let plan = plan(spec, &hp);
        for pairing in [Pairing::Adjacent, Pairing::Halves] {
            for by_table in [true, false] {
                let got = rotate(&hp, &plan, pairing, &pos, by_table, &q, &k).unwrap();
                let bound = if by_table { TABLE_BOUND } else { ANGLE_BOUND } * plan.layer(0).mscale;
                let apart = !by_table && plan.layer(0).freqs.n_tables > 1 && pairing == Pairing::Halves;
                let want = |x: &[f32], heads: usize| {
                    let rotated = naive(x, heads, &hp, &plan, pairing, &pos);
                    if apart {
                        side_by_side(&rotated, 32, 20)
                    } else {
                        rotated
                    }
                };
                let off = max_error(&got.q, &want(&q, 6)).max(max_error(&got.k, &want(&k, 3)));
                assert!(off <= bound, "{spec} {pairing:?} by table {by_table}: off by {off:e}");
                for (before, after) in q.chunks(32).zip(got.q.chunks(32)) {
                    assert_eq!(before[20..], after[20..], "{spec} {pairing:?} by table {by_table}");
                }
            }
        }
    }
}

#[test]
fn harpe_with_equal_bases_is_plain() {
    let hp = model(9, 3, 64, 64);
    let (plain, harpe) = (plan("plain", &hp), plan("harpe:bases=10000/10000/10000", &hp));
    assert_eq!((plain.layer(0).freqs.n_tables, harpe.layer(0).freqs.n_tables), (1, 3));
    let pos: Vec<i32> = (0..5).map(|i| i * 6_500).collect();
    let (q, k) = (values(64 * 9 * 5, 5), values(64 * 3 * 5, 6));
    let both = |by_table| {
        let rotated = |plan| rotate(&hp, plan, Pairing::Adjacent, &pos, by_table, &q, &k).unwrap();
        (rotated(&plain), rotated(&harpe))
    };
    let (a, b) = both(true);
    assert_eq!((a.q, a.k), (b.q, b.k));
    // Without the table ggml makes plain's series itself, and divides by HARPE's factors: each within its rounding.
    let (a, b) = both(false);
    for (a, b) in [(a.q, b.q), (a.k, b.k)] {
        let b: Vec<f64> = b.iter().map(|&x| f64::from(x)).collect();
        assert!(max_error(&a, &b) <= 2.0 * ANGLE_BOUND);
    }
}
