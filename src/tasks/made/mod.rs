//! Benchmarks whose samples are generated here, offline and from a seed: their protocols are published, their
//! published rows are not needed.

pub(crate) mod babilong;
pub(crate) mod graphwalks;
pub(crate) mod json_kv;

use crate::draws::Random;
use crate::{Setup, Task};

pub(crate) static TASKS: &[&dyn Task] = &[
    &json_kv::JsonKv,
    &graphwalks::BFS,
    &graphwalks::PARENTS,
    &babilong::QA1,
    &babilong::QA2,
    &babilong::QA3,
    &babilong::QA4,
    &babilong::QA5,
];

/// Default number of samples, as HELMET and BABILong have for each length.
const SAMPLES: usize = 100;
/// The default seed.
const SEED: u64 = 42;

/// The generator of one sample: it depends on seed, task and index alone, so samples can be made in any number.
fn random(setup: &Setup, task: u64, index: usize) -> Random {
    let mut state = setup.seed.unwrap_or(SEED);
    for part in [task, index as u64] {
        // SplitMix64 (Steele, Lea and Flood, 2014).
        state = (state ^ part).wrapping_add(0x9e37_79b9_7f4a_7c15);
        state = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        state = (state ^ (state >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        state ^= state >> 31;
    }
    Random::new(state)
}
