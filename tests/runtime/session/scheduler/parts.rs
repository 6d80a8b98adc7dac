//! Parts of the scheduler that stand alone: this test program compiles their files for itself.

#[path = "../../../../src/scheduler/budget.rs"]
mod budget;
#[path = "../../../../src/scheduler/scores.rs"]
mod scores;

use std::time::Duration;

use ropewalk::session::Scored;
use ropewalk::Token;

use budget::Budget;
use scores::Scores;

/// Steps take a constant time and some for each token; the budget comes to where their sum is the aim.
#[test]
fn the_time_of_a_step_comes_to_the_aim() {
    let (aim, most) = (Duration::from_millis(150), 2048);
    let step = |n: usize, each: f64| Duration::from_secs_f64(0.05 + each * n as f64);
    for (each, expected) in [(0.001, 100), (0.0001, 1000), (0.01, 32), (0.00001, most)] {
        let mut budget = Budget::new(None, most, 512);
        for _ in 0..40 {
            let n = budget.next(true, &[]);
            budget.learn(n, step(n, each), aim);
        }
        let n = budget.next(true, &[]);
        assert!(n.abs_diff(expected) <= expected / 50 + 1, "{each}: {n}, expected {expected}");
        // The last tokens of a prompt do not change it.
        budget.learn(1, step(1, each), aim);
        assert_eq!(budget.next(true, &[]), n);
        // Alone, or next to another one that is long, a prompt is read in whole micro-batches.
        for whole in [&[5000][..], &[5], &[5000, 4000]] {
            assert_eq!(budget.next(false, whole), 512);
        }
        assert_eq!(budget.next(false, &[5000, n]), n.min(512));
    }
    assert_eq!(Budget::new(Some(7), most, 512).next(false, &[5000, 5]), 7);
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
