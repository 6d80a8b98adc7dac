//! Shared by the test programs: the default model and texts, small random models, ways to compare logits, and, in modules,
//! runs of the built program and tests that need a process of their own.
#![allow(dead_code, unreachable_pub, unused_imports)] // Each test program includes this and uses its part.

pub mod fetched;
pub mod process;
pub mod program;
pub mod rounding;

use std::path::{Path, PathBuf};

pub use fetched::{default_model, fetched};
use rounding::two_orders;

use convert::random::{write, Shape};
use convert::{convert, Options};
use gguf::{File, Output, Value, Writer};
use ropewalk::adapter::AdapterSpec;
use ropewalk::control::Control;
use ropewalk::hparams::Hparams;
use ropewalk::model::{Model, ModelParams};
use ropewalk::session::{Batch, Session, SessionParams};
use ropewalk::{DType, Token};

/// Whether `make soak` runs the tests.
pub fn soaks() -> bool {
    std::env::var_os("ROPEWALK_SOAK").is_some()
}

/// The size of a test that takes long: the first in `make test`, the second in `make soak`.
pub fn size<T>(test: T, soak: T) -> T {
    if soaks() {
        soak
    } else {
        test
    }
}

/// Threads of an engine under test: ggml's threads wait for each other by spinning, which two tests at once make slow.
pub const N_THREADS: usize = 1;

/// The largest difference of two logits that another order of the same sums may make in a small model: their deviation is near
/// 2, and some 1,700 roundings lead to them ([`roundings`] of two layers and some hundred tokens).
pub const LOGITS: f64 = 2.0 * two_orders(1_700);

/// Cache types, with the largest difference of two logits that another order of the same sums may make: [`LOGITS`], and
/// measured 2e-2, 6e-3, 2e-2. ggml's flash attention sums the values of an F16 cache in F16 when few
/// tokens run; a key rounded to the next value of its type counts for more, the coarser the type.
pub const KV: [(DType, f64); 4] =
    [(DType::F32, LOGITS), (DType::F16, 6e-2), (DType::Q8_0, 5e-2), (DType::Q4_0, 0.2)];

/// A shape of every architecture whose layers all have attention and no experts.
pub const ATTENTION_SHAPES: [&str; 17] = [
    "llama-tiny",
    "llama-tiny-gqa",
    "qwen2-tiny-tied",
    "qwen3-tiny",
    "smollm3-tiny",
    "cohere2-tiny",
    "gemma2-tiny",
    "gemma3-tiny",
    "gptneox-tiny",
    "gptneox-tiny-sequential",
    "gptneox-tiny-erf",
    "granite-tiny",
    "mistral3-tiny",
    "olmo2-tiny",
    "olmo3-tiny",
    "phi2-tiny",
    "phi3-tiny",
];

/// The needle essays.
pub fn essays() -> String {
    std::fs::read_to_string(fetched("texts/essays.txt")).expect("readable essays")
}

/// A path for a file that a test writes, in a folder of this test program's own.
pub fn scratch(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(env!("CARGO_CRATE_NAME"));
    std::fs::create_dir_all(&folder).expect("a folder for the files of tests");
    folder.join(name)
}

/// A random-weight model of a shape of `ropewalk convert --random`.
pub fn random_model(shape: &str, dtype: DType, tag: &str) -> PathBuf {
    let path = scratch(&format!("{tag}-{shape}-{}.gguf", dtype.name()));
    write(&Shape::named(shape).expect("a known shape"), dtype, 7, &path).expect("a written model");
    path
}

/// A random model of this shape, in a file of this name.
pub fn made(name: &str, shape: &Shape, dtype: DType, seed: u64) -> Model {
    let path = scratch(name);
    write(shape, dtype, seed, &path).unwrap();
    load(&path)
}

