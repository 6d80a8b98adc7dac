//! Samples: every token once, starts of documents kept, the same for ever.

use std::collections::{BTreeMap, HashSet};
use std::str::FromStr;
use std::sync::Arc;

use proptest::prelude::*;
use rand_chacha::rand_core::RngCore;
use ropewalk::data::{
    ChaCha8Rng, Corpus, Dataset, DatasetParams, HeldOut, Packing, Result, Sample, Transform,
};
use ropewalk::Token;

use crate::world::{document, prose, refused, World};

fn world(lengths: &[usize]) -> World {
    let world = World::new();
    for (i, n) in lengths.iter().enumerate() {
        // Each text is another one.
        let text: String = prose(n / 8 + 1, i as u64 * 77 + 5).chars().take(*n).collect();
        world.put(&format!("{i:04}.txt"), format!("{i}:{text}").as_bytes());
    }
    world
}

fn dataset(corpus: &Arc<Corpus>, params: DatasetParams) -> Dataset {
    Dataset::new(Arc::clone(corpus), &params).unwrap_or_else(|e| panic!("{e}"))
}

fn epoch(data: &Dataset, epoch: u64) -> Vec<Sample> {
    (0..data.n_train()).map(|i| data.train(epoch, i).unwrap()).collect()
}

fn sorted(samples: &[Sample]) -> Vec<&Vec<Token>> {
    let mut tokens: Vec<_> = samples.iter().map(|s| &s.tokens).collect();
    tokens.sort();
    tokens
}

#[track_caller]
fn check_shape(sample: &Sample, n_ctx: usize) {
    assert_eq!(sample.tokens.len(), n_ctx + 1);
    assert_eq!((sample.inputs().len(), sample.targets().len()), (n_ctx, n_ctx));
    assert_eq!(sample.weights, vec![1.0; n_ctx]);
    assert!(sample.segment_starts.windows(2).all(|w| w[0] < w[1]), "{:?}", sample.segment_starts);
    assert!(sample.segment_starts.iter().all(|&s| s as usize <= n_ctx), "{:?}", sample.segment_starts);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Samples put back together, by the one token that two neighbors share, are the documents in the order the data set
    /// says, up to a tail shorter than a sample; starts are where documents start.
    #[test]
    fn packed_samples_are_the_documents(
        lengths in proptest::collection::vec(1usize..400, 1..12),
        n_ctx in 1usize..150,
        seed in any::<u64>(),
    ) {
        let world = world(&lengths);
        let corpus = world.corpus();
        prop_assume!(corpus.n_tokens() > n_ctx as u64);
        let data = dataset(&corpus, DatasetParams::new(n_ctx).seed(seed));
        let samples = epoch(&data, 3);
        samples.iter().for_each(|s| check_shape(s, n_ctx));

        let (mut joined, mut starts) = (Vec::new(), HashSet::new());
        for &d in data.train_documents() {
            starts.insert(joined.len());
            joined.extend(document(&corpus, d as usize));
        }
        let mut all: Vec<u32> = data.train_documents().to_vec();
        all.sort_unstable();
        prop_assert_eq!(all, (0..corpus.n_documents() as u32).collect::<Vec<_>>());
        prop_assert_eq!(samples.len(), (joined.len() - 1) / n_ctx);
        let mut expected: Vec<(&[Token], Vec<u32>)> = (0..samples.len())
            .map(|i| {
                let from = i * n_ctx;
                let inside = (0..=n_ctx as u32).filter(|j| starts.contains(&(from + *j as usize)));
                (&joined[from..=from + n_ctx], inside.collect())
            })
            .collect();
        let mut found: Vec<(&[Token], Vec<u32>)> =
            samples.iter().map(|s| (s.tokens.as_slice(), s.segment_starts.clone())).collect();
        expected.sort();
        found.sort();
        prop_assert_eq!(found, expected);
    }

    #[test]
    fn long_samples_are_windows_of_one_document(
        lengths in proptest::collection::vec(1usize..400, 1..12),
        n_ctx in 1usize..150,
        seed in any::<u64>(),
    ) {
        let world = world(&lengths);
        let corpus = world.corpus();
        let documents: Vec<_> = (0..corpus.n_documents()).map(|i| document(&corpus, i)).collect();
        prop_assume!(documents.iter().any(|d| d.len() > n_ctx));
        let params = DatasetParams::new(n_ctx).seed(seed).packing(Packing::Long);
        let data = dataset(&corpus, params);
        let samples = epoch(&data, 0);
        samples.iter().for_each(|s| check_shape(s, n_ctx));
        let windows = documents.iter().flat_map(|d| {
            let n = (d.len() - 1) / n_ctx;
            (0..n).map(move |w| (d[w * n_ctx..=(w + 1) * n_ctx].to_vec(), if w == 0 { vec![0] } else { vec![] }))
        });
        let mut expected: Vec<(Vec<Token>, Vec<u32>)> = windows.collect();
        let mut found: Vec<_> = samples.iter().map(|s| (s.tokens.clone(), s.segment_starts.clone())).collect();
        expected.sort();
        found.sort();
        prop_assert_eq!(found, expected);
    }
}

