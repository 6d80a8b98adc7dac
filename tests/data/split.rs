//! The held-out part: by document, seeded, no text on both sides.

use std::collections::HashSet;
use std::sync::Arc;

use proptest::prelude::*;
use ropewalk::data::{Corpus, Dataset, DatasetParams, HeldOut, Packing};

use crate::world::{document, prose, refused, World};

/// So many texts of 1 to 40 lines, each a second time under another name when `twice`.
fn world(n: usize, twice: bool) -> World {
    let world = World::new();
    for i in 0..n {
        let text = prose(1 + (i * 7) % 40, 1000 + i as u64);
        world.put(&format!("{i:03}.txt"), text.as_bytes());
        if twice {
            world.put(&format!("z{i:03}.txt"), text.as_bytes());
        }
    }
    world
}

fn split(corpus: &Arc<Corpus>, params: DatasetParams) -> Result<Dataset, String> {
    Dataset::new(Arc::clone(corpus), &params).map_err(|e| e.to_string())
}

fn length(corpus: &Corpus, documents: &[u32]) -> u64 {
    documents.iter().map(|&d| corpus.range(d as usize)).map(|r| r.end - r.start).sum()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn every_document_is_on_one_side_and_no_text_on_both(
        n in 4usize..25,
        twice in any::<bool>(),
        long in any::<bool>(),
        n_ctx in 8usize..80,
        held_out in prop_oneof![
            (0.01f64..0.6).prop_map(HeldOut::Fraction),
            (1usize..6).prop_map(HeldOut::Samples),
        ],
        seed in any::<u64>(),
    ) {
        let corpus = world(n, twice).corpus();
        let packing = if long { Packing::Long } else { Packing::Pack };
        let params = DatasetParams::new(n_ctx).packing(packing).held_out(held_out).seed(seed);
        let Ok(data) = split(&corpus, params) else {
            // Small worlds may have too little; larger ones with small demands may not.
            prop_assert!(n < 12 || n_ctx > 40);
            return Ok(());
        };
        let (train, held) = (data.train_documents(), data.held_out_documents());
        let mut all: Vec<u32> = [train, held].concat();
        all.sort_unstable();
        prop_assert_eq!(all, (0..corpus.n_documents() as u32).collect::<Vec<_>>());
        let texts = |d: &[u32]| d.iter().map(|&d| corpus.text_hash(d as usize)).collect::<HashSet<_>>();
        prop_assert!(texts(train).is_disjoint(&texts(held)));
        prop_assert!(data.n_train() >= 1 && data.n_held_out() >= 1);
        if let HeldOut::Samples(n) = held_out {
            prop_assert_eq!(data.n_held_out(), n);
        }
        for i in 0..data.n_held_out() {
            let sample = data.held_out(i).unwrap();
            prop_assert_eq!(sample.tokens.len(), n_ctx + 1);
        }
        let again = split(&corpus, params).unwrap();
        prop_assert_eq!(again.held_out_documents(), held);
    }
}

#[test]
fn a_fraction_is_about_that_much() {
    let corpus = world(80, false).corpus();
    for fraction in [0.1, 0.25, 0.5] {
        let params = DatasetParams::new(64).held_out(HeldOut::Fraction(fraction));
        let held = length(&corpus, split(&corpus, params).unwrap().held_out_documents());
        let part = held as f64 / corpus.n_tokens() as f64;
        assert!(part <= fraction && part > fraction - 0.03, "{part} of {fraction}");
    }
}

#[test]
fn the_seed_chooses() {
    let corpus = world(40, false).corpus();
    let held = |seed| {
        let params = DatasetParams::new(64).held_out(HeldOut::Fraction(0.2)).seed(seed);
        split(&corpus, params).unwrap().held_out_documents().iter().copied().collect::<HashSet<_>>()
    };
    assert_ne!(held(1), held(2));
}

/// The end of a single text becomes a document, with all its tokens in one of the two.
#[test]
fn a_single_text_is_cut_by_position() {
    let one = World::of(&[("one.txt", &prose(200, 4))]);
    let mut corpus = one.open().unwrap();
    let (whole, n) = (document(&corpus, 0), corpus.n_tokens());
    assert!(corpus.cut_tail(Some(130)) && corpus.n_documents() == 2);
    let (train, held) = (document(&corpus, 0), document(&corpus, 1));
    assert_eq!((held.len(), [train, held].concat()), (130, whole));
    assert_ne!(corpus.text_hash(0), corpus.text_hash(1));
    assert_eq!(corpus.name(1), corpus.name(0));
    let params = DatasetParams::new(64).held_out(HeldOut::Samples(2));
    let data = split(&Arc::new(corpus), params).unwrap();
    assert_eq!((data.held_out_documents(), data.train_documents().len()), (&[1][..], 1));
    let mut corpus = one.open().unwrap();
    assert!(![None, Some(0), Some(n), Some(n + 1)].into_iter().any(|tail| corpus.cut_tail(tail)));
    let mut two = world(2, false).open().unwrap();
    assert!(!two.cut_tail(Some(3)) && two.n_documents() == 2);
}

#[test]
fn what_cannot_be_split_is_an_error() {
    let world = World::of(&[("one.txt", &prose(200, 4)), ("same.txt", &prose(200, 4))]);
    let corpus = world.corpus();
    let of = |held_out| DatasetParams::new(64).held_out(held_out);
    for held_out in [HeldOut::Fraction(0.1), HeldOut::Samples(1)] {
        let e = split(&corpus, of(held_out)).unwrap_err();
        assert!(e.contains("1 different texts") && e.contains("each text on one side"), "{e}");
    }
    assert!(split(&corpus, of(HeldOut::None)).is_ok());
    for fraction in [0.0, 1.0, -0.1, f64::NAN, f64::INFINITY] {
        let e = refused(Dataset::new(Arc::clone(&corpus), &of(HeldOut::Fraction(fraction))));
        assert!(e.contains("expected a fraction between 0 and 1"), "{e}");
    }
    for n in [0, usize::MAX] {
        refused(Dataset::new(Arc::clone(&corpus), &of(HeldOut::Samples(n))));
    }
}
