//! Branched attention, and ggml's flash attention, against a naive one in f64 that reads the same rounded keys and values.

use crate::common::*;
use crate::ops::product_bound;
use crate::soft_max::{summed, Score, SoftMax};
use ggml::attention::{AttentionBranch, Scoring};
use ggml::graph::{Builder, Executor};
use ggml::matmul::Kernel;
use ggml::tensor::{StoreTensor, Tensor};
use ggml::{DType, Result};
use proptest::prelude::{any, prop, prop_oneof, proptest, Just, ProptestConfig, Strategy};

const HIDDEN: f32 = f32::NEG_INFINITY;

/// Numbers of everything, and the pattern of the mask.
#[derive(Debug, Clone)]
struct Case {
    d: usize,
    d_v: usize,
    n_head_kv: usize,
    n_rep: usize,
    n_tokens: usize,
    /// Keys of each part.
    n: Vec<usize>,
    types: (DType, DType),
    mask: Mask,
    softcap: Option<f32>,
    sinks: bool,
    threads: usize,
    seed: u64,
}

#[derive(Debug, Clone, Copy)]
enum Mask {
    /// Everything is seen.
    Open,
    /// Columns up to the token's place, as in a prompt.
    Causal,
    /// One in so many is seen.
    Random(u64),
    /// Like `Random`, with finite biases.
    Biased(u64),
    /// Whole stretches of columns and whole rows are hidden.
    Patches,
    /// Blocks of 64 columns are hidden, seen in part or seen; the first column always is.
    Blocks,
}

/// A part as stored: queries, and caches with a few cells more than are attended to.
struct Stored {
    q: Vec<f32>,
    k: (StoreTensor, Vec<f32>),
    v: (StoreTensor, Vec<f32>),
}

impl Case {
    fn n_head(&self) -> usize {
        self.n_head_kv * self.n_rep
    }

    fn columns(&self) -> usize {
        self.n.iter().sum()
    }

    fn mask(&self, rng: &mut Rng) -> Vec<f32> {
        let n = self.columns();
        let (hidden_row, from) = (rng.int(0, self.n_tokens - 1), rng.int(0, n - 1));
        let to = rng.int(from, n);
        let mut mask = Vec::with_capacity(n * self.n_tokens);
        for t in 0..self.n_tokens {
            for c in 0..n {
                let seen = match self.mask {
                    Mask::Open => true,
                    Mask::Causal => c + self.n_tokens <= n + t,
                    Mask::Random(one_in) | Mask::Biased(one_in) => rng.next().is_multiple_of(one_in),
                    Mask::Patches => t != hidden_row && !(from..to).contains(&c),
                    Mask::Blocks => match (3 * t + c / 64 + 2) % 4 {
                        0 => c == 0,
                        1 => c == 0 || rng.next().is_multiple_of(2),
                        _ => true,
                    },
                };
                let bias = if matches!(self.mask, Mask::Biased(_)) { rng.unit() * 4.0 } else { 0.0 };
                mask.push(if seen { half::f16::from_f32(bias).to_f32() } else { HIDDEN });
            }
        }
        mask
    }

    fn stored(&self, rng: &mut Rng) -> Vec<Stored> {
        let caches = |rng: &mut Rng, dtype, d: usize, n: usize| {
            let shape = [d * self.n_head_kv, n + 3];
            stored(dtype, &shape, &rng.values(shape[0] * shape[1]))
        };
        let part = |&n| Stored {
            q: rng.values(self.d * self.n_head() * self.n_tokens).iter().map(|q| q * 3.0).collect(),
            k: caches(rng, self.types.0, self.d, n),
            v: caches(rng, self.types.1, self.d_v, n),
        };
        self.n.iter().map(part).collect()
    }

