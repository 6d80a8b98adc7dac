//! Passkey on models that know, do not answer, or forget.

use std::collections::HashSet;
use std::sync::Mutex;

use proptest::prelude::*;
use ropewalk::control::{Control, Progress, Stop};
use ropewalk::eval::passkey::{
    by_name, first_number, largest_fitting, run, Depth, Draw, KeyRange, Params, Report, Scoring, Sizing,
    KEY_RANGES, SCORINGS, SIZINGS,
};
use ropewalk::eval::stats::{interval, interval_of_differences, perplexity_interval, wilson};
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

fn measure(fake: &Fake, params: &Params) -> Report {
    run(fake, "m.gguf", params, &Control::default()).unwrap()
}

fn counts(report: &Report) -> Vec<(usize, &str, usize, usize)> {
    report.results.iter().map(|r| (r.length, r.depth.as_str(), r.correct, r.samples)).collect()
}

#[test]
fn the_prompt_is_the_published_one() {
    let draw = Draw::new(1, 512, Depth::At(0.5), 0, KeyRange::Landmark);
    let prompt = draw.prompt(187, Depth::At(0.5));
    let expected = format!(
        "There is an important info hidden inside a lot of irrelevant text. Find it and memorize them. \
         I will quiz you about the important information there.\n\
         The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again. The\n\
         The pass key is {key}. Remember it. {key} is the pass key.\n\
         The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again. The \n\
         What is the pass key? The pass key is",
        key = draw.key
    );
    assert_eq!((prompt.text, prompt.n_prefix, prompt.key), (expected, 93, draw.key));
    for n in [0, 1, 89, 90, 91, 1000] {
        assert_eq!(draw.prompt(n, Depth::Start).n_prefix, 0);
        assert_eq!(draw.prompt(n, Depth::At(1.0)).n_prefix, n);
        assert_eq!(draw.prompt(n, Depth::Random).text.len(), draw.prompt(0, Depth::Random).text.len() + n);
    }
}

#[test]
fn draws_follow_from_their_own_arguments() {
    let draw = |seed, length, depth, sample| Draw::new(seed, length, depth, sample, KeyRange::Landmark);
    let base = draw(7, 1024, Depth::Random, 3);
    assert_eq!(base, draw(7, 1024, Depth::Random, 3));
    let others = [
        draw(8, 1024, Depth::Random, 3),
        draw(7, 1025, Depth::Random, 3),
        draw(7, 1024, Depth::At(0.5), 3),
        draw(7, 1024, Depth::Random, 4),
    ];
    assert!(others.iter().all(|d| *d != base));
    // Fixed for good: published runs must stay reproducible.
    assert_eq!(draw(0, 1024, Depth::Random, 0).key, FIRST_KEY);
    let draws: Vec<Draw> = (0..4000).map(|i| draw(0, 1024, Depth::Random, i)).collect();
    assert!(draws.iter().all(|d| (1..=50_000).contains(&d.key)));
    let mean = draws.iter().map(|d| f64::from(d.key)).sum::<f64>() / 4000.0;
    assert!((mean - 25_000.0).abs() < 1_200.0, "{mean}");
    let prefixes: HashSet<usize> = draws.iter().map(|d| d.prompt(3, Depth::Random).n_prefix).collect();
    assert_eq!(prefixes, HashSet::from([0, 1, 2, 3]));
    let five = (0..2000).map(|i| Draw::new(0, 1, Depth::Start, i, KeyRange::FiveDigit).key);
    assert!(five.into_iter().all(|key| (10_000..=99_999).contains(&key)));
}

const FIRST_KEY: u32 = 3609;

