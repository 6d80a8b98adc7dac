//! The prompt, the draws, the sizes, and what answers are worth.

use std::collections::HashSet;
use std::path::Path;

use ropewalk_tasks::internals::passkey::{below, first_number, largest_fitting, Depth, Draw, Rules, PROBE};
use ropewalk_tasks::{Answer, Template};

use crate::testing::{setup, task, Simple};

fn rules(encoder: &Simple, seed: u64, length: usize) -> Rules<'_> {
    Rules { encoder, length, seed, by_tokens: false, five_digits: false }
}

#[test]
fn the_prompt_is_the_published_one() {
    let draw = Draw { key: 321, place: 0 };
    let expected =
        "There is an important info hidden inside a lot of irrelevant text. Find it and memorize them. \
         I will quiz you about the important information there.\n\
         The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again. The\n\
         The pass key is 321. Remember it. 321 is the pass key.\n\
         The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again. The \n\
         What is the pass key? The pass key is";
    assert_eq!(draw.prompt(187, Depth::At(0.5)), expected);
    let before = |prompt: String| {
        prompt.split("\nThe pass key is 321.").next().and_then(|p| p.split_once('\n')).unwrap().1.len()
    };
    for n in [0, 1, 89, 90, 91, 1000] {
        assert_eq!(before(draw.prompt(n, Depth::Start)), 0);
        assert_eq!(before(draw.prompt(n, Depth::At(1.0))), n);
        assert_eq!(draw.prompt(n, Depth::Random).len(), draw.prompt(0, Depth::Random).len() + n);
    }
}

#[test]
fn draws_follow_from_their_own_arguments() {
    let encoder = Simple::default();
    let draw = |seed, length, depth, sample| rules(&encoder, seed, length).draw(depth, sample);
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
    assert_eq!(draw(0, 1024, Depth::Random, 0).key, 3609);
    let draws: Vec<Draw> = (0..4000).map(|i| draw(0, 1024, Depth::Random, i)).collect();
    assert!(draws.iter().all(|d| (1..=50_000).contains(&d.key)));
    let mean = draws.iter().map(|d| f64::from(d.key)).sum::<f64>() / 4000.0;
    assert!((mean - 25_000.0).abs() < 1_200.0, "{mean}");
    let places: HashSet<u64> = draws.iter().map(|d| below(d.place, 4)).collect();
    assert_eq!(places, HashSet::from([0, 1, 2, 3]));
    let five = Rules { five_digits: true, ..rules(&encoder, 0, 1) };
    assert!((0..2000).all(|i| (10_000..=99_999).contains(&five.draw(Depth::Start, i).key)));
}

#[test]
fn bisection_finds_the_n_that_growing_by_128_finds() {
    let encoder = Simple::default();
    for depth in [Depth::Random, Depth::Start, Depth::At(0.3)] {
        let mut need = |n| PROBE.need(&rules(&encoder, 0, 0), n, depth);
        for budget in (0..1500).step_by(37) {
            let mut n = 0;
            while need(n + 128).unwrap() <= budget {
                n += 128;
            }
            let grown = (need(0).unwrap() <= budget).then_some(n);
            assert_eq!(largest_fitting(budget, &mut need).unwrap(), grown, "budget {budget}");
        }
    }
    assert!(largest_fitting(50, &mut |_| Ok(1)).unwrap_err().to_string().contains("cannot size"));
}

#[test]
fn almost_right_is_wrong() {
    let encoder = Simple::default();
    let score = |by_tokens, answer: &dyn Fn(u32) -> String| {
        let rules = Rules { by_tokens, ..rules(&encoder, 0, 700) };
        let sample = rules.sample(Depth::Start, 0, 1024, 700).unwrap();
        let key = rules.draw(Depth::Start, 0).key;
        (sample.judge)(&Answer::Text(answer(key)))[0]
    };
    for by_tokens in [false, true] {
        assert_eq!(score(by_tokens, &|key| format!(" {key}")), 1.0);
        assert_eq!(score(by_tokens, &|key| format!(" {}", key + 1)), 0.0);
        assert_eq!(score(by_tokens, &|key| format!(" {key}7")), 0.0);
    }
    assert_eq!(
        (score(false, &|key| format!("It is {key}.")), score(true, &|key| format!("It is {key}."))),
        (1.0, 0.0)
    );
    assert_eq!(first_number(" 042, or 17"), Some(42));
    assert_eq!(first_number("key:7."), Some(7));
    assert_eq!((first_number("seven"), first_number("99999999999999999999999")), (None, None));
}

#[test]
fn settings_that_cannot_be_are_refused() {
    for text in ["random", "start", "0", "0.25", "1"] {
        assert_eq!(text.parse::<Depth>().unwrap().to_string(), text);
    }
    assert_eq!("-0".parse::<Depth>().unwrap().to_string(), "0");
    let encoder = Simple::default();
    for (depth, found) in [("", ""), ("1.5", "1.5"), ("start/-0.1", "-0.1"), ("NaN", "NaN"), ("end", "end")] {
        let setup = setup(&encoder, Path::new(""), 700, &[("depth", depth)]);
        let e = task("passkey").samples(&setup).err().unwrap().to_string();
        assert_eq!(e, format!("depth: expected random, start or a number from 0 to 1, found {found:?}"));
    }
    let huge = setup(&encoder, Path::new(""), i32::MAX as usize, &[("sizing", "longlora")]);
    let e = task("passkey").samples(&huge).err().unwrap().to_string();
    assert!(e.starts_with("expected a length of at most 67108864 characters"), "{e}");
    let mut chat = setup(&encoder, Path::new(""), 700, &[("scoring", "tokens")]);
    chat.template = Template::Chat;
    assert!(task("passkey").samples(&chat).err().unwrap().to_string().contains("use scoring number"));
}