#[test]
fn epochs_are_orders_of_the_same_samples() {
    let world = world(&[500, 900, 40, 333]);
    let data = dataset(&world.corpus(), DatasetParams::new(32).seed(5));
    let (first, second) = (epoch(&data, 0), epoch(&data, 1));
    assert!(first.len() > 40);
    assert_ne!(first, second);
    assert_eq!(sorted(&first), sorted(&second));
    // In any order, from another data set: nothing but the numbers counts.
    let other = dataset(&world.corpus(), DatasetParams::new(32).seed(5));
    for i in [7, 3, 7, 0] {
        assert_eq!(other.train(1, i).unwrap(), second[i]);
        assert_eq!(other.train(0, i).unwrap(), first[i]);
        assert_eq!(other.nth((first.len() + i) as u64).unwrap(), second[i]);
    }
    let another = dataset(&world.corpus(), DatasetParams::new(32).seed(6));
    assert_ne!(epoch(&another, 0), first);
}

#[test]
fn the_order_is_the_same_on_every_machine() {
    let world = World::of(&[("a.txt", "abcdefghijklmnopqrstuvwxyz"), ("b.txt", "0123456789")]);
    let data = dataset(&world.corpus(), DatasetParams::new(4).seed(1));
    let text = |s: &Sample| crate::world::vocab().detokenize(&s.tokens, false).unwrap();
    let texts: Vec<String> = epoch(&data, 0).iter().map(text).collect();
    assert_eq!(texts, ["89ab", "rstuv", "45678", "jklmn", "vwxyz", "bcdef", "01234", "fghij", "nopqr"]);
}

#[test]
fn what_is_asked_for_beyond_the_end_is_an_error() {
    let world = world(&[200]);
    let data = dataset(&world.corpus(), DatasetParams::new(16));
    assert!(refused(data.train(0, data.n_train())).contains("sample"));
    assert!(refused(data.held_out(0)).contains("held-out sample 0 of 0"));
    data.train(u64::MAX, 0).unwrap();
    data.nth(u64::MAX).unwrap();
}

#[test]
fn too_little_text_is_an_error_that_says_what_there_is() {
    let world = world(&[20, 40]);
    let corpus = world.corpus();
    let n = corpus.n_tokens();
    let try_it =
        |n_ctx, packing| Dataset::new(Arc::clone(&corpus), &DatasetParams::new(n_ctx).packing(packing));
    let e = refused(try_it(n as usize, Packing::Pack));
    let what = format!(
        "context {n} takes {} tokens, the texts have {n}, which allows a context of {} at most",
        n + 1,
        n - 1
    );
    assert!(e.contains(&what), "{e}");
    assert_eq!(try_it(n as usize - 1, Packing::Pack).unwrap().n_train(), 1);
    let longest = (0..2).map(|i| document(&corpus, i).len()).max().unwrap();
    let e = refused(try_it(longest, Packing::Long));
    assert!(e.contains(&format!("the longest text has {longest}")), "{e}");
    assert_eq!(try_it(longest - 1, Packing::Long).unwrap().n_train(), 1);
    for n_ctx in [0, usize::MAX, u32::MAX as usize] {
        refused(try_it(n_ctx, Packing::Pack));
        refused(try_it(n_ctx, Packing::Long));
    }
}

#[test]
fn packings_have_names() {
    for packing in [Packing::Pack, Packing::Long, Packing::Truncate, Packing::Records, Packing::Whole] {
        assert_eq!(Packing::from_str(&packing.to_string()).unwrap(), packing);
    }
    assert!(refused(Packing::from_str("best"))
        .contains("expected pack, long, truncate, records or whole, found 'best'"));
}

/// Turns inputs round, drops a random target.
#[derive(Debug)]
struct Turn;

impl Transform for Turn {
    fn apply(&self, mut sample: Sample, rng: &mut ChaCha8Rng) -> Result<Sample> {
        sample.tokens.reverse();
        let at = rng.next_u32() as usize % sample.weights.len();
        sample.weights[at] = 0.0;
        Ok(sample)
    }
}

#[derive(Debug)]
struct Spoil(fn(&mut Sample));

impl Transform for Spoil {
    fn apply(&self, mut sample: Sample, _: &mut ChaCha8Rng) -> Result<Sample> {
        self.0(&mut sample);
        Ok(sample)
    }
}

#[test]
fn transforms_change_what_is_trained_on_reproducibly_and_nothing_else() {
    let world = world(&[400, 400, 400, 400]);
    let params = DatasetParams::new(64).held_out(HeldOut::Samples(2));
    let plain = dataset(&world.corpus(), params);
    let turned = dataset(&world.corpus(), params).with_transform(Box::new(Turn)).unwrap();
    let mut dropped = BTreeMap::new();
    for i in 0..plain.n_train() {
        let (a, b) = (plain.train(0, i).unwrap(), turned.train(0, i).unwrap());
        assert!(a.tokens.iter().rev().eq(&b.tokens));
        assert_eq!(b, turned.train(0, i).unwrap());
        dropped.insert(i, b.weights.iter().position(|w| *w == 0.0));
    }
    assert!(dropped.values().collect::<HashSet<_>>().len() > 3, "every sample draws anew: {dropped:?}");
    assert_eq!(plain.held_out(0).unwrap(), turned.held_out(0).unwrap());
    let spoils: [fn(&mut Sample); 6] = [
        |s| s.tokens.truncate(3),
        |s| s.weights.truncate(3),
        |s| s.tokens[0] = -1,
        |s| s.tokens[0] = Token::MAX,
        |s| s.weights[0] = f32::NAN,
        |s| s.segment_starts = vec![3, 3],
    ];
    for spoil in spoils {
        let data = dataset(&world.corpus(), params).with_transform(Box::new(Spoil(spoil))).unwrap();
        assert!(refused(data.train(0, 0)).contains("a transform made a sample"));
    }
}