#[test]
fn bisection_finds_the_n_that_growing_by_128_finds() {
    for tokenizer in [Tokenizer::Bytes, Tokenizer::Words] {
        for (sample, depth) in [(0, Depth::Random), (1, Depth::Start), (2, Depth::At(0.3))] {
            let draw = Draw::new(0, 0, depth, sample, KeyRange::Landmark);
            let mut count = |n| Ok(tokenizer.encode(&draw.prompt(n, depth).text).len());
            for budget in (0..2500).step_by(37) {
                let mut n = 0;
                while count(n + 128).unwrap() <= budget {
                    n += 128;
                }
                let grown = (count(0).unwrap() <= budget).then_some(n);
                assert_eq!(largest_fitting(budget, &mut count).unwrap(), grown, "budget {budget}");
            }
        }
    }
    assert!(largest_fitting(50, &mut |_| Ok(1)).unwrap_err().to_string().contains("cannot size"));
}

#[test]
fn one_who_knows_has_100_percent_and_one_who_is_mute_none() {
    for (name, scoring) in SCORINGS {
        for (_, sizing) in SIZINGS {
            for tokenizer in [Tokenizer::Bytes, Tokenizer::Words] {
                let p = Params {
                    depths: vec![Depth::Random, Depth::Start, Depth::At(1.0)],
                    samples: 5,
                    scoring: *scoring,
                    sizing: *sizing,
                    ..Params::new(vec![600, 1500])
                };
                let report = measure(&Fake { tokenizer, add_bos: true, ..Fake::with_answer(oracle) }, &p);
                let expect = |correct| {
                    [600, 1500]
                        .into_iter()
                        .flat_map(move |l| ["random", "start", "1"].map(|d| (l, d, correct, 5)))
                };
                assert_eq!(counts(&report), expect(5).collect::<Vec<_>>());
                assert_eq!(report.scoring, *name);
                assert!(report
                    .results
                    .iter()
                    .all(|r| r.accuracy == 1.0 && r.ci_high == 1.0 && !r.interrupted));
                let report = measure(&Fake { tokenizer, ..Fake::new() }, &p);
                assert_eq!(counts(&report), expect(0).collect::<Vec<_>>());
                assert!(report.results.iter().all(|r| r.accuracy == 0.0 && r.ci_low == 0.0));
            }
        }
    }
}

#[test]
fn one_who_forgets_finds_what_is_near() {
    let p =
        Params { depths: vec![Depth::At(0.0), Depth::At(1.0)], samples: 4, ..Params::new(vec![600, 2000]) };
    let report = measure(&Fake::with_answer(forgetful), &p);
    assert_eq!(counts(&report), [(600, "0", 4, 4), (600, "1", 4, 4), (2000, "0", 0, 4), (2000, "1", 4, 4)]);
    assert_eq!(report.results[2].cases[0].answer, " I do not ");
}

#[test]
fn almost_right_is_wrong() {
    let off_by_one = |t: Tokenizer, prompt: &[Token]| {
        let key: u32 = oracle(t, prompt).trim_start().split('.').next().unwrap().parse().unwrap();
        format!(" {}", key + 1)
    };
    let longer = |t: Tokenizer, prompt: &[Token]| oracle(t, prompt).replace('.', "7");
    for scoring in [Scoring::Number, Scoring::Tokens] {
        let p = Params { scoring, samples: 5, ..Params::new(vec![700]) };
        assert_eq!(measure(&Fake::with_answer(off_by_one), &p).results[0].correct, 0);
        // LongLoRA's rule only looks at as many tokens as the key has.
        let expected = if scoring == Scoring::Tokens { 5 } else { 0 };
        assert_eq!(measure(&Fake::with_answer(longer), &p).results[0].correct, expected);
    }
    assert_eq!(first_number(" 042, or 17"), Some(42));
    assert_eq!(first_number("key:7."), Some(7));
    assert_eq!(first_number("seven"), None);
    assert_eq!(first_number("99999999999999999999999"), None);
}