/// A random model of a shape whose heads are turned in `n_rot` dimensions, with what else is added to its file.
pub fn turned(tag: &str, shape: &Shape, seed: u64, n_rot: usize, add: impl FnOnce(&mut Writer<'_>)) -> Model {
    let (whole, path) = (scratch(&format!("{tag}-whole.gguf")), scratch(&format!("{tag}.gguf")));
    write(shape, DType::F32, seed, &whole).unwrap();
    rewritten(&whole, &path, &[], |out| {
        out.set(&format!("{}.rope.dimension_count", shape.arch), Value::U32(n_rot as u32));
        add(out);
    });
    load(&path)
}

/// Writes a file once more, without these tensors, and with what is changed in the copy.
pub fn rewritten(from: &Path, to: &Path, without: &[&str], change: impl FnOnce(&mut Writer<'_>)) {
    let file = File::open(from).unwrap();
    let mut out = Writer::with_metadata_of(&file);
    for t in file.tensors().iter().filter(|t| !without.contains(&t.name.as_str())) {
        out.copy_tensor(&file, t).unwrap();
    }
    change(&mut out);
    out.write(Output::new(to, true)).unwrap();
}

/// A model with all weights in F32, in a file of this name.
pub fn in_f32(from: &Path, name: &str) -> PathBuf {
    let path = scratch(name);
    let options = Options::default().dtype(Some(DType::F32)).force(true);
    convert(from, &path, &options, &Control::default()).unwrap_or_else(|e| panic!("{e}"));
    path
}

/// A model with this adapter in force.
pub fn with_adapter(model: &Model, adapter: &Path) -> Model {
    let params = ModelParams::cpu().adapters(vec![AdapterSpec::new(adapter, 1.0)]);
    Model::load(model.file().path(), &params).unwrap_or_else(|e| panic!("{e}"))
}

/// The model at a path, on the CPU.
pub fn load(path: &Path) -> Model {
    Model::load(path, &ModelParams::cpu()).unwrap_or_else(|e| panic!("{e}"))
}

/// Session settings of the tests.
pub fn params(n_ctx: usize) -> SessionParams {
    SessionParams::new(n_ctx).n_threads(N_THREADS)
}

/// A session that must open.
pub fn open(model: &Model, params: &SessionParams) -> Session {
    Session::new(model, params).unwrap_or_else(|e| panic!("{e}"))
}

/// [`params`] with a type of cache.
pub fn with_kv(n_ctx: usize, kv_type: DType) -> SessionParams {
    params(n_ctx).kv_type(kv_type)
}

/// All logits of tokens added to sequence 0.
pub fn score(session: &mut Session, tokens: &[Token]) -> Vec<f32> {
    let mut rows = Vec::new();
    let done = session.score(tokens, 0..tokens.len(), &mut |_, row| rows.extend_from_slice(row));
    done.unwrap_or_else(|e| panic!("{e}"));
    rows
}

/// The mean `-ln p` of all tokens but the first.
pub fn mean_nll(session: &mut Session, tokens: &[Token]) -> f64 {
    let nll = session.nll(tokens, 1..tokens.len()).unwrap_or_else(|e| panic!("{e}"));
    nll.iter().map(|&x| f64::from(x)).sum::<f64>() / nll.len() as f64
}

/// The rows of logits of a batch.
pub fn rows_of(session: &mut Session, batch: &Batch) -> Vec<Vec<f32>> {
    let rows = session.decode(batch).unwrap_or_else(|e| panic!("{e}"));
    (0..rows.n_rows()).map(|i| rows.row(i).to_vec()).collect()
}

/// Largest difference of two sets of logits; panics when one is not a number.
pub fn distance(a: &[f32], b: &[f32]) -> f64 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).fold(0.0, |max, (a, b)| {
        let d = f64::from((a - b).abs());
        assert!(d.is_finite(), "{a} and {b}");
        d.max(max)
    })
}

/// Fails unless it is an error whose text has all of these words in it.
#[track_caller]
pub fn says<T>(result: Result<T, impl std::fmt::Display>, words: &[&str]) {
    let Err(e) = result else { panic!("no error, expected {words:?}") };
    let text = e.to_string();
    assert!(words.iter().all(|word| text.contains(word)), "{text}: expected {words:?}");
}

#[track_caller]
pub fn assert_close(a: &[f32], b: &[f32], bound: f64, what: &str) {
    let d = distance(a, b);
    println!("{what}: {d:.2e}");
    assert!(d <= bound, "{what}: logits differ by {d}, allowed {bound}");
}

