//! The evolution of factors alone, on distances from known ones.

#[path = "../../src/eval/search/evolve.rs"]
#[allow(dead_code, unreachable_pub)]
mod own;

use own::{evolve, Individual, Sizes};

const SIZES: Sizes =
    Sizes { population: 24, iterations: 20, mutations: 8, crossovers: 8, parents: 12, step: 0.01 };

fn seeds(n: usize) -> Vec<Vec<f64>> {
    let ntk = (0..n).map(|j| 4f64.powf(j as f64 / (n - 1) as f64)).collect();
    vec![vec![4.0; n], ntk]
}

/// The distance to a known optimum.
fn distance(factors: &[f64]) -> f64 {
    let n = factors.len() as f64;
    factors.iter().enumerate().map(|(j, f)| (f - 1.0 - 3.5 * (j as f64 / n).powi(2)).powi(2)).sum()
}

fn run(seed: u64, sizes: &Sizes, most: usize) -> (Vec<Individual>, Vec<Vec<f64>>) {
    let mut asked: Vec<Vec<f64>> = Vec::new();
    let found = evolve::<()>(&seeds(16), 4.0, seed, sizes, &mut |factors| {
        if asked.len() == most {
            return Ok(None);
        }
        asked.push(factors.to_vec());
        Ok(Some(distance(factors)))
    });
    (found.unwrap(), asked)
}

#[test]
fn it_finds_something_better_than_what_it_began_with() {
    for seed in 0..5 {
        let (found, asked) = run(seed, &SIZES, usize::MAX);
        assert_eq!(asked.len(), SIZES.evaluations());
        let start = seeds(16).iter().map(|s| distance(s)).fold(f64::INFINITY, f64::min);
        assert!(found[0].score < 0.5 * start, "{} of {start}", found[0].score);
        assert!(found.windows(2).all(|w| w[0].score <= w[1].score));
    }
}

#[test]
fn factors_never_fall_and_stay_within_their_bounds_and_none_is_asked_for_twice() {
    let (_, asked) = run(3, &SIZES, usize::MAX);
    for (i, factors) in asked.iter().enumerate() {
        assert!(factors.windows(2).all(|w| w[0] <= w[1]), "{factors:?}");
        assert!(factors[0] >= 1.0 && factors[15] <= 5.0, "{factors:?}");
        assert!(asked[..i].iter().all(|other| other != factors));
    }
}

#[test]
fn a_search_that_ends_early_asked_for_the_same_factors() {
    let (_, all) = run(7, &SIZES, usize::MAX);
    let (best, part) = run(7, &SIZES, 50);
    assert_eq!(part[..], all[..50]);
    let least = part.iter().map(|f| distance(f)).fold(f64::INFINITY, f64::min);
    assert_eq!(best[0].score, least);
    assert_ne!(run(8, &SIZES, 50).1, part, "another seed draws others");
}

#[test]
fn a_space_without_anything_new_ends_the_search() {
    let sizes = Sizes { step: 1.0, ..SIZES };
    let found = evolve::<()>(&[vec![1.0]], 1.0, 0, &sizes, &mut |f| Ok(Some(f[0]))).unwrap();
    assert_eq!(found.iter().map(|i| i.factors[0]).collect::<Vec<_>>(), [1.0, 2.0]);
}

#[test]
fn sizes_that_make_no_search_are_refused() {
    let with = |change: fn(&mut Sizes)| {
        let mut sizes = SIZES;
        change(&mut sizes);
        sizes.check().unwrap_err().to_string()
    };
    assert!(with(|s| s.population = 2).contains("population: expected at least 3, found 2"));
    assert!(with(|s| s.parents = 1).contains("parents: expected at least 2, found 1"));
    assert!(with(|s| s.parents = 99).contains("at most the population, 24, found 99"));
    assert!(with(|s| s.step = f64::NAN).contains("step"));
    assert!(with(|s| (s.mutations, s.crossovers) = (0, 0)).contains("at least 1 together"));
}