    fn build<'c>(
        &self,
        b: &Builder<'c>,
        feed: &mut Feed,
        parts: &[Stored],
        mask: &[f32],
    ) -> Result<Tensor<'c>> {
        let mut with_tensors = Vec::new();
        for (p, &n) in parts.iter().zip(&self.n) {
            let q = feed.f32(b, &[self.d, self.n_head(), self.n_tokens], &p.q)?;
            let k = heads_of(b, b.stored(&p.k.0)?, self.d, n, self.n_head_kv)?;
            let v = heads_of(b, b.stored(&p.v.0)?, self.d_v, n, self.n_head_kv)?;
            with_tensors.push(AttentionBranch { q, k, v });
        }
        let mask = feed.mask(b, [self.columns(), self.n_tokens], mask)?;
        b.attention(&with_tensors, mask, self.scoring(b, feed)?)
    }

    fn scoring<'c>(&self, b: &Builder<'c>, feed: &mut Feed) -> Result<Scoring<'c>> {
        let sinks = self.sinks();
        let sinks = if sinks.is_empty() { None } else { Some(feed.f32(b, &[sinks.len()], &sinks)?) };
        Ok(Scoring { scale: self.scale(), softcap: self.softcap, sinks })
    }

    /// One for each head, or none at all.
    fn sinks(&self) -> Vec<f32> {
        let n = if self.sinks { self.n_head() } else { 0 };
        Rng(self.seed ^ 1).values(n).iter().map(|s| 4.0 * s).collect()
    }

    fn scale(&self) -> f32 {
        1.0 / (self.d as f32).sqrt()
    }

    /// By definition, and how far floats may be off, in ggml's own op as well.
    fn naive(&self, parts: &[Stored], mask: &[f32], ggmls: bool) -> (Vec<f64>, Vec<f64>) {
        // In AMX tiles factors are cut into two bfloat16 each, and of their four products the least is left
        // out: that, and what either second one leaves, are 2^-18 of the product.
        let halves = if Kernel::Bf16x3.available(DType::F32) { 3.0 / f64::from(1 << 18) } else { 0.0 };
        // ggml sums weighted values of half precision in it: a weight, a product and a sum are rounded to 11
        // bits, and to multiples of 2^-24.
        let n = self.columns();
        let (short, least) = match self.types.1 {
            DType::F16 if ggmls => (2f64.powi(-11) / UNIT * rounding(n + 24), n as f64 * 2f64.powi(-24)),
            _ => (halves, 0.0),
        };
        let cap = self.softcap.map(f64::from);
        let (n, scale) = (n + 1, f64::from(self.scale()));
        let mut all = Vec::new();
        for (t, mask) in mask.chunks(self.columns()).enumerate() {
            for h in 0..self.n_head() {
                let mut seen = Vec::new();
                let mut mask = mask.iter();
                for (p, &n) in parts.iter().zip(&self.n) {
                    let q = &p.q[(t * self.n_head() + h) * self.d..][..self.d];
                    for (c, &bias) in mask.by_ref().take(n).enumerate().filter(|(_, m)| **m != HIDDEN) {
                        let row = c * self.n_head_kv + h / self.n_rep;
                        let k = &p.k.1[row * self.d..][..self.d];
                        let terms = || q.iter().zip(k).map(|(q, k)| f64::from(*q) * f64::from(*k));
                        let off = match ggmls {
                            true => product_bound(self.types.0, k, q),
                            false => (rounding(self.d + 6) + halves) * terms().map(f64::abs).sum::<f64>(),
                        };
                        let score = Score::of_product(terms().sum(), off, scale, cap);
                        seen.push((score.plus(f64::from(bias)), &p.v.1[row * self.d_v..][..self.d_v]));
                    }
                }
                let none = vec![0.0; self.d_v];
                seen.extend(self.sinks().get(h).map(|&sink| (Score::given(f64::from(sink)), &none[..])));
                let scores: Vec<Score> = seen.iter().map(|(score, _)| *score).collect();
                let p = SoftMax::new(&scores, n);
                let weighed = |i: usize| p.weigh(summed(n) + short, |c| f64::from(seen[c].1[i]));
                all.extend((0..self.d_v).map(weighed).map(|(out, off)| (out, off + least)));
            }
        }
        all.into_iter().unzip()
    }

    fn check(&self, exec: &mut Executor) {
        let mut rng = Rng(self.seed);
        let (parts, mask) = (self.stored(&mut rng), self.mask(&mut rng));
        let got = eval(exec, |b, feed| self.build(b, feed, &parts, &mask)).unwrap();
        let (want, off) = self.naive(&parts, &mask, false);
        assert_within(&got, &want, |i| off[i], &format!("{self:?}"));
    }

    /// The first part by ggml's op.
    fn check_ggmls(&self, exec: &mut Executor) {
        let mut rng = Rng(self.seed);
        let (parts, mask) = (self.stored(&mut rng), self.mask(&mut rng));
        let (p, n) = (&parts[0], self.columns());
        let got = eval(exec, |b, feed| {
            let q = feed.f32(b, &[self.d, self.n_head(), self.n_tokens], &p.q)?;
            let k = heads_of(b, b.stored(&p.k.0)?, self.d, n, self.n_head_kv)?;
            let v = heads_of(b, b.stored(&p.v.0)?, self.d_v, n, self.n_head_kv)?;
            let mask = feed.f16(b, &[n, self.n_tokens], &mask)?;
            b.flash_attn(b.permute(q, [0, 2, 1, 3])?, k, v, mask, self.scoring(b, feed)?)
        })
        .unwrap();
        let (want, off) = self.naive(&parts, &mask, true);
        assert_within(&got, &want, |i| off[i], &format!("{self:?}"));
    }
}

