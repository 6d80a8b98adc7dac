//! Hashes of the beginnings that were read: whether a cache has lost the beginning of a prompt, or another one has it.

use std::collections::HashSet;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::request::Recomputed;
use crate::Token;

/// Tokens of a block.
pub(super) const BLOCK: usize = 16;
/// Blocks of a text that are looked at: its first 262,144 tokens.
pub(super) const MAX_BLOCKS: usize = 1 << 14;
/// Blocks of a generation. That and the one before have a few megabytes, for two million tokens each.
pub(super) const MAX_HASHES: usize = 1 << 17;

/// Beginnings of texts, each with the plan that it was read under. A hash is of a salt and of all tokens up to the end of a
/// block, so that no request learns of another salt's texts.
#[derive(Default)]
pub(super) struct Blocks {
    hasher: RandomState,
    pub(super) young: HashSet<(u64, usize)>,
    pub(super) old: HashSet<(u64, usize)>,
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

    pub(super) fn lock(&self) -> MutexGuard<'_, Blocks> {
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