/// Roundings that lead to a logit after `n` tokens, one after the other: the terms of each layer's sums. Those of a gradient are
/// three times as many, for the way back has a sum for each operand of a product, and one over all tokens.
pub fn roundings(hp: &Hparams, n: usize) -> usize {
    // A norm, and the product that follows it.
    let read = 2 * hp.n_embd;
    let of_layer = |il: usize| {
        let layer = &hp.layers[il];
        let mixed = match (layer.kind, &hp.delta_net) {
            // Each token's change of the state has a sum over keys, and another reads it.
            (None, Some(net)) => net.n_conv + n * (net.n_embd_head + 2) + net.n_embd_head + net.n_embd_v(),
            // Scores, the softmax, weighted values.
            _ => {
                let attention = hp.attention_of(il).unwrap();
                attention.n_embd_head + 2 * n + attention.n_embd_q()
            }
        };
        read + mixed + read + layer.n_ff
    };
    (0..hp.layers.len()).map(of_layer).sum::<usize>() + read + hp.n_vocab
}

/// Tokens of one sequence, all rows wanted.
pub fn batch_of(seq: u32, tokens: &[Token]) -> Batch {
    let mut batch = Batch::new();
    tokens.iter().for_each(|&t| batch.push(t, seq, true));
    batch
}

/// All rows of logits of `tokens` in a fresh session.
pub fn all_logits(model: &Model, params: &SessionParams, tokens: &[Token]) -> Vec<f32> {
    score(&mut open(model, params), tokens)
}

/// Marsaglia's generator of this seed, which is not 0.
pub fn xorshift(mut state: u64) -> impl FnMut() -> u64 {
    move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    }
}

/// Tokens below `n_vocab` from a fixed sequence.
pub fn some_tokens(n: usize, n_vocab: usize) -> Vec<Token> {
    let mut next = xorshift(0x2545_f491_4f6c_dd1d);
    (0..n).map(|_| (next() % n_vocab as u64) as Token).collect()
}

/// Index of the largest.
pub fn top(row: &[f32]) -> usize {
    row.iter().enumerate().fold(0, |best, (i, x)| if *x > row[best] { i } else { best })
}

/// `ln softmax`, in f64.
pub fn log_softmax(row: &[f32]) -> Vec<f64> {
    let max = f64::from(row[top(row)]);
    let sum: f64 = row.iter().map(|&x| (f64::from(x) - max).exp()).sum();
    row.iter().map(|&x| f64::from(x) - max - sum.ln()).collect()
}

/// How two sets of logits over the same tokens differ.
#[derive(Debug, Clone, Copy)]
pub struct Difference {
    /// Perplexity of the first over tokens 1.. .
    pub ppl_a: f64,
    /// Perplexity of the second.
    pub ppl_b: f64,
    /// Mean Kullback-Leibler divergence of the second from the first, nats.
    pub kl: f64,
    /// Positions whose most likely token differs.
    pub top_differs: usize,
    /// Largest difference of two logits.
    pub max_abs: f64,
}

impl Difference {
    /// `|ppl_b / ppl_a - 1|`.
    pub fn ppl_ratio(&self) -> f64 {
        (self.ppl_b / self.ppl_a - 1.0).abs()
    }
}

/// Compares logits `a` and `b`, rows of `n_vocab` for each of `tokens`.
pub fn compare(a: &[f32], b: &[f32], tokens: &[Token], n_vocab: usize) -> Difference {
    assert_eq!(a.len(), tokens.len() * n_vocab);
    assert_eq!(b.len(), a.len());
    let (mut nll, mut kl, mut top_differs, mut max_abs) = ([0.0f64; 2], 0.0, 0, 0.0f64);
    for (i, (x, y)) in a.chunks_exact(n_vocab).zip(b.chunks_exact(n_vocab)).enumerate() {
        let (p, q) = (log_softmax(x), log_softmax(y));
        if let Some(&next) = tokens.get(i + 1) {
            nll[0] -= p[next as usize];
            nll[1] -= q[next as usize];
        }
        kl += p.iter().zip(&q).map(|(p, q)| p.exp() * (p - q)).sum::<f64>();
        top_differs += usize::from(top(x) != top(y));
        max_abs = x.iter().zip(y).fold(max_abs, |m, (x, y)| m.max(f64::from((x - y).abs())));
    }
    let scored = (tokens.len() - 1) as f64;
    Difference {
        ppl_a: (nll[0] / scored).exp(),
        ppl_b: (nll[1] / scored).exp(),
        kl: kl / tokens.len() as f64,
        top_differs,
        max_abs,
    }
}