const TYPES: [DType; 9] = {
    use DType::*;
    [F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, IQ4_NL]
};

fn cache_types() -> impl Strategy<Value = (DType, DType)> {
    let one = prop::sample::select(TYPES.to_vec());
    (one.clone(), one)
}

fn case() -> impl Strategy<Value = Case> {
    let mask = prop_oneof![
        Just(Mask::Open),
        Just(Mask::Causal),
        (1u64..40).prop_map(Mask::Random),
        (1u64..4).prop_map(Mask::Biased),
        Just(Mask::Patches),
    ];
    let widths =
        prop::sample::select(vec![(32, 32), (64, 64), (80, 80), (128, 128), (64, 32), (96, 160), (20, 7)]);
    let n_tokens = prop_oneof![1usize..=4, 1usize..=70];
    let shape = (widths, 1usize..=3, 1usize..=9, n_tokens, prop::collection::vec(1usize..330, 1..=3));
    let scoring = (prop::sample::select(vec![None, Some(0.7), Some(3.0)]), any::<bool>());
    let threads = prop::sample::select(vec![1usize, 2, 5]);
    (shape, cache_types(), mask, scoring, threads, any::<u64>()).prop_map(
        |(((d, d_v), n_head_kv, n_rep, n_tokens, n), mut types, mask, (softcap, sinks), threads, seed)| {
            types.0 = if types.0.row_bytes(d).is_some() { types.0 } else { DType::F16 };
            types.1 = if types.1.row_bytes(d_v).is_some() { types.1 } else { DType::F16 };
            Case { d, d_v, n_head_kv, n_rep, n_tokens, n, types, mask, softcap, sinks, threads, seed }
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn agrees_with_the_definition(case in case()) {
        case.check(&mut executor(case.threads));
    }
}

const PLAIN: Case = Case {
    d: 64,
    d_v: 64,
    n_head_kv: 3,
    n_rep: 3,
    n_tokens: 1,
    n: Vec::new(),
    types: (DType::F16, DType::F16),
    mask: Mask::Causal,
    softcap: None,
    sinks: false,
    threads: 1,
    seed: 7,
};

#[test]
fn few_and_many_queries_over_many_columns() {
    let mut exec = executor(3);
    for (n_tokens, n) in
        [(1, vec![2048]), (2, vec![513, 1]), (5, vec![700, 300, 65]), (33, vec![1000]), (400, vec![300, 256])]
    {
        for (mask, softcap, sinks) in [
            (Mask::Causal, None, false),
            (Mask::Patches, None, true),
            (Mask::Causal, Some(1.0), false),
            (Mask::Patches, Some(2.0), true),
        ] {
            Case { n_tokens, n: n.clone(), mask, softcap, sinks, ..PLAIN }.check(&mut exec);
        }
    }
}

#[test]
fn a_token_over_caches_of_every_type_and_heads_of_every_grouping() {
    let mut exec = executor(2);
    for (i, dtype) in TYPES.into_iter().enumerate() {
        for n_rep in 1..=9 {
            let types = (dtype, TYPES[(i + n_rep) % TYPES.len()]);
            let mask = [Mask::Open, Mask::Biased(3), Mask::Patches][n_rep % 3];
            let softcap = Some(2.0).filter(|_| n_rep % 4 == 0);
            let n = vec![301, 1, 64];
            Case { d_v: 96, n_rep, n, types, mask, softcap, ..PLAIN }.check(&mut exec);
        }
    }
}

#[test]
fn flash_attention_is_attention() {
    let mut rng = Rng(6);
    let alike = [DType::F32, DType::F16, DType::BF16, DType::Q8_0, DType::Q4_0].map(|d| (d, d));
    for threads in [1, 3] {
        let mut exec = executor(threads);
        for types in alike.into_iter().chain([(DType::Q8_0, DType::F16)]) {
            for round in 0..4 {
                let d = rng.pick(&[32, 64, 96, 128]);
                let d_v = if round == 0 { 64 } else { d };
                let (n_head_kv, n_rep) = (rng.int(1, 3), rng.int(1, 4));
                let n = vec![rng.pick(&[1, 7, 64, 256, 300, 768])];
                let (n_tokens, mask) = (rng.pick(&[1, 2, 5, 33, 70]), Mask::Blocks);
                let (softcap, sinks) = (Some(1.5).filter(|_| round % 2 == 1), round > 1);
                let seed = rng.next();
                let shape = Case { d, d_v, n_head_kv, n_rep, n_tokens, n, types, ..PLAIN };
                Case { mask, softcap, sinks, seed, ..shape }.check_ggmls(&mut exec);
            }
        }
    }
}

#[test]
fn more_threads_than_tiles_and_heads_of_every_grouping() {
    let mut exec = executor(7);
    for (n_head_kv, n_rep) in [(1, 1), (1, 130), (5, 1), (2, 7), (1, 25), (20, 1)] {
        Case { n_head_kv, n_rep, n_tokens: 3, n: vec![40], ..PLAIN }.check(&mut exec);
    }
}

#[test]
fn large_scores_and_a_maximum_that_keeps_growing() {
    // One dimension, so a score is a product: keys 0, 1, 2 .. times 40, over several tiles, then far below.
    let n = 400usize;
    let keys: Vec<f32> = (0..n).map(|i| if i < 300 { i as f32 } else { -300.0 }).collect();
    let values: Vec<f32> = (0..n).map(|i| 1.0 + i as f32).collect();
    let (k, _) = stored(DType::F32, &[1, n], &keys);
    let (v, _) = stored(DType::F32, &[1, n], &values);
    for n_tokens in [1usize, 40] {
        let got = eval(&mut executor(1), |b, feed| {
            let q = feed.f32(b, &[1, 1, n_tokens], &vec![40.0; n_tokens])?;
            let k = b.view(b.stored(&k)?, [1, n, 1, 1], [4, 4 * n, 4 * n], 0)?;
            let v = b.view(b.stored(&v)?, [1, n, 1, 1], [4, 4 * n, 4 * n], 0)?;
            let mask = feed.mask(b, [n, n_tokens], &vec![0.0; n * n_tokens])?;
            b.attention(&[AttentionBranch { q, k, v }], mask, 1.0)
        })
        .unwrap();
        assert_eq!(got, vec![300.0; n_tokens]);
    }
}

#[test]
fn what_nobody_sees_is_not_read_into_the_result() {
    let n = 70usize;
    let mut keys = Rng(9).values(32 * n);
    keys[32 * 20..32 * 40].fill(f32::NAN);
    keys[32 * 69] = f32::INFINITY;
    let store = |values: &[f32]| {
        let def = ggml::tensor::TensorDef::new("w", DType::F32, &[32, n]).unwrap();
        let store = ggml::tensor::Store::new(cpu(), vec![def], "a test").unwrap();
        let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        store.write(0, 0, &bytes).unwrap();
        one(&store, 0)
    };
    let hidden = |c: usize| (20..40).contains(&c) || c == 69;
    for n_tokens in [1usize, 30] {
        let mask: Vec<f32> = (0..n * n_tokens).map(|i| if hidden(i % n) { HIDDEN } else { 0.0 }).collect();
        let run = |keys: &[f32]| {
            let cache = store(keys);
            eval(&mut executor(1), |b, feed| {
                let q = feed.f32(b, &[32, 1, n_tokens], &vec![0.5; 32 * n_tokens])?;
                let k = heads_of(b, b.stored(&cache)?, 32, n, 1)?;
                let mask = feed.mask(b, [n, n_tokens], &mask)?;
                b.attention(&[AttentionBranch { q, k, v: k }], mask, 0.2)
            })
            .unwrap()
        };
        let mut clean = keys.clone();
        clean.iter_mut().filter(|x| !x.is_finite()).for_each(|x| *x = 0.0);
        let got = run(&keys);
        assert!(got.iter().all(|x| x.is_finite() && *x != 0.0));
        assert_eq!(got, run(&clean));
    }
}

#[test]
fn queries_and_keys_through_other_strides() {
    // Queries as [d, T, n_head] seen as [d, n_head, T]; a cache that keeps each head's cells together.
    let (d, n_head, n_tokens, n) = (64usize, 4usize, 9usize, 100usize);
    let mut rng = Rng(5);
    let q = rng.values(d * n_head * n_tokens);
    let (k, held) = stored(DType::Q8_0, &[d, n, 2], &rng.values(d * n * 2));
    let mask = vec![0.0; n * n_tokens];
    let ours = eval(&mut executor(2), |b, feed| {
        let q = b.permute(feed.f32(b, &[d, n_tokens, n_head], &q)?, [0, 2, 1, 3])?;
        let k = b.stored(&k)?;
        b.attention(&[AttentionBranch { q, k, v: k }], feed.mask(b, [n, n_tokens], &mask)?, 0.125)
    })
    .unwrap();
    let straight = eval(&mut executor(1), |b, feed| {
        let q = b.permute(feed.f32(b, &[d, n_tokens, n_head], &q)?, [0, 2, 1, 3])?;
        let k = feed.f32(b, &[d, n, 2], &held)?;
        b.attention(&[AttentionBranch { q: b.cont(q)?, k, v: k }], feed.mask(b, [n, n_tokens], &mask)?, 0.125)
    })
    .unwrap();
    assert_within(&ours, &to_f64(&straight), |_| two_orders(d + n), "strides");
}

#[test]
fn splitting_keys_into_parts_changes_nothing_and_repeats_are_equal() {
    let case = Case { n_tokens: 12, n: vec![500], ..PLAIN };
    let mut rng = Rng(3);
    let (parts, mask) = (case.stored(&mut rng), case.mask(&mut rng));
    let mut exec = executor(2);
    let whole = eval(&mut exec, |b, feed| case.build(b, feed, &parts, &mask)).unwrap();
    assert_eq!(whole, eval(&mut exec, |b, feed| case.build(b, feed, &parts, &mask)).unwrap());
    let split = eval(&mut exec, |b, feed| {
        let q = feed.f32(b, &[64, 9, 12], &parts[0].q)?;
        let window = |t: &StoreTensor, from: usize, n: usize| {
            let t = b.stored(t)?;
            b.view(t, [64, n, 3, 1], [t.nb()[1], 128, t.nb()[2]], from * t.nb()[1])
        };
        let part = |from, n| -> Result<AttentionBranch<'_>> {
            Ok(AttentionBranch { q, k: window(&parts[0].k.0, from, n)?, v: window(&parts[0].v.0, from, n)? })
        };
        let parts = [part(0, 37)?, part(37, 300)?, part(337, 163)?];
        b.attention(&parts, feed.mask(b, [500, 12], &mask)?, case.scale())
    })
    .unwrap();
    // Scores of 64 terms, and sums over 500 keys of weights that are one together.
    assert_within(&split, &to_f64(&whole), |_| two_orders(64 + 500), "parts");
}
