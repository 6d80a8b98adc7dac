//! Attention with landmarks against its definition in f64, and its gradients against closed forms that are themselves
//! held against finite differences.

mod definition;

use crate::common::*;
use crate::soft_max::summed;
use definition::Exact;
use ggml::attention_landmark::{LandmarkAttention, MAX_BLOCK};
use ggml::attention_train::AttentionBack;
use ggml::{DType, Error};
use proptest::prelude::{any, prop, proptest, ProptestConfig, Strategy};

/// Numbers of everything; the last query is at the last key.
#[derive(Debug, Clone)]
struct Case {
    d: usize,
    d_v: usize,
    n_head_kv: usize,
    n_rep: usize,
    n_tokens: usize,
    n_keys: usize,
    block: usize,
    /// The first key that all queries see, as far as they are after it.
    first: usize,
    seed: u64,
}

struct Data {
    q: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
    d_out: Vec<f32>,
    key_ranges: Vec<i32>,
}

impl Case {
    fn n_head(&self) -> usize {
        self.n_head_kv * self.n_rep
    }

    fn scale(&self) -> f32 {
        1.0 / (self.d as f32).sqrt()
    }

    fn data(&self) -> Data {
        let mut rng = Rng(self.seed);
        let rows = self.n_head() * self.n_tokens;
        let range = |t: usize| {
            let end = self.n_keys - self.n_tokens + t + 1;
            [self.first.min(end - 1) as i32, end as i32]
        };
        Data {
            q: rng.values(self.d * rows).iter().map(|q| 3.0 * q).collect(),
            k: rng.values(self.d * self.n_head_kv * self.n_keys),
            v: rng.values(self.d_v * self.n_head_kv * self.n_keys),
            d_out: rng.values(self.d_v * rows),
            key_ranges: (0..self.n_tokens).flat_map(range).collect(),
        }
    }

    fn exact_of(&self, data: &Data) -> Exact {
        let x = [&data.q, &data.k, &data.v, &data.d_out].map(|x| to_f64(x));
        self.exact(x.each_ref().map(|x| &x[..]), &data.key_ranges)
    }

    /// Output with log-sum-exp, and the gradients of q, k and v.
    fn run(&self, threads: usize, data: &Data) -> [Vec<f32>; 4] {
        let (h, g, d, d_v, n, t) =
            (self.n_head(), self.n_head_kv, self.d, self.d_v, self.n_keys, self.n_tokens);
        let (d_k, _) = stored(DType::F32, &[d, g, n], &vec![0.0; data.k.len()]);
        let (d_values, _) = stored(DType::F32, &[d_v, g, n], &vec![0.0; data.v.len()]);
        let cells: Vec<i32> = (0..n as i32).collect();
        let run = eval_all(&mut executor(threads), 1, |b, feed| {
            let (q, d_out) = (feed.f32(b, &[d, h, t], &data.q)?, feed.f32(b, &[d_v, h, t], &data.d_out)?);
            let (k, v) = (feed.f32(b, &[d, g, n], &data.k)?, feed.f32(b, &[d_v, g, n], &data.v)?);
            let (cells, tables) = (feed.i32_of(b, &[n, 1], &cells)?, feed.i32(b, &vec![0; t])?);
            let key_ranges = feed.i32_of(b, &[2, t], &data.key_ranges)?;
            let all = LandmarkAttention { q, k, v, cells, tables, key_ranges };
            let o_lse = b.landmark_attention(all, self.block, self.scale(), None)?;
            let (d_k, d_v) = (b.stored(&d_k)?, b.stored(&d_values)?);
            let all = AttentionBack { q, k, v, key_ranges, o_lse, d_out, d_k, d_v };
            Ok([o_lse, b.landmark_attention_back(all, self.block, self.scale())?])
        });
        let [o_lse, d_q] = run.unwrap();
        [o_lse, d_q, contents(&d_k), contents(&d_values)]
    }

    fn check(&self, threads: usize) {
        let data = self.data();
        let (want, [o_lse, d_q, d_k, d_v]) = (self.exact_of(&data), self.run(threads, &data));
        let out: Vec<f32> =
            o_lse.chunks_exact(self.d_v + 1).flat_map(|row| row[..self.d_v].to_vec()).collect();
        let all = [
            ("out", &out, &want.out),
            ("d_q", &d_q, &want.d_q),
            ("d_k", &d_k, &want.d_k),
            ("d_v", &d_v, &want.d_v),
        ];
        for ((name, got, want), off) in all.into_iter().zip(&want.off) {
            // Weights below 2^-125 may be 0.
            assert_within(got, want, |i| off[i] + 1e-30, &format!("{name}: {self:?}"));
        }
    }
}

const SMALL: Case =
    Case { d: 4, d_v: 3, n_head_kv: 1, n_rep: 2, n_tokens: 5, n_keys: 11, block: 4, first: 0, seed: 1 };

