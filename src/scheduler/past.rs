//! Hashes of the beginnings that were read: whether a cache has lost the beginning of a prompt, or another one has it.

use std::collections::HashSet;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::request::Recomputed;
use crate::Token;

/// Tokens of a block.
const BLOCK: usize = 16;
/// Blocks of a text that are looked at: its first 262,144 tokens.
const MAX_BLOCKS: usize = 1 << 14;
/// Blocks of a generation. That and the one before have a few megabytes, for two million tokens each.
const MAX_HASHES: usize = 1 << 17;

/// Beginnings of texts, each with the plan that it was read under. A hash is of a salt and of all tokens up to the end of a
/// block, so that no request learns of another salt's texts.
#[derive(Default)]
struct Blocks {
    hasher: RandomState,
    young: HashSet<(u64, usize)>,
    old: HashSet<(u64, usize)>,
}

/// The same for all plans, as one of them sees it.
#[derive(Clone)]
pub(super) struct Past {
    blocks: Arc<Mutex<Blocks>>,
    plan: usize,
    n_plans: usize,
    /// Plans of each model.
    each: usize,
}

impl Blocks {
    fn hashes(&self, salt: &[u8], tokens: &[Token]) -> Vec<u64> {
        let mut last = self.hasher.hash_one(salt);
        let next = |block: &[Token]| {
            last = self.hasher.hash_one((last, block));
            last
        };
        tokens.chunks_exact(BLOCK).take(MAX_BLOCKS).map(next).collect()
    }

    fn has(&self, hash: u64, plan: usize) -> bool {
        self.young.contains(&(hash, plan)) || self.old.contains(&(hash, plan))
    }
}

impl Past {
    /// Nothing was read.
    pub(super) fn new(n_plans: usize, each: usize) -> Past {
        Past { blocks: Arc::default(), plan: 0, n_plans, each: each.max(1) }
    }

    /// As another plan sees it.
    pub(super) fn under(&self, plan: usize) -> Past {
        Past { plan, ..self.clone() }
    }

    fn lock(&self) -> MutexGuard<'_, Blocks> {
        self.blocks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A text was read.
    pub(super) fn note(&self, salt: &[u8], tokens: &[Token]) {
        let mut blocks = self.lock();
        for hash in blocks.hashes(salt, tokens) {
            if blocks.young.len() >= MAX_HASHES {
                blocks.old = std::mem::take(&mut blocks.young);
            }
            blocks.young.insert((hash, self.plan));
        }
    }

    /// A text is to be forgotten.
    pub(super) fn forget(&self, salt: &[u8], tokens: &[Token]) {
        let mut blocks = self.lock();
        for hash in blocks.hashes(salt, tokens) {
            blocks.young.remove(&(hash, self.plan));
            blocks.old.remove(&(hash, self.plan));
        }
    }

    /// Why a prompt's beginning is not in the cache, which has at most `held` of its tokens, if more were read before.
    pub(super) fn why(&self, salt: &[u8], prompt: &[Token], held: usize) -> Option<Recomputed> {
        let blocks = self.lock();
        let hashes = blocks.hashes(salt, prompt);
        let known = |plan: usize| hashes.iter().take_while(|hash| blocks.has(**hash, plan)).count() * BLOCK;
        if known(self.plan) > held {
            return Some(Recomputed::Evicted);
        }
        let same = |plan: usize| plan / self.each == self.plan / self.each;
        let more = (0..self.n_plans).map(|plan| (known(plan), same(plan))).filter(|(n, _)| *n > held);
        more.max().map(|(_, same)| if same { Recomputed::OtherPlan } else { Recomputed::OtherModel })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
