//! Evolution of factors, as LongRoPE searches them.
//!
//! Algorithm and defaults are those of `evolution/algorithms/{genetic_base,dim_mono}.py` in microsoft/LongRoPE: parents are
//! the best of all that lived on, some children are mutations of one, some have pairs of two; factors never fall from a
//! pair to the next slower one. Draws are this program's own. Where the code has one first individual (YaRN) and its
//! mutations, this follows the paper (Ding et al. 2024, section 3.2), which begins with PI, NTK and YaRN and theirs.

use rand::seq::index;
use rand::Rng;
use rand_chacha::rand_core::SeedableRng;
use rand_chacha::ChaCha8Rng;

use crate::model::Error;

ropewalk_core::setters! {
    /// Numbers of individuals, and the step between factors.
    #[derive(Debug, Clone, Copy, PartialEq, serde::Serialize)]
    pub struct Sizes {
        /// Individuals at the start.
        pub population: usize,
        /// Generations.
        pub iterations: usize,
        /// Mutations per generation.
        pub mutations: usize,
        /// Crossovers per generation.
        pub crossovers: usize,
        /// Individuals that survive each generation.
        pub parents: usize,
        /// Step between neighboring factors.
        pub step: f64,
    }
}

impl Default for Sizes {
    /// `default_hyper_params/dim_mono.json`.
    fn default() -> Self {
        Sizes { population: 64, iterations: 40, mutations: 16, crossovers: 16, parents: 32, step: 0.01 }
    }
}

impl Sizes {
    /// Total number of individuals scored.
    pub fn evaluations(&self) -> usize {
        self.iterations
            .saturating_mul(self.mutations.saturating_add(self.crossovers))
            .saturating_add(self.population)
    }

    pub(super) fn check(&self) -> Result<(), Error> {
        let counts = [("population", self.population, 3), ("parents", self.parents, 2)];
        for (name, found, least) in counts {
            if found < least {
                return Err(Error::argument(name, format_args!("at least {least}"), found));
            }
        }
        if self.parents > self.population {
            let (n, most) = (self.parents, self.population);
            return Err(Error::argument("parents", format_args!("at most the population, {most}"), n));
        }
        if self.mutations.saturating_add(self.crossovers) == 0 {
            return Err(Error::argument("mutations, crossovers", "at least 1 together", 0));
        }
        match self.step > 0.0 && self.step <= 1.0 {
            true => Ok(()),
            false => Err(Error::argument("step", "a number above 0, at most 1", self.step)),
        }
    }
}

/// Factors and what they are worth.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Individual {
    pub(super) factors: Vec<f64>,
    /// Mean negative log-likelihood: less is better.
    pub(super) score: f64,
}

/// Pairs that a change touches, as a share.
const TOUCHED: f64 = 0.3;
/// Attempts at a crossover (`max_crossover_try`), and at a mutation that is new: the original tries without end.
const CROSSOVER_TRIES: usize = 20;
const MUTATION_TRIES: usize = 1000;

/// The function that scores factors; the search ends where it returns `None`.
pub(super) type Score<'a, E> = dyn FnMut(&[f64]) -> Result<Option<f64>, E> + 'a;

/// The best individuals, best first: all that were found until generations, the scorer or new factors ended. `seeds` are the
/// first individuals, of factors that do not fall; `scale` is the longest context over the trained one. The result depends on
/// arguments and scores alone.
pub(super) fn evolve<E>(
    seeds: &[Vec<f64>],
    scale: f64,
    seed: u64,
    sizes: &Sizes,
    score: &mut Score<'_, E>,
) -> Result<Vec<Individual>, E> {
    let mut search =
        Search { scale, step: sizes.step, rng: ChaCha8Rng::seed_from_u64(seed), seen: Vec::new() };
    let mut population = Vec::new();
    let best_of = |mut population: Vec<Individual>| {
        population.sort_by(|a, b| a.score.total_cmp(&b.score));
        population.truncate(sizes.parents);
        population
    };
    for i in 0..sizes.population {
        let factors = match seeds.get(i) {
            Some(seed) => Some(search.remember(seed.clone())),
            None => search.mutation(&seeds[i % seeds.len()]),
        };
        let Some(factors) = factors else { break };
        let Some(score) = score(&factors)? else { return Ok(best_of(population)) };
        population.push(Individual { factors, score });
    }
    for _ in 0..sizes.iterations {
        let parents = best_of(population);
        population = parents.clone();
        for i in 0..sizes.mutations + sizes.crossovers {
            let factors = match i < sizes.mutations {
                true => {
                    let parent = search.rng.random_range(0..parents.len());
                    search.mutation(&parents[parent].factors)
                }
                false => search.crossover(&parents),
            };
            let Some(factors) = factors else { return Ok(best_of(population)) };
            let Some(score) = score(&factors)? else { return Ok(best_of(population)) };
            population.push(Individual { factors, score });
        }
    }
    Ok(best_of(population))
}

struct Search {
    scale: f64,
    step: f64,
    rng: ChaCha8Rng,
    /// Everything that was made.
    seen: Vec<Vec<f64>>,
}

impl Search {
    fn remember(&mut self, factors: Vec<f64>) -> Vec<f64> {
        self.seen.push(factors.clone());
        factors
    }

    fn is_new(&self, factors: &[f64]) -> bool {
        self.seen.iter().all(|seen| seen.iter().zip(factors).any(|(a, b)| (a - b).abs() > 1e-6))
    }

    /// A parent with some factors redrawn between their neighbors, the slowest up to 1 + `scale`. `None` when nothing new
    /// was found.
    fn mutation(&mut self, parent: &[f64]) -> Option<Vec<f64>> {
        let mut factors = parent.to_vec();
        for _ in 0..MUTATION_TRIES {
            for j in 0..factors.len() {
                if !self.rng.random_bool(TOUCHED) {
                    continue;
                }
                let low = if j == 0 { 1.0 } else { factors[j - 1] };
                let high = factors.get(j + 1).copied().unwrap_or(1.0 + self.scale);
                let steps = ((high - low) / self.step + 1e-9).floor();
                if steps >= 0.0 {
                    let drawn = low + self.step * self.rng.random_range(0..=steps as u64) as f64;
                    // What is printed is what was searched.
                    factors[j] = ((drawn * 1e4).round() / 1e4).clamp(low, high);
                }
            }
            if self.is_new(&factors) {
                return Some(self.remember(factors));
            }
        }
        None
    }

    /// The better one of two parents with as few factors of the other as make something new; a mutation where none do.
    fn crossover(&mut self, parents: &[Individual]) -> Option<Vec<f64>> {
        if parents.len() < 2 {
            return self.mutation(&parents[0].factors);
        }
        let two = index::sample(&mut self.rng, parents.len(), 2);
        let (a, b) = (two.index(0), two.index(1));
        let (one, other) = (&parents[a.min(b)].factors, &parents[a.max(b)].factors);
        let mut factors = one.clone();
        for _ in 0..CROSSOVER_TRIES {
            for j in 0..factors.len() {
                if !self.rng.random_bool(TOUCHED / 2.0) {
                    continue;
                }
                factors[j] = other[j];
                if factors.windows(2).all(|pair| pair[0] <= pair[1]) && self.is_new(&factors) {
                    return Some(self.remember(factors));
                }
            }
        }
        self.mutation(one)
    }
}
