//! Attention on one core, ours and ggml's flash attention, in operations a second (two for each multiply-add
//! of keys and values that are seen): a prompt's last 512 tokens, and a single one.

// The macros of criterion expand to functions without documentation.
#![allow(missing_docs)]

use std::time::Duration;

use criterion::{criterion_group, criterion_main, BenchmarkId, Criterion, Throughput};
use ggml::attention::{index_mask, mask_shape, AttentionBranch};
use ggml::backend::{Backend, Device};
use ggml::graph::{Executor, InputId};
use ggml::tensor::{Store, StoreTensor, TensorDef};
use ggml::{dtype, DType, Error, Result};

const D: usize = 64;
const N_HEAD: usize = 9;
const N_HEAD_KV: usize = 3;

fn values(n: usize) -> Vec<f32> {
    (0..n as u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 8) as f32 / 8_388_608.0 - 1.0).collect()
}

fn cache(dtype: DType, n_kv: usize) -> Result<[StoreTensor; 2]> {
    let row = D * N_HEAD_KV;
    let defs = ["k", "v"].map(|name| TensorDef::new(name, dtype, &[row, n_kv]));
    let store = Store::new(Device::find("cpu")?, defs.into_iter().collect::<Result<_>>()?, "a bench")?;
    let bytes = dtype::quantize(dtype, row, &values(row * n_kv))?;
    store.write(0, 0, &bytes)?;
    store.write(1, 0, &bytes)?;
    Ok([0, 1].map(|index| StoreTensor { store: store.clone(), index }))
}

/// Causal attention of the last `n` positions, in `parts` branches (0: ggml's own op).
fn load(n: usize, n_kv: usize, dtype: DType, parts: usize) -> Result<Executor> {
    let [k, v] = cache(dtype, n_kv)?;
    let mut exec = Executor::new(Backend::new(Device::find("cpu")?, 1)?)?;
    let n_columns = n_kv * parts.max(1);
    let shape = if parts == 0 { [n_columns, n] } else { mask_shape(n_columns, n)? };
    let (q, mask) = exec.build::<(InputId, InputId), Error>(32, |b| {
        let (q_id, q) = b.input("q", DType::F32, &[D, N_HEAD, n])?;
        let (mask_id, mask) = b.input("mask", DType::F16, &shape)?;
        let heads = |t: &StoreTensor| {
            let t = b.stored(t)?;
            let head = dtype.row_bytes(D).unwrap_or(0);
            b.view(t, [D, n_kv, N_HEAD_KV, 1], [t.nb()[1], head, t.nb()[2]], 0)
        };
        let (k, v, scale) = (heads(&k)?, heads(&v)?, 1.0 / (D as f32).sqrt());
        b.output(match parts {
            0 => b.flash_attn(b.permute(q, [0, 2, 1, 3])?, k, v, mask, scale)?,
            _ => b.attention(&vec![AttentionBranch { q, k, v }; parts], mask, scale)?,
        });
        Ok((q_id, mask_id))
    })?;
    exec.set(q, &values(D * N_HEAD * n))?;
    // Each branch has an equal share of the keys, as windows do.
    let bits = |i: usize| {
        let (t, c) = (i / n_columns, i % n_columns);
        let (part, c) = (c / n_kv, c % n_kv);
        let mine = c * parts.max(1) / n_kv == part;
        if mine && c + n <= n_kv + t {
            0u16
        } else {
            0xfc00
        }
    };
    let mut values: Vec<u16> = (0..n_columns * n).map(bits).collect();
    if parts > 0 {
        values.resize(shape[0] * shape[1], 0);
        index_mask(&mut values, n_columns, n)?;
    }
    exec.set(mask, &values)?;
    Ok(exec)
}

fn ops(c: &mut Criterion) {
    let mut group = c.benchmark_group("attention");
    group
        .sample_size(20)
        .warm_up_time(Duration::from_millis(200))
        .measurement_time(Duration::from_millis(800));
    for (n, n_kv) in [(512usize, 2048usize), (512, 8192), (8, 8192), (1, 8192)] {
        let seen = n * n_kv - n * (n - 1) / 2;
        group.throughput(Throughput::Elements((4 * seen * N_HEAD * D) as u64));
        for dtype in [DType::F16, DType::Q8_0] {
            for (name, parts) in [("flash_attn", 0), ("attention", 1), ("attention_3", 3)] {
                let mut exec = load(n, n_kv, dtype, parts).unwrap_or_else(|e| panic!("{e}"));
                let id = BenchmarkId::new(name, format!("{n}x{n_kv}_{dtype}"));
                group.bench_function(id, |b| b.iter(|| exec.compute()));
            }
        }
    }
    group.finish();
}

criterion_group!(benches, ops);
criterion_main!(benches);
