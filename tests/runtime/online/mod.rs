//! Attention by tiles against its definition in f64, forwards and backwards.

mod single;

use std::ops::Range;

use ggml::attention::{AttentionBranch, Scoring};
use ggml::backend::Device;
use ggml::graph::{Builder, Executor, InputId};
use ggml::tensor::{Store, StoreTensor, Tensor, TensorDef};
use ggml::{DType, Error, Result};
use ropewalk::internals::graph::{
    middle_and_half, tiles, Online, Part, Places, MAX_PLACE, MOST_TILES, NOWHERE,
};

const D: usize = 16;
const N: usize = 7;
/// Keys of each part: three tiles of the fewest keys, the last of them not whole, and one.
const KEYS: [usize; 2] = [600, 200];

/// Attention of six heads, three on each key head.
#[derive(Clone, Copy)]
struct Case {
    n_parts: usize,
    /// How much larger than ordinary the queries are.
    loud: f32,
    softcap: Option<f32>,
    sinks: bool,
    half: bool,
}

const N_HEAD: usize = 6;
const N_KV: usize = 2;
const SCALE: f32 = 0.3;

/// Some value for each number.
fn value(i: usize, of: usize) -> f32 {
    let mut x = (i as u32).wrapping_mul(2_654_435_761).wrapping_add(of as u32 * 97_003);
    x ^= x >> 15;
    x = x.wrapping_mul(0x2c1b_3c6d);
    x ^= x >> 12;
    (x % 2001) as f32 / 1000.0 - 1.0
}

impl Case {
    fn n_columns(&self) -> usize {
        KEYS[..self.n_parts].iter().sum()
    }

    fn q(&self, part: usize) -> Vec<f32> {
        (0..D * N_HEAD * N).map(|i| self.loud * value(i, 1 + part)).collect()
    }

    fn keys(&self, part: usize, of: usize) -> Vec<f32> {
        let rounded = |x: f32| half::f16::from_f32(x).to_f32();
        let all = (0..D * KEYS[part] * N_KV).map(|i| value(i, of + part));
        all.map(|x| if self.half { rounded(x) } else { x }).collect()
    }

    /// Where keys stand for queries with this table; some nowhere.
    fn place(&self, table: usize, column: usize) -> f32 {
        match (column * 7 + table) % 5 {
            0 => NOWHERE,
            _ => (column * 389 % 1000) as f32,
        }
    }

    /// The first query of each table sees few keys, later ones more; of the second part all up to the last.
    fn range(&self, part: usize, query: usize) -> Range<i32> {
        match part {
            0 => 20 * query as i32..30 + 140 * query as i32,
            _ if query == 3 => 0..0,
            _ => 0..1000,
        }
    }

    /// For each query and head: the scores of all columns, none where a key is not seen.
    fn scores(&self, query: usize, head: usize) -> Vec<Option<f64>> {
        let mut scores = Vec::new();
        for part in 0..self.n_parts {
            let (q, k) = (self.q(part), self.keys(part, 10));
            let q = &q[(query * N_HEAD + head) * D..][..D];
            for key in 0..KEYS[part] {
                let k = &k[(head / (N_HEAD / N_KV) * KEYS[part] + key) * D..][..D];
                let dot: f64 = q.iter().zip(k).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum();
                let s = dot * f64::from(SCALE);
                let s = self.softcap.map_or(s, |cap| f64::from(cap) * (s / f64::from(cap)).tanh());
                let place = self.place(query % 2, scores.len());
                let range = self.range(part, query);
                let seen = place >= 0.0 && range.contains(&(place as i32));
                scores.push(seen.then_some(s));
            }
        }
        scores
    }

    fn sink(&self, head: usize) -> Option<f64> {
        self.sinks.then(|| f64::from(value(head, 40)))
    }

    /// Probabilities and log-sum-exp of a head's scores.
    fn softmax(&self, scores: &[Option<f64>], head: usize) -> (Vec<f64>, f64) {
        let all = || scores.iter().copied().flatten().chain(self.sink(head));
        let largest = all().fold(f64::NEG_INFINITY, f64::max);
        let lse = largest + all().map(|s| (s - largest).exp()).sum::<f64>().ln();
        (scores.iter().map(|s| s.map_or(0.0, |s| (s - lse).exp())).collect(), lse)
    }

