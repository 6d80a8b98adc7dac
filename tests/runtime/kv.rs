//! The cache against a naive one: for each cell, the position and the set of sequences that see it.

use std::collections::BTreeSet;

use crate::common::says;
use ggml::backend::Device;
use ggml::DType;
use proptest::prelude::*;
use ropewalk::hparams::{Hparams, LayerAttention, LayerHparams};
use ropewalk::internals::kv::{Cell, KvCache, CELL_BLOCK, MAX_SEQS};
use ropewalk::rope::{Plan, PosMap, Reach};

fn model() -> Hparams {
    Hparams {
        arch: "llama".into(),
        n_layer: 2,
        n_embd: 64,
        n_vocab: 100,
        n_ctx_train: 2048,
        norm_eps: 1e-5,
        attention: vec![LayerAttention::new(2, 1, 32).rotated(1e4, 32)],
        layers: LayerHparams::alike(2, 64),
        ..Hparams::default()
    }
}

/// Two maps of key positions.
fn plan(hp: &Hparams) -> Plan {
    Plan::new(&"self-extend:window=64,group=4".parse().unwrap(), hp, 4096).unwrap()
}

fn cache(n_ctx: usize, dtype: DType) -> KvCache {
    KvCache::new(Device::find("cpu").unwrap(), &model(), &plan(&model()), n_ctx, dtype).unwrap()
}

#[derive(Debug, Clone)]
enum Op {
    Allocate(Vec<(u32, i32)>),
    Remove(u32, i32),
    /// Sequence, positions below, but for multiples of this.
    Evict(u32, i32, i32),
    Copy(u32, u32),
    Clear,
}

fn seq() -> impl Strategy<Value = u32> {
    prop_oneof![4 => 0u32..3, 1 => Just(MAX_SEQS - 1)]
}

fn op() -> impl Strategy<Value = Op> {
    let token = (seq(), 0i32..600);
    prop_oneof![
        6 => prop::collection::vec(token, 0..90).prop_map(Op::Allocate),
        4 => (seq(), 0i32..600).prop_map(|(s, from)| Op::Remove(s, from)),
        2 => (seq(), 0i32..600, 1i32..5).prop_map(|(s, before, n)| Op::Evict(s, before, n)),
        2 => (seq(), seq()).prop_map(|(a, b)| Op::Copy(a, b)),
        1 => Just(Op::Clear),
    ]
}

#[derive(Debug, Clone, Default)]
struct Naive(Vec<(i32, BTreeSet<u32>)>);

