//! Attention over keys in parts, against attention over all of them at once.

use crate::common::*;
use ggml::attention::Scoring;
use ggml::attention_train::AttentionBack;
use ggml::DType;

const D: usize = 16;
const HEADS: [usize; 2] = [4, 2];
const N_KEYS: usize = 300;
const N_TOKENS: usize = 40;

/// Output, and the gradients of queries, keys and values, where the keys of query `t` are `all[t]` cut at `cuts[t]`.
fn run(all: &[[i32; 2]], cuts: &[Vec<i32>], n_parts: usize, softcap: Option<f32>) -> [Vec<f32>; 4] {
    let [h, g] = HEADS;
    let mut rng = Rng(11);
    let q: Vec<f32> = rng.values(D * h * N_TOKENS).iter().map(|x| 3.0 * x).collect();
    let (k, v) = (rng.values(D * g * N_KEYS), rng.values(D * g * N_KEYS));
    let (grad, sinks) = (rng.values(D * h * N_TOKENS), rng.values(h));
    let zeros = vec![0.0; D * g * N_KEYS];
    let [(d_k, _), (d_v, _)] = [0, 1].map(|_| stored(DType::F32, &[D, g, N_KEYS], &zeros));
    let part = |i: usize| {
        let range = |(all, cuts): (&[i32; 2], &Vec<i32>)| {
            let border = |i: usize| [&all[..1], cuts, &all[1..]].concat()[i];
            [border(i), border(i + 1)]
        };
        all.iter().zip(cuts).flat_map(range).collect::<Vec<i32>>()
    };
    let both = eval_all(&mut executor(2), 1, |b, feed| {
        let (q, d_out) = (feed.f32(b, &[D, h, N_TOKENS], &q)?, feed.f32(b, &[D, h, N_TOKENS], &grad)?);
        let (k, v) = (feed.f32(b, &[D, g, N_KEYS], &k)?, feed.f32(b, &[D, g, N_KEYS], &v)?);
        let sinks = feed.f32(b, &[h], &sinks)?;
        let scoring = |i: usize| Scoring { scale: 0.25, softcap, sinks: Some(sinks).filter(|_| i == 0) };
        let mut parts = Vec::new();
        for i in 0..n_parts {
            let ranges = feed.i32_of(b, &[2, N_TOKENS], &part(i))?;
            parts.push((ranges, b.attention_lse(q, k, v, ranges, scoring(i))?));
        }
        let o_lse = b.attention_merge(&parts.iter().map(|p| p.1).collect::<Vec<_>>())?;
        let (d_k, d_v) = (b.stored(&d_k)?, b.stored(&d_v)?);
        let mut d_q = None;
        for (i, &(key_ranges, _)) in parts.iter().enumerate() {
            let all = AttentionBack { q, k, v, key_ranges, o_lse, d_out, d_k, d_v };
            let more = b.attention_back(all, scoring(i))?;
            d_q = Some(d_q.map_or(Ok(more), |sum| b.add(sum, more))?);
        }
        Ok([o_lse, d_q.unwrap()])
    });
    let [out, d_q] = both.unwrap();
    [out, d_q, contents(&d_k), contents(&d_v)]
}

#[test]
fn parts_are_one_softmax() {
    let mut rng = Rng(5);
    let all: Vec<[i32; 2]> = (0..N_TOKENS)
        .map(|t| {
            let first = rng.int(0, 100) as i32;
            // Some queries see nothing.
            [first, if t % 9 == 4 { first } else { rng.int(first as usize + 1, N_KEYS) as i32 }]
        })
        .collect();
    for softcap in [None, Some(1.5)] {
        let whole = run(&all, &vec![Vec::new(); N_TOKENS], 1, softcap);
        for n_parts in [2, 3, 5] {
            // Cuts anywhere, so that parts may be empty.
            let mut cut = |[first, end]: [i32; 2]| {
                let mut cuts: Vec<i32> =
                    (1..n_parts).map(|_| rng.int(first as usize, end as usize) as i32).collect();
                cuts.sort_unstable();
                cuts
            };
            let cuts: Vec<Vec<i32>> = all.iter().map(|&range| cut(range)).collect();
            for (got, want) in run(&all, &cuts, n_parts, softcap).iter().zip(&whole) {
                let size = (want.iter().filter(|x| x.is_finite()).map(|x| x * x).sum::<f32>()
                    / want.len() as f32)
                    .sqrt();
                for (i, (a, b)) in got.iter().zip(want).enumerate() {
                    let same = a == b || (a - b).abs() < two_orders(D + N_KEYS) as f32 * (size + b.abs());
                    assert!(same, "{n_parts} parts, softcap {softcap:?}: [{i}] is {a}, expected {b}");
                }
            }
        }
    }
}

#[test]
fn parts_of_other_shapes_are_refused() {
    let refused = |shapes: &[[usize; 3]]| {
        let refused = eval(&mut executor(1), |b, feed| {
            let parts = shapes.iter().map(|s| feed.f32(b, s, &vec![0.0; s.iter().product()]));
            b.attention_merge(&parts.collect::<ggml::Result<Vec<_>>>()?)
        });
        refused.unwrap_err().to_string()
    };
    for shapes in [&[][..], &[[5, 2, 3], [5, 3, 2]], &[[5, 2, 3]; 10]] {
        let e = refused(shapes);
        assert!(e.contains("attention_merge") && e.contains("one to nine"), "{e}");
    }
}