    /// The sum of a head's values under these probabilities. `values` are those of all parts.
    fn mixed(&self, values: &[Vec<f32>], p: &[f64], head: usize) -> [f64; D] {
        let mut out = [0f64; D];
        for (c, p) in p.iter().enumerate() {
            let (part, at) = self.column(c, head);
            out.iter_mut().zip(&values[part][at..at + D]).for_each(|(o, v)| *o += p * f64::from(*v));
        }
        out
    }

    fn values(&self) -> Vec<Vec<f32>> {
        (0..self.n_parts).map(|part| self.keys(part, 20)).collect()
    }

    /// Where a column's value lies: its part, and its first element in it.
    fn column(&self, column: usize, head: usize) -> (usize, usize) {
        let part = usize::from(column >= KEYS[0]);
        (part, (head / (N_HEAD / N_KV) * KEYS[part] + column - part * KEYS[0]) * D)
    }
}

/// Declares inputs, and notes their values.
struct Input<'r, 'c> {
    b: &'r Builder<'c>,
    floats: Vec<(InputId, Vec<f32>)>,
    halves: Vec<(InputId, Vec<u16>)>,
    tables: Vec<InputId>,
}

impl<'c> Input<'_, 'c> {
    fn floats(&mut self, ne: &[usize], values: Vec<f32>) -> Result<Tensor<'c>> {
        let (id, t) = self.b.input("x", DType::F32, ne)?;
        self.floats.push((id, values));
        Ok(t)
    }

    fn keys(&mut self, ne: &[usize], values: Vec<f32>, half: bool) -> Result<Tensor<'c>> {
        if !half {
            return self.floats(ne, values);
        }
        let (id, t) = self.b.input("x", DType::F16, ne)?;
        self.halves.push((id, values.iter().map(|&x| half::f16::from_f32(x).to_bits()).collect()));
        Ok(t)
    }

    /// A part, for some of its queries.
    fn branch(&mut self, case: Case, part: usize, queries: Range<usize>) -> Result<AttentionBranch<'c>> {
        let (row, ne) = (N_HEAD * D, [D, KEYS[part], N_KV]);
        let q = case.q(part)[queries.start * row..queries.end * row].to_vec();
        let q = self.floats(&[D, N_HEAD, queries.len()], q)?;
        let k = self.keys(&ne, case.keys(part, 10), case.half)?;
        Ok(AttentionBranch { q, k, v: self.keys(&ne, case.keys(part, 20), case.half)? })
    }

    fn scoring(&mut self, case: Case) -> Result<Scoring<'c>> {
        let sinks = (0..N_HEAD).map(|h| value(h, 40)).collect();
        let sinks = case.sinks.then(|| self.floats(&[N_HEAD], sinks)).transpose()?;
        Ok(Scoring { scale: SCALE, softcap: case.softcap, sinks })
    }
}

/// Builds and runs a graph. Returns its output, and the bytes that it takes.
fn run(
    max_tensors: usize,
    f: impl for<'c> Fn(&mut Input<'_, 'c>) -> Result<Tensor<'c>>,
) -> (Vec<f32>, usize) {
    let mut exec = Executor::new(Device::find("cpu").unwrap(), 1).unwrap();
    let (out, floats, halves, tables) = exec
        .build(max_tensors, |b| {
            let mut input = Input { b, floats: Vec::new(), halves: Vec::new(), tables: Vec::new() };
            let out = f(&mut input)?;
            Ok::<_, Error>((b.output(out), input.floats, input.halves, input.tables))
        })
        .unwrap();
    floats.iter().for_each(|(id, values)| exec.set(*id, values).unwrap());
    halves.iter().for_each(|(id, values)| exec.set(*id, values).unwrap());
    let table: Vec<i32> = (0..N as i32).map(|i| i % 2).collect();
    tables.iter().for_each(|id| exec.set(*id, &table).unwrap());
    exec.compute().unwrap();
    let mut values = Vec::new();
    exec.read_f32(out, &mut values).unwrap();
    (values, exec.buffer_bytes())
}

