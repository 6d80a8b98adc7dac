//! The tokenizer of the default model: texts survive it, special tokens are special.

use crate::fetched::{default_model, fetched};
use gguf::File;
use llama::vocab::Vocab;
use proptest::prelude::*;
use ropewalk_core::tokenizer::Tokenizer;

fn vocab() -> Vocab {
    Vocab::load(&File::open(&default_model()).unwrap()).unwrap()
}

#[test]
fn essays_round_trip() {
    let v = vocab();
    let text = std::fs::read_to_string(fetched("texts/essays.txt")).unwrap();
    let tokens = v.tokenize(&text, false, false).unwrap();
    assert!((100_000..400_000).contains(&tokens.len()), "{}", tokens.len());
    assert_eq!(v.detokenize(&tokens, false).unwrap(), text);
    let mut pieces = Vec::new();
    for &t in &tokens {
        pieces.extend(v.piece(t, false).unwrap());
    }
    assert_eq!(pieces, text.as_bytes());
    assert_eq!(v.tokenize(&text, true, false).unwrap(), tokens, "this model adds no BOS");
    let places = Tokenizer::places(&v, &text, &tokens).unwrap();
    assert!(places.windows(2).all(|p| p[0].end == p[1].start) && places.last().unwrap().end == text.len());
}

#[test]
fn special_tokens_are_read_only_when_asked() {
    let v = vocab();
    assert_eq!(v.n_tokens(), 49152);
    assert_eq!(
        (v.bos(), v.eos(), v.eot(), v.add_bos(), v.add_eos()),
        (Some(1), Some(2), Some(2), false, false)
    );
    assert_eq!(
        v.tokenize("<|im_start|>user\nHi<|im_end|>\n", false, true).unwrap(),
        [1, 4093, 198, 26843, 2, 198]
    );
    let plain = v.tokenize("<|im_start|>", false, false).unwrap();
    assert!(plain.len() > 3 && !plain.contains(&1));
    assert_eq!(v.piece(1, true).unwrap(), b"<|im_start|>");
    assert_eq!(v.piece(1, false).unwrap(), b"");
    assert!(v.is_eog(2) && v.is_eog(0) && !v.is_eog(1));
    assert_eq!(v.detokenize(&[1, 4093, 2], true).unwrap(), "<|im_start|>user<|im_end|>");
    assert_eq!(v.detokenize(&[1, 4093, 2], false).unwrap(), "user");
}

#[test]
fn threads_share_one_vocabulary() {
    let v = vocab();
    let expected = v.tokenize("The quick brown fox. ", false, false).unwrap();
    std::thread::scope(|s| {
        for _ in 0..4 {
            let (v, expected) = (v.clone(), &expected);
            s.spawn(move || {
                (0..200).for_each(|_| {
                    assert_eq!(&v.tokenize("The quick brown fox. ", false, false).unwrap(), expected)
                })
            });
        }
    });
}

#[test]
fn random_unicode_round_trips() {
    let v = vocab();
    let mut known = [false; 256];
    for t in 0..v.n_tokens() as i32 {
        if let [b] = v.piece(t, false).unwrap()[..] {
            known[b as usize] = true;
        }
    }
    // Six control characters, and the first bytes of planes in which nothing is assigned; the rest is never
    // in UTF-8.
    let missing: Vec<u8> = (0..=0xF4).filter(|&b| !known[b as usize]).collect();
    assert_eq!(missing, [4, 6, 0x13, 0x14, 0x16, 0x1d, 0xc0, 0xc1, 0xf1, 0xf2]);
    let known = move |c: &char| c.encode_utf8(&mut [0; 4]).bytes().all(|b| known[b as usize]);
    let any = prop::collection::vec(any::<char>().prop_filter("has tokens", known), 0..300)
        .prop_map(String::from_iter);
    let wordy = "[ \\t\\r\\na-zA-Z0-9'.,!é日<|>_]{0,400}";
    let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig {
        cases: 200,
        failure_persistence: None,
        ..Default::default()
    });
    runner
        .run(&(any, wordy), |(a, b)| {
            for text in [&a, &b] {
                let tokens = v.tokenize(text, false, false).unwrap();
                prop_assert!(tokens.iter().all(|&t| (0..49152).contains(&t)));
                prop_assert_eq!(&v.detokenize(&tokens, true).unwrap(), text);
            }
            Ok(())
        })
        .unwrap();
}
