//! The ops that take most of a training step, on one core, in operations a second (two for each multiply-add
//! that is needed): products with a weight of SmolLM2's feed-forward, and attention forward and backward over
//! a block of 512 queries.

// The macros of criterion expand to functions without documentation.
#![allow(missing_docs)]

use std::time::Duration;

use criterion::{criterion_group, criterion_main, BenchmarkId, Criterion, Throughput};
use ggml::attention_train::AttentionBack;
use ggml::backend::Device;
use ggml::graph::{Executor, InputId};
use ggml::tensor::{Store, StoreTensor, TensorDef};
use ggml::{DType, Error, Result};

const D: usize = 64;
const N_HEAD: usize = 9;
const N_HEAD_KV: usize = 3;
const T: usize = 512;

fn values(n: usize) -> Vec<f32> {
    (0..n as u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 8) as f32 / 8_388_608.0 - 1.0).collect()
}

fn executor() -> Result<Executor> {
    Executor::new(Device::find("cpu")?, 1)
}

fn stored(shape: &[usize]) -> Result<StoreTensor> {
    let store = Store::new(Device::find("cpu")?, vec![TensorDef::new("x", DType::F32, shape)?], "a bench")?;
    let bytes: Vec<u8> = values(shape.iter().product()).iter().flat_map(|x| x.to_le_bytes()).collect();
    store.write(0, 0, &bytes)?;
    Ok(StoreTensor { store, index: 0 })
}

/// `m x k` by `k x n`.
fn product(op: &str, m: usize, n: usize, k: usize) -> Result<Executor> {
    let (a, b) = match op {
        "gemm_t" => ([m, k], [k, n]),
        "gemm_outer" => ([m, k], [n, k]),
        _ => ([k, m], [k, n]),
    };
    let (a, b) = (stored(&a)?, stored(&b)?);
    let mut exec = executor()?;
    exec.build::<_, Error>(32, |g| {
        let (a, b) = (g.stored(&a)?, g.stored(&b)?);
        g.output(match op {
            "gemm_t" => g.gemm_t(a, b)?,
            "gemm_outer" => g.gemm_outer(a, b)?,
            "gemm" => g.gemm(a, b)?,
            _ => g.mul_mat(a, b)?,
        });
        Ok(())
    })?;
    Ok(exec)
}

/// Causal attention of the last `T` of `n` positions; backward too, or forward alone.
fn attention(n: usize, backward: bool) -> Result<Executor> {
    let scale = 1.0 / (D as f32).sqrt();
    let queries = stored(&[D, N_HEAD, T])?;
    let [k, v, d_k, d_v] = [(); 4].map(|()| stored(&[D, N_HEAD_KV, n]));
    let (k, v, d_k, d_v) = (k?, v?, d_k?, d_v?);
    let o_lse = stored(&[D + 1, N_HEAD, T])?;
    let mut exec = executor()?;
    let key_ranges = exec.build::<InputId, Error>(32, |b| {
        let (id, key_ranges) = b.input("key_ranges", DType::I32, &[2, T])?;
        let (q, k, v) = (b.stored(&queries)?, b.stored(&k)?, b.stored(&v)?);
        if backward {
            let (d_k, d_v) = (b.stored(&d_k)?, b.stored(&d_v)?);
            let operands =
                AttentionBack { q, k, v, key_ranges, o_lse: b.stored(&o_lse)?, d_out: q, d_k, d_v };
            b.output(b.attention_back(operands, scale)?);
        } else {
            b.output(b.attention_lse(q, k, v, key_ranges, scale)?);
        }
        Ok(id)
    })?;
    let pairs: Vec<i32> = (0..T).flat_map(|t| [0, (n - T + t + 1) as i32]).collect();
    exec.set(key_ranges, &pairs)?;
    Ok(exec)
}

fn ops(c: &mut Criterion) {
    let mut group = c.benchmark_group("train_ops");
    group
        .sample_size(20)
        .warm_up_time(Duration::from_millis(200))
        .measurement_time(Duration::from_millis(800));
    for (m, n, k) in [(1536usize, T, 576usize), (16, T, 576), (576, 576, T)] {
        group.throughput(Throughput::Elements((2 * m * n * k) as u64));
        for op in ["gemm", "gemm_t", "gemm_outer", "mul_mat"] {
            let mut exec = product(op, m, n, k).unwrap_or_else(|e| panic!("{e}"));
            let id = BenchmarkId::new(op, format!("{m}x{n}x{k}"));
            group.bench_function(id, |b| b.iter(|| exec.compute()));
        }
    }
    for n in [512usize, 2048, 8192] {
        let seen = T * n - T * (T - 1) / 2;
        for (name, products, backward) in [("forward", 2, false), ("backward", 5, true)] {
            group.throughput(Throughput::Elements((2 * products * seen * N_HEAD * D) as u64));
            let mut exec = attention(n, backward).unwrap_or_else(|e| panic!("{e}"));
            group.bench_function(BenchmarkId::new(name, format!("{T}x{n}")), |b| b.iter(|| exec.compute()));
        }
    }
    group.finish();
}

criterion_group!(benches, ops);
criterion_main!(benches);