#[test]
fn closed_forms_are_the_derivatives() {
    for case in [SMALL, Case { first: 2, ..SMALL }, Case { block: 2, n_tokens: 11, ..SMALL }] {
        let data = case.data();
        let x = [&data.q, &data.k, &data.v, &data.d_out].map(|x| to_f64(x));
        let exact = |x: &[Vec<f64>; 4]| case.exact(x.each_ref().map(|x| &x[..]), &data.key_ranges);
        let loss = |x: &[Vec<f64>; 4]| dot(&exact(x).out, &x[3]);
        let want = exact(&x);
        for (which, grads) in [&want.d_q, &want.d_k, &want.d_v].into_iter().enumerate() {
            for (i, g) in grads.iter().enumerate() {
                let at = |step: f64| {
                    let mut x = x.clone();
                    x[which][i] += step;
                    loss(&x)
                };
                let slope = (at(1e-5) - at(-1e-5)) / 2e-5;
                assert!((slope - g).abs() < 1e-8, "{which} {i}: {slope} {g}, {case:?}");
            }
        }
        // Rows sum to 1, but for a landmark that sees nothing before it.
        let empty = |t: usize| data.key_ranges[2 * t] + 1 == data.key_ranges[2 * t + 1];
        let closes = |t: usize| (data.key_ranges[2 * t + 1] as usize).is_multiple_of(case.block);
        for (row, sum) in want.sums.iter().enumerate() {
            let t = row / case.n_head();
            let expected = if empty(t) && closes(t) { 0.0 } else { 1.0 };
            assert!((sum - expected).abs() < 1e-12, "{row}: {sum}");
        }
    }
}

