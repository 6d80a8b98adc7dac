//! Parts of the scheduler that stand alone: this test program compiles their files for itself.

#[path = "../../../../src/scheduler/budget.rs"]
mod budget;
#[path = "../../../../src/scheduler/past.rs"]
mod past;
#[path = "../../../../src/scheduler/scores.rs"]
mod scores;
mod request {
    pub(super) use ropewalk::scheduler::Recomputed;
}

use std::time::Duration;

use ropewalk::session::Scored;
use ropewalk::Token;

use budget::{tokens, Bounds, Budget, Load, FLOOR, WIDTH};
use past::{Past, BLOCK, MAX_BLOCKS, MAX_HASHES};
use request::Recomputed;
use scores::Scores;

const BOUNDS: Bounds = Bounds { most: 2048, whole: 512 };
const AIM: Duration = Duration::from_millis(150);

fn load(decoding: bool, prompts: &[usize]) -> Load<'_> {
    Load { decoding, prompts, depth: 0 }
}

/// A step takes a constant time, and some for each token.
fn step(n: usize, each: f64) -> Duration {
    Duration::from_secs_f64(0.05 + each * n as f64)
}

#[test]
fn a_step_is_cut_by_the_time_of_its_tokens() {
    let (many, two): (&[usize], &[usize]) = (&[5000, 4000], &[5000, 20]);
    // Milliseconds for a token; tokens while others decode, for two long prompts, and for one that ends.
    for (pace, decoding, alone, ending) in [
        (None, 16, 64, 64),
        // A large model: 512 tokens would take 20 seconds.
        (Some(40.0), 16, 56, 56),
        (Some(10.0), 16, 240, 240),
        (Some(5.0), 24, 480, 24),
        (Some(1.0), 144, 512, 144),
        (Some(0.1), 1496, 512, 512),
        (Some(0.01), 2048, 512, 512),
    ] {
        // A little faster, so that the quotient is not below a whole number by its rounding.
        let pace = pace.map(|ms: f64| ms / 1000.0 * 0.9999);
        let n = |decoding: bool, prompts: &[usize]| tokens(load(decoding, prompts), pace, 0.15, BOUNDS);
        for prompts in [many, two, &[5000]] {
            assert_eq!(n(true, prompts), decoding, "{pace:?}");
        }
        assert_eq!((n(false, many), n(false, two)), (alone, ending), "{pace:?}");
        assert_eq!((n(false, &[5000]), n(false, &[5])), (alone, alone), "{pace:?}");
    }
    let small = Bounds { most: 8, whole: 4 };
    assert_eq!(tokens(load(false, many), Some(0.001), 0.15, small), 4);
    assert_eq!(tokens(load(true, many), Some(0.001), 0.15, small), 16);
    assert_eq!(Budget::new(Some(7), 2048, 512).next(load(false, two), AIM), 7);
}

#[test]
fn the_time_of_a_step_comes_to_the_aim() {
    for (each, expected) in [(0.001, 100), (0.0001, 1000), (0.01, FLOOR), (0.00001, BOUNDS.most)] {
        let mut budget = Budget::new(None, BOUNDS.most, BOUNDS.whole);
        for _ in 0..40 {
            let n = budget.next(load(true, &[]), AIM);
            budget.learn(n, 0, step(n, each), AIM);
        }
        let n = budget.next(load(true, &[]), AIM);
        assert!(n <= expected && expected - n <= 2 * WIDTH, "{each}: {n}, expected {expected}");
        // The last tokens of a prompt do not change it, and one step that was held up for long at most halves it.
        for few in [1, FLOOR] {
            budget.learn(few, 0, step(few, each), AIM);
            assert_eq!(budget.next(load(true, &[]), AIM), n, "{each}");
        }
        budget.learn(n, 0, Duration::from_secs(100), AIM);
        assert!(budget.next(load(true, &[]), AIM) >= (n / 2).saturating_sub(WIDTH).max(FLOOR), "{each}");
    }
}