#[test]
fn longlora_sizes_by_characters_and_opens_what_they_need() {
    let fake = Fake::with_answer(oracle);
    let p = Params { sizing: Sizing::Longlora, samples: 2, ..Params::new(vec![1000]) };
    let report = measure(&fake, &p);
    let row = &report.results[0];
    // 3.75 * 1000 = 3750, of which 3 * 1024 are used.
    assert!(row.cases.iter().all(|c| c.garbage == 3072 && c.tokens > 3072));
    let most = row.cases.iter().map(|c| c.tokens).max().unwrap();
    assert_eq!(
        (row.n_ctx, row.length, row.rope.clone()),
        (most + 10, 1000, format!("fake at {}", most + 10))
    );
    assert_eq!(fake.log.borrow().opened, [1000, most + 10]);
    // Below 274 tokens nothing is left of 3.75 characters each: the frame alone, which fits.
    let fake = Fake { tokenizer: Tokenizer::Words, ..Fake::with_answer(oracle) };
    let row = measure(&fake, &Params { lengths: vec![273], ..p }).results.remove(0);
    assert_eq!((row.cases[0].garbage, row.n_ctx), (0, 273));
    assert_eq!(fake.log.borrow().opened, [273]);
}

#[test]
fn a_length_too_short_says_what_is_enough() {
    let fake = Fake::with_answer(oracle);
    let p = |length| Params { samples: 1, ..Params::new(vec![length]) };
    let e = run(&fake, "m", &p(100), &Control::default()).unwrap_err().to_string();
    let least: usize = e.rsplit(' ').next().unwrap().parse().unwrap();
    assert!(e.starts_with("passkey: length 100 is too short: the prompt without garbage is "), "{e}");
    assert!(run(&fake, "m", &p(least - 1), &Control::default()).is_err());
    assert_eq!(measure(&fake, &p(least)).results[0].cases[0].garbage, 0);
    assert!(run(&fake, "m", &p(5), &Control::default()).is_err());
    assert!(run(&fake, "m", &Params { samples: 0, ..p(500) }, &Control::default()).is_err());
}

#[test]
fn stopping_returns_what_is_done() {
    let p = Params { samples: 4, depths: vec![Depth::Start, Depth::At(0.5)], ..Params::new(vec![500, 600]) };
    let (stop, seen) = (Stop::default(), Mutex::new(Vec::new()));
    let progress = |p: &Progress<'_>| {
        let mut seen = seen.lock().unwrap();
        seen.push((p.what.to_string(), p.done, p.total));
        if seen.len() == 6 {
            stop.request();
        }
    };
    let control = Control::default().with_stop(&stop).with_progress(&progress);
    let report = run(&Fake::with_answer(oracle), "m", &p, &control).unwrap();
    assert!(report.interrupted);
    assert_eq!(counts(&report), [(500, "start", 4, 4), (500, "0.5", 2, 2)]);
    assert!(report.results[1].interrupted && report.results[1].samples_planned == 4);
    assert!(report.text().contains("interrupted"));
    let seen = seen.into_inner().unwrap();
    assert_eq!(seen[5].0, "length 500 sample 2/4 accuracy 100 %");
    assert!(seen.iter().all(|(_, done, total)| done <= total));

    let fake = Fake { interrupt_at: Some(8), ..Fake::with_answer(oracle) };
    let stopped = measure(&fake, &p);
    assert!(stopped.interrupted && stopped.results.len() == 2 && !stopped.results[1].interrupted);
    // What was measured before the stop is what a whole run measures, in whatever order.
    let reversed = Params { lengths: vec![600, 500], depths: vec![Depth::At(0.5), Depth::Start], ..p };
    let whole = measure(&Fake::with_answer(oracle), &reversed);
    assert_eq!(
        (&whole.results[3].cases, &whole.results[2].cases),
        (&stopped.results[0].cases, &stopped.results[1].cases)
    );
}

#[test]
fn names_parse_and_print() {
    for text in ["random", "start", "0", "0.25", "1"] {
        assert_eq!(text.parse::<Depth>().unwrap().to_string(), text);
    }
    for text in ["", "1.5", "-0.1", "NaN", "end"] {
        let e = text.parse::<Depth>().unwrap_err().to_string();
        assert_eq!(e, format!("depth: expected random, start or a number from 0 to 1, found {text:?}"));
    }
    assert_eq!("-0".parse::<Depth>().unwrap().to_string(), "0");
    assert_eq!(by_name("keys", "five-digit", KEY_RANGES).unwrap(), KeyRange::FiveDigit);
    let e = by_name("sizing", "x", SIZINGS).unwrap_err().to_string();
    assert_eq!(e, "sizing: expected one of yarn, longlora, found \"x\"");
}

