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

/// First positions that no sequences could have, as in a file that was made up.
#[test]
fn more_first_positions_than_sequences_have_are_refused() {
    // 64 sequences of five need two blocks of cells.
    const MOST: usize = 2 * CELL_BLOCK;
    let plan = Plan::new(&"lm-infinite:window=64,global=5".parse().unwrap(), &model(), 4096).unwrap();
    let mut cache = KvCache::new(Device::find("cpu").unwrap(), &model(), &plan, 1100, DType::F16).unwrap();
    let many = [Cell { pos: 0, seqs: 1 }; MOST + 1];
    assert!(cache.import::<ggml::Error>(&many, |_| Ok(())).is_err() && cache.n_free() == 1100);
    assert!(cache.allocate(&[(0, 0); MOST + 1]).is_none() && cache.n_free() == 1100);
    assert!(cache.allocate(&[(0, 0); MOST]).is_some());
}
