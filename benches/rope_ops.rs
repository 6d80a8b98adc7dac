//! Rotation ops in bytes per second, to hold against a copy of the same bytes: by table, and by ggml's own
//! op, which makes cosines and sines anew each time; with one base for all heads, and with a base for each.

// The macros of criterion expand to functions without documentation.
#![allow(missing_docs)]

use std::hint::black_box;
use std::time::Duration;

use criterion::{criterion_group, criterion_main, BenchmarkId, Criterion, Throughput};
use ggml::backend::Device;
use ggml::graph::{Builder, Executor, InputId};
use ggml::ops::RopeParams;
use ggml::tensor::Tensor;
use ggml::{DType, Error, Result};

/// The values of a graph's inputs.
#[derive(Default)]
struct Feed {
    values: Vec<(InputId, Vec<f32>)>,
    pos: Vec<(InputId, Vec<i32>)>,
}

impl Feed {
    fn values<'c>(
        &mut self,
        b: &Builder<'c>,
        shape: &[usize],
        f: impl Fn(usize) -> f32,
    ) -> Result<Tensor<'c>> {
        let (id, t) = b.input("values", DType::F32, shape)?;
        self.values.push((id, (0..shape.iter().product()).map(f).collect()));
        Ok(t)
    }
}

/// An executor on all cores, loaded with a graph over x F32 `[d, n_head, T]`.
fn load(
    shape: [usize; 3],
    f: impl for<'c> Fn(&Builder<'c>, &mut Feed, Tensor<'c>) -> Result<Tensor<'c>>,
) -> Executor {
    let ready = || -> Result<Executor> {
        let mut exec = Executor::new(Device::find("cpu")?, 0)?;
        let mut feed = Feed::default();
        exec.build::<_, Error>(16, |b| {
            let x = feed.values(b, &shape, |i| i as f32 / 1e6)?;
            b.output(f(b, &mut feed, x)?);
            Ok(())
        })?;
        feed.values.iter().try_for_each(|(id, v)| exec.set(*id, v))?;
        feed.pos.iter().try_for_each(|(id, v)| exec.set(*id, v))?;
        Ok(exec)
    };
    ready().unwrap_or_else(|e| panic!("{e}"))
}

/// Positions as far out as the project goes: reducing large angles is part of the cost.
fn rope<'c>(b: &Builder<'c>, feed: &mut Feed, x: Tensor<'c>, n_dims: usize, d: usize) -> Result<Tensor<'c>> {
    let n = x.ne()[2];
    let (id, pos) = b.input("pos", DType::I32, &[n])?;
    feed.pos.push((id, (20_000..).take(n).collect()));
    let factor = |i: usize| 10_000f32.powf((i % (d / 2)) as f32 * 2.0 / d as f32);
    let factors = feed.values(b, &[n_dims / 2], factor)?;
    let p = RopeParams { n_dims, neox: false, freq_base: 1.0, freq_scale: 1.0, mscale: 1.0 };
    b.rope(x, pos, Some(factors), &p)
}

fn ops(c: &mut Criterion) {
    let mut group = c.benchmark_group("rope_ops");
    group
        .sample_size(20)
        .warm_up_time(Duration::from_millis(200))
        .measurement_time(Duration::from_millis(800));
    for (n_head, d) in [(9usize, 64usize), (32, 128)] {
        for n in [512usize, 2048] {
            let shape = [d, n_head, n];
            let len = d * n_head * n;
            // Each value is read once and written once; tables come on top.
            group.throughput(Throughput::Bytes(8 * len as u64));
            let size = format!("{n_head}x{d}x{n}");
            let mut bench = |name: &str, mut exec: Executor| {
                group.bench_function(BenchmarkId::new(name, &size), |b| b.iter(|| exec.compute()));
            };
            for (name, n_tables) in [("table", 1), ("table_per_head", n_head)] {
                let table = [d, n_tables, n];
                bench(
                    name,
                    load(shape, |b, feed, x| b.rope_table(x, feed.values(b, &table, |_| 0.7)?, false)),
                );
            }
            bench("ggml", load(shape, |b, feed, x| rope(b, feed, x, d, d)));
            let all = d * n_head;
            bench(
                "ggml_per_head",
                load(shape, |b, feed, x| rope(b, feed, b.reshape(x, &[all, 1, n])?, all, d)),
            );
            let (from, mut to) = (vec![0.5f32; len], vec![0f32; len]);
            group.bench_function(BenchmarkId::new("copy", &size), |b| {
                b.iter(|| black_box(&mut to).copy_from_slice(black_box(&from)));
            });
        }
    }
    group.finish();
}

criterion_group!(benches, ops);
criterion_main!(benches);