impl Naive {
    fn used(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.0.len()).filter(|&i| !self.0[i].1.is_empty())
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn the_cache_is_the_naive_cache(n_ctx in prop_oneof![1usize..40, 250usize..530], ops in prop::collection::vec(op(), 1..30)) {
        let (plan, mut cache) = (plan(&model()), cache(n_ctx, DType::F16));
        let mut naive = Naive(vec![Default::default(); n_ctx]);
        for op in ops {
            match op {
                Op::Allocate(wanted) => {
                    let before = cache.cells().to_vec();
                    let free = n_ctx - naive.used().count();
                    match cache.allocate(&wanted) {
                        None => {
                            prop_assert!(wanted.len() > free, "{} of {free} refused", wanted.len());
                            prop_assert_eq!(&before, cache.cells(), "a refusal changes nothing");
                        }
                        Some(taken) => {
                            prop_assert_eq!((taken.cells.len(), taken.starts.len()), (wanted.len(), 0));
                            for (&at, &(seq, pos)) in taken.cells.iter().zip(&wanted) {
                                prop_assert!(naive.0[at].1.is_empty(), "cell {at} given out twice");
                                naive.0[at] = (pos, BTreeSet::from([seq]));
                            }
                        }
                    }
                }
                Op::Remove(seq, from) => {
                    cache.remove(seq, from);
                    naive.0.iter_mut().filter(|c| c.0 >= from).for_each(|c| { c.1.remove(&seq); });
                }
                Op::Evict(seq, before, n) => {
                    cache.evict(seq, before, |pos| pos % n == 0);
                    for (pos, seqs) in &mut naive.0 {
                        if *pos < before && *pos % n != 0 {
                            seqs.remove(&seq);
                        }
                    }
                }
                Op::Copy(src, dst) => {
                    cache.copy(src, dst);
                    naive.0.iter_mut().filter(|c| c.1.contains(&src)).for_each(|c| { c.1.insert(dst); });
                }
                Op::Clear => {
                    cache.clear();
                    naive.0.iter_mut().for_each(|c| c.1.clear());
                }
            }
            prop_assert_eq!(cache.cells().len(), n_ctx);
            for (cell, (pos, seqs)) in cache.cells().iter().zip(&naive.0) {
                prop_assert_eq!(cell.seqs, seqs.iter().fold(0, |bits, s| bits | 1u64 << s));
                prop_assert!(seqs.is_empty() || cell.pos == *pos);
            }
            let end = naive.used().last().map_or(0, |i| i + 1);
            prop_assert_eq!(cache.n_free(), n_ctx - naive.used().count());
            prop_assert_eq!(cache.n_end(), end);
            // Whole blocks, at least one, none past the last used cell, and all inside the tensors.
            for seq in 0..3 {
                let query = (seq, 400);
                for reach in [Reach::CAUSAL, Reach { dist_end: 90, ..Reach::CAUSAL }, Reach { key_end: 70, ..Reach::CAUSAL }] {
                    let keys = reach.keys(query.1);
                    let seen: Vec<usize> =
                        naive.used().filter(|&i| naive.0[i].1.contains(&seq) && keys.contains(&naive.0[i].0)).collect();
                    let span = cache.cells_under(plan.layer(0), PosMap::IDENTITY).span(&[query], &reach);
                    prop_assert!(span.start.is_multiple_of(CELL_BLOCK) && span.len.is_multiple_of(CELL_BLOCK));
                    prop_assert!(span.start + span.len <= cache.k(0, 0).def().ne[1]);
                    // As few blocks as hold them.
                    let least = seen.first().map_or(0, |a| seen[seen.len() - 1] / CELL_BLOCK - a / CELL_BLOCK + 1);
                    prop_assert_eq!(span.len, least * CELL_BLOCK);
                    prop_assert!(seen.iter().all(|i| (span.start..span.start + span.len).contains(i)));
                }
            }
        }
    }
}

#[test]
fn shapes_a_cache_cannot_have() {
    let cpu = Device::find("cpu").unwrap();
    let odd = Hparams { attention: vec![LayerAttention::new(2, 1, 20).rotated(1e4, 20)], ..model() };
    says(KvCache::new(cpu, &odd, &plan(&odd), 256, DType::Q8_0), &["q8_0", "20", "32"]);
    for n_ctx in [0, usize::MAX, usize::MAX / 2, 1 << 50] {
        assert!(KvCache::new(cpu, &model(), &plan(&model()), n_ctx, DType::F16).is_err(), "{n_ctx} cells");
    }
    // Two layers of keys under two maps, and values.
    assert_eq!(cache(1, DType::F16).n_bytes(), 2 * 3 * 32 * 2 * CELL_BLOCK);
}

/// Keys of the first five positions under a map of their own; two blocks of cells for those of 64 sequences.
fn starts_plan() -> Plan {
    Plan::new(&"lm-infinite:window=64,global=5".parse().unwrap(), &model(), 4096).unwrap()
}

/// With cells of first positions if it has more than 1024 cells.
fn starts_cache(n_ctx: usize, dtype: DType) -> KvCache {
    KvCache::new(Device::find("cpu").unwrap(), &model(), &starts_plan(), n_ctx, dtype).unwrap()
}

/// What sequences do to a cache.
#[derive(Debug, Clone)]
enum Step {
    Extend(Vec<(u32, usize)>),
    Truncate(u32, i32),
    Evict(u32, i32, i32),
    Fork(u32, u32),
    Clear,
}

