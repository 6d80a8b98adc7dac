//! Names that no text has: three syllables each.

use std::collections::HashSet;

use rand_chacha::ChaCha8Rng;

use crate::random::below;

/// Gives names, each once.
#[derive(Default)]
pub(super) struct Names {
    taken: HashSet<String>,
}

impl Names {
    /// The next name, such as `Balora`; longer ones when there are tens of thousands.
    pub(super) fn next(&mut self, rng: &mut ChaCha8Rng) -> String {
        loop {
            // 70 syllables: 343,000 names of three.
            let n = if self.taken.len() < 50_000 { 3 } else { 5 };
            let name = word(rng, n);
            let name = name[..1].to_uppercase() + &name[1..];
            if self.taken.insert(name.clone()) {
                return name;
            }
        }
    }
}

/// A word of so many syllables, in small letters.
pub(super) fn word(rng: &mut ChaCha8Rng, n: usize) -> String {
    let syllable = |rng: &mut ChaCha8Rng| [pick(rng, "bdfgklmnprstvz"), pick(rng, "aeiou")];
    (0..n).flat_map(|_| syllable(rng)).collect()
}

fn pick(rng: &mut ChaCha8Rng, of: &str) -> char {
    char::from(of.as_bytes()[below(rng, of.len() as u64) as usize])
}

pub(super) fn one<'t, T>(rng: &mut ChaCha8Rng, of: &'t [T]) -> &'t T {
    &of[below(rng, of.len() as u64) as usize]
}
