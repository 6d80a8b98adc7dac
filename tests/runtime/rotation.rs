//! Plans through both lowerings, the table op and `ggml_rope_ext`, against the rotation's definition in f64.

use ggml::backend::Device;
use ggml::graph::{Builder, Executor};
use ggml::{DType, Error};
use ropewalk::hparams::{Hparams, LayerAttention, LayerHparams};
use ropewalk::internals::graph::{Pairing, Positions, Rotation};
use ropewalk::rope::{Plan, PosMap};

use crate::common::xorshift;

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

fn values(n: usize, seed: u64) -> Vec<f32> {
    let mut next = xorshift(seed);
    (0..n).map(|_| (next() >> 40) as f32 / (1 << 23) as f32 - 1.0).collect()
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
    for (at, head) in y.chunks_mut(hp.attention_of(0).unwrap().n_embd_head).enumerate() {
        let (t, h) = (at / n_heads, at % n_heads);
        // Query heads share the table of their key head.
        let theta = tables[h / (n_heads / tables.len())];
        let x = head.to_vec();
        for (j, theta) in theta.iter().enumerate() {
            let (a, b) = pair(pairing, hp.attention_of(0).unwrap().n_rot(), j);
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
    let (n, layer, plan) = (pos.len(), hp.attention_of(0).unwrap(), plan.layer(0));
    let mut exec = Executor::new(Device::find("cpu")?, 2)?;
    let build = |b: &Builder<'_>| {
        let (q_id, q) = b.input("q", DType::F32, &[layer.n_embd_head, layer.n_head, n])?;
        let (k_id, k) = b.input("k", DType::F32, &[layer.n_embd_head, layer.n_head_kv, n])?;
        let maps = std::iter::once(PosMap::IDENTITY);
        let rotation = Rotation::new(b, layer, plan, pairing, n, by_table, maps)?;
        let (q, k) = (rotation.queries(b, q, PosMap::IDENTITY)?, rotation.keys(b, k, PosMap::IDENTITY)?);
        Ok::<_, Error>((q_id, k_id, rotation, b.output(q), b.output(k)))
    };
    let (q_id, k_id, rotation, q_out, k_out) = exec.build(64, build)?;
    exec.set(q_id, q)?;
    exec.set(k_id, k)?;
    rotation.fill(&mut exec, layer, plan, Positions::Whole(pos), &mut Vec::new())?;
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

/// Of the last heads 20 of 32 dimensions are turned. What is not turned stays as it is, to the bit.
#[test]
fn both_lowerings_are_the_rotation() {
    for (n_head, n_head_kv, d, n_rot) in [(9, 3, 64, 64), (3, 3, 16, 16), (6, 3, 32, 32), (6, 3, 32, 20)] {
        let hp = model(n_head, n_head_kv, d, n_rot);
        for spec in SPECS {
            let plan = plan(spec, &hp);
            let several = plan.layer(0).freqs.n_tables > 1;
            for pairing in [Pairing::Adjacent, Pairing::Halves] {
                for pos in [&[26_000][..], &[0, 1, 25_999, 26_000, 12_345, 77, 26_000]] {
                    let (q, k) = (values(d * n_head * pos.len(), 1), values(d * n_head_kv * pos.len(), 2));
                    for by_table in [true, false] {
                        let got = rotate(&hp, &plan, pairing, pos, by_table, &q, &k).unwrap();
                        let bound = if by_table { TABLE_BOUND } else { ANGLE_BOUND } * plan.layer(0).mscale;
                        for (x, got, n_heads) in [(&q, &got.q, n_head), (&k, &got.k, n_head_kv)] {
                            let mut want = naive(x, n_heads, &hp, &plan, pairing, pos);
                            if several && !by_table && pairing == Pairing::Halves {
                                want = side_by_side(&want, d, n_rot);
                            }
                            let off = max_error(got, &want);
                            let what =
                                format!("{spec}, {n_heads} heads of {d}, {pairing:?}, by table {by_table}");
                            assert!(off <= bound, "{what}: off by {off:e}");
                            for (before, after) in x.chunks(d).zip(got.chunks(d)) {
                                assert_eq!(before[n_rot..], after[n_rot..], "{what}");
                            }
                        }
                    }
                }
            }
        }
    }
}