#[test]
fn the_interval_is_wilsons() {
    let near = |(a, b): (f64, f64), (c, d): (f64, f64)| (a - c).abs() < 5e-5 && (b - d).abs() < 5e-5;
    assert!(near(wilson(0, 20), (0.0, 0.16113)));
    assert!(near(wilson(10, 20), (0.29930, 0.70070)));
    assert!(near(wilson(19, 20), (0.76387, 0.99113)));
    assert!(near(wilson(20, 20), (0.83887, 1.0)));
    assert_eq!(wilson(0, 0), (0.0, 1.0));
    assert_eq!(interval(&[1.0, 0.0, 1.0]), ("wilson", wilson(2, 3)));
    // One score says little, whatever it is; of many their spread says more than the rate.
    let (how, (low, high)) = interval(&[0.75]);
    assert!(how == "wilson" && low < 0.2 && high > 0.97, "{low} {high}");
    let (how, (low, high)) = interval(&[0.7, 0.8].repeat(20));
    assert!(how == "bootstrap" && low > 0.7 && high < 0.8 && low < 0.75 && high > 0.75, "{low} {high}");
    assert_eq!(interval(&[0.5; 40]).0, "wilson");
    assert_eq!(interval_of_differences(&[0.0; 40]), (0.0, 0.0));
    let (low, high) = interval_of_differences(&[0.0]);
    assert!(low < -0.5 && high > 0.5);
}

#[test]
fn the_json_keeps_its_keys() {
    let report = measure(&Fake::with_answer(oracle), &Params { samples: 2, ..Params::new(vec![500]) });
    let json = serde_json::to_value(&report).unwrap();
    assert_eq!((json["model"].as_str(), json["rope"].as_str()), (Some("m.gguf"), Some("fake at 500")));
    for key in ["length", "accuracy", "samples", "tokens", "correct", "ci_low", "ci_high"] {
        assert!(json["results"][0][key].is_number(), "{key}: {json}");
    }
    assert_eq!(json["results"][0]["depth"], "random");
    assert!(report.text().contains("|    500 | random |      100.0 |     2/2 |"), "{}", report.text());
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
        let p = Params {
            depths: vec![Depth::Random, Depth::At(at)],
            samples: 3,
            seed,
            keys: if five { KeyRange::FiveDigit } else { KeyRange::Landmark },
            scoring: if by_tokens { Scoring::Tokens } else { Scoring::Number },
            ..Params::new(vec![length])
        };
        let report = measure(&fake, &p);
        for (prompt, new) in fake.calls() {
            prop_assert!(prompt.len() + new <= length && prompt.len() + new + 150 > length, "{} of {length}", prompt.len());
        }
        prop_assert!(report.results.iter().all(|r| r.correct == 3 && r.n_ctx == length));
    }
}

#[test]
fn intervals_of_perplexities_are_those_of_their_logarithms() {
    let (low, high) = perplexity_interval(20.0, 2.0).unwrap();
    let around = [20f64.ln() - 0.196, 20f64.ln() + 0.196].map(f64::exp);
    assert!((low - around[0]).abs() < 1e-12 && (high - around[1]).abs() < 1e-12, "{low} {high}");
    // Three key tokens of LongPPL: 1.96 standard errors to the left of the perplexity itself is -0.04.
    let (low, high) = perplexity_interval(2.63, 1.364).unwrap();
    assert!(low == 1.0 && (7.2..7.3).contains(&high), "{low} {high}");
    assert_eq!(perplexity_interval(5.0, 0.0), Some((5.0, 5.0)));
    assert_eq!(perplexity_interval(2.0, f64::MAX), None);
}
