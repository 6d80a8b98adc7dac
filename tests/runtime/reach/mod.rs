//! Every rope method through sessions: logits against a naive f64 model, and different ways to the same state.
//!
//! Nothing here asks a plan which pairs it covers: what a method means is written down in `cases`, from its paper.

mod cases;
mod evict;
mod exact;
mod moments;
mod probe;
mod same;
mod starts;

use std::sync::OnceLock;

use convert::random::{Ffn, QkNorm, Shape};
use gguf::{Array, Value};
use ropewalk::model::Model;
use ropewalk::rope::{Plan, Spec, METHODS};
use ropewalk::session::SessionParams;
use ropewalk::{DType, Token};

use crate::common::{some_tokens, turned, with_kv};
use naive::{self, Definition, Naive};

/// Tokens of the models here.
const N_VOCAB: usize = 260;

/// A model in both forms.
struct Twin {
    about: &'static str,
    model: Model,
    naive: Naive,
}

/// Heads in groups or not, of 32 or 64, both pairings, biases, a head turned only in part. The first is the one for long texts.
fn twins() -> &'static [Twin] {
    static TWINS: OnceLock<Vec<Twin>> = OnceLock::new();
    TWINS.get_or_init(|| {
        let base = Shape {
            n_layer: 2,
            n_embd: 96,
            n_head: 4,
            n_head_kv: 2,
            n_embd_head: 32,
            n_ff: 160,
            n_vocab: N_VOCAB,
            n_ctx_train: 64,
            ..Shape::named("llama-tiny").unwrap()
        };
        let qwen2 =
            Shape { n_embd: 192, n_head: 6, n_head_kv: 3, n_layer: 1, ..Shape::named("qwen2-tiny").unwrap() };
        let qwen2 = Shape { n_embd_head: 32, n_ff: 96, n_vocab: N_VOCAB, n_ctx_train: 64, ..qwen2 };
        let qwen3 = Shape { arch: "qwen3".into(), qk_norm: QkNorm::Head, ..heads(&base, 4, 2, 32) };
        // Sinks, in a layer without a window; of as many experts as are used, so that rounding cannot choose others.
        let pattern = Value::Array(Array::Bool(vec![false]));
        let keys =
            vec![("attention.sliding_window", Value::U32(8)), ("attention.sliding_window_pattern", pattern)];
        let gpt_oss = Shape { n_embd: 96, n_ff: 64, keys, ..Shape::named("gpt-oss-tiny").unwrap() };
        let gpt_oss = Shape {
            n_vocab: N_VOCAB,
            n_ctx_train: 64,
            ffn: Ffn::Experts { n: 2, used: 2, shared: 0 },
            ..heads(&gpt_oss, 4, 2, 32)
        };
        [
            ("llama, 4 heads of 32 on 2", base.clone(), 32),
            ("llama, 6 heads of 64 on 3, 40 of 64 turned", heads(&base, 6, 3, 64), 40),
            ("llama, 4 heads of 32 on 4", heads(&base, 4, 4, 32), 32),
            ("llama, 4 heads of 64 on 1", heads(&base, 4, 1, 64), 64),
            ("qwen2, 6 heads of 32 on 3", qwen2, 32),
            ("qwen3, 4 heads of 32 on 2", qwen3, 32),
            ("gpt-oss, sinks, 4 heads of 32 on 2", gpt_oss, 32),
        ]
        .into_iter()
        .enumerate()
        .map(|(i, (about, shape, n_rot))| twin(i, about, &shape, n_rot))
        .collect()
    })
}

fn heads(base: &Shape, n_head: usize, n_head_kv: usize, n_embd_head: usize) -> Shape {
    Shape { n_head, n_head_kv, n_embd_head, n_layer: 1, ..base.clone() }
}

/// A random model of that shape whose heads are turned in `n_rot` dimensions; with factors for LongRoPE, which nothing else reads.
fn twin(i: usize, about: &'static str, shape: &Shape, n_rot: usize) -> Twin {
    let factors: Vec<u8> = (0..n_rot / 2).flat_map(|j| (1.0 + j as f32 / 5.0).to_le_bytes()).collect();
    let model = turned(&format!("reach-{i}"), shape, 11 + i as u64, n_rot, |out| {
        for name in ["rope_factors_long.weight", "rope_factors_short.weight"] {
            out.tensor_bytes(name, DType::F32, &[n_rot as u64 / 2], factors.clone()).unwrap();
        }
    });
    assert_eq!(model.hparams().attention_of(0).unwrap().n_rot(), n_rot);
    Twin { about, naive: Naive::of(&model), model }
}

