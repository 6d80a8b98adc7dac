//! Properties of sessions: different ways to the same state give the same logits, and failed calls leave no trace.

#[path = "../common/mod.rs"]
mod common;

mod decode;
mod generate;
mod limits;
mod ropes;
mod sequences;
mod state;

use std::collections::HashMap;
use std::sync::Mutex;

use ropewalk::model::Model;
use ropewalk::session::{Batch, Session, SessionParams};
use ropewalk::{DType, Token};

/// Both architectures.
const SHAPES: [&str; 2] = ["llama-tiny", "qwen2-tiny"];

/// Cache types, with the largest difference of two logits (their deviation is near 2) that another order of the same sums
/// may make. Measured: 6e-6, 2e-2, 6e-3, 2e-2. ggml's flash attention sums the values of an F16 cache in F16 when few
/// tokens run; a key rounded to the next value of its type counts for more, the coarser the type.
const KV: [(DType, f64); 4] =
    [(DType::F32, 5e-5), (DType::F16, 6e-2), (DType::Q8_0, 5e-2), (DType::Q4_0, 0.2)];

/// A random model, made once.
fn model(shape: &str, dtype: DType) -> &'static Model {
    static MODELS: Mutex<Option<HashMap<(String, DType), &'static Model>>> = Mutex::new(None);
    let mut models = MODELS.lock().unwrap_or_else(|e| e.into_inner());
    models
        .get_or_insert_default()
        .entry((shape.to_owned(), dtype))
        .or_insert_with(|| Box::leak(Box::new(common::load(&common::random_model(shape, dtype, "session")))))
}

fn open<'m>(model: &'m Model, params: &SessionParams) -> Session<'m> {
    Session::new(model, params).unwrap_or_else(|e| panic!("{e}"))
}

fn with_kv(n_ctx: usize, kv_type: DType) -> SessionParams {
    SessionParams { kv_type, ..common::params(n_ctx) }
}

/// All logits of tokens added to sequence 0.
fn score(session: &mut Session<'_>, tokens: &[Token]) -> Vec<f32> {
    let mut rows = Vec::new();
    let done = session.score(tokens, 0..tokens.len(), &mut |_, row| rows.extend_from_slice(row));
    done.unwrap_or_else(|e| panic!("{e}"));
    rows
}

/// Largest difference of two sets of logits; panics when one is not a number.
fn distance(a: &[f32], b: &[f32]) -> f64 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).fold(0.0, |max, (a, b)| {
        let d = f64::from((a - b).abs());
        assert!(d.is_finite(), "{a} and {b}");
        d.max(max)
    })
}

#[track_caller]
fn assert_close(a: &[f32], b: &[f32], bound: f64, what: &str) {
    let d = distance(a, b);
    println!("{what}: {d:.2e}");
    assert!(d <= bound, "{what}: logits differ by {d}, allowed {bound}");
}

/// Tokens of one sequence, all rows wanted.
fn batch_of(seq: u32, tokens: &[Token]) -> Batch {
    let mut batch = Batch::new();
    tokens.iter().for_each(|&t| batch.push(t, seq, true));
    batch
}