/// What is learned of short prompts is no measure of a deep one, and the other way round.
#[test]
fn depths_are_measured_by_themselves() {
    let mut budget = Budget::new(None, BOUNDS.most, BOUNDS.whole);
    let at = |depth: usize| Load { decoding: true, prompts: &[], depth };
    budget.learn(100, 0, Duration::from_millis(99), AIM);
    // Until it is measured, from the nearest depth below, or above.
    assert_eq!([0, 1000, 100_000].map(|depth| budget.next(at(depth), AIM)), [144; 3]);
    budget.learn(100, 50_000, Duration::from_millis(498), AIM);
    assert_eq!([0, 9000, 40_000, 60_000].map(|depth| budget.next(at(depth), AIM)), [144, 144, 24, 24]);
    assert_eq!(budget.next(at(usize::MAX), AIM), 24);
    let mut deep = Budget::new(None, BOUNDS.most, BOUNDS.whole);
    deep.learn(100, usize::MAX, Duration::from_millis(498), AIM);
    assert_eq!(deep.next(at(0), AIM), 24);
}

fn scored(token: Token) -> Scored {
    let logprob = -(token as f32);
    Scored { token, logprob, top: vec![(token + 1, logprob / 2.0), (0, -1e9)] }
}

#[test]
fn a_beginning_is_shared_and_can_be_cut_anywhere() {
    let tokens: Vec<Token> = (1..=200).collect();
    let mut whole = Scores::default();
    tokens.iter().for_each(|&token| whole.push(&scored(token)));
    assert_eq!((whole.len(), whole.n_bytes()), (200, 2400));
    for n in [0, 1, 63, 64, 65, 127, 128, 199, 200, 201, 300] {
        let mut first = whole.clone();
        first.truncate(n);
        let n = n.min(200);
        assert_eq!(first.len(), n);
        // Whole blocks are there once.
        assert_eq!(first.n_bytes() + whole.n_bytes(), 2400 + n % 64 * 12, "{n}");
        let from = n / 3;
        let expected = |n_top: usize| -> Vec<Scored> {
            let some = tokens[from..n].iter().map(|&token| scored(token));
            some.map(|s| Scored { top: s.top[..n_top].to_vec(), ..s }).collect()
        };
        for n_top in [0, 1] {
            assert_eq!(first.of(&tokens[from..], from, n_top), expected(n_top), "{n}");
        }
        // What is added does not change the other.
        (0..70).for_each(|_| first.push(&scored(7)));
        assert_eq!((first.len(), whole.of(&tokens, 0, 1).len()), (n + 70, 200));
        assert_eq!(whole.of(&tokens, 0, 1)[n.min(199)].logprob, -(n.min(199) as f32 + 1.0));
    }
    assert_eq!(whole.n_bytes(), 2400);
}

#[test]
fn texts_are_known_by_salt_and_plan_for_a_while() {
    let text: Vec<Token> = (0..100).collect();
    let past = Past::new(6, 2);
    let own = past.under(1);
    assert_eq!(own.why(b"a", &text, 0), None);
    past.under(2).note(b"a", &text);
    assert_eq!(own.why(b"a", &text, 0), Some(Recomputed::OtherModel));
    past.under(0).note(b"a", &text[..90]);
    // The longest counts, and of equal ones that of the same model.
    assert_eq!(own.why(b"a", &text, 0), Some(Recomputed::OtherModel));
    assert_eq!(own.why(b"a", &text[..90], 0), Some(Recomputed::OtherPlan));
    own.note(b"a", &text[..40]);
    assert_eq!(own.why(b"a", &text, 31), Some(Recomputed::Evicted));
    assert_eq!(own.why(b"a", &text, 32), Some(Recomputed::OtherModel));
    assert_eq!((own.why(b"a", &text, 96), own.why(b"b", &text, 0)), (None, None));
    assert_eq!(own.why(b"a", &text[1..], 0), None);
    own.forget(b"a", &text);
    assert_eq!(own.why(b"a", &text, 0), Some(Recomputed::OtherModel));
    // Two generations later.
    let long: Vec<Token> = (1000..1000 + (MAX_BLOCKS * BLOCK) as Token).collect();
    for salt in 0..=2 * (MAX_HASHES / MAX_BLOCKS) as u32 {
        own.note(&salt.to_le_bytes(), &long);
    }
    assert_eq!(own.why(b"a", &text, 0), None);
    let blocks = own.lock();
    assert!(blocks.young.len() + blocks.old.len() <= 2 * MAX_HASHES);
}