/// [`run`], of the graph that `f` makes of the parts.
fn in_tiles(
    case: Case,
    tile_bytes: usize,
    f: impl for<'c> Fn(&Online<'_, 'c>, &[Part<'c>], &mut Input<'_, 'c>) -> Result<Tensor<'c>>,
) -> (Vec<f32>, usize) {
    run(4000, |input| {
        let mut parts = Vec::new();
        for part in 0..case.n_parts {
            parts.push(Part { branch: input.branch(case, part, 0..N)?, first: part * KEYS[0], range: part });
        }
        let (b, scoring) = (input.b, input.scoring(case)?);
        let seen = Places::new(b, [case.n_columns(), 2], N, case.n_parts)?;
        let places = (0..2).flat_map(|t| (0..case.n_columns()).map(move |c| case.place(t, c)));
        input.floats.push((seen.keys, places.collect()));
        input.tables.push(seen.tables);
        let number = |i: usize| {
            let (part, i) = (i / (2 * N), i % (2 * N));
            middle_and_half(case.range(part, i % N))[i / N]
        };
        input.floats.push((seen.ranges, (0..2 * N * case.n_parts).map(number).collect()));
        f(&Online { b, seen, scoring, tile_bytes }, &parts, input)
    })
}

/// Tiles of the fewest keys, and one for all.
const TILES: [usize; 2] = [1, 1 << 30];

fn cases() -> Vec<Case> {
    let plain = Case { n_parts: 2, loud: 1.0, softcap: None, sinks: false, half: false };
    vec![
        plain,
        // Scores of hundreds, of both signs.
        Case { loud: 200.0, ..plain },
        Case { softcap: Some(2.0), ..plain },
        Case { sinks: true, n_parts: 1, ..plain },
        Case { sinks: true, softcap: Some(1.0), half: true, ..plain },
    ]
}

#[test]
fn forwards_by_definition() {
    for case in cases() {
        for tile_bytes in TILES {
            let (got, _) =
                in_tiles(case, tile_bytes, |online, parts, _| online.forward(parts)?.heads_lse(online.b));
            let values = case.values();
            for (row, got) in got.chunks_exact(D + 1).enumerate() {
                let (query, head) = (row / N_HEAD, row % N_HEAD);
                let (p, lse) = case.softmax(&case.scores(query, head), head);
                let want = case.mixed(&values, &p, head);
                // Scores of hundreds are right to their last bit; on the CPU F16 keys round queries and values probabilities.
                let off = if case.half { 2e-3 } else { 1e-5 * f64::from(case.loud) };
                for (got, want) in got.iter().zip(want.iter().chain([&lse])) {
                    assert!(
                        (f64::from(*got) - want).abs() < off,
                        "query {query}, head {head}: {got}, {want}"
                    );
                }
            }
        }
    }
}

