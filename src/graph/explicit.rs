//! Attention in ops that every backend has: the scores of some heads and queries at a time, one softmax over the keys of all
//! branches.

use std::ops::Range;

use ggml::attention::{AttentionBranch, Scoring};
use ggml::graph::Builder;
use ggml::tensor::Tensor;
use ggml::{DType, Error, Result};

use crate::hparams::LayerAttention;

/// Bytes that scores may take at once; the softmax of them takes as many. What must be there together is the scores of one
/// query for the heads that share a key head: 2 MiB at 131,072 keys and four heads.
pub(super) const SCORE_BYTES: usize = 128 << 20;

/// Some key heads and some queries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Chunk {
    head: usize,
    n_head_kv: usize,
    query: usize,
    n_queries: usize,
}

/// All key heads and queries in chunks whose scores take at most `bytes`, or one query of one key head: the chunks of the
/// first heads, then of the next. `row`: bytes of the scores of one query and key head.
fn chunks(n_head_kv: usize, n_queries: usize, row: usize, bytes: usize) -> Vec<Vec<Chunk>> {
    let rows = (bytes / row.max(1)).max(1);
    let (heads, queries) =
        ((rows / n_queries.max(1)).clamp(1, n_head_kv.max(1)), rows.clamp(1, n_queries.max(1)));
    let parts = |n: usize, step: usize| (0..n).step_by(step).map(move |i| (i, step.min(n - i)));
    let of_heads = |(head, n_head_kv)| {
        let chunk = move |(query, n_queries)| Chunk { head, n_head_kv, query, n_queries };
        parts(n_queries, queries).map(chunk).collect()
    };
    parts(n_head_kv, heads).map(of_heads).collect()
}

/// Upper bound of the tensors of [`attention`]: three branches, sinks, a softcap.
pub(super) fn n_tensors(layer: &LayerAttention, n_queries: usize, n_columns: usize) -> usize {
    let LayerAttention { n_head, n_head_kv, .. } = *layer;
    let row = 4 * n_columns * (n_head / n_head_kv.max(1));
    48 * chunks(n_head_kv, n_queries, row, SCORE_BYTES).iter().map(Vec::len).sum::<usize>()
}

/// Attention of queries `[d, n_head, T]` of each branch over its keys and values `[d, n_keys, n_head_kv]`: `[d, n_head, T]`.
/// `mask`: F16, a row of the keys of all branches for each token.
pub(super) fn attention<'c>(
    b: &Builder<'c>,
    parts: &[AttentionBranch<'c>],
    mask: Tensor<'c>,
    scoring: Scoring<'c>,
    bytes: usize,
) -> Result<Tensor<'c>> {
    let nothing = || Error::Op { op: "attention", what: "no branch reaches a key".into() };
    let first = parts.first().ok_or_else(nothing)?;
    let ([_, n_head, n_queries, _], [_, _, n_head_kv, _]) = (first.q.ne(), first.k.ne());
    let n_rep = n_head / n_head_kv.max(1);
    let n_columns: usize = parts.iter().map(|part| part.k.ne()[1]).sum();
    let mut out = None;
    for of_heads in chunks(n_head_kv, n_queries, 4 * n_columns * n_rep, bytes) {
        let heads = of_heads.first().map_or(0..0, |c| c.head..c.head + c.n_head_kv);
        let keys = parts.iter().map(|part| floats(b, part.k, &heads)).collect::<Result<Vec<_>>>()?;
        let values = parts.iter().map(|part| transposed(b, part.v, &heads)).collect::<Result<Vec<_>>>()?;
        let mut done = None;
        for chunk in of_heads {
            let o = one(b, parts, [&keys, &values], mask, scoring, chunk, n_rep)?;
            // In this order: else the scores of all chunks would be there at once.
            b.expand(o);
            done = joined(b, done, o, 2)?;
        }
        out = joined(b, out, done.ok_or_else(nothing)?, 1)?;
    }
    out.ok_or_else(nothing)
}