/// Text of `n` tokens; a shorter one is how a longer one begins.
fn text(n: usize) -> Vec<Token> {
    some_tokens(n, N_VOCAB)
}

/// Settings of a session under a method.
fn under(spec: &str, n_ctx: usize, kv_type: DType) -> SessionParams {
    with_kv(n_ctx, kv_type).rope(Some(spec.parse().unwrap_or_else(|e| panic!("{e}"))))
}

/// Largest difference of two sets of logits in a row, relative to the first one's norm.
fn apart(a: &[f32], b: &[f32]) -> f64 {
    assert_eq!(a.len(), b.len());
    naive::worst_row(b, &a.iter().map(|&x| f64::from(x)).collect::<Vec<_>>(), N_VOCAB)
}

/// Failed checks, told together: a wrong method shows by which of its checks hold.
#[derive(Default)]
struct Failures(Vec<String>);

impl Failures {
    fn at_most(&mut self, bound: f64, found: f64, what: &str) {
        println!("{what}: {found:.2e}");
        if found.is_nan() || found > bound {
            self.0.push(format!("{what}: off by {found:.2e}, allowed {bound:.0e}"));
        }
    }

    #[track_caller]
    fn none(self) {
        assert!(self.0.is_empty(), "{} failures:\n{}", self.0.len(), self.0.join("\n"));
    }
}

/// A method without a case here is a method nobody checks.
#[test]
fn every_method_has_a_definition_here() {
    let specs: Vec<Spec> = cases::all().map(|c| c.spec.parse().unwrap()).collect();
    for method in METHODS {
        let found = specs.iter().any(|s| s.part(method.name).is_some());
        assert!(found, "{}: tests/runtime/reach/cases.rs lacks what it means", method.name);
    }
}

/// Two ways to write a formula in f64, in parts of its value: each has a handful of roundings, and that of an exponent counts as
/// often as the logarithm of its base, up to 14, has it.
const ROUNDED: f64 = 2.0 * 16.0 * f64::EPSILON;

/// Plans against definitions, pair by pair, before anything is computed with them.
#[test]
fn plans_are_what_the_definitions_say() {
    const N: i32 = 400;
    for case in cases::all() {
        for twin in twins() {
            let hp = twin.model.hparams();
            let plan = Plan::new(&case.spec.parse().unwrap(), hp, 640).unwrap_or_else(|e| panic!("{e}"));
            for i in 0..N {
                for j in 0..=i {
                    let want = case.distance(i.into(), j.into());
                    let want = want.map(|parts| parts as f64 / case.unit() as f64);
                    assert_eq!(plan.layer(0).distance(i, j), want, "{}: {i}, {j}", case.spec);
                    let covering =
                        plan.layer(0).branches.iter().filter(|b| b.distance(i, j).is_some()).count();
                    assert!(covering <= 1, "{}: {i}, {j} in {covering} branches", case.spec);
                }
                let (plan, want) = (plan.layer(0).q_scale(i), case.q_scale(0, i.into()));
                assert!(
                    (plan - want).abs() <= ROUNDED * want,
                    "{}: query {i} times {plan}, not {want}",
                    case.spec
                );
            }
            let want = case.mscale(0);
            assert!(
                (plan.layer(0).mscale - want).abs() <= ROUNDED * want,
                "{}: {}, not {want}",
                case.spec,
                plan.layer(0).mscale
            );
            let tables = case.tables(hp, &plan, 0).concat();
            let close = |(a, b): (&f64, &f64)| (a - b).abs() <= ROUNDED * b;
            assert!(tables.len() == plan.layer(0).freqs.theta.len(), "{}", case.spec);
            assert!(tables.iter().zip(&plan.layer(0).freqs.theta).all(close), "{}: frequencies", case.spec);
        }
    }
}
