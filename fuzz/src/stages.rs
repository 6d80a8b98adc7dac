//! Files of stages.

use ropewalk::train::recipe::{Amount, SCHEDULES};
use ropewalk::train::Stage;

use crate::{accepted, file};

/// Reads the stages; those of a file that is accepted can be run one after another.
pub fn run(bytes: &[u8]) -> bool {
    accepted(Stage::read(&file("stages.toml", bytes)).map(|stages| {
        assert!(!stages.is_empty() && stages[0].ctx > 0 && stages.is_sorted_by_key(|s| s.ctx));
        for stage in stages {
            assert!(!matches!(stage.length, Amount::Steps(0) | Amount::Tokens(0)));
            let schedule = stage.optimiser.schedule;
            assert!(schedule.is_none_or(|name| SCHEDULES.contains(&name.as_str())));
        }
    }))
}

/// A short file, and one with everything in it.
pub fn seeds() -> Vec<Vec<u8>> {
    vec![b"[[stage]]\nctx = 32\nsteps = 1\n".to_vec(), FULL.into()]
}

const FULL: &str = r#"# Adjusted base frequency in three stages.
[[stage]]
ctx = 32768
rope = "abf:base=1000000"
tokens = 2000000000
batch = 4
lr = 2e-5
lr-min = 0.0
warmup = 20
warmup-shape = "log"
schedule = "cosine"
beta1 = 0.9
beta2 = 0.95
weight-decay = 0.1
clip = 1.0
ema = 0.9
[[stage]]
ctx = 65536
rope = "abf:base=2000000"
attention = "s2:group=8192"
steps = 100
"#;