/// Keys of some heads, in F32 where they are quantised: devices multiply quantised rows only where these lie one behind the
/// other, and those of one head do not.
fn floats<'c>(b: &Builder<'c>, k: Tensor<'c>, heads: &Range<usize>) -> Result<Tensor<'c>> {
    let k = heads_of(b, k, heads)?;
    if matches!(k.dtype(), DType::F32 | DType::F16) {
        return Ok(k);
    }
    b.to_f32(k)
}

/// Values of some heads as `[n_keys, d, n_heads]` in F32.
fn transposed<'c>(b: &Builder<'c>, v: Tensor<'c>, heads: &Range<usize>) -> Result<Tensor<'c>> {
    b.cont(b.permute(b.to_f32(heads_of(b, v, heads)?)?, [1, 0, 2, 3])?)
}

/// Some heads of keys or values `[d, n_keys, n_head_kv]`.
fn heads_of<'c>(b: &Builder<'c>, x: Tensor<'c>, heads: &Range<usize>) -> Result<Tensor<'c>> {
    let (ne, nb) = (x.ne(), x.nb());
    if *heads == (0..ne[2]) {
        return Ok(x);
    }
    b.view(x, [ne[0], ne[1], heads.len(), 1], [nb[1], nb[2], nb[2] * heads.len()], heads.start * nb[2])
}

/// The attention of a chunk: `[d, n_heads, n_queries]`.
fn one<'c>(
    b: &Builder<'c>,
    parts: &[AttentionBranch<'c>],
    [keys, values]: [&[Tensor<'c>]; 2],
    mask: Tensor<'c>,
    scoring: Scoring<'c>,
    chunk: Chunk,
    n_rep: usize,
) -> Result<Tensor<'c>> {
    let Chunk { head, n_head_kv, query, n_queries } = chunk;
    let (first_head, n_head) = (head * n_rep, n_head_kv * n_rep);
    let mut scores: Option<Tensor<'c>> = None;
    for (part, &k) in parts.iter().zip(keys) {
        let (ne, nb) = (part.q.ne(), part.q.nb());
        let at = first_head * nb[1] + query * nb[2];
        let q = b.view(part.q, [ne[0], n_head, n_queries, 1], [nb[1], nb[2], nb[2] * n_queries], at)?;
        let s = b.mul_mat(k, b.permute(q, [0, 2, 1, 3])?)?;
        scores = joined(b, scores, s, 0)?;
    }
    let scores =
        scores.ok_or_else(|| Error::Op { op: "attention", what: "a chunk without scores".into() })?;
    let row = mask.nb()[1];
    let mask =
        b.view(mask, [mask.ne()[0], n_queries, 1, 1], [row, row * n_queries, row * n_queries], row * query)?;
    let sinks = scoring.sinks.map(|sinks| b.columns(sinks, first_head, n_head)).transpose()?;
    let p = b.soft_max(scores, mask, Scoring { sinks, ..scoring })?;
    let (mut out, mut from): (Option<Tensor<'c>>, usize) = (None, 0);
    for (part, &v) in parts.iter().zip(values) {
        let n = part.k.ne()[1];
        let o = b.mul_mat(v, b.columns(p, from, n)?)?;
        out = Some(out.map_or(Ok(o), |before| b.add(before, o))?);
        from += n;
    }
    let out = out.ok_or_else(|| Error::Op { op: "attention", what: "a chunk without values".into() })?;
    b.cont(b.permute(out, [0, 2, 1, 3])?)
}

fn joined<'c>(
    b: &Builder<'c>,
    before: Option<Tensor<'c>>,
    more: Tensor<'c>,
    dim: usize,
) -> Result<Option<Tensor<'c>>> {
    Ok(Some(before.map_or(Ok(more), |before| b.concat(before, more, dim))?))
}

#[cfg(test)]
mod tests {
    use ggml::backend::{Backend, Device};
    use ggml::graph::Executor;