fn step() -> impl Strategy<Value = Step> {
    let few = || prop_oneof![0i32..8, 0i32..100];
    prop_oneof![
        6 => prop::collection::vec((seq(), 1usize..9), 1..9).prop_map(Step::Extend),
        3 => (seq(), few()).prop_map(|(s, from)| Step::Truncate(s, from)),
        1 => (seq(), few(), 1i32..5).prop_map(|(s, before, n)| Step::Evict(s, before, n)),
        2 => (seq(), seq()).prop_map(|(a, b)| Step::Fork(a, b)),
        1 => Just(Step::Clear),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn first_positions_are_those_of_the_cache(steps in prop::collection::vec(step(), 1..40)) {
        let (plan, mut cache) = (starts_plan(), starts_cache(1100, DType::F16));
        let mut len = [0i32; MAX_SEQS as usize];
        for step in steps {
            match step {
                Step::Extend(parts) => {
                    let mut wanted = Vec::new();
                    for (seq, n) in parts {
                        let from = len[seq as usize];
                        wanted.extend((from..from + n as i32).map(|pos| (seq, pos)));
                        len[seq as usize] += n as i32;
                    }
                    let used = cache.n_free();
                    let taken = cache.allocate(&wanted).unwrap();
                    prop_assert_eq!(cache.n_free(), used - wanted.len());
                    let starts = cache.cells_under(plan.layer(0), PosMap::constant(0)).all();
                    let first: Vec<usize> = (0..wanted.len()).filter(|&i| wanted[i].1 < 5).collect();
                    prop_assert_eq!(taken.starts.iter().map(|s| s.0).collect::<Vec<_>>(), first);
                    for (token, cell) in taken.starts {
                        let (seq, pos) = wanted[token];
                        prop_assert_eq!(starts[cell], Cell { pos, seqs: 1 << seq });
                    }
                }
                Step::Truncate(seq, n) => {
                    cache.remove(seq, n);
                    len[seq as usize] = len[seq as usize].min(n);
                }
                Step::Evict(seq, before, n) => cache.evict(seq, before, |pos| pos % n == 0),
                Step::Fork(a, b) if a != b => {
                    cache.remove(b, 0);
                    cache.copy(a, b);
                    len[b as usize] = len[a as usize];
                }
                Step::Fork(..) => {}
                Step::Clear => {
                    cache.clear();
                    len.fill(0);
                }
            }
            let first = |cells: &[Cell]| {
                let first = cells.iter().filter(|c| c.seqs != 0 && c.pos < 5);
                let mut first: Vec<(i32, u64)> = first.map(|c| (c.pos, c.seqs)).collect();
                first.sort_unstable();
                first
            };
            let starts = cache.cells_under(plan.layer(0), PosMap::constant(0));
            prop_assert_eq!(first(starts.all()), first(cache.cells()));
            prop_assert_eq!(starts.n_free(), 512 - first(cache.cells()).len());
        }
    }
}

#[test]
fn first_positions_have_cells_as_long_as_tokens_have() {
    let mut cache = starts_cache(1100, DType::F16);
    let all: Vec<(u32, i32)> = (0..17).flat_map(|pos| (0..MAX_SEQS).map(move |seq| (seq, pos))).collect();
    assert_eq!(cache.allocate(&all).unwrap().starts.len(), 320);
    assert_eq!(cache.n_free(), 1100 - 64 * 17);
    // Too many tokens: nothing is taken, of either kind.
    cache.remove(3, 0);
    let before = cache.cells().to_vec();
    assert!(cache.allocate(&(0..30).map(|pos| (3, pos)).collect::<Vec<_>>()).is_none());
    assert_eq!(cache.cells(), before);
    // More first positions than sequences can have: the same.
    assert!(starts_cache(1100, DType::F16).allocate(&[(0, 0); 512]).is_some());
    let mut other = starts_cache(1100, DType::F16);
    assert!(other.allocate(&[(0, 0); 513]).is_none() && other.n_free() == 1100);
    assert_eq!(cache.allocate(&(0..17).map(|pos| (3, pos)).collect::<Vec<_>>()).unwrap().starts.len(), 5);
}

#[test]
fn exported_cells_do_not_depend_on_the_size_of_the_cache() {
    for dtype in [DType::F32, DType::F16, DType::Q8_0, DType::Q4_0] {
        let mut small = starts_cache(600, dtype);
        let row = small.cell_bytes() / 6;
        assert_eq!(starts_cache(1100, dtype).cell_bytes(), 6 * row);
        assert_eq!(starts_cache(1100, dtype).n_bytes(), 2 * (2 * 1280 + 2 * 512) * row);
        // First positions of three sequences at the end and in the middle, two of one cut off again.
        small.allocate(&(0..9).map(|p| (1, p)).collect::<Vec<_>>()).unwrap();
        small.allocate(&(0..30).map(|p| (0, p)).collect::<Vec<_>>()).unwrap();
        small.allocate(&(0..7).map(|p| (63, p)).collect::<Vec<_>>()).unwrap();
        small.copy(0, 7);
        small.remove(7, 4);
        small.remove(1, 3);
        let n = small.n_end();
        assert_eq!(n, 46);
        let cells = small.cells()[..n].to_vec();
        let kept: Vec<usize> = (0..n).filter(|&i| cells[i].seqs != 0 && cells[i].pos < 5).collect();
        assert_eq!(kept.len(), 3 + 5 + 5);
        let parts: Vec<Vec<u8>> =
            (0..6).map(|i| (0..row * n).map(|j| 1 + ((i * 31 + j) % 255) as u8).collect()).collect();
        let import = |to: &mut KvCache, parts: &[Vec<u8>]| {
            let mut parts = parts.iter();
            let done = to.import::<ggml::Error>(&cells, |bytes| {
                bytes.copy_from_slice(parts.next().unwrap());
                Ok(())
            });
            done.unwrap();
            assert!(parts.next().is_none());
        };
        let export = |from: &KvCache| {
            let mut parts = Vec::new();
            let done = from.export::<ggml::Error>(|bytes| {
                parts.push(bytes.to_vec());
                Ok(())
            });
            done.unwrap();
            parts
        };
        import(&mut small, &parts);
        assert_eq!(export(&small), parts);
        let mut large = starts_cache(1100, dtype);
        large.allocate(&[(5, 0), (5, 1), (6, 0)]).unwrap();
        import(&mut large, &parts);
        assert_eq!(&large.cells()[..n], cells);
        // Keys under the second map are those of first positions; of the others none is ever read.
        let mut want = parts.clone();
        for keys in [1, 4] {
            (0..n).filter(|i| !kept.contains(i)).for_each(|i| want[keys][i * row..][..row].fill(0));
        }
        assert_eq!(export(&large), want);
        // Their values lie beside them.
        let plan = starts_plan();
        let starts = large.cells_under(plan.layer(0), PosMap::constant(0));
        for il in 0..2 {
            let values = large.start_values(il).unwrap();
            let mut rows = vec![0; starts.n_end() * row];
            values.store.read(values.index, 0, &mut rows).unwrap();
            let found: Vec<Vec<u8>> = rows.chunks_exact(row).map(<[u8]>::to_vec).collect();
            let of = |i: &usize| parts[3 * il + 2][i * row..][..row].to_vec();
            assert_eq!(found, kept.iter().map(of).collect::<Vec<_>>());
            assert_eq!(starts.all()[..kept.len()], kept.iter().map(|&i| cells[i]).collect::<Vec<_>>());
        }
        assert!(small.start_values(0).is_none());
        // More first positions than sequences can have: a file that was made up.
        let many = vec![Cell { pos: 0, seqs: 1 }; 513];
        assert!(large.import::<ggml::Error>(&many, |_| Ok(())).is_err() && large.n_free() == 1100);
        // A failed import leaves an empty cache, not half of one.
        let failed = small.import::<ggml::Error>(&cells, |_| Err(ggml::Error::Argument("short".into())));
        assert!(failed.is_err() && (small.n_free(), small.n_end()) == (600, 0));
    }
}
