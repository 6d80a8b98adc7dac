//! Files of stages.

use ropewalk::train::recipe::Amount;
use ropewalk::train::set::{Settings, KEYS};
use ropewalk::train::Stage;

use crate::{accepted, file};

/// Reads the stages; those of a file that is accepted can be run one after another.
pub fn run(bytes: &[u8]) -> bool {
    accepted(Stage::read(file("stages.toml", bytes)).map(|stages| {
        assert!(!stages.is_empty() && stages[0].ctx > 0 && stages.is_sorted_by_key(|s| s.ctx));
        for stage in stages {
            assert!(!matches!(stage.length, Amount::Steps(0) | Amount::Tokens(0)));
            // What was read is what its text says.
            let mut again = Settings::default();
            for key in KEYS {
                if let Some(text) = stage.settings.text(key.name) {
                    again.put("again", key.name, &text).expect("a value that was printed");
                }
            }
            assert_eq!(again, stage.settings);
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
