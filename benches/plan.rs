//! Planning: every registered method, and HARPE's search at the paper's size.

// The macros of criterion expand to functions without documentation.
#![allow(missing_docs)]

use std::hint::black_box;
use std::time::Duration;

use criterion::{criterion_group, criterion_main, Criterion};
use ropewalk::hparams::{Hparams, LayerAttention, LayerHparams, RopeScaling};
use ropewalk::rope::{Plan, Spec, METHODS};

fn model(freq_base: f64, n_rot: usize, n_head_kv: usize, n_ctx_train: usize) -> Hparams {
    let factors = Some(vec![2.0; n_rot / 2]);
    Hparams {
        arch: "llama".into(),
        n_layer: 32,
        n_embd: 4096,
        n_vocab: 32000,
        n_ctx_train,
        norm_eps: 1e-5,
        attention: vec![LayerAttention::new(n_head_kv, n_head_kv, n_rot).rotated(freq_base, n_rot)],
        layers: LayerHparams::alike(32, 11008),
        rope_scaling: RopeScaling {
            long_factors: factors.clone(),
            short_factors: factors,
            ..RopeScaling::default()
        },
        ..Hparams::default()
    }
}

fn plans(c: &mut Criterion) {
    let mut group = c.benchmark_group("plan");
    group.sample_size(10).warm_up_time(Duration::from_millis(300)).measurement_time(Duration::from_secs(1));
    let small = model(1e5, 64, 3, 8192);
    let llama2 = model(1e4, 128, 32, 4096);
    let mut bench = |name: String, text: &str, hp: &Hparams, n_ctx: usize| {
        let spec: Spec = text.parse().expect("a valid spec");
        group.bench_function(name, |b| b.iter(|| Plan::new(black_box(&spec), hp, n_ctx).expect("a plan")));
    };
    for m in METHODS {
        bench(format!("{}/3 heads, 16384", m.name), m.name, &small, 16384);
    }
    for bases in ["search", "table2"] {
        bench(format!("harpe {bases}/32 heads, 131072"), &format!("harpe:bases={bases}"), &llama2, 131_072);
    }
    group.finish();
}

criterion_group!(benches, plans);
criterion_main!(benches);
