//! Attention over a few blocks, chosen by their landmarks, against its definition in f64, without rotation: turned queries
//! are held against keys at other positions where models are. And what is refused.

use crate::common::*;
use crate::soft_max::{summed, Score, SoftMax};
use ggml::attention_landmark::{LandmarkAttention, TopBlocks};
use ggml::tensor::Tensor;
use ggml::{DType, Error};

const D: usize = 16;
const HEADS: [usize; 2] = [4, 2];
const N: usize = 90;
const BLOCK: usize = 6;

/// The output of a query at position `i`, by its scores over all positions and values, and how far it may be
/// off.
fn exact(
    scores: &[Score],
    value: &dyn Fn(usize) -> Vec<f64>,
    i: usize,
    top: usize,
    piece: usize,
) -> (Vec<f64>, Vec<f64>) {
    let earlier = i / piece * piece / BLOCK;
    let landmark = |b: usize| b * BLOCK + BLOCK - 1;
    let mut taken: Vec<usize> = (0..earlier).collect();
    if earlier > top {
        taken.sort_by(|&a, &b| scores[landmark(b)].value.total_cmp(&scores[landmark(a)].value));
        taken.truncate(top);
    }
    // Blocks of its own piece that are complete.
    taken.extend(earlier..i / BLOCK);
    let own: Vec<usize> = (i / BLOCK * BLOCK..=i).filter(|j| j % BLOCK != BLOCK - 1).collect();
    let keys = |b: usize| b * BLOCK..landmark(b);
    let blocks: Vec<SoftMax> = taken.iter().map(|&b| SoftMax::new(&scores[keys(b)], BLOCK)).collect();
    // A block's score is that of its landmark; each of its keys is off by its own weight, too.
    let of_block = taken.iter().zip(&blocks).map(|(&b, p)| p.joined(scores[landmark(b)]));
    let all: Vec<Score> = own.iter().map(|&j| scores[j]).chain(of_block).collect();
    let first = SoftMax::new(&all, own.len() + taken.len() * BLOCK);
    let (mut out, mut off) = (vec![0.0; D], vec![0.0; D]);
    let summed = summed(own.len() + taken.len() * BLOCK);
    let mut add = |j: usize, w: f64, parts: f64| {
        for ((o, off), v) in out.iter_mut().zip(&mut off).zip(value(j)) {
            *o += w * v;
            *off += (w * v).abs() * (parts + summed);
        }
    };
    let mut weights = first.weights.iter().zip(&first.off);
    own.iter().zip(weights.by_ref()).for_each(|(&j, (&w, &parts))| add(j, w, parts));
    for ((&b, p), (w, parts)) in taken.iter().zip(&blocks).zip(weights) {
        for (j, (of, more)) in keys(b).zip(p.weights.iter().zip(&p.off)) {
            add(j, w * of, parts + more);
        }
    }
    (out, off)
}

#[test]
fn blocks_are_those_of_the_definition() {
    let ([h, g], mut rng) = (HEADS, Rng(3));
    let q: Vec<f32> = rng.values(D * h * N).iter().map(|x| 3.0 * x).collect();
    let (k, v) = (rng.values(D * g * N), rng.values(D * g * N));
    // Positions lie in other rows.
    let row_of = |j: usize| j * 37 % 200;
    let cells: Vec<i32> = (0..N).map(|j| row_of(j) as i32).collect();
    let cached = |x: &[f32]| {
        let mut all = vec![9.0; 200 * g * D];
        let rows = x.chunks_exact(g * D).enumerate();
        rows.for_each(|(j, row)| all[row_of(j) * g * D..][..g * D].copy_from_slice(row));
        all
    };
    let ranges: Vec<i32> = (0..N as i32).flat_map(|i| [0, i + 1]).collect();
    for (top, piece) in [(1, BLOCK), (3, BLOCK), (2, 3 * BLOCK), (40, BLOCK)] {
        let run = |threads: usize| {
            eval(&mut executor(threads), |b, feed| {
                let q = feed.f32(b, &[D, h, N], &q)?;
                let (k, v) =
                    (feed.f32(b, &[D, g, 200], &cached(&k))?, feed.f32(b, &[D, g, 200], &cached(&v))?);
                let (cells, key_ranges) =
                    (feed.i32_of(b, &[N, 1], &cells)?, feed.i32_of(b, &[2, N], &ranges)?);
                let tables = feed.i32(b, &[0; N])?;
                let all = LandmarkAttention { q, k, v, cells, tables, key_ranges };
                let top = TopBlocks { top, piece, turns: None, neox: false };
                b.landmark_attention(all, BLOCK, 0.25, Some(top))
            })
            .unwrap()
        };
        let found = run(1);
        assert_eq!(run(3), found, "threads change no bit");
        for (row, found) in found.chunks_exact(D + 1).enumerate() {
            let (i, head) = (row / h, row % h);
            let of = |x: &[f32], j: usize| to_f64(&x[(j * g + head * g / h) * D..][..D]);
            let q = to_f64(&q[row * D..][..D]);
            let scores: Vec<Score> = (0..N).map(|j| Score::new(&q, &of(&k, j), 0.25, None)).collect();
            let (want, off) = exact(&scores, &|j| of(&v, j), i, top, piece);
            let what = format!("top {top}, pieces of {piece}, query {i}");
            assert_within(&found[..D], &want, |i| off[i], &what);
        }
    }
}

#[test]
fn what_does_not_fit_is_refused() {
    let refused = |top: usize, piece: usize, turns: Option<[usize; 3]>| {
        let made = executor(1).build::<(), Error>(64, |b| {
            let (_, q) = b.input("q", DType::F32, &[8, 4, 3])?;
            let (_, k) = b.input("k", DType::F16, &[8, 2, 5])?;
            let (_, cells) = b.input("cells", DType::I32, &[9, 1])?;
            let (_, tables) = b.input("tables", DType::I32, &[3])?;
            let (_, key_ranges) = b.input("key_ranges", DType::I32, &[2, 3])?;
            let turns = turns.map(|shape| b.input("turns", DType::F32, &shape)).transpose()?;
            let turns: Option<Tensor<'_>> = turns.map(|(_, t)| t);
            let all = LandmarkAttention { q, k, v: k, cells, tables, key_ranges };
            b.landmark_attention(all, 4, 1.0, Some(TopBlocks { top, piece, turns, neox: true }))?;
            Ok(())
        });
        made.err().map(|e| e.to_string())
    };
    for turns in [None, Some([8, 1, 3]), Some([6, 2, 9])] {
        assert_eq!(refused(2, 8, turns), None, "{turns:?}");
    }
    // No block; half blocks; too few turns, for other heads, of more dimensions than there are, of half a pair.
    let bad = [[8, 1, 2], [8, 3, 3], [10, 1, 3], [7, 1, 3]];
    let bad = bad.into_iter().map(|shape| (2, 8, Some(shape)));
    for (top, piece, turns) in [(0, 8, None), (2, 6, None), (2, 0, None)].into_iter().chain(bad) {
        let e = refused(top, piece, turns).unwrap();
        assert!(e.contains("landmark_attention") && e.contains("pieces of whole blocks"), "{turns:?}: {e}");
    }
}
