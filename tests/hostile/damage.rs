//! Damaged bytes: cut short, flipped, overwritten with numbers that overflow.

use std::sync::OnceLock;

use gguf::File;
use proptest::prelude::*;

use crate::{common, peak_memory, small_model, survives};

/// A model and its keys cost this little; nothing in a file of 100 kB may ask for more.
const BOUND: u64 = 1 << 30;

/// The bytes to damage, and where tensor data begins.
fn model() -> &'static (Vec<u8>, usize) {
    static BYTES: OnceLock<(Vec<u8>, usize)> = OnceLock::new();
    BYTES.get_or_init(|| {
        let file = File::open(small_model()).unwrap();
        let start = file.tensors().iter().map(|t| t.offset).min().unwrap();
        (std::fs::read(small_model()).unwrap(), start)
    })
}

#[test]
fn the_model_is_sound_before_it_is_damaged() {
    assert_eq!(survives(small_model()), None);
}

#[test]
fn cut_anywhere_it_is_refused() {
    let (bytes, start) = model();
    let path = common::scratch("hostile-cut.gguf");
    let cuts = (0..64).chain((64..*start).step_by(211)).chain([*start, bytes.len() / 2, bytes.len() - 32]);
    for n in cuts {
        std::fs::write(&path, &bytes[..n]).unwrap();
        let e = survives(&path).unwrap_or_else(|| panic!("{n} bytes of {} are taken", bytes.len()));
        assert!(e.contains("hostile-cut.gguf"), "{n}: {e}");
    }
}

fn nasty() -> impl Strategy<Value = u64> {
    prop_oneof![Just(0), Just(u64::MAX), (0u32..64).prop_map(|s| 1 << s), 0u64..1024, any::<u64>()]
}

/// The keys of the tokenizer fill most of the header: half of the damage goes to the first and the last of it.
fn place() -> impl Strategy<Value = (u8, prop::sample::Index)> {
    (0u8..4, any::<prop::sample::Index>())
}

fn at((region, index): (u8, prop::sample::Index), len: usize, start: usize) -> usize {
    match region {
        0 => index.index(1200),
        1 => start - 1 - index.index(1600),
        2 => index.index(start),
        _ => index.index(len),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn bytes_at_random(
        flips in prop::collection::vec((place(), 0u8..8), 0..3),
        bytes_set in prop::collection::vec((place(), any::<u8>()), 0..2),
        words in prop::collection::vec((place(), nasty(), any::<bool>()), 0..2),
        cut in prop::option::weighted(0.05, place()),
    ) {
        let (good, start) = model();
        let mut bytes = good.clone();
        let len = bytes.len();
        for (p, bit) in flips {
            bytes[at(p, len, *start)] ^= 1 << bit;
        }
        for (p, byte) in bytes_set {
            bytes[at(p, len, *start)] = byte;
        }
        for (p, word, long) in words {
            let p = at(p, len, *start);
            let n = (if long { 8 } else { 4 }).min(len - p);
            bytes[p..p + n].copy_from_slice(&word.to_le_bytes()[..n]);
        }
        if let Some(p) = cut {
            bytes.truncate(at(p, len, *start));
        }
        let path = common::scratch("hostile-damage.gguf");
        std::fs::write(&path, bytes).unwrap();
        let before = peak_memory();
        survives(&path);
        prop_assert!(peak_memory().saturating_sub(before) < BOUND, "memory rose from {before} to {}", peak_memory());
    }
}