fn case() -> impl Strategy<Value = Case> {
    let widths = prop::sample::select(vec![(8, 8), (64, 64), (40, 24), (20, 7), (1, 1)]);
    let grouping = prop::sample::select(vec![(1usize, 1usize), (3, 3), (2, 4), (1, 7)]);
    let block = prop::sample::select(vec![2usize, 3, 16, 64, 100, 200, MAX_BLOCK]);
    (widths, grouping, block, 1usize..120, 0usize..500, 0usize..90, any::<u64>()).prop_map(
        |((d, d_v), (n_head_kv, n_rep), block, n_tokens, before, first, seed)| Case {
            d,
            d_v,
            n_head_kv,
            n_rep,
            n_tokens,
            n_keys: n_tokens + before,
            block,
            first,
            seed,
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 30, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn agrees_with_the_definition(case in case(), threads in prop::sample::select(vec![1usize, 3])) {
        case.check(threads);
    }
}

const PLAIN: Case =
    Case { d: 64, d_v: 64, n_head_kv: 3, n_rep: 3, n_tokens: 150, n_keys: 700, block: 64, first: 0, seed: 5 };

#[test]
fn threads_change_no_bit() {
    let data = PLAIN.data();
    assert!(PLAIN.run(1, &data) == PLAIN.run(3, &data));
}

#[test]
fn weights_sum_to_one_and_no_value_of_a_landmark_is_used() {
    let mut data = PLAIN.data();
    data.v.fill(1.0);
    let d_v = PLAIN.d_v;
    let rows = |out: &[f32]| out.chunks_exact(d_v + 1).flat_map(|r| r[..d_v].to_vec()).collect::<Vec<f32>>();
    let [out, ..] = PLAIN.run(2, &data);
    // The same weights are summed twice, and divided.
    assert_within(&rows(&out), &vec![1.0; d_v * 9 * 150], |_| 2.0 * summed(PLAIN.n_keys), "sums");
    let mut data = PLAIN.data();
    let [before, ..] = PLAIN.run(2, &data);
    let row = d_v * PLAIN.n_head_kv;
    for (i, value) in data.v.chunks_exact_mut(row).enumerate() {
        if i % 64 == 63 {
            value.fill(1e30);
        }
    }
    let [after, .., d_values] = PLAIN.run(2, &data);
    assert!(before == after);
    let of_landmarks = d_values.chunks_exact(row).skip(63).step_by(64);
    assert!(of_landmarks.flatten().all(|&x| x == 0.0));
}

#[test]
fn one_block_is_plain_attention() {
    let case = Case { n_keys: 199, block: 200, ..PLAIN };
    let data = case.data();
    let (h, g, d, n, t) = (case.n_head(), case.n_head_kv, case.d, case.n_keys, case.n_tokens);
    let want = eval(&mut executor(2), |b, feed| {
        let (q, k) = (feed.f32(b, &[d, h, t], &data.q)?, feed.f32(b, &[d, g, n], &data.k)?);
        let key_ranges = b.reshape(feed.i32(b, &data.key_ranges)?, &[2, t])?;
        b.attention_lse(q, k, feed.f32(b, &[d, g, n], &data.v)?, key_ranges, case.scale())
    })
    .unwrap();
    let exact = case.exact_of(&data);
    let width = case.d_v + 1;
    let off = |i: usize| match i % width {
        column if column < case.d_v => exact.off[0][i / width * case.d_v + column],
        _ => exact.lse_off[i / width],
    };
    // Both may be off, one to either side.
    assert_within(&case.run(2, &data)[0], &to_f64(&want), |i| 2.0 * off(i), "plain attention");
}

/// Keys of two sequences anywhere in a cache of halves, queries of both in one batch.
#[test]
fn cells_are_where_tables_say() {
    let case = Case { n_tokens: 40, n_keys: 333, n_head_kv: 2, n_rep: 2, d: 32, d_v: 32, ..PLAIN };
    let (h, g, d, n, t) = (case.n_head(), case.n_head_kv, case.d, case.n_keys, case.n_tokens);
    let halves = |x: &[f32]| x.iter().map(|&x| half::f16::from_f32(x).to_f32()).collect::<Vec<f32>>();
    let texts = [1, 2].map(|seed| {
        let mut data = Case { seed, ..case.clone() }.data();
        (data.k, data.v) = (halves(&data.k), halves(&data.v));
        data
    });
    // Positions of both sequences dealt out to 800 rows.
    let row_of = |s: usize, j: usize| (2 * j + s) * 577 % 800;
    let cells: Vec<i32> = (0..2).flat_map(|s| (0..n).map(move |j| row_of(s, j) as i32)).collect();
    let cached = |which: fn(&Data) -> &Vec<f32>| {
        let mut all = vec![9.0; 800 * g * d];
        for (s, text) in texts.iter().enumerate() {
            for (j, row) in which(text).chunks_exact(g * d).enumerate() {
                all[row_of(s, j) * g * d..][..g * d].copy_from_slice(row);
            }
        }
        all
    };
    // Queries take turns.
    let tables: Vec<i32> = (0..2 * t as i32).map(|i| i % 2).collect();
    let mut q = Vec::new();
    let mut key_ranges = Vec::new();
    for i in 0..2 * t {
        q.extend_from_slice(&texts[i % 2].q[i / 2 * h * d..][..h * d]);
        key_ranges.extend_from_slice(&texts[i % 2].key_ranges[i / 2 * 2..][..2]);
    }
    let got = eval(&mut executor(2), |b, feed| {
        let q = feed.f32(b, &[d, h, 2 * t], &q)?;
        let k = feed.f16(b, &[d, g, 800], &cached(|data| &data.k))?;
        let v = feed.f16(b, &[d, g, 800], &cached(|data| &data.v))?;
        let (c, r) = (feed.i32_of(b, &[n, 2], &cells)?, feed.i32_of(b, &[2, 2 * t], &key_ranges)?);
        let all = LandmarkAttention { q, k, v, cells: c, tables: feed.i32(b, &tables)?, key_ranges: r };
        b.landmark_attention(all, case.block, case.scale(), None)
    })
    .unwrap();
    let want = texts.each_ref().map(|data| case.exact_of(data));
    for (i, rows) in got.chunks_exact(h * (d + 1)).enumerate() {
        let rows: Vec<f32> = rows.chunks_exact(d + 1).flat_map(|row| row[..d].to_vec()).collect();
        let (exact, at) = (&want[i % 2], i / 2 * h * d);
        assert_within(&rows, &exact.out[at..][..h * d], |j| exact.off[0][at + j], &format!("query {i}"));
    }
}

#[test]
fn refusals() {
    let message = |block: usize, n_head: usize, cells: [usize; 2]| {
        let made = executor(1).build::<(), Error>(64, |b| {
            let (_, q) = b.input("q", DType::F32, &[8, n_head, 3])?;
            let (_, k) = b.input("k", DType::F16, &[8, 2, 5])?;
            let (_, cells) = b.input("cells", DType::I32, &cells)?;
            let (_, tables) = b.input("tables", DType::I32, &[3])?;
            let (_, key_ranges) = b.input("key_ranges", DType::I32, &[2, 3])?;
            b.landmark_attention(
                LandmarkAttention { q, k, v: k, cells, tables, key_ranges },
                block,
                1.0,
                None,
            )?;
            Ok(())
        });
        made.err().map(|e| e.to_string())
    };
    assert_eq!(message(4, 4, [9, 1]), None);
    for block in [0, 1, MAX_BLOCK + 1] {
        let found = message(block, 4, [9, 1]).unwrap();
        assert!(found.contains("blocks of 2 to 256") && found.contains(&format!("found {block}")), "{found}");
    }
    assert!(message(4, 3, [9, 1]).unwrap().contains("key_ranges i32 [2,T]"));
    // Rows that there are not.
    let mut exec = executor(1);
    let id = exec
        .build::<_, Error>(64, |b| {
            let (_, q) = b.input("q", DType::F32, &[8, 2, 1])?;
            let (_, k) = b.input("k", DType::F32, &[8, 2, 5])?;
            let (id, cells) = b.input("cells", DType::I32, &[3, 1])?;
            let (_, tables) = b.input("tables", DType::I32, &[1])?;
            let (_, key_ranges) = b.input("key_ranges", DType::I32, &[2, 1])?;
            let all = LandmarkAttention { q, k, v: k, cells, tables, key_ranges };
            b.output(b.landmark_attention(all, 4, 1.0, None)?);
            Ok(id)
        })
        .unwrap();
    for cells in [[0, 1, 5], [0, -1, 2]] {
        assert!(exec.set(id, &cells).is_err());
    }
}