#[test]
fn backwards_by_definition() {
    // One part each, as in training; sinks are part of the log-sum-exp.
    for case in cases().into_iter().filter(|case| !case.half) {
        let case = Case { n_parts: 1, loud: case.loud.min(5.0), ..case };
        let d_out: Vec<f32> = (0..D * N_HEAD * N).map(|i| value(i, 30)).collect();
        let [mut want_q, mut want_k, mut want_v] =
            [D * N_HEAD * N, D * KEYS[0] * N_KV, D * KEYS[0] * N_KV].map(|n| vec![0f64; n]);
        let (q, k, v) = (case.q(0), case.keys(0, 10), case.keys(0, 20));
        let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| f64::from(a * b)).sum::<f64>();
        for row in 0..N * N_HEAD {
            let (query, head) = (row / N_HEAD, row % N_HEAD);
            let (p, _) = case.softmax(&case.scores(query, head), head);
            let d_o = &d_out[row * D..][..D];
            let of_column = |c: usize| case.column(c, head).1;
            let d_p: Vec<f64> = (0..KEYS[0]).map(|c| dot(d_o, &v[of_column(c)..][..D])).collect();
            let mean: f64 = p.iter().zip(&d_p).map(|(p, d)| p * d).sum();
            for (c, (p, d_p)) in p.iter().zip(&d_p).enumerate() {
                let (at, mut d_s) = (of_column(c), p * (d_p - mean) * f64::from(SCALE));
                if let Some(cap) = case.softcap {
                    let s = dot(&q[row * D..][..D], &k[at..at + D]) * f64::from(SCALE) / f64::from(cap);
                    d_s *= 1.0 - s.tanh().powi(2);
                }
                for i in 0..D {
                    want_q[row * D + i] += d_s * f64::from(k[at + i]);
                    want_k[at + i] += d_s * f64::from(q[row * D + i]);
                    want_v[at + i] += p * f64::from(d_o[i]);
                }
            }
        }
        for tile_bytes in TILES {
            let cpu = Device::find("cpu").unwrap();
            let defs =
                ["dk", "dv"].map(|name| TensorDef::new(name, DType::F32, &[D, KEYS[0], N_KV]).unwrap());
            let store = Store::new(cpu, defs.to_vec(), "gradients").unwrap();
            (0..2).for_each(|i| store.zero(i).unwrap());
            let at = |index| StoreTensor { store: store.clone(), index };
            let (got, _) = in_tiles(case, tile_bytes, |online, parts, input| {
                let d_out = input.floats(&[D, N_HEAD, N], d_out.clone())?;
                let below = [online.b.stored(&at(0))?, online.b.stored(&at(1))?];
                let out = online.forward(parts)?.heads_lse(online.b)?;
                online.backward(&parts[0], out, d_out, below)
            });
            let stored = |i: usize| {
                let mut bytes = vec![0u8; 4 * D * KEYS[0] * N_KV];
                store.read(i, 0, &mut bytes).unwrap();
                bytes.chunks_exact(4).map(|x| f32::from_le_bytes([x[0], x[1], x[2], x[3]])).collect()
            };
            let all: [(Vec<f32>, &[f64]); 3] = [(got, &want_q), (stored(0), &want_k), (stored(1), &want_v)];
            for (i, (got, want)) in all.iter().enumerate() {
                assert_eq!(got.len(), want.len());
                let largest = want.iter().fold(0f64, |most, x| most.max(x.abs()));
                assert!(largest > 1e-2, "{i}");
                for (got, want) in got.iter().zip(*want) {
                    assert!((f64::from(*got) - want).abs() < 2e-5 * (1.0 + largest), "{i}: {got}, {want}");
                }
            }
        }
    }
}

#[test]
fn a_tile_is_all_that_is_there_at_once() {
    let case = Case { n_parts: 2, loud: 1.0, softcap: None, sinks: false, half: false };
    let bytes = |tile| in_tiles(case, tile, |online, parts, _| online.forward(parts)?.heads(online.b)).1;
    let scores = |n_keys: usize| 4 * n_keys * N_HEAD * N;
    // One tile for the 600 keys of the first part holds their scores; tiles of 256 hold 344 fewer.
    let (small, large) = (bytes(TILES[0]), bytes(TILES[1]));
    assert!(large - small > scores(300), "{small} and {large}");
}

#[test]
fn tiles_are_whole_blocks_that_fit_or_the_fewest_keys() {
    let of = |n_keys, n_rows, bytes| tiles(n_keys, n_rows, bytes).collect::<Vec<_>>();
    assert_eq!(of(600, 100, 1), [0..256, 256..512, 512..600]);
    assert_eq!(of(600, 100, 4 * 100 * 511), [0..256, 256..512, 512..600]);
    assert_eq!(of(600, 100, 4 * 100 * 512), [0..512, 512..600]);
    assert!(of(600, 100, 1 << 30).into_iter().eq(std::iter::once(0..600)));
    assert_eq!(of(1 << 20, 100, 1).len(), MOST_TILES);
    assert!(of(0, 100, 1 << 30).is_empty());
}

#[test]
fn a_range_is_a_middle_and_a_half() {
    for range in [0..1, 3..9, 3..10, 0..0, 0..MAX_PLACE as i32, MAX_PLACE as i32 - 2..MAX_PLACE as i32] {
        let [middle, half] = middle_and_half(range.clone());
        for place in [0, 1, 2, 3, 8, 9, 10, MAX_PLACE as i32 - 3, MAX_PLACE as i32 - 2, MAX_PLACE as i32 - 1]
        {
            assert_eq!((place as f32 - middle).abs() <= half, range.contains(&place), "{place} in {range:?}");
        }
        assert!((NOWHERE - middle).abs() > half);
    }
}
