//! Softcap and sinks: our attention, that for training, ggml's flash attention and its softmax of scores give
//! the result of the definition in f64.

use crate::common::*;
use crate::soft_max::{summed, Score, SoftMax};
use ggml::attention::{AttentionBranch, Scoring};
use ggml::graph::Builder;
use ggml::tensor::Tensor;
use ggml::Result;

const D: usize = 64;
const N_HEAD: usize = 6;
const N_HEAD_KV: usize = 2;

#[derive(Debug, Clone, Copy)]
enum Way {
    Ours,
    Training,
    Flash,
    Scores,
}

struct Operands<'c> {
    q: Tensor<'c>,
    k: Tensor<'c>,
    v: Tensor<'c>,
}

fn scores<'c>(
    b: &Builder<'c>,
    x: Operands<'c>,
    mask: Tensor<'c>,
    scoring: Scoring<'c>,
) -> Result<Tensor<'c>> {
    let s = b.mul_mat(b.permute(x.k, [0, 2, 1, 3])?, b.permute(x.q, [0, 2, 1, 3])?)?;
    let p = b.soft_max(s, mask, scoring)?;
    let o = b.mul_mat(b.cont(b.permute(x.v, [1, 2, 0, 3])?)?, p)?;
    b.cont(b.permute(o, [0, 2, 1, 3])?)
}

#[test]
fn four_ways_agree() {
    for (n, n_keys) in [(1, 300), (7, 1100), (50, 64)] {
        let mut rng = Rng(n as u64);
        let q: Vec<f32> = rng.values(D * N_HEAD * n).iter().map(|q| 6.0 * q).collect();
        let (k, v) = (rng.values(D * N_HEAD_KV * n_keys), rng.values(D * N_HEAD_KV * n_keys));
        let sinks: Vec<f32> = rng.values(N_HEAD).iter().map(|s| 3.0 + 4.0 * s).collect();
        let runs: Vec<i32> = (0..n).flat_map(|t| [t as i32, (n_keys - n + t + 1) as i32]).collect();
        let hidden =
            |i: usize| !(runs[2 * (i / n_keys)]..runs[2 * (i / n_keys) + 1]).contains(&((i % n_keys) as i32));
        let mask: Vec<f32> =
            (0..n * n_keys).map(|i| if hidden(i) { f32::NEG_INFINITY } else { 0.0 }).collect();
        let run = |way: Way, softcap: Option<f32>, with_sinks: bool| {
            eval(&mut executor(2), |b, feed| {
                let x = Operands {
                    q: feed.f32(b, &[D, N_HEAD, n], &q)?,
                    k: feed.f32(b, &[D, N_HEAD_KV, n_keys], &k)?,
                    v: feed.f32(b, &[D, N_HEAD_KV, n_keys], &v)?,
                };
                let sinks = feed.f32(b, &[N_HEAD], &sinks)?;
                let scoring = Scoring { scale: 0.125, softcap, sinks: Some(sinks).filter(|_| with_sinks) };
                let turned = |x| b.permute(x, [0, 2, 1, 3]);
                match way {
                    Way::Ours => {
                        let branch = AttentionBranch { q: x.q, k: turned(x.k)?, v: turned(x.v)? };
                        b.attention(&[branch], feed.mask(b, [n_keys, n], &mask)?, scoring)
                    }
                    Way::Training => {
                        let runs = b.reshape(feed.i32(b, &runs)?, &[2, n])?;
                        b.cont(b.columns(b.attention_lse(x.q, x.k, x.v, runs, scoring)?, 0, D)?)
                    }
                    Way::Flash => {
                        let mask = feed.f16(b, &[n_keys, n], &mask)?;
                        b.flash_attn(turned(x.q)?, turned(x.k)?, turned(x.v)?, mask, scoring)
                    }
                    Way::Scores => {
                        let mask = feed.f16(b, &[n_keys, n], &mask)?;
                        scores(b, x, mask, scoring)
                    }
                }
            })
            .unwrap()
        };
        let exact = |softcap: Option<f32>, with_sinks: bool| {
            let mut all = Vec::new();
            for (row, q) in q.chunks_exact(D).enumerate() {
                let (t, h) = (row / N_HEAD, row % N_HEAD);
                let at = |j: usize| j * N_HEAD_KV + h / (N_HEAD / N_HEAD_KV);
                let seen = runs[2 * t] as usize..runs[2 * t + 1] as usize;
                let score = |j: usize| {
                    Score::new(&to_f64(q), &to_f64(&k[at(j) * D..][..D]), 0.125, softcap.map(f64::from))
                };
                let sink = Some(Score::given(f64::from(sinks[h]))).filter(|_| with_sinks);
                let scores: Vec<Score> = seen.clone().map(score).chain(sink).collect();
                let p = SoftMax::new(&scores, n_keys + 1);
                // A sink has no value.
                let value = |c: usize, i: usize| match c < seen.len() {
                    true => f64::from(v[at(seen.start + c) * D + i]),
                    false => 0.0,
                };
                all.extend((0..D).map(|i| p.weigh(summed(n_keys), |c| value(c, i))));
            }
            all.into_iter().unzip::<f64, f64, Vec<f64>, Vec<f64>>()
        };
        let plain = exact(None, false).0;
        for (softcap, with_sinks) in [(None, true), (Some(1.5), false), (Some(1.5), true)] {
            let (want, off) = exact(softcap, with_sinks);
            let changed = want.iter().zip(&plain).zip(&off).any(|((w, p), off)| (w - p).abs() > 2.0 * off);
            assert!(changed, "{softcap:?} {with_sinks} changed nothing");
            for way in [Way::Ours, Way::Training, Way::Flash, Way::Scores] {
                let what = format!("{way:?}, {n} of {n_keys}, softcap {softcap:?}, sinks {with_sinks}");
                assert_within(&run(way, softcap, with_sinks), &want, |i| off[i], &what);
            }
        }
    }
}