    use super::*;

    #[test]
    fn chunks_cover_every_head_and_query_once_and_keep_to_the_bytes() {
        for (n_head_kv, n_queries, row, bytes) in [
            (8, 512, 100, 1 << 20),
            (8, 512, 100, 60_000),
            (3, 7, 100, 1000),
            (2, 5, 4096, 1),
            (1, 1, 8, 1 << 30),
        ] {
            let mut seen = vec![0; n_head_kv * n_queries];
            for of_heads in chunks(n_head_kv, n_queries, row, bytes) {
                for c in of_heads {
                    assert!(c.n_head_kv * c.n_queries * row <= bytes.max(row), "{c:?}");
                    for h in c.head..c.head + c.n_head_kv {
                        (c.query..c.query + c.n_queries).for_each(|q| seen[h * n_queries + q] += 1);
                    }
                }
            }
            assert!(seen.iter().all(|&n| n == 1), "{n_head_kv} {n_queries} {row} {bytes}");
        }
    }

    /// Two branches of other numbers of keys, three heads on each key head, sinks, a softcap.
    fn computed(bytes: usize) -> (Vec<f32>, usize) {
        let (d, n_head, n_head_kv, n, keys) = (16, 6, 2, 9, [32, 64]);
        let mut exec = Executor::new(Backend::new(Device::find("cpu").unwrap(), 1).unwrap()).unwrap();
        let mut inputs = Vec::new();
        let out = exec
            .build(2000, |b| {
                let mut input = |name: &str, dtype: DType, ne: &[usize]| {
                    let (id, t) = b.input(name, dtype, ne).unwrap();
                    inputs.push((id, dtype, ne.iter().product::<usize>()));
                    t
                };
                let mut part = |i: usize| AttentionBranch {
                    q: input(&format!("q{i}"), DType::F32, &[d, n_head, n]),
                    k: input(&format!("k{i}"), DType::F32, &[d, keys[i], n_head_kv]),
                    v: input(&format!("v{i}"), DType::F32, &[d, keys[i], n_head_kv]),
                };
                let parts = [part(0), part(1)];
                let mask = input("mask", DType::F16, &[keys[0] + keys[1], n]);
                let sinks = Some(input("sinks", DType::F32, &[n_head]));
                let scoring = Scoring { scale: 0.3, softcap: Some(2.0), sinks };
                let out = attention(b, &parts, mask, scoring, bytes)?;
                Ok::<_, Error>(b.output(out))
            })
            .unwrap();
        for (i, &(id, dtype, n)) in inputs.iter().enumerate() {
            let value = |j: usize| ((j * 7919 + i * 104_729) % 1000) as f32 / 500.0 - 1.0;
            match dtype {
                DType::F32 => exec.set(id, &(0..n).map(value).collect::<Vec<f32>>()).unwrap(),
                // -inf in F16 for every third.
                _ => exec
                    .set(id, &(0..n).map(|j| if j % 3 == 1 { 0xfc00u16 } else { 0 }).collect::<Vec<_>>())
                    .unwrap(),
            }
        }
        exec.compute().unwrap();
        let mut rows = Vec::new();
        exec.read_f32(out, &mut rows).unwrap();
        (rows, exec.buffer_bytes())
    }

    #[test]
    fn chunks_give_what_all_at_once_give() {
        let (whole, _) = computed(1 << 30);
        assert_eq!(whole.len(), 16 * 6 * 9);
        assert!(whole.iter().all(|x| x.is_finite()) && whole.iter().any(|x| x.abs() > 1e-3));
        for bytes in [4 * 96 * 3 * 9, 4 * 96 * 3 * 4, 1] {
            let (chunked, _) = computed(bytes);
            for (a, b) in whole.iter().zip(&chunked) {
                assert!((a - b).abs() < 1e-6, "{bytes}: {a} and {b}");
            }
        }
    }
}
