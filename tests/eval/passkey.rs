//! Passkey retrieval of models that know, do not answer, or forget.

use std::path::Path;

use proptest::prelude::*;
use ropewalk::control::Control;
use ropewalk::eval::suite::{run, Params, Report, Unkept};
use ropewalk::tasks::find;
use ropewalk::Token;

use crate::fakes::{Fake, Tokenizer};

/// Reads the key from the prompt's information line, if it is there whole.
fn oracle(tokenizer: Tokenizer, prompt: &[Token]) -> String {
    let text = tokenizer.decode(prompt);
    let key = text.split_once("\nThe pass key is ").and_then(|(_, rest)| rest.split_once(". Remember it. "));
    key.map_or(" I do not know.".into(), |(key, _)| format!(" {key}. And so on"))
}

fn forgetful(tokenizer: Tokenizer, prompt: &[Token]) -> String {
    oracle(tokenizer, &prompt[prompt.len().saturating_sub(700)..])
}

fn params(lengths: &[usize], samples: usize, settings: &[(&str, &str)]) -> Params<'static> {
    let options = settings.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
    Params::new(lengths.to_vec(), Path::new("")).samples(Some(samples)).options(options)
}

fn measure(fake: &Fake, params: &Params<'_>) -> ropewalk::model::Result<Report> {
    run(fake, "m.gguf", find("passkey").unwrap()[0], params, &mut Unkept, &Control::default())
}

/// Right answers by length and depth.
fn counts(report: &Report) -> Vec<(usize, String, usize, usize)> {
    let of = |row: &ropewalk::eval::suite::Row| {
        let by = row.by.iter().map(|b| {
            let right = (b.score * b.samples as f64 / 100.0).round() as usize;
            (row.length.unwrap(), b.value.clone(), right, b.samples as usize)
        });
        by.collect::<Vec<_>>()
    };
    report.results.iter().flat_map(of).collect()
}

#[test]
fn one_who_knows_has_100_percent_and_one_who_is_mute_none() {
    for scoring in ["number", "tokens"] {
        for sizing in ["yarn", "longlora"] {
            for tokenizer in [Tokenizer::Bytes, Tokenizer::Words] {
                let settings = [("depth", "random/start/1"), ("scoring", scoring), ("sizing", sizing)];
                let p = params(&[600, 1500], 5, &settings);
                let expect = |right| -> Vec<_> {
                    let at = |l| ["random", "start", "1"].map(|d| (l, d.to_owned(), right, 5));
                    [600, 1500].into_iter().flat_map(at).collect()
                };
                let knows = Fake { tokenizer, add_bos: true, ..Fake::with_answer(oracle) };
                let report = measure(&knows, &p).unwrap();
                assert_eq!(counts(&report), expect(5));
                assert!(report.results.iter().all(|r| r.accuracy == Some(1.0) && r.ci_high == 100.0));
                let report = measure(&Fake { tokenizer, ..Fake::new() }, &p).unwrap();
                assert_eq!(counts(&report), expect(0));
                assert!(report.results.iter().all(|r| r.accuracy == Some(0.0) && r.ci_low == 0.0));
            }
        }
    }
}

#[test]
fn one_who_forgets_finds_what_is_near() {
    let report =
        measure(&Fake::with_answer(forgetful), &params(&[600, 2000], 4, &[("depth", "0/1")])).unwrap();
    let at = |length, depth: &str, right| (length, depth.to_owned(), right, 4);
    assert_eq!(counts(&report), [at(600, "0", 4), at(600, "1", 4), at(2000, "0", 0), at(2000, "1", 4)]);
    assert_eq!(report.results[1].records[0].answer.as_deref(), Some(" I do not "));
}

#[test]
fn longlora_sizes_by_characters_and_opens_what_they_need() {
    let fake = Fake::with_answer(oracle);
    let row = measure(&fake, &params(&[1000], 2, &[("sizing", "longlora")])).unwrap().results.remove(0);
    // 3.75 * 1000 = 3750, of which 3 * 1024 are used.
    let most = row.records.iter().map(|r| r.prompt_tokens).max().unwrap();
    assert!(row.records.iter().all(|r| r.prompt_tokens > 3072 && r.prompt_tokens < 3072 + 400));
    assert_eq!((row.n_ctx, row.rope.clone()), (most + 10, format!("fake at {}", most + 10)));
    assert_eq!(fake.log.borrow().opened, [most + 10]);
    // Below 274 tokens nothing is left of 3.75 characters each: the frame alone, which fits.
    let fake = Fake { tokenizer: Tokenizer::Words, ..Fake::with_answer(oracle) };
    let row = measure(&fake, &params(&[273], 2, &[("sizing", "longlora")])).unwrap().results.remove(0);
    assert_eq!(row.n_ctx, 273);
}

#[test]
fn a_length_too_short_says_what_is_enough() {
    let fake = Fake::with_answer(oracle);
    let e = measure(&fake, &params(&[100], 1, &[])).unwrap_err().to_string();
    assert!(e.starts_with("passkey at 100 tokens: expected a length of at least "), "{e}");
    let least: usize = e.split("at least ").nth(1).unwrap().split(',').next().unwrap().parse().unwrap();
    assert!(measure(&fake, &params(&[least - 1], 1, &[])).is_err());
    assert_eq!(measure(&fake, &params(&[least], 1, &[])).unwrap().results[0].accuracy, Some(1.0));
    assert!(measure(&fake, &params(&[5], 1, &[])).is_err());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    /// The fake asserts on every call that prompt and answer fit the context.
    #[test]
    fn prompts_use_the_length_and_never_exceed_it(
        length in 400usize..3000, seed: u64, words: bool, five: bool, by_tokens: bool, add_bos: bool, at in 0.0..=1.0f64,
    ) {
        let fake = Fake {
            tokenizer: if words { Tokenizer::Words } else { Tokenizer::Bytes },
            add_bos,
            ..Fake::with_answer(oracle)
        };
        let (keys, scoring) = (if five { "five-digit" } else { "landmark" }, if by_tokens { "tokens" } else { "number" });
        let settings = [("depth", &*format!("random/{at}")), ("keys", keys), ("scoring", scoring)];
        let report = measure(&fake, &params(&[length], 3, &settings).seed(Some(seed))).unwrap();
        for (prompt, new) in fake.calls() {
            prop_assert!(prompt.len() + new <= length && prompt.len() + new + 150 > length, "{} of {length}", prompt.len());
        }
        prop_assert!(report.results.iter().all(|r| r.accuracy == Some(1.0) && r.n_ctx == length));
    }
}
